//! What the parts of one run share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{Notify, watch};

use super::breaker::{Admission, Breaker};
use super::control::Control;
use super::job::Pass;
use super::outage::Outage;
use super::renew::Leases;
use super::settings::Settings;
use super::slots::Slots;
use crate::dispatch::{Route, Routes};
use crate::event::Event;
use crate::produce::gate::HotQueue;
use crate::store::{Store, Topics, WorkerId};

/// What the parts of one run share; each part documents what it uses.
pub(super) struct Engine {
    pub(super) table: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    pub(super) settings: Settings,
    pub(super) routes: Arc<dyn Routes>,
    pub(super) ways: Vec<Way>,
    pub(super) control: Control,
    pub(super) slots: Slots,
    pub(super) leases: Leases,
    pub(super) outage: Outage,
    /// Whether settlements wait for a database that fails: what they are about is not to be claimed again first.
    pub(super) behind: watch::Sender<bool>,
    /// Something is to be claimed.
    pub(super) wake: Arc<Notify>,
    /// A breaker opened or closed.
    pub(super) breakers_changed: Arc<watch::Sender<()>>,
    /// The pass that `run_once` asks for.
    pub(super) pass: Mutex<Option<Pass>>,
    pub(super) depths: Depths,
    pub(super) tally: Tally,
    worker: RwLock<WorkerId>,
    hot: Arc<HotQueue>,
    /// The database's clock less this process's, in microseconds.
    skew: AtomicI64,
}

/// One route with its breaker.
pub(super) struct Way {
    pub(super) route: Route,
    pub(super) breaker: Breaker,
    /// The topics seen since it rests of which all events are its own: until it works again they are not
    /// claimed, or a long backlog of it would be claimed and given back over and over.
    topics: Mutex<BTreeSet<String>>,
}

impl Way {
    /// Most topics that are left out of a claim.
    const MOST_TOPICS: usize = 256;

    fn topics(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many events are where.
#[derive(Debug, Default)]
pub(super) struct Depths {
    pub(super) hot: AtomicUsize,
    pub(super) claimed: AtomicUsize,
    pub(super) running: AtomicUsize,
    pub(super) settling: AtomicUsize,
}

impl Depths {
    /// How many wait to be dispatched.
    pub(super) fn waiting(&self) -> usize {
        self.hot.load(Ordering::Relaxed) + self.claimed.load(Ordering::Relaxed)
    }

    /// How many are in memory.
    pub(super) fn all(&self) -> usize {
        self.waiting() + self.running.load(Ordering::Relaxed) + self.settling.load(Ordering::Relaxed)
    }
}

/// What a run has come to so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) settled: usize,
    pub(super) handed_back: usize,
    pub(super) interrupted: usize,
}

/// What one run has come to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) delivered: AtomicUsize,
    pub(super) retried: AtomicUsize,
    pub(super) dead: AtomicUsize,
    pub(super) handed_back: AtomicUsize,
    pub(super) interrupted: AtomicUsize,
    pub(super) lost: AtomicUsize,
}

impl Tally {
    pub(super) fn ended(&self) -> Ended {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Ended {
            settled: load(&self.delivered) + load(&self.retried) + load(&self.dead),
            handed_back: load(&self.handed_back),
            interrupted: load(&self.interrupted),
        }
    }
}

/// What a new run is made of.
pub(super) struct Parts {
    pub(super) table: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    pub(super) settings: Settings,
    pub(super) routes: Arc<dyn Routes>,
    pub(super) worker: WorkerId,
    pub(super) hot: Arc<HotQueue>,
    pub(super) wake: Arc<Notify>,
    pub(super) paused: bool,
    pub(super) pass: Option<Pass>,
}

impl Engine {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { table, store, settings, routes, worker, hot, wake, paused, pass } = parts;
        let breakers_changed = Arc::new(watch::Sender::new(()));
        let way = |route: Route| {
            let breaker = Breaker::new(
                Arc::clone(&table),
                Arc::clone(&route.name),
                settings.probe,
                Arc::clone(&settings.random),
                Arc::clone(&breakers_changed),
            );
            Way { route, breaker, topics: Mutex::default() }
        };
        let ways = routes.routes().into_iter().map(way).collect();
        let engine = Self {
            ways,
            control: Control::new(paused, !settings.single_active),
            slots: Slots::new(settings.capacity()),
            leases: Leases::new(settings.lease),
            outage: Outage::new(Arc::clone(&table)),
            behind: watch::Sender::new(false),
            wake,
            breakers_changed,
            pass: Mutex::new(pass),
            depths: Depths::default(),
            tally: Tally::default(),
            worker: RwLock::new(worker),
            hot,
            skew: AtomicI64::new(0),
            table,
            store,
            settings,
            routes,
        };
        engine.open_or_close_gate();
        engine
    }

    /// Under which name events are leased now.
    pub(super) fn worker(&self) -> WorkerId {
        self.worker.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Leases events under this name from now on.
    pub(super) fn set_worker(&self, worker: &WorkerId) {
        *self.worker.write().unwrap_or_else(PoisonError::into_inner) = worker.clone();
        self.hot.set_worker(worker.clone());
    }

    /// The database's clock less this process's.
    pub(super) fn set_skew(&self, skew: time::Duration) {
        self.skew.store(i64::try_from(skew.whole_microseconds()).unwrap_or(0), Ordering::Relaxed);
        self.hot.set_skew(skew);
    }

    /// How long ago something happened, by the database's clock.
    pub(super) fn age(&self, at: OffsetDateTime) -> Duration {
        let now = OffsetDateTime::now_utc() + time::Duration::microseconds(self.skew.load(Ordering::Relaxed));
        Duration::try_from(now - at).unwrap_or_default()
    }

    /// What may be claimed: anything if any route is open, one event if one is to be probed.
    pub(super) fn admission(&self) -> Admission {
        let mut soonest = None;
        for way in &self.ways {
            match (way.breaker.peek(), soonest) {
                (Admission::All, _) => return Admission::All,
                (Admission::Probe, _) => soonest = Some(Duration::ZERO),
                (Admission::After(left), None) => soonest = Some(left),
                (Admission::After(left), Some(other)) => soonest = Some(left.min(other)),
            }
        }
        match soonest {
            None => Admission::All,
            Some(Duration::ZERO) => Admission::Probe,
            Some(left) => Admission::After(left),
        }
    }

    /// These events of a resting route were given back: their topics need not be claimed for now.
    pub(super) fn rests_for(&self, way: usize, deliveries: impl Iterator<Item = Arc<Event>>) {
        let mut topics = self.ways[way].topics();
        for event in deliveries {
            let topic = event.topic();
            if topics.len() < Way::MOST_TOPICS
                && !topics.contains(topic)
                && self.routes.of_topic(topic) == Some(way)
            {
                topics.insert(topic.to_owned());
            }
        }
    }

    /// What a claim is for: all but the topics of resting routes.
    pub(super) fn topics(&self) -> Topics {
        let mut except = Vec::new();
        for way in &self.ways {
            let mut topics = way.topics();
            if way.breaker.peek() == Admission::All {
                topics.clear();
            }
            except.extend(topics.iter().cloned());
        }
        if except.is_empty() { Topics::All } else { Topics::Except(except) }
    }

    /// The routes that are due to be probed, with the topics to claim for it.
    pub(super) fn probes(&self) -> Vec<(usize, Vec<String>)> {
        let due = |way: &Way| way.breaker.peek() == Admission::Probe;
        let named = |(at, way): (usize, &Way)| {
            let topics: Vec<String> = way.topics().iter().cloned().collect();
            (!topics.is_empty() && due(way)).then_some((at, topics))
        };
        self.ways.iter().enumerate().filter_map(named).collect()
    }

    /// There is nothing to probe this route with: whatever comes next will do.
    pub(super) fn claim_anything_for(&self, way: usize) {
        self.ways[way].topics().clear();
    }

    /// Begins the end.
    pub(super) fn stop(&self) {
        self.control.change(|state| state.stopping = true);
        self.open_or_close_gate();
        self.wake.notify_one();
    }

    /// Lets the hot path take events only while they would be dispatched at once.
    pub(super) fn open_or_close_gate(&self) {
        self.hot.set_open(self.control.now().works() && self.admission() == Admission::All);
    }

    /// A tenant as the log shows it.
    pub(super) fn tenant<'e>(&self, tenant: Option<&'e str>) -> &'e str {
        match tenant {
            None => "",
            Some(_) if self.settings.mask_tenants => "***",
            Some(tenant) => tenant,
        }
    }
}
