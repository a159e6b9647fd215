//! What a database knows of itself and of who works on a table, for whoever asks why nothing moves.
//!
//! These are facts, read at a cost that does not grow with the table; nothing is written and nothing is judged. What a
//! database cannot tell is `None`, never a guess. The text of others' statements is never read: it may hold data.

use std::time::Duration;

use async_trait::async_trait;

use super::Count;
use crate::error::Result;

/// How many unsettled rows are looked at.
pub(crate) const LOOKED_AT: u32 = 10_000;

/// Most that are named of one kind.
pub(crate) const NAMED: u32 = 20;

/// What a store can be asked about its database.
#[async_trait]
pub trait Health: Send + Sync {
    /// What the server is, and who or what keeps this table from being used.
    async fn access(&self) -> Result<Access>;

    /// What keeps row versions that nobody needs from being removed, oldest first; `None` where the database cannot tell.
    async fn pins(&self) -> Result<Option<Vec<Pin>>>;

    /// How the database clears away what was deleted or overwritten.
    async fn cleaning(&self) -> Result<Vec<Cleaning>>;

    /// What is due in a queue, and who holds its rows.
    async fn work(&self) -> Result<Work>;

    /// Who lives and owns the lanes of a stream.
    async fn fleet(&self) -> Result<Fleet>;
}

/// The server, and what of the table can be used through it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Access {
    /// Its name and version.
    pub server: String,
    /// Whose rights the connection has, as the database's `GRANT` wants to read it; `None` where there are no accounts.
    pub account: Option<String>,
    /// Why nothing can be written, if nothing can.
    pub read_only: Option<String>,
    /// What a relay needs and this role may not do with the table.
    pub denied: Vec<&'static str>,
    /// Who has locked the table as a whole, or waits to and holds up everybody behind.
    pub locked: Option<TableLock>,
}

/// A lock on the whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableLock {
    /// Who holds it, or waits for it.
    pub by: Client,
    /// For whom it waits, if it does not hold it yet.
    pub behind: Vec<String>,
    /// The statement that ends it, where there is one.
    pub remedy: Option<String>,
}

/// Somebody connected to the database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Client {
    /// What the database calls it: `pid 4242`.
    pub name: String,
    /// What it calls itself.
    pub application: Option<String>,
    /// What it does.
    pub state: Option<String>,
    /// Whether it does nothing.
    pub idle: bool,
    /// How long its transaction has been open; `None` if this role may not see it.
    pub lasting: Option<Duration>,
}

/// Something that keeps old row versions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pin {
    /// What it is.
    pub kind: PinKind,
    /// Who it is.
    pub holder: Client,
    /// How many transactions have begun since the oldest that it may still want to see, where that is counted.
    pub transactions: Option<u64>,
    /// The statement that ends it.
    pub remedy: String,
}

/// What can keep old row versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinKind {
    /// An open transaction.
    Transaction,
    /// A transaction that was prepared and neither committed nor rolled back.
    Prepared,
    /// A replication slot.
    Slot,
    /// A replication slot that keeps versions of the system's own tables, and the log, but none of rows.
    CatalogSlot,
    /// A standby that says what its queries still want to see.
    Standby,
}

/// How a database clears away what was deleted or overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cleaning {
    /// PostgreSQL: the vacuum of one table.
    #[non_exhaustive]
    Vacuum {
        /// The table.
        table: String,
        /// What has switched autovacuum off, and the statement that switches it on.
        off: Option<(String, String)>,
        /// Row versions that nobody needs.
        dead: u64,
        /// Rows.
        live: u64,
        /// With how many dead ones autovacuum begins.
        begins_at: u64,
        /// How long ago it was last vacuumed; `None` if never.
        last: Option<Duration>,
    },
    /// MySQL, MariaDB: the purge of what was deleted or overwritten.
    #[non_exhaustive]
    Purge {
        /// How many transactions have left something to it.
        history: u64,
    },
    /// SQLite: the journal.
    #[non_exhaustive]
    Journal {
        /// Its mode.
        mode: String,
        /// How large the write-ahead log is.
        bytes: u64,
        /// The statement that empties the log, or changes the mode.
        remedy: String,
    },
}

/// What is due in a queue, and who holds its rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Work {
    /// Events that are due and that nobody holds, among the first 10 000 unsettled rows.
    pub due: Count,
    /// How long the oldest of them has been due.
    pub oldest_due: Option<Duration>,
    /// Who holds or held rows that are not settled, those with most first.
    pub holders: Vec<Holder>,
    /// How many relays have a session in this database, whichever their table; `None` where it cannot tell.
    pub relays: Option<u64>,
}

/// A worker that holds or held unsettled rows.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its name.
    pub worker: String,
    /// Rows it has a lease on.
    pub leased: u64,
    /// Rows whose lease has ended, and which nobody has claimed since.
    pub ended: u64,
    /// How long ago the first of those leases ended.
    pub ended_for: Option<Duration>,
    /// Whether its session lives; `None` where the database cannot tell.
    pub present: Option<bool>,
}

/// Who lives and owns the lanes of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fleet {
    /// The relays that have said so lately.
    pub relays: Vec<String>,
    /// Every lane.
    pub lanes: Vec<LaneOwner>,
}

/// Whose a lane is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneOwner {
    /// The lane.
    pub lane: u16,
    /// Whose it is or was.
    pub owner: Option<String>,
    /// How long ago the owner's lease ended, if it has.
    pub ended_for: Option<Duration>,
    /// Whether the owner's session lives; `None` where the database cannot tell.
    pub present: Option<bool>,
}

/// A length that a database has counted in microseconds.
pub(crate) fn length(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

/// A count that cannot be below nothing.
pub(crate) fn number(n: i64) -> u64 {
    n.max(0).unsigned_abs()
}

/// The length, of something that is over.
pub(crate) fn over(micros: Option<i64>) -> Option<Duration> {
    micros.filter(|micros| *micros >= 0).map(length)
}
