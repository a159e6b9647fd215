//! Which events: the same options for listing, following, replaying and discarding.

use posthaste::store::Filter;
use time::OffsetDateTime;

use crate::when::{self, When};

/// Which events; every option that is given must fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Which")]
pub(crate) struct Which {
    /// Only this topic; * stands for any characters
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only this type of event
    #[arg(long, value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Only this aggregate, such as order/42
    #[arg(long, value_name = "TYPE/ID", value_parser = aggregate)]
    pub(crate) aggregate: Option<Aggregate>,
    /// Only this tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only this namespace
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    /// Written since then: so long ago (2h), or at or after a time (2026-01-31, 2026-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = when::when)]
    pub(crate) since: Option<When>,
    /// Written before then
    #[arg(long, value_name = "WHEN", value_parser = when::when)]
    pub(crate) until: Option<When>,
}

impl Which {
    /// Whether every event fits.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// As the library asks for them, given the database's clock.
    pub(crate) fn filter(self, now: OffsetDateTime) -> Filter {
        let mut filter = Filter::all();
        filter.topic = self.topic;
        filter.event_type = self.event_type;
        (filter.aggregate_type, filter.aggregate_id) = self.aggregate.map(|a| (a.kind, a.id)).unzip();
        filter.tenant_id = self.tenant;
        filter.namespace = self.namespace;
        filter.since = self.since.map(|since| since.resolve(now));
        filter.until = self.until.map(|until| until.resolve(now));
        filter
    }
}

/// What an event happened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Aggregate {
    pub(crate) kind: String,
    pub(crate) id: String,
}

/// Reads a type and an id.
pub(crate) fn aggregate(text: &str) -> Result<Aggregate, String> {
    let (kind, id) = text.split_once('/').ok_or("not a type and an id such as order/42")?;
    Ok(Aggregate { kind: kind.to_owned(), id: id.to_owned() })
}
