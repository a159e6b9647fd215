//! How a sink takes what it is sent.

use std::time::Duration;

use crate::history::Answer;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    #[default]
    Normal,
    /// Answers after so long.
    Slow(Duration),
    /// Says that it is not there.
    Down,
    /// Takes nothing.
    Failing,
    /// Takes it, and after so long says that it did not, or nothing.
    Lying { wait: Duration, silent: bool },
}

impl Mood {
    /// What the relay is made to believe.
    pub(super) fn told(self) -> Answer {
        match self {
            Self::Normal | Self::Slow(_) => Answer::Accepted,
            Self::Down | Self::Failing => Answer::Failed,
            Self::Lying { .. } => Answer::Lied,
        }
    }
}
