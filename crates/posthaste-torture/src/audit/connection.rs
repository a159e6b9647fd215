//! A connection to any of the databases, by its URL.

use anyhow::{Result, bail};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, FromRow};

use super::{Dialect, mysql, postgres, sqlite};

/// A connection to one of the databases.
pub(super) enum Connection {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    Sqlite(SqliteConnection),
}

/// What can be read from a row of any of them.
pub(super) trait Read:
    for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, MySqlRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin
{
}

impl<T> Read for T where
    T: for<'r> FromRow<'r, PgRow>
        + for<'r> FromRow<'r, MySqlRow>
        + for<'r> FromRow<'r, SqliteRow>
        + Send
        + Unpin
{
}

impl Connection {
    pub(super) async fn open(url: &str) -> Result<Self> {
        Ok(match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("postgres" | "postgresql") => Self::Postgres(PgConnection::connect(url).await?),
            Some("mysql" | "mariadb") => Self::MySql(MySqlConnection::connect(url).await?),
            Some("sqlite") => Self::Sqlite(SqliteConnection::connect(url).await?),
            // The rest may hold a password.
            scheme => bail!("{scheme:?} is no database of a run"),
        })
    }

    pub(super) fn dialect(&self) -> &'static Dialect {
        match self {
            Self::Postgres(_) => &postgres::DIALECT,
            Self::MySql(_) => &mysql::DIALECT,
            Self::Sqlite(_) => &sqlite::DIALECT,
        }
    }

    /// Executes statements as they are, without preparing them: not all can be.
    pub(super) async fn execute(&mut self, sql: String) -> Result<()> {
        let sql = AssertSqlSafe(sql);
        match self {
            Self::Postgres(connection) => connection.execute(sql).await.map(drop)?,
            Self::MySql(connection) => connection.execute(sql).await.map(drop)?,
            Self::Sqlite(connection) => connection.execute(sql).await.map(drop)?,
        }
        Ok(())
    }

    pub(super) async fn rows<T: Read>(&mut self, sql: String) -> Result<Vec<T>> {
        let sql = AssertSqlSafe(sql);
        Ok(match self {
            Self::Postgres(connection) => sqlx::query_as(sql).fetch_all(connection).await?,
            Self::MySql(connection) => sqlx::query_as(sql).fetch_all(connection).await?,
            Self::Sqlite(connection) => sqlx::query_as(sql).fetch_all(connection).await?,
        })
    }

    pub(super) async fn close(self) -> Result<()> {
        match self {
            Self::Postgres(connection) => connection.close().await?,
            Self::MySql(connection) => connection.close().await?,
            Self::Sqlite(connection) => connection.close().await?,
        }
        Ok(())
    }
}
