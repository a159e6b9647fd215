//! What a relay says of itself: how it stands, what a pass did, and what a stop left.

use std::sync::Arc;
use std::time::Duration;

/// What was left when a relay stopped.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drained {
    /// Dispatches that ended while it stopped, and were settled.
    pub settled: usize,
    /// Events that had not started: pending again, their attempt not counted.
    pub handed_back: usize,
    /// Dispatches that were cut short at the end of the drain timeout: pending again, their attempt counted
    /// unless it was the last.
    pub abandoned: usize,
    /// Events whose end could not be written: they come up again when their leases end.
    pub unsettled: usize,
}

impl Drained {
    /// Whether everything that had begun came to its end.
    pub fn is_clean(&self) -> bool {
        self.abandoned == 0 && self.unsettled == 0
    }
}

/// What one pass did.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// Events that were delivered.
    pub delivered: usize,
    /// Events that failed and are tried again later.
    pub retried: usize,
    /// Events that died.
    pub dead: usize,
    /// Events that were given back: their sink is unavailable, or their lease was lost.
    pub handed_back: usize,
}

/// What a relay is doing, for people and their dashboards.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RelayStatus {
    /// The table it works on.
    pub table: String,
    /// Whether it has been started and not stopped.
    pub running: bool,
    /// Whether somebody has paused it.
    pub paused: bool,
    /// Whether it is the active one; where all may work, always while it runs.
    pub leading: bool,
    /// Under which name it leases events.
    pub worker: Option<String>,
    /// The lanes of a stream that it owns.
    pub lanes: Vec<u16>,
    /// Events straight from their commit that wait.
    pub hot: usize,
    /// Claimed events that wait.
    pub claimed: usize,
    /// Events being dispatched.
    pub dispatching: usize,
    /// Events whose end is being written.
    pub settling: usize,
    /// What the database says, if it fails.
    pub database: Option<String>,
    /// Its routes.
    pub routes: Vec<RouteStatus>,
}

/// One route of a relay.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Since when it rests, and why, if its sink is unavailable.
    pub resting: Option<(Duration, String)>,
    /// Whether somebody has paused it.
    pub paused: bool,
}

impl RouteStatus {
    /// A route of this name that is open.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), resting: None, paused: false }
    }
}
