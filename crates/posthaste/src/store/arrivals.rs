//! What a follower of a table looks for: rows by their sequence, in the order it was given out.
//!
//! A sequence is given out when a row is written, not when it commits: a row may appear below others that were seen
//! long before. What is known of transactions tells for how long one may.

use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

/// How far the times of neighbours may differ from the order of their sequences.
pub(crate) const SLACK: Duration = Duration::from_secs(10);

/// Which rows. A queue on PostgreSQL has no index of their sequences and finds them by the time they were written; the
/// others mind no times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought<'a> {
    /// The newest.
    Newest {
        /// At most so many.
        limit: u32,
        /// Written at or after this time.
        since: OffsetDateTime,
    },
    /// Those above a sequence, the lowest first.
    After {
        /// That sequence.
        sequence: i64,
        /// When its row was written.
        written: OffsetDateTime,
        /// At most so many.
        limit: u32,
    },
    /// Those of these that are there.
    Among(&'a [Missed]),
}

/// A sequence that was not there while others around it were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// Its place in the table.
    pub sequence: i64,
    /// When the row before it was written.
    pub since: OffsetDateTime,
    /// When the row behind it was.
    pub until: OffsetDateTime,
}

/// A row that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its place in the table.
    pub sequence: i64,
    /// The event's id.
    pub id: Uuid,
    /// When the row was written.
    pub created_at: OffsetDateTime,
}

/// Rows that are there, and what was running before they were looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Arrivals {
    /// In the order of their sequences.
    pub rows: Vec<Arrival>,
    /// Whether there are more, or may be.
    pub more: bool,
    /// What is known of the transactions that may still write.
    pub running: Running,
}

impl Arrivals {
    /// Rows that were looked for up to a limit, in whatever order.
    pub(crate) fn of(mut rows: Vec<Arrival>, limit: Option<u32>, running: Running) -> Self {
        rows.sort_unstable_by_key(|row| row.sequence);
        let more = limit.is_some_and(|limit| rows.len() >= limit as usize);
        Self { rows, more, running }
    }
}

impl Sought<'_> {
    /// How many at most, if that is said.
    pub(crate) fn limit(&self) -> Option<u32> {
        match self {
            Self::Newest { limit, .. } | Self::After { limit, .. } => Some(*limit),
            Self::Among(_) => None,
        }
    }
}

/// What is known of transactions that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Running {
    /// Nothing.
    Unknown,
    /// One writes at a time: what is not there will not come below what is.
    InOrder,
    /// All below the first number have ended; the second is the next to begin.
    From(u64, u64),
}
