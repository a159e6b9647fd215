//! Which scenario gets to which failpoint, and on which database it is not there.

use super::Scenario;
use crate::plan::Database;

/// A failpoint, and where it is reached.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub name: &'static str,
    pub scenarios: &'static [Scenario],
    /// Where it is not there, and why.
    pub absent: Absent,
}

/// Databases on which a place between two steps is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    Nowhere,
    /// What is two statements or more on the others is one statement there.
    OneStatementOn(&'static [Database]),
    /// There a migration is one transaction, sent at once: nothing can happen between two of its statements.
    OneTransactionOn(&'static [Database]),
}

impl Point {
    /// Whether it is there on this database.
    pub fn is_on(&self, database: Database) -> bool {
        match self.absent {
            Absent::Nowhere => true,
            Absent::OneStatementOn(databases) | Absent::OneTransactionOn(databases) => {
                !databases.contains(&database)
            }
        }
    }

    /// What it belongs to: the first word of its name.
    pub fn step(&self) -> &'static str {
        self.name.split('.').next().unwrap_or_default()
    }
}

const QUEUE: &[Scenario] = &[Scenario::Queue];
const BRIEF: &[Scenario] = &[Scenario::Brief];
const STREAM: &[Scenario] = &[Scenario::Stream];
const BOTH: &[Scenario] = &[Scenario::Queue, Scenario::Stream];

const POSTGRES: &[Database] = &[Database::Postgres];
const NOT_MARIADB: &[Database] = &[Database::Postgres, Database::Sqlite];

const fn everywhere(name: &'static str, scenarios: &'static [Scenario]) -> Point {
    Point { name, scenarios, absent: Absent::Nowhere }
}

const fn one_statement(name: &'static str, scenarios: &'static [Scenario], on: &'static [Database]) -> Point {
    Point { name, scenarios, absent: Absent::OneStatementOn(on) }
}

/// All of them, in the order of the steps.
pub const POINTS: &[Point] = &[
    everywhere("migrate.locked", BOTH),
    Point { name: "migrate.statement", scenarios: BOTH, absent: Absent::OneTransactionOn(NOT_MARIADB) },
    everywhere("migrate.ran", BOTH),
    everywhere("migrate.recorded", BOTH),
    everywhere("migrate.ended", BOTH),
    everywhere("enqueue.checked", QUEUE),
    everywhere("enqueue.inserted", BOTH),
    everywhere("enqueue.duplicate", BOTH),
    everywhere("enqueue.written", QUEUE),
    everywhere("commit.verified", QUEUE),
    everywhere("commit.committed", BOTH),
    everywhere("commit.handed_over", QUEUE),
    everywhere("claim.asked", QUEUE),
    one_statement("claim.locked", QUEUE, NOT_MARIADB),
    one_statement("claim.leased", QUEUE, NOT_MARIADB),
    everywhere("claim.answered", BOTH),
    everywhere("claim.handed_on", BOTH),
    everywhere("renew.due", QUEUE),
    one_statement("renew.locked", QUEUE, NOT_MARIADB),
    one_statement("renew.written", QUEUE, NOT_MARIADB),
    everywhere("renew.answered", QUEUE),
    everywhere("publish.leased", BOTH),
    everywhere("publish.answered", BOTH),
    everywhere("publish.judged", BOTH),
    everywhere("settle.gathered", BOTH),
    one_statement("settle.locked", QUEUE, NOT_MARIADB),
    // Of one kind of ends, SQLite has one statement.
    one_statement("settle.written", BRIEF, POSTGRES),
    everywhere("settle.answered", BOTH),
    everywhere("purge.found", BOTH),
    everywhere("purge.locked", BOTH),
    one_statement("purge.selected", BOTH, NOT_MARIADB),
    one_statement("purge.written", BOTH, NOT_MARIADB),
    everywhere("purge.dead_locked", STREAM),
    everywhere("purge.dead_deleted", STREAM),
    everywhere("purge.answered", BOTH),
    everywhere("purge.unlocked", BOTH),
    everywhere("lanes.due", STREAM),
    one_statement("lanes.joined", STREAM, POSTGRES),
    one_statement("lanes.renewed", STREAM, POSTGRES),
    everywhere("lanes.beaten", STREAM),
    everywhere("lanes.fenced", STREAM),
    everywhere("lanes.taken", STREAM),
    everywhere("lanes.opened", STREAM),
    everywhere("lanes.flushed", STREAM),
    everywhere("lanes.released", STREAM),
    everywhere("lanes.left", STREAM),
    everywhere("page.read", STREAM),
    everywhere("page.noted", STREAM),
    everywhere("page.placed", STREAM),
    everywhere("page.given_out", STREAM),
    one_statement("park.locked", STREAM, POSTGRES),
    everywhere("park.inserted", STREAM),
    everywhere("park.written", STREAM),
    everywhere("park.answered", STREAM),
    one_statement("parked.claiming", STREAM, POSTGRES),
    everywhere("parked.claimed", STREAM),
    everywhere("parked.ending", STREAM),
    everywhere("parked.ended", STREAM),
    everywhere("place.due", STREAM),
    one_statement("place.marked", STREAM, POSTGRES),
    everywhere("place.written", STREAM),
];

#[cfg(all(test, feature = "__failpoints"))]
mod tests {
    use super::*;

    #[test]
    fn pr2_every_failpoint_is_tried() {
        let points: Vec<&str> = POINTS.iter().map(|point| point.name).collect();
        assert_eq!(points, posthaste::failpoint::ALL);
        assert!(POINTS.iter().all(|point| !point.scenarios.is_empty()));
    }
}
