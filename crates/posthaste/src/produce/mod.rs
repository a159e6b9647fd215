//! Producing: events written in the caller's own transaction, and nothing else.
//!
//! [`Outbox`] is the producer's handle to one table. [`Outbox::enqueue`] takes the caller's open
//! transaction, by type: of which client library is up to the caller, a pool never fits. One that comes from
//! [`Outbox::begin`] knows its commit, and hands its events to a relay in the same process.

mod backend;
#[cfg(feature = "diesel-async-0_9")]
mod diesel_async;
pub(crate) mod gate;
mod hooks;
mod memory;
mod notifier;
#[cfg(all(feature = "sea-orm-2", any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
mod sea_orm;
mod sqlx;
#[cfg(feature = "tokio-postgres-0_7")]
mod tokio_postgres;
mod trace;
mod transaction;
mod unbroken;
#[cfg(any(
    feature = "diesel-async-0_9",
    feature = "tokio-postgres-0_7",
    all(feature = "sea-orm-2", any(feature = "postgres", feature = "mysql", feature = "sqlite"))
))]
mod values;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use uuid::Uuid;

use crate::error::Result;
use crate::event::{Event, EventRules, IntoEvent, Novelty, ToWrite};
use crate::store::{Enqueued, Mode, Store, TableName};
use crate::telemetry;

pub use backend::{Backend, Enqueue};
use hooks::Hooks;
pub use hooks::{Hook, HookError};
pub use memory::{Memory, MemoryTransaction};
use notifier::Notifier;
pub use trace::TraceContext;
pub use transaction::OutboxTransaction;

/// The producer's handle to one outbox table; clones share it.
///
/// ```
/// use posthaste::{Event, Outbox};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
/// let outbox = Outbox::sqlite(pool.clone()).table("orders_outbox").build()?;
/// outbox.migrate().await?;
///
/// let mut tx = pool.begin().await?;
/// // … the service's own statements, on the same transaction …
/// outbox.enqueue(&mut tx, Event::json("order.placed.v1", &42)?.aggregate("order", 42)).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub struct Outbox<B: Backend> {
    inner: Arc<Inner<B>>,
}

struct Inner<B: Backend> {
    store: B::Store,
    rules: EventRules,
    hooks: Hooks,
    trace: trace::Source,
    gate: Arc<gate::Gate>,
    notifier: Notifier,
}

impl<B: Backend> Clone for Outbox<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B: Backend> std::fmt::Debug for Outbox<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("table", self.inner.store.table()).finish_non_exhaustive()
    }
}

impl<B: Backend> Outbox<B> {
    /// Writes an event in the caller's open transaction: it exists if and only if that commits.
    ///
    /// An event whose id, or whose namespace, topic and dedupe key, are in the table already is not written
    /// again: the answer names the first one.
    ///
    /// An open transaction is what it takes:
    ///
    /// ```
    /// # use posthaste::{Event, Outbox};
    /// async fn f(outbox: Outbox<sqlx::Sqlite>, mut tx: sqlx::SqliteTransaction<'_>, event: Event) {
    ///     outbox.enqueue(&mut tx, event).await.ok();
    /// }
    /// ```
    ///
    /// A pool, which has no transaction for the event to be part of, does not compile, and neither does a
    /// bare connection:
    ///
    /// ```compile_fail,E0277
    /// # use posthaste::{Event, Outbox};
    /// async fn f(outbox: Outbox<sqlx::Sqlite>, mut pool: sqlx::SqlitePool, event: Event) {
    ///     outbox.enqueue(&mut pool, event).await.ok();
    /// }
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use posthaste::{Event, Outbox};
    /// async fn f(outbox: Outbox<sqlx::Sqlite>, mut connection: sqlx::SqliteConnection, event: Event) {
    ///     outbox.enqueue(&mut connection, event).await.ok();
    /// }
    /// ```
    pub async fn enqueue<T: Enqueue<B> + ?Sized>(
        &self,
        transaction: &mut T,
        event: impl IntoEvent,
    ) -> Result<Enqueued> {
        let event = event.into_event_to_write(&self.inner.rules, &ToWrite(()))?;
        let id = event.id;
        let answers = self.write(transaction, vec![event]).await?;
        Ok(answers.into_iter().next().unwrap_or_else(|| Enqueued::suppressed(id)))
    }

    /// Writes many events in one round trip; one answer per event, in order.
    ///
    /// If any of them breaks a rule, none is written.
    pub async fn enqueue_all<T, I>(&self, transaction: &mut T, events: I) -> Result<Vec<Enqueued>>
    where
        T: Enqueue<B> + ?Sized,
        I: IntoIterator<Item: IntoEvent>,
    {
        let events = events
            .into_iter()
            .map(|event| event.into_event_to_write(&self.inner.rules, &ToWrite(())))
            .collect::<Result<Vec<_>>>()?;
        self.write(transaction, events).await
    }

    async fn write<T: Enqueue<B> + ?Sized>(
        &self,
        transaction: &mut T,
        mut events: Vec<Event>,
    ) -> Result<Vec<Enqueued>> {
        let Inner { rules, hooks, trace, .. } = &*self.inner;
        let given: Vec<_> = events.iter().map(|event| event.id).collect();
        let traced = trace.add_to(&mut events);
        // A hook may show their ids to others.
        if !hooks.is_empty() {
            events.iter_mut().for_each(|event| event.novelty = Novelty::default());
        }
        let mut events = hooks.before_write(events, rules)?;
        // What the caller gave has been checked; what came in since has not.
        if traced || !hooks.is_empty() {
            events.iter().try_for_each(|event| rules.check(event))?;
        }
        failpoint!("enqueue.checked");
        let answers =
            if events.is_empty() { Vec::new() } else { transaction.write(self, &mut events).await? };
        failpoint!("enqueue.written");
        self.count(&events, &answers);
        if hooks.is_empty() {
            return Ok(answers);
        }
        // One answer per event given: hooks may have taken some out and put others in.
        let mut by_id: HashMap<Uuid, VecDeque<Enqueued>> = HashMap::new();
        for (event, answer) in events.iter().zip(&answers) {
            by_id.entry(event.id).or_default().push_back(answer.clone());
        }
        let mut answer = |id| by_id.get_mut(&id).and_then(VecDeque::pop_front);
        let given =
            given.into_iter().map(|id| answer(id).unwrap_or_else(|| Enqueued::suppressed(id))).collect();
        // A duplicate was not written: its first one has had its hooks.
        let written: Vec<Event> = events
            .into_iter()
            .zip(answers)
            .filter(|(_, answer)| !answer.duplicate)
            .map(|(event, _)| event)
            .collect();
        transaction.remember(hooks, &written);
        hooks.after_write(&written);
        Ok(given)
    }

    fn count(&self, events: &[Event], answers: &[Enqueued]) {
        let mut by_topic: BTreeMap<&str, u64> = BTreeMap::new();
        for (event, _) in events.iter().zip(answers).filter(|(_, answer)| !answer.duplicate) {
            *by_topic.entry(event.topic()).or_default() += 1;
        }
        for (topic, written) in by_topic {
            telemetry::enqueued(self.table(), topic, written);
        }
    }

    /// Tells relays, in this process and others, that there is something to claim: for those who commit
    /// through a transaction other than [`begin`](Self::begin)'s and do not want to wait for the next poll.
    ///
    /// ```
    /// # use posthaste::{Event, Outbox};
    /// # async fn f(outbox: Outbox<sqlx::Sqlite>, pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// outbox.enqueue(&mut tx, Event::json("order.placed.v1", &42)?).await?;
    /// tx.commit().await?;
    /// outbox.wake();
    /// # Ok(()) }
    /// ```
    pub fn wake(&self) {
        self.inner.gate.wake();
        self.inner.notifier.schedule();
    }

    /// Creates the table as a queue, or brings it to the newest version of the mode it has; any number may try at once.
    pub async fn migrate(&self) -> Result<Vec<u32>> {
        self.inner.store.migrate_up().await
    }

    /// Creates the table in this mode, or brings it to the newest version. The mode is fixed when the table is made:
    /// a table of another one, or a stream with another number of lanes, is an error and left as it is.
    ///
    /// ```
    /// use posthaste::{Outbox, store::Mode};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    /// let outbox = Outbox::sqlite(pool).build()?;
    /// outbox.migrate_as(Mode::stream(8)?).await?;
    /// assert!(outbox.migrate_as(Mode::Queue).await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn migrate_as(&self, mode: Mode) -> Result<Vec<u32>> {
        self.inner.store.migrate_up_as(mode).await
    }

    /// The table's store: claim, settle, look, purge.
    pub fn store(&self) -> &B::Store {
        &self.inner.store
    }

    /// The table's name.
    pub fn table(&self) -> &TableName {
        self.inner.store.table()
    }

    /// The rules its events follow, for building them ahead of time.
    pub fn rules(&self) -> &EventRules {
        &self.inner.rules
    }

    /// Where relays of this process take its events.
    pub(crate) fn gate(&self) -> &Arc<gate::Gate> {
        &self.inner.gate
    }

    /// Whether it is a clone of this one.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

/// The making of an [`Outbox`].
///
/// | setting | default | why |
/// |---|---|---|
/// | `table` | `outbox` | one table is enough for most services |
/// | `max_payload` | 1 MiB | brokers' usual limit |
/// | `strict_topics` | off | `<module>.<aggregate>.<event>.vN` suits teams that version topics by name |
/// | `hook` | none | |
/// | `trace_context` | the current OpenTelemetry span, where that feature is on | |
#[must_use = "an outbox is made by `build`"]
pub struct OutboxBuilder<B: Backend> {
    open: Box<dyn FnOnce(TableName) -> Result<B::Store> + Send>,
    table: String,
    rules: EventRules,
    hooks: Hooks,
    trace: trace::Source,
}

impl<B: Backend> std::fmt::Debug for OutboxBuilder<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxBuilder")
            .field("table", &self.table)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<B: Backend> OutboxBuilder<B> {
    fn new(open: impl FnOnce(TableName) -> Result<B::Store> + Send + 'static) -> Self {
        Self {
            open: Box::new(open),
            table: TableName::default().to_string(),
            rules: EventRules::default(),
            hooks: Hooks::default(),
            trace: trace::Source::default(),
        }
    }

    /// The table, with its schema if need be.
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// Most bytes a payload may have.
    pub fn max_payload(mut self, bytes: usize) -> Self {
        self.rules.max_payload = bytes;
        self
    }

    /// Demands topics of the form `<module>.<aggregate>.<event>.vN`.
    pub fn strict_topics(mut self) -> Self {
        self.rules.strict_topics = true;
        self
    }

    /// Adds a hook around every write; hooks run in the order they were added.
    pub fn hook(mut self, hook: impl Hook) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Where to ask for the current trace, instead of OpenTelemetry's current span.
    pub fn trace_context(
        mut self,
        current: impl Fn() -> Option<TraceContext> + Send + Sync + 'static,
    ) -> Self {
        self.trace = trace::Source::new(current);
        self
    }

    /// The outbox; nothing is connected to yet.
    pub fn build(self) -> Result<Outbox<B>> {
        let store = (self.open)(self.table.parse()?)?;
        let notifier = Notifier::new({
            let store = store.clone();
            move || {
                let store = store.clone();
                async move { store.notify().await }
            }
        });
        Ok(Outbox {
            inner: Arc::new(Inner {
                store,
                rules: self.rules,
                hooks: self.hooks,
                trace: self.trace,
                gate: Arc::default(),
                notifier,
            }),
        })
    }
}
