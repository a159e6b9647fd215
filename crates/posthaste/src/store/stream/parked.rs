//! Parked events: what cannot be delivered now, and what waits behind it.
//!
//! Of the parked events of an aggregate the first is *due* at some time and the others are not; when the first is gone
//! the next becomes due. An event that died blocks its aggregate until an operator replays or discards it, unless its
//! topic goes on without it.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::Hold;
use crate::event::Event;
use crate::store::{AttemptLimits, Topics};

/// An event that is to be parked.
#[derive(Debug, Clone)]
pub struct Park {
    /// Its lane, and the right to it.
    pub hold: Hold,
    /// Its place in the table.
    pub sequence: i64,
    /// Its id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// What it is in order with: its aggregate, or itself.
    pub key: String,
    /// Attempts counted so far.
    pub attempts: u32,
    /// Why it is parked.
    pub error: Option<String>,
    /// Until when.
    pub wait: Wait,
}

/// Until when an event is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Until those of its aggregate that are parked before it are gone; if there are none, not at all.
    Behind,
    /// So long; later events of its aggregate wait behind it.
    After(Duration),
    /// Until its `available_at`, by the database's clock; others do not wait for it.
    Delay,
    /// It may have ended its owner's process: it is tried by itself; others of its aggregate wait behind it.
    Suspect,
    /// It is being dispatched, and takes long: its end is written by `settle_parked`.
    Running,
    /// It is dead. Others of its aggregate wait until an operator acts, or go on.
    Dead {
        /// Whether they wait.
        blocks: bool,
    },
}

/// A request for parked events.
#[derive(Debug, Clone)]
pub struct ParkedClaim<'a> {
    /// Of these lanes.
    pub holds: &'a [Hold],
    /// At most this many.
    pub limit: u32,
    /// Whether one of them may be a suspect: one at a time.
    pub suspects: bool,
    /// Of which topics.
    pub topics: &'a Topics,
    /// After how many attempts one is dead.
    pub attempts: &'a AttemptLimits,
}

/// A parked event that is to be tried, or has no attempt left.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Parked {
    /// Its lane, and the right to it.
    pub hold: Hold,
    /// Its place among the parked.
    pub position: i64,
    /// Its place in the table.
    pub sequence: i64,
    /// Its id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Which attempt this is; of one that is spent, which the last one was.
    pub attempt: u32,
    /// Whether it has no attempt left. Then it is not claimed, and is to be ended as [`ParkedVerdict::Spent`]: were it claimed,
    /// an attempt would be counted that is never made, or the count said to be one less when it is given back.
    pub spent: bool,
    /// Whether it may have ended a process.
    pub suspect: bool,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Whether others of its aggregate wait behind it.
    pub blocks: bool,
    /// When it was written, by the database's clock.
    pub created_at: OffsetDateTime,
    /// The event, or why it cannot be read.
    pub event: std::result::Result<Event, String>,
}

/// How a claimed parked event ended.
#[derive(Debug, Clone)]
pub struct ParkedEnd {
    /// Its lane, and the right to it.
    pub hold: Hold,
    /// Its place in the table.
    pub sequence: i64,
    /// What became of it.
    pub verdict: ParkedVerdict,
}

/// What became of a claimed parked event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParkedVerdict {
    /// Delivered: it is parked no longer, and the next of its aggregate is due.
    Delivered,
    /// Failed: due again after this long.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Why it failed.
        error: String,
    },
    /// Failed for good.
    Dead {
        /// Why it failed.
        error: String,
        /// Whether later events of its aggregate wait for an operator.
        blocks: bool,
    },
    /// It had no attempt left, and nobody has claimed it: dead.
    Spent {
        /// Why.
        error: String,
        /// Whether later events of its aggregate wait for an operator.
        blocks: bool,
    },
    /// Not tried: the attempt does not count, and it is due after this long.
    Released {
        /// How long to wait.
        after: Duration,
    },
    /// Not tried, because one before it failed: the attempt does not count, and it waits behind it.
    Behind,
}

/// An aggregate that stays blocked until an operator replays or discards its dead event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedAggregate {
    /// The aggregate's namespace.
    pub namespace: String,
    /// Its type.
    pub aggregate_type: Option<String>,
    /// Its id; events without one block nobody and are not listed.
    pub aggregate_id: String,
    /// Its lane.
    pub lane: u16,
    /// The event that died.
    pub event_id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: OffsetDateTime,
    /// How many wait behind it.
    pub waiting: crate::store::Count,
}
