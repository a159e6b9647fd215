//! A transaction on any of the databases.

use posthaste::produce::MemoryTransaction;
use posthaste::{Enqueued, IntoEvent, Result};
use uuid::Uuid;

use super::database::{Db, Handle};

/// An open transaction.
pub enum Tx {
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    Memory(MemoryTransaction),
}

macro_rules! with {
    ($tx:expr, $db:expr, |$t:ident, $handle:ident| $body:expr) => {
        match ($tx, $db.handle()) {
            (Tx::Postgres($t), Handle::Postgres($handle)) => $body,
            (Tx::MySql($t), Handle::MySql($handle)) => $body,
            (Tx::Sqlite($t), Handle::Sqlite($handle)) => $body,
            (Tx::Memory($t), Handle::Memory($handle)) => $body,
            _ => panic!("a transaction of another database"),
        }
    };
}

impl Tx {
    pub async fn enqueue(&mut self, db: &Db, event: impl IntoEvent) -> Result<Enqueued> {
        with!(self, db, |tx, handle| handle.outbox.enqueue(tx, event).await)
    }

    pub async fn enqueue_all(
        &mut self,
        db: &Db,
        events: impl IntoIterator<Item: IntoEvent>,
    ) -> Result<Vec<Enqueued>> {
        with!(self, db, |tx, handle| handle.outbox.enqueue_all(tx, events).await)
    }

    pub async fn first(&mut self, db: &Db, consumer: &str, id: Uuid) -> Result<bool> {
        with!(self, db, |tx, handle| handle.inbox.first(tx, consumer, id).await)
    }

    pub async fn commit(self) {
        match self {
            Tx::Postgres(tx) => tx.commit().await.unwrap(),
            Tx::MySql(tx) => tx.commit().await.unwrap(),
            Tx::Sqlite(tx) => tx.commit().await.unwrap(),
            Tx::Memory(tx) => tx.commit(),
        }
    }

    pub async fn rollback(self) {
        match self {
            Tx::Postgres(tx) => tx.rollback().await.unwrap(),
            Tx::MySql(tx) => tx.rollback().await.unwrap(),
            Tx::Sqlite(tx) => tx.rollback().await.unwrap(),
            Tx::Memory(tx) => tx.rollback(),
        }
    }
}
