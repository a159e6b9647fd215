//! Leases: who may settle an event, and until when.
//!
//! The token is (holder, attempt). The holder is the worker's name with the number of the claim, so that a
//! lease from an earlier claim of the same worker never fits a later one, whatever was released or replayed
//! in between.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};

/// Characters of a worker's name: what the column leaves beside the number of the claim.
const LIMIT: usize = 96;

/// Ends the name of a worker whose session the database knows.
const PRESENT: char = '~';

/// Numbers every claim of this process.
static CLAIMS: AtomicU64 = AtomicU64::new(1);

/// The names of the workers that these holders of leases are, each once.
pub(crate) fn workers_of(holders: &[String]) -> Vec<String> {
    let names = holders.iter().map(|holder| {
        let name = holder.split_once('#').map_or(holder.as_str(), |(name, _)| name);
        name.trim_end_matches(PRESENT).to_owned()
    });
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The name of one that claims: unique among all that share the table, at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// A name of the caller's choice. Two live workers must never share one.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let size = name.chars().count();
        if size > LIMIT {
            let kind = ErrorKind::TooLong { field: "worker", limit: LIMIT, size };
            return Err(Error::new(
                kind,
                format!("the worker's name has {size} characters, at most {LIMIT} are allowed"),
            ));
        }
        if name.is_empty() || name.chars().any(|c| c.is_control() || c == '#' || c == PRESENT) {
            let message = format!(
                "{name:?} is not a worker's name: it is empty, or has a control character, '#' or '{PRESENT}'"
            );
            return Err(Error::new(ErrorKind::InvalidSetting, message));
        }
        Ok(Self(name.into()))
    }

    /// A name no other worker has: this process and a random part. It is short because every leased row
    /// carries it: the more it adds to a row, the fewer claims find room beside the row's first version.
    pub fn unique() -> Self {
        let random = Uuid::now_v7().as_u128() & 0xff_ffff_ffff;
        Self(format!("{}-{random:010x}", std::process::id()).into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name under which its leases end with its session.
    pub(crate) fn present(&self) -> Self {
        if self.0.ends_with(PRESENT) { self.clone() } else { Self(format!("{}{PRESENT}", self.0).into()) }
    }

    /// Whether it is that name.
    pub(crate) fn is_present(&self) -> bool {
        self.0.ends_with(PRESENT)
    }

    /// What the rows of the next claim are marked with.
    pub(crate) fn next_holder(&self) -> Arc<str> {
        format!("{}#{}", self.0, CLAIMS.fetch_add(1, Ordering::Relaxed)).into()
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The lease that a row is written with, so that nobody has to claim it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BirthLease<'a> {
    pub(crate) holder: &'a str,
    pub(crate) length: Duration,
}

/// What an extension of leases came to; those of which it says nothing last from now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Extended {
    /// Events whose lease was no longer held: somebody else has them, or they are settled.
    pub lost: Vec<Uuid>,
    /// Events whose lease is held, but whose row another transaction has locked: on MySQL and MariaDB, a
    /// producer that met a duplicate of it. Their leases end when they would have; extend them again.
    pub busy: Vec<Uuid>,
}

/// The right to settle one event, held until somebody else claims it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    pub(crate) id: Uuid,
    pub(crate) sequence: i64,
    pub(crate) holder: Arc<str>,
    pub(crate) attempt: u32,
}

impl Lease {
    /// The event it is for.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The event's place in the table.
    pub fn sequence(&self) -> i64 {
        self.sequence
    }

    /// Which attempt at delivery this is; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The mark in `locked_by`: the worker's name, `#` and the number of its claim.
    pub fn holder(&self) -> &str {
        &self.holder
    }
}
