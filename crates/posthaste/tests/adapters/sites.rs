//! A schema, database or file of a test's own, with a migrated outbox and inbox in it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use posthaste::{Backend, Inbox, Outbox};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Executor, MySql, Pool, Postgres, Sqlite};
use uuid::Uuid;

/// Where one test has its tables.
pub struct Site<B: Backend + sqlx::Database> {
    pub outbox: Outbox<B>,
    pub inbox: Inbox<B>,
    pub pool: Pool<B>,
    /// Where other client libraries connect to.
    pub url: String,
    /// The schema, database or file.
    pub name: String,
}

/// A database that tests can have a site in.
pub trait Place: Backend + sqlx::Database {
    /// A new, empty site, and the outbox and inbox in it that are not yet there.
    async fn open(name: String) -> Site<Self>;

    /// An outbox and an inbox in tables that do not exist.
    fn missing(site: &Site<Self>) -> Vec<(Outbox<Self>, Inbox<Self>)>;

    /// Makes the outbox's table another than the migrations make.
    async fn spoil(site: &Site<Self>) {
        let table = site.outbox.table();
        let sql = AssertSqlSafe(format!("ALTER TABLE {table} RENAME COLUMN tenant_id TO tenant"));
        Self::execute(&site.pool, sql).await;
    }

    async fn execute(pool: &Pool<Self>, sql: AssertSqlSafe<String>);

    /// Comes back once another transaction waits for a lock in the site, where that can be told.
    async fn someone_waits(site: &Site<Self>);

    /// Removes the site with all that is in it.
    async fn close(site: Site<Self>);
}

/// Runs a test in a site of its own, which is removed also where the test fails.
pub async fn in_site<B: Place>(test: impl AsyncFnOnce(&Site<B>)) {
    let site = B::open(format!("t_{}", Uuid::now_v7().simple())).await;
    site.outbox.migrate().await.unwrap();
    site.inbox.migrate().await.unwrap();
    let outcome = {
        let mut test = pin!(test(&site));
        poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| test.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) => Poll::Ready(Ok(())),
            Err(panic) => Poll::Ready(Err(panic)),
        })
        .await
    };
    B::close(site).await;
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

tokio::task_local! {
    /// Environment variable with the URL of the server that sites of MySQL's dialect are on, if it is not MySQL.
    static SERVER: &'static str;
}

/// The same in a site on MariaDB.
pub async fn in_mariadb_site(test: impl AsyncFnOnce(&Site<MySql>)) {
    SERVER.scope("POSTHASTE_TEST_MARIADB_URL", in_site(test)).await;
}

impl Place for Postgres {
    async fn open(name: String) -> Site<Self> {
        let url = url("POSTHASTE_TEST_POSTGRES_URL");
        let pool = PgPoolOptions::new().max_connections(3).connect(&url).await.unwrap();
        pool.execute(AssertSqlSafe(format!("CREATE SCHEMA {name}"))).await.unwrap();
        let outbox = Outbox::postgres(pool.clone()).table(format!("{name}.outbox")).build().unwrap();
        let inbox = Inbox::postgres(pool.clone(), &format!("{name}.inbox")).unwrap();
        Site { outbox, inbox, pool, url, name }
    }

    fn missing(site: &Site<Self>) -> Vec<(Outbox<Self>, Inbox<Self>)> {
        let tables =
            [format!("{}.nothing", site.name), "no_such_schema.nothing".into(), "nothing_here".into()];
        let make = |table: String| {
            let inbox = Inbox::postgres(site.pool.clone(), &table).unwrap();
            (Outbox::postgres(site.pool.clone()).table(table).build().unwrap(), inbox)
        };
        tables.map(make).into()
    }

    async fn someone_waits(site: &Site<Self>) {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'";
        while sqlx::query_scalar::<_, i64>(waiting).bind(&site.name).fetch_one(&site.pool).await.unwrap() == 0
        {
        }
    }

    async fn execute(pool: &Pool<Self>, sql: AssertSqlSafe<String>) {
        pool.execute(sql).await.unwrap();
    }

    async fn close(site: Site<Self>) {
        site.pool.execute(AssertSqlSafe(format!("DROP SCHEMA {} CASCADE", site.name))).await.unwrap();
        site.pool.close().await;
    }
}

impl Place for MySql {
    async fn open(name: String) -> Site<Self> {
        let url = url(SERVER.try_get().unwrap_or("POSTHASTE_TEST_MYSQL_URL"));
        let pool = MySqlPoolOptions::new().max_connections(3).connect(&url).await.unwrap();
        pool.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let outbox = Outbox::mysql(pool.clone()).table(format!("{name}.outbox")).build().unwrap();
        let inbox = Inbox::mysql(pool.clone(), &format!("{name}.inbox")).unwrap();
        Site { outbox, inbox, pool, url, name }
    }

    fn missing(site: &Site<Self>) -> Vec<(Outbox<Self>, Inbox<Self>)> {
        let table = format!("{}.nothing", site.name);
        let inbox = Inbox::mysql(site.pool.clone(), &table).unwrap();
        vec![(Outbox::mysql(site.pool.clone()).table(table).build().unwrap(), inbox)]
    }

    async fn someone_waits(site: &Site<Self>) {
        // The tables that would tell are refreshed only when nobody has read them for a while.
        let waits = |status: &str| {
            let mut transactions = status.split("---TRANSACTION");
            transactions.any(|one| one.contains("LOCK WAIT") && one.contains(&site.name))
        };
        loop {
            let status: (String, String, String) =
                sqlx::query_as("SHOW ENGINE INNODB STATUS").fetch_one(&site.pool).await.unwrap();
            if waits(&status.2) {
                return;
            }
        }
    }

    async fn execute(pool: &Pool<Self>, sql: AssertSqlSafe<String>) {
        pool.execute(sql).await.unwrap();
    }

    async fn close(site: Site<Self>) {
        site.pool.execute(AssertSqlSafe(format!("DROP DATABASE {}", site.name))).await.unwrap();
        site.pool.close().await;
    }
}

impl Place for Sqlite {
    async fn open(name: String) -> Site<Self> {
        let file = file(&name);
        let options = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePoolOptions::new().max_connections(3).connect_with(options).await.unwrap();
        let outbox = Outbox::sqlite(pool.clone()).build().unwrap();
        let inbox = Inbox::sqlite(pool.clone(), "inbox").unwrap();
        Site { outbox, inbox, pool, url: format!("sqlite://{}", file.display()), name }
    }

    fn missing(site: &Site<Self>) -> Vec<(Outbox<Self>, Inbox<Self>)> {
        let inbox = Inbox::sqlite(site.pool.clone(), "nothing").unwrap();
        vec![(Outbox::sqlite(site.pool.clone()).table("nothing").build().unwrap(), inbox)]
    }

    /// Who waits for SQLite's one writer does so unseen.
    async fn someone_waits(_: &Site<Self>) {}

    async fn execute(pool: &Pool<Self>, sql: AssertSqlSafe<String>) {
        pool.execute(sql).await.unwrap();
    }

    async fn close(site: Site<Self>) {
        site.pool.close().await;
        for end in ["", "-wal", "-shm"] {
            let file = file(&site.name).with_extension(format!("db{end}"));
            if file.exists() {
                std::fs::remove_file(file).unwrap();
            }
        }
    }
}

/// Ends the connection that has an open transaction in the site.
pub async fn disconnect(site: &Site<Postgres>) {
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE state = 'idle in transaction' AND query LIKE '%' || $1 || '%'";
    let ended: bool = sqlx::query_scalar(end).bind(&site.name).fetch_one(&site.pool).await.unwrap();
    assert!(ended);
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("db")
}

/// The URL of a server.
fn url(variable: &str) -> String {
    posthaste_testkit::environment::setting(variable).unwrap()
}
