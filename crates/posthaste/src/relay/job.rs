//! Jobs: a leased event on its way through the relay.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::engine::Engine;
use super::order::Turn;
use super::renew::Holding;
use super::slots::Slot;
use crate::dispatch::no_route;
use crate::error::Error;
use crate::sink::{Delivery, Outcome};

/// A leased event, from its claim or commit to its settlement; its slot is free again when it is dropped. It is handed on many times,
/// and too large to be copied each time.
pub(super) struct Job(Box<Work>);

impl Deref for Job {
    type Target = Work;

    fn deref(&self) -> &Work {
        &self.0
    }
}

impl DerefMut for Job {
    fn deref_mut(&mut self) -> &mut Work {
        &mut self.0
    }
}

/// What a job is made of.
pub(super) struct Work {
    /// The index of its route, or what becomes of it without one.
    pub(super) lane: Result<usize, Outcome>,
    pub(super) delivery: Delivery,
    pub(super) held: Holding,
    pub(super) source: Source,
    /// In how large a batch it is published at most: in a larger one it, or another, made the sink hang or panic.
    pub(super) company: usize,
    /// How old it was, by the database's clock, when the relay got it.
    pub(super) age: Duration,
    pub(super) got: Instant,
    pub(super) pass: Option<Pass>,
    /// Its place among those of its aggregate, where they are in order.
    pub(super) turn: Option<Turn>,
    /// Its part of what its route has claimed.
    pub(super) _part: Option<Part>,
    /// While it is held, a pass that began after it is not over.
    pub(super) _epoch: Option<mpsc::Sender<Infallible>>,
    pub(super) slot: Slot,
}

/// How the relay got an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// From its commit in this process.
    Hot,
    /// By a claim.
    Claimed,
}

impl Job {
    /// The largest batch that it is part of: a second attempt, which may be at something that breaks its whole
    /// batch, goes by itself.
    pub(super) fn largest_batch(&self) -> usize {
        if self.delivery.attempt > 1 { 1 } else { self.company }
    }
}

impl Job {
    /// Its slot, which is all that is left of it.
    pub(super) fn into_slot(self) -> Slot {
        self.0.slot
    }

    /// The index of its route, if it has one.
    pub(super) fn way(&self) -> Option<usize> {
        self.lane.as_ref().ok().copied()
    }

    /// It is not delivered: what comes behind it of its aggregate waits.
    pub(super) fn fail(&self) {
        if let Some(turn) = &self.turn {
            turn.fail();
        }
    }

    /// Whether one before it of its aggregate was not delivered.
    pub(super) fn is_behind(&self) -> bool {
        self.turn.as_ref().is_some_and(Turn::is_behind)
    }
}

/// One pass asked for by `run_once`: every event claimed for it carries a copy, and when the last is gone it
/// is over.
#[derive(Debug, Clone)]
pub(super) struct Pass(pub(super) mpsc::UnboundedSender<Note>);

/// What happened in a pass.
#[derive(Debug)]
pub(super) enum Note {
    Delivered,
    Retried,
    Dead,
    HandedBack,
    Failed(Error),
}

impl Pass {
    /// Writes down what became of an event; nobody may be waiting any more.
    pub(super) fn note(&self, note: Note) {
        let _ = self.0.send(note);
    }
}

/// One claimed event's part of what its route holds, from its claim to its settlement; when that falls below the
/// route's share, its topics are claimed again.
pub(super) struct Part {
    held: Arc<AtomicUsize>,
    share: usize,
    wake: Arc<Notify>,
}

impl Part {
    fn of(engine: &Engine, lane: usize) -> Self {
        let held = Arc::clone(&engine.ways[lane].held);
        held.fetch_add(1, Ordering::Relaxed);
        Self { held, share: engine.share(), wake: Arc::clone(&engine.wake) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.held.fetch_sub(1, Ordering::Relaxed) == self.share {
            self.wake.notify_one();
        }
    }
}

impl Engine {
    /// A job as it enters the relay: its route and destination are found. Whoever hands it on counts it among those that
    /// [wait](Self::joined_queue).
    pub(super) fn enter(&self, work: Work) -> Job {
        let mut job = Job(Box::new(work));
        job.lane = self.place(&mut job.delivery);
        if let Ok(lane) = job.lane {
            self.learn_topic(lane, &job.delivery.event);
            // The only route takes all there is.
            let shares = job.source == Source::Claimed && self.ways.len() > 1;
            job._part = shares.then(|| Part::of(self, lane));
        }
        job
    }

    /// The event's lane, its destination set; or what becomes of it without one. Routes and topic maps are the
    /// user's code: a panic in them is a failure of this event.
    fn place(&self, delivery: &mut Delivery) -> Result<usize, Outcome> {
        let event = &*delivery.event;
        let find = || {
            let lane = self.routes.find(event).filter(|at| *at < self.ways.len());
            let lane = lane.ok_or_else(|| no_route(event))?;
            let destination = self.settings.topics.as_ref().map(|topics| topics.map(event)).transpose()?;
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

    /// These wait for a worker.
    pub(super) fn joined_queue(&self, jobs: &[Job]) {
        let [hot, claimed] = by_source(jobs);
        self.depths.hot.fetch_add(hot, Ordering::Relaxed);
        self.depths.claimed.fetch_add(claimed, Ordering::Relaxed);
    }

    /// These wait for a worker no longer.
    pub(super) fn left_queue(&self, jobs: &[Job]) {
        let [hot, claimed] = by_source(jobs);
        self.depths.hot.fetch_sub(hot, Ordering::Relaxed);
        self.depths.claimed.fetch_sub(claimed, Ordering::Relaxed);
    }
}

/// How many of these are hot, and how many were claimed.
fn by_source(jobs: &[Job]) -> [usize; 2] {
    let hot = jobs.iter().filter(|job| job.source == Source::Hot).count();
    [hot, jobs.len() - hot]
}
