//! The relay: from a committed row to a handler or broker.
//!
//! ```text
//!  claim ──▶ slots ──▶ dispatch ──▶ settle          one task, handing on through bounded queues;
//!               hot ──▶    │  ▲                      what they ask the database overlaps in time
//!                          ▼  │
//!                        sinks, handlers            a task for each publish
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `builder.rs`, `settings.rs` | what a relay is told, and what it refuses |
//! | `claim.rs` | leases as many events as there are slots (`slots.rs`) |
//! | `feed.rs`, `stream.rs` | where events come from: a queue's rows, or a stream's lanes |
//! | `lanes.rs` | which lanes this relay owns |
//! | `order.rs`, `line.rs` | events of one aggregate take turns |
//! | `hot.rs` | shares the workers between hot and claimed events |
//! | `dispatch.rs`, `publish.rs` | gives events to sinks, many at a time, each batch a task of its own |
//! | `verdict.rs`, `retry.rs` | what an answer comes to: delays and attempts |
//! | `breaker.rs` | lets an unavailable sink rest |
//! | `settle.rs` | writes how events ended, in batches |
//! | `crew.rs` | has claiming, dispatching and settling run as one task |
//! | `renew.rs` | keeps the leases of what waits or runs |
//! | `wake.rs` | wake-ups from other processes |
//! | `presence.rs`, `orphans.rs` | the relay's session: who leads, who is gone |
//! | `purge.rs`, `stats.rs` | housekeeping; the survey, with the gauges |
//! | `lull.rs` | who has just seen that there is nothing to claim |
//! | `status.rs` | what a relay says of itself |
//! | `outage.rs`, `control.rs`, `engine.rs`, `job.rs` | what the parts share |
//!
//! It sees the store and the sinks as traits only. It promises that every committed event is delivered at least
//! once, that what it holds in memory does not grow with the backlog, and that no event's failure holds up
//! another.

mod breaker;
mod builder;
mod claim;
mod control;
mod crew;
mod dispatch;
mod engine;
mod feed;
mod hot;
mod job;
mod lanes;
mod line;
mod lull;
mod order;
mod orphans;
mod outage;
mod presence;
mod publish;
mod purge;
mod renew;
pub mod retry;
mod rush;
mod settings;
mod settle;
mod slots;
mod stats;
mod status;
mod stream;
mod verdict;
mod wake;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::dispatch::Routes;
use crate::error::{Error, ErrorKind, Policy, Result, quoted};
use crate::produce::gate::{Gate, HotQueue};
use crate::store::{Store, WorkerId};
use crate::telemetry;

pub use builder::RelayBuilder;
use crew::{Crew, Errand};
use engine::{Ended, Engine, Parts};
use job::{Note, Pass};
use outage::Doing;
pub use retry::{Backoff, Random, RetryPolicy};
use settings::Settings;
pub use status::{Drained, Passed, RelayStatus, RouteStatus};
pub use stream::OnDead;

/// How long the last settlements may take once everything that ran has ended: with the database gone, they
/// are left to their leases.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Delivers the events of one table; clones share it. Dropping the last one stops it.
#[must_use = "dropping the last handle of a relay stops it: keep it, or use `run_until`"]
#[derive(Clone)]
pub struct Relay {
    inner: Arc<Inner>,
}

/// What every run of a relay is made from.
struct Plan {
    connections: Connections,
    /// The connections in use, from the first start on.
    store: OnceLock<Arc<dyn Store>>,
    gate: Arc<Gate>,
    settings: Settings,
    routes: Arc<dyn Routes>,
}

/// Whose connections the relay uses.
enum Connections {
    /// Some of its own to the same table, opened when it starts.
    OfItsOwn(Arc<dyn Store>),
    /// These.
    Given(Arc<dyn Store>),
}

impl Connections {
    fn store(&self) -> &Arc<dyn Store> {
        match self {
            Self::OfItsOwn(store) | Self::Given(store) => store,
        }
    }
}

struct Inner {
    plan: Plan,
    paused: AtomicBool,
    /// Whether it is never to be started again.
    retired: AtomicBool,
    paused_routes: Mutex<BTreeSet<Arc<str>>>,
    run: Mutex<Option<Run>>,
    /// One at a time starts or stops it.
    starting: tokio::sync::Mutex<()>,
    /// One pass at a time.
    passing: tokio::sync::Mutex<()>,
}

/// A running relay.
struct Run {
    engine: Arc<Engine>,
    supervisor: JoinHandle<Drained>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("table", self.inner.plan.connections.store().table())
            .field("running", &self.is_running())
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay of a table that is written to by others: programs in any language, other processes.
    pub fn on(store: Arc<dyn Store>) -> RelayBuilder {
        RelayBuilder::new(Connections::Given(store), Arc::default())
    }

    fn new(plan: Plan) -> Self {
        Self {
            inner: Arc::new(Inner {
                plan,
                paused: AtomicBool::new(false),
                retired: AtomicBool::new(false),
                paused_routes: Mutex::default(),
                run: Mutex::new(None),
                starting: tokio::sync::Mutex::default(),
                passing: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Starts it; does nothing if it runs. A database that cannot be reached now is waited for, one that will
    /// never do (no such table, no right to it) is an error.
    pub async fn start(&self) -> Result<()> {
        self.start_with(None).await
    }

    /// Starts it with a pass as the first thing it does; one that runs makes the pass now.
    async fn start_with(&self, pass: Option<Pass>) -> Result<()> {
        let _one = self.inner.starting.lock().await;
        if self.inner.retired.load(Ordering::Acquire) {
            let message =
                format!("the relay of table {} was stopped for good", self.inner.plan.store().table());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        if self.is_running() {
            if let (Some(run), Some(pass)) = (&*self.inner.run(), pass) {
                *run.engine.pass() = Some(pass);
                run.engine.wake.notify_one();
            }
            return Ok(());
        }
        let plan = &self.inner.plan;
        let store = plan.store();
        let reached = reach(&**store).await;
        if let Err(error) = &reached {
            if error.kind().policy() == Policy::Fix {
                return reached;
            }
            tracing::warn!(table = %store.table(), %error, "the database is not there yet; the relay waits for it");
        }
        let paused_routes = self.inner.paused_routes().clone();
        let run =
            plan.run(self.inner.paused.load(Ordering::Acquire), paused_routes, pass, reached.is_ok()).await;
        let mut running = self.inner.run();
        // It may have been paused or resumed while it started.
        let paused = self.inner.paused.load(Ordering::Acquire);
        run.engine.control.change(|state| state.paused = paused);
        run.engine.pause_routes(&self.inner.paused_routes());
        run.engine.open_or_close_gate();
        *running = Some(run);
        Ok(())
    }

    /// Stops it: claims nothing more, lets what runs finish within the drain timeout, hands back what has not
    /// started, settles everything, and says what was left.
    pub async fn stop(&self) -> Drained {
        let _one = self.inner.starting.lock().await;
        let Some(run) = self.inner.run().take() else { return Drained::default() };
        run.engine.stop();
        run.supervisor.await.unwrap_or_else(|error| {
            tracing::error!(table = %run.engine.table, %error, "the relay ended badly");
            Drained::default()
        })
    }

    /// [Stops](Self::stop) it for good: whoever still waits to start it, or for a [pass](Self::run_once), gets an error.
    pub async fn retire(&self) -> Drained {
        self.inner.retired.store(true, Ordering::Release);
        self.stop().await
    }

    /// Runs until `cancelled` completes, then [stops](Self::stop): the whole life of a relay in one call.
    ///
    /// ```no_run
    /// # async fn f(relay: posthaste::Relay) -> posthaste::Result<()> {
    /// relay.run_until(async { tokio::signal::ctrl_c().await.ok(); }).await?;
    /// # Ok(()) }
    /// ```
    pub async fn run_until(&self, cancelled: impl Future<Output = ()>) -> Result<Drained> {
        self.start().await?;
        cancelled.await;
        Ok(self.stop().await)
    }

    /// Whether it has been started and not stopped.
    pub fn is_running(&self) -> bool {
        self.inner.run().as_ref().is_some_and(|run| !run.supervisor.is_finished())
    }

    /// Stops claiming and dispatching; what runs finishes, what waits is handed back. It lasts over a stop and
    /// start.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.set_paused(false);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.inner.paused.load(Ordering::Acquire)
    }

    fn set_paused(&self, paused: bool) {
        let run = self.inner.run();
        self.inner.paused.store(paused, Ordering::Release);
        if let Some(run) = &*run {
            if run.engine.control.change(|state| state.paused = paused) {
                tracing::info!(table = %run.engine.table, "the relay is {}", if paused { "paused" } else { "resumed" });
            }
            run.engine.open_or_close_gate();
            run.engine.wake.notify_one();
            run.engine.lanes_wake.notify_one();
        }
    }

    /// Pauses one route: nothing of it is dispatched and no attempt of its events is spent, while the others go on.
    /// What runs finishes, what waits is handed back. It lasts over a stop and start. The name is that of its
    /// [status](RouteStatus); one that no route has is an error.
    ///
    /// ```
    /// # use posthaste::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// let relay = outbox.relay().sink(posthaste::sink::MemorySink::new()).start().await?;
    /// relay.pause_route("sink")?;
    /// assert!(relay.status().routes[0].paused);
    /// relay.resume_route("sink")?;
    /// # relay.stop().await;
    /// # Ok(()) }
    /// ```
    pub fn pause_route(&self, name: &str) -> Result<()> {
        self.set_route_paused(name, true)
    }

    /// Ends the pause of one route. A sink that rests because it is unavailable goes on resting.
    pub fn resume_route(&self, name: &str) -> Result<()> {
        self.set_route_paused(name, false)
    }

    fn set_route_paused(&self, name: &str, paused: bool) -> Result<()> {
        let names: Vec<Arc<str>> =
            self.inner.plan.routes.routes().into_iter().map(|route| route.name).collect();
        let Some(name) = names.iter().find(|known| ***known == *name) else {
            let table = self.inner.plan.connections.store().table();
            let name = quoted(name, 100);
            let message = format!("table {table}: the relay has no route {name} among {names:?}");
            return Err(Error::new(ErrorKind::InvalidSetting, message));
        };
        let run = self.inner.run();
        let mut routes = self.inner.paused_routes();
        if paused {
            routes.insert(Arc::clone(name))
        } else {
            routes.remove(name)
        };
        if let Some(run) = &*run {
            run.engine.pause_routes(&routes);
            run.engine.open_or_close_gate();
            run.engine.wake.notify_one();
        }
        Ok(())
    }

    /// One pass over everything that is due, for tests and manual triggers: returns when all of it, and what was
    /// claimed before, is settled.
    /// A relay that does not run is started for it and stopped again; one that is paused, or stands by for
    /// another, does nothing.
    pub async fn run_once(&self) -> Result<Passed> {
        let _one = self.inner.passing.lock().await;
        let ran = self.is_running();
        let (notes, mut noted) = mpsc::unbounded_channel();
        self.start_with(Some(Pass(notes))).await?;
        let mut passed = Passed::default();
        let mut failed = None;
        while let Some(note) = noted.recv().await {
            match note {
                Note::Delivered => passed.delivered += 1,
                Note::Retried => passed.retried += 1,
                Note::Dead => passed.dead += 1,
                Note::HandedBack => passed.handed_back += 1,
                Note::Failed(error) => failed = Some(error),
            }
        }
        if !ran {
            self.stop().await;
        }
        failed.map_or(Ok(passed), Err)
    }

    /// What it is doing.
    pub fn status(&self) -> RelayStatus {
        let paused = self.is_paused();
        let running = self.is_running();
        let run = self.inner.run();
        let table = self.inner.plan.connections.store().table().to_string();
        let Some(run) = run.as_ref() else { return RelayStatus { table, paused, ..RelayStatus::default() } };
        let engine = &run.engine;
        let load = |depth: &std::sync::atomic::AtomicUsize| depth.load(Ordering::Relaxed);
        RelayStatus {
            table,
            running,
            paused,
            leading: engine.control.now().leading,
            worker: Some(engine.worker().to_string()),
            lanes: engine.lanes(),
            hot: load(&engine.depths.hot),
            claimed: load(&engine.depths.claimed),
            dispatching: load(&engine.depths.running),
            settling: load(&engine.depths.settling),
            database: engine.outage.error(engine.control.now().works()),
            routes: engine
                .ways
                .iter()
                .map(|way| RouteStatus {
                    name: Arc::clone(&way.route.name),
                    resting: way.breaker.resting(),
                    paused: way.breaker.is_paused(),
                })
                .collect(),
        }
    }
}

/// Whether the table can be worked on. A connection of its own is tried first: it says at once why there is none.
async fn reach(store: &dyn Store) -> Result<()> {
    store.session(&WorkerId::unique()).await?.close().await;
    match store.stream().await? {
        Some(stream) => stream.has_parked(&[]).await.map(drop),
        None => store.stats(1).await.map(drop),
    }
}

impl Inner {
    fn run(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken after the lock of the run, where both are.
    fn paused_routes(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.paused_routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(run) = self.run().take() {
            if !run.supervisor.is_finished() {
                tracing::warn!(table = %run.engine.table, "the relay stops: its last handle was dropped");
            }
            run.engine.stop();
        }
    }
}

impl Plan {
    fn new(connections: Connections, gate: Arc<Gate>, settings: Settings, routes: Arc<dyn Routes>) -> Self {
        Self { connections, store: OnceLock::new(), gate, settings, routes }
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.store.get_or_init(|| match &self.connections {
            Connections::OfItsOwn(store) => store.dedicated(),
            Connections::Given(store) => Arc::clone(store),
        })
    }

    /// Starts every part.
    async fn run(
        &self,
        paused: bool,
        paused_routes: BTreeSet<Arc<str>>,
        pass: Option<Pass>,
        reached: bool,
    ) -> Run {
        let worker = WorkerId::unique();
        let wake = Arc::new(Notify::new());
        let (hot, hot_events) =
            HotQueue::new(worker.clone(), self.settings.lease, self.settings.hot, Arc::clone(&wake));
        let table: Arc<str> = self.store().table().to_string().into();
        let (crew, hands) = Crew::new(Arc::clone(&table));
        let engine = Arc::new(Engine::new(Parts {
            table,
            store: Arc::clone(self.store()),
            settings: self.settings.clone(),
            routes: Arc::clone(&self.routes),
            worker: worker.clone(),
            hot: Arc::clone(&hot),
            wake,
            paused,
            paused_routes,
            pass,
            crew,
        }));
        telemetry::begin(&engine.table);
        if reached {
            // Until the clocks are compared, events that take the hot path are dated by the wrong one.
            if let Err(error) = stats::measure_skew(&engine).await {
                engine.outage.say(Doing::Measuring, &error);
            }
            if let Err(error) = engine.feed().await {
                engine.outage.say(Doing::Claiming, &error);
            }
        }
        let keeper = if reached { lanes::begin(&engine).await } else { None };
        let (jobs, claimed) = mpsc::channel(4);
        // Every batch on its way has an event with a slot in it, so that the dispatcher never waits here.
        let most = self.settings.capacity(engine.ways.len()).saturating_add(self.settings.hot);
        let (settle, ended) = mpsc::channel(most.clamp(1, Semaphore::MAX_PERMITS));
        let (drained, is_drained) = watch::channel(false);
        let parts: Vec<Errand> = vec![
            Box::pin(claim::Claimer::new(Arc::clone(&engine), jobs).run()),
            Box::pin(dispatch::Dispatcher::new(Arc::clone(&engine), settle).run(claimed, hot_events)),
            Box::pin(settle::Settler::new(Arc::clone(&engine), ended).run()),
        ];
        let (ends, part_ended) = oneshot::channel();
        let pipeline = tokio::spawn(hands.work(parts, || drop(ends)));
        let mut beside = JoinSet::new();
        beside.spawn(renew::run(Arc::clone(&engine), is_drained.clone()));
        beside.spawn(wake::run(Arc::clone(&engine)));
        beside.spawn(orphans::run(Arc::clone(&engine)));
        beside.spawn(purge::run(Arc::clone(&engine)));
        beside.spawn(stats::run(Arc::clone(&engine)));
        let owning = tokio::spawn(lanes::run(Arc::clone(&engine), keeper, is_drained.clone()));
        let presence = tokio::spawn(presence::run(Arc::clone(&engine), worker.clone(), is_drained));
        self.gate.attach(&hot);
        let routes: Vec<&str> = engine.ways.iter().map(|way| &*way.route.name).collect();
        tracing::info!(table = %engine.table, %worker, ?routes, paused, "the relay has started");
        let supervisor = Supervisor {
            engine: Arc::clone(&engine),
            gate: Arc::clone(&self.gate),
            hot,
            pipeline,
            part_ended,
            beside,
            owning,
            presence,
            drained,
        };
        Run { engine, supervisor: tokio::spawn(supervisor.run()) }
    }
}

/// Sees the parts of one run to their end.
struct Supervisor {
    engine: Arc<Engine>,
    gate: Arc<Gate>,
    hot: Arc<HotQueue>,
    pipeline: JoinHandle<()>,
    /// Closed when one of the parts has ended.
    part_ended: oneshot::Receiver<Infallible>,
    beside: JoinSet<()>,
    owning: JoinHandle<()>,
    presence: JoinHandle<()>,
    drained: watch::Sender<bool>,
}

impl Supervisor {
    async fn run(mut self) -> Drained {
        // No part ends before the relay stops, unless by a panic of ours: better none than half of them.
        tokio::select! {
            biased;
            () = self.engine.control.stopping() => {}
            _ = &mut self.part_ended => if !self.engine.control.now().stopping {
                tracing::error!(table = %self.engine.table, "a part of the relay ended by itself; the relay stops");
            }
        }
        let before = self.engine.tally.ended();
        self.engine.stop();
        self.gate.detach(&self.hot);
        let within = self.engine.settings.drain + LAST_WRITES;
        let ended = tokio::time::timeout(within, &mut self.pipeline).await;
        if let Ok(Err(error)) = &ended {
            tracing::error!(table = %self.engine.table, %error, "the relay came to a bad end");
        }
        if ended.is_err() {
            tracing::warn!(table = %self.engine.table, "the database does not answer: what could not be settled is left to its leases");
            self.pipeline.abort();
            let _ = (&mut self.pipeline).await;
        }
        let _ = self.drained.send(true);
        // Nothing that may be in the middle of a statement is cancelled while there is hope that it ends.
        let ended = async {
            while self.beside.join_next().await.is_some() {}
            let _ = (&mut self.owning).await;
            let _ = (&mut self.presence).await;
        };
        if tokio::time::timeout(LAST_WRITES, ended).await.is_err() {
            self.beside.abort_all();
            self.owning.abort();
            self.presence.abort();
        }
        telemetry::leader(&self.engine.table, false);
        for way in &self.engine.ways {
            telemetry::sink_paused(&self.engine.table, &way.route.name, false);
        }
        self.report(before)
    }

    fn report(&self, before: Ended) -> Drained {
        let after = self.engine.tally.ended();
        let drained = Drained {
            settled: after.settled - before.settled,
            handed_back: after.handed_back - before.handed_back,
            abandoned: after.interrupted - before.interrupted,
            unsettled: self.engine.depths.all() + after.refused - before.refused,
        };
        tracing::info!(
            table = %self.engine.table, settled = drained.settled, handed_back = drained.handed_back,
            abandoned = drained.abandoned, unsettled = drained.unsettled, "the relay has stopped"
        );
        drained
    }
}
