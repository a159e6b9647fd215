//! Routes: which sink takes which event, as the relay sees it.
//!
//! Each route has a breaker of its own: one that is unavailable rests while the others go on.

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::Result;
use crate::event::Event;
use crate::sink::{Delivery, Outcome, Sink};

/// One way out of the relay.
#[derive(Clone)]
pub struct Route {
    /// Its name in logs, metrics and status.
    pub name: Arc<str>,
    /// Where it leads.
    pub sink: Arc<dyn Sink>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Every way out of a relay, and which event takes which. The relay asks between two statements, for every event: what takes long, or
/// waits for anything, holds up all others.
pub trait Routes: Send + Sync + 'static {
    /// All of them; the same ones in the same order every time.
    fn routes(&self) -> Vec<Route>;

    /// The index of the event's route; `None` if it has none, which makes it dead at once.
    fn find(&self, event: &Event) -> Option<usize>;

    /// The route of every event of this topic, whatever else the event says; `None` if that depends, or is not
    /// known. While that route rests, its topic is not even claimed.
    fn of_topic(&self, _topic: &str) -> Option<usize> {
        None
    }

    /// Whether they can work: asked once, before anything is delivered. An error keeps the relay from
    /// starting.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Why an event without a route is dead.
pub(crate) fn no_route(event: &Event) -> String {
    let (topic, event_type) = (event.topic(), event.event_type());
    match event.aggregate_type() {
        Some(aggregate) => format!(
            "no handler or route for topic {topic:?}, nor for {event_type:?} of aggregate {aggregate:?}"
        ),
        None => format!("no handler or route for topic {topic:?}"),
    }
}

/// One route for every event.
#[derive(Debug, Clone)]
pub struct Single(pub Route);

impl Routes for Single {
    fn routes(&self) -> Vec<Route> {
        vec![self.0.clone()]
    }

    fn find(&self, _event: &Event) -> Option<usize> {
        Some(0)
    }
}

/// Routes as one sink, for tests and for a delivery loop of one's own. A relay takes the routes themselves:
/// there each has a breaker.
///
/// ```
/// use posthaste::dispatch::Routed;
/// use posthaste::sink::Delivery;
/// use posthaste::{Event, Failure, Router, testing};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
/// let sold_out = |_: Delivery| async { Err(Failure::reject("sold out")) };
/// let router = Router::new().topic("order.placed.v1", sold_out);
///
/// let outbox = testing::outbox();
/// let mut tx = outbox.begin();
/// outbox.enqueue(&mut tx, Event::json("order.placed.v1", &1)?).await?;
/// tx.commit();
///
/// outbox.deliver(&Routed(router)).await?;
/// assert_eq!(outbox.dead().await?, [("order.placed.v1".to_owned(), "sold out".to_owned())]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Routed<R>(pub R);

#[async_trait]
impl<R: Routes> Sink for Routed<R> {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let routes = self.0.routes();
        let mut outcomes: Vec<Outcome> =
            batch.iter().map(|delivery| Outcome::Reject { error: no_route(&delivery.event) }).collect();
        let found: Vec<Option<usize>> = batch.iter().map(|delivery| self.0.find(&delivery.event)).collect();
        for (index, route) in routes.iter().enumerate() {
            let places: Vec<usize> = (0..batch.len()).filter(|at| found[*at] == Some(index)).collect();
            for places in places.chunks(route.sink.batch_limit().max(1)) {
                let part: Vec<Delivery> = places.iter().map(|at| batch[*at].clone()).collect();
                let mut answers = route.sink.publish(&part).await.into_iter();
                for at in places {
                    outcomes[*at] = answers.next().unwrap_or_else(unanswered);
                }
            }
        }
        outcomes
    }
}

/// The outcome of a delivery that its sink said nothing about.
pub(crate) fn unanswered() -> Outcome {
    Outcome::Retry { after: None, error: "the sink did not answer for this event".to_owned() }
}
