//! The outbox of a case and the business rows beside it, on any of the databases.

use anyhow::{Context, Result};
use posthaste::produce::OutboxTransaction;
use posthaste::relay::RelayBuilder;
use posthaste::store::Mode;
use posthaste::{Backend, Event, Outbox};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, MySql, Pool, Postgres, Sqlite, Transaction};
use uuid::Uuid;

use super::TABLE;
use crate::ledger;

/// An outbox, and connections to its database.
pub enum Site {
    Postgres(Place<Postgres>),
    MySql(Place<MySql>),
    Sqlite(Place<Sqlite>),
}

pub struct Place<DB: Backend + sqlx::Database> {
    pool: Pool<DB>,
    outbox: Outbox<DB>,
}

/// Does the same on each of the databases.
macro_rules! each {
    ($site:expr, |$place:ident| $body:expr) => {
        match $site {
            Site::Postgres($place) => $body,
            Site::MySql($place) => $body,
            Site::Sqlite($place) => $body,
        }
    };
}

impl Site {
    /// The outbox in the database at this URL.
    pub async fn open(url: &str) -> Result<Self> {
        let (scheme, _) = url.split_once(':').context("a URL begins with a scheme")?;
        Ok(match scheme {
            "postgres" | "postgresql" => {
                let pool = PgPoolOptions::new().max_connections(3).connect(url).await?;
                let outbox = Outbox::postgres(pool.clone()).table(TABLE).build()?;
                Self::Postgres(Place { pool, outbox })
            }
            "mysql" | "mariadb" => {
                let pool = MySqlPoolOptions::new().max_connections(3).connect(url).await?;
                let outbox = Outbox::mysql(pool.clone()).table(TABLE).build()?;
                Self::MySql(Place { pool, outbox })
            }
            _ => {
                // The relay uses the same connections.
                let options: SqliteConnectOptions = url.parse()?;
                let options = options.journal_mode(SqliteJournalMode::Wal);
                let pool = SqlitePoolOptions::new().max_connections(6).connect_with(options).await?;
                let outbox = Outbox::sqlite(pool.clone()).table(TABLE).build()?;
                Self::Sqlite(Place { pool, outbox })
            }
        })
    }

    /// Makes the table, or goes on where somebody else ended.
    pub async fn migrate(&self, mode: Mode) -> Result<()> {
        each!(self, |place| place.outbox.migrate_as(mode).await?);
        Ok(())
    }

    /// A relay to which what commits by [`begin_hot`](Self::begin_hot) goes straight.
    pub fn relay(&self) -> RelayBuilder {
        each!(self, |place| place.outbox.relay())
    }

    /// A transaction of the client library's.
    pub async fn begin(&self) -> Result<Tx> {
        Ok(match self {
            Self::Postgres(place) => Tx::Postgres(place.pool.begin().await?),
            Self::MySql(place) => Tx::MySql(place.pool.begin().await?),
            Self::Sqlite(place) => Tx::Sqlite(place.pool.begin_with("BEGIN IMMEDIATE").await?),
        })
    }

    /// One that knows its commit.
    pub async fn begin_hot(&self) -> Result<Tx> {
        Ok(match self {
            Self::Postgres(place) => Tx::HotPostgres(place.outbox.begin().await?),
            Self::MySql(place) => Tx::HotMySql(place.outbox.begin().await?),
            Self::Sqlite(place) => Tx::HotSqlite(place.outbox.begin().await?),
        })
    }

    /// Asks for a number.
    pub async fn number(&self, sql: &str) -> Result<i64> {
        let sql = AssertSqlSafe(sql.to_owned());
        Ok(each!(self, |place| sqlx::query_scalar(sql).fetch_one(&place.pool).await?))
    }

    pub async fn close(&self) {
        each!(self, |place| place.pool.close().await);
    }
}

/// An open transaction.
pub enum Tx {
    Postgres(Transaction<'static, Postgres>),
    MySql(Transaction<'static, MySql>),
    Sqlite(Transaction<'static, Sqlite>),
    HotPostgres(OutboxTransaction<Postgres>),
    HotMySql(OutboxTransaction<MySql>),
    HotSqlite(OutboxTransaction<Sqlite>),
}

/// Does the same in each kind of transaction.
macro_rules! within {
    ($tx:expr, |$inner:ident| $body:expr) => {
        match $tx {
            Tx::Postgres($inner) => $body,
            Tx::MySql($inner) => $body,
            Tx::Sqlite($inner) => $body,
            Tx::HotPostgres($inner) => $body,
            Tx::HotMySql($inner) => $body,
            Tx::HotSqlite($inner) => $body,
        }
    };
}

impl Tx {
    /// The SQL of the business rows, with this database's placeholders.
    fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(match self {
            Self::Postgres(_) | Self::HotPostgres(_) => ledger::numbered(sql),
            _ => sql.to_owned(),
        })
    }

    /// The aggregate's next number; others wait for it from now on.
    pub async fn next_number(&mut self, aggregate: &str) -> Result<i64> {
        let (count_on, counted) = (self.sql(ledger::COUNT_ON), self.sql(ledger::COUNTED));
        let aggregate = aggregate.to_owned();
        Ok(within!(self, |tx| {
            let query = sqlx::query(count_on).bind(1_i64).bind(TABLE).bind(aggregate.clone());
            query.execute(&mut **tx).await?;
            sqlx::query_scalar(counted).bind(TABLE).bind(aggregate).fetch_one(&mut **tx).await?
        }))
    }

    /// Writes the business row of an event.
    pub async fn add_business(
        &mut self,
        id: Uuid,
        aggregate: &str,
        number: i64,
        payload: &str,
    ) -> Result<()> {
        let sql = self.sql(ledger::ADD_BUSINESS);
        let (aggregate, hash) = (aggregate.to_owned(), ledger::hash(payload));
        within!(self, |tx| {
            let query = sqlx::query(sql).bind(id.hyphenated().to_string()).bind(TABLE).bind(aggregate);
            query.bind(number).bind(hash).execute(&mut **tx).await?;
        });
        Ok(())
    }

    /// Enqueues an event; whether it was there already.
    pub async fn enqueue(&mut self, site: &Site, event: Event) -> Result<bool> {
        let enqueued = match (self, site) {
            (Self::Postgres(tx), Site::Postgres(place)) => place.outbox.enqueue(tx, event).await?,
            (Self::MySql(tx), Site::MySql(place)) => place.outbox.enqueue(tx, event).await?,
            (Self::Sqlite(tx), Site::Sqlite(place)) => place.outbox.enqueue(tx, event).await?,
            (Self::HotPostgres(tx), Site::Postgres(place)) => place.outbox.enqueue(tx, event).await?,
            (Self::HotMySql(tx), Site::MySql(place)) => place.outbox.enqueue(tx, event).await?,
            (Self::HotSqlite(tx), Site::Sqlite(place)) => place.outbox.enqueue(tx, event).await?,
            _ => anyhow::bail!("a transaction of another database"),
        };
        Ok(enqueued.duplicate)
    }

    pub async fn commit(self) -> Result<()> {
        within!(self, |tx| tx.commit().await?);
        Ok(())
    }

    pub async fn rollback(self) -> Result<()> {
        within!(self, |tx| tx.rollback().await?);
        Ok(())
    }
}
