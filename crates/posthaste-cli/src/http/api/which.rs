//! Which events: the same filter for listing, replaying and discarding, in a query or in a body.

use posthaste::store::Filter;
use time::OffsetDateTime;

use crate::http::input::Fields;
use crate::http::problem::Problem;
use crate::when;

/// Its fields.
pub(super) const FILTER: [&str; 7] =
    ["topic", "event_type", "aggregate", "tenant", "namespace", "since", "until"];

/// Characters of a field: more than the longest, an aggregate's type and id, can have.
const LONGEST: usize = 512;

/// Those that fit, by the database's clock.
pub(super) fn filter(fields: &Fields, now: OffsetDateTime) -> Result<Filter, Problem> {
    let mut filter = Filter::all();
    filter.topic = text(fields, "topic")?;
    filter.event_type = text(fields, "event_type")?;
    text(fields, "aggregate")?;
    let aggregate = fields.parsed("aggregate", |text| {
        text.split_once('/')
            .map(|(kind, id)| (kind.to_owned(), id.to_owned()))
            .ok_or("write a type and an id such as order/42")
    })?;
    (filter.aggregate_type, filter.aggregate_id) = aggregate.unzip();
    filter.tenant_id = text(fields, "tenant")?;
    filter.namespace = text(fields, "namespace")?;
    filter.since = fields.parsed("since", when::when)?.map(|since| since.resolve(now));
    filter.until = fields.parsed("until", when::when)?.map(|until| until.resolve(now));
    Ok(filter)
}

/// A text that some event may have. Databases refuse others in words of their own: PostgreSQL those with a zero in them, SQLite
/// patterns of many thousand characters.
fn text(fields: &Fields, name: &str) -> Result<Option<String>, Problem> {
    let text = fields.text(name)?;
    match text.as_deref().map(|text| (text.chars().count(), text.contains('\0'))) {
        Some((length, _)) if length > LONGEST => {
            Err(fields.wrong(name, format!("{length} characters long; give at most {LONGEST}")))
        }
        Some((_, true)) => Err(fields.wrong(name, "no text of an event: it has the character U+0000 in it")),
        _ => Ok(text),
    }
}
