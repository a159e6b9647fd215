//! The operations, how they are drawn, and how a sequence of them reads.

use std::fmt;

use posthaste::store::{Ending, Keep};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone)]
pub enum Operation {
    /// `again` enqueues the id of an earlier event once more.
    Enqueue {
        topic: u8,
        key: Option<u8>,
        again: Option<u8>,
        delay: bool,
        commit: bool,
    },
    Claim {
        worker: u8,
        limit: u32,
        from_mark: bool,
    },
    /// In one batch; leases count back from the newest one handed out.
    Settle {
        batch: Vec<(u8, Kindness)>,
        keep: Keep,
    },
    Extend {
        lease: u8,
    },
    Wait {
        seconds: u64,
    },
    Replay {
        topic: Option<u8>,
    },
    Discard {
        topic: Option<u8>,
    },
    Purge {
        ending: Ending,
        seconds: u64,
    },
}

/// A verdict without its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kindness {
    Delivered,
    Retry,
    RetryLater,
    Dead,
    Released,
}

/// Waits are multiples of 50 s and everything that ends does so 10 s or more from a multiple of 50, so that
/// the few real milliseconds between two steps never matter.
pub const LEASE: u64 = 60;
pub const DELAY: u64 = 30;
pub const RETRY: u64 = 120;
pub const ATTEMPTS: u32 = 3;

pub fn operation() -> impl Strategy<Value = Operation> {
    let topic = 0..2u8;
    let verdict = prop_oneof![
        3 => Just(Kindness::Delivered),
        2 => Just(Kindness::Retry),
        1 => Just(Kindness::RetryLater),
        2 => Just(Kindness::Dead),
        1 => Just(Kindness::Released),
    ];
    let keep = prop_oneof![3 => Just(Keep::Delivered), 1 => Just(Keep::Nothing)];
    let ending = prop_oneof![Just(Ending::Delivered), Just(Ending::Dead)];
    prop_oneof![
        8 => (topic.clone(), proptest::option::weighted(0.3, 0..2u8), proptest::option::weighted(0.15, 0..4u8), prop::bool::weighted(0.2), prop::bool::weighted(0.8))
            .prop_map(|(topic, key, again, delay, commit)| Operation::Enqueue { topic, key, again, delay, commit }),
        8 => (0..3u8, 1..4u32, prop::bool::weighted(0.3))
            .prop_map(|(worker, limit, from_mark)| Operation::Claim { worker, limit, from_mark }),
        8 => (vec((0..5u8, verdict), 1..4), keep).prop_map(|(batch, keep)| Operation::Settle { batch, keep }),
        2 => (0..5u8).prop_map(|lease| Operation::Extend { lease }),
        5 => prop_oneof![Just(50), Just(100)].prop_map(|seconds| Operation::Wait { seconds }),
        2 => proptest::option::of(topic.clone()).prop_map(|topic| Operation::Replay { topic }),
        1 => proptest::option::of(topic).prop_map(|topic| Operation::Discard { topic }),
        2 => (ending, prop_oneof![Just(25u64), Just(125u64)])
            .prop_map(|(ending, seconds)| Operation::Purge { ending, seconds }),
    ]
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |topic: &Option<u8>| topic.map_or("every topic".to_owned(), |topic| format!("topic {topic}"));
        match self {
            Self::Enqueue { topic, key, again, delay, commit } => {
                write!(f, "enqueue on topic {topic}")?;
                if let Some(key) = key {
                    write!(f, " with dedupe key {key}")?;
                }
                if let Some(again) = again {
                    write!(f, " with the id of event {again}")?;
                }
                if *delay {
                    write!(f, ", delayed {DELAY} s")?;
                }
                f.write_str(if *commit { ", commit" } else { ", roll back" })
            }
            Self::Claim { worker, limit, from_mark } => {
                let from = if *from_mark { " from its mark" } else { "" };
                write!(f, "worker {worker} claims {limit}{from} for {LEASE} s")
            }
            Self::Settle { batch, keep } => {
                let parts: Vec<String> = batch
                    .iter()
                    .map(|(lease, verdict)| format!("lease {lease} from the last as {verdict:?}"))
                    .collect();
                write!(f, "settle {}, keep {keep:?}", parts.join(", "))
            }
            Self::Extend { lease } => write!(f, "extend lease {lease} from the last to {LEASE} s"),
            Self::Wait { seconds } => write!(f, "{seconds} s pass"),
            Self::Replay { topic } => write!(f, "replay {}", of(topic)),
            Self::Discard { topic } => write!(f, "discard {}", of(topic)),
            Self::Purge { ending, seconds } => write!(f, "purge what is {} for {seconds} s", ending.as_str()),
        }
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A sequence that reads as a numbered list.
#[derive(Clone)]
pub struct Script(pub Vec<Operation>);

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(at, operation)| writeln!(f, "  {}. {operation}", at + 1))
    }
}
