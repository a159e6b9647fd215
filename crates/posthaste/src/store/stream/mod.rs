//! Streams: tables whose events of one aggregate are delivered in the order of their commits.
//!
//! A stream is divided into lanes; an event's lane is a hash of its aggregate, computed by the database. A lane
//! belongs to one relay at a time. Whoever takes it gets a *fence*, a number that only grows, and everything an owner
//! writes names it: an owner that was paused while another took over changes nothing.
//!
//! What cannot be delivered now is *parked*, and with it what comes later of the same aggregate, in order. What was
//! parked, or is delivered, is behind the reader: it never looks back.
//!
//! | file | what is in it |
//! |---|---|
//! | `mode.rs` | queue or stream, chosen when a table is migrated |
//! | `known.rs` | the mode of a table, remembered |
//! | `lane.rs` | who owns which lane |
//! | `page.rs` | what a reader reads |
//! | `parked.rs` | events that wait, and their aggregates with them |
//! | `place.rs` | where parked events stand among those of their aggregate, on MySQL, MariaDB and SQLite |
//! | `behind.rs` | how far lanes are behind, put together of what was counted, there too |
//! | `floor.rs` | how MySQL, MariaDB and SQLite are read; PostgreSQL is read by snapshots |

#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) mod behind;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) mod floor;
pub(crate) mod known;
mod lane;
mod mode;
mod page;
mod parked;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) mod place;

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::{Keep, WorkerId};
use crate::error::Result;

pub use lane::{Beat, Council, Hold, LaneState, Seen};
pub use mode::{Lanes, Mode};
pub use page::{Page, Reader, Row, Unreadable};
pub use parked::{BlockedAggregate, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Wait};

/// The part of a store that only a stream has.
#[async_trait]
pub trait Stream: Send + Sync + 'static {
    /// Into how many lanes it is divided.
    fn lanes(&self) -> Lanes;

    // Own.

    /// Says that a relay lives and makes the lanes it holds last from now; answers with who else lives and how the
    /// lanes stand.
    async fn beat(&self, beat: &Beat<'_>) -> Result<Council>;

    /// Takes those of these lanes that are free: without an owner, with an ended lease, or owned by one of `absent`.
    /// What the owner before had under way becomes suspect.
    ///
    /// A lane whose last fence is the one that `beat.holds` says is *gone on* with: nobody owned it in between, and the
    /// process that did is alive, so that nothing of it may have ended one. What is parked and claimed of such a lane is
    /// claimed no longer and stays as suspect as it was, and there is no note any more of what was read and under
    /// way: whoever opens the lane next reads it again, and none of it is suspect.
    async fn take(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> Result<Vec<Hold>>;

    /// Gives up lanes of which nothing is under way; others may take them at once.
    async fn release(&self, holds: &[Hold]) -> Result<()>;

    /// Says that a relay is no more.
    async fn leave(&self, relay: &WorkerId) -> Result<()>;

    // Read.

    /// Reads lanes from where they were left.
    fn reader(&self) -> Box<dyn Reader>;

    // Park.

    /// Which of these aggregates have events parked that later ones wait behind.
    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>>;

    /// Parks events, in this order; one that is parked already is left alone. Answers with the lanes that were
    /// refused because their fence is no longer the holder's.
    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>>;

    /// Parked events that are due, each the first of its aggregate, with those right behind it where it was never
    /// tried; their attempts are counted.
    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>>;

    /// What is claimed of these lanes, by its place in the table; more than whoever claimed it knows of, where the answer to
    /// a claim was lost.
    async fn claimed(&self, holds: &[Hold]) -> Result<Vec<(Hold, i64)>>;

    /// Writes how claimed parked events ended, and lets the next of their aggregates come up. Answers with the lanes
    /// that were refused.
    async fn settle_parked(&self, ends: &[ParkedEnd], keep: Keep) -> Result<Vec<u16>>;

    /// Lets come up what stands first of its aggregate and is not due, should there be any: an operator discarded the one
    /// before it at the very moment it was parked.
    async fn repair(&self, _holds: &[Hold]) -> Result<()> {
        Ok(())
    }

    /// Whether anything is parked in these lanes.
    async fn has_parked(&self, lanes: &[u16]) -> Result<bool>;

    // Operate.

    /// Aggregates that stay blocked until an operator replays or discards their dead event, oldest first.
    async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>>;

    /// Those of them that one of these events blocks.
    async fn blocked_by(&self, events: &[Uuid]) -> Result<Vec<BlockedAggregate>>;

    /// How far each lane is behind, counting no further than `cap`.
    async fn lag(&self, cap: u32) -> Result<Vec<LaneLag>>;
}

/// How far a lane is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneLag {
    /// The lane.
    pub lane: u16,
    /// Who owns it.
    pub owner: Option<String>,
    /// Events that have not been read, or are under way; parked ones are counted beside them.
    pub events: super::Count,
    /// How long the oldest of them has been there.
    pub age: Option<Duration>,
    /// Parked events, dead ones included.
    pub parked: super::Count,
    /// Aggregates that stay blocked until an operator acts.
    pub blocked: super::Count,
}
