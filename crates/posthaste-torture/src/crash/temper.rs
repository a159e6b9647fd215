//! What becomes of an event at its handler.

/// What the handler makes of an event; it stands in the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temper {
    /// It is taken.
    Calm,
    /// It fails at the first attempt.
    Flaky,
    /// It takes long.
    Slow,
    /// It is rejected.
    Poison,
    /// It fails at every attempt.
    Doomed,
}

impl Temper {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Flaky => "flaky",
            Self::Slow => "slow",
            Self::Poison => "poison",
            Self::Doomed => "doomed",
        }
    }

    /// Of an event with this payload.
    pub(super) fn of(payload: &[u8]) -> Self {
        let payload: serde_json::Value = serde_json::from_slice(payload).unwrap_or_default();
        let is = |temper: &Self| payload["pad"] == temper.name();
        [Self::Flaky, Self::Slow, Self::Poison, Self::Doomed].into_iter().find(is).unwrap_or(Self::Calm)
    }
}
