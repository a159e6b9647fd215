//! Migrations in one immediate transaction, which is SQLite's lock on the whole file.

use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row};

use super::errors::classify;
use super::time_of;
use crate::error::Result;
use crate::store::migrate::{
    self, Applied, Beside, Expected, Family, Found, Migration, Role, family_of, known_mode, migrations,
    recorded, refuse_newer, render, render_migration,
};
use crate::store::{Dialect, Difference, MigrationState, Mode, TableName};

const APPLIED: &str =
    "SELECT version, name, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const TABLES: &str =
    "SELECT table_name FROM {ledger} WHERE version = 1 AND name IN ('outbox', 'stream') ORDER BY table_name";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ?1, ?2)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = ?1";
const LANES: &str = "SELECT count(*) FROM {lanes_table}";

/// Applies what is missing.
pub(crate) async fn up(pool: &SqlitePool, table: &TableName, role: Role) -> Result<Vec<u32>> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| classify(e, table))?;
    let (family, applied) = lock(&mut tx, table, role).await?;
    failpoint!("migrate.locked");
    let known = migrations(Dialect::Sqlite, family);
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|a| a.version != m.version)) {
        run(&mut tx, table, &render_migration(Dialect::Sqlite, table, role.mode(), migration.up)).await?;
        failpoint!("migrate.ran");
        sqlx::query(AssertSqlSafe(render(Dialect::Sqlite, table, RECORD)))
            .bind(migration.version as i32)
            .bind(migration.name)
            .execute(&mut *tx)
            .await
            .map_err(|e| classify(e, table))?;
        done.push(migration.version);
    }
    failpoint!("migrate.recorded");
    tx.commit().await.map_err(|e| classify(e, table))?;
    failpoint!("migrate.ended");
    Ok(done)
}

/// Reverts what is above the target, newest first.
pub(crate) async fn down(pool: &SqlitePool, table: &TableName, role: Role, target: u32) -> Result<Vec<u32>> {
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| classify(e, table))?;
    let (family, applied) = lock(&mut tx, table, role).await?;
    let known = migrations(Dialect::Sqlite, family);
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

/// Of which mode the outbox is, if it has been made.
pub(super) async fn mode(pool: &SqlitePool, table: &TableName) -> Result<Option<Mode>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = applied(&mut connection, table).await;
    known_mode(table, applied, async || lanes(&mut connection, table).await).await
}

/// Which migrations there are, and when they were applied.
pub(super) async fn states(pool: &SqlitePool, table: &TableName) -> Result<(Family, Vec<MigrationState>)> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = applied(&mut connection, table).await?;
    let family = recorded(table, Role::Outbox, &applied)?.unwrap_or(Family::Outbox);
    Ok((family, migrate::states(&applied, migrations(Dialect::Sqlite, family))))
}

/// The outbox tables beside this one, and itself, that migrations have made.
pub(super) async fn tables(pool: &SqlitePool, table: &TableName) -> Result<Vec<TableName>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        return Ok(Vec::new());
    }
    let names: Vec<String> = sqlx::query_scalar(AssertSqlSafe(render(Dialect::Sqlite, table, TABLES)))
        .fetch_all(&mut *connection)
        .await
        .map_err(|e| classify(e, table))?;
    Ok(names.iter().map(|name| table.sibling(name)).collect())
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &SqlitePool, table: &TableName) -> Result<Vec<Difference>> {
    let (family, states) = states(pool, table).await?;
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, table, table).await? {
        return Ok(vec![Difference::Table]);
    }
    let mut differences = migrate::unmatched(&states);
    let expected = if family == Family::Stream { &STREAM } else { &OUTBOX };
    differences.append(&mut migrate::differences(table, expected, &found(&mut connection, table).await?));
    let beside = if family == Family::Stream { BESIDE.of(table) } else { Vec::new() };
    for (beside, expected) in beside {
        let there = exists(&mut connection, &beside, table).await?;
        let found = if there { Some(found(&mut connection, &beside).await?) } else { None };
        differences.append(&mut migrate::differences_beside(&beside, expected, found.as_ref()));
    }
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
                || CASE WHEN hidden IN (2, 3) THEN ' generated' WHEN dflt_value IS NOT NULL OR pk THEN ' default' ELSE '' END
           FROM pragma_table_xinfo(?1)",
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

const STREAM: Expected = Expected {
    columns: &[
        ("seq", "integer not null default"),
        ("id", "text not null default"),
        ("created_at", "integer not null default"),
        ("occurred_at", "integer not null default"),
        ("available_at", "integer not null default"),
        ("settled_at", "integer"),
        ("version", "integer not null default"),
        ("lane", "integer not null generated"),
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
        ("outcome", "text"),
    ],
    indexes: &[
        ("sqlite_autoindex_{name}_1", "unique (id)"),
        ("{name}_unsettled", "(seq) where outcome is null"),
        ("{name}_dedupe", "unique (namespace, topic, dedupe_key) where dedupe_key is not null"),
        ("{name}_delivered", "(settled_at) where outcome = 'delivered'"),
    ],
    checks: &[
        "{name}_id_check",
        "{name}_times_check",
        "{name}_topic_check",
        "{name}_headers_check",
        "{name}_json_check",
        "{name}_payload_check",
        "{name}_outcome_check",
    ],
};

const BESIDE: Beside = Beside {
    // Its key is the table's own, without an index.
    lanes: Expected {
        columns: &[
            ("lane", "integer not null default"),
            ("fence", "integer not null default"),
            ("owner", "text"),
            ("present", "integer not null default"),
            ("leased_until", "integer"),
            ("noted_seq", "integer"),
        ],
        indexes: &[],
        checks: &[],
    },
    places: None,
    relays: Expected {
        columns: &[
            ("relay", "text not null default"),
            ("joined_at", "integer not null default"),
            ("seen_at", "integer not null default"),
            ("until", "integer not null"),
        ],
        indexes: &[("sqlite_autoindex_{name}_1", "unique (relay)")],
        checks: &[],
    },
    parked: Expected {
        columns: &[
            ("position", "integer not null default"),
            ("seq", "integer not null"),
            ("id", "text not null"),
            ("lane", "integer not null"),
            ("topic", "text not null"),
            ("key", "text not null"),
            ("blocks", "integer not null"),
            ("suspect", "integer not null default"),
            ("attempts", "integer not null default"),
            ("due", "integer"),
            ("claimed", "integer"),
            ("outcome", "text"),
            ("last_error", "text"),
            ("parked_at", "integer not null default"),
            ("settled_at", "integer"),
        ],
        indexes: &[
            ("sqlite_autoindex_{name}_1", "unique (seq)"),
            ("{name}_key", "(key, position)"),
            ("{name}_due", "(suspect, due, position) where due is not null and claimed is null"),
            ("{name}_dead", "(id) where outcome = 'dead'"),
        ],
        checks: &["{name}_attempts_check", "{name}_outcome_check"],
    },
};

async fn lock(
    connection: &mut SqliteConnection,
    table: &TableName,
    role: Role,
) -> Result<(Family, Vec<Applied>)> {
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        run(connection, table, migrate::ledger_sql(Dialect::Sqlite)).await?;
    }
    let applied = applied(connection, table).await?;
    let family = family_of(table, role, &applied, async || lanes(connection, table).await).await?;
    refuse_newer(table, &applied, migrations(Dialect::Sqlite, family))?;
    Ok((family, applied))
}

/// What the ledger says of the table.
async fn applied(connection: &mut SqliteConnection, table: &TableName) -> Result<Vec<Applied>> {
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::Sqlite, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &SqliteRow| {
        Ok(Applied { version: row.try_get(0)?, name: row.try_get(1)?, at: time_of(row.try_get(2)?)? })
    };
    let read = |row| read(row).map_err(|e| classify(e, table));
    rows.iter().map(read).collect()
}

/// How many lanes there are, if their table is there.
async fn lanes(connection: &mut SqliteConnection, table: &TableName) -> Result<Option<i64>> {
    if !exists(connection, &table.lanes_table(), table).await? {
        return Ok(None);
    }
    sqlx::query_scalar(AssertSqlSafe(render(Dialect::Sqlite, table, LANES)))
        .fetch_one(connection)
        .await
        .map(Some)
        .map_err(|e| classify(e, table))
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
