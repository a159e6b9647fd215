//! The run's own connections to the database, past all proxies.

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

/// A pool of any of the databases.
#[derive(Debug)]
pub(super) enum Client {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

impl Client {
    /// Executes this, whatever it answers.
    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        let text = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
            Self::MySql(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
            Self::Sqlite(pool) => sqlx::raw_sql(text).execute(pool).await.map(drop),
        }
        .with_context(|| sql.to_owned())
    }

    /// The numbers of a column.
    pub(super) async fn numbers(&self, sql: &str) -> Result<Vec<i64>> {
        let text = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
            Self::MySql(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
        }
        .with_context(|| sql.to_owned())
    }

    /// The texts of a column.
    pub(super) async fn texts(&self, sql: &str) -> Result<Vec<String>> {
        let text = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
            Self::MySql(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_all(pool).await,
        }
        .with_context(|| sql.to_owned())
    }
}
