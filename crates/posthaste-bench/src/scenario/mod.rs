//! What is measured.

use serde::Serialize;

/// One question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(crate) enum Scenario {
    /// What an event costs the transaction that writes it.
    Enqueue,
    /// How fast a backlog goes out.
    Drain,
    /// How long an event takes from its commit to its handler.
    Latency,
    /// What a relay costs producers at full speed.
    Steady,
    /// How fast a backlog goes out beside what was delivered and kept.
    Growth,
    /// The same while an old transaction holds back cleanup.
    Pinned,
    /// What a relay with nothing to do costs.
    Idle,
    /// What a relay holds in memory.
    Memory,
}
