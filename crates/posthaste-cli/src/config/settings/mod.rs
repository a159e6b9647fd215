//! What the configuration comes to: typed, complete, and checked against itself.
//!
//! Every mistake is found, not the first alone, and each says where it is and what to do.

mod route;
mod sink;
mod table;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use posthaste::TableName;
use posthaste::store::Dialect;

use super::key::Secrecy;
use super::mistake::Mistake;
use super::origin::Origin;
use super::path::Path;
use super::secret::{Secret, SecretUrl};
use super::{Config, sorted};

pub(crate) use route::RouteSettings;
pub(crate) use sink::{HttpSinkSettings, Login, NatsSinkSettings, SinkKind, SinkSettings};
pub(crate) use table::{TableSettings, TopicSettings};

/// Everything that a daemon is told.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) database: DatabaseSettings,
    /// Those that are relayed, purged, or both.
    pub(crate) tables: Vec<TableSettings>,
    pub(crate) topics: BTreeMap<String, TopicSettings>,
    pub(crate) sinks: BTreeMap<String, SinkSettings>,
    pub(crate) routes: Vec<RouteSettings>,
    pub(crate) http: HttpSettings,
    pub(crate) log: LogSettings,
    /// What looks like a mistake and may be none.
    pub(crate) warnings: Vec<String>,
}

/// Where the tables are.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseSettings {
    pub(crate) url: SecretUrl,
    /// Whether nobody named one: it is a file in the working directory, which makes itself.
    pub(crate) embedded: bool,
    /// The table that commands work on.
    pub(crate) table: String,
    /// The tables that the configuration names: nobody has mistyped those just now.
    pub(crate) configured: Vec<String>,
}

/// When a table is made that nobody asked to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    /// Never: its database was named, or its name was given for this command alone and may be a slip.
    Asked,
    /// If its database has no outbox table yet.
    First,
    /// Whenever it is missing.
    Always,
}

impl DatabaseSettings {
    /// The same for another table.
    pub(crate) fn with_table(&self, table: String) -> Self {
        Self { table, ..self.clone() }
    }

    /// When its table is made by itself.
    pub(crate) fn birth(&self) -> Birth {
        if !self.embedded {
            Birth::Asked
        } else if self.configured.contains(&self.table) {
            Birth::Always
        } else if self.table == TableName::default().to_string() {
            Birth::First
        } else {
            Birth::Asked
        }
    }
}

/// What the daemon serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpSettings {
    pub(crate) enabled: bool,
    pub(crate) listen: SocketAddr,
    /// What whoever changes something must show; without it nobody may.
    pub(crate) token: Option<Secret>,
    pub(crate) metrics_path: String,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) json: bool,
    pub(crate) level: String,
}

/// Settings that are being made.
struct Making<'a> {
    config: &'a Config,
    mistakes: Vec<Mistake>,
    warnings: Vec<String>,
}

impl Config {
    /// The database and the table of a command.
    pub(crate) fn database(&self) -> DatabaseSettings {
        let path = Path::plain("database.url");
        DatabaseSettings {
            url: SecretUrl::new(self.text(&path).unwrap_or_default(), Secrecy::Password),
            embedded: self.said(&path).is_none(),
            table: self.text(&Path::plain("database.table")).unwrap_or_default(),
            configured: self.configured_tables(),
        }
    }

    /// The tables that the file names, or that have settings of their own.
    fn configured_tables(&self) -> Vec<String> {
        let mut names: Vec<String> = self.names("tables").into_iter().map(|(name, _)| name).collect();
        let listed = ["database.table", "relay.tables", "cleaner.tables"].map(Path::plain);
        for path in listed.iter().filter(|path| matches!(self.origin(path), Origin::File { .. })) {
            names.extend(self.list(path));
            names.extend(self.text(path));
        }
        names
    }

    /// The same for each table that a command may be about: the one that was named, or else those that are relayed.
    pub(crate) fn databases(&self) -> Vec<DatabaseSettings> {
        let database = self.database();
        let named = self.is_set("database.table");
        let relayed = if named { Vec::new() } else { self.relayed() };
        match relayed.is_empty() {
            true => vec![database],
            false => relayed.into_iter().map(|table| database.with_table(table)).collect(),
        }
    }

    /// The names of the tables that are relayed, where somebody has named any.
    fn relayed(&self) -> Vec<String> {
        match self.said(&Path::plain("relay.tables")) {
            Some(_) => self.list(&Path::plain("relay.tables")),
            None => self.names("tables").into_iter().map(|(name, _)| name).collect(),
        }
    }

    /// What is logged, also where something else is wrong.
    pub(crate) fn log(&self) -> LogSettings {
        LogSettings {
            json: self.text(&Path::plain("log.format")).as_deref() == Some("json"),
            level: self.text(&Path::plain("log.level")).unwrap_or_default(),
        }
    }

    /// The tables that would be purged, or relayed.
    pub(crate) fn tables(&self, cleaned: bool) -> Vec<TableName> {
        let tables = self.make().0.tables.into_iter();
        tables
            .filter(|table| if cleaned { table.cleaned } else { table.relayed })
            .map(|table| table.name)
            .collect()
    }

    /// Everything, or every mistake.
    pub(crate) fn settings(&self) -> Result<Settings, Vec<Mistake>> {
        let (settings, mistakes) = self.make();
        if mistakes.is_empty() { Ok(settings) } else { Err(sorted(mistakes)) }
    }

    /// What it comes to, and every mistake in it.
    pub(super) fn make(&self) -> (Settings, Vec<Mistake>) {
        let mut making =
            Making { config: self, mistakes: self.mistakes.clone(), warnings: self.warnings.clone() };
        let database = making.database();
        let tables = making.tables();
        let sinks = making.sinks();
        let routes = making.routes(&tables, &sinks);
        making.compare_timeouts(&tables, &sinks, &routes);
        let settings = Settings {
            database,
            topics: making.topics(),
            http: making.http(),
            log: self.log(),
            tables,
            sinks,
            routes,
            warnings: making.warnings,
        };
        (settings, making.mistakes)
    }
}

impl Making<'_> {
    fn wrong(&mut self, origin: &Origin, message: impl Into<String>) {
        self.mistakes.push(Mistake::of_daemon(origin, message));
    }

    fn database(&mut self) -> DatabaseSettings {
        let database = self.config.database();
        let path = Path::plain("database.url");
        if let (Err(error), false) =
            (Dialect::of_url(database.url.reveal()), self.config.refused.contains(&path))
        {
            let origin = self.config.origin(&path);
            self.wrong(&origin, format!("database.url does not do: {error}"));
        }
        database
    }

    fn http(&mut self) -> HttpSettings {
        let at = |leaf: &str| Path::of(["http", leaf]);
        let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, 8470));
        HttpSettings {
            enabled: self.config.yes(&at("enabled")),
            listen: self.config.text(&at("listen")).and_then(|text| text.parse().ok()).unwrap_or(usual),
            token: self.config.text(&at("token")).map(Secret::new),
            metrics_path: self.config.text(&at("metrics_path")).unwrap_or_default(),
        }
    }
}

impl Settings {
    /// The sinks that a table's events can go to, by its routes.
    pub(crate) fn routes_of(&self, table: &TableName) -> Vec<&RouteSettings> {
        self.routes.iter().filter(|route| route.takes_table(table)).collect()
    }
}
