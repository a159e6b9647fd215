//! The envelope: how an event becomes a message, the same for every sink.
//!
//! | format | body | attributes |
//! |---|---|---|
//! | [`Format::CloudEvents`], the default | the payload | as headers, CloudEvents 1.0 binary mode |
//! | [`Format::CloudEventsStructured`] | `application/cloudevents+json` with the payload in it | in the body |
//! | [`Format::Payload`] | the payload | none |
//! | [`Format::Envelope`] | `application/json`: `messageId`, topic, type, … and the payload | in the body |
//!
//! A message is a function of the event and of its place in the table alone. The attempt is no part of it, so
//! every try sends the same bytes. A JSON payload is never parsed and written again: its bytes are copied.
//!
//! The event's own headers travel beside every format. What is done with names and values that a transport
//! cannot carry is in [`Message::headers`].

mod cloud_events;
mod encode;
mod json;

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};
use uuid::Uuid;

use super::Delivery;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Headers, Payload};
use json::Object;

#[cfg(feature = "http")]
pub(super) use encode::path as encode_path;

/// How an event is turned into a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// CloudEvents 1.0, binary mode: the payload is the body, the attributes are headers.
    #[default]
    CloudEvents,
    /// CloudEvents 1.0, structured mode: one JSON document.
    CloudEventsStructured,
    /// The payload and nothing else.
    Payload,
    /// A JSON document with `messageId`, topic, type, time, aggregate, tenant, headers and payload.
    Envelope,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::CloudEvents, Self::CloudEventsStructured, Self::Payload, Self::Envelope];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::CloudEvents => "cloudevents",
            Self::CloudEventsStructured => "cloudevents-structured",
            Self::Payload => "payload",
            Self::Envelope => "envelope",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::new(
                ErrorKind::InvalidSetting,
                format!("the format {name:?} is unknown; known are {known}"),
            )
        })
    }
}

/// A format and what it needs to know beside the event.
///
/// ```
/// use posthaste::sink::{Envelope, Format};
/// use posthaste::{Event, testing};
///
/// let event = Event::json("order.placed.v1", &serde_json::json!({"total": "9.90"}))?.build()?;
/// let delivery = testing::delivery(event);
///
/// let envelope = Envelope::new(Format::CloudEvents).source("https://shop.example/orders")?;
/// let message = envelope.wrap(&delivery);
/// assert_eq!(&message.body[..], br#"{"total":"9.90"}"#);
/// assert!(message.headers().contains(&("ce-source".into(), "https://shop.example/orders".into())));
/// # Ok::<_, posthaste::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Envelope {
    format: Format,
    source: Option<String>,
}

impl From<Format> for Envelope {
    fn from(format: Format) -> Self {
        Self::new(format)
    }
}

impl Envelope {
    /// An envelope of this format.
    pub fn new(format: Format) -> Self {
        Self { format, source: None }
    }

    /// The CloudEvents `source`: a URI or a path that says who speaks. Without it, it is `/posthaste/` and the
    /// table's name. With the id it identifies an event, so it must not change while events are under way.
    pub fn source(mut self, source: impl Into<String>) -> Result<Self> {
        let source = source.into();
        if source.is_empty() || source.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let what = format!("the source {source:?} is not a URI: it is empty or has a blank in it");
            return Err(Error::new(ErrorKind::InvalidSetting, what));
        }
        self.source = Some(source);
        Ok(self)
    }

    /// Its format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The delivery as a message.
    pub fn wrap(&self, delivery: &Delivery) -> Message {
        let event = &delivery.event;
        let payload = event.payload();
        let (attributes, content_type, body) = match self.format {
            Format::CloudEvents => {
                let attributes = cloud_events::attributes(delivery, self.source.as_deref());
                (attributes, payload.content_type().to_owned(), payload.shared())
            }
            Format::CloudEventsStructured => {
                let body = cloud_events::structured(delivery, self.source.as_deref());
                (Vec::new(), cloud_events::CONTENT_TYPE.to_owned(), body.into())
            }
            Format::Payload => (Vec::new(), payload.content_type().to_owned(), payload.shared()),
            Format::Envelope => (Vec::new(), "application/json".to_owned(), envelope(delivery).into()),
        };
        Message { id: event.id(), attributes, event_headers: event.headers().clone(), content_type, body }
    }

    /// Appends the delivery as one line of JSON, its end included. A line has no headers, so CloudEvents are
    /// structured; a bare payload that is not JSON is a string in base 64. Line breaks of a JSON payload, which
    /// mean nothing outside its strings and cannot stand inside them, become spaces.
    pub fn line(&self, delivery: &Delivery, into: &mut Vec<u8>) {
        let start = into.len();
        match self.format {
            Format::CloudEvents | Format::CloudEventsStructured => {
                into.extend(cloud_events::structured(delivery, self.source.as_deref()));
            }
            Format::Payload => match delivery.event.payload() {
                payload if payload.is_json() => into.extend_from_slice(payload.bytes()),
                payload => json::string(into, &json::base64(payload.bytes())),
            },
            Format::Envelope => into.extend(envelope(delivery)),
        }
        for byte in &mut into[start..] {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        into.push(b'\n');
    }
}

/// An event as a sink sends it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// The event's id: what a destination or its consumers dedupe on.
    pub id: Uuid,
    /// The CloudEvents attributes, without prefix and not encoded; empty but for the binary mode.
    pub attributes: Vec<(&'static str, String)>,
    /// The event's own headers, as the producer gave them.
    pub event_headers: Headers,
    /// What the body is.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
}

impl Message {
    /// All headers of the message for a transport with textual headers (HTTP, NATS): `content-type`, the attributes as
    /// `ce-…`, then the event's own.
    ///
    /// - Values of attributes are percent-encoded as the HTTP binding of CloudEvents says: blanks, `"`, `%` and
    ///   all that is not printable ASCII.
    /// - Names of the event's headers that are no token of HTTP are percent-encoded the same way (`%` itself
    ///   included, so that it can be undone); values go as they are, in UTF-8.
    /// - An event's header cannot replace one that the message or its transport sets: `content-type`, an
    ///   attribute that is there, what frames an HTTP message (`content-length`, `host`, `connection`, …), what
    ///   steers a broker (`nats-…`), what a signature is made of (`webhook-…`). Such a header is left out. Other
    ///   names with `ce-` are let through: that is how a producer adds an extension attribute.
    /// - An empty name and a value with a control character, which an event cannot have by its rules, are left out too; a
    ///   content type with one becomes `application/octet-stream`.
    pub fn headers(&self) -> Vec<(String, String)> {
        let mut headers = Vec::with_capacity(1 + self.attributes.len() + self.event_headers.len());
        headers.push(("content-type".to_owned(), self.sendable_content_type().to_owned()));
        for (name, value) in &self.attributes {
            headers.push((format!("ce-{name}"), encode::attribute(value)));
        }
        let own = headers.len();
        for (name, value) in &self.event_headers {
            let taken = headers[..own].iter().any(|(set, _)| set.eq_ignore_ascii_case(name));
            let sendable = !name.is_empty() && !value.chars().any(char::is_control);
            if sendable && !taken && !encode::is_reserved(name) {
                headers.push((encode::name(name), value.clone()));
            }
        }
        headers
    }

    fn sendable_content_type(&self) -> &str {
        match self.content_type.chars().any(char::is_control) {
            true => "application/octet-stream",
            false => &self.content_type,
        }
    }
}

/// Shows sizes and names only: payloads and headers stay out of logs.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("content_type", &self.content_type)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// [`Format::Envelope`].
fn envelope(delivery: &Delivery) -> Vec<u8> {
    let event = &delivery.event;
    let mut object = Object::with_capacity(event.payload().bytes().len() + 512);
    object.text("messageId", &event.id().to_string());
    object.text("topic", event.topic());
    object.text("type", event.event_type());
    object.number("version", event.version().into());
    if let Some(at) = occurred_at(delivery) {
        object.text("occurredAt", &at);
    }
    object.text("namespace", event.namespace());
    if let Some(tenant) = event.tenant_id() {
        object.text("tenant", tenant);
    }
    if event.aggregate_type().is_some() || event.aggregate_id().is_some() {
        let mut aggregate = Object::with_capacity(64);
        for (name, value) in [("type", event.aggregate_type()), ("id", event.aggregate_id())] {
            if let Some(value) = value {
                aggregate.text(name, value);
            }
        }
        object.raw("aggregate", &aggregate.end());
    }
    object.number("sequence", delivery.sequence);
    let mut headers = Object::with_capacity(64);
    for (name, value) in event.headers() {
        headers.text(name, value);
    }
    object.raw("headers", &headers.end());
    object.text("contentType", event.payload().content_type());
    data(&mut object, event.payload(), "payload", "payloadBase64");
    object.end()
}

/// The payload as a member: JSON as it is, bytes in base 64 under the other name.
fn data(object: &mut Object, payload: &Payload, json_name: &str, base64_name: &str) {
    if payload.is_json() {
        object.raw(json_name, payload.bytes());
    } else {
        object.text(base64_name, &json::base64(payload.bytes()));
    }
}

/// When it happened, as RFC 3339 in UTC: as the event says, else when it was written.
fn occurred_at(delivery: &Delivery) -> Option<String> {
    let at: OffsetDateTime = delivery.event.occurred_at().unwrap_or(delivery.created_at);
    // Years beyond four digits have no such form; no event has one by its rules.
    at.to_offset(UtcOffset::UTC).format(&Rfc3339).ok()
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
