//! What a run is: everything about it but chance, and the seed that chance comes from.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `lease` | 4 s | short, so that a relay can be stopped past it again and again |
//! | `lane_lease` | 3 s | the same, for a stream's lanes |
//! | `timeout`, `sink_timeout` | 3 s, 1.2 s | the relay's must be shorter than the lease, and twice the sink's must fit into it |
//! | `max_attempts` | 60 | nothing but what a sink rejects may die, however often sinks fail |
//! | `relays` | 3 | enough that two remain when one is gone |
//! | `producers` | one of each way to enqueue | |

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::audit;

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Decides what the nemesis and the producers do, and when.
    pub seed: u64,
    pub database: Database,
    /// For how long producers write and the nemesis strikes.
    pub length: Duration,
    /// For how long the rest may take to be delivered after that.
    pub patience: Duration,
    /// How many events all producers write in a second, but for those of a fault that fills the tables.
    pub events_per_second: u32,
    pub tables: Vec<Table>,
    /// How many `posthaste relay` processes share the tables.
    pub relays: usize,
    /// A producer process for each, which enqueues in this way.
    pub producers: Vec<Way>,
    pub mix: Mix,
    /// What the nemesis may do; what a database cannot suffer is left out by itself.
    pub faults: Vec<Kind>,
    /// No fault begins or lasts in the last so much of each so much: duplicates of that time have no excuse.
    pub calm: Calm,
    pub settings: Settings,
    /// Put into the environment of relays, and of producers.
    pub relay_env: Vec<(String, String)>,
    pub producer_env: Vec<(String, String)>,
}

impl Plan {
    /// The usual run of a database, this long.
    pub fn new(database: Database, seed: u64, length: Duration) -> Self {
        let mut mix = Mix::default();
        if database == Database::Sqlite {
            // Whoever has written to a file keeps all others from it until the end of the transaction.
            (mix.stay_open, mix.open_for) = (1, Duration::from_millis(500));
        }
        Self {
            seed,
            database,
            length,
            patience: Duration::from_secs(120),
            events_per_second: if database == Database::Sqlite { 80 } else { 160 },
            tables: Table::usual(),
            relays: 3,
            producers: vec![Way::Library, Way::PlainSql, Way::Hot],
            mix,
            faults: Kind::ALL.to_vec(),
            calm: Calm::default(),
            settings: Settings::default(),
            relay_env: Vec::new(),
            producer_env: Vec::new(),
        }
    }

    /// The names of the relays.
    pub fn relay_names(&self) -> Vec<String> {
        (1..=self.relays).map(|number| format!("relay-{number}")).collect()
    }

    /// The names of the producers.
    pub fn producer_names(&self) -> Vec<String> {
        (1..=self.producers.len()).map(|number| format!("producer-{number}")).collect()
    }

    /// Its tables as the audit knows them.
    pub fn audited(&self) -> Vec<audit::Table> {
        let table = |table: &Table| audit::Table { name: table.name.clone(), stream: table.is_stream() };
        self.tables.iter().map(table).collect()
    }

    /// What the nemesis does in this run.
    pub fn possible_faults(&self) -> Vec<Kind> {
        let has = |sink| self.tables.iter().any(|table| table.sink == sink);
        let possible = |kind: &Kind| match kind {
            Kind::Terminate | Kind::Restart | Kind::Cut | Kind::Slow | Kind::Hole => {
                self.database != Database::Sqlite
            }
            Kind::WayCut | Kind::WayHole => self.relays > 0,
            Kind::Broker => has(Sink::Nats),
            Kind::SinkSlow | Kind::SinkFailing | Kind::SinkLying => has(Sink::Http),
            Kind::Kill | Kind::Stop => self.relays > 0,
            Kind::KillProducer | Kind::Fill => !self.producers.is_empty(),
        };
        self.faults.iter().copied().filter(possible).collect()
    }
}

/// Which database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Database {
    Postgres,
    MySql,
    MariaDb,
    Sqlite,
}

impl Database {
    /// `true` for MySQL and MariaDB, which share one dialect of SQL.
    pub fn is_mysql(self) -> bool {
        matches!(self, Self::MySql | Self::MariaDb)
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL",
            Self::MariaDb => "MariaDB",
            Self::Sqlite => "SQLite",
        }
    }
}

impl std::str::FromStr for Database {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "postgres" => Ok(Self::Postgres),
            "mysql" => Ok(Self::MySql),
            "mariadb" => Ok(Self::MariaDb),
            "sqlite" => Ok(Self::Sqlite),
            _ => Err(format!("there is no database {text:?}; there are postgres, mysql, mariadb and sqlite")),
        }
    }
}

/// An outbox table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub name: String,
    pub mode: Mode,
    pub sink: Sink,
    /// How many aggregates its events are of.
    pub aggregates: usize,
}

impl Table {
    /// A table of each kind.
    pub fn usual() -> Vec<Self> {
        let table = |name: &str, mode, sink| Self { name: name.to_owned(), mode, sink, aggregates: 40 };
        vec![
            table("kept", Mode::Queue { keep: true }, Sink::Http),
            table("swept", Mode::Queue { keep: false }, Sink::Http),
            table("ordered", Mode::Stream { lanes: 4 }, Sink::Http),
            table("brokered", Mode::Stream { lanes: 2 }, Sink::Nats),
        ]
    }

    pub fn is_stream(&self) -> bool {
        matches!(self.mode, Mode::Stream { .. })
    }

    /// Whether its delivered rows stay, so that a key for deduplication holds after a delivery, too.
    pub fn keeps(&self) -> bool {
        self.mode != Mode::Queue { keep: false }
    }

    /// The names of its aggregates.
    pub fn aggregate(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }

    /// The topic of its events. One that the sink rejects lets its aggregate go on: nobody is there to decide.
    pub fn topic(&self, poison: bool) -> String {
        format!("torture.{}.{}", self.name, if poison { "poison" } else { "event" })
    }
}

/// What a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Delivered rows are kept, or deleted on delivery.
    Queue {
        keep: bool,
    },
    Stream {
        lanes: u16,
    },
}

/// Where a table's events go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sink {
    Http,
    Nats,
}

/// How a producer enqueues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// With the library, in a transaction of sqlx.
    Library,
    /// With plain SQL.
    PlainSql,
    /// With the library, in a transaction that knows its commit, beside a relay in the same process.
    Hot,
}

/// Of a hundred transactions, how many do this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    pub roll_back: u32,
    /// Stay open for up to `open_for` before their end.
    pub stay_open: u32,
    pub open_for: Duration,
    /// Enqueue an event a second time, under another id with the same key for deduplication.
    pub duplicate: u32,
    /// Have an event that the sink rejects, where the sink can.
    pub poison: u32,
    /// Most events of one transaction.
    pub most_events: usize,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            roll_back: 12,
            stay_open: 2,
            open_for: Duration::from_secs(5),
            duplicate: 6,
            poison: 1,
            most_events: 4,
        }
    }
}

/// What can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A relay is killed, and started again after a while.
    Kill,
    /// The same with a producer.
    KillProducer,
    /// A relay is stopped past its lease, and goes on.
    Stop,
    /// Some connections are ended by the server.
    Terminate,
    /// The server dies and comes back.
    Restart,
    /// The connections of a relay or producer are cut, and new ones refused.
    Cut,
    /// The connections of a relay or producer are slow.
    Slow,
    /// What a relay or producer and the server say to each other is held back, and arrives in the end.
    Hole,
    /// The connections of a relay to its sinks are cut, and new ones refused.
    WayCut,
    /// What a relay and its sinks say to each other is held back, and arrives in the end.
    WayHole,
    /// The broker dies and comes back.
    Broker,
    /// A sink takes its time.
    SinkSlow,
    /// A sink says that it is down, or that it failed.
    SinkFailing,
    /// A sink accepts, and says later that it failed, or nothing.
    SinkLying,
    /// Very many events at once.
    Fill,
}

impl Kind {
    pub const ALL: [Self; 15] = [
        Self::Kill,
        Self::KillProducer,
        Self::Stop,
        Self::Terminate,
        Self::Restart,
        Self::Cut,
        Self::Slow,
        Self::Hole,
        Self::WayCut,
        Self::WayHole,
        Self::Broker,
        Self::SinkSlow,
        Self::SinkFailing,
        Self::SinkLying,
        Self::Fill,
    ];

    /// Its name in the history.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillProducer => "kill_producer",
            Self::Stop => "stop",
            Self::Terminate => "terminate",
            Self::Restart => "restart",
            Self::Cut => "cut",
            Self::Slow => "slow",
            Self::Hole => "hole",
            Self::WayCut => "way_cut",
            Self::WayHole => "way_hole",
            Self::Broker => "broker",
            Self::SinkSlow => "sink_slow",
            Self::SinkFailing => "sink_failing",
            Self::SinkLying => "sink_lying",
            Self::Fill => "fill",
        }
    }
}

/// Times without faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calm {
    pub every: Duration,
    pub lasts: Duration,
}

impl Default for Calm {
    fn default() -> Self {
        Self { every: Duration::from_secs(90), lasts: Duration::from_secs(20) }
    }
}

/// What relays are told, those in producers among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    pub lease: Duration,
    pub lane_lease: Duration,
    pub timeout: Duration,
    pub sink_timeout: Duration,
    pub poll: Duration,
    pub backoff: (Duration, Duration),
    pub probe: (Duration, Duration),
    pub max_attempts: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let millis = Duration::from_millis;
        Self {
            lease: millis(4000),
            lane_lease: millis(3000),
            timeout: millis(3000),
            sink_timeout: millis(1200),
            poll: millis(400),
            backoff: (millis(200), millis(2000)),
            probe: (millis(300), millis(2000)),
            max_attempts: 60,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_without_a_server_suffers_no_faults_of_one() {
        let length = Duration::from_secs(60);
        let all = Plan::new(Database::Postgres, 1, length).possible_faults();
        assert_eq!(all, Kind::ALL);
        let sqlite = Plan::new(Database::Sqlite, 1, length).possible_faults();
        assert!(!sqlite.contains(&Kind::Cut) && sqlite.contains(&Kind::Stop), "{sqlite:?}");
        let mut alone = Plan::new(Database::Postgres, 1, length);
        alone.tables.retain(|table| table.sink == Sink::Http);
        assert!(!alone.possible_faults().contains(&Kind::Broker));
    }
}
