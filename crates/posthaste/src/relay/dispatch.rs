//! The dispatcher: gives waiting events to their sinks, many at a time, and takes what they answer.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `concurrency` | 32 handlers, 4 batches | handlers mostly wait; a few batches keep a broker busy |
//! | `timeout` | 30 s | half the lease: a dispatch ends before anybody else may take its event |
//! | `hot_queue` | 1024 | events straight from their commit that may wait here |
//!
//! Each publish is a task of its own: a panic, a failure or a hang is that batch's and nobody else's. Where
//! there are several routes, none takes more than three quarters of the workers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustc_hash::FxHashSet;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::breaker::Admission;
use super::engine::{Engine, Way};
use super::hot::Waiting;
use super::job::{Job, Source, Work};
use super::line::{Admitted, Company, Lines};
use super::order::{Key, Turn};
use super::publish::{Answer, Answers, Broken, publish};
use super::renew::Held;
use super::rush::Rush;
use super::slots::Slot;
use super::verdict::{Ending, Ran};
use crate::dispatch::redact;
use crate::produce::gate::HotEvent;
use crate::sink::{Delivery, Outcome};
use crate::store::Verdict;

/// How long what runs may go on when another relay has become the active one.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// How long an event of an aggregate runs, or a route has more than its share, before those behind make way for others, if
/// there is no room.
const LONG: Duration = Duration::from_secs(1);
/// How often to look for that.
const LOOKS: Duration = Duration::from_millis(100);

/// Most events straight from their commits that are taken at once.
const MOST_HOT: usize = 1024;

/// A job and how it ended, on its way to be settled.
pub(super) struct Ended {
    pub(super) job: Job,
    pub(super) ending: Ending,
}

pub(super) struct Dispatcher {
    engine: Arc<Engine>,
    lanes: Vec<Lane>,
    running: JoinSet<Answers>,
    batches: HashMap<Id, Batch>,
    /// Events of a stream that wait for one of their aggregate.
    lines: Lines,
    /// Which lane begins the next round, so that none is always last.
    first: usize,
    /// Since when nothing more fits into memory.
    full_since: Option<Instant>,
    workers: usize,
    settle: mpsc::Sender<Vec<Ended>>,
}

/// One route's events that wait, and how many of its publishes run.
struct Lane {
    waiting: Waiting,
    running: usize,
    most: usize,
    batch: usize,
    /// How many events are in those publishes.
    events: usize,
}

/// The events of one publish; kept here, so that a panic does not take them along.
struct Batch {
    lane: usize,
    jobs: Vec<Job>,
    started: Instant,
    probing: bool,
}

impl Dispatcher {
    pub(super) fn new(engine: Arc<Engine>, settle: mpsc::Sender<Vec<Ended>>) -> Self {
        let limit = |way: &Way| way.route.sink.batch_limit().max(1);
        let concurrency = |way: &Way| engine.settings.concurrency(limit(way));
        let workers = engine.ways.iter().map(concurrency).max().unwrap_or(1);
        let share = if engine.ways.len() > 1 { (workers * 3 / 4).max(1) } else { workers };
        let lanes = engine
            .ways
            .iter()
            .map(|way| Lane {
                waiting: Waiting::default(),
                running: 0,
                most: concurrency(way).min(share),
                batch: limit(way).min(engine.settings.batch),
                events: 0,
            })
            .collect();
        Self {
            engine,
            lanes,
            running: JoinSet::new(),
            batches: HashMap::new(),
            lines: Lines::default(),
            first: 0,
            full_since: None,
            workers,
            settle,
        }
    }

    /// Dispatches until the relay stops and all that runs has ended or the drain timeout has passed.
    pub(super) async fn run(
        mut self,
        mut claimed: mpsc::Receiver<Vec<Job>>,
        mut hot: mpsc::UnboundedReceiver<HotEvent>,
    ) {
        let mut state = self.engine.control.watch();
        let mut breakers = self.engine.breakers_changed.subscribe();
        let mut was_leading = true;
        let mut committed = Vec::new();
        let mut rush = Rush::default();
        let mut looks = tokio::time::interval(LOOKS);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let now = *state.borrow_and_update();
            if now.stopping {
                break;
            }
            if now.works() {
                self.start().await;
            } else {
                self.hand_back_waiting().await;
                if was_leading && !now.leading {
                    self.step_down().await;
                }
            }
            was_leading = now.leading;
            tokio::select! {
                Some(jobs) = claimed.recv() => self.take(jobs).await,
                1.. = hot.recv_many(&mut committed, MOST_HOT), if !rush.is_on() => {
                    rush.took(&committed);
                    let jobs = committed.drain(..).map(|event| self.hot_job(event)).collect();
                    self.take(jobs).await;
                }
                () = rush.moment(), if rush.is_on() => {}
                Some(ended) = self.running.join_next_with_id() => self.end(ended).await,
                _ = looks.tick(), if self.engine.depths.waiting() > 0 => self.make_room().await,
                _ = state.changed() => {}
                _ = breakers.changed() => {}
            }
        }
        // Nothing new comes: the claimer is about to end, and producers keep their leases.
        hot.close();
        while let Some(event) = hot.recv().await {
            let job = self.hot_job(event);
            self.take(vec![job]).await;
        }
        self.drain(claimed, was_leading).await;
    }

    /// Hands back what waits, and what the last claim still brings; gives what runs its time, then stops it. If
    /// another relay becomes the active one meanwhile, that time is over.
    async fn drain(&mut self, mut claimed: mpsc::Receiver<Vec<Job>>, led: bool) {
        let mut state = self.engine.control.watch();
        let made_way = led && !state.borrow_and_update().leading;
        let time = if made_way { GRACE } else { self.engine.settings.drain };
        let mut deadline = Instant::now() + time;
        let (mut claiming, mut in_time) = (true, true);
        loop {
            self.hand_back_waiting().await;
            if self.running.is_empty() && !claiming {
                return;
            }
            tokio::select! {
                jobs = claimed.recv(), if claiming => match jobs {
                    Some(jobs) => self.take(jobs).await,
                    None => claiming = false,
                },
                Some(ended) = self.running.join_next_with_id() => self.end(ended).await,
                _ = state.changed() => {
                    if led && !state.borrow_and_update().leading {
                        deadline = deadline.min(Instant::now() + GRACE);
                    }
                }
                () = tokio::time::sleep_until(deadline), if in_time => {
                    in_time = false;
                    self.running.abort_all();
                }
            }
        }
    }

    fn hot_job(&self, event: HotEvent) -> Job {
        let engine = &self.engine;
        let HotEvent { event, lease, created_at, leased_until, committed, slot } = event;
        let (sequence, attempt) = (lease.sequence(), lease.attempt());
        let held = engine.leases.hold_one(lease, leased_until);
        let delivery = Delivery {
            event,
            table: Arc::clone(&engine.table),
            sequence,
            attempt,
            created_at,
            destination: None,
        };
        let job = engine.enter(Work {
            lane: Ok(0),
            delivery,
            held,
            source: Source::Hot,
            company: usize::MAX,
            age: Duration::ZERO,
            got: committed,
            pass: None,
            turn: None,
            _part: None,
            _epoch: None,
            slot: Slot::Hot(slot),
        });
        engine.joined_queue(std::slice::from_ref(&job));
        job
    }

    /// Puts jobs into their lanes, or their lines; those without a route are dead in their turn.
    async fn take(&mut self, jobs: Vec<Job>) {
        let mut ended = Vec::new();
        for job in jobs {
            let keeps_order = job.way().is_some_and(|lane| self.keeps_order(lane));
            let Some(job) = self.lines.enter(job, keeps_order) else { continue };
            match job.lane.clone() {
                Ok(lane) => self.lanes[lane].waiting.push(job),
                Err(outcome) => ended.append(&mut self.end_nowhere(job, outcome)),
            }
        }
        self.settle(ended).await;
    }

    fn keeps_order(&self, lane: usize) -> bool {
        self.engine.ways[lane].route.sink.keeps_order()
    }

    /// Starts as many publishes as there are workers for.
    async fn start(&mut self) {
        let lanes = self.lanes.len();
        let mut idle = 0;
        while idle < lanes && self.running.len() < self.workers {
            let at = self.first % lanes;
            self.first = (at + 1) % lanes;
            if self.start_one(at).await { idle = 0 } else { idle += 1 }
        }
        if self.engine.depths.waiting() == 0 {
            self.engine.slots.tell();
        }
    }

    /// Starts a publish of this lane, if it has any to start; whether it did.
    async fn start_one(&mut self, at: usize) -> bool {
        let lane = &mut self.lanes[at];
        // Of a stream's events all come up, whatever their routes have to do: some wait, and can make room for others.
        let room = match self.engine.is_stream() && self.engine.ways.len() > 1 {
            true => self.engine.share().saturating_sub(lane.events),
            false => usize::MAX,
        };
        if lane.waiting.is_empty() || lane.running >= lane.most || room == 0 {
            return false;
        }
        let (most, probing) = match self.engine.ways[at].breaker.admit() {
            Admission::All => (lane.batch.min(room), false),
            Admission::Probe => (1, true),
            Admission::After(left) => {
                let jobs = lane.waiting.take_all();
                let jobs = jobs.into_iter().flat_map(|job| self.lines.hand_back(job)).collect();
                self.hand_back(jobs, left).await;
                return false;
            }
        };
        let mut company = Company::new(self.engine.ways[at].route.sink.keeps_order());
        let mut behind = Vec::new();
        let lines = &mut self.lines;
        let jobs = lane.waiting.next_batch(most, |job| match lines.admit(job, &mut company) {
            Admitted::Runs(job) => Some(job),
            Admitted::Behind(job) => {
                behind.push(job);
                None
            }
            Admitted::Waits => None,
        });
        lane.running += usize::from(!jobs.is_empty());
        lane.events += jobs.len();
        self.engine.left_queue(&jobs);
        for key in keys_of(&behind) {
            if !self.lines.is_running(key) {
                behind.append(&mut self.all_that_waits_of(key));
            }
        }
        self.settle_behind(behind).await;
        if jobs.is_empty() {
            if probing {
                self.engine.ways[at].breaker.forget_probe();
            }
            return !self.lanes[at].waiting.is_empty();
        }
        self.engine.depths.running.fetch_add(jobs.len(), Ordering::Relaxed);
        let deliveries: Vec<Delivery> = jobs.iter().map(|job| job.delivery.clone()).collect();
        let held: Vec<Held> = jobs.iter().map(|job| job.held.lease()).collect();
        let span = self.engine.span(at, &deliveries);
        let publish = publish(Arc::clone(&self.engine), at, deliveries, held, probing);
        let id = self.running.spawn(publish.instrument(span)).id();
        self.batches.insert(id, Batch { lane: at, jobs, started: Instant::now(), probing });
        true
    }

    /// Takes what a publish answered.
    async fn end(&mut self, ended: Result<(Id, Answers), JoinError>) {
        let (id, answers) = match ended {
            Ok((id, answers)) => (id, Some(answers)),
            Err(stopped) => (stopped.id(), None),
        };
        let Some(Batch { lane, jobs, started, probing }) = self.batches.remove(&id) else { return };
        let ran = Ran::since(started);
        self.lanes[lane].running -= 1;
        self.lanes[lane].events -= jobs.len();
        self.engine.depths.running.fetch_sub(jobs.len(), Ordering::Relaxed);
        let way = &self.engine.ways[lane];
        match answers {
            Some(Ok(answers)) => {
                self.learn(lane, &jobs, &answers, probing);
                // The only route's events keep their place, but for the probe, which may be what fails it.
                let aside = probing || self.lanes.len() > 1;
                let aside = if aside { way.breaker.left() } else { Duration::ZERO };
                let keys = keys_of(&jobs);
                let mut done = Vec::with_capacity(jobs.len());
                for (job, answer) in jobs.into_iter().zip(answers) {
                    let answer = match answer {
                        // Not tried, as far as the sink keeps its word: it stands behind one that failed.
                        Answer::Said(outcome) if outcome != Outcome::Delivered && job.is_behind() => {
                            done.push(Ended { job, ending: Ending::behind() });
                            continue;
                        }
                        answer => answer,
                    };
                    match answer {
                        Answer::Said(outcome) => {
                            let ending = self.engine.judge(&job.delivery, outcome, ran, aside);
                            if ending.verdict != Verdict::Delivered {
                                job.fail();
                            }
                            done.push(Ended { job, ending });
                        }
                        // Of a stream the settlement says whose it is: of an event that was read anew, too, an older copy
                        // may be what was lost.
                        Answer::NotStarted if job.held.is_lost() && !self.engine.is_stream() => {
                            job.fail();
                            self.engine.lose(
                                &job,
                                "its lease was lost before it started: another worker delivers it",
                            );
                            self.engine.slots.tell();
                        }
                        // Its lease could not be renewed: nothing was done, and no attempt is spent.
                        Answer::NotStarted => {
                            job.fail();
                            done.push(Ended { job, ending: Ending::handed_back(Duration::ZERO) });
                        }
                    }
                }
                done.append(&mut self.call_next(keys));
                failpoint!("publish.judged");
                self.settle(done).await;
            }
            Some(Err(broken)) => {
                if probing {
                    way.breaker.close();
                    self.engine.open_or_close_gate();
                }
                self.broken(lane, jobs, ran, broken).await;
            }
            None => {
                if probing {
                    way.breaker.forget_probe();
                }
                self.interrupted(jobs, ran).await;
            }
        }
    }

    /// What the answers say of the route itself.
    fn learn(&self, lane: usize, jobs: &[Job], answers: &[Answer], probing: bool) {
        let breaker = &self.engine.ways[lane].breaker;
        let unavailable = jobs.iter().zip(answers).find_map(|(job, answer)| match answer {
            Answer::Said(Outcome::Unavailable { error }) => Some(redact(error, &job.delivery.event)),
            _ => None,
        });
        let said = |of: fn(&Outcome) -> bool| {
            answers.iter().any(|answer| matches!(answer, Answer::Said(o) if of(o)))
        };
        match unavailable {
            Some(error) => breaker.trip(&error, probing),
            None if probing && said(|_| true) => breaker.close(),
            None if probing => breaker.forget_probe(),
            // What began before the outage may fail in it; only what arrived or was refused shows that it is over.
            None if said(|outcome| matches!(outcome, Outcome::Delivered | Outcome::Reject { .. })) => {
                breaker.close();
            }
            None => {}
        }
        self.engine.open_or_close_gate();
    }

    /// One event's hang or panic is its failure. Of a batch, nobody knows whose it was: after a panic each goes by
    /// itself, after a timeout in batches of half the size, as it may only have been too much.
    async fn broken(&mut self, lane: usize, jobs: Vec<Job>, ran: Ran, broken: Broken) {
        if jobs.len() > 1 {
            let company = match broken {
                Broken::Panicked(_) => 1,
                Broken::TimedOut(_) => jobs.len() / 2,
            };
            tracing::warn!(table = %self.engine.table, sink = %self.engine.ways[lane].route.name, events = jobs.len(), at_once = company, "the sink {}; its events are published in smaller batches", broken.text());
            for mut job in jobs.into_iter().rev() {
                job.company = company;
                self.engine.joined_queue(std::slice::from_ref(&job));
                self.lines.call_again(&job);
                self.lanes[lane].waiting.push_front(job);
            }
            return;
        }
        let keys = keys_of(&jobs);
        let mut ended: Vec<Ended> = Vec::new();
        for job in jobs {
            let outcome = Outcome::Retry { after: None, error: broken.text() };
            let ending = self.engine.judge(&job.delivery, outcome, ran, Duration::ZERO);
            job.fail();
            ended.push(Ended { job, ending });
        }
        ended.append(&mut self.call_next(keys));
        self.settle(ended).await;
    }

    /// Stopped by us: it had begun, so the attempt counts.
    async fn interrupted(&mut self, jobs: Vec<Job>, ran: Ran) {
        let keys = keys_of(&jobs);
        let ended = jobs.into_iter().map(|job| {
            job.fail();
            let error = format!("interrupted after {:.1?}: the relay stopped before it was done", ran.took);
            let outcome = Outcome::Retry { after: Some(Duration::ZERO), error };
            let mut ending = self.engine.judge(&job.delivery, outcome, ran, Duration::ZERO);
            ending.interrupted = true;
            if matches!(ending.verdict, Verdict::Dead { .. }) {
                // A stop kills nothing: what was in its last attempt may have it again.
                ending.verdict = Verdict::Released { after: Duration::ZERO };
            }
            Ended { job, ending }
        });
        let mut ended: Vec<Ended> = ended.collect();
        ended.append(&mut self.call_next(keys));
        self.settle(ended).await;
    }

    /// What has no route comes to this.
    fn end_nowhere(&mut self, job: Job, outcome: Outcome) -> Vec<Ended> {
        self.engine.left_queue(std::slice::from_ref(&job));
        self.lines.leave(&job);
        let keys = keys_of(std::slice::from_ref(&job));
        let ending = match job.is_behind() {
            true => Ending::behind(),
            false => self.engine.judge(&job.delivery, outcome, Ran::since(Instant::now()), Duration::ZERO),
        };
        job.fail();
        let mut ended = vec![Ended { job, ending }];
        ended.append(&mut self.call_next(keys));
        ended
    }

    /// Publishes of these aggregates have ended: the next of each are called, or, where one was not delivered, all that
    /// is under way behind it is parked.
    fn call_next(&mut self, keys: FxHashSet<Key>) -> Vec<Ended> {
        let mut ended = Vec::new();
        for key in keys {
            let ways = &self.engine.ways;
            let keeps_order = |lane: usize| ways[lane].route.sink.keeps_order();
            let mut called = self.lines.call(key, self.engine.settings.batch, keeps_order);
            if called.first().is_some_and(Job::is_behind) {
                called.append(&mut self.all_that_waits_of(key));
                self.engine.left_queue(&called);
                // Some may have been read anew, after the one that they stand behind was lost.
                called.iter().for_each(Job::fail);
                ended.extend(called.into_iter().map(|job| Ended { job, ending: Ending::behind() }));
                continue;
            }
            for job in called.into_iter().rev() {
                match job.lane.clone() {
                    Ok(lane) => self.lanes[lane].waiting.push_front(job),
                    Err(outcome) => ended.append(&mut self.end_nowhere(job, outcome)),
                }
            }
        }
        ended
    }

    /// Everything of an aggregate that has not begun.
    fn all_that_waits_of(&mut self, key: Key) -> Vec<Job> {
        let is_of_it = |job: &Job| job.turn.as_ref().is_some_and(|turn| turn.key() == key);
        let mut waits = self.lines.empty(key);
        waits.extend(self.lanes.iter_mut().flat_map(|lane| lane.waiting.take_if(is_of_it)));
        waits
    }

    /// Where nothing more has fitted into memory for a while, what cannot run soon makes way for others: events that stand
    /// behind one that takes long are parked behind it, and of several routes each keeps its share. A queue's claims leave
    /// out what is not wanted; a stream is read in order.
    async fn make_room(&mut self) {
        if !self.engine.is_stream() || !self.engine.slots.are_short(self.engine.claim_limit()) {
            self.full_since = None;
            return;
        }
        let slow: FxHashSet<Key> = self
            .batches
            .values()
            .filter(|batch| batch.started.elapsed() >= LONG)
            .flat_map(|batch| keys_of(&batch.jobs))
            .collect();
        let behind: Vec<Job> = slow.into_iter().flat_map(|key| self.all_that_waits_of(key)).collect();
        self.settle_behind(behind).await;
        if self.full_since.get_or_insert_with(Instant::now).elapsed() >= LONG && self.lanes.len() > 1 {
            let share = self.engine.share();
            let beyond: Vec<Job> =
                self.lanes.iter_mut().flat_map(|lane| lane.waiting.take_beyond(share)).collect();
            // Nothing of an aggregate stays that would come before.
            let keys = keys_of(&beyond).into_iter().flat_map(|key| self.all_that_waits_of(key));
            let jobs: Vec<Job> = keys.collect::<Vec<_>>().into_iter().chain(beyond).collect();
            let jobs = jobs.into_iter().flat_map(|job| self.lines.hand_back(job)).collect();
            self.hand_back(jobs, LONG).await;
        }
    }

    /// These are not dispatched because of one before them.
    async fn settle_behind(&self, behind: Vec<Job>) {
        self.engine.left_queue(&behind);
        behind.iter().for_each(Job::fail);
        self.settle(behind.into_iter().map(|job| Ended { job, ending: Ending::behind() }).collect()).await;
    }

    /// What waits is handed back; of aggregates of which something runs, only when that has ended.
    async fn hand_back_waiting(&mut self) {
        let waiting: Vec<Job> = self.lanes.iter_mut().flat_map(|lane| lane.waiting.take_all()).collect();
        let free = waiting.into_iter().flat_map(|job| self.lines.hand_back(job)).collect();
        self.hand_back(free, Duration::ZERO).await;
    }

    async fn hand_back(&self, jobs: Vec<Job>, after: Duration) {
        self.engine.left_queue(&jobs);
        jobs.iter().for_each(Job::fail);
        // The only route's events keep their place: nobody claims them before it works again.
        let after = if self.lanes.len() > 1 { after } else { Duration::ZERO };
        self.settle(jobs.into_iter().map(|job| Ended { job, ending: Ending::handed_back(after) }).collect())
            .await;
    }

    /// Another relay is the active one now: waits a moment for what runs, then stops the rest.
    async fn step_down(&mut self) {
        let deadline = Instant::now() + GRACE;
        while let Ok(Some(ended)) = tokio::time::timeout_at(deadline, self.running.join_next_with_id()).await
        {
            self.end(ended).await;
        }
        self.running.abort_all();
        while let Some(ended) = self.running.join_next_with_id().await {
            self.end(ended).await;
        }
        self.hand_back_waiting().await;
    }

    async fn settle(&self, ended: Vec<Ended>) {
        if !ended.is_empty() {
            self.engine.depths.settling.fetch_add(ended.len(), Ordering::Relaxed);
            // The settler outlives the dispatcher.
            let _ = self.settle.send(ended).await;
        }
    }
}

/// The aggregates that these are of.
fn keys_of(jobs: &[Job]) -> FxHashSet<Key> {
    jobs.iter().filter_map(|job| job.turn.as_ref()).map(Turn::key).collect()
}

impl Engine {
    /// What the log of a handler or sink is part of.
    fn span(&self, way: usize, deliveries: &[Delivery]) -> tracing::Span {
        let (table, sink) = (&self.table, &self.ways[way].route.name);
        match deliveries {
            [delivery] => {
                let event = &delivery.event;
                tracing::debug_span!(
                    "dispatch", %table, %sink, topic = event.topic(), event_id = %event.id(),
                    tenant = self.tenant(event.tenant_id()), sequence = delivery.sequence, attempt = delivery.attempt
                )
            }
            _ => tracing::debug_span!("dispatch", %table, %sink, events = deliveries.len()),
        }
    }
}
