//! Migrations: embedded, versioned, the same numbers and names on every database.
//!
//! What has been applied is kept per table in `posthaste_migrations`, a table of posthaste's own in the same
//! schema, so that nothing collides with the user's migration tool. A migration runs once, under a lock of
//! the database, however many start at the same time.

use time::OffsetDateTime;

use super::{Dialect, Lanes, Mode, TableName};
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

/// A table that has migrations: an outbox that is a queue or a stream, or an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Outbox,
    Stream,
    Inbox,
}

/// What somebody who migrates a table takes it for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// An outbox of the mode it has; a queue, if it has yet to be made.
    Outbox,
    /// An outbox of this mode.
    Mode(Mode),
    Inbox,
}

impl Role {
    /// What the table is to be where it has yet to be made.
    pub(crate) fn family(self) -> Family {
        match self {
            Self::Outbox | Self::Mode(Mode::Queue) => Family::Outbox,
            Self::Mode(Mode::Stream(_)) => Family::Stream,
            Self::Inbox => Family::Inbox,
        }
    }

    /// Its mode then.
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Mode(mode) => mode,
            Self::Outbox | Self::Inbox => Mode::Queue,
        }
    }
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
        (Dialect::Postgres, Family::Stream) => &[migration!(1, "stream", "postgres", "stream/0001_stream")],
        (Dialect::Postgres, Family::Inbox) => &[migration!(1, "inbox", "postgres", "inbox/0001_inbox")],
        (Dialect::MySql | Dialect::MariaDb, Family::Outbox) => {
            &[migration!(1, "outbox", "mysql", "0001_outbox")]
        }
        (Dialect::MySql | Dialect::MariaDb, Family::Stream) => {
            &[migration!(1, "stream", "mysql", "stream/0001_stream")]
        }
        (Dialect::MySql | Dialect::MariaDb, Family::Inbox) => {
            &[migration!(1, "inbox", "mysql", "inbox/0001_inbox")]
        }
        (Dialect::Sqlite, Family::Outbox) => &[migration!(1, "outbox", "sqlite", "0001_outbox")],
        (Dialect::Sqlite, Family::Stream) => &[migration!(1, "stream", "sqlite", "stream/0001_stream")],
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
    /// A table that a stream has beside it is missing.
    MissingTable {
        /// Its name.
        table: String,
    },
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
        /// Its name, with that of its table where that is one beside the events'.
        column: String,
    },
    /// A column has another type or nullability, or has lost its default.
    Column {
        /// Its name, with that of its table where that is one beside the events'.
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
    /// An index has other columns, another predicate or uniqueness, or is not valid.
    Index {
        /// Its name.
        index: String,
        /// What the migrations make.
        expected: String,
        /// What the table has.
        found: String,
    },
    /// A CHECK constraint is missing.
    MissingCheck {
        /// Its name.
        check: String,
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
            Self::MissingTable { table } => write!(f, "table {table} is missing"),
            Self::Migration { version } => write!(f, "migration {version} has not been applied"),
            Self::NewerMigration { version } => {
                write!(f, "migration {version} is newer than this version of posthaste")
            }
            Self::MissingColumn { column } => write!(f, "column {column} is missing"),
            Self::Column { column, expected, found } => {
                write!(f, "column {column} is {found}, expected {expected}")
            }
            Self::MissingIndex { index } => write!(f, "index {index} is missing"),
            Self::Index { index, expected, found } => {
                write!(f, "index {index} is {found}, expected {expected}")
            }
            Self::MissingCheck { check } => write!(f, "check {check} is missing"),
            Self::MissingView { view } => write!(f, "view {view} is missing"),
        }
    }
}

/// Replaces the placeholders of a statement: `{table}`, `{view}`, `{name}`, the tables that a stream has beside it,
/// and what the dialect adds.
pub(crate) fn render(dialect: Dialect, table: &TableName, sql: &str) -> String {
    let mark = dialect.quote();
    let sql = sql
        .replace("{table}", &table.quoted(mark))
        .replace("{view}", &table.status_view().quoted(mark))
        .replace("{lanes_table}", &table.lanes_table().quoted(mark))
        .replace("{places_table}", &table.places_table().quoted(mark))
        .replace("{relays_table}", &table.relays_table().quoted(mark))
        .replace("{parked_table}", &table.parked_table().quoted(mark))
        .replace("{ledger}", &table.sibling(LEDGER).quoted(mark))
        .replace("{name}", table.name());
    match dialect {
        Dialect::MySql => sql.replace("{collation}", "utf8mb4_0900_bin"),
        Dialect::MariaDb => sql.replace("{collation}", "utf8mb4_nopad_bin"),
        Dialect::Sqlite => sql.replace("{now}", SQLITE_NOW),
        Dialect::Postgres | Dialect::Memory => sql,
    }
}

/// Replaces the placeholders of a migration. `{lanes}` is how many lanes a stream is to have: a word for its first
/// migration only, since who brings a table up later need not say it.
pub(crate) fn render_migration(dialect: Dialect, table: &TableName, mode: Mode, sql: &str) -> String {
    let lanes = match mode {
        Mode::Queue => Lanes::default(),
        Mode::Stream(lanes) => lanes,
    };
    render(dialect, table, sql).replace("{lanes}", &lanes.count().to_string())
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

/// The SQL of a queue's migrations above `from`, for people with a migration tool of their own.
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
    migration_sql_as(dialect, table, Mode::Queue, from)
}

/// The SQL of the migrations above `from` of an outbox table of this mode, as [`migration_sql`] gives a queue's.
///
/// ```
/// use posthaste::store::{Dialect, Mode, migration_sql_as};
///
/// let sql = migration_sql_as(Dialect::Postgres, &"orders_outbox".parse()?, Mode::stream(8)?, 0);
/// assert!(sql.contains(r#"CREATE TABLE "orders_outbox_lanes""#));
/// # Ok::<_, posthaste::Error>(())
/// ```
pub fn migration_sql_as(dialect: Dialect, table: &TableName, mode: Mode, from: u32) -> String {
    const RECORD: &str = "INSERT INTO {ledger} (table_name, version, name) VALUES ('{name}', ";
    let mut text = render(dialect, table, ledger_sql(dialect));
    let migrations = migrations(dialect, Role::Mode(mode).family());
    for migration in migrations.iter().filter(|m| m.version > from) {
        text.push_str(&format!("\n-- posthaste {:04} {}\n", migration.version, migration.name));
        text.push_str(&render_migration(dialect, table, mode, migration.up));
        text.push_str(&format!(
            "\n{}{}, '{}');\n",
            render(dialect, table, RECORD),
            migration.version,
            migration.name
        ));
    }
    text
}

/// A migration that the ledger says was applied.
pub(crate) struct Applied {
    pub(crate) version: u32,
    pub(crate) name: String,
    pub(crate) at: OffsetDateTime,
}

/// What the ledger says the table is, where it says anything: the name of its first migration. It refuses a table of
/// the other kind: to migrate an outbox as an inbox would drop its events. Of which mode an outbox is it leaves open.
pub(crate) fn recorded(table: &TableName, role: Role, applied: &[Applied]) -> Result<Option<Family>> {
    let Some(first) = applied.iter().find(|a| a.version == 1) else { return Ok(None) };
    let (what, other) = match (role, first.name.as_str()) {
        (Role::Outbox | Role::Mode(_), "outbox") => return Ok(Some(Family::Outbox)),
        (Role::Outbox | Role::Mode(_), "stream") => return Ok(Some(Family::Stream)),
        (Role::Inbox, "inbox") => return Ok(Some(Family::Inbox)),
        (Role::Outbox | Role::Mode(_), other) => ("an outbox", other),
        (Role::Inbox, "stream") => ("an inbox", "outbox"),
        (Role::Inbox, other) => ("an inbox", other),
    };
    let message = format!("table {table} is recorded as an {other}, not as {what}");
    Err(Error::new(ErrorKind::SchemaMismatch, message))
}

/// What a table is to be migrated as: what it is, or where it has yet to be made what it is taken for. It refuses a
/// table of another mode than the one that is asked for. `lanes` counts the rows of its table of lanes, if that is there.
pub(crate) async fn family_of(
    table: &TableName,
    role: Role,
    applied: &[Applied],
    lanes: impl AsyncFnOnce() -> Result<Option<i64>>,
) -> Result<Family> {
    let Some(family) = recorded(table, role, applied)? else { return Ok(role.family()) };
    if let Role::Mode(_) = role {
        refuse_mode(table, mode_of(table, family, lanes).await?, role)?;
    }
    Ok(family)
}

/// Of which mode an outbox is, if it has been made. Who may not read the ledger is told by the table of lanes.
pub(crate) async fn known_mode(
    table: &TableName,
    applied: Result<Vec<Applied>>,
    lanes: impl AsyncFnOnce() -> Result<Option<i64>>,
) -> Result<Option<Mode>> {
    let applied = match applied {
        Err(error) if *error.kind() == ErrorKind::AccessDenied => Vec::new(),
        applied => applied?,
    };
    match recorded(table, Role::Outbox, &applied)? {
        Some(family) => mode_of(table, family, lanes).await.map(Some),
        None => {
            let lanes = lanes().await?.filter(|count| *count > 0);
            lanes.map(|count| stream_of(table, Some(count))).transpose()
        }
    }
}

/// Of which mode a table of this family is: a stream's lanes are counted.
async fn mode_of(
    table: &TableName,
    family: Family,
    lanes: impl AsyncFnOnce() -> Result<Option<i64>>,
) -> Result<Mode> {
    match family {
        Family::Stream => stream_of(table, lanes().await?),
        Family::Outbox | Family::Inbox => Ok(Mode::Queue),
    }
}

/// A stream of as many lanes as its table of lanes has rows; `None` if that is not there.
pub(crate) fn stream_of(table: &TableName, lanes: Option<i64>) -> Result<Mode> {
    let beside = table.lanes_table();
    let lanes = lanes.ok_or_else(|| format!("its table {beside} is missing")).and_then(|count| {
        let lanes = u16::try_from(count).ok().and_then(|count| Lanes::new(count).ok());
        lanes.ok_or_else(|| format!("its table {beside} has {count} rows, which cannot be"))
    });
    lanes.map(Mode::Stream).map_err(|what| {
        Error::new(ErrorKind::SchemaMismatch, format!("table {table} is recorded as a stream, but {what}"))
    })
}

/// Refuses a table of another mode than the one that is asked for.
fn refuse_mode(table: &TableName, found: Mode, role: Role) -> Result<()> {
    match role {
        Role::Mode(asked) if asked != found => Err(Error::new(
            ErrorKind::SchemaMismatch,
            format!(
                "table {table} is a {found}, not a {asked}: the mode of a table is fixed when the table is made"
            ),
        )),
        _ => Ok(()),
    }
}

/// Says that a migration has begun the table in one mode and ended before it was recorded, and that it cannot be gone
/// on with in another.
pub(crate) fn begun_as(table: &TableName, begun: Mode, asked: Mode, left: &[String]) -> Error {
    let again = match begun {
        Mode::Queue => "--mode queue".to_owned(),
        Mode::Stream(lanes) => format!("--mode stream --lanes {}", lanes.count()),
    };
    let message = format!(
        "table {table} is a {begun}, not a {asked}: a migration began it and did not end, and left {}. \
         Go on with it by `posthaste migrate up {again}`, or drop what it left",
        left.join(", ")
    );
    Error::new(ErrorKind::SchemaMismatch, message)
}

/// Refuses a table that a newer posthaste has migrated.
pub(crate) fn refuse_newer(table: &TableName, applied: &[Applied], known: &[Migration]) -> Result<()> {
    let newest = known.last().map_or(0, |m| m.version);
    match applied.iter().map(|a| a.version).max() {
        Some(found) if found > newest => Err(Error::new(
            ErrorKind::SchemaTooNew { found, known: newest },
            format!("table {table} is at migration {found}, this version of posthaste knows {newest}"),
        )),
        _ => Ok(()),
    }
}

/// The state of every migration, applied ones first named by what this version knows of them.
pub(crate) fn states(applied: &[Applied], known: &[Migration]) -> Vec<MigrationState> {
    let unknown = applied.iter().filter(|a| known.iter().all(|m| m.version != a.version));
    let applied_at = |version: u32| applied.iter().find(|a| a.version == version).map(|a| a.at);
    known
        .iter()
        .map(|m| MigrationState {
            version: m.version,
            name: m.name.to_owned(),
            applied_at: applied_at(m.version),
            known: true,
        })
        .chain(unknown.map(|a| MigrationState {
            version: a.version,
            name: "unknown to this version".to_owned(),
            applied_at: Some(a.at),
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

/// A table as the migrations make it, in the database's own words; `{name}` stands for the table's name.
pub(crate) struct Expected {
    /// Names, and type, nullability and whether there is a default.
    pub(crate) columns: &'static [(&'static str, &'static str)],
    /// Names, and uniqueness, columns and predicate.
    pub(crate) indexes: &'static [(&'static str, &'static str)],
    /// Names of CHECK constraints.
    pub(crate) checks: &'static [&'static str],
}

/// A table as it is, in the same words.
pub(crate) struct Found {
    pub(crate) columns: Vec<(String, String)>,
    pub(crate) indexes: Vec<(String, String)>,
    pub(crate) checks: Vec<String>,
}

/// What the tables beside a stream should have.
pub(crate) struct Beside {
    pub(crate) lanes: Expected,
    /// Where a lane's place is a table of its own.
    pub(crate) places: Option<Expected>,
    pub(crate) relays: Expected,
    pub(crate) parked: Expected,
}

impl Beside {
    /// Each with its name.
    pub(crate) fn of(&'static self, table: &TableName) -> Vec<(TableName, &'static Expected)> {
        let places = self.places.iter().map(|places| (table.places_table(), places));
        let others = [
            (table.lanes_table(), &self.lanes),
            (table.relays_table(), &self.relays),
            (table.parked_table(), &self.parked),
        ];
        others.into_iter().chain(places).collect()
    }
}

/// What a table beside a stream is missing; its columns are called with its name.
pub(crate) fn differences_beside(
    beside: &TableName,
    expected: &Expected,
    found: Option<&Found>,
) -> Vec<Difference> {
    let Some(found) = found else { return vec![Difference::MissingTable { table: beside.to_string() }] };
    let named = |difference| match difference {
        Difference::MissingColumn { column } => {
            Difference::MissingColumn { column: format!("{beside}.{column}") }
        }
        Difference::Column { column, expected, found } => {
            Difference::Column { column: format!("{beside}.{column}"), expected, found }
        }
        other => other,
    };
    differences(beside, expected, found).into_iter().map(named).collect()
}

/// What a live table is missing, given what it should have. What users added is left alone: columns,
/// indexes, checks and defaults.
pub(crate) fn differences(table: &TableName, expected: &Expected, found: &Found) -> Vec<Difference> {
    let shape = |parts: &[(String, String)], name: &str| {
        parts.iter().find(|(part, _)| part == name).map(|(_, shape)| shape.clone())
    };
    let columns = expected.columns.iter().filter_map(|(name, expected)| {
        let (column, expected) = ((*name).to_owned(), (*expected).to_owned());
        match shape(&found.columns, &column) {
            None => Some(Difference::MissingColumn { column }),
            Some(found) if found == expected || found == format!("{expected} default") => None,
            Some(found) => Some(Difference::Column { column, expected, found }),
        }
    });
    let indexes = expected.indexes.iter().filter_map(|(name, expected)| {
        let (index, expected) = (name.replace("{name}", table.name()), (*expected).to_owned());
        match shape(&found.indexes, &index) {
            None => Some(Difference::MissingIndex { index }),
            Some(found) if found == expected => None,
            Some(found) => Some(Difference::Index { index, expected, found }),
        }
    });
    let checks = expected
        .checks
        .iter()
        .map(|name| name.replace("{name}", table.name()))
        .filter(|check| !found.checks.contains(check))
        .map(|check| Difference::MissingCheck { check });
    columns.chain(indexes).chain(checks).collect()
}
