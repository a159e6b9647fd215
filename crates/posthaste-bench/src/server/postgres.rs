//! A private PostgreSQL with the durability that it comes with, and its databases.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use posthaste_testkit::engine::{self, Profile};
use posthaste_testkit::private::PrivateServer;
use tokio_postgres::{Client, NoTls};

use crate::sample;

/// Settings of the measurement. Everything that guards committed data is as the server has it by default: `fsync`,
/// `full_page_writes` and `synchronous_commit` on, `shared_buffers` 128 MB.
const SETTINGS: [&str; 4] = [
    // The statements are counted, not what functions do for them.
    "-cshared_preload_libraries=pg_stat_statements",
    "-cpg_stat_statements.track=top",
    // A checkpoint in the middle of one run and not of another would be measured instead of either.
    "-cmax_wal_size=8GB",
    "-ccheckpoint_timeout=1h",
];

/// Longest wait for the connections to a database that is copied to close.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct Postgres {
    server: PrivateServer,
    made: AtomicU32,
}

impl Postgres {
    /// Starts a new one.
    pub(crate) fn start() -> Result<Self> {
        let server = PrivateServer::start_with(&engine::postgres::Postgres, Profile::Bench, &SETTINGS)?;
        Ok(Self { server, made: AtomicU32::new(0) })
    }

    /// The number of the server's first process.
    pub(crate) fn process(&self) -> u32 {
        self.server.pid()
    }

    /// The database that is always there.
    pub(crate) fn postgres(&self) -> Database {
        self.of("postgres")
    }

    fn of(&self, name: &str) -> Database {
        Database { name: name.to_owned(), url: self.server.url(name), process: self.process() }
    }

    /// A new database with the business table and the statements' statistics.
    pub(crate) async fn create(&self) -> Result<Database> {
        let database = self.copy_of("template1").await?;
        let client = database.client().await?;
        client.batch_execute("CREATE EXTENSION pg_stat_statements").await?;
        client.batch_execute(sample::CREATE_ORDERS).await?;
        Ok(database)
    }

    /// A copy of a database that nobody is connected to. From version 15 on its pages are in the log, so that the first change
    /// of each is not, and all changes are written alike.
    pub(crate) async fn copy(&self, database: &Database) -> Result<Database> {
        self.copy_of(&database.name).await
    }

    async fn copy_of(&self, template: &str) -> Result<Database> {
        let name = format!("bench_{}", self.made.fetch_add(1, Ordering::Relaxed));
        let client = self.postgres().client().await?;
        let version: String = client.query_one("SHOW server_version_num", &[]).await?.try_get(0)?;
        let strategy = if version.as_str() < "150000" { "" } else { "STRATEGY wal_log" };
        let began = Instant::now();
        loop {
            let create = format!("CREATE DATABASE {name} TEMPLATE {template} {strategy}");
            match client.batch_execute(&create).await {
                Ok(()) => return Ok(self.of(&name)),
                // Who has closed a connection is not waited for by the server.
                Err(error) if began.elapsed() > PATIENCE => {
                    return Err(error).with_context(|| format!("{template} cannot be copied"));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Away with it, whoever is connected to it.
    pub(crate) async fn drop(&self, database: Database) -> Result<()> {
        let client = self.postgres().client().await?;
        client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", database.name)).await?;
        Ok(())
    }

    /// Everything written is on the disk: what was done before is not paid for later.
    pub(crate) async fn checkpoint(&self) -> Result<()> {
        Ok(self.postgres().client().await?.batch_execute("CHECKPOINT").await?)
    }

    pub(crate) async fn version(&self) -> Result<String> {
        let client = self.postgres().client().await?;
        let version: String = client.query_one("SHOW server_version", &[]).await?.try_get(0)?;
        Ok(format!("PostgreSQL {version}"))
    }
}

/// One database of a server.
#[derive(Debug, Clone)]
pub(crate) struct Database {
    name: String,
    url: String,
    process: u32,
}

impl Database {
    /// One that another process has made.
    pub(crate) fn at(url: &str, process: u32) -> Self {
        Self { name: url.rsplit('/').next().unwrap_or_default().to_owned(), url: url.to_owned(), process }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The number of the server's first process.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// A connection, which closes when it is dropped.
    pub(crate) async fn client(&self) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// What the planner knows is what is there, for everybody alike.
    pub(crate) async fn vacuum(&self) -> Result<()> {
        Ok(self.client().await?.batch_execute("VACUUM ANALYZE").await?)
    }
}
