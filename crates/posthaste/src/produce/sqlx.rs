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
use super::transaction::Sql;
use super::{Outbox, OutboxBuilder};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::planted::{self, Bug};
use crate::store::insert::{insert, insert_leased};
use crate::store::{BirthLease, Enqueued, Lease, TableName};

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

    /// Makes every statement that inserts events notify the relays, or no longer: a trigger, for producers
    /// in other languages. Calling it again changes nothing.
    ///
    /// It has a price: a transaction that notifies takes a lock of the whole cluster when it commits, so that
    /// commits wait for each other; producers reached 0.27 of their rate with it. Prefer polling, or
    /// `outbox.begin()`, whose notifications are sent after the commit.
    pub async fn notify_on_insert(&self, on: bool) -> Result<()> {
        self.store().notify_on_insert(on).await
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
        if planted::is(Bug::EnqueueOutsideTransaction) {
            return crate::store::Store::insert(store, events).await;
        }
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

#[cfg(feature = "postgres")]
impl Sql for Postgres {
    async fn begin(store: &crate::store::PostgresStore) -> Result<Transaction<'static, Postgres>> {
        store.begin().await
    }

    async fn insert(
        connection: &mut sqlx::PgConnection,
        store: &crate::store::PostgresStore,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert(crate::store::postgres::insert::Client { connection, statements }, events).await
    }

    async fn insert_leased(
        connection: &mut sqlx::PgConnection,
        store: &crate::store::PostgresStore,
        events: &[Event],
        leases: &[Option<BirthLease<'_>>],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert_leased(crate::store::postgres::insert::Client { connection, statements }, events, leases).await
    }

    async fn receive(
        connection: &mut sqlx::PgConnection,
        inbox: &crate::store::PostgresInbox,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        inbox.first(connection, consumer, id).await
    }

    async fn find_leased(
        connection: &mut sqlx::PgConnection,
        store: &crate::store::PostgresStore,
        leases: &[&Lease],
    ) -> Result<Vec<(Uuid, i64)>> {
        let statements = store.insert_statements();
        crate::store::postgres::insert::Client { connection, statements }.find_leased(leases).await
    }

    async fn unlease(
        connection: &mut sqlx::PgConnection,
        store: &crate::store::PostgresStore,
        leases: &[&Lease],
    ) -> Result<()> {
        let statements = store.insert_statements();
        crate::store::postgres::insert::Client { connection, statements }.unlease(leases).await
    }

    async fn probe(connection: &mut sqlx::PgConnection, store: &crate::store::PostgresStore) -> Result<()> {
        let statements = store.insert_statements();
        crate::store::postgres::insert::Client { connection, statements }.probe().await
    }

    fn error(error: sqlx::Error, table: &TableName) -> Error {
        crate::store::postgres::errors::classify(error, table)
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

#[cfg(feature = "mysql")]
impl Sql for MySql {
    async fn begin(store: &crate::store::MySqlStore) -> Result<Transaction<'static, MySql>> {
        store.begin().await
    }

    async fn insert(
        connection: &mut sqlx::MySqlConnection,
        store: &crate::store::MySqlStore,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert(crate::store::mysql::insert::Client { connection, statements }, events).await
    }

    async fn insert_leased(
        connection: &mut sqlx::MySqlConnection,
        store: &crate::store::MySqlStore,
        events: &[Event],
        leases: &[Option<BirthLease<'_>>],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert_leased(crate::store::mysql::insert::Client { connection, statements }, events, leases).await
    }

    async fn receive(
        connection: &mut sqlx::MySqlConnection,
        inbox: &crate::store::MySqlInbox,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        inbox.first(connection, consumer, id).await
    }

    async fn find_leased(
        connection: &mut sqlx::MySqlConnection,
        store: &crate::store::MySqlStore,
        leases: &[&Lease],
    ) -> Result<Vec<(Uuid, i64)>> {
        let statements = store.insert_statements();
        crate::store::mysql::insert::Client { connection, statements }.find_leased(leases).await
    }

    async fn unlease(
        connection: &mut sqlx::MySqlConnection,
        store: &crate::store::MySqlStore,
        leases: &[&Lease],
    ) -> Result<()> {
        let statements = store.insert_statements();
        crate::store::mysql::insert::Client { connection, statements }.unlease(leases).await
    }

    async fn probe(connection: &mut sqlx::MySqlConnection, store: &crate::store::MySqlStore) -> Result<()> {
        let statements = store.insert_statements();
        crate::store::mysql::insert::Client { connection, statements }.probe().await
    }

    fn error(error: sqlx::Error, table: &TableName) -> Error {
        crate::store::mysql::errors::classify(error, table)
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

#[cfg(feature = "sqlite")]
impl Sql for Sqlite {
    async fn begin(store: &crate::store::SqliteStore) -> Result<Transaction<'static, Sqlite>> {
        store.begin().await
    }

    async fn insert(
        connection: &mut sqlx::SqliteConnection,
        store: &crate::store::SqliteStore,
        events: &[Event],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert(crate::store::sqlite::insert::Client { connection, statements }, events).await
    }

    async fn insert_leased(
        connection: &mut sqlx::SqliteConnection,
        store: &crate::store::SqliteStore,
        events: &[Event],
        leases: &[Option<BirthLease<'_>>],
    ) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        insert_leased(crate::store::sqlite::insert::Client { connection, statements }, events, leases).await
    }

    async fn receive(
        connection: &mut sqlx::SqliteConnection,
        inbox: &crate::store::SqliteInbox,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        inbox.first(connection, consumer, id).await
    }

    async fn find_leased(
        connection: &mut sqlx::SqliteConnection,
        store: &crate::store::SqliteStore,
        leases: &[&Lease],
    ) -> Result<Vec<(Uuid, i64)>> {
        let statements = store.insert_statements();
        crate::store::sqlite::insert::Client { connection, statements }.find_leased(leases).await
    }

    async fn unlease(
        connection: &mut sqlx::SqliteConnection,
        store: &crate::store::SqliteStore,
        leases: &[&Lease],
    ) -> Result<()> {
        let statements = store.insert_statements();
        crate::store::sqlite::insert::Client { connection, statements }.unlease(leases).await
    }

    async fn probe(connection: &mut sqlx::SqliteConnection, store: &crate::store::SqliteStore) -> Result<()> {
        let statements = store.insert_statements();
        crate::store::sqlite::insert::Client { connection, statements }.probe().await
    }

    fn error(error: sqlx::Error, table: &TableName) -> Error {
        crate::store::sqlite::errors::classify(error, table)
    }
}
