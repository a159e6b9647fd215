//! Jobs: a leased event on its way through the relay.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

use super::renew::Held;
use crate::error::Error;
use crate::sink::Delivery;

/// A leased event, from its claim or commit to its settlement; its slot is free again when it is dropped.
pub(super) struct Job {
    pub(super) delivery: Delivery,
    pub(super) held: Arc<Held>,
    pub(super) source: Source,
    /// Published by itself: in company it, or another, made the sink panic.
    pub(super) alone: bool,
    /// How old it was, by the database's clock, when the relay got it.
    pub(super) age: Duration,
    pub(super) got: Instant,
    pub(super) pass: Option<Pass>,
    /// While it is held, a pass that began after it is not over.
    pub(super) _epoch: Option<mpsc::Sender<Infallible>>,
    pub(super) _slot: OwnedSemaphorePermit,
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
    /// Whether it goes by itself: a second attempt may be at something that breaks its whole batch.
    pub(super) fn is_alone(&self) -> bool {
        self.alone || self.delivery.attempt > 1
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
