//! What is measured: posthaste, the limits, and peers, each in a file of its own behind these traits.
//!
//! A contender is driven as its own documentation shows, with its best settings. What it deletes or keeps, and
//! whether its acknowledgement waits for the disk, is part of what it is: two ways are two contenders.

mod limit_lease;
mod limit_window;
mod peers;
pub(crate) mod posthaste;

use anyhow::Result;
use async_trait::async_trait;
use serde::Serialize;

use crate::sample::Sample;
use crate::scenario::Scenario;
use crate::seen::Seen;
use crate::server::Database;

pub(crate) use peers::LEFT_OUT;

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Class {
    Posthaste,
    /// Hand-written: the least statements that could do the job.
    Limit,
    Peer,
}

/// How it finds what is to be delivered, and what it leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Way {
    /// It leases rows, and keeps them when they are delivered.
    Lease,
    /// It leases rows, and deletes them when they are delivered.
    LeaseDeleting,
    /// It reads by a cursor, and writes no row.
    Cursor,
}

impl Way {
    /// Whether it leases rows.
    pub(crate) fn leases(self) -> bool {
        self != Self::Cursor
    }
}

/// With how much it delivers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivering {
    /// How many relays, workers, or whatever does the work, beside each other.
    pub(crate) workers: usize,
    /// Most events of one fetch.
    pub(crate) batch: usize,
}

/// Somebody who takes part.
#[async_trait]
pub(crate) trait Contender: Send + Sync {
    /// Short, the same in every table and chart.
    fn name(&self) -> &'static str;

    fn class(&self) -> Class;

    fn way(&self) -> Way;

    /// Of the crate that is measured.
    fn version(&self) -> String;

    /// Where it takes part; in everything unless it says otherwise.
    fn takes_part(&self, _scenario: Scenario) -> bool {
        true
    }

    /// With more workers than this nothing is different; it is left out then.
    fn most_workers(&self) -> usize {
        usize::MAX
    }

    /// Its tables, as its own documentation sets them up, beside a table `orders` that is there. Whatever is there
    /// already is left as it is: a copy of a filled database is set up once more, and so is one by another process.
    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>>;
}

/// A contender with its tables in one database.
#[async_trait]
pub(crate) trait Installed: Send + Sync {
    /// One connection that commits orders; an error says why it cannot take part in the business transaction.
    async fn producer(&self) -> Result<Box<dyn Producer>>;

    /// A backlog of the samples with these numbers, as fast as it can be written; not timed.
    async fn fill(&self, from: u64, events: u64) -> Result<()>;

    /// Delivers to a null sink that tells `seen` the number of each event, until it is stopped.
    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>>;

    /// Closes its connections, so that its database can be copied or dropped.
    async fn close(self: Box<Self>);
}

/// A connection of a service that takes orders. Contenders use different drivers, so each has its own.
#[async_trait]
pub(crate) trait Producer: Send {
    /// One business transaction: [`INSERT_ORDER`](crate::sample::INSERT_ORDER), these events with it, and the commit.
    /// Without events it is the business transaction alone.
    async fn order(&mut self, events: &[Sample]) -> Result<()>;
}

/// Somebody who delivers.
#[async_trait]
pub(crate) trait Running: Send {
    /// Ends when all connections are closed.
    async fn stop(self: Box<Self>) -> Result<()>;
}

/// Everybody, in the order of the tables.
pub(crate) fn all() -> Vec<Box<dyn Contender>> {
    let mut all = limit_lease::all();
    all.extend(limit_window::all());
    all.extend(posthaste::all());
    all.extend(peers::all());
    all
}

/// The version of a crate that is measured, as the lock file has it.
pub(crate) fn locked(name: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let line = format!("name = \"{name}\"\nversion = \"");
    let version = lock.split_once(&line).and_then(|(_, rest)| rest.split_once('"'));
    format!("{name} {}", version.map_or("?", |(version, _)| version))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_different_and_versions_are_known() {
        let all = all();
        let names: HashSet<&str> = all.iter().map(|one| one.name()).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|one| !one.version().ends_with('?')));
    }

    #[test]
    fn everything_of_posthaste_has_a_limit() {
        let all = all();
        let limits: Vec<Way> =
            all.iter().filter(|one| one.class() == Class::Limit).map(|one| one.way()).collect();
        assert!(all.iter().all(|one| one.class() == Class::Peer || limits.contains(&one.way())));
    }
}
