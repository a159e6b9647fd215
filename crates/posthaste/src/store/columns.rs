//! An event as the values of its columns, the same for every client library.

use compact_str::CompactString;
use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use uuid::Uuid;

use super::BirthLease;
use super::settlement::micros;
use crate::event::{Available, DEFAULT_NAMESPACE, Event, Headers, Novelty, Payload};

/// How a time is given to a database as text: UTC, without a zone.
const TIME: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second].[subsecond digits:6]");

/// The values an insert binds.
pub(crate) struct Columns<'a> {
    pub(crate) id: Uuid,
    pub(crate) topic: &'a str,
    pub(crate) event_type: Option<&'a str>,
    pub(crate) aggregate_type: Option<&'a str>,
    pub(crate) aggregate_id: Option<&'a str>,
    pub(crate) namespace: &'a str,
    pub(crate) tenant_id: Option<&'a str>,
    pub(crate) dedupe_key: Option<&'a str>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) headers: Option<String>,
    pub(crate) payload: Option<&'a str>,
    pub(crate) payload_bytes: Option<&'a [u8]>,
    pub(crate) version: i32,
    /// `None`: the database's clock.
    pub(crate) occurred_at: Option<OffsetDateTime>,
    /// `None`: the database's clock and the delay.
    pub(crate) available_at: Option<OffsetDateTime>,
    /// Microseconds.
    pub(crate) delay: i64,
    /// `None`: a pending row.
    pub(crate) lease: Option<BirthLease<'a>>,
    /// Whether no other event can have its id.
    pub(crate) is_new: bool,
}

impl<'a> Columns<'a> {
    /// The columns of an event.
    pub(crate) fn of(event: &'a Event) -> Self {
        let (available_at, delay) = match event.available {
            Available::Now => (None, 0),
            Available::After(delay) => (None, micros(delay)),
            Available::At(at) => (Some(at), 0),
        };
        Self {
            id: event.id,
            topic: &event.topic,
            event_type: event.event_type.as_deref(),
            aggregate_type: event.aggregate_type.as_deref(),
            aggregate_id: event.aggregate_id.as_deref(),
            namespace: &event.namespace,
            tenant_id: event.tenant_id.as_deref(),
            dedupe_key: event.dedupe_key.as_deref(),
            content_type: event.payload.stored_content_type(),
            headers: headers_text(&event.headers),
            payload: event.payload.as_json(),
            payload_bytes: event.payload.as_binary(),
            version: i32::try_from(event.version).unwrap_or(i32::MAX),
            occurred_at: event.occurred_at,
            available_at,
            delay,
            lease: None,
            is_new: event.novelty.is_new(),
        }
    }

    /// Whether it has nothing but its id, topic, type, aggregate, tenant, headers and a payload of JSON, as most events do: its
    /// namespace is the default one, its version the first, and it is due at once. It may be leased, and dated.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { namespace, dedupe_key, content_type, payload_bytes, version, .. } = self;
        let is_due = self.available_at.is_none() && self.delay == 0;
        let is_usual = *namespace == DEFAULT_NAMESPACE && *version == 1;
        is_due && is_usual && dedupe_key.is_none() && content_type.is_none() && payload_bytes.is_none()
    }

    /// How often its delivery has been begun: a lease is an attempt.
    pub(crate) fn attempts(&self) -> i32 {
        i32::from(self.lease.is_some())
    }

    /// Who has its lease.
    pub(crate) fn locked_by(&self) -> Option<&'a str> {
        self.lease.map(|lease| lease.holder)
    }

    /// How long its lease lasts, in microseconds.
    pub(crate) fn lease_length(&self) -> Option<i64> {
        self.lease.map(|lease| micros(lease.length))
    }

    /// About how many bytes it adds to a statement.
    pub(crate) fn size(&self) -> usize {
        const REST: usize = 512;
        REST + self.payload.map_or(0, str::len)
            + self.payload_bytes.map_or(0, <[u8]>::len)
            + self.headers.as_ref().map_or(0, String::len)
    }
}

/// Splits rows into runs that fit one statement.
pub(crate) fn chunks<'a>(rows: impl Iterator<Item = Columns<'a>>, most_rows: usize) -> Vec<Vec<Columns<'a>>> {
    /// Below every server's default limit for one packet or message.
    const MOST_BYTES: usize = 8 * 1024 * 1024;
    let mut chunks: Vec<Vec<Columns<'_>>> = Vec::new();
    let mut bytes = 0;
    for columns in rows {
        let size = columns.size();
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < most_rows && bytes + size <= MOST_BYTES => {
                bytes += size;
                chunk.push(columns);
            }
            _ => {
                bytes = size;
                chunks.push(vec![columns]);
            }
        }
    }
    chunks
}

/// A time as text, in UTC.
pub(crate) fn time_text(at: OffsetDateTime) -> String {
    // Formatting into a string with a checked format only fails for years beyond 9999, which events refuse.
    at.to_offset(time::UtcOffset::UTC).format(TIME).unwrap_or_default()
}

fn headers_text(headers: &Headers) -> Option<String> {
    if headers.is_empty() { None } else { serde_json::to_string(headers).ok() }
}

/// What a row says of an event, on its way back.
pub(crate) struct StoredColumns<'r> {
    pub(crate) id: Uuid,
    pub(crate) topic: &'r str,
    pub(crate) event_type: Option<&'r str>,
    pub(crate) aggregate_type: Option<&'r str>,
    pub(crate) aggregate_id: Option<&'r str>,
    pub(crate) namespace: &'r str,
    pub(crate) tenant_id: Option<&'r str>,
    pub(crate) dedupe_key: Option<&'r str>,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) payload_bytes: Option<Vec<u8>>,
    pub(crate) version: i32,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) available_at: OffsetDateTime,
}

impl StoredColumns<'_> {
    /// The event, or why it cannot be read.
    pub(crate) fn into_event(self) -> Result<Event, String> {
        let headers = match self.headers {
            None => Headers::new(),
            Some(text) => serde_json::from_str(&text).map_err(|error| not_headers(&error))?,
        };
        let payload = match (self.payload, self.payload_bytes) {
            (Some(text), None) => Payload::json(text),
            (None, Some(bytes)) => Payload::binary(
                self.content_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
                bytes,
            ),
            _ => return Err("undecodable: exactly one of payload and payload_bytes must be set".to_owned()),
        };
        let version =
            u32::try_from(self.version).map_err(|_| format!("undecodable: version is {}", self.version))?;
        Ok(Event {
            id: self.id,
            topic: self.topic.into(),
            event_type: self.event_type.map(CompactString::from),
            aggregate_type: self.aggregate_type.map(CompactString::from),
            aggregate_id: self.aggregate_id.map(CompactString::from),
            namespace: self.namespace.into(),
            tenant_id: self.tenant_id.map(CompactString::from),
            dedupe_key: self.dedupe_key.map(CompactString::from),
            payload,
            headers,
            version,
            occurred_at: Some(self.occurred_at),
            available: Available::At(self.available_at),
            novelty: Novelty::default(),
        })
    }
}

/// That headers are none, and where. The error's own words would repeat a value that is no string.
fn not_headers(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    format!("undecodable: headers are not an object of strings (line {line}, column {column})")
}

/// Why a column could not be read, in the words that are stored.
pub(crate) fn undecodable(column: &str, error: impl std::fmt::Display) -> String {
    format!("undecodable: column {column}: {error}")
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use super::*;
    use crate::event::EventBuilder;

    #[test]
    fn en1_an_event_is_plain_while_nothing_is_said_of_it_that_a_plain_insert_would_leave_out() {
        let plain = || {
            let event = Event::builder("order.placed").aggregate("order", 1).event_type("placed").tenant("t");
            event.header("traceparent", "00-1").json(&1).unwrap()
        };
        let is_plain = |event: EventBuilder| Columns::of(&event.build().unwrap()).is_plain();
        assert!(is_plain(plain()) && is_plain(plain().id(Uuid::now_v7())));
        assert!(is_plain(plain().namespace(DEFAULT_NAMESPACE)) && is_plain(plain().version(1)));
        assert!(!is_plain(plain().namespace("shop")));
        assert!(!is_plain(plain().dedupe_key("t/once")));
        let bytes = |content_type| Event::builder("order.placed").bytes(content_type, vec![b'1']);
        assert!(!is_plain(bytes("application/octet-stream")) && !is_plain(bytes("application/json")));
        assert!(!is_plain(plain().version(2)));
        assert!(is_plain(plain().occurred_at(OffsetDateTime::UNIX_EPOCH)));
        assert!(!is_plain(plain().available_at(OffsetDateTime::UNIX_EPOCH)));
        assert!(!is_plain(plain().delay(Duration::from_secs(1))));
        let leased = plain().build().unwrap();
        let lease = Some(BirthLease { holder: "w", length: Duration::from_secs(1) });
        assert!(Columns { lease, ..Columns::of(&leased) }.is_plain());
    }
}
