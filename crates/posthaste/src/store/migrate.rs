//! Migrations: embedded, versioned, the same numbers and names on every database.
//!
//! What has been applied is kept per table in `posthaste_migrations`, a table of posthaste's own in the same
//! schema, so that nothing collides with the user's migration tool. A migration runs once, under a lock of
//! the database, however many start at the same time.

use time::OffsetDateTime;

use super::{Dialect, TableName};
use crate::error::{Error, ErrorKind, Result};

/// The name of the table that says what has been applied.
pub(crate) const LEDGER: &str = "posthaste_migrations";

/// One step of a table's making.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    pub(crate) version: u32,
    pub(crate) name: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

/// A table that has migrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Outbox,
    Inbox,
}

macro_rules! migration {
    ($version:literal, $name:literal, $directory:literal, $file:literal) => {
        Migration {
            version: $version,
            name: $name,
            up: include_str!(concat!("../../migrations/", $directory, "/", $file, ".up.sql")),
            down: include_str!(concat!("../../migrations/", $directory, "/", $file, ".down.sql")),
        }
    };
}

/// The migrations of a family, oldest first.
pub(crate) fn migrations(dialect: Dialect, family: Family) -> &'static [Migration] {
    match (dialect, family) {
        (Dialect::Postgres, Family::Outbox) => &[migration!(1, "outbox", "postgres", "0001_outbox")],
        (Dialect::Postgres, Family::Inbox) => &[migration!(1, "inbox", "postgres", "inbox/0001_inbox")],
        (Dialect::MySql | Dialect::MariaDb, Family::Outbox) => {
            &[migration!(1, "outbox", "mysql", "0001_outbox")]
        }
        (Dialect::MySql | Dialect::MariaDb, Family::Inbox) => {
            &[migration!(1, "inbox", "mysql", "inbox/0001_inbox")]
        }
        (Dialect::Sqlite, Family::Outbox) => &[migration!(1, "outbox", "sqlite", "0001_outbox")],
        (Dialect::Sqlite, Family::Inbox) => &[migration!(1, "inbox", "sqlite", "inbox/0001_inbox")],
        (Dialect::Memory, _) => &[],
    }
}

/// A migration of a table, and when it was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationState {
    /// Its number.
    pub version: u32,
    /// Its name.
    pub name: String,
    /// When it was applied; `None` if it is still to come.
    pub applied_at: Option<OffsetDateTime>,
    /// Whether this version of posthaste knows it; a newer one has applied those it does not.
    pub known: bool,
}

/// One way in which a live table differs from what its migrations make.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// The table itself is missing.
    Table,
    /// A migration has not been applied.
    Migration {
        /// Its number.
        version: u32,
    },
    /// A newer version of posthaste has applied a migration.
    NewerMigration {
        /// Its number.
        version: u32,
    },
    /// A column is missing.
    MissingColumn {
        /// Its name.
        column: String,
    },
    /// A column has another type or nullability.
    Column {
        /// Its name.
        column: String,
        /// What the migrations make.
        expected: String,
        /// What the table has.
        found: String,
    },
    /// An index is missing.
    MissingIndex {
        /// Its name.
        index: String,
    },
    /// The status view is missing.
    MissingView {
        /// Its name.
        view: String,
    },
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Table => f.write_str("the table does not exist"),
            Self::Migration { version } => write!(f, "migration {version} has not been applied"),
            Self::NewerMigration { version } => {
                write!(f, "migration {version} is newer than this version of posthaste")
            }
            Self::MissingColumn { column } => write!(f, "column {column} is missing"),
            Self::Column { column, expected, found } => {
                write!(f, "column {column} is {found}, expected {expected}")
            }
            Self::MissingIndex { index } => write!(f, "index {index} is missing"),
            Self::MissingView { view } => write!(f, "view {view} is missing"),
        }
    }
}

/// Replaces the placeholders of a statement: `{table}`, `{view}`, `{name}` and what the dialect adds.
pub(crate) fn render(dialect: Dialect, table: &TableName, sql: &str) -> String {
    let mark = dialect.quote();
    let sql = sql
        .replace("{table}", &table.quoted(mark))
        .replace("{view}", &table.status_view().quoted(mark))
        .replace("{ledger}", &table.sibling(LEDGER).quoted(mark))
        .replace("{name}", table.name());
    match dialect {
        Dialect::MySql => sql.replace("{collation}", "utf8mb4_0900_bin"),
        Dialect::MariaDb => sql.replace("{collation}", "utf8mb4_nopad_bin"),
        Dialect::Sqlite => sql.replace("{now}", SQLITE_NOW),
        Dialect::Postgres | Dialect::Memory => sql,
    }
}

/// SQLite's clock in microseconds, in functions that 3.35 has.
pub(crate) const SQLITE_NOW: &str = "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)";

/// The table that says what has been applied.
pub(crate) fn ledger_sql(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => {
            "CREATE TABLE IF NOT EXISTS {ledger} (table_name text NOT NULL, version integer NOT NULL, name text NOT NULL, \
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (table_name, version));\n"
        }
        Dialect::MySql | Dialect::MariaDb => {
            "CREATE TABLE IF NOT EXISTS {ledger} (table_name VARCHAR(128) NOT NULL, version INT NOT NULL, name VARCHAR(128) NOT NULL, \
             applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), PRIMARY KEY (table_name, version)) \
             ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};\n"
        }
        Dialect::Sqlite => {
            "CREATE TABLE IF NOT EXISTS {ledger} (table_name TEXT NOT NULL, version INTEGER NOT NULL, name TEXT NOT NULL, \
             applied_at INTEGER NOT NULL DEFAULT {now}, PRIMARY KEY (table_name, version));\n"
        }
        Dialect::Memory => "",
    }
}

/// The SQL of an outbox table's migrations above `from`, for people with a migration tool of their own.
///
/// It records itself as applied, so that `migrate up` and `migrate status` know of it.
/// The MySQL and MariaDB texts differ in their collation: neither knows the other's.
///
/// ```
/// use posthaste::store::{Dialect, migration_sql};
///
/// let sql = migration_sql(Dialect::Postgres, &"orders_outbox".parse()?, 0);
/// assert!(sql.contains(r#"CREATE TABLE "orders_outbox""#));
/// # Ok::<_, posthaste::Error>(())
/// ```
pub fn migration_sql(dialect: Dialect, table: &TableName, from: u32) -> String {
    const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ";
    let mut text = render(dialect, table, ledger_sql(dialect));
    for migration in migrations(dialect, Family::Outbox).iter().filter(|m| m.version > from) {
        text.push_str(&format!("\n-- posthaste {:04} {}\n", migration.version, migration.name));
        text.push_str(&render(dialect, table, migration.up));
        text.push_str(&format!(
            "\n{}{}, '{}');\n",
            render(dialect, table, RECORD),
            migration.version,
            migration.name
        ));
    }
    text
}

/// Refuses a table that a newer posthaste has migrated.
pub(crate) fn refuse_newer(
    table: &TableName,
    applied: &[(u32, OffsetDateTime)],
    known: &[Migration],
) -> Result<()> {
    let newest = known.last().map_or(0, |m| m.version);
    match applied.iter().map(|(version, _)| *version).max() {
        Some(found) if found > newest => Err(Error::new(
            ErrorKind::SchemaTooNew { found, known: newest },
            format!("table {table} is at migration {found}, this version of posthaste knows {newest}"),
        )),
        _ => Ok(()),
    }
}

/// The state of every migration, applied ones first named by what this version knows of them.
pub(crate) fn states(applied: &[(u32, OffsetDateTime)], known: &[Migration]) -> Vec<MigrationState> {
    let unknown = applied.iter().filter(|(version, _)| known.iter().all(|m| m.version != *version));
    let applied_at = |version: u32| applied.iter().find(|(v, _)| *v == version).map(|(_, at)| *at);
    known
        .iter()
        .map(|m| MigrationState {
            version: m.version,
            name: m.name.to_owned(),
            applied_at: applied_at(m.version),
            known: true,
        })
        .chain(unknown.map(|(version, at)| MigrationState {
            version: *version,
            name: "unknown to this version".to_owned(),
            applied_at: Some(*at),
            known: false,
        }))
        .collect()
}

/// Migrations that are missing, and those only a newer version knows.
pub(crate) fn unmatched(states: &[MigrationState]) -> Vec<Difference> {
    let difference = |state: &MigrationState| match (state.known, state.applied_at) {
        (true, None) => Some(Difference::Migration { version: state.version }),
        (false, _) => Some(Difference::NewerMigration { version: state.version }),
        (true, Some(_)) => None,
    };
    states.iter().filter_map(difference).collect()
}

/// A column as the migrations make it.
pub(crate) struct Column {
    pub(crate) name: String,
    /// Type and nullability, in the database's own words.
    pub(crate) shape: String,
}

/// What a live table is missing, given what it should have. Columns that users added are left alone.
pub(crate) fn differences(
    expected: &[(&str, &str)],
    found: &[Column],
    indexes: &[String],
    found_indexes: &[String],
) -> Vec<Difference> {
    let columns = expected.iter().filter_map(|(name, shape)| match found.iter().find(|c| c.name == *name) {
        None => Some(Difference::MissingColumn { column: (*name).to_owned() }),
        Some(column) if column.shape != *shape => Some(Difference::Column {
            column: (*name).to_owned(),
            expected: (*shape).to_owned(),
            found: column.shape.clone(),
        }),
        Some(_) => None,
    });
    let indexes = indexes
        .iter()
        .filter(|index| !found_indexes.contains(index))
        .map(|index| Difference::MissingIndex { index: index.clone() });
    columns.chain(indexes).collect()
}
