//! What operators look for: one filter for listing, counting, replaying and discarding.

use std::fmt;
use std::str::FromStr;

use time::macros::datetime;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result, quoted};

/// Where a row is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Waits to be claimed: now, or from its `available_at` on.
    Pending,
    /// Leased to a worker.
    Processing,
    /// Delivered, for good.
    Delivered,
    /// Given up; only an operator's replay brings it back.
    Dead,
}

impl Status {
    /// Its name, as the status view shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

impl Status {
    /// What the columns of a row mean at this time.
    pub(crate) fn read(
        outcome: Option<&str>,
        locked_until: Option<OffsetDateTime>,
        now: OffsetDateTime,
    ) -> Self {
        match outcome {
            Some("delivered") => Self::Delivered,
            Some(_) => Self::Dead,
            None if locked_until.is_some_and(|until| until > now) => Self::Processing,
            None => Self::Pending,
        }
    }

    /// The status that the database computed by name.
    pub(crate) fn named(name: &str) -> Self {
        name.parse().unwrap_or(Self::Pending)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Status {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Pending, Self::Processing, Self::Delivered, Self::Dead]
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| {
                let text = quoted(text, 40);
                let message = format!("{text} is not a status: pending, processing, delivered or dead");
                Error::new(ErrorKind::InvalidSetting, message)
            })
    }
}

/// Which events: every part that is set must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// One event.
    pub id: Option<Uuid>,
    /// Where it is in its life.
    pub status: Option<Status>,
    /// Its topic; `*` stands for any characters.
    pub topic: Option<String>,
    /// Its type.
    pub event_type: Option<String>,
    /// Its aggregate's type.
    pub aggregate_type: Option<String>,
    /// Its aggregate's id.
    pub aggregate_id: Option<String>,
    /// Its tenant.
    pub tenant_id: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// Written at or after this time.
    pub since: Option<OffsetDateTime>,
    /// Written before this time.
    pub until: Option<OffsetDateTime>,
    /// Settled before this time: what a replay in batches uses to end.
    pub settled_before: Option<OffsetDateTime>,
}

impl Filter {
    /// Every event.
    pub fn all() -> Self {
        Self::default()
    }

    /// Events in this state.
    pub fn status(status: Status) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Dead events.
    pub fn dead() -> Self {
        Self::status(Status::Dead)
    }

    /// Only this event.
    #[must_use]
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// Only this topic; `*` stands for any characters.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only this type of event.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Only this aggregate.
    #[must_use]
    pub fn aggregate(mut self, aggregate_type: impl Into<String>, aggregate_id: impl ToString) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self.aggregate_id = Some(aggregate_id.to_string());
        self
    }

    /// Only this tenant.
    #[must_use]
    pub fn tenant(mut self, tenant_id: impl Into<String>) -> Self {
        self.tenant_id = Some(tenant_id.into());
        self
    }

    /// Only this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Written at or after this time.
    #[must_use]
    pub fn since(mut self, since: OffsetDateTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Written before this time.
    #[must_use]
    pub fn until(mut self, until: OffsetDateTime) -> Self {
        self.until = Some(until);
        self
    }

    /// Settled before this time.
    #[must_use]
    pub fn settled_before(mut self, before: OffsetDateTime) -> Self {
        self.settled_before = Some(before);
        self
    }
}

/// What is looked for, for people: `dead events of topic "order.*", written since 2026-01-01 …`.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.id, self.status) {
            (Some(id), _) => write!(f, "event {id}")?,
            (None, Some(status)) => write!(f, "{status} events")?,
            (None, None) => f.write_str("events")?,
        }
        let texts = [
            ("topic", &self.topic),
            ("type", &self.event_type),
            ("aggregate type", &self.aggregate_type),
            ("aggregate", &self.aggregate_id),
            ("tenant", &self.tenant_id),
            ("namespace", &self.namespace),
        ];
        let mut joint = " of";
        for (name, value) in texts.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
            let beginning: String = value.chars().take(60).collect();
            write!(f, "{joint} {name} {beginning:?}")?;
            joint = " and";
        }
        let times = [("since", self.since), ("before", self.until)];
        let mut joint = " written";
        for (name, at) in times.iter().filter_map(|(name, at)| Some((name, (*at)?))) {
            write!(f, "{joint} {name} {at}")?;
            joint = " and";
        }
        Ok(())
    }
}

/// For the statements of the databases.
impl Filter {
    /// Columns that must equal a text. The names are constants, so that they can be put into SQL.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("coalesce(event_type, topic)", &self.event_type),
            ("aggregate_type", &self.aggregate_type),
            ("aggregate_id", &self.aggregate_id),
            ("tenant_id", &self.tenant_id),
            ("namespace", &self.namespace),
        ]
        .into_iter()
        .filter_map(|(column, value)| value.as_deref().map(|value| (column, value)))
    }

    /// Columns that are compared with a time, and how.
    pub(crate) fn times(&self) -> impl Iterator<Item = (&'static str, OffsetDateTime)> {
        [("created_at >=", self.since), ("created_at <", self.until), ("settled_at <", self.settled_before)]
            .into_iter()
            .filter_map(|(comparison, at)| at.map(|at| (comparison, comparable(at))))
    }
}

/// A time that every database can be given, in UTC: what lies before or behind all rows does so by less.
fn comparable(at: OffsetDateTime) -> OffsetDateTime {
    let (first, last) = (datetime!(1000-01-01 0:00 UTC), datetime!(9999-12-31 23:59:59.999999 UTC));
    at.checked_to_offset(UtcOffset::UTC).unwrap_or(last).clamp(first, last)
}

/// The columns that a filter may ask for, and no payload among them.
pub(crate) const FILTER_COLUMNS: &str = "id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, created_at, settled_at, locked_until, outcome";

/// A topic with `*` as a pattern for `LIKE … ESCAPE '!'`; `None` if it has none and equality will do.
pub(crate) fn like_pattern(topic: &str) -> Option<String> {
    topic
        .contains('*')
        .then(|| topic.replace('!', "!!").replace('%', "!%").replace('_', "!_").replace('*', "%"))
}

/// A topic with `*` as a pattern for SQLite's `GLOB`, which unlike its `LIKE` minds the case; `None` if it
/// has none and equality will do.
#[cfg(feature = "sqlite")]
pub(crate) fn glob_pattern(topic: &str) -> Option<String> {
    topic.contains('*').then(|| topic.replace('[', "[[]").replace('?', "[?]"))
}

/// One page of a listing, in the order of the ids, which for version 7 is that of their making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// At most this many.
    pub limit: u32,
    /// Continue behind this id.
    pub after: Option<Uuid>,
    /// Newest first instead of oldest first.
    pub newest_first: bool,
}

impl Page {
    /// The first page of this many, oldest first.
    pub fn first(limit: u32) -> Self {
        Self { limit, after: None, newest_first: false }
    }

    /// The first page of this many, newest first.
    pub fn newest(limit: u32) -> Self {
        Self { limit, after: None, newest_first: true }
    }

    /// The page behind this id.
    #[must_use]
    pub fn behind(mut self, id: Uuid) -> Self {
        self.after = Some(id);
        self
    }
}
