//! Which events: the same filter for listing, replaying and discarding, in a query or in a body.

use posthaste::store::Filter;
use time::OffsetDateTime;

use crate::http::input::Fields;
use crate::http::problem::Problem;
use crate::when;

/// Its fields.
pub(super) const FILTER: [&str; 7] =
    ["topic", "event_type", "aggregate", "tenant", "namespace", "since", "until"];

/// Those that fit, by the database's clock.
pub(super) fn filter(fields: &Fields, now: OffsetDateTime) -> Result<Filter, Problem> {
    let mut filter = Filter::all();
    filter.topic = fields.text("topic")?;
    filter.event_type = fields.text("event_type")?;
    let aggregate = fields.parsed("aggregate", |text| {
        text.split_once('/')
            .map(|(kind, id)| (kind.to_owned(), id.to_owned()))
            .ok_or("write a type and an id such as order/42")
    })?;
    (filter.aggregate_type, filter.aggregate_id) = aggregate.unzip();
    filter.tenant_id = fields.text("tenant")?;
    filter.namespace = fields.text("namespace")?;
    filter.since = fields.parsed("since", when::when)?.map(|since| since.resolve(now));
    filter.until = fields.parsed("until", when::when)?.map(|until| until.resolve(now));
    Ok(filter)
}
