//! Typed events, and everything that `enqueue` takes as an event.

use serde::Serialize;

use super::{Event, EventBuilder, EventRules, ToWrite};
use crate::error::Result;

/// A type that is an event: its topic and aggregate are constants, so a typo does not compile.
///
/// ```
/// use posthaste::{IntoEvent, TypedEvent};
///
/// #[derive(serde::Serialize)]
/// struct OrderPlaced { id: u64, total: String }
///
/// impl TypedEvent for OrderPlaced {
///     const TOPIC: &'static str = "order.placed.v1";
///     const AGGREGATE: &'static str = "order";
///     fn aggregate_id(&self) -> String { self.id.to_string() }
/// }
///
/// let event = OrderPlaced { id: 42, total: "9.90".into() }.into_event(&Default::default())?;
/// assert_eq!(event.aggregate_id(), Some("42"));
/// # Ok::<_, posthaste::Error>(())
/// ```
pub trait TypedEvent: Serialize {
    /// The stable routing key.
    const TOPIC: &'static str;
    /// The kind of thing it happens to.
    const AGGREGATE: &'static str;
    /// What happened, where that differs from the topic.
    const EVENT_TYPE: &'static str = Self::TOPIC;
    /// Version of the payload's schema.
    const VERSION: u32 = 1;

    /// Which one of its kind it happened to.
    fn aggregate_id(&self) -> String;

    /// The event in the making, to add headers, a tenant or a dedupe key.
    fn to_event(&self) -> Result<EventBuilder> {
        Ok(Event::json(Self::TOPIC, self)?
            .event_type(Self::EVENT_TYPE)
            .aggregate(Self::AGGREGATE, self.aggregate_id())
            .version(Self::VERSION))
    }
}

/// What `enqueue` takes: an [`Event`], an [`EventBuilder`] or any [`TypedEvent`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    note = "enqueue takes an `Event`, an `EventBuilder` (from `Event::json`) or a type that implements `TypedEvent`"
)]
pub trait IntoEvent {
    /// The event, checked by these rules.
    fn into_event(self, rules: &EventRules) -> Result<Event>;

    /// The same, for whoever writes it at once and shows it to nobody before.
    #[doc(hidden)]
    fn into_event_to_write(self, rules: &EventRules, _: &ToWrite) -> Result<Event>
    where
        Self: Sized,
    {
        self.into_event(rules)
    }
}

impl IntoEvent for Event {
    fn into_event(self, rules: &EventRules) -> Result<Event> {
        rules.check(&self)?;
        Ok(self)
    }
}

impl IntoEvent for EventBuilder {
    fn into_event(self, rules: &EventRules) -> Result<Event> {
        self.build_by(rules)
    }

    fn into_event_to_write(self, rules: &EventRules, _: &ToWrite) -> Result<Event> {
        self.build_to_write(rules)
    }
}

impl<T: TypedEvent> IntoEvent for T {
    fn into_event(self, rules: &EventRules) -> Result<Event> {
        self.to_event()?.build_by(rules)
    }

    fn into_event_to_write(self, rules: &EventRules, _: &ToWrite) -> Result<Event> {
        self.to_event()?.build_to_write(rules)
    }
}
