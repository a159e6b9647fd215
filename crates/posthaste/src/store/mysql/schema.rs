//! Migrations under a named lock. DDL commits by itself here, so that a migration that dies half-way is
//! recorded only when done, and its statements can run again.

use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, Row};
use time::{OffsetDateTime, PrimitiveDateTime};

use super::errors::classify;
use crate::error::{Error, ErrorKind, Result};
use crate::store::migrate::{self, Column, Family, Migration, differences, migrations, refuse_newer, render};
use crate::store::{Dialect, Difference, MigrationState, TableName};

/// Seconds to wait for another's migration.
const PATIENCE: i64 = 600;

const APPLIED: &str = "SELECT version, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ?, ?)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = ?";

/// Applies what is missing.
pub(crate) async fn up(pool: &MySqlPool, table: &TableName, family: Family) -> Result<Vec<u32>> {
    let mut session = Session::lock(pool, table).await?;
    let known = migrations(session.dialect, family);
    let applied = session.begin(known).await?;
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|(version, _)| *version != m.version)) {
        session.run(migration.up).await?;
        sqlx::query(AssertSqlSafe(render(session.dialect, table, RECORD)))
            .bind(migration.version)
            .bind(migration.name)
            .execute(&mut session.connection)
            .await
            .map_err(|e| classify(e, table))?;
        done.push(migration.version);
    }
    session.unlock().await?;
    Ok(done)
}

/// Reverts what is above the target, newest first.
pub(crate) async fn down(
    pool: &MySqlPool,
    table: &TableName,
    family: Family,
    target: u32,
) -> Result<Vec<u32>> {
    let mut session = Session::lock(pool, table).await?;
    let known = migrations(session.dialect, family);
    let applied = session.begin(known).await?;
    let mut done = Vec::new();
    let above =
        |m: &&Migration| m.version > target && applied.iter().any(|(version, _)| *version == m.version);
    for migration in known.iter().rev().filter(above) {
        session.run(migration.down).await?;
        sqlx::query(AssertSqlSafe(render(session.dialect, table, FORGET)))
            .bind(migration.version)
            .execute(&mut session.connection)
            .await
            .map_err(|e| classify(e, table))?;
        done.push(migration.version);
    }
    session.unlock().await?;
    Ok(done)
}

/// Which migrations there are, and when they were applied.
pub(crate) async fn states(
    pool: &MySqlPool,
    table: &TableName,
    family: Family,
) -> Result<Vec<MigrationState>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = if exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        applied(&mut connection, table).await?
    } else {
        Vec::new()
    };
    Ok(migrate::states(&applied, migrations(Dialect::MySql, family)))
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &MySqlPool, table: &TableName) -> Result<Vec<Difference>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, table, table).await? {
        return Ok(vec![Difference::Table]);
    }
    let mut found = migrate::unmatched(&states(pool, table, Family::Outbox).await?);

    let columns = sqlx::query(
        "SELECT CAST(COLUMN_NAME AS CHAR), CAST(CONCAT(LOWER(COLUMN_TYPE), IF(IS_NULLABLE = 'NO', ' not null', '')) AS CHAR)
           FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?",
    )
    .bind(table.schema())
    .bind(table.name())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    let mut columns: Vec<Column> =
        columns.iter().map(|row| Column { name: row.get(0), shape: row.get(1) }).collect();
    // MariaDB shows the display widths that MySQL has dropped.
    columns.iter_mut().for_each(|column| {
        column.shape = column.shape.replace("bigint(20)", "bigint").replace("int(11)", "int")
    });

    let indexes: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT CAST(INDEX_NAME AS CHAR) FROM information_schema.STATISTICS
          WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?",
    )
    .bind(table.schema())
    .bind(table.name())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    let expected: Vec<String> = INDEXES.iter().map(|suffix| format!("{}_{suffix}", table.name())).collect();
    found.append(&mut differences(COLUMNS, &columns, &expected, &indexes));

    let view = table.status_view();
    if !exists(&mut connection, &view, table).await? {
        found.push(Difference::MissingView { view: view.to_string() });
    }
    Ok(found)
}

const COLUMNS: &[(&str, &str)] = &[
    ("seq", "bigint not null"),
    ("id", "binary(16) not null"),
    ("created_at", "datetime(6) not null"),
    ("occurred_at", "datetime(6) not null"),
    ("available_at", "datetime(6) not null"),
    ("locked_until", "datetime(6)"),
    ("settled_at", "datetime(6)"),
    ("attempts", "int not null"),
    ("version", "int not null"),
    ("topic", "varchar(128) not null"),
    ("event_type", "varchar(128)"),
    ("aggregate_type", "varchar(128)"),
    ("aggregate_id", "varchar(255)"),
    ("namespace", "varchar(64) not null"),
    ("tenant_id", "varchar(128)"),
    ("dedupe_key", "varchar(255)"),
    ("content_type", "varchar(128)"),
    ("headers", "longtext"),
    ("payload", "longtext"),
    ("payload_bytes", "longblob"),
    ("locked_by", "varchar(128)"),
    ("outcome", "enum('delivered','dead')"),
    ("last_error", "text"),
];

const INDEXES: &[&str] = &["id", "dedupe", "claim"];

/// A connection that holds the lock. It is its own, so that dropping it at any point ends the lock with it.
struct Session<'a> {
    connection: MySqlConnection,
    table: &'a TableName,
    dialect: Dialect,
}

impl<'a> Session<'a> {
    async fn lock(pool: &MySqlPool, table: &'a TableName) -> Result<Self> {
        let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?.detach();
        let locked: Option<i64> =
            sqlx::query_scalar("SELECT GET_LOCK(CONCAT('posthaste.', MD5(COALESCE(?, DATABASE()))), ?)")
                .bind(table.schema())
                .bind(PATIENCE)
                .fetch_one(&mut connection)
                .await
                .map_err(|e| classify(e, table))?;
        if locked != Some(1) {
            let message = format!(
                "another migration of the database of table {table} has been running for {PATIENCE} s"
            );
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let dialect = dialect(&mut connection).await.map_err(|e| classify(e, table))?;
        Ok(Self { connection, table, dialect })
    }

    async fn begin(&mut self, known: &[Migration]) -> Result<Vec<(u32, OffsetDateTime)>> {
        if !exists(&mut self.connection, &self.table.sibling(migrate::LEDGER), self.table).await? {
            self.run(migrate::ledger_sql(self.dialect)).await?;
        }
        let applied = applied(&mut self.connection, self.table).await?;
        refuse_newer(self.table, &applied, known)?;
        Ok(applied)
    }

    async fn run(&mut self, sql: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(render(self.dialect, self.table, sql)))
            .execute(&mut self.connection)
            .await
            .map_err(|e| classify(e, self.table))?;
        Ok(())
    }

    async fn unlock(self) -> Result<()> {
        self.connection.close().await.map_err(|e| classify(e, self.table))
    }
}

/// MySQL or MariaDB, by what the server says of itself.
pub(super) async fn dialect(connection: &mut MySqlConnection) -> sqlx::Result<Dialect> {
    let version: String = sqlx::query_scalar("SELECT VERSION()").fetch_one(connection).await?;
    Ok(if version.contains("MariaDB") { Dialect::MariaDb } else { Dialect::MySql })
}

async fn applied(connection: &mut MySqlConnection, table: &TableName) -> Result<Vec<(u32, OffsetDateTime)>> {
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::MySql, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &MySqlRow| {
        Ok((row.try_get::<i32, _>(0)?.unsigned_abs(), row.try_get::<PrimitiveDateTime, _>(1)?.assume_utc()))
    };
    rows.iter().map(|row| read(row).map_err(|e| classify(e, table))).collect()
}

async fn exists(connection: &mut MySqlConnection, name: &TableName, table: &TableName) -> Result<bool> {
    sqlx::query_scalar(
        "SELECT COUNT(*) > 0 FROM information_schema.TABLES WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?",
    )
    .bind(name.schema())
    .bind(name.name())
    .fetch_one(connection)
    .await
    .map_err(|e| classify(e, table))
}
