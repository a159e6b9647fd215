//! Settlements: how a leased event ended, written in batches.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use uuid::Uuid;

use super::Lease;

/// Bytes of a stored error, so that a stack trace does not bloat the row.
const ERROR_LIMIT: usize = 2048;

/// The end of one lease.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The right to say so.
    pub lease: Lease,
    /// What became of the event.
    pub verdict: Verdict,
}

/// What became of a leased event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Delivered, for good.
    Delivered,
    /// Failed: available again after this long, by the database's clock.
    Retry {
        /// How long to wait.
        after: Duration,
        /// Why it failed.
        error: String,
    },
    /// Failed for good, until an operator replays it.
    Dead {
        /// Why it failed.
        error: String,
    },
    /// Handed back: the attempt does not count.
    Released {
        /// How long to wait; zero keeps its place in the queue.
        after: Duration,
    },
}

impl Settlement {
    /// Delivered, for good.
    pub fn delivered(lease: Lease) -> Self {
        Self { lease, verdict: Verdict::Delivered }
    }

    /// Failed: to be tried again after this long.
    pub fn retry(lease: Lease, after: Duration, error: impl Into<String>) -> Self {
        Self { lease, verdict: Verdict::Retry { after, error: error.into() } }
    }

    /// Failed for good.
    pub fn dead(lease: Lease, error: impl Into<String>) -> Self {
        Self { lease, verdict: Verdict::Dead { error: error.into() } }
    }

    /// Handed back at once, the attempt not counted.
    pub fn released(lease: Lease) -> Self {
        Self { lease, verdict: Verdict::Released { after: Duration::ZERO } }
    }
}

/// What becomes of the row of a delivered event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// It stays, marked delivered, until it is purged.
    #[default]
    Delivered,
    /// It is deleted at once: the cheapest for the database, nothing to look at later.
    Nothing,
}

/// What a batch of settlements came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settled {
    /// How many were written.
    pub written: usize,
    /// Events whose lease was no longer held: somebody else has them, or they are settled. Nothing was
    /// written for them.
    pub lost: Vec<Uuid>,
    /// Events whose lease is held, but whose row another transaction has locked: on MySQL and MariaDB, a
    /// producer that met a duplicate of it. Nothing was written for them; settle them again.
    pub busy: Vec<Uuid>,
}

/// The numbers by which the statements know a verdict.
pub(crate) mod code {
    pub(crate) const DELIVERED: i32 = 0;
    pub(crate) const RETRY: i32 = 1;
    pub(crate) const DEAD: i32 = 2;
    pub(crate) const RELEASED: i32 = 3;
}

impl Verdict {
    /// The number by which the statements know it.
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Delivered => code::DELIVERED,
            Self::Retry { .. } => code::RETRY,
            Self::Dead { .. } => code::DEAD,
            Self::Released { .. } => code::RELEASED,
        }
    }

    /// How long to wait, in microseconds; `None` leaves the row's place in the queue.
    pub(crate) fn delay(&self) -> Option<i64> {
        match self {
            Self::Retry { after, .. } => Some(micros(*after)),
            Self::Released { after } if !after.is_zero() => Some(micros(*after)),
            _ => None,
        }
    }

    /// The error as it is stored.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Retry { error, .. } | Self::Dead { error } => Some(stored_error(error)),
            _ => None,
        }
    }
}

/// An error as it is stored: cut on a character boundary, without NUL, which databases refuse.
pub(crate) fn stored_error(error: &str) -> String {
    let end = (0..=error.len().min(ERROR_LIMIT)).rev().find(|at| error.is_char_boundary(*at)).unwrap_or(0);
    error[..end].replace('\0', "\u{fffd}")
}

/// A length of time in microseconds, at most a hundred years so that no date overflows.
pub(crate) fn micros(length: Duration) -> i64 {
    const CENTURY: i64 = 100 * 366 * 86_400 * 1_000_000;
    i64::try_from(length.as_micros()).unwrap_or(CENTURY).min(CENTURY)
}

/// Splits what is to be written so that no statement names an event twice: of two settlements with the same
/// lease the first counts and the second finds it lost, whatever the database makes of a row joined twice.
/// Each round is in the order of the ids, so that statements on the same rows lock them in the same order.
pub(crate) fn rounds<T>(items: &[T], id: impl Fn(&T) -> Uuid) -> Vec<Vec<&T>> {
    let mut all: Vec<&T> = items.iter().collect();
    all.sort_by_key(|item| id(item));
    if all.windows(2).all(|pair| id(pair[0]) != id(pair[1])) {
        return if all.is_empty() { Vec::new() } else { vec![all] };
    }
    let mut rounds: Vec<Vec<&T>> = Vec::new();
    let mut times: HashMap<Uuid, usize> = HashMap::with_capacity(items.len());
    for item in items {
        let round = times.entry(id(item)).or_default();
        if *round == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[*round].push(item);
        *round += 1;
    }
    rounds.iter_mut().for_each(|round| round.sort_by_key(|item| id(item)));
    rounds
}

impl Settled {
    /// Adds a round: what was to be written and what was.
    pub(crate) fn add(&mut self, round: &[&Settlement], written: &[Uuid]) {
        self.written += written.len();
        if written.len() == round.len() {
            return;
        }
        self.lost.append(&mut lost(round.iter().map(|settlement| settlement.lease.id), written));
    }
}

/// What was to be written and was not.
pub(crate) fn lost(wanted: impl Iterator<Item = Uuid>, written: &[Uuid]) -> Vec<Uuid> {
    let written: HashSet<&Uuid> = written.iter().collect();
    wanted.filter(|id| !written.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt5_errors_are_cut_on_a_character_boundary() {
        assert_eq!(stored_error("short"), "short");
        let long = format!("{}é", "x".repeat(ERROR_LIMIT - 1));
        assert_eq!(stored_error(&long), "x".repeat(ERROR_LIMIT - 1));
        assert_eq!(stored_error("a\0b"), "a\u{fffd}b");
    }

    #[test]
    fn a_century_is_the_longest_wait() {
        assert_eq!(micros(Duration::MAX), micros(Duration::from_secs(u64::MAX)));
        assert_eq!(micros(Duration::from_millis(3)), 3000);
    }
}
