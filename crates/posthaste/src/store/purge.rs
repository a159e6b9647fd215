//! Purging: settled rows past their retention, in bounded batches.

use std::time::Duration;

/// What a purge deletes: settled rows only, never pending ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purge {
    /// Which of the two ends.
    pub ending: Ending,
    /// Settled longer ago than this.
    pub older_than: Duration,
    /// At most this many at once.
    pub limit: u32,
}

/// The two ways an event ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It arrived.
    Delivered,
    /// It was given up.
    Dead,
}

impl Ending {
    /// Its name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}
