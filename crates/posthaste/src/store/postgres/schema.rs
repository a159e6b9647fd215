//! Migrations in one transaction, under an advisory lock that ends with it.

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Row};

use super::errors::classify;
use super::wake;
use crate::error::Result;
use crate::store::migrate::{
    self, Applied, Expected, Family, Found, Migration, migrations, refuse_newer, refuse_other, render,
};
use crate::store::{Dialect, Difference, MigrationState, TableName};

/// One lock for all migrations of a database: any number, but this one for ever.
pub(super) const LOCK: i64 = 0x706f_7374_6861_7374;

const APPLIED: &str =
    "SELECT version, name, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', $1, $2)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = $1";

/// Applies what is missing.
pub(crate) async fn up(pool: &PgPool, table: &TableName, family: Family) -> Result<Vec<u32>> {
    let known = migrations(Dialect::Postgres, family);
    let mut tx = pool.begin().await.map_err(|e| classify(e, table))?;
    let applied = lock(&mut tx, table, known).await?;
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|a| a.version != m.version)) {
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
    let above = |m: &&Migration| m.version > target && applied.iter().any(|a| a.version == m.version);
    for migration in known.iter().rev().filter(above) {
        if family == Family::Outbox && migration.version == 1 {
            // The table takes its triggers along, but not their functions.
            run(&mut tx, table, wake::NO_TRIGGER).await?;
        }
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
    let known = migrations(Dialect::Postgres, family);
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = if exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        applied(&mut connection, table, known).await?
    } else {
        Vec::new()
    };
    Ok(migrate::states(&applied, known))
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &PgPool, table: &TableName) -> Result<Vec<Difference>> {
    let states = states(pool, table, Family::Outbox).await?;
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, table, table).await? {
        return Ok(vec![Difference::Table]);
    }
    let mut differences = migrate::unmatched(&states);
    differences.append(&mut migrate::differences(table, &OUTBOX, &found(&mut connection, table).await?));
    let view = table.status_view();
    if !exists(&mut connection, &view, table).await? {
        differences.push(Difference::MissingView { view: view.to_string() });
    }
    Ok(differences)
}

/// What the live table has.
async fn found(connection: &mut PgConnection, table: &TableName) -> Result<Found> {
    let columns = sqlx::query_as(
        "SELECT attname::text, format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END
                || CASE WHEN atthasdef OR attidentity <> '' THEN ' default' ELSE '' END
           FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
    )
    .bind(table.quoted('"'))
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;

    // Without what a storage parameter says: it changes no answer.
    let indexes = sqlx::query_as(
        r"SELECT c.relname::text, CASE WHEN i.indisvalid THEN '' ELSE 'invalid ' END
                 || CASE WHEN i.indisunique THEN 'unique ' ELSE '' END
                 || regexp_replace(regexp_replace(pg_get_indexdef(i.indexrelid), '^.*? USING ', ''), ' WITH \([^)]*\)', '')
            FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = to_regclass($1)",
    )
    .bind(table.quoted('"'))
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;

    let checks = sqlx::query_scalar(
        "SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass($1) AND contype = 'c'",
    )
    .bind(table.quoted('"'))
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;

    Ok(Found { columns, indexes, checks })
}

const OUTBOX: Expected = Expected {
    columns: &[
        ("id", "uuid not null default"),
        ("seq", "bigint not null default"),
        ("created_at", "timestamp with time zone not null default"),
        ("occurred_at", "timestamp with time zone not null default"),
        ("available_at", "timestamp with time zone not null default"),
        ("locked_until", "timestamp with time zone"),
        ("settled_at", "timestamp with time zone"),
        ("attempts", "integer not null default"),
        ("version", "integer not null default"),
        ("topic", "text not null"),
        ("event_type", "text"),
        ("aggregate_type", "text"),
        ("aggregate_id", "text"),
        ("namespace", "text not null default"),
        ("tenant_id", "text"),
        ("dedupe_key", "text"),
        ("content_type", "text"),
        ("headers", "json"),
        ("payload", "json"),
        ("payload_bytes", "bytea"),
        ("locked_by", "text"),
        ("outcome", "text"),
        ("last_error", "text"),
    ],
    indexes: &[
        ("{name}_pkey", "unique btree (id)"),
        ("{name}_claim", "btree (available_at, seq) WHERE (outcome IS NULL)"),
        ("{name}_dedupe", "unique btree (namespace, topic, dedupe_key) WHERE (dedupe_key IS NOT NULL)"),
        ("{name}_dead", "btree (id) WHERE (outcome = 'dead'::text)"),
        ("{name}_delivered", "btree (settled_at) WHERE (outcome = 'delivered'::text)"),
        ("{name}_created", "brin (created_at)"),
    ],
    checks: &[
        "{name}_times_check",
        "{name}_topic_check",
        "{name}_headers_check",
        "{name}_payload_check",
        "{name}_attempts_check",
        "{name}_outcome_check",
    ],
};

async fn lock(connection: &mut PgConnection, table: &TableName, known: &[Migration]) -> Result<Vec<Applied>> {
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *connection)
        .await
        .map_err(|e| classify(e, table))?;
    // Asking first spares roles that may not create tables, and a notice in the log.
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        run(connection, table, migrate::ledger_sql(Dialect::Postgres)).await?;
    }
    let applied = applied(connection, table, known).await?;
    refuse_newer(table, &applied, known)?;
    Ok(applied)
}

async fn applied(
    connection: &mut PgConnection,
    table: &TableName,
    known: &[Migration],
) -> Result<Vec<Applied>> {
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::Postgres, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &sqlx::postgres::PgRow| {
        Ok(Applied {
            version: row.try_get::<i32, _>(0)?.unsigned_abs(),
            name: row.try_get(1)?,
            at: row.try_get(2)?,
        })
    };
    let read = |row| read(row).map_err(|e| classify(e, table));
    let applied = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
    refuse_other(table, &applied, known)?;
    Ok(applied)
}

async fn exists(connection: &mut PgConnection, name: &TableName, table: &TableName) -> Result<bool> {
    sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(name.quoted('"'))
        .fetch_one(connection)
        .await
        .map_err(|e| classify(e, table))
}

pub(super) async fn run(connection: &mut PgConnection, table: &TableName, sql: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(render(Dialect::Postgres, table, sql)))
        .execute(connection)
        .await
        .map_err(|e| classify(e, table))?;
    Ok(())
}
