//! Sinks: where events go. A sink never sees the store; it is handed deliveries and answers for each.
//!
//! | sink | feature | destination |
//! |---|---|---|
//! | [`StdoutSink`] | | standard output, JSON lines |
//! | [`FileSink`] | | a file, JSON lines |
//! | `HttpSink` | `http` | a webhook |
//! | `NatsSink` | `nats` | NATS JetStream |
//! | [`MemorySink`] | | memory, for tests |
//!
//! What each of them must do is a page of the book, and one suite of tests asks it of each. How an event becomes
//! a message is the same for all: [`Envelope`].

mod envelope;
mod file;
#[cfg(feature = "http")]
pub mod http;
mod memory;
#[cfg(feature = "nats")]
pub mod nats;
mod stdout;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;

use crate::event::Event;

pub use envelope::{Envelope, Format, Message};
pub use file::FileSink;
#[cfg(feature = "http")]
pub use http::HttpSink;
pub use memory::MemorySink;
#[cfg(feature = "nats")]
pub use nats::NatsSink;
pub use stdout::StdoutSink;

/// One attempt at delivering one event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The event as it was written.
    pub event: Arc<Event>,
    /// The table it comes from.
    pub table: Arc<str>,
    /// Its place in that table.
    pub sequence: i64,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// When it was written, by the database's clock.
    pub created_at: OffsetDateTime,
    pub(crate) destination: Option<Arc<str>>,
}

impl Delivery {
    /// Where in the sink it goes (a subject, a stream, a queue): its topic, unless a
    /// topic map says otherwise.
    pub fn destination(&self) -> &str {
        self.destination.as_deref().unwrap_or_else(|| self.event.topic())
    }

    /// The same delivery to somewhere else, for a delivery loop of one's own; a relay asks its topic map.
    pub fn with_destination(mut self, destination: impl Into<Arc<str>>) -> Self {
        self.destination = Some(destination.into());
        self
    }
}

/// What became of one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has made it durable.
    Delivered,
    /// It failed and may work later: after this long, or as the relay's policy says.
    Retry {
        /// How long to wait.
        after: Option<Duration>,
        /// Why it failed.
        error: String,
    },
    /// It will never work: dead at once.
    Reject {
        /// Why.
        error: String,
    },
    /// The destination cannot be reached: not this event's fault, no attempt is spent.
    Unavailable {
        /// Why.
        error: String,
    },
}

/// A destination for events.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Publishes a batch and answers for each delivery, in order, once the destination has made it durable
    /// or refused it.
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome>;

    /// How many deliveries it takes at once; those that take one at a time say 1.
    fn batch_limit(&self) -> usize {
        usize::MAX
    }

    /// Whether a batch may hold several events of one aggregate of a stream: they become visible in the order of the
    /// batch, and once one of them has failed, none behind it of the same aggregate is accepted. Where it does not,
    /// events of one aggregate are published one after the other. It is asked for every event.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Whether the destination can be reached now; an error says why not.
    async fn probe(&self) -> Result<(), String> {
        Ok(())
    }
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Arc<S> {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        (**self).publish(batch).await
    }

    fn batch_limit(&self) -> usize {
        (**self).batch_limit()
    }

    fn keeps_order(&self) -> bool {
        (**self).keeps_order()
    }

    async fn probe(&self) -> Result<(), String> {
        (**self).probe().await
    }
}
