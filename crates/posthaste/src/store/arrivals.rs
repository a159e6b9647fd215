//! What a follower of a table looks for: rows by their sequence, in the order it was given out.
//!
//! A sequence is given out when a row is written, not when it commits: a row may appear below others that were seen
//! long before. What is known of transactions tells for how long one may.

use time::OffsetDateTime;
use uuid::Uuid;

/// Which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sought<'a> {
    /// The newest, at most so many.
    Newest(u32),
    /// Those above this sequence, the lowest first, at most so many.
    After(i64, u32),
    /// Those of these sequences that are there.
    Among(&'a [i64]),
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
    /// What is known of the transactions that may still write.
    pub running: Running,
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
