//! Claims: what a worker asks for and what it gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::{Lease, WorkerId};
use crate::event::{Available, Event};

/// A request for events to deliver.
///
/// | setting | default | why |
/// |---|---|---|
/// | `limit` | 500 | a batch that reaches most of the database's speed |
/// | `lease` | 60 s | twice the default timeout of a delivery |
/// | `attempts` | 25 | about a quarter of an hour of backoff up to 60 s |
#[derive(Debug, Clone)]
pub struct Claim {
    /// Who claims.
    pub worker: WorkerId,
    /// At most this many.
    pub limit: u32,
    /// How long they are this worker's.
    pub lease: Duration,
    /// After how many attempts an event is dead.
    pub attempts: AttemptLimits,
    /// Where the last claim left off; `None` looks at everything.
    ///
    /// Starting from a mark spares the database stepping over entries it cannot clean up yet (an old
    /// transaction somewhere). Rows that become claimable below it (late commits, ended leases, releases)
    /// are only found by a claim without one: send one every second or so.
    pub after: Option<Mark>,
    /// Of which topics.
    pub topics: Topics,
}

/// Which topics a claim is for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Topics {
    /// Every topic.
    #[default]
    All,
    /// These.
    Only(Vec<String>),
    /// Every other than these.
    Except(Vec<String>),
}

impl Topics {
    /// The one of three statements that it takes: for all, only some, all except some.
    pub(crate) fn choose<'s, S>(&self, [all, only, except]: [&'s S; 3]) -> &'s S {
        match self {
            Self::All => all,
            Self::Only(_) => only,
            Self::Except(_) => except,
        }
    }

    /// The topics it names.
    pub(crate) fn named(&self) -> Option<&[String]> {
        match self {
            Self::All => None,
            Self::Only(topics) | Self::Except(topics) => Some(topics),
        }
    }

    /// The topics it names, as a JSON array.
    pub(crate) fn json(&self) -> Option<String> {
        self.named().map(|topics| serde_json::Value::from(topics).to_string())
    }

    /// Whether it is for this topic.
    pub(crate) fn has(&self, topic: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(topics) => topics.iter().any(|only| only == topic),
            Self::Except(topics) => topics.iter().all(|except| except != topic),
        }
    }
}

impl Claim {
    /// A claim with the default settings.
    pub fn by(worker: WorkerId) -> Self {
        Self {
            worker,
            limit: 500,
            lease: Duration::from_secs(60),
            attempts: AttemptLimits::default(),
            after: None,
            topics: Topics::All,
        }
    }

    /// At most this many.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// How long they are this worker's.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// After how many attempts an event is dead.
    #[must_use]
    pub fn attempts(mut self, attempts: AttemptLimits) -> Self {
        self.attempts = attempts;
        self
    }

    /// Start where an earlier claim left off.
    #[must_use]
    pub fn after(mut self, mark: Option<Mark>) -> Self {
        self.after = mark;
        self
    }

    /// Of which topics.
    #[must_use]
    pub fn topics(mut self, topics: Topics) -> Self {
        self.topics = topics;
        self
    }
}

/// How often an event may be attempted before it is dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptLimits {
    default: u32,
    topics: BTreeMap<String, u32>,
}

impl AttemptLimits {
    /// The same for every topic; at least 1.
    pub fn new(default: u32) -> Self {
        Self { default: default.max(1), topics: BTreeMap::new() }
    }

    /// Another limit for one topic; at least 1.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>, limit: u32) -> Self {
        self.topics.insert(topic.into(), limit.max(1));
        self
    }

    /// The limit for this topic.
    pub fn of(&self, topic: &str) -> u32 {
        self.topics.get(topic).copied().unwrap_or(self.default)
    }

    /// The limit of topics that have none of their own.
    pub(crate) fn default_limit(&self) -> i32 {
        i32::try_from(self.default).unwrap_or(i32::MAX)
    }

    /// The topics' own limits as a JSON object, for the statements that look them up.
    pub(crate) fn topics_json(&self) -> String {
        let topics: serde_json::Map<String, serde_json::Value> = self
            .topics
            .iter()
            .map(|(topic, limit)| (topic.clone(), (*limit).min(i32::MAX as u32).into()))
            .collect();
        serde_json::Value::Object(topics).to_string()
    }
}

impl Default for AttemptLimits {
    fn default() -> Self {
        Self::new(25)
    }
}

/// How far a claim got: everything before it was taken or was not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub(crate) available_at: OffsetDateTime,
    pub(crate) sequence: i64,
}

impl Mark {
    /// A mark this long before it.
    pub(crate) fn earlier(self, by: Duration) -> Self {
        Self {
            available_at: self.available_at.saturating_sub(by.try_into().unwrap_or_default()),
            sequence: 0,
        }
    }
}

/// What a claim got.
#[derive(Debug, Clone, Default)]
pub struct ClaimedBatch {
    /// Events to deliver, in the order they became available.
    pub events: Vec<Claimed>,
    /// Rows that came up and were marked dead instead.
    pub buried: Vec<Buried>,
    /// How far it got; pass it to the next claim.
    pub mark: Option<Mark>,
}

impl ClaimedBatch {
    /// Puts the events into the order they became available, which databases do not return them in.
    pub(crate) fn sort(&mut self) {
        self.events.sort_by_key(|claimed| {
            let at = match claimed.event.available {
                Available::At(at) => at,
                Available::Now | Available::After(_) => claimed.created_at,
            };
            (at, claimed.lease.sequence)
        });
    }
}

/// An event leased to a worker.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The event as it was written.
    pub event: Arc<Event>,
    /// The right to settle it.
    pub lease: Lease,
    /// When its row was written, by the database's clock.
    pub created_at: OffsetDateTime,
}

/// A row that a claim marked dead: at its attempt limit, or not readable as an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buried {
    /// Its id; nil where even that cannot be read.
    pub id: Uuid,
    /// Its place in the table.
    pub sequence: i64,
    /// Its topic, as far as it can be read.
    pub topic: String,
    /// Why, as stored in `last_error`.
    pub reason: String,
}

/// Why a row at its attempt limit is dead, where its last attempt left no reason of its own.
pub(crate) const EXHAUSTED: &str =
    "no attempt left: the last one was never settled (its worker crashed or stalled)";

/// Between that reason and the error of the attempt before.
pub(crate) const BEFORE_IT: &str = "; the one before it: ";

/// Why a spent row is dead: its last error, or that its last attempt was never settled.
pub(crate) fn exhausted(leased: bool, last_error: Option<String>) -> String {
    match last_error {
        Some(error) if leased => format!("{EXHAUSTED}{BEFORE_IT}{error}"),
        Some(error) => error,
        None => EXHAUSTED.to_owned(),
    }
}
