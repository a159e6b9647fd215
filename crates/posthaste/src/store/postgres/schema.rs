//! Migrations in one transaction, under an advisory lock that ends with it.

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Row};
use time::OffsetDateTime;

use super::errors::classify;
use crate::error::Result;
use crate::store::migrate::{self, Column, Family, Migration, differences, migrations, refuse_newer, render};
use crate::store::{Dialect, Difference, MigrationState, TableName};

/// One lock for all migrations of a database: any number, but this one for ever.
const LOCK: i64 = 0x706f_7374_6861_7374;

const APPLIED: &str = "SELECT version, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', $1, $2)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = $1";

/// Applies what is missing.
pub(crate) async fn up(pool: &PgPool, table: &TableName, family: Family) -> Result<Vec<u32>> {
    let known = migrations(Dialect::Postgres, family);
    let mut tx = pool.begin().await.map_err(|e| classify(e, table))?;
    let applied = lock(&mut tx, table, known).await?;
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|(version, _)| *version != m.version)) {
        run(&mut tx, table, migration.up).await?;
        sqlx::query(AssertSqlSafe(render(Dialect::Postgres, table, RECORD)))
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
pub(crate) async fn down(pool: &PgPool, table: &TableName, family: Family, target: u32) -> Result<Vec<u32>> {
    let known = migrations(Dialect::Postgres, family);
    let mut tx = pool.begin().await.map_err(|e| classify(e, table))?;
    let applied = lock(&mut tx, table, known).await?;
    let mut done = Vec::new();
    let above =
        |m: &&Migration| m.version > target && applied.iter().any(|(version, _)| *version == m.version);
    for migration in known.iter().rev().filter(above) {
        run(&mut tx, table, migration.down).await?;
        sqlx::query(AssertSqlSafe(render(Dialect::Postgres, table, FORGET)))
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
pub(crate) async fn states(pool: &PgPool, table: &TableName, family: Family) -> Result<Vec<MigrationState>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = if exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        applied(&mut connection, table).await?
    } else {
        Vec::new()
    };
    Ok(migrate::states(&applied, migrations(Dialect::Postgres, family)))
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &PgPool, table: &TableName) -> Result<Vec<Difference>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, table, table).await? {
        return Ok(vec![Difference::Table]);
    }
    let mut found = migrate::unmatched(&states(pool, table, Family::Outbox).await?);

    let columns = sqlx::query(
        "SELECT attname::text, format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END
           FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
    )
    .bind(table.quoted('"'))
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    let columns: Vec<Column> =
        columns.iter().map(|row| Column { name: row.get(0), shape: row.get(1) }).collect();

    let indexes: Vec<String> = sqlx::query_scalar(
        "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
          WHERE i.indrelid = to_regclass($1) AND i.indisvalid",
    )
    .bind(table.quoted('"'))
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
    ("id", "uuid not null"),
    ("seq", "bigint not null"),
    ("created_at", "timestamp with time zone not null"),
    ("occurred_at", "timestamp with time zone not null"),
    ("available_at", "timestamp with time zone not null"),
    ("locked_until", "timestamp with time zone"),
    ("settled_at", "timestamp with time zone"),
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
    ("headers", "json"),
    ("payload", "json"),
    ("payload_bytes", "bytea"),
    ("locked_by", "text"),
    ("outcome", "text"),
    ("last_error", "text"),
];

const INDEXES: &[&str] = &["pkey", "claim", "dedupe", "dead", "created"];

async fn lock(
    connection: &mut PgConnection,
    table: &TableName,
    known: &[Migration],
) -> Result<Vec<(u32, OffsetDateTime)>> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await
        .map_err(|e| classify(e, table))?;
    // Asking first spares roles that may not create tables, and a notice in the log.
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        run(connection, table, migrate::ledger_sql(Dialect::Postgres)).await?;
    }
    let applied = applied(connection, table).await?;
    refuse_newer(table, &applied, known)?;
    Ok(applied)
}

async fn applied(connection: &mut PgConnection, table: &TableName) -> Result<Vec<(u32, OffsetDateTime)>> {
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::Postgres, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &sqlx::postgres::PgRow| Ok((row.try_get::<i32, _>(0)?.unsigned_abs(), row.try_get(1)?));
    rows.iter().map(|row| read(row).map_err(|e| classify(e, table))).collect()
}

async fn exists(connection: &mut PgConnection, name: &TableName, table: &TableName) -> Result<bool> {
    sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(name.quoted('"'))
        .fetch_one(connection)
        .await
        .map_err(|e| classify(e, table))
}

async fn run(connection: &mut PgConnection, table: &TableName, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(render(Dialect::Postgres, table, sql)))
        .execute(connection)
        .await
        .map_err(|e| classify(e, table))?;
    Ok(())
}
