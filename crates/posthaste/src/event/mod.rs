//! The event: what a service says happened, as it is stored and delivered.
//!
//! An [`Event`] is immutable and valid: it can only come out of an [`EventBuilder`] (or a [`TypedEvent`]),
//! which checks every rule before any database is touched. Its payload is serialised once, and the same
//! bytes are delivered.

mod builder;
mod id;
mod novelty;
mod payload;
mod rules;
mod typed;

use std::collections::BTreeMap;
use std::time::Duration;

use compact_str::CompactString;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::Result;

pub use builder::EventBuilder;
pub use id::parse_id;
pub(crate) use novelty::Novelty;
#[doc(hidden)]
pub use novelty::ToWrite;
pub use payload::Payload;
pub use rules::EventRules;
pub use typed::{IntoEvent, TypedEvent};

/// The namespace of an event that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Headers: name to value, in the order of their names.
pub type Headers = BTreeMap<String, String>;

/// Something that happened, ready to be written to an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub(crate) id: Uuid,
    pub(crate) topic: CompactString,
    /// `None` where it equals the topic.
    pub(crate) event_type: Option<CompactString>,
    pub(crate) aggregate_type: Option<CompactString>,
    pub(crate) aggregate_id: Option<CompactString>,
    pub(crate) namespace: CompactString,
    pub(crate) tenant_id: Option<CompactString>,
    pub(crate) dedupe_key: Option<CompactString>,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
    pub(crate) version: u32,
    /// `None`: the database's clock when it is written.
    pub(crate) occurred_at: Option<OffsetDateTime>,
    pub(crate) available: Available,
    pub(crate) novelty: Novelty,
}

/// From when on an event may be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Available {
    /// As soon as its transaction has committed.
    Now,
    /// This long after it was written, by the database's clock.
    After(Duration),
    /// At this time, by the database's clock.
    At(OffsetDateTime),
}

impl Event {
    /// Starts an event with this topic; a payload must follow.
    ///
    /// ```
    /// # use posthaste::Event;
    /// let event = Event::builder("order.placed.v1").bytes("image/png", vec![1, 2, 3]).build()?;
    /// assert_eq!(event.payload().content_type(), "image/png");
    /// # Ok::<_, posthaste::Error>(())
    /// ```
    pub fn builder(topic: impl Into<String>) -> EventBuilder {
        EventBuilder::new(topic.into())
    }

    /// Starts an event with this topic and this value as its JSON payload.
    ///
    /// ```
    /// # use posthaste::Event;
    /// let event = Event::json("order.placed.v1", &serde_json::json!({"total": "9.90"}))?
    ///     .aggregate("order", 42)
    ///     .build()?;
    /// assert_eq!(event.payload().bytes(), br#"{"total":"9.90"}"#);
    /// # Ok::<_, posthaste::Error>(())
    /// ```
    pub fn json<T: Serialize + ?Sized>(topic: impl Into<String>, value: &T) -> Result<EventBuilder> {
        Self::builder(topic).json(value)
    }

    /// The event as a builder, to make a changed copy of it; the id is kept.
    pub fn to_builder(&self) -> EventBuilder {
        EventBuilder::from_event(self.clone())
    }

    /// Its identity, and what consumers dedupe on: unique, version 7 unless the caller gave one.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The stable routing key.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// What happened; the topic unless said otherwise.
    pub fn event_type(&self) -> &str {
        self.event_type.as_deref().unwrap_or(&self.topic)
    }

    /// The kind of thing it happened to.
    pub fn aggregate_type(&self) -> Option<&str> {
        self.aggregate_type.as_deref()
    }

    /// Which one of that kind; with the aggregate type the key for ordering and partitioning.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.aggregate_id.as_deref()
    }

    /// The space in which topics and dedupe keys are unique.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The tenant it belongs to.
    pub fn tenant_id(&self) -> Option<&str> {
        self.tenant_id.as_deref()
    }

    /// The producer's idempotency key, unique within namespace and topic.
    pub fn dedupe_key(&self) -> Option<&str> {
        self.dedupe_key.as_deref()
    }

    /// What is delivered.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// What travels beside the payload.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Version of the payload's schema.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// When it happened; `None` until the database's clock has filled it in.
    pub fn occurred_at(&self) -> Option<OffsetDateTime> {
        self.occurred_at
    }

    /// From when on it may be delivered.
    pub fn available(&self) -> Available {
        self.available
    }
}
