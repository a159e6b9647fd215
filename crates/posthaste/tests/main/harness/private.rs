//! A server of a test's own for asynchronous tests: one at a time in this process, since it and its test want the machine for
//! themselves.

use std::sync::{Arc, LazyLock};

use posthaste_testkit::engine::mariadb::MariaDb;
use posthaste_testkit::engine::mysql::MySql;
use posthaste_testkit::engine::postgres::Postgres;
use posthaste_testkit::engine::{Engine, Profile};
use posthaste_testkit::private;
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::block_in_place;

use super::Kind;
use super::faults::process_list;

/// A running server. It ends with the test, and its data with it.
pub struct PrivateServer {
    kind: Kind,
    server: private::PrivateServer,
    _turn: OwnedMutexGuard<()>,
}

impl PrivateServer {
    /// Starts a new one.
    pub async fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[]).await
    }

    /// Starts a new one with these settings beside its own.
    pub async fn start_with(kind: Kind, settings: &[&str]) -> Self {
        static TURN: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);
        let turn = Arc::clone(&TURN).lock_owned().await;
        let engine: &'static dyn Engine = match kind {
            Kind::Postgres => &Postgres,
            Kind::MySql => &MySql,
            Kind::MariaDb => &MariaDb,
            Kind::Sqlite | Kind::Memory => panic!("no server"),
        };
        let start = || private::PrivateServer::start_with(engine, Profile::Private, settings);
        Self { kind, server: block_in_place(start).unwrap(), _turn: turn }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// URL of the database that is always there, as a user with all rights.
    pub fn url(&self) -> String {
        self.server.first_url()
    }

    /// URL of this database.
    pub fn url_of(&self, database: &str) -> String {
        self.server.url(database)
    }

    /// Ends the server as a crash does.
    pub fn crash(&mut self) {
        block_in_place(|| self.server.crash());
    }

    /// Ends the server as an operator does.
    pub fn shut_down(&mut self) {
        block_in_place(|| self.server.shut_down());
    }

    /// Starts the server again, with what was committed.
    pub async fn start_again(&mut self) {
        block_in_place(|| self.server.start_again()).unwrap();
    }

    /// Ends every connection but the one that does so, and returns their number.
    pub async fn kill_connections(&self) -> usize {
        match self.kind {
            Kind::Postgres => {
                let mut own = PgConnection::connect(&self.url()).await.unwrap();
                let others = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
                let ended: i64 = sqlx::query_scalar(others).fetch_one(&mut own).await.unwrap();
                ended as usize
            }
            _ => {
                let mut own = MySqlConnection::connect(&self.url()).await.unwrap();
                let others = format!(
                    "SELECT CAST(ID AS SIGNED) FROM {} WHERE COMMAND <> 'Daemon' AND ID <> CONNECTION_ID()",
                    process_list(self.kind)
                );
                let others: Vec<i64> =
                    sqlx::query_scalar(AssertSqlSafe(others)).fetch_all(&mut own).await.unwrap();
                let mut ended = 0;
                for id in others {
                    // One that has gone by itself meanwhile is an error.
                    ended += usize::from(own.execute(AssertSqlSafe(format!("KILL {id}"))).await.is_ok());
                }
                ended
            }
        }
    }
}
