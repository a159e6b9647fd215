//! What a producer says to each of the databases, with the same words.

use std::str::FromStr;
use std::time::Duration;

use posthaste::produce::OutboxTransaction;
use posthaste::{Backend, Enqueued, EventBuilder, Outbox};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, MySql, Pool, Postgres, Sqlite, Transaction};

/// Enough for all workers, and for the notifications of the outboxes.
const CONNECTIONS: u32 = 8;

/// A connection that cannot be had is tried again later.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long SQLite's writers wait for each other: longer than one of them is stopped for.
const TURN: Duration = Duration::from_secs(20);

/// A value of a statement.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Number(i64),
    Nothing,
}

/// A database that a producer can write to.
pub(super) trait Speaks: Backend + sqlx::Database {
    /// Connections, when they are needed.
    fn pool(url: &str) -> sqlx::Result<Pool<Self>>;

    fn outbox(pool: &Pool<Self>, table: &str) -> posthaste::Result<Outbox<Self>>;

    /// A transaction that may write.
    async fn begin(pool: &Pool<Self>) -> sqlx::Result<Transaction<'static, Self>>;

    /// One that knows its commit.
    async fn begin_hot(outbox: &Outbox<Self>) -> posthaste::Result<OutboxTransaction<Self>>;

    async fn commit_hot(transaction: OutboxTransaction<Self>) -> posthaste::Result<()>;

    async fn roll_back_hot(transaction: OutboxTransaction<Self>) -> posthaste::Result<()>;

    async fn enqueue(
        outbox: &Outbox<Self>,
        transaction: &mut Transaction<'static, Self>,
        events: Vec<EventBuilder>,
    ) -> posthaste::Result<Vec<Enqueued>>;

    async fn enqueue_hot(
        outbox: &Outbox<Self>,
        transaction: &mut OutboxTransaction<Self>,
        events: Vec<EventBuilder>,
    ) -> posthaste::Result<Vec<Enqueued>>;

    /// A statement whose placeholders are question marks.
    async fn execute(connection: &mut Self::Connection, sql: &str, values: &[Value<'_>]) -> sqlx::Result<()>;

    /// The number that such a statement answers with.
    async fn number(connection: &mut Self::Connection, sql: &str, values: &[Value<'_>]) -> sqlx::Result<i64>;

    /// The plain insert of an event that is written once: table, id, topic, aggregate, key, headers and payload, all but the table
    /// bound.
    const INSERT: &'static str;
}

/// What differs by name only.
macro_rules! words {
    ($outbox:ident, $placeholders:expr) => {
        fn outbox(pool: &Pool<Self>, table: &str) -> posthaste::Result<Outbox<Self>> {
            Outbox::$outbox(pool.clone()).table(table).build()
        }

        async fn begin_hot(outbox: &Outbox<Self>) -> posthaste::Result<OutboxTransaction<Self>> {
            outbox.begin().await
        }

        async fn commit_hot(transaction: OutboxTransaction<Self>) -> posthaste::Result<()> {
            transaction.commit().await
        }

        async fn roll_back_hot(transaction: OutboxTransaction<Self>) -> posthaste::Result<()> {
            transaction.rollback().await
        }

        async fn enqueue(
            outbox: &Outbox<Self>,
            transaction: &mut Transaction<'static, Self>,
            events: Vec<EventBuilder>,
        ) -> posthaste::Result<Vec<Enqueued>> {
            outbox.enqueue_all(transaction, events).await
        }

        async fn enqueue_hot(
            outbox: &Outbox<Self>,
            transaction: &mut OutboxTransaction<Self>,
            events: Vec<EventBuilder>,
        ) -> posthaste::Result<Vec<Enqueued>> {
            outbox.enqueue_all(transaction, events).await
        }

        async fn execute(
            connection: &mut Self::Connection,
            sql: &str,
            values: &[Value<'_>],
        ) -> sqlx::Result<()> {
            let mut query = sqlx::query(AssertSqlSafe($placeholders(sql)));
            for value in values {
                query = match value {
                    Value::Text(text) => query.bind((*text).to_owned()),
                    Value::Number(number) => query.bind(*number),
                    Value::Nothing => query.bind(None::<String>),
                };
            }
            query.execute(connection).await.map(drop)
        }

        async fn number(
            connection: &mut Self::Connection,
            sql: &str,
            values: &[Value<'_>],
        ) -> sqlx::Result<i64> {
            let mut query = sqlx::query_scalar(AssertSqlSafe($placeholders(sql)));
            for value in values {
                query = match value {
                    Value::Text(text) => query.bind((*text).to_owned()),
                    Value::Number(number) => query.bind(*number),
                    Value::Nothing => query.bind(None::<String>),
                };
            }
            query.fetch_one(connection).await
        }
    };
}

impl Speaks for Postgres {
    fn pool(url: &str) -> sqlx::Result<Pool<Self>> {
        PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE).connect_lazy(url)
    }

    async fn begin(pool: &Pool<Self>) -> sqlx::Result<Transaction<'static, Self>> {
        pool.begin().await
    }

    words!(postgres, crate::ledger::numbered);

    const INSERT: &'static str = "\
        INSERT INTO {table} (id, topic, aggregate_type, aggregate_id, dedupe_key, headers, payload)
        VALUES (?::uuid, ?, 'torture', ?, ?, ?::json, ?::json) ON CONFLICT DO NOTHING";
}

impl Speaks for MySql {
    fn pool(url: &str) -> sqlx::Result<Pool<Self>> {
        MySqlPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(PATIENCE).connect_lazy(url)
    }

    async fn begin(pool: &Pool<Self>) -> sqlx::Result<Transaction<'static, Self>> {
        pool.begin().await
    }

    words!(mysql, str::to_owned);

    // A duplicate is an error, which leaves the transaction as it was.
    const INSERT: &'static str = "\
        INSERT INTO {table} (id, topic, aggregate_type, aggregate_id, dedupe_key, headers, payload)
        VALUES (UNHEX(REPLACE(?, '-', '')), ?, 'torture', ?, ?, ?, ?)";
}

impl Speaks for Sqlite {
    fn pool(url: &str) -> sqlx::Result<Pool<Self>> {
        let options = SqliteConnectOptions::from_str(url)?;
        let options = options.journal_mode(SqliteJournalMode::Wal).busy_timeout(TURN);
        Ok(SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .connect_lazy_with(options))
    }

    async fn begin(pool: &Pool<Self>) -> sqlx::Result<Transaction<'static, Self>> {
        pool.begin_with("BEGIN IMMEDIATE").await
    }

    words!(sqlite, str::to_owned);

    const INSERT: &'static str = "\
        INSERT INTO {table} (id, topic, aggregate_type, aggregate_id, dedupe_key, headers, payload)
        VALUES (?, ?, 'torture', ?, ?, ?, ?) ON CONFLICT DO NOTHING";
}
