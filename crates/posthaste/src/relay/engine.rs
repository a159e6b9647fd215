//! What the parts of one run share.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{Notify, OnceCell, watch};

use super::breaker::{Admission, Breaker};
use super::control::Control;
use super::crew::Crew;
use super::feed::Feed;
use super::job::Pass;
use super::lull::Lull;
use super::outage::Outage;
use super::presence::Presence;
use super::renew::Leases;
use super::settings::Settings;
use super::slots::Slots;
use super::stats::Surveyed;
use super::stream::{Signals, StreamFeed};
use crate::dispatch::{Route, Routes};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::produce::gate::HotQueue;
use crate::store::{AttemptLimits, Store, Topics, WorkerId};

/// What the parts of one run share; each part documents what it uses.
pub(super) struct Engine {
    pub(super) table: Arc<str>,
    pub(super) store: Arc<dyn Store>,
    /// Where events come from, once it is known whether the table is a queue or a stream.
    feed: OnceCell<Feed>,
    pub(super) settings: Settings,
    pub(super) attempts: AttemptLimits,
    pub(super) routes: Arc<dyn Routes>,
    pub(super) ways: Vec<Way>,
    pub(super) control: Control,
    pub(super) slots: Slots,
    pub(super) leases: Leases,
    pub(super) outage: Outage,
    /// Whether another relay is the active one, as far as is known.
    pub(super) stands_by: AtomicBool,
    /// Whether settlements wait for a database that fails: what they are about is not to be claimed again first.
    pub(super) behind: watch::Sender<bool>,
    /// What is known of its session without asking.
    pub(super) presence: Presence,
    /// What the last survey of the table said.
    pub(super) surveyed: watch::Sender<Surveyed>,
    /// Whether somebody saw that there is nothing to claim.
    pub(super) lull: Lull,
    /// Something is to be claimed.
    pub(super) wake: Arc<Notify>,
    /// Whether notifications of other processes are heard, and that one was.
    pub(super) hears: AtomicBool,
    pub(super) heard: Notify,
    /// Lanes may be free, or are to be given up.
    pub(super) lanes_wake: Arc<Notify>,
    /// A breaker opened or closed.
    pub(super) breakers_changed: Arc<watch::Sender<()>>,
    /// The pass that `run_once` asks for.
    pass: Mutex<Option<Pass>>,
    pub(super) depths: Depths,
    pub(super) tally: Tally,
    /// Carries out what is to be done while others go on.
    pub(super) crew: Crew,
    /// The name it has without a session.
    plain_worker: WorkerId,
    worker: RwLock<WorkerId>,
    hot: Arc<HotQueue>,
    gate: Mutex<()>,
    /// The database's clock less this process's, in microseconds.
    skew: AtomicI64,
}

/// One route with its breaker.
pub(super) struct Way {
    pub(super) route: Route,
    pub(super) breaker: Breaker,
    /// The topics seen so far of which all events are its own. While it rests they are not claimed, or a long
    /// backlog of it would be claimed and given back over and over.
    topics: Mutex<BTreeSet<String>>,
    /// How many claimed events it has, waiting, running or not settled yet; the only route's are not counted.
    pub(super) held: Arc<AtomicUsize>,
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
    pub(super) refused: usize,
}

/// What one run has come to.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) delivered: AtomicUsize,
    pub(super) retried: AtomicUsize,
    pub(super) dead: AtomicUsize,
    pub(super) handed_back: AtomicUsize,
    pub(super) interrupted: AtomicUsize,
    /// Whose end the database refused to write.
    pub(super) refused: AtomicUsize,
    pub(super) lost: AtomicUsize,
}

impl Tally {
    pub(super) fn ended(&self) -> Ended {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Ended {
            settled: load(&self.delivered) + load(&self.retried) + load(&self.dead),
            handed_back: load(&self.handed_back),
            interrupted: load(&self.interrupted),
            refused: load(&self.refused),
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
    /// The routes that are paused.
    pub(super) paused_routes: BTreeSet<Arc<str>>,
    pub(super) pass: Option<Pass>,
    pub(super) crew: Crew,
}

/// Fewer events at once are not worth a statement, however many routes share them.
const LEAST_CLAIM: usize = 50;

impl Engine {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { table, store, settings, routes, worker, hot, wake, paused, paused_routes, pass, crew } =
            parts;
        let breakers_changed = Arc::new(watch::Sender::new(()));
        let way = |route: Route| {
            let breaker = Breaker::new(
                Arc::clone(&table),
                Arc::clone(&route.name),
                settings.probe,
                Arc::clone(&settings.random),
                Arc::clone(&breakers_changed),
                paused_routes.contains(&route.name),
            );
            Way { route, breaker, topics: Mutex::default(), held: Arc::default() }
        };
        let ways: Vec<Way> = routes.routes().into_iter().map(way).collect();
        let engine = Self {
            control: Control::new(paused, !settings.single_active),
            slots: Slots::new(settings.capacity(ways.len())),
            ways,
            attempts: settings.retries.attempt_limits(),
            leases: Leases::new(settings.lease),
            outage: Outage::new(Arc::clone(&table)),
            stands_by: AtomicBool::new(false),
            behind: watch::Sender::new(false),
            presence: Presence::new(),
            surveyed: watch::Sender::default(),
            lull: Lull::new(),
            wake,
            hears: AtomicBool::new(false),
            heard: Notify::new(),
            lanes_wake: Arc::default(),
            feed: OnceCell::new(),
            plain_worker: worker.clone(),
            breakers_changed,
            pass: Mutex::new(pass),
            depths: Depths::default(),
            tally: Tally::default(),
            crew,
            worker: RwLock::new(worker),
            hot,
            gate: Mutex::default(),
            skew: AtomicI64::new(0),
            table,
            store,
            settings,
            routes,
        };
        engine.open_or_close_gate();
        engine
    }

    /// Where events come from. Asks the database until it has said whether the table is a queue or a stream.
    pub(super) async fn feed(&self) -> Result<&Feed> {
        let ask = || async {
            let stream = self.in_time(self.store.stream()).await?;
            Ok(match stream {
                None => Feed::Queue(Arc::clone(&self.store)),
                Some(stream) => {
                    let (table, worker) = (Arc::clone(&self.table), self.plain_worker.clone());
                    let signals = Signals {
                        claimer: Arc::clone(&self.wake),
                        keeper: Arc::clone(&self.lanes_wake),
                        crew: self.crew.clone(),
                    };
                    Feed::Stream(Arc::new(StreamFeed::new(table, stream, worker, &self.settings, signals)))
                }
            })
        };
        if self.feed.initialized() {
            return self.feed.get_or_try_init(ask).await;
        }
        let feed = self.feed.get_or_try_init(ask).await?;
        self.open_or_close_gate();
        Ok(feed)
    }

    /// Whether events may be dispatched now, as far as this process knows without asking.
    pub(super) fn may_dispatch(&self) -> bool {
        self.feed.get().is_none_or(Feed::may_dispatch)
    }

    /// The lanes it owns, of a stream.
    pub(super) fn lanes(&self) -> Vec<u16> {
        self.feed.get().and_then(Feed::stream).map(|feed| feed.lanes()).unwrap_or_default()
    }

    /// The pass that was asked for and has not begun.
    pub(super) fn pass(&self) -> MutexGuard<'_, Option<Pass>> {
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Tells how long ago something happened, by the database's clock.
    pub(super) fn ages(&self) -> impl Fn(OffsetDateTime) -> Duration + use<> {
        let now = OffsetDateTime::now_utc() + time::Duration::microseconds(self.skew.load(Ordering::Relaxed));
        move |at| Duration::try_from(now - at).unwrap_or_default()
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

    /// Remembers that every event of this topic takes this route, if it does.
    pub(super) fn learn_topic(&self, way: usize, event: &Event) {
        let topic = event.topic();
        let known = self.ways.len() < 2 || {
            let topics = self.ways[way].topics();
            topics.contains(topic) || topics.len() >= Way::MOST_TOPICS
        };
        // Routes are the user's code: a panic in them is no answer.
        let is_its_own = || self.routes.of_topic(topic) == Some(way);
        if !known && catch_unwind(AssertUnwindSafe(is_its_own)).unwrap_or(false) {
            self.ways[way].topics().insert(topic.to_owned());
        }
    }

    /// How many claimed events one of several routes may have before its topics are left out of claims, and how many
    /// are claimed at once: so that whatever the others do, there are slots left for each.
    pub(super) fn share(&self) -> usize {
        (self.settings.capacity(self.ways.len()) / (2 * self.ways.len().max(1))).max(1)
    }

    /// Most events of one claim.
    pub(super) fn claim_limit(&self) -> usize {
        match self.ways.len() {
            1 => self.settings.batch,
            _ => self.settings.batch.min(self.share().max(LEAST_CLAIM)),
        }
    }

    /// Whether the topics of some route are left out of claims because it has enough to do.
    fn is_crowded(&self) -> bool {
        self.ways.len() > 1 && self.ways.iter().any(|way| self.has_enough(way))
    }

    fn has_enough(&self, way: &Way) -> bool {
        way.held.load(Ordering::Relaxed) >= self.share()
    }

    /// What a claim is for: all but the topics of routes that rest or have enough to do; and whether there are of the
    /// latter.
    pub(super) fn topics(&self) -> (Topics, bool) {
        let crowded = self.is_crowded();
        let left_out = |way: &&Way| {
            self.ways.len() > 1 && (way.breaker.peek() != Admission::All || self.has_enough(way))
        };
        let except: Vec<String> =
            self.ways.iter().filter(left_out).flat_map(|way| way.topics().clone()).collect();
        (if except.is_empty() { Topics::All } else { Topics::Except(except) }, crowded)
    }

    /// The routes that are due to be probed, with the topics that are only theirs, as far as they are known.
    pub(super) fn probes(&self) -> Vec<(usize, Vec<String>)> {
        let due = self.ways.iter().enumerate().filter(|(_, way)| way.breaker.peek() == Admission::Probe);
        due.map(|(at, way)| (at, way.topics().iter().cloned().collect())).collect()
    }

    /// Bounds a call to the store: a connection that was cut without a word would never answer.
    pub(super) async fn in_time<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let most = self.longest_call();
        tokio::time::timeout(most, call).await.unwrap_or_else(|_| {
            let message = format!("table {}: the database did not answer within {most:?}", self.table);
            Err(Error::new(ErrorKind::Unreachable, message))
        })
    }

    /// How long a call to the store may take.
    pub(super) fn longest_call(&self) -> Duration {
        (self.settings.lease / 4).clamp(Duration::from_secs(1), Duration::from_secs(15))
    }

    /// Who asked at this moment was told that there is nothing to claim. Of a stream, the next who says that the relay lives is told so
    /// again about a poll interval later, and wakes the claimer if it is not so: a poll only comes where that takes long.
    pub(super) fn see_lull(&self, asked: tokio::time::Instant) {
        let poll = self.settings.poll;
        self.lull.see(asked, if self.is_stream() { poll * 5 / 4 } else { poll });
    }

    /// Waits for the next poll: so long, and where that is as long as it gets, for the end of a lull.
    pub(super) async fn next_poll(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if patience >= self.settings.poll {
            self.lull.over().await;
        }
    }

    /// Pauses these routes, and no other.
    pub(super) fn pause_routes(&self, names: &BTreeSet<Arc<str>>) {
        for way in &self.ways {
            way.breaker.set_paused(names.contains(&way.route.name));
        }
    }

    /// Begins the end.
    pub(super) fn stop(&self) {
        self.control.change(|state| state.stopping = true);
        self.open_or_close_gate();
        self.wake.notify_one();
        self.lanes_wake.notify_one();
    }

    /// Whether its table is a stream, as far as is known.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self.feed.get(), Some(Feed::Stream(_)))
    }

    /// Lets the hot path take events only while they would be dispatched at once.
    pub(super) fn open_or_close_gate(&self) {
        // Who decides last must also be who says so last.
        let _one = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        // In a stream nothing goes past what was committed before it: there it is only a wake-up.
        let is_queue = matches!(self.feed.get(), Some(Feed::Queue(_)));
        self.hot.set_open(is_queue && self.control.now().works() && self.admission() == Admission::All);
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
