//! Transactions of sqlx, on all three databases.

#[cfg(feature = "mysql")]
use sqlx::MySql;
#[cfg(feature = "postgres")]
use sqlx::Postgres;
#[cfg(feature = "sqlite")]
use sqlx::Sqlite;
use sqlx::{Pool, Transaction};
use uuid::Uuid;

use super::backend::{Backend, Enqueue, sealed};
use super::{Outbox, OutboxBuilder};
use crate::error::Result;
use crate::event::Event;
use crate::store::Enqueued;
use crate::store::insert::insert;

#[cfg(feature = "postgres")]
impl sealed::Sealed for Postgres {}

#[cfg(feature = "postgres")]
impl Backend for Postgres {
    type Store = crate::store::PostgresStore;
    type Inbox = crate::store::PostgresInbox;
}

#[cfg(feature = "postgres")]
impl Outbox<Postgres> {
    /// An outbox in PostgreSQL.
    pub fn postgres(pool: Pool<Postgres>) -> OutboxBuilder<Postgres> {
        OutboxBuilder::new(|table| Ok(crate::store::PostgresStore::new(pool, table)))
    }
}

#[cfg(feature = "postgres")]
impl Enqueue<Postgres> for Transaction<'_, Postgres> {}

#[cfg(feature = "postgres")]
impl sealed::Transaction<Postgres> for Transaction<'_, Postgres> {
    async fn insert(
        &mut self,
        store: &crate::store::PostgresStore,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert(crate::store::postgres::insert::Client { connection: self, statements }, events).await
    }

    async fn receive(
        &mut self,
        inbox: &crate::store::PostgresInbox,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        inbox.first(self, consumer, id).await
    }
}

#[cfg(feature = "mysql")]
impl sealed::Sealed for MySql {}

#[cfg(feature = "mysql")]
impl Backend for MySql {
    type Store = crate::store::MySqlStore;
    type Inbox = crate::store::MySqlInbox;
}

#[cfg(feature = "mysql")]
impl Outbox<MySql> {
    /// An outbox in MySQL or MariaDB.
    pub fn mysql(pool: Pool<MySql>) -> OutboxBuilder<MySql> {
        OutboxBuilder::new(|table| Ok(crate::store::MySqlStore::new(pool, table)))
    }
}

#[cfg(feature = "mysql")]
impl Enqueue<MySql> for Transaction<'_, MySql> {}

#[cfg(feature = "mysql")]
impl sealed::Transaction<MySql> for Transaction<'_, MySql> {
    async fn insert(&mut self, store: &crate::store::MySqlStore, events: &[Event]) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert(crate::store::mysql::insert::Client { connection: self, statements }, events).await
    }

    async fn receive(&mut self, inbox: &crate::store::MySqlInbox, consumer: &str, id: Uuid) -> Result<bool> {
        inbox.first(self, consumer, id).await
    }
}

#[cfg(feature = "sqlite")]
impl sealed::Sealed for Sqlite {}

#[cfg(feature = "sqlite")]
impl Backend for Sqlite {
    type Store = crate::store::SqliteStore;
    type Inbox = crate::store::SqliteInbox;
}

#[cfg(feature = "sqlite")]
impl Outbox<Sqlite> {
    /// An outbox in an SQLite file.
    ///
    /// A transaction that reads before it enqueues should begin with `pool.begin_with("BEGIN IMMEDIATE")`:
    /// SQLite's plain `BEGIN` refuses to start writing once another connection has.
    pub fn sqlite(pool: Pool<Sqlite>) -> OutboxBuilder<Sqlite> {
        OutboxBuilder::new(|table| crate::store::SqliteStore::new(pool, table))
    }
}

#[cfg(feature = "sqlite")]
impl Enqueue<Sqlite> for Transaction<'_, Sqlite> {}

#[cfg(feature = "sqlite")]
impl sealed::Transaction<Sqlite> for Transaction<'_, Sqlite> {
    async fn insert(&mut self, store: &crate::store::SqliteStore, events: &[Event]) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert(crate::store::sqlite::insert::Client { connection: self, statements }, events).await
    }

    async fn receive(&mut self, inbox: &crate::store::SqliteInbox, consumer: &str, id: Uuid) -> Result<bool> {
        inbox.first(self, consumer, id).await
    }
}
