//! The making of a relay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::retry::{Random, RetryPolicy};
use super::settings::Settings;
use super::stream::OnDead;
use super::{Connections, Plan, Relay};
use crate::dispatch::{Intercepted, Interceptor, IntoRoutes, Route, Routes, Single, TopicMap};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::produce::gate::Gate;
use crate::produce::{Backend, Outbox};
use crate::sink::Sink;
use crate::store::{Store, TableName};

impl<B: Backend> Outbox<B> {
    /// A relay of this outbox: what commits through [`begin`](Self::begin) goes straight to it.
    ///
    /// ```
    /// use posthaste::sink::Delivery;
    /// # use posthaste::{Event, testing};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// let relay = outbox
    ///     .relay()
    ///     .handler(|delivery: Delivery| async move {
    ///         println!("{}", delivery.event.topic());
    ///         Ok::<_, posthaste::Failure>(())
    ///     })
    ///     .start()
    ///     .await?;
    /// // … the service runs …
    /// let drained = relay.stop().await;
    /// assert_eq!(drained.abandoned, 0);
    /// # Ok(()) }
    /// ```
    pub fn relay(&self) -> RelayBuilder {
        RelayBuilder::new(Connections::OfItsOwn(Arc::new(self.store().clone())), Arc::clone(self.gate()))
    }
}

/// The making of a [`Relay`].
///
/// | setting | default | why |
/// |---|---|---|
/// | `batch` | 500 | most of the database's speed; twice as much adds little |
/// | `capacity` | a batch per route, up to 8, and one more | claims one while the others are under way; memory holds no more than this |
/// | `concurrency` | 32 handlers, 4 batches | handlers mostly wait; a few batches keep a broker busy |
/// | `hot_queue` | 1024 | events straight from their commit that may wait; 0 switches the hot path off |
/// | `poll_interval` | 1 s | what a lost notification costs at most |
/// | `lease` | 60 s | twice the timeout |
/// | `timeout` | 30 s | a hanging dispatch is over before anybody else may take its event |
/// | `drain_timeout` | 5 s | what runs may finish within it when the relay stops |
/// | `retry` | equal jitter, 1 s to 60 s, 25 attempts | about a quarter of an hour of trying |
/// | `probe_interval` | 1 s to 30 s | how often an unavailable sink is tried |
/// | `retention` | 7 days | 0 deletes on delivery |
/// | `dead_retention` | for ever | a dead letter is somebody's work to do |
/// | `purge_interval` | 60 s | little at a time |
/// | `stats_interval` | 5 s | at least as often as anybody scrapes |
/// | `error_bytes` | 2048 | enough of an error to act on |
/// | `single_active` | off | any number of relays share the table |
#[must_use = "a relay is made by `build` or `start`"]
pub struct RelayBuilder {
    /// The outbox's table.
    table: TableName,
    connections: Connections,
    gate: Arc<Gate>,
    settings: Settings,
    routes: Option<Arc<dyn Routes>>,
    interceptors: Vec<Arc<dyn Interceptor>>,
}

impl std::fmt::Debug for RelayBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayBuilder")
            .field("table", self.connections.store().table())
            .finish_non_exhaustive()
    }
}

impl RelayBuilder {
    pub(super) fn new(connections: Connections, gate: Arc<Gate>) -> Self {
        let table = connections.store().table().clone();
        Self {
            table,
            connections,
            gate,
            settings: Settings::default(),
            routes: None,
            interceptors: Vec::new(),
        }
    }

    /// Uses this store's connections instead of some of its own to the outbox's database: where the service
    /// connects through a pooler, a relay needs a store that does not. It must be of the same table.
    pub fn through(mut self, store: Arc<dyn Store>) -> Self {
        self.connections = Connections::Given(store);
        self
    }

    /// Delivers to this handler, or to a [`Router`](crate::Router)'s.
    pub fn handler(mut self, handler: impl IntoRoutes) -> Self {
        self.routes = Some(handler.into_routes());
        self
    }

    /// Delivers everything to this sink.
    pub fn sink(mut self, sink: impl Sink) -> Self {
        self.routes = Some(Arc::new(Single(Route { name: "sink".into(), sink: Arc::new(sink) })));
        self
    }

    /// Delivers by these routes.
    pub fn routes(mut self, routes: impl Routes) -> Self {
        self.routes = Some(Arc::new(routes));
        self
    }

    /// Where in the sink an event goes; its topic, where nothing is said.
    pub fn topics(mut self, topics: TopicMap) -> Self {
        self.settings.topics = Some(topics).filter(|topics| !topics.is_topic());
        self
    }

    /// Runs around every dispatch: the first added is the outermost.
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// When a failed event is tried again, and how often.
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.settings.retries = self.settings.retries.policy_of_others(policy);
        self
    }

    /// The same for one topic.
    pub fn retry_topic(mut self, topic: impl Into<String>, policy: impl RetryPolicy) -> Self {
        self.settings.retries = self.settings.retries.topic(topic, policy);
        self
    }

    /// Where the jitter comes from.
    pub fn random(mut self, random: impl Random) -> Self {
        self.settings.random = Arc::new(Guarded(random));
        self
    }

    /// Most events of one claim, and of one publish to a sink that takes batches.
    pub fn batch(mut self, events: usize) -> Self {
        self.settings.batch = events;
        self
    }

    /// Most claimed events in memory.
    pub fn capacity(mut self, events: usize) -> Self {
        self.settings.capacity = events.max(1);
        self
    }

    /// Most publishes at once: handlers, or batches of a sink.
    pub fn concurrency(mut self, publishes: usize) -> Self {
        self.settings.concurrency = Some(publishes);
        self
    }

    /// Most events straight from their commit that may wait; 0 switches the hot path off.
    pub fn hot_queue(mut self, events: usize) -> Self {
        self.settings.hot = events;
        self
    }

    /// The longest time between two looks at the table.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll = interval;
        self
    }

    /// How long a claimed event is this relay's; renewed for as long as it waits or runs.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long a dispatch may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How long what runs may take to finish when the relay stops.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.settings.drain = timeout;
        self
    }

    /// How long an unavailable sink rests before the first probe, and at most between two.
    pub fn probe_interval(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.probe = (first, longest);
        self
    }

    /// How long delivered events are kept; zero deletes them on delivery.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// How long dead events are kept, instead of for ever. In a stream an aggregate that waits for a dead event goes on
    /// without it when it is deleted.
    pub fn dead_retention(mut self, retention: Duration) -> Self {
        self.settings.dead_retention = Some(retention);
        self
    }

    /// How often what is past its retention is deleted.
    pub fn purge_interval(mut self, interval: Duration) -> Self {
        self.settings.purge_every = interval;
        self
    }

    /// How often the gauges are read.
    pub fn stats_interval(mut self, interval: Duration) -> Self {
        self.settings.stats_every = interval;
        self
    }

    /// Only one relay of this table is active; the others stand by and take over. Whoever becomes the active
    /// one waits four seconds first, so that the one before has surely ended.
    pub fn single_active(mut self) -> Self {
        self.settings.single_active = true;
        self
    }

    /// How long the lanes of this relay are its own if it is not heard of: a relay of a stream that dies is replaced
    /// after it, or sooner where the database knows that its session is gone.
    pub fn lane_lease(mut self, lease: Duration) -> Self {
        self.settings.lane_lease = lease;
        self
    }

    /// What happens in a stream to later events of an aggregate when one of this topic has died; they wait for an
    /// operator unless said otherwise.
    pub fn on_dead(mut self, topic: impl Into<String>, on_dead: OnDead) -> Self {
        self.settings.on_dead.insert(topic.into(), on_dead);
        self
    }

    /// Events of this topic are in no order in a stream: they wait for nobody, and nobody for them.
    pub fn unordered_topic(mut self, topic: impl Into<String>) -> Self {
        self.settings.unordered.insert(topic.into());
        self
    }

    /// Bytes of an error that are stored with its event: 64 to 2048, which is the default.
    pub fn error_bytes(mut self, bytes: usize) -> Self {
        self.settings.error_bytes = bytes;
        self
    }

    /// Shows `***` in the log instead of tenants.
    pub fn mask_tenants(mut self) -> Self {
        self.settings.mask_tenants = true;
        self
    }

    /// The relay, not started yet; settings that cannot work are refused.
    pub fn build(self) -> Result<Relay> {
        let table = self.connections.store().table();
        self.settings.check(table)?;
        if table.name() != self.table.name() {
            let message = format!("relay of table {}: the store given is of table {table}", self.table);
            return Err(Error::new(ErrorKind::InvalidSetting, message));
        }
        let Some(routes) = self.routes else {
            let message = format!("relay of table {table}: it has no handler, sink or routes");
            return Err(Error::new(ErrorKind::InvalidSetting, message));
        };
        routes.check()?;
        let routes: Arc<dyn Routes> = match self.interceptors.is_empty() {
            true => routes,
            false => Arc::new(InterceptedRoutes { routes, interceptors: self.interceptors }),
        };
        Ok(Relay::new(Plan::new(self.connections, self.gate, self.settings, routes)))
    }

    /// The relay, running.
    pub async fn start(self) -> Result<Relay> {
        let relay = self.build()?;
        relay.start().await?;
        Ok(relay)
    }
}

/// A source of randomness whose panic is no more than a bad throw.
struct Guarded<R>(R);

impl<R: Random> Random for Guarded<R> {
    fn next(&self) -> f64 {
        catch_unwind(AssertUnwindSafe(|| self.0.next())).unwrap_or(0.5)
    }
}

/// Routes with interceptors around each of their sinks.
struct InterceptedRoutes {
    routes: Arc<dyn Routes>,
    interceptors: Vec<Arc<dyn Interceptor>>,
}

impl Routes for InterceptedRoutes {
    fn routes(&self) -> Vec<Route> {
        let intercepted = |route: Route| Route {
            name: route.name,
            sink: Arc::new(Intercepted { interceptors: self.interceptors.clone(), sink: route.sink }),
        };
        self.routes.routes().into_iter().map(intercepted).collect()
    }

    fn find(&self, event: &Event) -> Option<usize> {
        self.routes.find(event)
    }

    fn of_topic(&self, topic: &str) -> Option<usize> {
        self.routes.of_topic(topic)
    }
}
