//! From what a sink answered to what is written: the one table of the four ways a dispatch can fail.
//!
//! | answer | written |
//! |---|---|
//! | delivered | delivered, for good |
//! | retry | available again after the policy's delay or the one asked for; dead at the attempt limit |
//! | reject, or no route | dead at once |
//! | unavailable | given back, the attempt not counted |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::retry::{Backoff, RetryPolicy};
use crate::dispatch::redact;
use crate::event::Event;
use crate::sink::{Delivery, Outcome};
use crate::store::Verdict;

/// How one dispatch ended.
pub(super) struct Ending {
    pub(super) verdict: Verdict,
    /// What the metrics are told; `None` where nothing was dispatched.
    pub(super) told: Option<Told>,
    /// Whether it was cut short when the relay stopped.
    pub(super) interrupted: bool,
    /// Whether it was not dispatched because one before it of its aggregate was not delivered.
    pub(super) behind: bool,
}

/// What the metrics are told of a dispatch.
pub(super) struct Told {
    pub(super) result: &'static str,
    pub(super) ran: Ran,
}

/// How long a dispatch took, and when it ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub(super) took: Duration,
    pub(super) until: Instant,
}

impl Ran {
    /// From then until now.
    pub(super) fn since(started: Instant) -> Self {
        let until = Instant::now();
        Self { took: until.saturating_duration_since(started), until }
    }
}

impl Ending {
    /// Never started, or stopped through no fault of its own: the attempt does not count.
    pub(super) fn handed_back(after: Duration) -> Self {
        let verdict = Verdict::Released { after };
        Self { verdict, told: None, interrupted: false, behind: false }
    }

    /// Not dispatched because one before it of its aggregate was not delivered.
    pub(super) fn behind() -> Self {
        Self { behind: true, ..Self::handed_back(Duration::ZERO) }
    }
}

impl Engine {
    /// What an answer comes to; one that was unavailable steps aside for so long.
    pub(super) fn judge(&self, delivery: &Delivery, outcome: Outcome, ran: Ran, aside: Duration) -> Ending {
        let event = &delivery.event;
        let (verdict, result) = match outcome {
            Outcome::Delivered => (Verdict::Delivered, "delivered"),
            Outcome::Reject { error } => (Verdict::Dead { error: self.stored(&error, event) }, "dead"),
            Outcome::Unavailable { .. } => (Verdict::Released { after: aside }, "unavailable"),
            Outcome::Retry { after, error } => {
                let error = self.stored(&error, event);
                match self.next_try(delivery, after) {
                    Some(after) => (Verdict::Retry { after, error }, "retry"),
                    None => (Verdict::Dead { error }, "dead"),
                }
            }
        };
        Ending { verdict, told: Some(Told { result, ran }), interrupted: false, behind: false }
    }

    /// What is stored of an error.
    fn stored(&self, error: &str, event: &Event) -> String {
        let mut error = redact(error, event);
        let most = self.settings.error_bytes;
        if let Some(end) = (0..=most.min(error.len())).rev().find(|at| error.is_char_boundary(*at)) {
            error.truncate(end);
        }
        error
    }

    /// After how long to try again; `None` if no attempt is left.
    fn next_try(&self, delivery: &Delivery, asked: Option<Duration>) -> Option<Duration> {
        let policy = self.settings.retries.policy(delivery.event.topic());
        // A policy is the user's code: if it panics, the default decides.
        let ask = || {
            let left = delivery.attempt < policy.max_attempts().max(1);
            left.then(|| asked.unwrap_or_else(|| policy.delay(delivery.attempt, self.settings.random.next())))
        };
        catch_unwind(AssertUnwindSafe(ask)).unwrap_or_else(|_| {
            tracing::error!(table = %self.table, topic = delivery.event.topic(), "the retry policy panicked; the default decides");
            let policy: &dyn RetryPolicy = &Backoff::default();
            (delivery.attempt < policy.max_attempts()).then(|| policy.delay(delivery.attempt, 1.0))
        })
    }
}
