//! The daemon: the relays of any number of tables, the sinks that they share, and the purging of tables that nobody
//! relays here.
//!
//! | file | what is in it |
//! |---|---|
//! | `table.rs` | one table: from a database that may be away to a running relay |
//! | `sinks.rs` | sinks from their settings |
//! | `routes.rs` | which event goes to which sink, and where in it |
//! | `cleaner.rs` | purging without a relay |
//! | `signals.rs` | who may stop it |
//! | `log.rs` | what it says while it runs |
//!
//! A [`Daemon`] exists before its database is reached: whoever serves its health can say so. It promises that a stop
//! drains every relay, and says of each what was left.

mod cleaner;
pub(crate) mod log;
mod routes;
pub(crate) mod signals;
mod sinks;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use posthaste::relay::Drained;
use posthaste::sink::Sink;
use tokio::sync::{OnceCell, watch};
use tokio::task::JoinSet;

use crate::config::settings::Settings;
use crate::exit::Exit;
use crate::failure::Failure;

pub(crate) use sinks::probed;
pub(crate) use table::{Opened, PROBE, Table};

/// How often it looks whether its relays still run.
const WATCH: Duration = Duration::from_secs(1);

/// The running daemon; clones share it.
#[derive(Clone)]
pub(crate) struct Daemon {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    /// Once they are made.
    sinks: OnceCell<BTreeMap<String, Arc<dyn Sink>>>,
    /// By the table's name.
    tables: BTreeMap<String, Table>,
    stopping: watch::Sender<bool>,
}

impl Daemon {
    /// With the sinks that its settings name. Neither they nor the database are asked yet.
    pub(crate) fn new(settings: Settings) -> Self {
        Self::made(settings, OnceCell::new())
    }

    /// With these sinks, by the names that its routes know.
    pub(crate) fn with_sinks(settings: Settings, sinks: BTreeMap<String, Arc<dyn Sink>>) -> Self {
        Self::made(settings, OnceCell::new_with(Some(sinks)))
    }

    fn made(settings: Settings, sinks: OnceCell<BTreeMap<String, Arc<dyn Sink>>>) -> Self {
        let tables = settings.tables.iter().map(|table| (table.name.to_string(), Table::new(table.clone())));
        let tables = tables.collect();
        Self { inner: Arc::new(Inner { settings, sinks, tables, stopping: watch::Sender::new(false) }) }
    }

    /// What it was told.
    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Its tables, by name.
    pub(crate) fn tables(&self) -> &BTreeMap<String, Table> {
        &self.inner.tables
    }

    /// Makes the sinks, opens every table and starts its relay. A server that cannot be reached is waited for; whatever somebody must
    /// mend first is an error.
    pub(crate) async fn start(&self) -> Result<(), Failure> {
        let Inner { settings, sinks, tables, .. } = &*self.inner;
        let opening = async {
            for table in tables.values() {
                table.open(settings).await?;
            }
            Ok(())
        };
        // A broker that is away takes its time, and is no reason not to look at the database meanwhile.
        let (sinks, ()) = tokio::try_join!(sinks.get_or_try_init(|| sinks::build(&settings.sinks)), opening)?;
        for table in tables.values() {
            table.start(settings, sinks).await?;
            if table.settings().cleaned && !table.settings().relayed {
                cleaner::start(self, table)?;
            }
        }
        Ok(())
    }

    /// Ends when a relay has ended by itself, which none should; says which.
    pub(crate) async fn broken(&self) -> Failure {
        loop {
            tokio::time::sleep(WATCH).await;
            let ended = |table: &&Table| table.relay().is_some_and(|relay| !relay.is_running());
            if let Some(table) = self.inner.tables.values().find(ended) {
                let name = &table.settings().name;
                return Failure::new(
                    Exit::Failed,
                    format!("the relay of table {name} has ended by itself; the log says why"),
                );
            }
        }
    }

    /// Stops everything: all relays drain at once. Says what each of them left.
    pub(crate) async fn stop(&self) -> Vec<(String, Drained)> {
        self.inner.stopping.send_replace(true);
        let mut stopping = JoinSet::new();
        for (name, table) in &self.inner.tables {
            if let Some(relay) = table.relay().cloned() {
                let name = name.clone();
                stopping.spawn(async move { (name, relay.retire().await) });
            }
        }
        let mut drained = stopping.join_all().await;
        drained.sort_by(|(one, _), (other, _)| one.cmp(other));
        for table in self.inner.tables.values() {
            table.close().await;
        }
        drained
    }

    /// Whether it is about to end.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.inner.stopping.borrow()
    }

    /// Tells when it stops.
    fn stopping(&self) -> watch::Receiver<bool> {
        self.inner.stopping.subscribe()
    }
}
