//! Migrations in one transaction, under an advisory lock that ends with it.

use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{AssertSqlSafe, Row};

use super::errors::classify;
use super::wake;
use crate::error::Result;
use crate::store::migrate::{
    self, Applied, Beside, Expected, Family, Found, Migration, Role, family_of, known_mode, migrations,
    recorded, refuse_newer, render, render_migration,
};
use crate::store::{Dialect, Difference, MigrationState, Mode, TableName};

/// One lock for all migrations of a database: any number, but this one for ever.
pub(super) const LOCK: i64 = 0x706f_7374_6861_7374;

const APPLIED: &str =
    "SELECT version, name, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const TABLES: &str =
    "SELECT table_name FROM {ledger} WHERE version = 1 AND name IN ('outbox', 'stream') ORDER BY table_name";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', $1, $2)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = $1";
const LANES: &str = "SELECT count(*) FROM {lanes_table}";

/// Applies what is missing.
pub(crate) async fn up(pool: &PgPool, table: &TableName, role: Role) -> Result<Vec<u32>> {
    let mut tx = pool.begin().await.map_err(|e| classify(e, table))?;
    let (family, applied) = lock(&mut tx, table, role).await?;
    failpoint!("migrate.locked");
    let known = migrations(Dialect::Postgres, family);
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|a| a.version != m.version)) {
        run(&mut tx, table, &render_migration(Dialect::Postgres, table, role.mode(), migration.up)).await?;
        failpoint!("migrate.ran");
        sqlx::query(AssertSqlSafe(render(Dialect::Postgres, table, RECORD)))
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
pub(crate) async fn down(pool: &PgPool, table: &TableName, role: Role, target: u32) -> Result<Vec<u32>> {
    let mut tx = pool.begin().await.map_err(|e| classify(e, table))?;
    let (family, applied) = lock(&mut tx, table, role).await?;
    let known = migrations(Dialect::Postgres, family);
    let mut done = Vec::new();
    let above = |m: &&Migration| m.version > target && applied.iter().any(|a| a.version == m.version);
    for migration in known.iter().rev().filter(above) {
        if family != Family::Inbox && migration.version == 1 {
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

/// Of which mode the outbox is, if it has been made.
pub(super) async fn mode(pool: &PgPool, table: &TableName) -> Result<Option<Mode>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = applied(&mut connection, table).await;
    known_mode(table, applied, async || lanes(&mut connection, table).await).await
}

/// Which migrations there are, and when they were applied.
pub(super) async fn states(pool: &PgPool, table: &TableName) -> Result<(Family, Vec<MigrationState>)> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = applied(&mut connection, table).await?;
    let family = recorded(table, Role::Outbox, &applied)?.unwrap_or(Family::Outbox);
    Ok((family, migrate::states(&applied, migrations(Dialect::Postgres, family))))
}

/// The outbox tables beside this one, and itself, that migrations have made.
pub(super) async fn tables(pool: &PgPool, table: &TableName) -> Result<Vec<TableName>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        return Ok(Vec::new());
    }
    let names: Vec<String> = sqlx::query_scalar(AssertSqlSafe(render(Dialect::Postgres, table, TABLES)))
        .fetch_all(&mut *connection)
        .await
        .map_err(|e| classify(e, table))?;
    Ok(names.iter().map(|name| table.sibling(name)).collect())
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &PgPool, table: &TableName) -> Result<Vec<Difference>> {
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
async fn found(connection: &mut PgConnection, table: &TableName) -> Result<Found> {
    let columns = sqlx::query_as(
        "SELECT attname::text, format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' not null' ELSE '' END
                || CASE WHEN attgenerated <> '' THEN ' generated' WHEN atthasdef OR attidentity <> '' THEN ' default' ELSE '' END
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

const STREAM: Expected = Expected {
    columns: &[
        ("xid", "xid8 not null default"),
        ("id", "uuid not null default"),
        ("seq", "bigint not null default"),
        ("created_at", "timestamp with time zone not null default"),
        ("occurred_at", "timestamp with time zone not null default"),
        ("available_at", "timestamp with time zone not null default"),
        ("version", "integer not null default"),
        ("lane", "smallint not null generated"),
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
    ],
    indexes: &[
        ("{name}_pkey", "unique btree (id)"),
        ("{name}_seq", "btree (seq)"),
        ("{name}_xid", "btree (xid, seq)"),
        ("{name}_dedupe", "unique btree (namespace, topic, dedupe_key) WHERE (dedupe_key IS NOT NULL)"),
    ],
    checks: &["{name}_times_check", "{name}_topic_check", "{name}_headers_check", "{name}_payload_check"],
};

const BESIDE: Beside = Beside {
    lanes: Expected {
        columns: &[
            ("lane", "smallint not null"),
            ("fence", "bigint not null default"),
            ("owner", "text"),
            ("present", "boolean not null default"),
            ("leased_until", "timestamp with time zone"),
            ("system_id", "bigint"),
        ],
        indexes: &[("{name}_pkey", "unique btree (lane)")],
        checks: &[],
    },
    places: Some(Expected {
        columns: &[
            ("lane", "smallint not null"),
            ("step", "bigint not null"),
            ("base", "pg_snapshot not null default"),
            ("base_seq", "bigint not null default"),
            ("target", "pg_snapshot"),
            ("after_seq", "bigint not null default"),
            ("noted", "pg_snapshot"),
            ("noted_seq", "bigint"),
            ("anchor_seq", "bigint not null default"),
            ("recover", "pg_snapshot"),
            ("recover_seq", "bigint"),
            ("moved_at", "timestamp with time zone not null default"),
        ],
        indexes: &[("{name}_pkey", "unique btree (lane, step)")],
        checks: &[],
    }),
    relays: Expected {
        columns: &[
            ("relay", "text not null"),
            ("joined_at", "timestamp with time zone not null default"),
            ("seen_at", "timestamp with time zone not null default"),
            ("until", "timestamp with time zone not null"),
        ],
        indexes: &[("{name}_pkey", "unique btree (relay)")],
        checks: &[],
    },
    parked: Expected {
        columns: &[
            ("position", "bigint not null default"),
            ("seq", "bigint not null"),
            ("id", "uuid not null"),
            ("lane", "smallint not null"),
            ("topic", "text not null"),
            ("key", "text not null"),
            ("blocks", "boolean not null"),
            ("suspect", "boolean not null default"),
            ("attempts", "integer not null default"),
            ("due", "timestamp with time zone"),
            ("claimed", "bigint"),
            ("outcome", "text"),
            ("last_error", "text"),
            ("parked_at", "timestamp with time zone not null default"),
            ("settled_at", "timestamp with time zone"),
        ],
        indexes: &[
            ("{name}_pkey", "unique btree (\"position\")"),
            ("{name}_seq", "unique btree (seq)"),
            ("{name}_key", "btree (key, \"position\")"),
            (
                "{name}_due",
                "btree (lane, due, \"position\") WHERE ((due IS NOT NULL) AND (claimed IS NULL) AND (NOT suspect))",
            ),
            (
                "{name}_suspect",
                "btree (lane, attempts, due, \"position\") WHERE ((due IS NOT NULL) AND (claimed IS NULL) AND suspect)",
            ),
            ("{name}_lane", "btree (lane, claimed)"),
            ("{name}_died", "btree (settled_at, \"position\") WHERE (outcome = 'dead'::text)"),
            ("{name}_dead", "btree (id) WHERE (outcome = 'dead'::text)"),
        ],
        checks: &["{name}_attempts_check", "{name}_outcome_check"],
    },
};

async fn lock(
    connection: &mut PgConnection,
    table: &TableName,
    role: Role,
) -> Result<(Family, Vec<Applied>)> {
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
    let family = family_of(table, role, &applied, async || lanes(connection, table).await).await?;
    refuse_newer(table, &applied, migrations(Dialect::Postgres, family))?;
    Ok((family, applied))
}

/// What the ledger says of the table.
async fn applied(connection: &mut PgConnection, table: &TableName) -> Result<Vec<Applied>> {
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        return Ok(Vec::new());
    }
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
    rows.iter().map(read).collect()
}

/// How many lanes there are, if their table is there.
async fn lanes(connection: &mut PgConnection, table: &TableName) -> Result<Option<i64>> {
    if !exists(connection, &table.lanes_table(), table).await? {
        return Ok(None);
    }
    sqlx::query_scalar(AssertSqlSafe(render(Dialect::Postgres, table, LANES)))
        .fetch_one(connection)
        .await
        .map(Some)
        .map_err(|e| classify(e, table))
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
