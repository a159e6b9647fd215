//! Servers of a test's own, which it may kill and start again.

use std::process::Command;

use posthaste_testkit::engine::Engine;
use posthaste_testkit::engine::nats::Nats;
use posthaste_testkit::engine::postgres::Postgres;
use posthaste_testkit::private::PrivateServer;

/// A running server. It ends with the test, and its data with it.
pub(crate) struct Server(PrivateServer);

impl Server {
    pub(crate) fn postgres() -> Self {
        Self::start(&Postgres)
    }

    pub(crate) fn nats() -> Self {
        Self::start(&Nats)
    }

    fn start(engine: &'static dyn Engine) -> Self {
        Self(PrivateServer::start(engine).unwrap())
    }

    /// URL of the server, and of the database that is always there.
    pub(crate) fn url(&self) -> String {
        self.0.first_url()
    }

    /// Ends the server as a crash does.
    pub(crate) fn kill(&mut self) {
        self.0.crash();
    }

    /// Starts the server again with its data.
    pub(crate) fn start_again(&mut self) {
        self.0.start_again().unwrap();
    }

    /// Answer of PostgreSQL's own client to these statements, or its error.
    pub(crate) fn psql(&self, sql: &str) -> Result<String, String> {
        let mut psql = Command::new("psql");
        psql.args([&self.url(), "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql]).current_dir("/");
        let output = psql.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}
