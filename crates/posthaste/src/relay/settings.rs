//! The relay's settings, and which of them cannot work together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::retry::{Random, Retries, SystemRandom};
use super::stream::OnDead;
use crate::dispatch::TopicMap;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Keep, TableName};

/// The fewest and the most bytes of an error that are stored: what is shorter says nothing, what is longer bloats the row.
pub(super) const ERROR_BYTES: (usize, usize) = (64, 2048);

/// What a relay is told; the builder documents each with the reason for its default.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) batch: usize,
    pub(super) capacity: usize,
    pub(super) concurrency: Option<usize>,
    pub(super) hot: usize,
    pub(super) poll: Duration,
    pub(super) lease: Duration,
    pub(super) timeout: Duration,
    pub(super) drain: Duration,
    pub(super) probe: (Duration, Duration),
    pub(super) retention: Duration,
    pub(super) dead_retention: Option<Duration>,
    pub(super) purge_every: Duration,
    pub(super) stats_every: Duration,
    pub(super) single_active: bool,
    pub(super) mask_tenants: bool,
    /// Bytes of an error that are stored.
    pub(super) error_bytes: usize,
    pub(super) retries: Retries,
    pub(super) random: Arc<dyn Random>,
    pub(super) topics: Option<TopicMap>,
    pub(super) lane_lease: Duration,
    pub(super) on_dead: HashMap<String, OnDead>,
    pub(super) unordered: HashSet<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch: 500,
            capacity: 0,
            concurrency: None,
            hot: 1024,
            poll: Duration::from_secs(1),
            lease: Duration::from_secs(60),
            timeout: Duration::from_secs(30),
            drain: Duration::from_secs(5),
            probe: (Duration::from_secs(1), Duration::from_secs(30)),
            retention: Duration::from_secs(7 * 86_400),
            dead_retention: None,
            purge_every: Duration::from_secs(60),
            stats_every: Duration::from_secs(5),
            single_active: false,
            mask_tenants: false,
            error_bytes: ERROR_BYTES.1,
            retries: Retries::default(),
            random: Arc::new(SystemRandom),
            topics: None,
            lane_lease: Duration::from_secs(10),
            on_dead: HashMap::new(),
            unordered: HashSet::new(),
        }
    }
}

/// It is renewed four times in its time, with a pause of a busy machine or database in between.
const SHORTEST_LANE_LEASE: Duration = Duration::from_secs(1);

impl Settings {
    /// How many claimed events are in memory at once: enough to claim while the last batch is under way, and more
    /// where several routes share it.
    pub(super) fn capacity(&self, routes: usize) -> usize {
        /// Beyond this many routes they share what there is.
        const MOST: usize = 8;
        if self.capacity == 0 { self.batch.saturating_mul(routes.clamp(1, MOST) + 1) } else { self.capacity }
    }

    /// How many publishes run at once where nothing was said: batches keep a broker busy with a few, handlers
    /// wait for others most of their time.
    pub(super) fn concurrency(&self, batch_limit: usize) -> usize {
        self.concurrency.unwrap_or(if batch_limit == 1 { 32 } else { 4 })
    }

    /// What is kept of events that were delivered.
    pub(super) fn keep(&self) -> Keep {
        if self.retention.is_zero() { Keep::Nothing } else { Keep::Delivered }
    }

    /// Refuses what cannot work, and says which.
    pub(super) fn check(&self, table: &TableName) -> Result<()> {
        let refuse = |message: String| {
            Err(Error::new(ErrorKind::InvalidSetting, format!("relay of table {table}: {message}")))
        };
        let positive =
            [("batch", self.batch), ("capacity", self.capacity(1)), ("concurrency", self.concurrency(1))];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return refuse(format!("{name} is 0: nothing would ever move"));
        }
        let durations = [
            ("poll interval", self.poll),
            ("lease", self.lease),
            ("timeout", self.timeout),
            ("first probe", self.probe.0),
            ("purge interval", self.purge_every),
            ("stats interval", self.stats_every),
            ("lane lease", self.lane_lease),
        ];
        if let Some((name, _)) = durations.iter().find(|(_, value)| value.is_zero()) {
            return refuse(format!("the {name} is 0"));
        }
        if self.lane_lease < SHORTEST_LANE_LEASE {
            return refuse(format!(
                "the lane lease {:?} is shorter than {SHORTEST_LANE_LEASE:?}: a relay that lives could not say so in time",
                self.lane_lease
            ));
        }
        let (fewest, most) = ERROR_BYTES;
        if !(fewest..=most).contains(&self.error_bytes) {
            return refuse(format!(
                "{} bytes of an error: between {fewest} and {most} are stored",
                self.error_bytes
            ));
        }
        if self.timeout >= self.lease {
            return refuse(format!(
                "timeout {:?} is not shorter than the lease {:?}: another worker could take an event while it \
                 is being delivered",
                self.timeout, self.lease
            ));
        }
        if self.poll > self.lease / 3 {
            return refuse(format!(
                "poll interval {:?} is longer than a third of the lease {:?}: an ended lease would wait too long",
                self.poll, self.lease
            ));
        }
        if self.probe.1 < self.probe.0 {
            return refuse(format!(
                "the longest time between probes {:?} is shorter than the first {:?}",
                self.probe.1, self.probe.0
            ));
        }
        Ok(())
    }
}
