//! What programs see, of `--json` and of the HTTP API alike: a contract.

use std::collections::BTreeMap;
use std::io::Write;

use posthaste::admin::TableStatus;
use posthaste::store::stream::{BlockedAggregate, LaneLag};
use posthaste::store::{Mode, Record};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use time::OffsetDateTime;

use crate::failure::Failure;
use crate::when::rfc3339;

/// How a table stands. What the database does not know is null.
pub(crate) fn status(status: &TableStatus) -> Value {
    let stats = &status.stats;
    let lanes = match status.mode {
        Some(Mode::Stream(lanes)) => Some(lanes.count()),
        _ => None,
    };
    json!({
        "table": status.table.to_string(),
        "mode": status.mode.map_or("queue", Mode::as_str),
        "lanes": lanes,
        "pending": stats.pending.n,
        "processing": stats.processing.n,
        "dead": stats.dead.n,
        "capped": stats.pending.capped || stats.processing.capped || stats.dead.capped,
        "oldest_seconds": stats.oldest_age.map(|age| age.as_secs_f64()),
        "delivered_per_second": status.delivered.map(|delivered| delivered.per_second()),
        // Of a queue, those that hold an event now: that none does says nothing of the others.
        "relays": (lanes.is_some() || !status.workers.is_empty()).then_some(&status.workers),
        "blocked_aggregates": lanes.map(|_| status.blocked.n),
        "schema": status.schema.0,
        "newest_schema": status.schema.1,
        "clock_skew_seconds": status.clock_skew.as_seconds_f64(),
        "now": rfc3339(status.now),
    })
}

/// One event. Times are RFC 3339 in UTC; what an event does not have is null.
#[derive(Debug, Serialize)]
pub(crate) struct EventJson<'a> {
    id: String,
    sequence: i64,
    status: &'static str,
    attempts: u32,
    topic: Option<&'a str>,
    event_type: Option<&'a str>,
    aggregate_type: Option<&'a str>,
    aggregate_id: Option<&'a str>,
    namespace: Option<&'a str>,
    tenant_id: Option<&'a str>,
    dedupe_key: Option<&'a str>,
    version: Option<u32>,
    headers: Option<&'a BTreeMap<String, String>>,
    occurred_at: Option<String>,
    created_at: String,
    available_at: String,
    settled_at: Option<String>,
    locked_by: Option<&'a str>,
    locked_until: Option<String>,
    last_error: Option<&'a str>,
    content_type: Option<&'a str>,
    payload_size: Option<usize>,
    /// As it was written; absent from listings, and null where it is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Option<&'a RawValue>>,
    /// Why the row cannot be read as an event, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<&'a str>,
}

impl<'a> EventJson<'a> {
    /// Without its payload.
    pub(crate) fn new(record: &'a Record) -> Self {
        let event = record.event.as_ref().ok();
        let time = |at: Option<OffsetDateTime>| at.map(rfc3339);
        Self {
            id: record.id.to_string(),
            sequence: record.sequence,
            status: record.status.as_str(),
            attempts: record.attempts,
            topic: event.map(|e| e.topic()),
            event_type: event.map(|e| e.event_type()),
            aggregate_type: event.and_then(|e| e.aggregate_type()),
            aggregate_id: event.and_then(|e| e.aggregate_id()),
            namespace: event.map(|e| e.namespace()),
            tenant_id: event.and_then(|e| e.tenant_id()),
            dedupe_key: event.and_then(|e| e.dedupe_key()),
            version: event.map(|e| e.version()),
            headers: event.map(|e| e.headers()),
            occurred_at: time(event.and_then(|e| e.occurred_at())),
            created_at: rfc3339(record.created_at),
            available_at: rfc3339(record.available_at),
            settled_at: time(record.settled_at),
            locked_by: record.locked_by.as_deref(),
            locked_until: time(record.locked_until),
            last_error: record.last_error.as_deref(),
            content_type: event.map(|e| e.payload().content_type()),
            payload_size: event.map(|e| e.payload().bytes().len()),
            payload: None,
            unreadable: record.event.as_ref().err().map(String::as_str),
        }
    }

    /// With its payload, where that is JSON.
    pub(crate) fn with_payload(record: &'a Record) -> Self {
        let text = record.event.as_ref().ok().and_then(|event| event.payload().as_json());
        let payload = text.and_then(|text| serde_json::from_str(text).ok());
        Self { payload: Some(payload), ..Self::new(record) }
    }
}

/// One lane of a stream.
pub(crate) fn lane(lane: &LaneLag) -> Value {
    json!({
        "lane": lane.lane,
        "owner": lane.owner,
        "waiting": lane.events.n,
        "oldest_seconds": lane.age.map(|age| age.as_secs_f64()),
        "parked": lane.parked.n,
        "blocked": lane.blocked.n,
        "capped": lane.events.capped || lane.parked.capped || lane.blocked.capped,
    })
}

/// One aggregate of a stream that waits for an operator.
pub(crate) fn blocked(blocked: &BlockedAggregate) -> Value {
    json!({
        "namespace": blocked.namespace,
        "aggregate_type": blocked.aggregate_type,
        "aggregate_id": blocked.aggregate_id,
        "lane": blocked.lane,
        "event_id": blocked.event_id.to_string(),
        "topic": blocked.topic,
        "since": rfc3339(blocked.since),
        "reason": blocked.reason,
        "waiting": blocked.waiting.n,
        "capped": blocked.waiting.capped,
    })
}

/// Writes a value as one JSON document.
pub(crate) fn write<T: Serialize + ?Sized>(out: &mut impl Write, value: &T) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Writes a value as one line of JSON, and lets it go at once: whoever reads along waits for it.
pub(crate) fn line<T: Serialize + ?Sized>(out: &mut impl Write, value: &T) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}
