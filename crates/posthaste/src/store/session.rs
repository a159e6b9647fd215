//! Sessions: what a database knows of a live worker, and the locks that only one of them holds.
//!
//! A session is a connection of its own (PostgreSQL: session advisory locks; MySQL: `GET_LOCK`; SQLite: rows
//! with a lease). When it is gone, the database says so at once, and the leases of its worker can end before
//! their time.

use async_trait::async_trait;

use super::{TableName, WorkerId};
use crate::error::{Error, ErrorKind, Result};

/// What only one session at a time may do on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lock {
    /// Relay, where only one relay is to be active.
    Leader,
    /// Delete what is past its retention.
    Purge,
}

impl Lock {
    /// Its name in the database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Purge => "purge",
        }
    }
}

/// A session that is gone, and how that is known.
pub(crate) fn gone(worker: &WorkerId, table: &TableName, why: &str) -> Error {
    Error::new(
        ErrorKind::Unreachable,
        format!("the session of worker {worker} on table {table} is gone ({why})"),
    )
}

/// A live worker's session on one table. Its calls are to be awaited to their end, which comes within some
/// seconds: what became of a lock in one that was cancelled, nobody knows.
#[async_trait]
pub trait Session: Send {
    /// The name to claim under while the session lives. Where the database can tell that a session is gone,
    /// the leases of this name end with it; elsewhere it is the plain name.
    fn worker(&self) -> &WorkerId;

    /// Takes the lock if nobody else holds it, and keeps it if this session does; whether it is held now.
    async fn try_lock(&mut self, lock: Lock) -> Result<bool>;

    /// Lets the lock go.
    async fn unlock(&mut self, lock: Lock) -> Result<()>;

    /// Asks the database whether the session still lives; an error says that it does not, or not any more as
    /// the same one (a pooler in between), and all its locks are to be taken for lost.
    async fn check(&mut self) -> Result<()>;

    /// Asks whether the session's connection is there, by the least that the database has for it: no statement, where there
    /// is a way without one. An error says that it is not. Whether the locks are its own, only [`check`](Self::check) tells.
    async fn ping(&mut self) -> Result<()> {
        self.check().await
    }

    /// Ends it, and with it its locks.
    async fn close(self: Box<Self>);
}

/// Notifications from other processes that there is something to claim.
#[async_trait]
pub trait Notifications: Send {
    /// Waits for the next; several may have become one. An error says that they have been interrupted.
    async fn next(&mut self) -> Result<()>;
}
