//! The rules an event must follow, checked before any database work.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `max_payload` | 1 MiB | brokers' usual limit; larger data belongs behind a reference |
//! | `strict_topics` | off | `<module>.<aggregate>.<event>.vN` suits teams that version topics by name |
//!
//! Lengths are in characters and equal the columns' widths on every database.

use std::time::Duration;

use time::{OffsetDateTime, UtcOffset};

use super::{Available, Event, Headers, Payload};
use crate::error::{Error, ErrorKind, Result};

/// Characters a topic, and an event type, may have.
const TOPIC_LIMIT: usize = 128;
/// Characters of an aggregate's type and of a tenant id.
const NAME_LIMIT: usize = 128;
/// Characters of an aggregate's id and of a dedupe key.
const KEY_LIMIT: usize = 255;
/// Characters of a namespace.
const NAMESPACE_LIMIT: usize = 64;
/// Characters of a content type and of a header's name.
const HEADER_KEY_LIMIT: usize = 128;
/// Bytes of all headers together: what brokers and proxies commonly let pass.
const HEADERS_LIMIT: usize = 16 * 1024;

/// The longest delay: no date overflows by it.
const DELAY_LIMIT: Duration = Duration::from_secs(100 * 366 * 86_400);

/// What an outbox demands of its events beyond what all events must be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventRules {
    /// Most bytes a payload may have.
    pub max_payload: usize,
    /// Whether topics must be `<module>.<aggregate>.<event>.vN` in `[a-z0-9.-]`.
    pub strict_topics: bool,
}

impl Default for EventRules {
    fn default() -> Self {
        Self { max_payload: 1024 * 1024, strict_topics: false }
    }
}

impl EventRules {
    /// Checks every rule; the first one broken is the error.
    pub fn check(&self, event: &Event) -> Result<()> {
        required("topic", &event.topic, TOPIC_LIMIT)?;
        if self.strict_topics {
            strict_topic(&event.topic)?;
        }
        optional("event_type", event.event_type.as_deref(), TOPIC_LIMIT)?;
        optional("aggregate_type", event.aggregate_type.as_deref(), NAME_LIMIT)?;
        optional("aggregate_id", event.aggregate_id.as_deref(), KEY_LIMIT)?;
        required("namespace", &event.namespace, NAMESPACE_LIMIT)?;
        optional("tenant_id", event.tenant_id.as_deref(), NAME_LIMIT)?;
        optional("dedupe_key", event.dedupe_key.as_deref(), KEY_LIMIT)?;
        dedupe_key_of_tenant(event.dedupe_key.as_deref(), event.tenant_id.as_deref())?;
        headers(&event.headers)?;
        version(event.version)?;
        times(event)?;
        payload(&event.payload, self.max_payload)
    }
}

fn required(field: &'static str, value: &str, limit: usize) -> Result<()> {
    if value.is_empty() {
        return Err(Error::new(ErrorKind::Empty { field }, format!("{field} is empty")));
    }
    let size = value.chars().count();
    if size > limit {
        return Err(Error::new(
            ErrorKind::TooLong { field, limit, size },
            format!("{field} has {size} characters, at most {limit} are allowed"),
        ));
    }
    no_control(field, value)
}

fn optional(field: &'static str, value: Option<&str>, limit: usize) -> Result<()> {
    value.map_or(Ok(()), |value| required(field, value, limit))
}

fn no_control(field: &'static str, value: &str) -> Result<()> {
    match value.char_indices().find(|(_, c)| c.is_control()) {
        None => Ok(()),
        Some((at, _)) => {
            let size = value.chars().count();
            Err(Error::new(
                ErrorKind::ControlCharacter { field, at, size },
                format!("{field} ({size} characters) has a control character at byte {at}"),
            ))
        }
    }
}

fn strict_topic(topic: &str) -> Result<()> {
    let parts: Vec<&str> = topic.split('.').collect();
    let word = |part: &&str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let version = |part: &str| {
        part.strip_prefix('v')
            .is_some_and(|n| !n.is_empty() && !n.starts_with('0') && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if parts.len() == 4 && parts.iter().all(word) && version(parts[3]) {
        Ok(())
    } else {
        Err(Error::new(ErrorKind::TopicPolicy, format!("topic {topic:?} does not follow the strict policy")))
    }
}

fn dedupe_key_of_tenant(dedupe_key: Option<&str>, tenant_id: Option<&str>) -> Result<()> {
    match (dedupe_key, tenant_id) {
        (Some(key), Some(tenant)) if key.strip_prefix(tenant).is_none_or(|rest| !rest.starts_with('/')) => {
            Err(Error::new(
                ErrorKind::DedupeKeyTenant,
                format!("dedupe_key {key:?} does not begin with the tenant id {tenant:?} and '/'"),
            ))
        }
        _ => Ok(()),
    }
}

fn headers(headers: &Headers) -> Result<()> {
    let mut size = 0;
    for (key, value) in headers {
        if key.is_empty() {
            return Err(Error::new(ErrorKind::HeaderKeyEmpty, "a header has an empty key"));
        }
        required("header key", key, HEADER_KEY_LIMIT)?;
        no_control("header value", value)?;
        size += key.len() + value.len();
    }
    if size > HEADERS_LIMIT {
        return Err(Error::new(
            ErrorKind::TooLong { field: "headers", limit: HEADERS_LIMIT, size },
            format!("the headers have {size} bytes together, at most {HEADERS_LIMIT} are allowed"),
        ));
    }
    Ok(())
}

fn version(version: u32) -> Result<()> {
    if version == 0 || i32::try_from(version).is_err() {
        return Err(Error::new(
            ErrorKind::OutOfRange { field: "version" },
            format!("version {version} is not between 1 and {}", i32::MAX),
        ));
    }
    Ok(())
}

/// Times that every database can store.
fn times(event: &Event) -> Result<()> {
    let years = 1000..=9999;
    // The last hours of the year 9999 west of Greenwich are no time of UTC any more.
    let in_utc = |at: OffsetDateTime| at.checked_to_offset(UtcOffset::UTC).map(OffsetDateTime::year);
    let storable = |field, at: Option<OffsetDateTime>| match at {
        Some(at) if in_utc(at).is_none_or(|year| !years.contains(&year)) => Err(Error::new(
            ErrorKind::OutOfRange { field },
            format!(
                "{field} is in the year {}, not between {} and {}",
                at.year(),
                years.start(),
                years.end()
            ),
        )),
        _ => Ok(()),
    };
    storable("occurred_at", event.occurred_at)?;
    match event.available {
        Available::At(at) => storable("available_at", Some(at)),
        Available::After(delay) if delay > DELAY_LIMIT => Err(Error::new(
            ErrorKind::OutOfRange { field: "delay" },
            format!("the delay of {} days is longer than a hundred years", delay.as_secs() / 86_400),
        )),
        Available::Now | Available::After(_) => Ok(()),
    }
}

fn payload(payload: &Payload, limit: usize) -> Result<()> {
    let size = payload.bytes().len();
    if size > limit {
        return Err(Error::new(
            ErrorKind::PayloadTooLarge { limit, size },
            format!("payload has {size} bytes, at most {limit} are allowed"),
        ));
    }
    if payload.is_json() {
        Ok(())
    } else {
        required("content_type", payload.content_type(), HEADER_KEY_LIMIT)
    }
}
