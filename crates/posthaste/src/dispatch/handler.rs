//! Handlers: code that takes one delivery at a time.

use std::sync::Arc;

use async_trait::async_trait;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Failure, IntoFailure};
use crate::error::Result;
use crate::event::Headers;
use crate::sink::{Delivery, Outcome, Sink};

/// Handles one event. An async closure or function of a [`Delivery`] is a handler:
///
/// ```
/// use posthaste::sink::Delivery;
/// use posthaste::{Failure, Handler};
///
/// async fn mail(delivery: Delivery) -> Result<(), Failure> {
///     println!("{} for the {}. time", delivery.event.topic(), delivery.attempt);
///     Ok(())
/// }
///
/// fn takes(_: impl Handler) {}
/// takes(mail);
/// takes(|delivery: Delivery| async move { if delivery.attempt > 1 { Ok(()) } else { Err("not yet") } });
/// ```
///
/// It may be called more than once for an event, so it must be idempotent (or use the
/// [`Inbox`](crate::Inbox)). A panic is a failure like any other.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles it, or says what went wrong.
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure>;

    /// Whether it can work at all: asked once, before anything is delivered. An error keeps the relay from
    /// starting.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl<F, R, E> Handler for F
where
    F: Fn(Delivery) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send,
    E: IntoFailure,
{
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        self(delivery.clone()).await.map_err(IntoFailure::into_failure)
    }
}

/// A shared handler is a handler: one for several topics.
#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        (**self).handle(delivery).await
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }
}

/// What is known of a delivery besides its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// The event's id: the same at every attempt.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its type.
    pub event_type: String,
    /// What it is about.
    pub aggregate_type: Option<String>,
    /// Which one.
    pub aggregate_id: Option<String>,
    /// Its namespace.
    pub namespace: String,
    /// Whose it is.
    pub tenant_id: Option<String>,
    /// The version of its payload's schema.
    pub version: u32,
    /// Its headers, `traceparent` and `tracestate` among them where it has them.
    pub headers: Headers,
    /// When it happened.
    pub occurred_at: Option<OffsetDateTime>,
    /// When it was written, by the database's clock.
    pub created_at: OffsetDateTime,
    /// The table it comes from.
    pub table: Arc<str>,
    /// Its place in that table.
    pub sequence: i64,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
}

impl Meta {
    /// The W3C trace the event was written in.
    pub fn traceparent(&self) -> Option<&str> {
        self.headers.get("traceparent").map(String::as_str)
    }
}

impl From<&Delivery> for Meta {
    fn from(delivery: &Delivery) -> Self {
        let event = &delivery.event;
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            id: event.id(),
            topic: event.topic().to_owned(),
            event_type: event.event_type().to_owned(),
            aggregate_type: owned(event.aggregate_type()),
            aggregate_id: owned(event.aggregate_id()),
            namespace: event.namespace().to_owned(),
            tenant_id: owned(event.tenant_id()),
            version: event.version(),
            headers: event.headers().clone(),
            occurred_at: event.occurred_at(),
            created_at: delivery.created_at,
            table: Arc::clone(&delivery.table),
            sequence: delivery.sequence,
            attempt: delivery.attempt,
        }
    }
}

/// A handler as a sink that takes one delivery at a time.
#[derive(Debug)]
pub struct HandlerSink<H>(pub H);

#[async_trait]
impl<H: Handler> Sink for HandlerSink<H> {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            outcomes.push(match self.0.handle(delivery).await {
                Ok(()) => Outcome::Delivered,
                Err(failure) => failure.into_outcome(),
            });
        }
        outcomes
    }

    fn batch_limit(&self) -> usize {
        1
    }
}
