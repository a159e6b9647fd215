//! The store: every SQL statement of posthaste, behind one trait.
//!
//! A store keeps one outbox table. Producers insert into it inside their own transactions (see
//! [`Outbox`](crate::Outbox)); a relay claims, extends and settles; operators look, replay, discard and
//! purge. Each database is a directory with the same files in the same order; knowing one is knowing all:
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the store, its statements rendered once for its table |
//! | `insert.rs` | events into the table, duplicates found |
//! | `queue.rs` | row leases: claim, extend, settle |
//! | `stream/` | lanes and their owners, pages, parked events; what operators do with a stream |
//! | `session.rs` | live workers, and the locks that only one of them holds |
//! | `wake.rs` | notifications between processes |
//! | `activity.rs` | who is at work, and how fast |
//! | `arrivals.rs` | rows by their sequences, for those who follow the table |
//! | `look.rs` | a connection to look with, for no longer than is allowed |
//! | `survey.rs` | what a relay asks now and then, at once |
//! | `admin.rs` | look, count, replay, discard, purge |
//! | `schema.rs` | migrations under a lock, validation against the live table |
//! | `health.rs` | what the database knows of itself and of who works on the table |
//! | `inbox.rs` | what a consumer has already taken |
//! | `errors.rs` | which of its errors is which kind |
//!
//! All times stored or compared are the database's own clock.

pub(crate) mod arrivals;
mod claim;
pub(crate) mod columns;
mod connect;
pub(crate) mod errors;
mod filter;
pub mod health;
mod inbox;
pub(crate) mod insert;
mod lease;
pub(crate) mod memory;
pub(crate) mod migrate;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
mod plans;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod purge;
mod record;
mod session;
mod settlement;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
pub(crate) mod statement;
pub mod stream;
mod survey;
mod table;
pub(crate) mod tries;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

pub use arrivals::{Arrival, Arrivals, Missed, Running, Sought};
pub(crate) use claim::exhausted;
pub use claim::{AttemptLimits, Buried, Claim, Claimed, ClaimedBatch, Mark, Topics};
pub use connect::{Dialect, connect};
pub use filter::{Filter, Page, Status};
pub use health::Health;
pub use inbox::{InboxStore, MemoryInbox};
pub(crate) use lease::BirthLease;
pub use lease::{Extended, Lease, WorkerId};
pub use memory::MemoryStore;
pub use migrate::{Difference, MigrationState, migration_sql, migration_sql_as};
#[cfg(feature = "mysql")]
pub use mysql::{MySqlStore, inbox::MySqlInbox};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresStore, inbox::PostgresInbox};
pub use purge::{Ending, Purge};
pub use record::{Count, Record, Stats, Throughput};
pub use session::{Lock, Notifications, Session};
pub(crate) use settlement::rounds;
pub use settlement::{Keep, Settled, Settlement, Verdict};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, inbox::SqliteInbox};
pub use stream::{Lanes, Mode, Stream};
pub use survey::Survey;
pub use table::TableName;

/// What became of an event given to `enqueue`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enqueued {
    /// The event's id; for a duplicate, the first one's.
    pub id: Uuid,
    /// Its place in the table, where the database says so without another round trip.
    pub sequence: Option<i64>,
    /// Whether an event with the same id, or the same namespace, topic and dedupe key, was there already:
    /// then nothing was written.
    pub duplicate: bool,
    /// Whether a producer hook took the event out: then nothing was written.
    pub suppressed: bool,
}

impl Enqueued {
    pub(crate) fn new(id: Uuid, sequence: Option<i64>) -> Self {
        Self { id, sequence, duplicate: false, suppressed: false }
    }

    pub(crate) fn duplicate(id: Uuid, sequence: Option<i64>) -> Self {
        Self { id, sequence, duplicate: true, suppressed: false }
    }

    pub(crate) fn suppressed(id: Uuid) -> Self {
        Self { id, sequence: None, duplicate: false, suppressed: true }
    }
}

/// One outbox table.
///
/// Claim, extend and settle are all one needs to write a delivery loop of one's own:
///
/// ```
/// use posthaste::store::{Claim, MemoryStore, Settlement, Store, WorkerId};
/// # use posthaste::Event;
/// # async fn deliver(_: &Event) -> Result<(), std::io::Error> { Ok(()) }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
/// let store = MemoryStore::new();
/// store.insert(&[Event::json("order.placed.v1", &42)?.build()?]).await?;
///
/// let batch = store.claim(&Claim::by(WorkerId::unique())).await?;
/// let mut settlements = Vec::new();
/// for claimed in batch.events {
///     settlements.push(match deliver(&claimed.event).await {
///         Ok(()) => Settlement::delivered(claimed.lease),
///         Err(error) => Settlement::retry(claimed.lease, std::time::Duration::from_secs(1), error.to_string()),
///     });
/// }
/// assert_eq!(store.settle(&settlements, Default::default()).await?.written, 1);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The table's name.
    fn table(&self) -> &TableName;

    /// The kind of database it is in.
    fn dialect(&self) -> Dialect;

    /// The database's clock.
    async fn now(&self) -> Result<OffsetDateTime>;

    // Produce.

    /// Writes events in a transaction of the store's own; one answer per event, in order. It is for tools
    /// that have no data to commit with them: a service enqueues through its [`Outbox`](crate::Outbox), whose
    /// rules, hooks and trace this knows nothing of.
    async fn insert(&self, events: &[Event]) -> Result<Vec<Enqueued>>;

    // Deliver.

    /// Leases claimable events to a worker, counting the attempt. Rows whose last allowed attempt was never
    /// settled, and rows that cannot be read, become dead instead and never stop the batch. A row that another
    /// transaction is changing may be left out, and come up with a later claim.
    async fn claim(&self, claim: &Claim) -> Result<ClaimedBatch>;

    /// Makes leases last this long from now; answers with those it could not.
    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Extended>;

    /// Writes how leased events ended; only who holds the lease succeeds.
    async fn settle(&self, settlements: &[Settlement], keep: Keep) -> Result<Settled>;

    // Work together.

    /// The same table through connections of its own, where that makes sense: a service that uses up its
    /// pool then does not hold up its relay, nor the relay the service. On SQLite and in memory it shares the
    /// connections, and [`close`](Self::close) closes those of both.
    fn dedicated(&self) -> Arc<dyn Store>;

    /// The same table through at most so many connections of its own, on every database but memory: for what must be
    /// answered while all others are busy. It has to be [closed](Self::close) by itself.
    fn with_connections(&self, connections: u32) -> Arc<dyn Store>;

    /// The same table through the same connections, where no [listing](Self::list), [count](Self::count), look at
    /// [arrivals](Self::arrivals) or [state](Self::stats) takes longer than this: the database itself ends the statement,
    /// whether or not somebody still waits for it, and the error is [`TooSlow`](ErrorKind::TooSlow). A limit that the
    /// database already has stays, where it is shorter (but for MySQL, where this one counts). In memory it changes nothing.
    fn within(&self, limit: Duration) -> Arc<dyn Store>;

    /// Opens a session for a worker.
    async fn session(&self, worker: &WorkerId) -> Result<Box<dyn Session>>;

    /// The names of those that hold leases and of whose sessions the database knows none, among the holders of
    /// the first 10 000 unsettled rows; empty where it cannot tell. One whose session alone broke is back
    /// within a second or two: who is absent once need not be gone.
    async fn absent_workers(&self) -> Result<Vec<String>>;

    /// Ends the leases that these workers hold on the first 10 000 unsettled rows, unless they have a session
    /// by now; their attempts stay counted. Answers with how many.
    async fn end_leases_of(&self, workers: &[String]) -> Result<u64>;

    /// Tells relays in other processes that there is something to claim, where the database can: after a
    /// commit, never inside a transaction.
    async fn notify(&self) -> Result<()>;

    /// Listens for such notifications; `None` where the database has none.
    async fn listen(&self) -> Result<Option<Box<dyn Notifications>>>;

    /// Makes every insert notify, whoever writes it, or no longer; an error where the database has no notifications. At
    /// each commit it takes a lock of the whole cluster: see the guide of the hot path before.
    async fn notify_on_insert(&self, _on: bool) -> Result<()> {
        let message =
            format!("table {}: this database has no notifications; only PostgreSQL has", self.table());
        Err(Error::new(ErrorKind::InvalidSetting, message))
    }

    // Operate.

    /// One row.
    async fn get(&self, id: Uuid) -> Result<Option<Record>>;

    /// A page of the rows that fit.
    async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<Record>>;

    /// How many fit among the first `cap` rows of the state in question: exact where there are no more than
    /// that, and marked as capped where there are, so that its cost does not grow with the table.
    async fn count(&self, filter: &Filter, cap: u32) -> Result<Count>;

    /// Rows by their sequences, without what is in them.
    async fn arrivals(&self, sought: Sought<'_>) -> Result<Arrivals>;

    /// Those of these events that fit.
    async fn fitting(&self, filter: &Filter, ids: &[Uuid]) -> Result<Vec<Record>>;

    /// The state of the table, counting no further than `cap`.
    async fn stats(&self, cap: u32) -> Result<Stats>;

    /// What a relay asks now and then, counting no further than `cap`; where the database can, in one statement. `worker` is
    /// the name that the relay has now, with its session if it has one.
    async fn survey(&self, cap: u32, worker: &WorkerId) -> Result<Survey> {
        let _ = worker;
        survey::piece_by_piece(self, self.stream().await?.as_deref(), cap).await
    }

    /// How fast events were delivered of late, as far as the rows say; `None` where they say nothing: none that was
    /// delivered is kept, or delivering one writes nothing to it (streams on PostgreSQL).
    async fn delivered_lately(&self) -> Result<Option<Throughput>> {
        Ok(None)
    }

    /// Who is at work: of a stream, the relays that live; of a queue, those that hold leases among the first 10 000
    /// unsettled rows, so that a relay with nothing to do is not seen.
    async fn workers(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Makes dead events that fit pending again, with their attempts reset and their last error kept; at
    /// most `limit`, oldest first. Answers with how many.
    async fn replay(&self, filter: &Filter, limit: u32) -> Result<u64>;

    /// Deletes dead events that fit; at most `limit`, oldest first. Answers with how many.
    async fn discard(&self, filter: &Filter, limit: u32) -> Result<u64>;

    /// Whether any of these would delete something, as far as one look tells: whoever purges has to be alone, and who has
    /// nothing to purge need not be.
    async fn has_old(&self, purges: &[Purge]) -> Result<bool> {
        Ok(!purges.is_empty())
    }

    /// Deletes settled events past their retention. Answers with how many.
    async fn purge(&self, purge: Purge) -> Result<u64>;

    /// What its database can be asked about itself; `None` if nothing.
    fn health(&self) -> Option<&dyn Health> {
        None
    }

    // Schema.

    /// How the table's events are delivered, which was chosen when it was made; `None` if it has not been made, or
    /// not by posthaste's migrations: such a table can only be a queue.
    async fn mode(&self) -> Result<Option<Mode>> {
        Ok(Some(Mode::Queue))
    }

    /// What only a stream has; `None` for a queue.
    async fn stream(&self) -> Result<Option<Arc<dyn Stream>>> {
        Ok(None)
    }

    /// Brings the table to the newest version of this mode, creating it if need be; a table of another mode is an
    /// error. Answers with the versions applied by this call.
    async fn migrate_up_as(&self, mode: Mode) -> Result<Vec<u32>> {
        match mode {
            Mode::Queue => self.migrate_up().await,
            Mode::Stream(_) => {
                let message = format!("table {}: this database has no streams", self.table());
                Err(Error::new(ErrorKind::InvalidSetting, message))
            }
        }
    }

    /// Brings the table to the newest version of its mode, creating it as a queue if need be; any number may try at
    /// once. Answers with the versions applied by this call.
    async fn migrate_up(&self) -> Result<Vec<u32>>;

    /// Reverts migrations above `target`; 0 drops the table and every event in it. Answers with the
    /// versions reverted by this call.
    async fn migrate_down(&self, target: u32) -> Result<Vec<u32>>;

    /// Which migrations the table has.
    async fn migrations(&self) -> Result<Vec<MigrationState>>;

    /// The outbox tables that posthaste's migrations have made in the same schema, database or file, by their names.
    async fn tables(&self) -> Result<Vec<TableName>> {
        Ok(Vec::new())
    }

    /// How the live table differs from what its migrations make; empty if it does not.
    async fn validate(&self) -> Result<Vec<Difference>>;

    /// Closes its connections; a program that ends should wait for it, so that an SQLite file is left whole
    /// without its write-ahead log beside it.
    async fn close(&self);
}
