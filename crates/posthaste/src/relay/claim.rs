//! The claimer: leases as many events as there are slots, and sleeps until a slot, a wake-up or the next poll.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `batch` | 500 | most of the database's speed; twice as much adds little |
//! | `capacity` | two batches | claims one while the other is under way |
//! | `poll_interval` | 1 s | what a lost notification costs at most; an idle relay asks once in it |
//! | `lease` | 60 s | twice the timeout of a dispatch |
//!
//! It asks again at once while it gets all it asked for, soon after it got some, and more and more rarely, down
//! to the poll interval, while it gets nothing. A claim starts where the last one left off, or a little before where there
//! is no backlog; at least once a second one starts from the beginning, for what became available behind its back. In a backlog
//! the next claim is asked for before the events of this one are handed on, so that the database is at it meanwhile.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

use super::breaker::Admission;
use super::crew::Begun;
use super::engine::Engine;
use super::feed::{Fed, FedEvent, Feed, Said};
use super::job::{Job, Note, Pass, Source, Work};
use super::order::Turn;
use super::outage::{Doing, Pauses};
use super::slots::Slots;
use crate::error::{Error, ErrorKind, Result};
use crate::sink::Delivery;
use crate::store::{Buried, Claim, Keep, Mark, Topics, Verdict};
use crate::telemetry;

/// After a wake-up, what commits within this time is claimed together with its cause.
const LINGER: Duration = Duration::from_millis(1);
/// How far before the last one's end a claim starts that goes through no backlog. A row is available from when its transaction
/// began: one that committed after others lies there, and is not to wait for the next claim from the beginning.
const OVERLAP: Duration = Duration::from_millis(250);
/// The longest time between two claims from the beginning.
const SWEEP: Duration = Duration::from_secs(1);
/// And when they take long.
const LONGEST_SWEEP: Duration = Duration::from_secs(30);
/// How long a claim is waited for at least before its connection is given up. A database that is only slow, or an
/// SQLite file that somebody else writes to, would still carry it out, and nobody would know of its leases.
const LATEST: Duration = Duration::from_secs(30);
/// Most events claimed at once while every route rests, to find one for a route that is due to be probed.
const PROBES: usize = 50;
/// How much shorter than the poll interval the first pause after an event is.
const HASTE: u32 = 20;

pub(super) struct Claimer {
    engine: Arc<Engine>,
    jobs: mpsc::Sender<Vec<Job>>,
    pauses: Pauses,
    mark: Option<Mark>,
    swept: Option<Swept>,
    /// When an event was last claimed to probe each route.
    probed: HashMap<usize, Instant>,
    /// How long to wait after a claim that got nothing.
    patience: Duration,
    pass: Option<Pass>,
    epoch: Epoch,
    /// Whether the last claim left topics out because their routes have enough to do.
    crowded: bool,
    /// Whether the last claim got all it asked for.
    full: bool,
    /// Whether there is more at once, however little the last claim got.
    more: bool,
    /// Whether the last claim got nothing because it is not known yet what is this relay's to deliver.
    unready: bool,
    /// The next claim, where it was asked for already.
    ahead: Option<Asked>,
}

/// A claim that the database was asked for.
struct Asked {
    at: Instant,
    limit: u32,
    /// Whether it starts from the beginning.
    sweeps: bool,
    /// Whether it leaves topics out because their routes have enough to do.
    crowded: bool,
    slots: OwnedSemaphorePermit,
    answer: oneshot::Receiver<Answer>,
}

/// What a claim came to, and how long it took.
type Answer = (Result<Fed>, Duration);

/// The last claim from the beginning.
struct Swept {
    at: Instant,
    took: Duration,
}

/// The events claimed since the last pass began: each holds the one end, and when all are settled the other
/// says so.
struct Epoch {
    held: mpsc::Sender<Infallible>,
    over: mpsc::Receiver<Infallible>,
}

impl Default for Epoch {
    fn default() -> Self {
        let (held, over) = mpsc::channel(1);
        Self { held, over }
    }
}

impl Claimer {
    pub(super) fn new(engine: Arc<Engine>, jobs: mpsc::Sender<Vec<Job>>) -> Self {
        let pauses = Pauses::new(Arc::clone(&engine.settings.random));
        let patience = engine.settings.poll / HASTE;
        Self {
            engine,
            jobs,
            pauses,
            mark: None,
            swept: None,
            probed: HashMap::new(),
            patience,
            pass: None,
            epoch: Epoch::default(),
            crowded: false,
            full: false,
            more: false,
            unready: false,
            ahead: None,
        }
    }

    /// Claims until the relay stops.
    pub(super) async fn run(mut self) {
        let mut state = self.engine.control.watch();
        let mut breakers = self.engine.breakers_changed.subscribe();
        loop {
            if let Some(ahead) = self.ahead.take() {
                let asked = ahead.limit as usize;
                let claimed = self.end(ahead).await;
                self.go_on(claimed, asked).await;
                continue;
            }
            if breakers.has_changed().unwrap_or(false) {
                breakers.borrow_and_update();
                self.sweep_next();
            }
            if self.engine.control.now().stopping {
                return;
            }
            self.catch_up().await;
            self.take_pass();
            let admission = self.engine.admission();
            let most = match (self.engine.control.now().works(), admission) {
                (true, Admission::All) => self.engine.claim_limit(),
                (true, Admission::Probe) if self.engine.ways.len() == 1 => 1,
                (true, Admission::Probe) => self.engine.claim_limit().min(PROBES),
                (works, admission) => {
                    // Nothing is to be had: who asked for a pass has had it, unless this relay may yet lead.
                    if works
                        || self.engine.control.now().paused
                        || self.engine.stands_by.load(Ordering::Relaxed)
                    {
                        self.pass = None;
                    }
                    let rest = match admission {
                        Admission::After(left) if works => left,
                        _ => self.engine.settings.poll,
                    };
                    tokio::select! {
                        _ = state.changed() => {}
                        _ = breakers.changed() => self.sweep_next(),
                        () = self.engine.wake.notified() => {}
                        () = tokio::time::sleep(rest) => {}
                    }
                    continue;
                }
            };
            let engine = Arc::clone(&self.engine);
            let slots = tokio::select! {
                slots = engine.slots.take(most, || engine.depths.claimed.load(Ordering::Relaxed) == 0) => slots,
                _ = state.changed() => continue,
            };
            let slots = self.probe(slots).await;
            let asked = slots.num_permits();
            let claimed = match asked {
                0 => Some(0),
                _ => self.claim(slots).await,
            };
            match claimed {
                Some(got) if admission == Admission::Probe => {
                    self.hurry();
                    if got == 0 {
                        self.pass = None;
                    }
                    // What becomes of the probe decides what is claimed next.
                    tokio::select! {
                        _ = breakers.changed() => self.sweep_next(),
                        _ = state.changed() => {}
                        () = tokio::time::sleep(self.engine.settings.poll.min(SWEEP)) => {}
                    }
                }
                claimed => self.go_on(claimed, asked).await,
            }
        }
    }

    /// Waits as long as it should before the next claim, by what this one got of what it asked for.
    async fn go_on(&mut self, claimed: Option<usize>, asked: usize) {
        match claimed {
            Some(got) if got >= asked || self.more => self.hurry(),
            Some(got) => {
                // What a crowded route left out is still to be had.
                if !self.crowded && !self.unready {
                    self.pass = None;
                }
                if got > 0 {
                    self.hurry();
                }
                self.rest().await;
            }
            None => {
                let pause = self.pauses.next();
                self.engine.control.sleep(pause).await;
            }
        }
    }

    /// Waits while settlements wait for the database: an event whose lease has ended meanwhile would be delivered
    /// twice.
    async fn catch_up(&self) {
        let mut behind = self.engine.behind.subscribe();
        tokio::select! {
            _ = behind.wait_for(|behind| !*behind) => {}
            () = self.engine.control.stopping() => {}
        }
    }

    /// One claim; how many rows came up, or `None` if the database failed.
    async fn claim(&mut self, slots: OwnedSemaphorePermit) -> Option<usize> {
        let (asked, _) = self.begin(slots);
        self.end(asked).await
    }

    /// Asks for a claim.
    fn begin(&self, slots: OwnedSemaphorePermit) -> (Asked, Begun) {
        let sweeps = self.pass.is_some() || self.is_sweep_due();
        let (topics, crowded) = self.engine.topics();
        let after = match self.mark {
            _ if sweeps => None,
            Some(mark) if !self.full => Some(mark.earlier(OVERLAP)),
            mark => mark,
        };
        let claim = self.request(&slots).after(after).topics(topics);
        let (at, limit) = (Instant::now(), claim.limit);
        let (answer, begun) = self.engine.begin_claim(claim);
        (Asked { at, limit, sweeps, crowded, slots, answer }, begun)
    }

    /// Asks for the claim after one that got all it asked for, if there is room for it and nothing else to be thought of first.
    /// Of several routes, what each has got by this one decides which topics are left out of the next.
    fn begin_ahead(&self) -> Option<(Asked, Begun)> {
        let engine = &self.engine;
        let may = engine.ways.len() == 1
            && engine.control.now().works()
            && engine.admission() == Admission::All
            && !*engine.behind.borrow()
            && engine.pass().is_none();
        let slots = may.then(|| engine.slots.try_take(engine.claim_limit())).flatten()?;
        Some(self.begin(slots))
    }

    /// Takes what a claim came to.
    async fn end(&mut self, asked: Asked) -> Option<usize> {
        let Asked { at, limit, sweeps, crowded, slots, answer } = asked;
        let engine = Arc::clone(&self.engine);
        self.crowded = crowded;
        match engine.end_claim(answer).await {
            Ok((batch, took)) => {
                engine.outage.over(Doing::Claiming);
                self.pauses.reset();
                if sweeps {
                    self.swept = Some(Swept { at, took });
                }
                let got = batch.events.len() + batch.buried.len();
                (self.more, self.unready) = (batch.more, batch.unready);
                let full = got >= limit as usize;
                self.full = full;
                self.mark = match () {
                    // What was left out is soon to be claimed, and lies before this.
                    () if crowded && sweeps && full => {
                        self.mark.zip(batch.mark).map(|(one, other)| one.min(other))
                    }
                    () if crowded => self.mark,
                    // Much that became available behind the mark is gone through from where it was found.
                    () if sweeps && full => batch.mark,
                    () => self.mark.max(batch.mark),
                };
                if let Some((ahead, begun)) = (full || self.more).then(|| self.begin_ahead()).flatten() {
                    self.ahead = Some(ahead);
                    begun.wait().await;
                }
                self.report_buried(&batch.buried);
                self.hand_on(batch, slots, at).await;
                Some(got)
            }
            Err(error) => {
                engine.outage.say(Doing::Claiming, &error);
                if let Some(pass) = self.pass.take() {
                    pass.note(Note::Failed(error));
                }
                None
            }
        }
    }

    fn request(&self, slots: &OwnedSemaphorePermit) -> Claim {
        let settings = &self.engine.settings;
        Claim::by(self.engine.worker())
            .limit(u32::try_from(slots.num_permits()).unwrap_or(u32::MAX))
            .lease(settings.lease)
            .attempts(self.engine.attempts.clone())
    }

    /// What was left out of claims lies behind the mark.
    fn sweep_next(&mut self) {
        self.swept = None;
    }

    /// One that takes long, because of what it has to step over, is made more rarely.
    fn is_sweep_due(&self) -> bool {
        let Some(Swept { at, took }) = self.swept else { return true };
        at.elapsed() >= SWEEP.min(self.engine.settings.poll).max((took * 10).min(LONGEST_SWEEP))
    }

    /// Claims an event for each of several routes that is due to be probed and whose topics are known; answers
    /// with the slots that are left. Where they are not known, whatever is claimed next may be the route's.
    async fn probe(&mut self, mut slots: OwnedSemaphorePermit) -> OwnedSemaphorePermit {
        if self.engine.ways.len() == 1 {
            return slots;
        }
        let due = self.engine.probes();
        self.probed.retain(|way, at| due.iter().any(|(due, _)| due == way) && at.elapsed() < SWEEP);
        for (way, topics) in due {
            if topics.is_empty() || self.probed.contains_key(&way) {
                continue;
            }
            let Some(slot) = slots.split(1) else { break };
            let now = Instant::now();
            self.probed.insert(way, now);
            let claim = self.request(&slot).topics(Topics::Only(topics));
            match self.engine.ask(claim).await {
                Ok(batch) => {
                    self.report_buried(&batch.buried);
                    self.hand_on(batch, slot, now).await;
                }
                Err(error) => self.engine.outage.say(Doing::Claiming, &error),
            }
        }
        slots
    }

    async fn hand_on(&self, batch: Fed, slots: OwnedSemaphorePermit, claimed: Instant) {
        if batch.events.is_empty() {
            return;
        }
        failpoint!("claim.answered");
        let engine = &self.engine;
        let until = claimed + engine.settings.lease;
        let held = engine.leases.hold(batch.events.iter().map(|claimed| claimed.lease.clone()), until);
        let (got, age) = (Instant::now(), engine.ages());
        let slots = Slots::each(slots, batch.events.len());
        let jobs: Vec<Job> = batch
            .events
            .into_iter()
            .zip(held)
            .zip(slots)
            .map(|((claimed, held), slot)| {
                engine.enter(Work {
                    lane: Ok(0),
                    delivery: Delivery {
                        sequence: claimed.lease.sequence(),
                        attempt: claimed.lease.attempt(),
                        event: claimed.event,
                        table: Arc::clone(&engine.table),
                        created_at: claimed.created_at,
                        destination: None,
                    },
                    held,
                    source: Source::Claimed,
                    company: usize::MAX,
                    age: age(claimed.created_at),
                    got,
                    pass: self.pass.clone(),
                    turn: claimed.turn,
                    _part: None,
                    _epoch: Some(self.epoch.held.clone()),
                    slot,
                })
            })
            .collect();
        engine.joined_queue(&jobs);
        // The dispatcher outlives the claimer.
        let _ = self.jobs.send(jobs).await;
        failpoint!("claim.handed_on");
    }

    fn report_buried(&self, buried: &[Buried]) {
        for row in buried {
            telemetry::dead(&self.engine.table, &row.topic, 1);
            tracing::error!(table = %self.engine.table, topic = %row.topic, event_id = %row.id, sequence = row.sequence, reason = %row.reason, "an event is dead");
            self.engine.tally.dead.fetch_add(1, Ordering::Relaxed);
            if let Some(pass) = &self.pass {
                pass.note(Note::Dead);
            }
        }
    }

    /// Takes on the pass that was asked for, if any. It is not over before what is under way already.
    fn take_pass(&mut self) {
        let asked = self.engine.pass().take();
        let Some(asked) = asked else { return };
        let Epoch { held, mut over } = std::mem::take(&mut self.epoch);
        drop(held);
        let waits = asked.clone();
        tokio::spawn(async move {
            over.recv().await;
            drop(waits);
        });
        self.pass = Some(asked);
    }

    fn hurry(&mut self) {
        self.patience = self.engine.settings.poll / HASTE;
    }

    /// Waits for a wake-up or the next poll.
    async fn rest(&mut self) {
        let mut state = self.engine.control.watch();
        state.borrow_and_update();
        if self.engine.control.now().stopping {
            return;
        }
        tokio::select! {
            () = self.engine.wake.notified() => {
                tokio::time::sleep(LINGER).await;
                self.hurry();
            }
            () = self.engine.next_poll(self.patience) => {
                self.patience = (self.patience * 2).min(self.engine.settings.poll);
            }
            _ = state.changed() => {}
        }
    }
}

impl Engine {
    /// Claims, within the time that any call has.
    async fn ask(self: &Arc<Self>, claim: Claim) -> Result<Fed> {
        let (answer, _) = self.begin_claim(claim);
        Ok(self.end_claim(answer).await?.0)
    }

    /// Asks for a claim. One that answers when nobody waits for it any more has leased events and counted their attempts: they are
    /// given back.
    fn begin_claim(self: &Arc<Self>, claim: Claim) -> (oneshot::Receiver<Answer>, Begun) {
        let (answer, answered) = oneshot::channel();
        let engine = Arc::clone(self);
        let begun = self.crew.go(Box::pin(async move {
            // What is read of a stream can be read again, and nobody else gets at it meanwhile.
            let latest = match engine.is_stream() {
                true => engine.longest_call(),
                false => engine.settings.lease.max(LATEST),
            };
            failpoint!("claim.asked");
            let began = Instant::now();
            let claimed = async { engine.feed().await?.claim(&claim).await };
            let claimed = tokio::time::timeout(latest, claimed).await;
            let Ok(claimed) = claimed else { return };
            if let Err((Ok(late), _)) = answer.send((claimed, began.elapsed())) {
                engine.give_back(late).await;
            }
        }));
        (answered, begun)
    }

    /// Waits for what was asked for, as long as any call may take.
    async fn end_claim(&self, answered: oneshot::Receiver<Answer>) -> Result<(Fed, Duration)> {
        let answer = async {
            let (claimed, took) = answered.await.map_err(|_| {
                let message = format!("table {}: the database did not answer a claim", self.table);
                Error::new(ErrorKind::Unreachable, message)
            })?;
            Ok((claimed?, took))
        };
        self.in_time(answer).await
    }

    async fn give_back(&self, fed: Fed) {
        let verdict = Verdict::Released { after: Duration::ZERO };
        fed.events.iter().filter_map(|event| event.turn.as_ref()).for_each(Turn::fail);
        let settled = async {
            let mut said = Vec::with_capacity(fed.events.len());
            for FedEvent { lease, .. } in &fed.events {
                said.push(Said { lease, verdict: &verdict, behind: false });
            }
            self.feed().await?.settle(&said, Keep::Delivered).await
        };
        if let Err(error) = self.in_time(settled).await {
            if let Ok(Some(stream)) = self.feed().await.map(Feed::stream) {
                stream.abandon(&fed.events.iter().map(|event| &event.lease).collect::<Vec<_>>()).await;
            }
            tracing::warn!(table = %self.table, events = fed.events.len(), %error, "a claim answered too late, and its events could not be given back; they come up again when their leases end");
        }
    }
}
