//! From a connection URL to a store: the URL's scheme says which database it is.

use std::sync::Arc;

use super::{Store, TableName};
use crate::error::{Error, ErrorKind, Result, quoted};

/// The kinds of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL.
    MySql,
    /// MariaDB: the protocol and the SQL of MySQL, with other collations.
    MariaDb,
    /// SQLite.
    Sqlite,
    /// The process's memory, for tests.
    Memory,
}

impl Dialect {
    /// Which database a URL leads to.
    ///
    /// ```
    /// use posthaste::store::Dialect;
    ///
    /// assert_eq!(Dialect::of_url("postgresql://localhost/shop")?, Dialect::Postgres);
    /// assert_eq!(Dialect::of_url("sqlite://shop.db")?, Dialect::Sqlite);
    /// # Ok::<_, posthaste::Error>(())
    /// ```
    pub fn of_url(url: &str) -> Result<Self> {
        match url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase()).as_deref() {
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            Some("mysql") => Ok(Self::MySql),
            Some("mariadb") => Ok(Self::MariaDb),
            Some("sqlite") => Ok(Self::Sqlite),
            // Only the scheme is repeated: the rest may hold a password.
            Some(scheme) => Err(Error::new(
                ErrorKind::UnknownDatabase,
                format!("{} is no supported kind of database", quoted(scheme, 20)),
            )),
            None => Err(Error::new(ErrorKind::UnknownDatabase, "the database's URL has no scheme")),
        }
    }

    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL",
            Self::MariaDb => "MariaDB",
            Self::Sqlite => "SQLite",
            Self::Memory => "memory",
        }
    }

    /// The mark around its identifiers.
    pub(crate) fn quote(self) -> char {
        match self {
            Self::MySql | Self::MariaDb => '`',
            Self::Postgres | Self::Sqlite | Self::Memory => '"',
        }
    }
}

impl std::fmt::Display for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Connects to the database of this URL and gives its store for this table.
///
/// An SQLite file is created if it does not exist. The table is not: see [`Store::migrate_up`].
///
/// ```no_run
/// # async fn f() -> posthaste::Result<()> {
/// let store = posthaste::store::connect("sqlite://shop.db", "orders_outbox").await?;
/// store.migrate_up().await?;
/// # Ok(()) }
/// ```
pub async fn connect(url: &str, table: &str) -> Result<Arc<dyn Store>> {
    let table: TableName = table.parse()?;
    match Dialect::of_url(url)? {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => Ok(Arc::new(super::PostgresStore::connect(url, table).await?)),
        #[cfg(feature = "mysql")]
        Dialect::MySql | Dialect::MariaDb => Ok(Arc::new(super::MySqlStore::connect(url, table).await?)),
        #[cfg(feature = "sqlite")]
        Dialect::Sqlite => Ok(Arc::new(super::SqliteStore::connect(url, table).await?)),
        #[allow(unreachable_patterns, reason = "depends on which databases are compiled in")]
        dialect => Err(Error::new(
            ErrorKind::UnknownDatabase,
            format!(
                "this build of posthaste has no support for {dialect} (table {table}): enable its feature"
            ),
        )),
    }
}
