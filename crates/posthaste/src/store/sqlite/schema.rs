//! Migrations in one immediate transaction, which is SQLite's lock on the whole file.

use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row};

use super::errors::classify;
use super::time_of;
use crate::error::Result;
use crate::store::migrate::{
    self, Applied, Expected, Family, Found, Migration, migrations, refuse_newer, refuse_other, render,
};
use crate::store::{Dialect, Difference, MigrationState, TableName};

const APPLIED: &str =
    "SELECT version, name, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ?1, ?2)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = ?1";

/// Applies what is missing.
pub(crate) async fn up(pool: &SqlitePool, table: &TableName, family: Family) -> Result<Vec<u32>> {
    let known = migrations(Dialect::Sqlite, family);
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| classify(e, table))?;
    let applied = lock(&mut tx, table, known).await?;
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|a| a.version != m.version)) {
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
    let above = |m: &&Migration| m.version > target && applied.iter().any(|a| a.version == m.version);
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
    let known = migrations(Dialect::Sqlite, family);
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = if exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        applied(&mut connection, table, known).await?
    } else {
        Vec::new()
    };
    Ok(migrate::states(&applied, known))
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &SqlitePool, table: &TableName) -> Result<Vec<Difference>> {
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
async fn found(connection: &mut SqliteConnection, table: &TableName) -> Result<Found> {
    let columns = sqlx::query_as(
        "SELECT name, lower(type) || CASE WHEN \"notnull\" OR pk THEN ' not null' ELSE '' END
                || CASE WHEN dflt_value IS NOT NULL OR pk THEN ' default' ELSE '' END
           FROM pragma_table_info(?1)",
    )
    .bind(table.name().to_owned())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;

    let indexes = sqlx::query_as(
        "SELECT l.name, CASE WHEN l.\"unique\" THEN 'unique ' ELSE '' END || '('
                || (SELECT group_concat(coalesce(name, 'expression'), ', ') FROM pragma_index_info(l.name)) || ')',
                coalesce(s.sql, '')
           FROM pragma_index_list(?1) l LEFT JOIN sqlite_schema s ON s.type = 'index' AND s.name = l.name",
    )
    .bind(table.name().to_owned())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    let with_predicate = |(name, shape, sql): (String, String, String)| (name, shape + &predicate(&sql));
    let indexes = indexes.into_iter().map(with_predicate).collect();

    let sql: String = sqlx::query_scalar(
        "SELECT coalesce(max(sql), '') FROM sqlite_schema WHERE type = 'table' AND name = ?1",
    )
    .bind(table.name().to_owned())
    .fetch_one(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    // The checks are nowhere but in the table's text: any of its words may be the name of one.
    let checks = sql.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned).collect();

    Ok(Found { columns, indexes, checks })
}

/// An index's predicate, written one way.
fn predicate(sql: &str) -> String {
    let sql = sql.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    sql.split_once(" where ").map_or_else(String::new, |(_, predicate)| format!(" where {predicate}"))
}

const OUTBOX: Expected = Expected {
    columns: &[
        ("seq", "integer not null default"),
        ("id", "text not null default"),
        ("created_at", "integer not null default"),
        ("occurred_at", "integer not null default"),
        ("available_at", "integer not null default"),
        ("locked_until", "integer"),
        ("settled_at", "integer"),
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
        ("headers", "text"),
        ("payload", "text"),
        ("payload_bytes", "blob"),
        ("locked_by", "text"),
        ("outcome", "text"),
        ("last_error", "text"),
    ],
    // The unique id has an index without a name of its own.
    indexes: &[
        ("sqlite_autoindex_{name}_1", "unique (id)"),
        ("{name}_claim", "(available_at, seq) where outcome is null"),
        ("{name}_dedupe", "unique (namespace, topic, dedupe_key) where dedupe_key is not null"),
        ("{name}_dead", "(id) where outcome = 'dead'"),
        ("{name}_delivered", "(settled_at) where outcome = 'delivered'"),
    ],
    checks: &[
        "{name}_id_check",
        "{name}_times_check",
        "{name}_topic_check",
        "{name}_headers_check",
        "{name}_json_check",
        "{name}_payload_check",
        "{name}_attempts_check",
        "{name}_outcome_check",
    ],
};

async fn lock(
    connection: &mut SqliteConnection,
    table: &TableName,
    known: &[Migration],
) -> Result<Vec<Applied>> {
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        run(connection, table, migrate::ledger_sql(Dialect::Sqlite)).await?;
    }
    let applied = applied(connection, table, known).await?;
    refuse_newer(table, &applied, known)?;
    Ok(applied)
}

async fn applied(
    connection: &mut SqliteConnection,
    table: &TableName,
    known: &[Migration],
) -> Result<Vec<Applied>> {
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::Sqlite, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &SqliteRow| {
        Ok(Applied { version: row.try_get(0)?, name: row.try_get(1)?, at: time_of(row.try_get(2)?)? })
    };
    let read = |row| read(row).map_err(|e| classify(e, table));
    let applied = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
    refuse_other(table, &applied, known)?;
    Ok(applied)
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
