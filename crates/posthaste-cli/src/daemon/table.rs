//! One table of the daemon: from a database that may be away to a running relay.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use posthaste::relay::RelayBuilder;
use posthaste::sink::Sink;
use posthaste::store::{self, Dialect, Store};
use posthaste::{Admin, ErrorKind, Relay};

use super::routes::TableRoutes;
use crate::config::settings::{Settings, TableSettings};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::remedy::{self, Need};
use crate::target::Target;

/// How long a server that is away is left alone between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// How long somebody's look through HTTP may take.
const LOOK: Duration = Duration::from_secs(5);

/// How long a database has to say that it is there.
pub(crate) const PROBE: Duration = Duration::from_secs(2);

/// Connections of a relay on SQLite.
const OF_FILE: u32 = 2;

/// What stands for an interval that never ends: a relay that is not to purge sleeps through it.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// One table, and its relay once it runs.
pub(crate) struct Table {
    settings: TableSettings,
    opened: OnceLock<Opened>,
    /// Why it is not open yet.
    waits_for: Mutex<Option<String>>,
    /// Connections of the relay's own, to be closed at the end.
    relays_store: OnceLock<Arc<dyn Store>>,
}

/// A table whose database has been reached.
pub(crate) struct Opened {
    /// For looking and mending; the relay has connections of its own.
    pub(crate) store: Arc<dyn Store>,
    /// The same, for no longer than a request may look.
    pub(crate) admin: Admin,
    /// A connection that nobody's look can take, to ask whether the database is there.
    pub(crate) probed: Arc<dyn Store>,
    /// Whether its file was made just now.
    pub(crate) created: bool,
    relay: OnceLock<Relay>,
}

impl Opened {
    pub(crate) fn new(store: Arc<dyn Store>, created: bool) -> Self {
        let admin = Admin::new(store.within(LOOK));
        let probed = store.with_connections(1);
        Self { store, admin, probed, created, relay: OnceLock::new() }
    }
}

impl Table {
    pub(super) fn new(settings: TableSettings) -> Self {
        Self { settings, opened: OnceLock::new(), waits_for: Mutex::default(), relays_store: OnceLock::new() }
    }

    pub(crate) fn settings(&self) -> &TableSettings {
        &self.settings
    }

    /// What there is once its database has been reached.
    pub(crate) fn opened(&self) -> Option<&Opened> {
        self.opened.get()
    }

    /// Its relay, if it is relayed and runs.
    pub(crate) fn relay(&self) -> Option<&Relay> {
        self.opened.get()?.relay.get()
    }

    /// Why its database has not been reached yet.
    pub(crate) fn waits_for(&self) -> Option<String> {
        self.waits_for.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reaches its database, waiting for a server that is away, and makes the table where that is wanted.
    pub(super) async fn open(&self, settings: &Settings) -> Result<(), Failure> {
        let (database, name) = (&settings.database, self.settings.name.to_string());
        let target = Target::new(&database.with_table(name.clone()))?;
        let missing = target.missing_file();
        if let Some(file) = missing.as_ref().filter(|_| !self.settings.migrate && !target.creates_itself()) {
            let message = format!(
                "there is no database file {}; create it with {}, or start the relay with --migrate",
                file.display(),
                target.migration()
            );
            return Err(Failure::new(Exit::Table, message));
        }
        let store = self.reach(database.url.reveal(), &name, &target).await?;
        // Opened once: `start` is called once.
        let _ = self.opened.set(Opened::new(store, missing.is_some()));
        Ok(())
    }

    /// Makes the table or brings it up to date, where that is wanted.
    async fn make(&self, store: &dyn Store, target: &Target) -> Result<(), Failure> {
        let name = self.settings.name.to_string();
        if self.settings.migrate || target.makes_itself(store).await? {
            let applied = match self.settings.mode {
                Some(mode) => store.migrate_up_as(mode).await?,
                None => store.migrate_up().await?,
            };
            for version in applied {
                tracing::info!(table = name, version, "applied a migration");
            }
        } else if let Some((wanted, found)) = self.settings.mode.zip(store.mode().await?)
            && wanted != found
        {
            tracing::warn!(
                table = name,
                ?wanted,
                ?found,
                "the table was made in another mode than the configuration says"
            );
        }
        Ok(())
    }

    /// Connects and makes the table; a server that goes away in between is waited for, too.
    async fn reach(&self, url: &str, name: &str, target: &Target) -> Result<Arc<dyn Store>, Failure> {
        let mut said = false;
        loop {
            let (failure, store) = match store::connect(url, name).await {
                Ok(store) => match self.make(&*store, target).await {
                    Ok(()) => {
                        *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = None;
                        return Ok(store);
                    }
                    Err(failure) => (failure, Some(store)),
                },
                Err(error) => (error.into(), None),
            };
            let away = failure.library().filter(|error| *error.kind() == ErrorKind::Unreachable);
            // A file that cannot be opened stays so until somebody does something.
            let Some(error) = away.filter(|_| target.dialect() != Dialect::Sqlite) else {
                return Err(explained(failure, target, store.as_deref()).await);
            };
            if !said {
                tracing::warn!(table = name, %error, "the database is not there yet; the relay waits for it");
                said = true;
            }
            *self.waits_for.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Starts its relay, if it is relayed.
    pub(super) async fn start(
        &self,
        settings: &Settings,
        sinks: &BTreeMap<String, Arc<dyn Sink>>,
    ) -> Result<(), Failure> {
        let Some(opened) = self.opened.get() else { return Ok(()) };
        let target = Target::new(&settings.database.with_table(self.settings.name.to_string()))?;
        if let Err(failure) = self.begin(opened, settings, sinks).await {
            return Err(explained(failure, &target, Some(&*opened.store)).await);
        }
        if !self.settings.relayed {
            return Ok(());
        }
        // It would begin, and never settle anything.
        match remedy::unfit(&target, &*opened.store).await {
            Some((exit, message)) => Err(Failure::new(exit, message)),
            None => Ok(()),
        }
    }

    async fn begin(
        &self,
        opened: &Opened,
        settings: &Settings,
        sinks: &BTreeMap<String, Arc<dyn Sink>>,
    ) -> Result<(), Failure> {
        if !self.settings.relayed {
            // A table that is only purged is not asked for until then.
            opened.store.stats(1).await?;
            return Ok(());
        }
        let store = self.relays_store.get_or_init(|| match opened.store.dialect() {
            // Who shares a file's connections with those who look waits for them.
            Dialect::Sqlite => opened.store.with_connections(OF_FILE),
            _ => opened.store.dedicated(),
        });
        let relay = self.builder(Relay::on(Arc::clone(store)), settings, sinks).build()?;
        relay.start().await?;
        let _ = opened.relay.set(relay);
        Ok(())
    }

    /// A relay with this table's settings and routes.
    pub(crate) fn builder(
        &self,
        builder: RelayBuilder,
        settings: &Settings,
        sinks: &BTreeMap<String, Arc<dyn Sink>>,
    ) -> RelayBuilder {
        let own = &self.settings;
        let routes = TableRoutes::new(settings, &own.name, sinks);
        let mut builder = builder
            .batch(own.batch)
            .poll_interval(own.poll_interval)
            .lease(own.lease)
            .lane_lease(own.lane_lease)
            .timeout(own.timeout)
            .drain_timeout(own.drain_timeout)
            .retry(own.backoff.policy())
            .probe_interval(own.probe_first, own.probe_longest)
            .stats_interval(own.stats_interval)
            .error_bytes(own.error_bytes)
            .topics(routes.topics())
            .routes(routes);
        if own.cleaned {
            builder = builder.purge_interval(own.purge_interval).retention(own.retention);
            if let Some(retention) = own.dead_retention {
                builder = builder.dead_retention(retention);
            }
        } else {
            builder = builder.purge_interval(NEVER);
        }
        if let Some(capacity) = own.capacity {
            builder = builder.capacity(capacity);
        }
        if let Some(concurrency) = own.concurrency {
            builder = builder.concurrency(concurrency);
        }
        if own.single_active {
            builder = builder.single_active();
        }
        if own.mask_tenants {
            builder = builder.mask_tenants();
        }
        for (name, topic) in &settings.topics {
            builder = builder.on_dead(name, topic.on_dead);
            if !topic.ordered {
                builder = builder.unordered_topic(name);
            }
            if let Some(backoff) = topic.backoff(own.backoff) {
                builder = builder.retry_topic(name, backoff.policy());
            }
        }
        builder
    }

    /// Takes over what somebody else has opened and started, such as a relay that its producer is attached to.
    pub(crate) fn adopt(&self, opened: Opened, relay: Relay) {
        let _ = opened.relay.set(relay);
        let _ = self.opened.set(opened);
    }

    /// Closes its connections, so that an SQLite file is left without its log beside it.
    pub(super) async fn close(&self) {
        if let Some(store) = self.relays_store.get() {
            store.close().await;
        }
        if let Some(opened) = self.opened.get() {
            opened.probed.close().await;
            opened.store.close().await;
        }
    }
}

/// A failure of the start with what to do about it; of a missing table, what a relay can do, too.
async fn explained(failure: Failure, target: &Target, store: Option<&dyn Store>) -> Failure {
    let Some(error) = failure.library() else { return failure };
    let more =
        if *error.kind() == ErrorKind::TableMissing { ", or start the relay with --migrate" } else { "" };
    match remedy::advice(error, target, store, Need::Deliver).await {
        Some((exit, message)) => Failure::new(exit, format!("{message}{more}")),
        None => failure,
    }
}
