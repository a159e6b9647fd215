//! A rush: events come straight from their commits so fast that handing on each by itself costs producers more than it is worth.
//!
//! | setting | value | why |
//! |---|---|---|
//! | `MANY` | 4 transactions in a millisecond | a thousand a second are far from it: each of them is handed on at once |
//! | `MOMENT` | 1 ms | what comes meanwhile goes together: a publish and three wake-ups for all, and not for each |
//!
//! The events of one transaction go together anyway: transactions of several are no rush.
//!
//! Promise: nobody waits for longer than a moment, and nobody at all who does not come in a rush.

use std::time::Duration;

use tokio::time::Instant;

use crate::produce::gate::HotEvent;

const MANY: usize = 4;
const MOMENT: Duration = Duration::from_millis(1);

/// How fast events come, and until when the next ones wait for others.
#[derive(Debug, Default)]
pub(super) struct Rush {
    /// When counting began.
    since: Option<Instant>,
    /// What has come since.
    transactions: usize,
    events: usize,
    until: Option<Instant>,
}

impl Rush {
    /// These have been taken. Each transaction leases its events under a name of its own, and hands them over together.
    pub(super) fn took(&mut self, committed: &[HotEvent]) {
        let transactions = committed.chunk_by(|one, next| one.lease.holder() == next.lease.holder());
        self.count(transactions.count(), committed.len());
    }

    fn count(&mut self, transactions: usize, events: usize) {
        let now = Instant::now();
        if self.since.is_none_or(|since| now >= since + MOMENT) {
            *self = Self { since: Some(now), ..Self::default() };
        }
        self.transactions += transactions;
        self.events += events;
        let is_rush = self.transactions >= MANY && self.events < 2 * self.transactions;
        self.until = is_rush.then(|| now + MOMENT);
    }

    /// Whether what comes now waits for others.
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Waits until the moment is over.
    pub(super) async fn moment(&mut self) {
        if let Some(until) = self.until {
            tokio::time::sleep_until(until).await;
            self.until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn re5_what_comes_one_by_one_never_waits() {
        let mut rush = Rush::default();
        for _ in 0..100 {
            rush.count(1, 1);
            assert!(!rush.is_on());
            tokio::time::advance(MOMENT / 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn re5_transactions_of_several_events_never_wait() {
        let mut rush = Rush::default();
        for _ in 0..100 {
            rush.count(MANY, 10 * MANY);
            assert!(!rush.is_on());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn re5_what_comes_in_a_rush_waits_for_a_moment_and_no_longer() {
        let mut rush = Rush::default();
        for event in 1..=MANY {
            assert!(!rush.is_on());
            rush.count(1, 1);
            assert_eq!(rush.is_on(), event == MANY);
        }
        let began = Instant::now();
        rush.moment().await;
        assert!(!rush.is_on());
        assert!(began.elapsed() <= 2 * MOMENT, "{:?}", began.elapsed());
        // It goes on for as long as many come in a moment.
        rush.count(MANY, MANY);
        assert!(rush.is_on());
        rush.moment().await;
        rush.count(1, 1);
        assert!(!rush.is_on());
    }
}
