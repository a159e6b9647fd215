//! A schema, a database or a file for one case, with the outbox and the tables of the business rows in it; and what is
//! there in the end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use uuid::Uuid;

use super::child::AGGREGATES;
use super::site::Site;
use super::{Scenario, TABLE};
use crate::history::Writer;
use crate::plan::Database;
use crate::{audit, ledger};

/// The place of one case.
pub struct Ground {
    database: Database,
    /// The server, if there is one.
    server: String,
    /// Its schema, database or file.
    name: String,
    directory: PathBuf,
}

enum Link {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    Sqlite(SqliteConnection),
}

impl Link {
    async fn execute(&mut self, sql: impl Into<String>) -> Result<()> {
        let sql = AssertSqlSafe(sql.into());
        match self {
            Self::Postgres(link) => link.execute(sql).await.map(drop)?,
            Self::MySql(link) => link.execute(sql).await.map(drop)?,
            Self::Sqlite(link) => link.execute(sql).await.map(drop)?,
        }
        Ok(())
    }

    async fn close(self) -> Result<()> {
        match self {
            Self::Postgres(link) => link.close().await?,
            Self::MySql(link) => link.close().await?,
            Self::Sqlite(link) => link.close().await?,
        }
        Ok(())
    }
}

impl Ground {
    /// A new one; `server` is the URL of the server where there is one, and files are in the directory.
    pub async fn make(database: Database, server: &str, directory: &Path) -> Result<Self> {
        let name = format!("crash_{}", Uuid::now_v7().simple());
        let ground = Self { database, server: server.to_owned(), name, directory: directory.to_owned() };
        match database {
            Database::Postgres => {
                let mut link = Link::Postgres(PgConnection::connect(server).await?);
                link.execute(format!("CREATE SCHEMA {}", ground.name)).await?;
                link.close().await?;
            }
            Database::MySql | Database::MariaDb => {
                let mut link = Link::MySql(MySqlConnection::connect(server).await?);
                link.execute(format!("CREATE DATABASE {}", ground.name)).await?;
                link.close().await?;
            }
            Database::Sqlite => {}
        }
        let mut link = ground.link().await?;
        for sql in ledger::CREATE {
            link.execute(sql).await?;
        }
        for aggregate in AGGREGATES {
            // Both names are this crate's own.
            let sql = ledger::ADD_COUNTER.replacen("?, ?", &format!("'{TABLE}', '{aggregate}'"), 1);
            link.execute(sql).await?;
        }
        link.close().await?;
        Ok(ground)
    }

    /// The URL at which a process finds it; by the session's name the database knows whose it is, where it can.
    pub fn url(&self, session: &str) -> Result<String> {
        Ok(match self.database {
            Database::Postgres => {
                let Self { server, name, .. } = self;
                let more = if server.contains('?') { '&' } else { '?' };
                format!("{server}{more}options=-csearch_path%3D{name}&application_name={session}")
            }
            Database::MySql | Database::MariaDb => {
                let (server, _) = self.server.rsplit_once('/').context("a URL ends with a database")?;
                format!("{server}/{}", self.name)
            }
            Database::Sqlite => format!("sqlite://{}?mode=rwc", self.file().display()),
        })
    }

    fn file(&self) -> PathBuf {
        self.directory.join(format!("{}.db", self.name))
    }

    async fn link(&self) -> Result<Link> {
        let url = self.url("case")?;
        Ok(match self.database {
            Database::Postgres => Link::Postgres(PgConnection::connect(&url).await?),
            Database::MySql | Database::MariaDb => Link::MySql(MySqlConnection::connect(&url).await?),
            Database::Sqlite => Link::Sqlite(url.parse::<SqliteConnectOptions>()?.connect().await?),
        })
    }

    /// Makes the outbox, or goes on where somebody else ended; and from now on everything is noted that happens to it.
    pub async fn migrate(&self, scenario: Scenario) -> Result<()> {
        let site = Site::open(&self.url("case")?).await?;
        site.migrate(scenario.mode()?).await?;
        site.close().await;
        audit::install(&self.url("case")?, &[scenario.table()]).await
    }

    /// Writes down what happened to it, and what is there in the end.
    pub async fn write_down(&self, scenario: Scenario, writer: &Writer) -> Result<()> {
        audit::collect(&self.url("case")?, &[scenario.table()], writer).await
    }

    /// Removes it.
    pub async fn remove(self) -> Result<()> {
        let drop = match self.database {
            Database::Postgres => format!("DROP SCHEMA {} CASCADE", self.name),
            Database::MySql | Database::MariaDb => format!("DROP DATABASE {}", self.name),
            // It goes with its directory.
            Database::Sqlite => return Ok(()),
        };
        let mut link = self.link().await?;
        // Where triggers are made in several databases at once, MariaDB sometimes forgets a copy of a file of theirs (`outbox_parked.TRG-`)
        // that it does not know as its own when it is to remove the directory. Everything else has gone by then.
        match link.execute(drop).await {
            Err(error) if error.to_string().contains("Directory not empty") => {}
            dropped => dropped?,
        }
        link.close().await
    }
}
