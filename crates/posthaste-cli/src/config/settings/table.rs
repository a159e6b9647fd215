//! The tables: which are relayed and which are purged, each with its own settings or everybody's; and the topics.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste::relay::OnDead;
use posthaste::store::Mode;
use posthaste::{Backoff, TableName};

use super::Making;
use crate::config::origin::Origin;
use crate::config::path::Path;

/// One table.
#[derive(Debug, Clone)]
pub(crate) struct TableSettings {
    pub(crate) name: TableName,
    /// Whether its events are delivered.
    pub(crate) relayed: bool,
    /// Whether what is past its retention is deleted.
    pub(crate) cleaned: bool,
    /// How it is made, where it is made here.
    pub(crate) mode: Option<Mode>,
    pub(crate) migrate: bool,
    pub(crate) single_active: bool,
    pub(crate) poll_interval: Duration,
    pub(crate) batch: usize,
    pub(crate) capacity: Option<usize>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) lease: Duration,
    pub(crate) lane_lease: Duration,
    pub(crate) timeout: Duration,
    pub(crate) drain_timeout: Duration,
    pub(crate) backoff: BackoffSettings,
    pub(crate) probe_first: Duration,
    pub(crate) probe_longest: Duration,
    pub(crate) stats_interval: Duration,
    pub(crate) error_bytes: usize,
    pub(crate) mask_tenants: bool,
    pub(crate) purge_interval: Duration,
    /// Zero deletes on delivery.
    pub(crate) retention: Duration,
    /// For ever, if there is none.
    pub(crate) dead_retention: Option<Duration>,
}

/// When a failed event is tried again, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BackoffSettings {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    pub(crate) jitter: Jitter,
    pub(crate) max_attempts: u32,
}

/// What chance makes of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jitter {
    Equal,
    Scaled,
    None,
}

/// One topic; what it does not say is the table's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicSettings {
    pub(crate) ordered: bool,
    pub(crate) on_dead: OnDead,
    first: Option<Duration>,
    longest: Option<Duration>,
    jitter: Option<Jitter>,
    max_attempts: Option<u32>,
}

impl BackoffSettings {
    /// As the library wants it.
    pub(crate) fn policy(self) -> Backoff {
        let backoff = Backoff::exponential(self.first, self.longest).max_attempts(self.max_attempts);
        match self.jitter {
            Jitter::Equal => backoff.equal_jitter(),
            Jitter::Scaled => backoff.scaled_jitter(),
            Jitter::None => backoff.no_jitter(),
        }
    }
}

impl TopicSettings {
    /// Its own way of trying again in a table, if it has one.
    pub(crate) fn backoff(&self, table: BackoffSettings) -> Option<BackoffSettings> {
        let own = BackoffSettings {
            first: self.first.unwrap_or(table.first),
            longest: self.longest.unwrap_or(table.longest),
            jitter: self.jitter.unwrap_or(table.jitter),
            max_attempts: self.max_attempts.unwrap_or(table.max_attempts),
        };
        (own != table).then_some(own)
    }
}

impl Making<'_> {
    pub(super) fn tables(&mut self) -> Vec<TableSettings> {
        let relayed = self.relayed();
        let cleaned_path = Path::plain("cleaner.tables");
        let cleaned = match self.config.said(&cleaned_path) {
            Some(entry) => {
                let origin = entry.origin.clone();
                self.names(&cleaned_path, &origin)
            }
            None => relayed.clone(),
        };
        let (relays, cleans) = (self.switch("relay.enabled"), self.switch("cleaner.enabled"));
        let mut tables: Vec<TableSettings> = Vec::new();
        for name in relayed.iter().chain(&cleaned) {
            if tables.iter().all(|table| table.name != *name) {
                let table = self.table(name);
                tables.push(TableSettings {
                    relayed: relays && relayed.contains(name),
                    cleaned: cleans && cleaned.contains(name),
                    ..table
                });
            }
        }
        tables.retain(|table| table.relayed || table.cleaned);
        let command = Path::plain("database.table");
        let named = self.config.text(&command).unwrap_or_default();
        if self.config.is_set("database.table") && tables.iter().all(|table| table.name.to_string() != named)
        {
            let origin = self.config.origin(&command);
            self.warnings.push(format!(
                "{origin}: commands work on table {named}, which is neither relayed nor purged; see relay.tables"
            ));
        }
        for (name, origin) in self.config.names("tables") {
            let known = relayed.iter().chain(&cleaned).any(|table| table.to_string() == name);
            if !known {
                self.warnings.push(format!(
                    "{origin}: [tables.{name:?}] is for a table that is neither relayed nor purged; add it to relay.tables"
                ));
            }
        }
        if tables.is_empty() {
            let origin = self.config.origin(&Path::plain("relay.enabled"));
            self.wrong(&origin, "neither the relay nor the cleaner is enabled; nothing would be left to do");
        }
        tables
    }

    fn switch(&self, path: &str) -> bool {
        self.config.yes(&Path::plain(path))
    }

    fn relayed(&mut self) -> Vec<TableName> {
        let path = Path::plain("relay.tables");
        let sections = self.config.names("tables");
        if let Some(entry) = self.config.said(&path) {
            let origin = entry.origin.clone();
            return self.names(&path, &origin);
        }
        if sections.is_empty() {
            let path = Path::plain("database.table");
            let name = self.config.text(&path).unwrap_or_default();
            let origin = self.config.origin(&path);
            return self.name(&name, &path, &origin).into_iter().collect();
        }
        let mut names = Vec::new();
        for (name, origin) in sections {
            names.extend(self.name(&name, &Path::of(["tables", &name]), &origin));
        }
        names
    }

    fn names(&mut self, path: &Path, origin: &Origin) -> Vec<TableName> {
        let mut names: Vec<TableName> = Vec::new();
        for name in self.config.list(path) {
            match self.name(&name, path, origin) {
                Some(name) if names.contains(&name) => {
                    self.wrong(origin, format!("{path} names {name} twice; once is enough"));
                }
                name => names.extend(name),
            }
        }
        names
    }

    fn name(&mut self, name: &str, path: &Path, origin: &Origin) -> Option<TableName> {
        match name.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                self.wrong(origin, format!("{path} does not do: {error}"));
                None
            }
        }
    }

    fn table(&mut self, name: &TableName) -> TableSettings {
        let config = self.config;
        let label = name.to_string();
        let at = |leaf: &str| Path::of(["tables", &label, leaf]);
        let count = |leaf: &str| config.count(&at(leaf)).and_then(|count| usize::try_from(count).ok());
        let duration = |leaf: &str| config.duration(&at(leaf));
        let table = TableSettings {
            name: name.clone(),
            relayed: false,
            cleaned: false,
            mode: self.mode(&label),
            migrate: config.yes(&at("migrate")),
            single_active: config.yes(&at("single_active")),
            poll_interval: duration("poll_interval"),
            batch: count("batch").unwrap_or_default(),
            capacity: count("capacity"),
            concurrency: count("concurrency"),
            lease: duration("lease"),
            lane_lease: duration("lane_lease"),
            timeout: duration("timeout"),
            drain_timeout: duration("drain_timeout"),
            backoff: BackoffSettings {
                first: duration("backoff_first"),
                longest: duration("backoff_longest"),
                jitter: jitter(config.text(&at("jitter")).as_deref()),
                max_attempts: config
                    .count(&at("max_attempts"))
                    .and_then(|n| u32::try_from(n).ok())
                    .unwrap_or(1),
            },
            probe_first: duration("probe_first"),
            probe_longest: duration("probe_longest"),
            stats_interval: duration("stats_interval"),
            error_bytes: config
                .count(&at("error_bytes"))
                .and_then(|n| usize::try_from(n).ok())
                .unwrap_or(2048),
            mask_tenants: config.yes(&at("mask_tenants")),
            purge_interval: duration("purge_interval"),
            retention: duration("retention"),
            dead_retention: Some(duration("dead_retention")).filter(|retention| !retention.is_zero()),
        };
        self.compare(&table);
        table
    }

    /// What cannot work together.
    fn compare(&mut self, table: &TableSettings) {
        let label = table.name.to_string();
        let at = |leaf: &str| Path::of(["tables", &label, leaf]);
        let second = Duration::from_secs(1);
        let faults = [
            (
                table.timeout >= table.lease,
                ["timeout", "lease"],
                format!(
                    "the timeout {:?} is not shorter than the lease {:?}: another relay could take an event while it is \
                     being delivered; make the lease about twice the timeout",
                    table.timeout, table.lease
                ),
            ),
            (
                table.poll_interval > table.lease / 3,
                ["poll_interval", "lease"],
                format!(
                    "the poll interval {:?} is longer than a third of the lease {:?}: an ended lease would wait too long; \
                     poll more often or lease for longer",
                    table.poll_interval, table.lease
                ),
            ),
            (
                table.lane_lease < second,
                ["lane_lease", "lane_lease"],
                format!(
                    "the lane lease {:?} is shorter than a second; a relay that lives could not say so in time",
                    table.lane_lease
                ),
            ),
            (
                table.probe_longest < table.probe_first,
                ["probe_longest", "probe_first"],
                format!(
                    "probe_longest {:?} is shorter than probe_first {:?}; make it at least as long",
                    table.probe_longest, table.probe_first
                ),
            ),
            (
                table.backoff.longest < table.backoff.first,
                ["backoff_longest", "backoff_first"],
                format!(
                    "backoff_longest {:?} is shorter than backoff_first {:?}; make it at least as long",
                    table.backoff.longest, table.backoff.first
                ),
            ),
        ];
        for (fault, leaves, message) in faults {
            let said = leaves.iter().find_map(|leaf| self.config.said(&at(leaf)));
            // Where everybody's setting is at fault, once is enough.
            let origin = said.map_or(Origin::Default, |entry| entry.origin.clone());
            let message = format!("table {}: {message}", table.name);
            if fault && !self.mistakes.iter().any(|known| known.origin == origin && origin != Origin::Default)
            {
                self.wrong(&origin, message);
            }
        }
    }

    fn mode(&mut self, table: &str) -> Option<Mode> {
        let (mode, lanes) = (Path::of(["tables", table, "mode"]), Path::of(["tables", table, "lanes"]));
        let count = self.config.count(&lanes);
        match self.config.text(&mode).as_deref() {
            Some("stream") => {
                let made = Mode::stream(count.and_then(|lanes| u16::try_from(lanes).ok()).unwrap_or(1));
                made.map_err(|error| {
                    let origin = self.config.origin(&lanes);
                    self.wrong(&origin, format!("{lanes} does not do: {error}"));
                })
                .ok()
            }
            mode => {
                if count.is_some() {
                    let origin = self.config.origin(&lanes);
                    self.wrong(
                        &origin,
                        format!("{lanes} is for a stream; add mode = \"stream\", or leave it away"),
                    );
                }
                mode.map(|_| Mode::Queue)
            }
        }
    }

    pub(super) fn topics(&mut self) -> BTreeMap<String, TopicSettings> {
        let mut topics = BTreeMap::new();
        for (topic, origin) in self.config.names("topics") {
            if topic.contains('*') {
                let message =
                    format!("topics.{topic:?} has a * in it; settings of a topic are for one exact topic");
                self.wrong(&origin, message);
            }
            let at = |leaf: &str| Path::of(["topics", &topic, leaf]);
            let settings = TopicSettings {
                ordered: self.config.yes(&at("ordered")),
                on_dead: match self.config.text(&at("on_dead")).as_deref() {
                    Some("skip") => OnDead::GoOn,
                    _ => OnDead::Block,
                },
                first: self.config.maybe_duration(&at("backoff_first")),
                longest: self.config.maybe_duration(&at("backoff_longest")),
                jitter: self.config.text(&at("jitter")).map(|text| jitter(Some(&text))),
                max_attempts: self.config.count(&at("max_attempts")).and_then(|n| u32::try_from(n).ok()),
            };
            topics.insert(topic, settings);
        }
        topics
    }
}

fn jitter(name: Option<&str>) -> Jitter {
    match name {
        Some("scaled") => Jitter::Scaled,
        Some("none") => Jitter::None,
        _ => Jitter::Equal,
    }
}
