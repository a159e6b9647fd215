//! Losing the database: every part tries again by itself with growing pauses, and the log says once that it is
//! gone and once that it is back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::retry::{Backoff, Random, RetryPolicy};
use crate::error::Error;

/// The first and the longest pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What the relay was doing when the database failed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doing {
    Claiming,
    Settling,
    Renewing,
    KeepingSession,
    OwningLanes,
    EndingOrphans,
    Purging,
    Measuring,
}

impl Doing {
    fn as_str(self) -> &'static str {
        match self {
            Self::Claiming => "claiming",
            Self::Settling => "settling",
            Self::Renewing => "renewing leases",
            Self::KeepingSession => "keeping the relay's session",
            Self::OwningLanes => "owning lanes",
            Self::EndingOrphans => "ending orphaned leases",
            Self::Purging => "purging",
            Self::Measuring => "reading statistics",
        }
    }
}

/// What the relay knows of the database's state, for its log and its status. Each part has its own: one may
/// fail while the others work.
pub(super) struct Outage {
    table: Arc<str>,
    failing: Mutex<BTreeMap<Doing, (Instant, String)>>,
}

impl Outage {
    pub(super) fn new(table: Arc<str>) -> Self {
        Self { table, failing: Mutex::default() }
    }

    /// It failed; said aloud the first time, and again when it is another error.
    pub(super) fn say(&self, doing: Doing, error: &Error) {
        let text = error.to_string();
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let known = failing.get(&doing).is_some_and(|(_, last)| *last == text);
        let what = doing.as_str();
        if known {
            tracing::debug!(table = %self.table, error = %text, "{what} still fails");
            return;
        }
        tracing::warn!(table = %self.table, error = %text, "{what} fails; it is tried again");
        failing.entry(doing).or_insert((Instant::now(), String::new())).1 = text;
    }

    /// It worked.
    pub(super) fn over(&self, doing: Doing) {
        let ended = self.failing.lock().unwrap_or_else(PoisonError::into_inner).remove(&doing);
        if let Some((since, _)) = ended {
            tracing::info!(table = %self.table, after = ?since.elapsed(), "{} works again", doing.as_str());
        }
    }

    /// What keeps events from moving, if anything; what is done only now and then, such as claims by one that
    /// `works` no longer, may have failed long ago.
    pub(super) fn error(&self, works: bool) -> Option<String> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let essential = |doing: &Doing| match doing {
            Doing::Settling | Doing::KeepingSession => true,
            Doing::Claiming => works,
            _ => false,
        };
        failing
            .iter()
            .find(|(doing, _)| essential(doing))
            .map(|(doing, (_, text))| format!("{}: {text}", doing.as_str()))
    }
}

/// The pauses of one part between its tries.
pub(super) struct Pauses {
    backoff: Backoff,
    random: Arc<dyn Random>,
    tries: u32,
}

impl Pauses {
    pub(super) fn new(random: Arc<dyn Random>) -> Self {
        Self { backoff: Backoff::exponential(PAUSES.0, PAUSES.1).equal_jitter(), random, tries: 0 }
    }

    /// The next pause.
    pub(super) fn next(&mut self) -> Duration {
        self.tries = self.tries.saturating_add(1);
        self.backoff.delay(self.tries, self.random.next())
    }

    /// It worked: the next pause is short again.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}
