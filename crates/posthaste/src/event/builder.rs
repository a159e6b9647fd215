//! Builds an [`Event`], checking every rule at the end.

use std::time::Duration;

use bytes::Bytes;
use compact_str::CompactString;
use serde::Serialize;
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Available, DEFAULT_NAMESPACE, Event, EventRules, Headers, Novelty, Payload, parse_id};
use crate::error::{Error, ErrorKind, Result, quoted};

/// An event in the making; [`Event::builder`] and [`Event::json`] start one.
///
/// `outbox.enqueue` takes it as it is and builds it by the outbox's own rules.
#[derive(Debug, Clone)]
#[must_use = "an event is only written by `outbox.enqueue`"]
pub struct EventBuilder {
    /// `None`: a new one for each event built, so that a copy of the builder makes another event.
    id: Option<Uuid>,
    /// Its id is filled in at the end.
    event: Event,
    json: Option<Payload>,
    binary: Option<Payload>,
}

impl EventBuilder {
    pub(super) fn new(topic: String) -> Self {
        let event = Event {
            id: Uuid::nil(),
            topic: topic.into(),
            event_type: None,
            aggregate_type: None,
            aggregate_id: None,
            namespace: CompactString::const_new(DEFAULT_NAMESPACE),
            tenant_id: None,
            dedupe_key: None,
            payload: Payload::json(Bytes::new()),
            headers: Headers::new(),
            version: 1,
            occurred_at: None,
            available: Available::Now,
            novelty: Novelty::default(),
        };
        Self { id: None, event, json: None, binary: None }
    }

    pub(super) fn from_event(event: Event) -> Self {
        let payload = event.payload.clone();
        let (json, binary) = if payload.is_json() { (Some(payload), None) } else { (None, Some(payload)) };
        Self { id: Some(event.id), event, json, binary }
    }

    /// The id, where the caller has one of its own; it makes the enqueue idempotent.
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// The id from a UUID's or a ULID's text.
    pub fn parse_id(self, text: &str) -> Result<Self> {
        Ok(self.id(parse_id(text)?))
    }

    /// Another topic than the one it was started with.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.event.topic = topic.into().into();
        self
    }

    /// What happened, where that differs from the topic.
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event.event_type = Some(event_type.into().into());
        self
    }

    /// What it happened to: the key for ordering and partitioning.
    pub fn aggregate(mut self, aggregate_type: impl Into<String>, aggregate_id: impl ToString) -> Self {
        self.event.aggregate_type = Some(aggregate_type.into().into());
        self.event.aggregate_id = Some(aggregate_id.to_string().into());
        self
    }

    /// The space in which topic and dedupe key are unique; `default` unless said.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.event.namespace = namespace.into().into();
        self
    }

    /// The tenant it belongs to.
    pub fn tenant(mut self, tenant_id: impl Into<String>) -> Self {
        self.event.tenant_id = Some(tenant_id.into().into());
        self
    }

    /// An idempotency key: within namespace and topic only the first event with it is written.
    ///
    /// Where a tenant is set too, it must begin with the tenant's id and `/`.
    pub fn dedupe_key(mut self, dedupe_key: impl Into<String>) -> Self {
        self.event.dedupe_key = Some(dedupe_key.into().into());
        self
    }

    /// A JSON payload from a value, serialised here and now.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Result<Self> {
        let text = serde_json::to_string(value).map_err(|cause| self.not_json().because(cause))?;
        self.json = Some(self.checked(text)?);
        Ok(self)
    }

    /// A JSON payload from JSON text, checked and kept byte for byte.
    pub fn json_text(mut self, text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        serde_json::from_str::<IgnoredAny>(&text).map_err(|cause| self.not_json().because(cause))?;
        self.json = Some(self.checked(text)?);
        Ok(self)
    }

    /// JSON text that every database takes.
    fn checked(&self, text: String) -> Result<Payload> {
        if has_lone_surrogate(&text) {
            return Err(self.not_json().because(r"half a surrogate pair (\ud800 to \udfff) is no character"));
        }
        Ok(Payload::json(text))
    }

    fn not_json(&self) -> Error {
        let message = format!("the payload of {} is not valid JSON", shown(&self.event.topic));
        Error::new(ErrorKind::PayloadNotJson, message)
    }

    /// A binary payload with its content type.
    pub fn bytes(mut self, content_type: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        self.binary = Some(Payload::binary(content_type, bytes));
        self
    }

    /// Adds a header, or replaces the one of that name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.event.headers.insert(name.into(), value.into());
        self
    }

    /// Version of the payload's schema; 1 unless said.
    pub fn version(mut self, version: u32) -> Self {
        self.event.version = version;
        self
    }

    /// When it happened; the database's clock at the write unless said.
    pub fn occurred_at(mut self, at: OffsetDateTime) -> Self {
        self.event.occurred_at = Some(at);
        self
    }

    /// Deliver not before this time.
    pub fn available_at(mut self, at: OffsetDateTime) -> Self {
        self.event.available = Available::At(at);
        self
    }

    /// Deliver not before this long after the write, by the database's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.event.available = Available::After(delay);
        self
    }

    /// The event, if it follows the default rules.
    ///
    /// ```
    /// # use posthaste::{Event, ErrorKind};
    /// let error = Event::builder("order.placed.v1").build().unwrap_err();
    /// assert_eq!(error.kind(), &ErrorKind::PayloadMissing);
    /// ```
    pub fn build(self) -> Result<Event> {
        self.build_by(&EventRules::default())
    }

    /// The event for whoever writes it at once: if it has no id yet, nobody else will ever have seen the one it gets.
    pub(super) fn build_to_write(self, rules: &EventRules) -> Result<Event> {
        let novelty = if self.id.is_none() { Novelty::NEW } else { Novelty::default() };
        Ok(Event { novelty, ..self.build_by(rules)? })
    }

    /// The event, if it follows these rules.
    pub fn build_by(mut self, rules: &EventRules) -> Result<Event> {
        self.event.payload = match (self.json, self.binary) {
            (Some(payload), None) | (None, Some(payload)) => payload,
            (None, None) => {
                let message = format!("the event {} has no payload", shown(&self.event.topic));
                return Err(Error::new(ErrorKind::PayloadMissing, message));
            }
            (Some(_), Some(_)) => {
                let topic = shown(&self.event.topic);
                let message = format!("the event {topic} has both a JSON and a binary payload");
                return Err(Error::new(ErrorKind::PayloadAmbiguous, message));
            }
        };
        self.event.id = self.id.unwrap_or_else(Uuid::now_v7);
        if self.event.event_type.as_ref() == Some(&self.event.topic) {
            self.event.event_type = None;
        }
        rules.check(&self.event)?;
        Ok(self.event)
    }
}

/// A topic in a message that comes before its length has been checked.
fn shown(topic: &str) -> String {
    quoted(topic, 128)
}

/// Whether valid JSON has an escape of a surrogate that is not half of a pair. Rust's strings never have.
fn has_lone_surrogate(json: &str) -> bool {
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        let (this, next) = (code_unit(escape), escape.get(6..).and_then(code_unit));
        rest = match (this, next) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => &escape[12..],
            (Some(0xd800..=0xdfff), _) => return true,
            (Some(_), _) => &escape[6..],
            (None, _) => escape.get(2..).unwrap_or_default(),
        };
    }
    false
}

/// The code unit of an escape of four hexadecimal digits that the text begins with.
fn code_unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}
