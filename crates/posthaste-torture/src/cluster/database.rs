//! The database of a run: where it is for whom, its tables, and a client that goes straight to it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use posthaste_testkit::engine::Engine;
use posthaste_testkit::engine::mariadb::MariaDb;
use posthaste_testkit::engine::mysql::MySql;
use posthaste_testkit::engine::postgres::Postgres;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{MySqlPool, PgPool, SqlitePool};
use tokio::sync::Mutex;

use super::client::Client;
use super::guard::Guard;
use super::server::Server;
use crate::audit;
use crate::ledger;
use crate::plan::{self, Mode, Plan, Table};
use crate::proxy::Proxy;

/// The database in a server.
const NAME: &str = "torture";

/// What everybody writes to.
#[derive(Debug)]
pub(super) struct Database {
    kind: plan::Database,
    place: Place,
    client: Client,
}

#[derive(Debug)]
enum Place {
    Server(Box<Mutex<Server>>, u16),
    File(PathBuf),
}

impl Database {
    /// A new one with the tables of the plan, and accounts for these clients where those are told apart by them.
    pub(super) async fn start(
        plan: &Plan,
        clients: &[String],
        directory: &Path,
        guard: &Arc<Guard>,
    ) -> Result<Self> {
        let database = match plan.database {
            plan::Database::Postgres => {
                let server = Server::start(&Postgres, directory, guard).await?;
                let first = PgPool::connect_lazy(&server.first_url())?;
                Client::Postgres(first).execute(&format!("CREATE DATABASE {NAME}")).await?;
                let client = Client::Postgres(PgPool::connect_lazy(&server.url(NAME))?);
                let port = server.port();
                Self { kind: plan.database, place: Place::Server(Box::new(Mutex::new(server)), port), client }
            }
            plan::Database::MySql | plan::Database::MariaDb => {
                let engine: &'static dyn Engine =
                    if plan.database == plan::Database::MySql { &MySql } else { &MariaDb };
                let server = Server::start(engine, directory, guard).await?;
                let first = Client::MySql(MySqlPool::connect_lazy(&server.first_url())?);
                first.execute(&format!("CREATE DATABASE {NAME}")).await?;
                for account in clients {
                    first.execute(&format!("CREATE USER '{account}'@'%'")).await?;
                    first.execute(&format!("GRANT ALL ON *.* TO '{account}'@'%'")).await?;
                }
                let client = Client::MySql(MySqlPool::connect_lazy(&server.url(NAME))?);
                let port = server.port();
                Self { kind: plan.database, place: Place::Server(Box::new(Mutex::new(server)), port), client }
            }
            plan::Database::Sqlite => {
                let file = directory.join("database.db");
                let options = SqliteConnectOptions::new()
                    .filename(&file)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(std::time::Duration::from_secs(20));
                let client = Client::Sqlite(SqlitePool::connect_lazy_with(options));
                Self { kind: plan.database, place: Place::File(file), client }
            }
        };
        database.fill(plan).await?;
        Ok(database)
    }

    /// Makes the tables, and what watches them.
    async fn fill(&self, plan: &Plan) -> Result<()> {
        for table in ledger::CREATE {
            self.client.execute(table).await?;
        }
        for table in &plan.tables {
            let store = posthaste::store::connect(&self.own_url().await, &table.name).await?;
            let mode = match table.mode {
                Mode::Queue { .. } => posthaste::store::Mode::Queue,
                Mode::Stream { lanes } => posthaste::store::Mode::stream(lanes)?,
            };
            store.migrate_up_as(mode).await?;
            for number in 0..table.aggregates {
                // The names are the run's own.
                let (name, aggregate) = (&table.name, table.aggregate(number));
                let values = format!("'{name}', '{aggregate}'");
                self.client.execute(&ledger::ADD_COUNTER.replacen("?, ?", &values, 1)).await?;
            }
        }
        audit::install(&self.own_url().await, &plan.audited()).await
    }

    /// Where the run itself finds it.
    pub(super) async fn own_url(&self) -> String {
        match &self.place {
            Place::Server(server, _) => server.lock().await.url(NAME),
            Place::File(file) => format!("sqlite://{}", file.display()),
        }
    }

    /// A way to it for a client of its own; none where it has no server.
    pub(super) async fn proxy(&self) -> Result<Option<Proxy>> {
        match &self.place {
            Place::Server(_, port) => Ok(Some(Proxy::start(*port).await?)),
            Place::File(_) => Ok(None),
        }
    }

    /// Where this client finds it, by its own way.
    pub(super) fn url(&self, client: &str, proxy: Option<&Proxy>) -> Result<String> {
        let port = || proxy.map(Proxy::port).context("a server is reached through a proxy");
        Ok(match (&self.place, self.kind) {
            (Place::File(file), _) => format!("sqlite://{}", file.display()),
            (_, kind) if kind.is_mysql() => format!("mysql://{client}@127.0.0.1:{}/{NAME}", port()?),
            _ => format!("postgres://posthaste@127.0.0.1:{}/{NAME}?application_name={client}", port()?),
        })
    }

    /// The server dies and is down until it is started again.
    pub(super) async fn crash(&self) -> Result<()> {
        match &self.place {
            Place::Server(server, _) => server.lock().await.crash().await,
            Place::File(_) => Ok(()),
        }
    }

    pub(super) async fn start_again(&self) -> Result<()> {
        match &self.place {
            Place::Server(server, _) => server.lock().await.start_again().await,
            Place::File(_) => Ok(()),
        }
    }

    /// The server ends about one of `one_of` of the clients' connections; whose.
    pub(super) async fn terminate(&self, one_of: u32, random: &mut fastrand::Rng) -> Result<Vec<String>> {
        let sessions = match &self.client {
            Client::Postgres(_) => {
                "SELECT concat(application_name, ' ', pid) FROM pg_stat_activity WHERE application_name LIKE 'relay-%' OR application_name LIKE 'producer-%'"
            }
            Client::MySql(_) => &format!(
                "SELECT CONCAT(USER, ' ', ID) FROM {} WHERE USER LIKE 'relay-%' OR USER LIKE 'producer-%'",
                process_list(self.kind)
            ),
            Client::Sqlite(_) => return Ok(Vec::new()),
        };
        let mut befell = BTreeSet::new();
        for session in self.client.texts(sessions).await? {
            let (name, id) = session.split_once(' ').context("a session has a name and a number")?;
            if random.u32(..one_of) == 0 {
                let end = match &self.client {
                    Client::Postgres(_) => format!("SELECT pg_terminate_backend({id})"),
                    _ => format!("KILL {id}"),
                };
                // One that has gone by itself meanwhile is an error on MySQL and MariaDB.
                if self.client.execute(&end).await.is_ok() {
                    befell.insert(name.to_owned());
                }
            }
        }
        Ok(befell.into_iter().collect())
    }

    /// How many events of a table have been neither delivered nor given up.
    pub(super) async fn backlog(&self, table: &Table) -> Result<i64> {
        let sql =
            format!("SELECT count(*) FROM {}_status WHERE status IN ('pending', 'processing')", table.name);
        let counts = self.client.numbers(&sql).await?;
        counts.first().copied().context("a count has a row")
    }

    /// What is left of a table, for people.
    pub(super) async fn leftovers(&self, table: &Table) -> Result<Vec<String>> {
        let mut shown = vec!["status", "id", "aggregate_id", "attempts", "last_error", "available_at"];
        shown.extend(if table.is_stream() { ["lane", "owner"] } else { ["locked_by", "locked_until"] });
        let shown = as_text(&shown, self.kind);
        let sql = format!(
            "SELECT {shown} FROM {}_status WHERE status IN ('pending', 'processing') ORDER BY seq LIMIT 10",
            table.name
        );
        self.client.texts(&sql).await
    }
}

/// Table of MySQL's or MariaDB's connections. MySQL's table in the information schema fails with error 3854 while any connection
/// executes a statement whose text has bytes that are not UTF-8.
fn process_list(database: plan::Database) -> &'static str {
    match database {
        plan::Database::MySql => "performance_schema.processlist",
        _ => "information_schema.processlist",
    }
}

/// Columns as one text.
fn as_text(columns: &[&str], database: plan::Database) -> String {
    let text = |column: &&str| match database {
        plan::Database::Postgres => format!("coalesce({column}::text, '-')"),
        plan::Database::MySql | plan::Database::MariaDb => format!("coalesce(CAST({column} AS CHAR), '-')"),
        plan::Database::Sqlite => format!("coalesce(CAST({column} AS TEXT), '-')"),
    };
    let columns: Vec<String> = columns.iter().map(text).collect();
    match database {
        plan::Database::MySql | plan::Database::MariaDb => format!("CONCAT_WS(' ', {})", columns.join(", ")),
        plan::Database::Postgres | plan::Database::Sqlite => columns.join(" || ' ' || "),
    }
}
