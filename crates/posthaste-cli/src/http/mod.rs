//! What the daemon serves over HTTP: health, metrics, and an API with what the command line can do.
//!
//! | file | what is in it |
//! |---|---|
//! | `server.rs` | the listener and its connections |
//! | `limits.rs` | how much of everything |
//! | `routes.rs` | every path, and the rules that hold for all of them |
//! | `access.rs` | who may do what: the token, and requests that a web page was made to send |
//! | `health.rs` | whether the process lives, and whether it is ready |
//! | `metrics.rs` | what Prometheus reads |
//! | `api/` | `/api/v1`, a file for each noun |
//! | `input.rs` | parameters and bodies, read strictly |
//! | `problem.rs` | what is said of errors |
//! | `openapi.json`, `openapi.rs` | the same for programs, and the tests that hold it to the routes |
//!
//! It promises that nothing is changed without the token, that no request costs more than a bounded amount, and that
//! neither payloads nor secrets are logged.

mod access;
mod api;
mod health;
mod input;
mod limits;
mod metrics;
mod openapi;
mod problem;
mod routes;
mod server;

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use crate::config::settings::HttpSettings;
use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::target::Target;

use access::Access;
use health::Readiness;
pub(crate) use server::Server;

/// What every answer is made from; clones share it.
#[derive(Clone)]
struct Served {
    inner: Arc<Inner>,
}

struct Inner {
    daemon: Daemon,
    access: Access,
    metrics: PrometheusHandle,
    readiness: Readiness,
    /// The host of a database that is not on this machine.
    remote_host: Option<String>,
}

impl Served {
    fn new(daemon: &Daemon, settings: &HttpSettings, metrics: PrometheusHandle) -> Result<Self, Failure> {
        let remote_host = Target::new(&daemon.settings().database)?.remote_host();
        let inner = Inner {
            daemon: daemon.clone(),
            access: Access::new(settings),
            metrics,
            readiness: Readiness::default(),
            remote_host,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn daemon(&self) -> &Daemon {
        &self.inner.daemon
    }
}
