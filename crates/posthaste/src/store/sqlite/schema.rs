//! Migrations in one immediate transaction, which is SQLite's lock on the whole file.

use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row};
use time::OffsetDateTime;

use super::errors::classify;
use super::time_of;
use crate::error::Result;
use crate::store::migrate::{self, Column, Family, Migration, differences, migrations, refuse_newer, render};
use crate::store::{Dialect, Difference, MigrationState, TableName};

const APPLIED: &str = "SELECT version, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ?1, ?2)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = ?1";

/// Applies what is missing.
pub(crate) async fn up(pool: &SqlitePool, table: &TableName, family: Family) -> Result<Vec<u32>> {
    let known = migrations(Dialect::Sqlite, family);
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| classify(e, table))?;
    let applied = lock(&mut tx, table, known).await?;
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|(version, _)| *version != m.version)) {
        run(&mut tx, table, migration.up).await?;
        sqlx::query(AssertSqlSafe(render(Dialect::Sqlite, table, RECORD)))
            .bind(migration.version as i32)
            .bind(migration.name)
            .execute(&mut *tx)
            .await
            .map_err(|e| classify(e, table))?;
        done.push(migration.version);
    }
    tx.commit().await.map_err(|e| classify(e, table))?;
    Ok(done)
}

/// Reverts what is above the target, newest first.
pub(crate) async fn down(
    pool: &SqlitePool,
    table: &TableName,
    family: Family,
    target: u32,
) -> Result<Vec<u32>> {
    let known = migrations(Dialect::Sqlite, family);
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| classify(e, table))?;
    let applied = lock(&mut tx, table, known).await?;
    let mut done = Vec::new();
    let above =
        |m: &&Migration| m.version > target && applied.iter().any(|(version, _)| *version == m.version);
    for migration in known.iter().rev().filter(above) {
        run(&mut tx, table, migration.down).await?;
        sqlx::query(AssertSqlSafe(render(Dialect::Sqlite, table, FORGET)))
            .bind(migration.version as i32)
            .execute(&mut *tx)
            .await
            .map_err(|e| classify(e, table))?;
        done.push(migration.version);
    }
    tx.commit().await.map_err(|e| classify(e, table))?;
    Ok(done)
}

/// Which migrations there are, and when they were applied.
pub(crate) async fn states(
    pool: &SqlitePool,
    table: &TableName,
    family: Family,
) -> Result<Vec<MigrationState>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = if exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        applied(&mut connection, table).await?
    } else {
        Vec::new()
    };
    Ok(migrate::states(&applied, migrations(Dialect::Sqlite, family)))
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &SqlitePool, table: &TableName) -> Result<Vec<Difference>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, table, table).await? {
        return Ok(vec![Difference::Table]);
    }
    let mut found = migrate::unmatched(&states(pool, table, Family::Outbox).await?);

    let columns = sqlx::query(
        "SELECT name, lower(type) || CASE WHEN \"notnull\" OR pk THEN ' not null' ELSE '' END FROM pragma_table_info(?1)",
    )
    .bind(table.name().to_owned())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    let columns: Vec<Column> =
        columns.iter().map(|row| Column { name: row.get(0), shape: row.get(1) }).collect();

    let indexes: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_index_list(?1)")
        .bind(table.name().to_owned())
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
    ("seq", "integer not null"),
    ("id", "text not null"),
    ("created_at", "integer not null"),
    ("occurred_at", "integer not null"),
    ("available_at", "integer not null"),
    ("locked_until", "integer"),
    ("settled_at", "integer"),
    ("attempts", "integer not null"),
    ("version", "integer not null"),
    ("topic", "text not null"),
    ("event_type", "text"),
    ("aggregate_type", "text"),
    ("aggregate_id", "text"),
    ("namespace", "text not null"),
    ("tenant_id", "text"),
    ("dedupe_key", "text"),
    ("content_type", "text"),
    ("headers", "text"),
    ("payload", "text"),
    ("payload_bytes", "blob"),
    ("locked_by", "text"),
    ("outcome", "text"),
    ("last_error", "text"),
];

/// The unique id has an index without a name of its own.
const INDEXES: &[&str] = &["claim", "dedupe", "dead", "delivered"];

async fn lock(
    connection: &mut SqliteConnection,
    table: &TableName,
    known: &[Migration],
) -> Result<Vec<(u32, OffsetDateTime)>> {
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        run(connection, table, migrate::ledger_sql(Dialect::Sqlite)).await?;
    }
    let applied = applied(connection, table).await?;
    refuse_newer(table, &applied, known)?;
    Ok(applied)
}

async fn applied(connection: &mut SqliteConnection, table: &TableName) -> Result<Vec<(u32, OffsetDateTime)>> {
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::Sqlite, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &SqliteRow| Ok((row.try_get::<u32, _>(0)?, time_of(row.try_get(1)?)?));
    rows.iter().map(|row| read(row).map_err(|e| classify(e, table))).collect()
}

async fn exists(connection: &mut SqliteConnection, name: &TableName, table: &TableName) -> Result<bool> {
    sqlx::query_scalar("SELECT count(*) > 0 FROM sqlite_schema WHERE name = ?1")
        .bind(name.name().to_owned())
        .fetch_one(connection)
        .await
        .map_err(|e| classify(e, table))
}

async fn run(connection: &mut SqliteConnection, table: &TableName, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(render(Dialect::Sqlite, table, sql)))
        .execute(connection)
        .await
        .map_err(|e| classify(e, table))?;
    Ok(())
}
