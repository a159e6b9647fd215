//! The topic map: from an event to the sink's destination.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::panic_text;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

/// Says where in a sink an event goes: a subject, a stream, a queue.
///
/// ```
/// use posthaste::{Event, TopicMap};
///
/// let event = Event::json("order.placed.v1", &1)?.event_type("placed").aggregate("order", 42).build()?;
///
/// assert_eq!(&*TopicMap::topic().map(&event).unwrap(), "order.placed.v1");
/// assert_eq!(&*TopicMap::aggregate_type().map(&event).unwrap(), "order");
/// let map = TopicMap::template("events.{aggregate_type}.{event_type}")?;
/// assert_eq!(&*map.map(&event).unwrap(), "events.order.placed");
/// # Ok::<_, posthaste::Error>(())
/// ```
///
/// An event without a destination is rejected, and the reason says what it lacks. No destination is empty,
/// has a control character, or has a level (between `.` or `/`) that is nothing but a wildcard (`*`, `>`,
/// `+`, `#`): such an event would be published to nobody, or to everybody. All else stays as it is, and so does the
/// topic where nothing is mapped, since what a name may hold differs from broker to broker; each sink refuses what
/// its own does not take.
///
/// A value that has a `.` or `/` of its own adds levels. Where subscribers are told apart by a level (one per
/// tenant, say), let no value that others choose stand before it, or encode it in [`from_fn`](Self::from_fn).
#[derive(Clone, Default)]
pub struct TopicMap(Mapping);

type Function = dyn Fn(&Event) -> Result<String, String> + Send + Sync;

#[derive(Clone, Default)]
enum Mapping {
    #[default]
    Topic,
    AggregateType,
    Template(Arc<Template>),
    Function(Arc<Function>),
}

impl TopicMap {
    /// The event's topic as it is: the default.
    pub fn topic() -> Self {
        Self(Mapping::Topic)
    }

    /// The kind of thing it happened to: one destination for everything about orders.
    pub fn aggregate_type() -> Self {
        Self(Mapping::AggregateType)
    }

    /// A text with placeholders: `{topic}`, `{event_type}`, `{aggregate_type}`, `{aggregate_id}`,
    /// `{namespace}`, `{tenant_id}` and `{version}`. Braces themselves are written `{{` and `}}`.
    ///
    /// ```
    /// # use posthaste::TopicMap;
    /// let error = TopicMap::template("events.{agregate_type}").unwrap_err();
    /// assert!(error.message().contains("agregate_type"));
    /// ```
    pub fn template(template: &str) -> Result<Self> {
        Ok(Self(Mapping::Template(Arc::new(Template::parse(template)?))))
    }

    /// Whatever this function says; its error is why the event is rejected.
    ///
    /// It is asked for every event, and is not to wait for anything: all others wait for it.
    ///
    /// ```
    /// # use posthaste::TopicMap;
    /// let map = TopicMap::from_fn(|event| match event.headers().get("country") {
    ///     Some(country) => Ok(format!("{country}.{}", event.topic())),
    ///     None => Err("no header country".to_owned()),
    /// });
    /// # let _ = map;
    /// ```
    pub fn from_fn(function: impl Fn(&Event) -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self(Mapping::Function(Arc::new(function)))
    }

    /// Whether every destination is the event's topic, so that there is nothing to map.
    pub fn is_topic(&self) -> bool {
        matches!(self.0, Mapping::Topic)
    }

    /// The event's destination, or why it has none.
    pub fn map(&self, event: &Event) -> Result<Arc<str>, String> {
        let destination = match &self.0 {
            // Its rules are the event's.
            Mapping::Topic => return Ok(event.topic().into()),
            Mapping::AggregateType => event
                .aggregate_type()
                .map(str::to_owned)
                .ok_or("the event has no aggregate_type to be sent to")?,
            Mapping::Template(template) => template.fill(event)?,
            Mapping::Function(function) => match catch_unwind(AssertUnwindSafe(|| function(event))) {
                Ok(destination) => destination?,
                Err(panic) => return Err(format!("the topic map {}", panic_text(&*panic))),
            },
        };
        check(&destination)?;
        Ok(destination.into())
    }
}

impl std::fmt::Debug for TopicMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Mapping::Topic => f.write_str("TopicMap(topic)"),
            Mapping::AggregateType => f.write_str("TopicMap(aggregate_type)"),
            Mapping::Template(template) => write!(f, "TopicMap({:?})", template.text),
            Mapping::Function(_) => f.write_str("TopicMap(function)"),
        }
    }
}

/// What no broker can deliver to.
fn check(destination: &str) -> Result<(), String> {
    if destination.is_empty() {
        return Err("its destination is empty".to_owned());
    }
    if let Some((at, _)) = destination.char_indices().find(|(_, c)| c.is_control()) {
        return Err(format!("its destination has a control character at byte {at}"));
    }
    match destination.split(['.', '/']).find(|level| ["*", ">", "+", "#"].contains(level)) {
        Some(wildcard) => Err(format!("its destination {destination:?} has the wildcard {wildcard:?} in it")),
        None => Ok(()),
    }
}

/// A text with placeholders, parsed once.
struct Template {
    text: String,
    parts: Vec<Part>,
}

enum Part {
    Literal(String),
    Field(Field),
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Topic,
    EventType,
    AggregateType,
    AggregateId,
    Namespace,
    TenantId,
    Version,
}

impl Field {
    const KNOWN: [(&'static str, Self); 7] = [
        ("topic", Self::Topic),
        ("event_type", Self::EventType),
        ("aggregate_type", Self::AggregateType),
        ("aggregate_id", Self::AggregateId),
        ("namespace", Self::Namespace),
        ("tenant_id", Self::TenantId),
        ("version", Self::Version),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::KNOWN.iter().find(|(known, _)| *known == name).map(|(_, field)| *field)
    }
}

impl Template {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |what: String| {
            Err(Error::new(ErrorKind::InvalidSetting, format!("the topic template {text:?} {what}")))
        };
        if text.is_empty() {
            return wrong("is empty".to_owned());
        }
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let at = text.len() - rest.len();
            if rest.starts_with("{{") || rest.starts_with("}}") {
                literal.push(c);
                rest = &rest[2..];
            } else if c == '{' {
                let Some((name, after)) = rest[1..].split_once('}') else {
                    return wrong(format!("has a placeholder at byte {at} that is not closed: {rest:?}"));
                };
                let Some(field) = Field::named(name) else {
                    let known = Field::KNOWN.map(|(known, _)| known).join(", ");
                    return wrong(format!(
                        "has an unknown placeholder {name:?} at byte {at}; known are {known}"
                    ));
                };
                if !literal.is_empty() {
                    parts.push(Part::Literal(std::mem::take(&mut literal)));
                }
                parts.push(Part::Field(field));
                rest = after;
            } else if c == '}' {
                return wrong(format!(
                    "has a '}}' at byte {at} that closes nothing; write '}}}}' for the character"
                ));
            } else if c.is_control() {
                return wrong(format!("has a control character at byte {at}"));
            } else {
                literal.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    fn fill(&self, event: &Event) -> Result<String, String> {
        let mut filled = String::with_capacity(self.text.len() + 32);
        for part in &self.parts {
            let (field, value) = match part {
                Part::Literal(literal) => ("", Some(literal.as_str())),
                Part::Field(Field::Topic) => ("topic", Some(event.topic())),
                Part::Field(Field::EventType) => ("event_type", Some(event.event_type())),
                Part::Field(Field::AggregateType) => ("aggregate_type", event.aggregate_type()),
                Part::Field(Field::AggregateId) => ("aggregate_id", event.aggregate_id()),
                Part::Field(Field::Namespace) => ("namespace", Some(event.namespace())),
                Part::Field(Field::TenantId) => ("tenant_id", event.tenant_id()),
                Part::Field(Field::Version) => {
                    // Writing to a string cannot fail.
                    let _ = write!(filled, "{}", event.version());
                    continue;
                }
            };
            match value {
                Some(value) if !value.is_empty() => filled.push_str(value),
                _ => return Err(format!("the event has no {field}, which {:?} needs", self.text)),
            }
        }
        Ok(filled)
    }
}
