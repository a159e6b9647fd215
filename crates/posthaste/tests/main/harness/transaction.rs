//! A transaction on any of the databases.

use posthaste::produce::MemoryTransaction;
use posthaste::{Enqueued, IntoEvent, Result};
use sqlx::{AssertSqlSafe, Executor};
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

    /// Executes SQL that is the same on every database.
    pub async fn execute(&mut self, sql: impl Into<String>) -> sqlx::Result<u64> {
        let sql = AssertSqlSafe(sql.into());
        Ok(match self {
            Tx::Postgres(tx) => tx.execute(sql).await?.rows_affected(),
            Tx::MySql(tx) => tx.execute(sql).await?.rows_affected(),
            Tx::Sqlite(tx) => tx.execute(sql).await?.rows_affected(),
            Tx::Memory(_) => panic!("memory speaks no SQL"),
        })
    }

    /// Asks for one number.
    pub async fn number(&mut self, sql: impl Into<String>) -> sqlx::Result<i64> {
        let sql = AssertSqlSafe(sql.into());
        match self {
            Tx::Postgres(tx) => sqlx::query_scalar(sql).fetch_one(&mut **tx).await,
            Tx::MySql(tx) => sqlx::query_scalar(sql).fetch_one(&mut **tx).await,
            Tx::Sqlite(tx) => sqlx::query_scalar(sql).fetch_one(&mut **tx).await,
            Tx::Memory(_) => panic!("memory speaks no SQL"),
        }
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
