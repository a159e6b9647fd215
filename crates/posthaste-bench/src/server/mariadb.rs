//! A private MariaDB: each commit is flushed, pages are written twice.

use anyhow::Result;
use posthaste_testkit::engine::{self, Profile};
use posthaste_testkit::private::PrivateServer;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection};

/// A running server.
pub(crate) struct MariaDb(PrivateServer);

impl MariaDb {
    /// Starts a new one.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self(PrivateServer::start_with(&engine::mariadb::MariaDb, Profile::Bench, &[])?))
    }

    /// A new database of this name; where it is.
    pub(crate) async fn create(&self, name: &str) -> Result<String> {
        let mut client = MySqlConnection::connect(&self.0.first_url()).await?;
        client.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
        Ok(self.0.url(name))
    }

    pub(crate) async fn version(&self) -> Result<String> {
        let mut client = MySqlConnection::connect(&self.0.first_url()).await?;
        let version: String = sqlx::query_scalar("SELECT version()").fetch_one(&mut client).await?;
        Ok(format!("MariaDB {version}"))
    }
}
