//! The router: one handler per topic, or per aggregate and event type.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Handler, HandlerSink, IntoFailure, Meta, Route, Routes, Typed};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, TypedEvent};

/// The name of the route that takes what no other does.
const FALLBACK: &str = "*";

/// Sends each event to the one handler that is registered for it.
///
/// ```
/// use posthaste::sink::Delivery;
/// use posthaste::{Failure, Meta, Router, TypedEvent};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPlaced { id: u64, total: String }
///
/// impl TypedEvent for OrderPlaced {
///     const TOPIC: &'static str = "order.placed.v1";
///     const AGGREGATE: &'static str = "order";
///     fn aggregate_id(&self) -> String { self.id.to_string() }
/// }
///
/// async fn stock_moved(delivery: Delivery) -> Result<(), Failure> {
///     println!("{}", delivery.event.id());
///     Ok(())
/// }
///
/// async fn rename(delivery: Delivery) -> Result<(), Failure> {
///     println!("{:?}", delivery.event.aggregate_id());
///     Ok(())
/// }
///
/// let router = Router::new()
///     .on(|order: OrderPlaced, meta: Meta| async move {
///         println!("{} for {} ({})", order.id, order.total, meta.id);
///         Ok::<_, Failure>(())
///     })
///     .topic("stock.moved.v1", stock_moved)
///     .aggregate("customer", "renamed", rename);
/// router.check()?;
/// # Ok::<_, posthaste::Error>(())
/// ```
///
/// An event goes to the handler of its topic; if there is none, to that of its aggregate and event type; if
/// there is none either, to the fallback. Without any of them it is dead at once, and the reason says so.
///
/// Each handler is a route of its own, named by its topic, by `aggregate/type`, or `*` for the fallback: one
/// that says that it is unavailable rests alone.
///
/// A mistake (two handlers for the same, or none at all) is told by [`check`](Self::check), which the relay
/// calls before it starts, so that registering stays a chain.
#[derive(Debug, Default)]
#[must_use = "a router does nothing until a relay has it"]
pub struct Router {
    routes: Vec<Route>,
    names: HashSet<Arc<str>>,
    topics: HashMap<String, usize>,
    /// By aggregate type, then by event type: found without putting the two together.
    aggregates: HashMap<String, HashMap<String, usize>>,
    fallback: Option<usize>,
    /// The first one made.
    mistake: Option<String>,
}

impl Router {
    /// A router without handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the typed event that the closure takes, by its topic. A payload that does not decode is
    /// rejected.
    pub fn on<T, F, R, E>(self, handler: F) -> Self
    where
        T: TypedEvent + DeserializeOwned + Send + 'static,
        F: Fn(T, Meta) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: IntoFailure + 'static,
    {
        self.topic(T::TOPIC, Typed::new(handler))
    }

    /// Handles the typed event that the closure takes, by its aggregate and event type: for events that share
    /// a topic.
    pub fn on_aggregate<T, F, R, E>(self, handler: F) -> Self
    where
        T: TypedEvent + DeserializeOwned + Send + 'static,
        F: Fn(T, Meta) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: IntoFailure + 'static,
    {
        self.aggregate(T::AGGREGATE, T::EVENT_TYPE, Typed::new(handler))
    }

    /// Handles the events of this topic, whatever their type.
    pub fn topic(mut self, topic: impl Into<String>, handler: impl Handler) -> Self {
        let topic = topic.into();
        let route = self.add(&topic, handler);
        self.topics.entry(topic).or_insert(route);
        self
    }

    /// Handles the events of this type that happened to this kind of aggregate, unless their topic has a
    /// handler.
    pub fn aggregate(
        mut self,
        aggregate_type: impl Into<String>,
        event_type: impl Into<String>,
        handler: impl Handler,
    ) -> Self {
        let (aggregate_type, event_type) = (aggregate_type.into(), event_type.into());
        let route = self.add(&format!("{aggregate_type}/{event_type}"), handler);
        self.aggregates.entry(aggregate_type).or_default().entry(event_type).or_insert(route);
        self
    }

    /// Handles every event that has no other handler, instead of making it dead.
    pub fn fallback(mut self, handler: impl Handler) -> Self {
        let route = self.add(FALLBACK, handler);
        self.fallback.get_or_insert(route);
        self
    }

    /// Whether it can work: the first mistake that was made in putting it together.
    ///
    /// ```
    /// # use posthaste::{Failure, Router, sink::Delivery};
    /// # async fn first(_: Delivery) -> Result<(), Failure> { Ok(()) }
    /// # async fn second(_: Delivery) -> Result<(), Failure> { Ok(()) }
    /// let router = Router::new().topic("order.placed.v1", first).topic("order.placed.v1", second);
    /// assert!(router.check().unwrap_err().message().contains("order.placed.v1"));
    /// ```
    pub fn check(&self) -> Result<()> {
        match &self.mistake {
            Some(mistake) => Err(Error::new(ErrorKind::InvalidSetting, mistake)),
            None if self.routes.is_empty() => {
                let message = "the router has no handler: every event would be dead at once";
                Err(Error::new(ErrorKind::InvalidSetting, message))
            }
            None => Ok(()),
        }
    }

    /// Adds a route and answers with its index.
    fn add(&mut self, name: &str, handler: impl Handler) -> usize {
        let mistake = match handler.check() {
            Err(error) => Some(format!("the handler for {name:?} cannot work: {}", error.message())),
            // Metrics and status know a route by its name alone.
            Ok(()) if self.names.contains(name) => Some(format!("two handlers are registered for {name:?}")),
            Ok(()) => None,
        };
        self.mistake = self.mistake.take().or(mistake);
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        self.routes.push(Route { name, sink: Arc::new(HandlerSink(handler)) });
        self.routes.len() - 1
    }
}

impl Routes for Router {
    fn routes(&self) -> Vec<Route> {
        self.routes.clone()
    }

    fn find(&self, event: &Event) -> Option<usize> {
        let by_aggregate = || self.aggregates.get(event.aggregate_type()?)?.get(event.event_type());
        self.topics.get(event.topic()).or_else(by_aggregate).copied().or(self.fallback)
    }

    fn of_topic(&self, topic: &str) -> Option<usize> {
        self.topics.get(topic).copied()
    }

    fn check(&self) -> Result<()> {
        Router::check(self)
    }
}
