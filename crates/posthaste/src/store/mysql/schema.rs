//! Migrations under a named lock. DDL commits by itself here, so that a migration that dies half-way is
//! recorded only when done, and its statements can run again.

use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, Row};
use time::PrimitiveDateTime;

use super::errors::classify;
use crate::error::{Error, ErrorKind, Result};
use crate::store::migrate::{
    self, Applied, Beside, Expected, Family, Found, Migration, Role, family_of, known_mode, migrations,
    recorded, refuse_newer, render, render_migration, stream_of,
};
use crate::store::{Dialect, Difference, Lanes, MigrationState, Mode, TableName};

/// Seconds to wait for another's migration.
const PATIENCE: i64 = 600;

const APPLIED: &str =
    "SELECT version, name, applied_at FROM {ledger} WHERE table_name = '{name}' ORDER BY version";
const TABLES: &str =
    "SELECT table_name FROM {ledger} WHERE version = 1 AND name IN ('outbox', 'stream') ORDER BY table_name";
const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ?, ?)";
const FORGET: &str = "DELETE FROM {ledger} WHERE table_name = '{name}' AND version = ?";
const LANES: &str = "SELECT count(*) FROM {lanes_table}";

/// Applies what is missing.
pub(crate) async fn up(pool: &MySqlPool, table: &TableName, role: Role) -> Result<Vec<u32>> {
    let mut session = Session::lock(pool, table).await?;
    let (family, applied) = session.begin(role).await?;
    let known = migrations(session.dialect, family);
    if applied.is_empty() && family != Family::Inbox {
        session.refuse_begun(role).await?;
    }
    failpoint!("migrate.locked");
    let mut done = Vec::new();
    for migration in known.iter().filter(|m| applied.iter().all(|a| a.version != m.version)) {
        session.run(&render_migration(session.dialect, table, role.mode(), migration.up)).await?;
        failpoint!("migrate.ran");
        sqlx::query(AssertSqlSafe(render(session.dialect, table, RECORD)))
            .bind(migration.version)
            .bind(migration.name)
            .execute(&mut session.connection)
            .await
            .map_err(|e| classify(e, table))?;
        done.push(migration.version);
    }
    failpoint!("migrate.recorded");
    session.unlock().await?;
    failpoint!("migrate.ended");
    Ok(done)
}

/// Reverts what is above the target, newest first.
pub(crate) async fn down(pool: &MySqlPool, table: &TableName, role: Role, target: u32) -> Result<Vec<u32>> {
    let mut session = Session::lock(pool, table).await?;
    let (family, applied) = session.begin(role).await?;
    let known = migrations(session.dialect, family);
    let mut done = Vec::new();
    let above = |m: &&Migration| m.version > target && applied.iter().any(|a| a.version == m.version);
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

/// Of which mode the outbox is, if it has been made.
pub(super) async fn mode(pool: &MySqlPool, table: &TableName) -> Result<Option<Mode>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = applied(&mut connection, table).await;
    known_mode(table, applied, async || lanes(&mut connection, table).await).await
}

/// Which migrations there are, and when they were applied.
pub(super) async fn states(pool: &MySqlPool, table: &TableName) -> Result<(Family, Vec<MigrationState>)> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    let applied = applied(&mut connection, table).await?;
    let family = recorded(table, Role::Outbox, &applied)?.unwrap_or(Family::Outbox);
    Ok((family, migrate::states(&applied, migrations(Dialect::MySql, family))))
}

/// The outbox tables beside this one, and itself, that migrations have made.
pub(super) async fn tables(pool: &MySqlPool, table: &TableName) -> Result<Vec<TableName>> {
    let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?;
    if !exists(&mut connection, &table.sibling(migrate::LEDGER), table).await? {
        return Ok(Vec::new());
    }
    let names: Vec<String> = sqlx::query_scalar(AssertSqlSafe(render(Dialect::MySql, table, TABLES)))
        .fetch_all(&mut *connection)
        .await
        .map_err(|e| classify(e, table))?;
    Ok(names.iter().map(|name| table.sibling(name)).collect())
}

/// How the live outbox table differs from what its migrations make.
pub(super) async fn validate(pool: &MySqlPool, table: &TableName) -> Result<Vec<Difference>> {
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
async fn found(connection: &mut MySqlConnection, table: &TableName) -> Result<Found> {
    let mut columns: Vec<(String, String)> = sqlx::query_as(
        "SELECT CAST(COLUMN_NAME AS CHAR), CAST(CONCAT(LOWER(COLUMN_TYPE), IF(IS_NULLABLE = 'NO', ' not null', ''),
                IF(IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NOT NULL OR EXTRA LIKE '%auto_increment%', ' default', ''),
                IF(COALESCE(GENERATION_EXPRESSION, '') <> '', ' generated', '')) AS CHAR)
           FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ?",
    )
    .bind(table.schema())
    .bind(table.name())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;
    // MariaDB shows the display widths that MySQL has dropped.
    for (_, shape) in &mut columns {
        *shape = shape
            .replace("bigint(20)", "bigint")
            .replace("smallint(6)", "smallint")
            .replace("int(11)", "int");
    }

    let indexes = sqlx::query_as(
        "SELECT CAST(INDEX_NAME AS CHAR), CAST(CONCAT(IF(MAX(NON_UNIQUE) = 0, 'unique ', ''), '(', GROUP_CONCAT(
                COALESCE(COLUMN_NAME, 'expression'), IF(SUB_PART IS NULL, '', CONCAT('(', SUB_PART, ')'))
                ORDER BY SEQ_IN_INDEX SEPARATOR ', '), ')') AS CHAR)
           FROM information_schema.STATISTICS
          WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ? GROUP BY INDEX_NAME",
    )
    .bind(table.schema())
    .bind(table.name())
    .fetch_all(&mut *connection)
    .await
    .map_err(|e| classify(e, table))?;

    let checks = if columns.is_empty() { Vec::new() } else { checks(connection, table).await? };
    Ok(Found { columns, indexes, checks })
}

/// The names of the checks of a table that is there. The information schema shows them only to some of those who may read the
/// table, and whom depends on the version; the statement that makes the table is shown to all.
async fn checks(connection: &mut MySqlConnection, table: &TableName) -> Result<Vec<String>> {
    let show = AssertSqlSafe(format!("SHOW CREATE TABLE {}", table.quoted('`')));
    let shown = sqlx::raw_sql(show).fetch_one(connection).await.map_err(|e| classify(e, table))?;
    let statement: String = shown.try_get_unchecked(1).map_err(|e| classify(e, table))?;
    Ok(checks_in(&statement))
}

/// The names of the checks in a statement that makes a table, a line each.
fn checks_in(statement: &str) -> Vec<String> {
    let name = |line: &str| {
        let (name, rest) = line.trim_start().strip_prefix("CONSTRAINT `")?.split_once('`')?;
        rest.trim_start().starts_with("CHECK").then(|| name.to_owned())
    };
    statement.lines().filter_map(name).collect()
}

const OUTBOX: Expected = Expected {
    columns: &[
        ("seq", "bigint not null default"),
        ("id", "binary(16) not null default"),
        ("created_at", "datetime(6) not null default"),
        ("occurred_at", "datetime(6) not null default"),
        ("available_at", "datetime(6) not null default"),
        ("locked_until", "datetime(6)"),
        ("settled_at", "datetime(6)"),
        ("attempts", "int not null default"),
        ("version", "int not null default"),
        ("topic", "varchar(128) not null"),
        ("event_type", "varchar(128)"),
        ("aggregate_type", "varchar(128)"),
        ("aggregate_id", "varchar(255)"),
        ("namespace", "varchar(64) not null default"),
        ("tenant_id", "varchar(128)"),
        ("dedupe_key", "varchar(255)"),
        ("content_type", "varchar(128)"),
        ("headers", "longtext"),
        ("payload", "longtext"),
        ("payload_bytes", "longblob"),
        ("locked_by", "varchar(128)"),
        ("outcome", "enum('delivered','dead')"),
        ("last_error", "text"),
    ],
    indexes: &[
        ("PRIMARY", "unique (seq)"),
        ("{name}_id", "unique (id)"),
        ("{name}_dedupe", "unique (dedupe_key, namespace, topic)"),
        ("{name}_claim", "(outcome, available_at, seq)"),
        ("{name}_settled", "(outcome, settled_at)"),
    ],
    checks: &[
        "{name}_times_check",
        "{name}_topic_check",
        "{name}_headers_check",
        "{name}_json_check",
        "{name}_payload_check",
        "{name}_attempts_check",
    ],
};

const STREAM: Expected = Expected {
    columns: &[
        ("seq", "bigint not null default"),
        ("id", "binary(16) not null default"),
        ("created_at", "datetime(6) not null default"),
        ("occurred_at", "datetime(6) not null default"),
        ("available_at", "datetime(6) not null default"),
        ("settled_at", "datetime(6)"),
        ("version", "int not null default"),
        ("lane", "smallint generated"),
        ("topic", "varchar(128) not null"),
        ("event_type", "varchar(128)"),
        ("aggregate_type", "varchar(128)"),
        ("aggregate_id", "varchar(255)"),
        ("namespace", "varchar(64) not null default"),
        ("tenant_id", "varchar(128)"),
        ("dedupe_key", "varchar(255)"),
        ("content_type", "varchar(128)"),
        ("headers", "longtext"),
        ("payload", "longtext"),
        ("payload_bytes", "longblob"),
        ("outcome", "enum('delivered','parked')"),
    ],
    indexes: &[
        ("PRIMARY", "unique (seq)"),
        ("{name}_id", "unique (id)"),
        ("{name}_dedupe", "unique (dedupe_key, namespace, topic)"),
        ("{name}_unsettled", "(outcome, seq)"),
        ("{name}_settled", "(outcome, settled_at)"),
    ],
    checks: &[
        "{name}_times_check",
        "{name}_topic_check",
        "{name}_headers_check",
        "{name}_json_check",
        "{name}_payload_check",
    ],
};

const BESIDE: Beside = Beside {
    lanes: Expected {
        columns: &[
            ("lane", "smallint not null"),
            ("fence", "bigint not null default"),
            ("owner", "varchar(128)"),
            ("present", "tinyint(1) not null default"),
            ("leased_until", "datetime(6)"),
            ("noted_seq", "bigint"),
        ],
        indexes: &[("PRIMARY", "unique (lane)")],
        checks: &[],
    },
    places: None,
    relays: Expected {
        columns: &[
            ("relay", "varchar(128) not null"),
            ("joined_at", "datetime(6) not null default"),
            ("seen_at", "datetime(6) not null default"),
            ("until", "datetime(6) not null"),
        ],
        indexes: &[("PRIMARY", "unique (relay)")],
        checks: &[],
    },
    parked: Expected {
        columns: &[
            ("position", "bigint not null default"),
            ("seq", "bigint not null"),
            ("id", "binary(16) not null"),
            ("lane", "smallint not null"),
            ("topic", "varchar(128) not null"),
            ("key", "varchar(512) not null"),
            ("blocks", "tinyint(1) not null"),
            ("suspect", "tinyint(1) not null default"),
            ("attempts", "int not null default"),
            ("due", "datetime(6)"),
            ("claimed", "bigint"),
            ("outcome", "enum('dead','delivered')"),
            ("last_error", "text"),
            ("parked_at", "datetime(6) not null default"),
            ("settled_at", "datetime(6)"),
        ],
        indexes: &[
            ("PRIMARY", "unique (position)"),
            ("{name}_seq", "unique (seq)"),
            ("{name}_key", "(key, position)"),
            ("{name}_due", "(claimed, suspect, due, position)"),
            ("{name}_dead", "(outcome, id)"),
        ],
        checks: &["{name}_attempts_check"],
    },
};

/// A connection that holds the lock. It is its own, so that dropping it at any point ends the lock with it.
struct Session<'a> {
    connection: MySqlConnection,
    table: &'a TableName,
    dialect: Dialect,
}

impl<'a> Session<'a> {
    async fn lock(pool: &MySqlPool, table: &'a TableName) -> Result<Self> {
        let mut connection = pool.acquire().await.map_err(|e| classify(e, table))?.detach();
        let locked: Option<i64> = sqlx::query_scalar(
            "SELECT GET_LOCK(CONCAT('posthaste.', LEFT(SHA2(COALESCE(?, DATABASE()), 256), 48)), ?)",
        )
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

    async fn begin(&mut self, role: Role) -> Result<(Family, Vec<Applied>)> {
        if !exists(&mut self.connection, &self.table.sibling(migrate::LEDGER), self.table).await? {
            self.run(migrate::ledger_sql(self.dialect)).await?;
        }
        let applied = applied(&mut self.connection, self.table).await?;
        let family =
            family_of(self.table, role, &applied, async || lanes(&mut self.connection, self.table).await)
                .await?;
        refuse_newer(self.table, &applied, migrations(self.dialect, family))?;
        Ok((family, applied))
    }

    /// Refuses to go on with what a migration of another mode has begun, which is in no ledger.
    async fn refuse_begun(&mut self, role: Role) -> Result<()> {
        let (table, connection) = (self.table, &mut self.connection);
        // A table of that name that has no fences is somebody's own.
        let lanes = match has_column(connection, &table.lanes_table(), "fence").await? {
            true => self::lanes(connection, table).await?,
            false => None,
        };
        let begun = match lanes {
            None | Some(0) if has_column(connection, table, "locked_until").await? => Some(Mode::Queue),
            None => None,
            Some(0) if role.family() == Family::Stream => None,
            Some(0) => Some(Mode::Stream(Lanes::default())),
            Some(_) => Some(stream_of(table, lanes)?),
        };
        let Some(begun) = begun.filter(|begun| *begun != role.mode()) else { return Ok(()) };
        let mut left = Vec::new();
        for name in [table.lanes_table(), table.relays_table(), table.parked_table(), table.clone()] {
            if exists(connection, &name, table).await? {
                left.push(name.to_string());
            }
        }
        Err(migrate::begun_as(table, begun, role.mode(), &left))
    }

    /// Each statement by itself, since each commits by itself; it ends with its line.
    async fn run(&mut self, sql: &str) -> Result<()> {
        for statement in render(self.dialect, self.table, sql).split_inclusive(";\n") {
            sqlx::raw_sql(AssertSqlSafe(statement))
                .execute(&mut self.connection)
                .await
                .map_err(|e| classify(e, self.table))?;
            failpoint!("migrate.statement");
        }
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

/// What the ledger says of the table.
async fn applied(connection: &mut MySqlConnection, table: &TableName) -> Result<Vec<Applied>> {
    if !exists(connection, &table.sibling(migrate::LEDGER), table).await? {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(AssertSqlSafe(render(Dialect::MySql, table, APPLIED)))
        .fetch_all(connection)
        .await
        .map_err(|e| classify(e, table))?;
    let read = |row: &MySqlRow| {
        Ok(Applied {
            version: row.try_get::<i32, _>(0)?.unsigned_abs(),
            name: row.try_get(1)?,
            at: row.try_get::<PrimitiveDateTime, _>(2)?.assume_utc(),
        })
    };
    let read = |row| read(row).map_err(|e| classify(e, table));
    rows.iter().map(read).collect()
}

/// How many lanes there are, if their table is there.
async fn lanes(connection: &mut MySqlConnection, table: &TableName) -> Result<Option<i64>> {
    if !exists(connection, &table.lanes_table(), table).await? {
        return Ok(None);
    }
    sqlx::query_scalar(AssertSqlSafe(render(Dialect::MySql, table, LANES)))
        .fetch_one(connection)
        .await
        .map(Some)
        .map_err(|e| classify(e, table))
}

async fn has_column(connection: &mut MySqlConnection, table: &TableName, column: &str) -> Result<bool> {
    sqlx::query_scalar(
        "SELECT COUNT(*) > 0 FROM information_schema.COLUMNS
          WHERE TABLE_SCHEMA = COALESCE(?, DATABASE()) AND TABLE_NAME = ? AND COLUMN_NAME = ?",
    )
    .bind(table.schema())
    .bind(table.name())
    .bind(column)
    .fetch_one(connection)
    .await
    .map_err(|e| classify(e, table))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st3_checks_are_found_in_the_statement_that_makes_their_table() {
        let mariadb = "CREATE TABLE `t` (\n  `a` int(11) NOT NULL,\n  PRIMARY KEY (`a`),\n  CONSTRAINT `t_key` FOREIGN KEY (`a`) REFERENCES `u` (`a`),\n  \
                       CONSTRAINT `t_check` CHECK (`a` > 0),\n  CONSTRAINT `t_json_check` CHECK (json_valid(`b`))\n) ENGINE=InnoDB";
        assert_eq!(checks_in(mariadb), ["t_check", "t_json_check"]);
        let mysql = "CREATE TABLE `t` (\n  `a` int DEFAULT NULL,\n  CONSTRAINT `t_check` CHECK ((`a` > 0))\n) ENGINE=InnoDB";
        assert_eq!(checks_in(mysql), ["t_check"]);
        assert_eq!(checks_in("CREATE TABLE `t` (\n  `a` int\n)"), Vec::<String>::new());
    }
}
