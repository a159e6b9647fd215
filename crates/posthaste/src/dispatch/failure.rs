//! Failures: what a handler says went wrong, and what is to be done about it.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::sink::Outcome;

/// Why a handler did not handle an event. Any error becomes one that is tried again; to say more:
///
/// ```
/// # use std::time::Duration;
/// use posthaste::Failure;
///
/// Failure::retry_after(Duration::from_secs(30), "rate limited");
/// Failure::reject("no such customer");      // dead at once
/// Failure::unavailable("smtp is down");     // the route rests, no attempt is spent
/// ```
// Not an `Error` itself, so that every `Error` can become one.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(Outcome);

impl Failure {
    /// It may work later: the relay's policy says when.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self(Outcome::Retry { after: None, error: format!("{error:#}") })
    }

    /// It may work after this long.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self(Outcome::Retry { after: Some(after), error: format!("{error:#}") })
    }

    /// It will never work: dead at once.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self(Outcome::Reject { error: format!("{error:#}") })
    }

    /// What the handler needs cannot be reached: not this event's fault, no attempt is spent.
    pub fn unavailable(error: impl fmt::Display) -> Self {
        Self(Outcome::Unavailable { error: format!("{error:#}") })
    }

    /// What went wrong.
    pub fn message(&self) -> &str {
        match &self.0 {
            Outcome::Retry { error, .. } | Outcome::Reject { error } | Outcome::Unavailable { error } => {
                error
            }
            Outcome::Delivered => "",
        }
    }

    /// What the relay makes of it.
    pub fn into_outcome(self) -> Outcome {
        self.0
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Any error is a failure that is tried again, with the causes it names.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some errors repeat their cause in their own text.
            if !text.contains(&more) {
                text = format!("{text}: {more}");
            }
            cause = error.source();
        }
        Self::retry(text)
    }
}

/// What a handler's error may be: a [`Failure`], or anything that can be displayed, which is tried again.
pub trait IntoFailure {
    /// The failure it is.
    fn into_failure(self) -> Failure;
}

impl IntoFailure for Failure {
    fn into_failure(self) -> Failure {
        self
    }
}

impl<E: fmt::Display> IntoFailure for E {
    fn into_failure(self) -> Failure {
        Failure::retry(self)
    }
}
