//! What a command works on: a database and a table in it.
//!
//! Both come from the configuration. Where nobody named a database it is the embedded one, an SQLite file in the working directory. Only what is
//! meant to create that file does: looking into a database that is not there leaves nothing behind. Its table makes itself if it is the first one
//! or the configuration names it; a name that was given for one command may be a slip.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use posthaste::TableName;
use posthaste::store::{self, Dialect, Store};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

use crate::config::settings::{Birth, DatabaseSettings};
use crate::exit::Exit;
use crate::failure::Failure;

/// How long a listing may take: the database ends it then, also when Ctrl-C has ended this program before.
pub(crate) const LOOK: Duration = Duration::from_secs(60);

/// A database and a table in it. Its URL may hold a password: there is no way to show it.
pub(crate) struct Target {
    url: String,
    embedded: bool,
    birth: Birth,
    dialect: Dialect,
    table: TableName,
    /// What has been connected to, to be closed at the end.
    opened: RefCell<Vec<Arc<dyn Store>>>,
}

impl Target {
    /// As the configuration says; nothing is connected to yet.
    pub(crate) fn new(database: &DatabaseSettings) -> Result<Self, Failure> {
        let url = database.url.reveal().to_owned();
        let table = database.table.parse()?;
        let dialect = Dialect::of_url(&url)?;
        let (embedded, birth) = (database.embedded, database.birth());
        Ok(Self { url, embedded, birth, dialect, table, opened: RefCell::default() })
    }

    /// The table's name.
    pub(crate) fn table(&self) -> &TableName {
        &self.table
    }

    /// Which database the URL leads to.
    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether it is the embedded database, which nobody named.
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded
    }

    /// Whether the database may be created without being asked to be.
    pub(crate) fn creates_itself(&self) -> bool {
        self.birth != Birth::Asked
    }

    /// Whether the table is to be made, or brought up to date, without being asked to be.
    pub(crate) async fn makes_itself(&self, store: &dyn Store) -> Result<bool, Failure> {
        Ok(self.embedded
            && match self.birth {
                Birth::Always => true,
                Birth::First => {
                    let tables = store.tables().await?;
                    tables.is_empty() || tables.contains(&self.table)
                }
                Birth::Asked => store.tables().await?.contains(&self.table),
            })
    }

    /// The SQLite file, if it is one that does not exist yet.
    pub(crate) fn missing_file(&self) -> Option<PathBuf> {
        // A schema is refused before any file is looked for.
        let refused = self.table.to_string().contains('.');
        self.file().filter(|_| !refused).filter(|file| !file.exists())
    }

    /// The SQLite file, if it is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        if self.dialect != Dialect::Sqlite
            || self.url.contains(":memory:")
            || self.url.contains("mode=memory")
        {
            return None;
        }
        let options: SqliteConnectOptions = self.url.parse().ok()?;
        Some(options.get_filename().to_owned())
    }

    /// The command that makes the table.
    pub(crate) fn migration(&self) -> String {
        let with = if self.embedded { "" } else { " (same --database)" };
        format!("`posthaste migrate up --table {}`{with}", self.table)
    }

    /// The store of a database that is expected to be there.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Store>, Failure> {
        match self.missing_file() {
            None => self.open_or_create().await,
            Some(file) => Err(Failure::new(
                Exit::Table,
                format!("there is no database file {}; create it with {}", file.display(), self.migration()),
            )),
        }
    }

    /// The store; an SQLite file is created.
    pub(crate) async fn open_or_create(&self) -> Result<Arc<dyn Store>, Failure> {
        let store = store::connect(&self.url, &self.table.to_string()).await?;
        self.opened.borrow_mut().push(Arc::clone(&store));
        Ok(store)
    }

    /// The server alone, in none of its databases, to ask it who this is; it has to be closed.
    pub(crate) async fn open_server(&self) -> Option<Arc<dyn Store>> {
        let (scheme, rest) = self.url.split_once("://")?;
        let (place, options) = rest.split_once('?').map_or((rest, ""), |(place, options)| (place, options));
        let server = place.split('/').next()?;
        store::connect(&format!("{scheme}://{server}/?{options}"), &self.table.to_string()).await.ok()
    }

    /// What was opened last, if anything was.
    pub(crate) fn opened(&self) -> Option<Arc<dyn Store>> {
        self.opened.borrow().last().cloned()
    }

    /// The user of the URL, where the database has users.
    pub(crate) fn user(&self) -> Option<String> {
        match self.dialect {
            Dialect::Postgres => Some(self.url.parse::<PgConnectOptions>().ok()?.get_username().to_owned()),
            Dialect::MySql | Dialect::MariaDb => {
                Some(self.url.parse::<MySqlConnectOptions>().ok()?.get_username().to_owned())
            }
            Dialect::Sqlite | Dialect::Memory => None,
        }
    }

    /// The database in which MySQL has the table.
    pub(crate) fn space(&self) -> Option<String> {
        match self.table.to_string().split_once('.') {
            Some((space, _)) => Some(space.to_owned()),
            None => Some(self.url.parse::<MySqlConnectOptions>().ok()?.get_database()?.to_owned()),
        }
    }

    /// Closes what was opened, so that an SQLite file is left without its log beside it.
    pub(crate) async fn close(&self) {
        let opened = self.opened.take();
        for store in opened {
            store.close().await;
        }
    }

    /// The host of a database that is not on this machine. A URL that cannot be read counts as one.
    pub(crate) fn remote_host(&self) -> Option<String> {
        let host = match self.dialect {
            Dialect::Postgres => self.url.parse::<PgConnectOptions>().map(|options| {
                let socket = options.get_socket().is_some() || options.get_host().starts_with('/');
                (!socket).then(|| options.get_host().to_owned())
            }),
            Dialect::MySql | Dialect::MariaDb => self
                .url
                .parse::<MySqlConnectOptions>()
                .map(|options| options.get_socket().is_none().then(|| options.get_host().to_owned())),
            Dialect::Sqlite | Dialect::Memory => return None,
        };
        host.unwrap_or_else(|_| Some("an unknown host".to_owned())).filter(|host| !is_local(host))
    }
}

fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::key::Secrecy;
    use crate::config::secret::SecretUrl;

    fn remote_host(url: &str) -> Option<String> {
        let url = SecretUrl::new(url, Secrecy::Password);
        let (table, configured) = ("outbox".to_owned(), Vec::new());
        let database = DatabaseSettings { url, embedded: false, table, configured };
        Target::new(&database).ok().and_then(|target| target.remote_host())
    }

    #[test]
    fn op4_a_database_on_this_machine_is_local() {
        for url in [
            "postgres://u:p@localhost/db",
            "postgres://u:p@127.0.0.2:5433/db",
            "postgres://u@[::1]/db",
            "postgres://u@%2Fvar%2Frun%2Fpostgresql/db",
            "postgres:///db?host=/var/run/postgresql",
            "mysql://u:p@LOCALHOST:3306/db",
            "mysql://u@db.example/db?socket=/run/mysqld.sock",
            "sqlite://db.example/shop.db",
        ] {
            assert_eq!(remote_host(url), None, "{url}");
        }
    }

    #[test]
    fn op4_a_database_elsewhere_is_not() {
        for (url, host) in [
            ("postgres://u:p@db.example/db", "db.example"),
            ("postgres://u:p@localhost/db?host=db.example", "db.example"),
            ("postgres://u:p@localhost.example/db", "localhost.example"),
            ("mariadb://u:p@10.0.0.7/db", "10.0.0.7"),
            ("mysql://u:p@0.0.0.0/db", "0.0.0.0"),
        ] {
            assert_eq!(remote_host(url).as_deref(), Some(host), "{url}");
        }
    }
}
