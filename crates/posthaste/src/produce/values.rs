//! An event's values in the order the insert statements bind them, for client libraries other than sqlx.
//!
//! The statements are the same for every library, but for shorter ones that only sqlx has; only how a value is handed over
//! differs. The order is written down here, once, and each library says how it binds each kind of value.

use std::borrow::Cow;

use time::OffsetDateTime;
use uuid::Uuid;

use crate::store::columns::Columns;
use crate::store::columns::time_text;

/// One value of one event.
pub(super) enum Value<'a> {
    Id(Uuid),
    Text(Option<Cow<'a, str>>),
    Bytes(Option<&'a [u8]>),
    Int(i32),
    Long(Option<i64>),
}

impl Value<'_> {
    /// A time as PostgreSQL's and MySQL's statements take it.
    pub(super) fn time(at: Option<OffsetDateTime>) -> Value<'static> {
        Value::Text(at.map(|at| Cow::Owned(time_text(at))))
    }

    /// A time as SQLite's statements take it: microseconds since 1970.
    #[cfg(feature = "sqlite")]
    pub(super) fn micros(at: Option<OffsetDateTime>) -> Value<'static> {
        Value::Long(at.map(crate::store::sqlite::stored_time))
    }
}

/// The values of one row, with times as the database wants them.
pub(super) fn row<'a>(
    event: &'a Columns<'_>,
    time: fn(Option<OffsetDateTime>) -> Value<'static>,
) -> [Value<'a>; 16] {
    let text = |text: Option<&'a str>| Value::Text(text.map(Cow::Borrowed));
    [
        Value::Id(event.id),
        text(Some(event.topic)),
        text(event.event_type),
        text(event.aggregate_type),
        text(event.aggregate_id),
        text(Some(event.namespace)),
        text(event.tenant_id),
        text(event.dedupe_key),
        text(event.content_type),
        text(event.headers.as_deref()),
        text(event.payload),
        Value::Bytes(event.payload_bytes),
        Value::Int(event.version),
        time(event.occurred_at),
        time(event.available_at),
        Value::Long(Some(event.delay)),
    ]
}

/// One value of every event, for PostgreSQL, whose statement for many events takes an array per column.
#[cfg(feature = "postgres")]
pub(super) enum Array<'a> {
    Id(Vec<Uuid>),
    Text(Vec<Option<Cow<'a, str>>>),
    Bytes(Vec<Option<&'a [u8]>>),
    Int(Vec<i32>),
    Long(Vec<i64>),
}

/// The arrays that PostgreSQL's insert of many events takes.
#[cfg(feature = "postgres")]
pub(super) fn arrays<'a>(events: &'a [Columns<'_>]) -> [Array<'a>; 16] {
    fn text<'a>(events: &'a [Columns<'_>], column: impl Fn(&'a Columns<'_>) -> Option<&'a str>) -> Array<'a> {
        Array::Text(events.iter().map(|e| column(e).map(Cow::Borrowed)).collect())
    }
    fn time<'a>(
        events: &[Columns<'_>],
        column: impl Fn(&Columns<'_>) -> Option<OffsetDateTime>,
    ) -> Array<'a> {
        Array::Text(events.iter().map(|e| column(e).map(|at| Cow::Owned(time_text(at)))).collect())
    }
    [
        Array::Id(events.iter().map(|e| e.id).collect()),
        text(events, |e| Some(e.topic)),
        text(events, |e| e.event_type),
        text(events, |e| e.aggregate_type),
        text(events, |e| e.aggregate_id),
        text(events, |e| Some(e.namespace)),
        text(events, |e| e.tenant_id),
        text(events, |e| e.dedupe_key),
        text(events, |e| e.content_type),
        text(events, |e| e.headers.as_deref()),
        text(events, |e| e.payload),
        Array::Bytes(events.iter().map(|e| e.payload_bytes).collect()),
        Array::Int(events.iter().map(|e| e.version).collect()),
        time(events, |e| e.occurred_at),
        time(events, |e| e.available_at),
        Array::Long(events.iter().map(|e| e.delay).collect()),
    ]
}

/// The arrays by which PostgreSQL finds who was first.
#[cfg(feature = "postgres")]
pub(super) fn keys<'a>(events: &[&'a Columns<'_>]) -> [Array<'a>; 4] {
    [
        Array::Id(events.iter().map(|e| e.id).collect()),
        Array::Text(events.iter().map(|e| Some(Cow::Borrowed(e.namespace))).collect()),
        Array::Text(events.iter().map(|e| Some(Cow::Borrowed(e.topic))).collect()),
        Array::Text(events.iter().map(|e| e.dedupe_key.map(Cow::Borrowed)).collect()),
    ]
}
