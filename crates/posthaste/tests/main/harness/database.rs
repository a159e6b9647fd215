//! One database under test: made new, used through the public API, dropped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste::produce::{Memory, OutboxBuilder};
use posthaste::store::{Mode, Store};
use posthaste::{Backend, Hook, Inbox, Outbox};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{
    AssertSqlSafe, Connection, Executor, MySql, MySqlPool, PgConnection, PgPool, Pool, Postgres, Sqlite,
    SqlitePool,
};

use uuid::Uuid;

use super::private::PrivateServer;
use super::servers::{setting, target};
use super::transaction::Tx;

pub const POSTGRES_URL: &str = "POSTHASTE_TEST_POSTGRES_URL";
pub const MYSQL_URL: &str = "POSTHASTE_TEST_MYSQL_URL";
pub const MARIADB_URL: &str = "POSTHASTE_TEST_MARIADB_URL";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Postgres,
    MySql,
    MariaDb,
    Sqlite,
    Memory,
}

impl Kind {
    /// `true` for MySQL and MariaDB, which share one dialect of SQL.
    pub fn is_mysql(self) -> bool {
        matches!(self, Self::MySql | Self::MariaDb)
    }

    /// Name of the kind in the names of tests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
            Self::Memory => "memory",
        }
    }
}

/// How the outbox under test differs from the default.
#[derive(Default, Clone)]
pub struct Setup {
    /// Another table than `outbox`, to know its statements and metrics from those of other tests.
    pub table: Option<String>,
    pub max_payload: Option<usize>,
    pub strict_topics: bool,
    pub hooks: Vec<Arc<dyn Hook>>,
    pub trace: Option<posthaste::produce::TraceContext>,
    /// How long SQLite waits for a file that is locked.
    pub busy_timeout: Option<Duration>,
    /// As what the table is migrated, if not as a queue.
    pub mode: Option<Mode>,
}

impl Setup {
    fn build<B: Backend>(self, mut builder: OutboxBuilder<B>) -> Outbox<B> {
        if let Some(table) = self.table {
            builder = builder.table(table);
        }
        if let Some(bytes) = self.max_payload {
            builder = builder.max_payload(bytes);
        }
        if self.strict_topics {
            builder = builder.strict_topics();
        }
        for hook in self.hooks {
            builder = builder.hook(hook);
        }
        if let Some(trace) = self.trace {
            builder = builder.trace_context(move || Some(trace.clone()));
        }
        builder.build().unwrap()
    }
}

tokio::task_local! {
    /// As what tables are migrated whose setup does not say.
    static MODE: Mode;
}

/// Whatever databases this makes, their tables are streams.
pub async fn as_stream<T>(make: impl Future<Output = T>) -> T {
    MODE.scope(Mode::stream(8).unwrap(), make).await
}

/// A database with a migrated outbox and inbox.
pub struct Db {
    kind: Kind,
    handle: Handle,
    store: Arc<dyn Store>,
    place: String,
    server: String,
}

pub enum Handle {
    Postgres(Sql<Postgres>),
    MySql(Sql<MySql>),
    Sqlite(Sql<Sqlite>),
    Memory(InMemory),
}

pub struct Sql<B: Backend + sqlx::Database> {
    pub pool: Pool<B>,
    pub outbox: Outbox<B>,
    pub inbox: Inbox<B>,
}

pub struct InMemory {
    pub outbox: Outbox<Memory>,
    pub inbox: Inbox<Memory>,
}

impl Db {
    /// A new, migrated one.
    pub async fn new(kind: Kind) -> Self {
        Self::with(kind, Setup::default()).await
    }

    /// A new, migrated one with these settings.
    pub async fn with(kind: Kind, setup: Setup) -> Self {
        let mode = setup.mode;
        Self::bare(kind, setup).await.migrated(mode).await
    }

    /// A new, migrated one on a server of the test's own.
    pub async fn on(server: &PrivateServer) -> Self {
        Self::on_with(server, Setup::default()).await
    }

    /// The same with these settings.
    pub async fn on_with(server: &PrivateServer, setup: Setup) -> Self {
        let mode = setup.mode;
        Self::at(server.url(), server.kind(), setup).await.migrated(mode).await
    }

    /// The same in a database of its own on that PostgreSQL server: what holds back the cleaning of the others is none of
    /// its business.
    pub async fn beside(server: &PrivateServer, database: &str, setup: Setup) -> Self {
        let mut admin = PgConnection::connect(&server.url()).await.unwrap();
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {database}"))).await.unwrap();
        admin.close().await.unwrap();
        let mode = setup.mode;
        Self::at(server.url_of(database), server.kind(), setup).await.migrated(mode).await
    }

    /// One that was made elsewhere and moved to a server of the test's own.
    pub async fn moved(server: &PrivateServer, place: &str) -> Self {
        Self::at_place(server.url(), server.kind(), Setup::default(), place.to_owned()).await
    }

    async fn migrated(self, mode: Option<Mode>) -> Self {
        let mode = mode.or_else(|| MODE.try_get().ok()).unwrap_or_default();
        self.store.migrate_up_as(mode).await.unwrap();
        match &self.handle {
            Handle::Postgres(sql) => sql.inbox.migrate().await.map(drop),
            Handle::MySql(sql) => sql.inbox.migrate().await.map(drop),
            Handle::Sqlite(sql) => sql.inbox.migrate().await.map(drop),
            Handle::Memory(_) => Ok(()),
        }
        .unwrap();
        self
    }

    /// A new one without any table.
    pub async fn bare(kind: Kind, setup: Setup) -> Self {
        let server = match kind {
            Kind::Postgres => setting(POSTGRES_URL),
            Kind::MySql => setting(MYSQL_URL),
            Kind::MariaDb => setting(MARIADB_URL),
            Kind::Sqlite | Kind::Memory => String::new(),
        };
        Self::at(server, kind, setup).await
    }

    async fn at(server: String, kind: Kind, setup: Setup) -> Self {
        Self::at_place(server, kind, setup, format!("t_{}", Uuid::now_v7().simple())).await
    }

    async fn at_place(server: String, kind: Kind, setup: Setup, place: String) -> Self {
        let (handle, store): (Handle, Arc<dyn Store>) = match kind {
            Kind::Postgres => {
                let pool = postgres_pool(&server, &place).await;
                let outbox = setup.build(Outbox::postgres(pool.clone()));
                let inbox = Inbox::postgres(pool.clone(), "inbox").unwrap();
                let store = Arc::new(outbox.store().clone());
                (Handle::Postgres(Sql { pool, outbox, inbox }), store)
            }
            Kind::MySql | Kind::MariaDb => {
                let pool = mysql_pool(&server, &place).await;
                let outbox = setup.build(Outbox::mysql(pool.clone()));
                let inbox = Inbox::mysql(pool.clone(), "inbox").unwrap();
                let store = Arc::new(outbox.store().clone());
                (Handle::MySql(Sql { pool, outbox, inbox }), store)
            }
            Kind::Sqlite => {
                let pool = sqlite_pool(&place, setup.busy_timeout).await;
                let outbox = setup.build(Outbox::sqlite(pool.clone()));
                let inbox = Inbox::sqlite(pool.clone(), "inbox").unwrap();
                let store = Arc::new(outbox.store().clone());
                (Handle::Sqlite(Sql { pool, outbox, inbox }), store)
            }
            Kind::Memory => {
                let outbox = setup.build(Outbox::memory());
                let store = Arc::new(outbox.store().clone());
                (Handle::Memory(InMemory { outbox, inbox: Inbox::memory() }), store)
            }
        };
        Self { kind, handle, store, place, server }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    pub fn shared_store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// The outbox's table.
    pub fn table(&self) -> String {
        self.store.table().to_string()
    }

    /// The schema, database or file of this test.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A URL at which other programs find the same tables.
    pub fn url(&self) -> String {
        match self.kind {
            Kind::Postgres => format!("{}?options=-csearch_path%3D{}", self.server, self.place),
            Kind::MySql | Kind::MariaDb => {
                let (server, _) = self.server.rsplit_once('/').unwrap();
                format!("{server}/{}", self.place)
            }
            Kind::Sqlite => format!("sqlite://{}", sqlite_file(&self.place).display()),
            Kind::Memory => panic!("no other program sees this memory"),
        }
    }

    /// The same table through connections of their own, as another process would have them.
    pub async fn second_store(&self) -> Arc<dyn Store> {
        match self.kind {
            Kind::Memory => self.shared_store(),
            _ => posthaste::store::connect(&self.url(), &self.table()).await.unwrap(),
        }
    }

    pub async fn begin(&self) -> Tx {
        match &self.handle {
            Handle::Postgres(sql) => Tx::Postgres(sql.pool.begin().await.unwrap()),
            Handle::MySql(sql) => Tx::MySql(sql.pool.begin().await.unwrap()),
            Handle::Sqlite(sql) => Tx::Sqlite(sql.pool.begin_with("BEGIN IMMEDIATE").await.unwrap()),
            Handle::Memory(memory) => Tx::Memory(memory.outbox.begin()),
        }
    }

    /// Executes SQL that is the same on every database.
    pub async fn execute(&self, sql: impl Into<String>) -> sqlx::Result<u64> {
        let sql = AssertSqlSafe(sql.into());
        Ok(match &self.handle {
            Handle::Postgres(db) => db.pool.execute(sql).await?.rows_affected(),
            Handle::MySql(db) => db.pool.execute(sql).await?.rows_affected(),
            Handle::Sqlite(db) => db.pool.execute(sql).await?.rows_affected(),
            Handle::Memory(_) => panic!("memory speaks no SQL"),
        })
    }

    /// Asks for one number.
    pub async fn number(&self, sql: impl Into<String>) -> i64 {
        let sql = AssertSqlSafe(sql.into());
        match &self.handle {
            Handle::Postgres(db) => sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap(),
            Handle::MySql(db) => sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap(),
            Handle::Sqlite(db) => sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap(),
            Handle::Memory(_) => panic!("memory speaks no SQL"),
        }
    }

    /// Asks for texts, one column.
    pub async fn texts(&self, sql: impl Into<String>) -> Vec<String> {
        let sql = AssertSqlSafe(sql.into());
        match &self.handle {
            Handle::Postgres(db) => sqlx::query_scalar(sql).fetch_all(&db.pool).await.unwrap(),
            Handle::MySql(db) => sqlx::query_scalar(sql).fetch_all(&db.pool).await.unwrap(),
            Handle::Sqlite(db) => sqlx::query_scalar(sql).fetch_all(&db.pool).await.unwrap(),
            Handle::Memory(_) => panic!("memory speaks no SQL"),
        }
    }

    /// Lets time pass: every stored time of the outbox moves into the past. No test waits for a lease.
    pub async fn shift(&self, by: Duration) {
        if let Handle::Memory(memory) = &self.handle {
            return memory.outbox.store().advance(by);
        }
        let table = self.table();
        if self.store.stream().await.unwrap().is_none() {
            let columns = ["created_at", "occurred_at", "available_at", "locked_until", "settled_at"];
            return self.shift_columns(&table, &columns, by).await;
        }
        let columns = ["created_at", "occurred_at", "available_at", "settled_at"];
        let columns = if self.kind == Kind::Postgres { &columns[..3] } else { &columns };
        self.shift_columns(&table, columns, by).await;
        self.shift_columns(&format!("{table}_parked"), &["due", "parked_at", "settled_at"], by).await;
        self.shift_columns(&format!("{table}_lanes"), &["leased_until"], by).await;
    }

    async fn shift_columns(&self, table: &str, columns: &[&str], by: Duration) {
        let micros = by.as_micros();
        let minus = |column: &&str| match self.kind {
            Kind::Postgres => format!("{column} = {column} - {micros} * interval '1 microsecond'"),
            Kind::MySql | Kind::MariaDb => format!("{column} = {column} - INTERVAL {micros} MICROSECOND"),
            _ => format!("{column} = {column} - {micros}"),
        };
        let set = columns.iter().map(minus).collect::<Vec<_>>().join(", ");
        self.execute(format!("UPDATE {table} SET {set}")).await.unwrap();
    }

    /// Closes the connections and removes what the test made.
    pub async fn drop_everything(self) {
        match self.handle {
            Handle::Postgres(db) => {
                db.pool.execute(AssertSqlSafe(format!("DROP SCHEMA {} CASCADE", self.place))).await.unwrap();
                db.pool.close().await;
            }
            Handle::MySql(db) => {
                db.pool.execute(AssertSqlSafe(format!("DROP DATABASE {}", self.place))).await.unwrap();
                db.pool.close().await;
            }
            Handle::Sqlite(db) => {
                db.pool.close().await;
                let file = sqlite_file(&self.place);
                for suffix in ["", "-wal", "-shm"] {
                    std::fs::remove_file(format!("{}{suffix}", file.display())).ok();
                }
            }
            Handle::Memory(_) => {}
        }
    }
}

async fn postgres_pool(server: &str, schema: &str) -> PgPool {
    let options: PgConnectOptions = server.parse().unwrap();
    let admin = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS {schema}"))).await.unwrap();
    admin.close().await;
    PgPoolOptions::new()
        .max_connections(20)
        .connect_with(options.options([("search_path", schema)]))
        .await
        .unwrap()
}

async fn mysql_pool(server: &str, database: &str) -> MySqlPool {
    let options: MySqlConnectOptions = server.parse().unwrap();
    let admin = MySqlPoolOptions::new().max_connections(1).connect_with(options.clone()).await.unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {database}"))).await.unwrap();
    admin.close().await;
    MySqlPoolOptions::new().max_connections(20).connect_with(options.database(database)).await.unwrap()
}

async fn sqlite_pool(name: &str, busy_timeout: Option<Duration>) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(sqlite_file(name))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(busy_timeout.unwrap_or(Duration::from_secs(30)));
    SqlitePoolOptions::new().max_connections(20).connect_with(options).await.unwrap()
}

pub fn sqlite_file(name: &str) -> PathBuf {
    target().join("tmp").join(format!("{name}.db"))
}
