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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::breaker::Admission;
use super::engine::Engine;
use super::hot::Waiting;
use super::job::{Job, Source};
use super::outage::Doing;
use super::renew::Held;
use super::verdict::Ending;
use crate::dispatch::{caught, no_route, panic_text, redact, unanswered};
use crate::produce::gate::HotEvent;
use crate::sink::{Delivery, Outcome, Sink};
use crate::store::Verdict;

/// How long what runs may go on when another relay has become the active one.
pub(super) const GRACE: Duration = Duration::from_secs(1);

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
    /// Which lane begins the next round, so that none is always last.
    first: usize,
    workers: usize,
    settle: mpsc::Sender<Vec<Ended>>,
}

/// One route's events that wait, and how many of its publishes run.
struct Lane {
    waiting: Waiting,
    running: usize,
    most: usize,
    batch: usize,
}

/// The events of one publish; kept here, so that a panic does not take them along.
struct Batch {
    lane: usize,
    jobs: Vec<Job>,
    started: Instant,
    probing: bool,
}

/// What became of each event of a publish, in order; or what the sink said as it panicked.
type Answers = Result<Vec<Answer>, String>;

enum Answer {
    Said(Outcome),
    /// Its lease was lost before it began, or could not be renewed.
    NotStarted,
}

impl Dispatcher {
    pub(super) fn new(engine: Arc<Engine>, settle: mpsc::Sender<Vec<Ended>>) -> Self {
        let limit = |way: &super::engine::Way| way.route.sink.batch_limit().max(1);
        let largest = engine.ways.iter().map(limit).max().unwrap_or(1);
        let workers = engine.settings.concurrency(largest);
        let most = if engine.ways.len() > 1 { (workers * 3).div_ceil(4) } else { workers };
        let lanes = engine
            .ways
            .iter()
            .map(|way| Lane {
                waiting: Waiting::default(),
                running: 0,
                most,
                batch: limit(way).min(engine.settings.batch),
            })
            .collect();
        Self { engine, lanes, running: JoinSet::new(), batches: HashMap::new(), first: 0, workers, settle }
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
                Some(event) = hot.recv() => {
                    let job = self.hot_job(event);
                    self.take(vec![job]).await;
                }
                Some(ended) = self.running.join_next_with_id() => self.end(ended).await,
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
        self.drain(claimed).await;
    }

    /// Hands back what waits, and what the last claim still brings; gives what runs its time, then stops it.
    async fn drain(&mut self, mut claimed: mpsc::Receiver<Vec<Job>>) {
        let deadline = Instant::now() + self.engine.settings.drain;
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
                () = tokio::time::sleep_until(deadline), if in_time => {
                    in_time = false;
                    self.running.abort_all();
                }
            }
        }
    }

    fn hot_job(&self, event: HotEvent) -> Job {
        let engine = &self.engine;
        engine.depths.hot.fetch_add(1, Ordering::Relaxed);
        let HotEvent { event, lease, created_at, leased_until, committed, slot } = event;
        let (sequence, attempt) = (lease.sequence(), lease.attempt());
        let held = engine.leases.hold_one(lease, leased_until);
        Job {
            delivery: Delivery {
                event,
                table: Arc::clone(&engine.table),
                sequence,
                attempt,
                created_at,
                destination: None,
            },
            held,
            source: Source::Hot,
            alone: false,
            age: Duration::ZERO,
            got: committed,
            pass: None,
            _epoch: None,
            _slot: slot,
        }
    }

    /// Puts jobs into their lanes; those without a route are dead at once.
    async fn take(&mut self, jobs: Vec<Job>) {
        let mut ended = Vec::new();
        for mut job in jobs {
            match self.engine.place(&mut job.delivery) {
                Ok(lane) => self.lanes[lane].waiting.push(job),
                Err(outcome) => {
                    self.engine.left_queue(&[&job]);
                    let ending = self.engine.judge(&job.delivery, outcome, Duration::ZERO);
                    ended.push(Ended { job, ending });
                }
            }
        }
        self.settle(ended).await;
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
        if lane.waiting.is_empty() || lane.running >= lane.most {
            return false;
        }
        let (most, probing) = match self.engine.ways[at].breaker.admit() {
            Admission::All => (lane.batch, false),
            Admission::Probe => (1, true),
            Admission::After(left) => {
                let jobs = lane.waiting.take_all();
                self.engine.rests_for(at, jobs.iter().map(|job| Arc::clone(&job.delivery.event)));
                self.hand_back(jobs, left).await;
                return false;
            }
        };
        let jobs = lane.waiting.next_batch(most);
        lane.running += 1;
        self.engine.left_queue(&jobs.iter().collect::<Vec<_>>());
        self.engine.depths.running.fetch_add(jobs.len(), Ordering::Relaxed);
        let deliveries: Vec<Delivery> = jobs.iter().map(|job| job.delivery.clone()).collect();
        let held: Vec<Arc<Held>> = jobs.iter().map(|job| Arc::clone(&job.held)).collect();
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
        let took = started.elapsed();
        self.lanes[lane].running -= 1;
        self.engine.depths.running.fetch_sub(jobs.len(), Ordering::Relaxed);
        match answers {
            Some(Ok(answers)) => {
                self.learn(lane, &jobs, &answers, probing);
                let mut done = Vec::with_capacity(jobs.len());
                for (job, answer) in jobs.into_iter().zip(answers) {
                    match answer {
                        Answer::Said(outcome) => {
                            let ending = self.engine.judge(&job.delivery, outcome, took);
                            done.push(Ended { job, ending });
                        }
                        Answer::NotStarted => self
                            .engine
                            .lose(&job, "its lease was lost, or could not be renewed, before it started"),
                    }
                }
                self.settle(done).await;
            }
            Some(Err(panic)) => {
                self.engine.ways[lane].breaker.close();
                self.engine.open_or_close_gate();
                self.panicked(lane, jobs, took, panic).await;
            }
            None => {
                self.engine.ways[lane].breaker.forget_probe();
                self.interrupted(jobs, took).await;
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
        match unavailable {
            Some(error) => breaker.trip(&error),
            None if answers.iter().any(|answer| matches!(answer, Answer::Said(_))) => breaker.close(),
            None if probing => breaker.forget_probe(),
            None => {}
        }
        self.engine.open_or_close_gate();
    }

    /// One event's panic is its failure; of a batch, nobody knows whose it was, so each goes by itself.
    async fn panicked(&mut self, lane: usize, jobs: Vec<Job>, took: Duration, panic: String) {
        if jobs.len() > 1 {
            tracing::warn!(table = %self.engine.table, sink = %self.engine.ways[lane].route.name, events = jobs.len(), "the sink panicked on a batch; its events go one at a time");
            for mut job in jobs.into_iter().rev() {
                job.alone = true;
                self.engine.joined_queue(&job);
                self.lanes[lane].waiting.push_front(job);
            }
            return;
        }
        let ended = jobs.into_iter().map(|job| {
            let outcome = Outcome::Retry { after: None, error: panic.clone() };
            let ending = self.engine.judge(&job.delivery, outcome, took);
            Ended { job, ending }
        });
        let ended = ended.collect();
        self.settle(ended).await;
    }

    /// Stopped by us: it had begun, so the attempt counts.
    async fn interrupted(&mut self, jobs: Vec<Job>, took: Duration) {
        self.engine.tally.interrupted.fetch_add(jobs.len(), Ordering::Relaxed);
        let ended = jobs.into_iter().map(|job| {
            let error = format!("interrupted after {took:.1?}: the relay stopped before it was done");
            let outcome = Outcome::Retry { after: Some(Duration::ZERO), error };
            let ending = match self.engine.judge(&job.delivery, outcome, took) {
                // A stop kills nothing: what was in its last attempt may have it again.
                Ending { verdict: Verdict::Dead { .. }, .. } => Ending::handed_back(Duration::ZERO),
                ending => ending,
            };
            Ended { job, ending }
        });
        let ended = ended.collect();
        self.settle(ended).await;
    }

    async fn hand_back_waiting(&mut self) {
        let waiting: Vec<Job> = self.lanes.iter_mut().flat_map(|lane| lane.waiting.take_all()).collect();
        self.hand_back(waiting, Duration::ZERO).await;
    }

    async fn hand_back(&self, jobs: Vec<Job>, after: Duration) {
        self.engine.left_queue(&jobs.iter().collect::<Vec<_>>());
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

    /// The event's lane, its destination set; or what becomes of it without one. Routes and topic maps are the
    /// user's code: a panic in them is a failure of this event.
    fn place(&self, delivery: &mut Delivery) -> Result<usize, Outcome> {
        let event = Arc::clone(&delivery.event);
        let find = || {
            let lane = self.routes.find(&event).filter(|at| *at < self.ways.len());
            let lane = lane.ok_or_else(|| no_route(&event))?;
            let destination = self.settings.topics.as_ref().map(|topics| topics.map(&event)).transpose()?;
            Ok((lane, destination))
        };
        match catch_unwind(AssertUnwindSafe(find)) {
            Ok(Ok((lane, destination))) => {
                delivery.destination = destination;
                Ok(lane)
            }
            Ok(Err(error)) => Err(Outcome::Reject { error }),
            Err(_) => {
                Err(Outcome::Retry { after: None, error: "panicked while finding its route".to_owned() })
            }
        }
    }

    /// These wait for a worker no longer.
    fn left_queue(&self, jobs: &[&Job]) {
        for job in jobs {
            let depth = match job.source {
                Source::Hot => &self.depths.hot,
                Source::Claimed => &self.depths.claimed,
            };
            depth.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// This one waits for a worker again.
    fn joined_queue(&self, job: &Job) {
        let depth = match job.source {
            Source::Hot => &self.depths.hot,
            Source::Claimed => &self.depths.claimed,
        };
        depth.fetch_add(1, Ordering::Relaxed);
    }
}

/// Publishes a batch within the timeout, if its leases last that long.
async fn publish(
    engine: Arc<Engine>,
    way: usize,
    mut deliveries: Vec<Delivery>,
    held: Vec<Arc<Held>>,
    probing: bool,
) -> Answers {
    let timeout = engine.settings.timeout;
    let started = startable(&engine, &held, timeout).await;
    let mut at = started.iter();
    deliveries.retain(|_| at.next().copied().unwrap_or(false));
    let mut said = match deliveries.is_empty() {
        true => Vec::new(),
        false => {
            let answers = answers_of(&*engine.ways[way].route.sink, &deliveries, timeout, probing);
            caught(answers).await.map_err(|panic| panic_text(&*panic))?
        }
    }
    .into_iter();
    let answers = started
        .into_iter()
        .map(|started| match started {
            false => Answer::NotStarted,
            true => Answer::Said(said.next().unwrap_or_else(unanswered)),
        })
        .collect();
    Ok(answers)
}

/// Which of these leases outlast the timeout, after renewing those that would not.
async fn startable(engine: &Arc<Engine>, held: &[Arc<Held>], timeout: Duration) -> Vec<bool> {
    let short: Vec<Arc<Held>> =
        held.iter().filter(|held| !engine.leases.lasts(held, timeout)).cloned().collect();
    if !short.is_empty() {
        // A task of its own: a statement is not to be cut off when the dispatch is.
        let engine = Arc::clone(engine);
        let renewed = tokio::spawn(async move {
            match engine.leases.extend(&*engine.store, &short).await {
                Ok(()) => engine.outage.over(Doing::Renewing),
                Err(error) => engine.outage.say(Doing::Renewing, &error),
            }
        });
        let _ = renewed.await;
    }
    held.iter().map(|held| engine.leases.lasts(held, timeout) && !held.is_lost()).collect()
}

async fn answers_of(sink: &dyn Sink, batch: &[Delivery], timeout: Duration, probing: bool) -> Vec<Outcome> {
    let publish = async {
        if probing && let Err(error) = sink.probe().await {
            return vec![Outcome::Unavailable { error }; batch.len()];
        }
        sink.publish(batch).await
    };
    match tokio::time::timeout(timeout, publish).await {
        Ok(outcomes) => outcomes,
        Err(_) => {
            let error = format!("timed out after {timeout:?}");
            // Where it was unavailable before, silence is no sign that it is back.
            let outcome = match probing {
                true => Outcome::Unavailable { error },
                false => Outcome::Retry { after: None, error },
            };
            vec![outcome; batch.len()]
        }
    }
}
