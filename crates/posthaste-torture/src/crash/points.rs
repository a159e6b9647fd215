//! The matrix: which scenario dies at which failpoint, on which database, and why the others cannot.
//!
//! A child dies at every place that it gets to when it gets there first; where it passes a place again and again, one of
//! the scenarios dies there later, too: at its second passing, and at one of the last that there surely are.

use super::Scenario::{self, Brief, Queue, Stream};
use super::case::Case;
use crate::plan::Database::{self, MariaDb, MySql, Postgres, Sqlite};

/// A failpoint, and where it is reached.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    pub name: &'static str,
    /// Where it is not there. Everywhere else it is.
    without: &'static [Without],
    /// Who dies there at another than the first passing, and at which.
    later: &'static [(Scenario, u64)],
}

/// What never gets to a place.
#[derive(Debug, Clone, Copy)]
struct Without {
    databases: &'static [Database],
    scenarios: &'static [Scenario],
    why: Why,
}

/// Why something never gets to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// What is two statements or more elsewhere is one statement there.
    OneStatement,
    /// There a migration is one transaction, sent at once: nothing can happen between two of its statements.
    OneTransaction,
    /// A queue has no lanes and no pages, and parks nothing.
    NoLanes,
    /// A stream's events are held with their lanes: they are not leased, nor settled, one by one.
    NoLeases,
    /// Dead rows of a queue are purged as delivered ones are.
    NoParkedDead,
}

const ALL: &[Database] = &[Postgres, MySql, MariaDb, Sqlite];
const NOT_MYSQL: &[Database] = &[Postgres, Sqlite];
const EACH: &[Scenario] = &Scenario::ALL;

const NO_LANES: Without = Without { databases: ALL, scenarios: &[Queue, Brief], why: Why::NoLanes };
const NO_LEASES: Without = Without { databases: ALL, scenarios: &[Stream], why: Why::NoLeases };
const NO_PARKED_DEAD: Without = Without { why: Why::NoParkedDead, ..NO_LANES };

const fn one_statement(databases: &'static [Database]) -> Without {
    Without { databases, scenarios: EACH, why: Why::OneStatement }
}

const fn point(name: &'static str) -> Point {
    Point { name, without: &[], later: &[] }
}

impl Point {
    const fn without(self, without: &'static [Without]) -> Self {
        Self { without, ..self }
    }

    const fn later(self, later: &'static [(Scenario, u64)]) -> Self {
        Self { later, ..self }
    }

    /// Why this scenario never gets there on this database, if it does not.
    pub fn missing(&self, database: Database, scenario: Scenario) -> Option<Why> {
        let is_so = |without: &&Without| {
            without.databases.contains(&database) && without.scenarios.contains(&scenario)
        };
        self.without.iter().find(is_so).map(|without| without.why)
    }

    fn cases(&self, database: Database) -> impl Iterator<Item = Case> {
        let first = Scenario::ALL.into_iter().map(|scenario| (scenario, 1));
        let passings = first.chain(self.later.iter().copied());
        let there = passings.filter(move |(scenario, _)| self.missing(database, *scenario).is_none());
        there.map(move |(scenario, time)| Case { database, scenario, point: self.name, time })
    }
}

/// All crashes on this database.
pub fn cases(database: Database) -> Vec<Case> {
    POINTS.iter().flat_map(|point| point.cases(database)).collect()
}

/// All of them, in the order of the steps.
pub const POINTS: &[Point] = &[
    point("migrate.locked"),
    point("migrate.statement")
        .without(&[Without { databases: NOT_MYSQL, scenarios: EACH, why: Why::OneTransaction }])
        .later(&[(Queue, 2), (Stream, 2), (Stream, 4), (Stream, 6)]),
    point("migrate.ran"),
    point("migrate.recorded"),
    point("migrate.ended"),
    // The second is rolled back, the ninth is handed to the relay, and the twelfth is among the last.
    point("enqueue.checked").later(&[(Brief, 2), (Queue, 9), (Stream, 12)]),
    point("enqueue.inserted").later(&[(Queue, 2), (Stream, 9), (Brief, 12)]),
    point("enqueue.duplicate"),
    point("enqueue.written").later(&[(Stream, 2), (Brief, 9), (Queue, 12)]),
    point("commit.verified").later(&[(Queue, 2)]),
    point("commit.committed").later(&[(Brief, 2)]),
    point("commit.handed_over").later(&[(Stream, 2)]),
    point("claim.asked").later(&[(Queue, 2), (Brief, 6), (Stream, 6)]),
    point("claim.locked").without(&[NO_LEASES, one_statement(NOT_MYSQL)]).later(&[(Brief, 2), (Queue, 3)]),
    point("claim.leased").without(&[NO_LEASES, one_statement(NOT_MYSQL)]).later(&[(Queue, 2), (Brief, 3)]),
    point("claim.answered").later(&[(Stream, 2), (Queue, 3)]),
    point("claim.handed_on").later(&[(Brief, 2), (Stream, 3)]),
    point("renew.due"),
    point("renew.locked").without(&[NO_LEASES, one_statement(NOT_MYSQL)]),
    point("renew.written").without(&[NO_LEASES, one_statement(NOT_MYSQL)]),
    point("renew.answered"),
    point("publish.leased").later(&[(Queue, 2), (Stream, 5), (Brief, 9)]),
    point("publish.answered").later(&[(Stream, 2), (Brief, 5), (Queue, 9)]),
    point("publish.judged").later(&[(Brief, 2), (Queue, 5), (Stream, 9)]),
    point("settle.gathered").later(&[(Queue, 2), (Brief, 4), (Stream, 4)]),
    point("settle.locked").without(&[NO_LEASES, one_statement(NOT_MYSQL)]).later(&[(Brief, 2), (Queue, 4)]),
    // Of ends of one kind, SQLite has one statement: a queue that deletes has two kinds.
    point("settle.written")
        .without(&[
            NO_LEASES,
            one_statement(&[Postgres]),
            Without { databases: &[Sqlite], scenarios: &[Queue], why: Why::OneStatement },
        ])
        .later(&[(Queue, 2), (Brief, 2), (Brief, 4)]),
    point("settle.answered").later(&[(Brief, 2), (Stream, 2), (Queue, 4)]),
    // One purge may find all that is old. What is dead is purged behind what is delivered.
    point("purge.found"),
    point("purge.locked").later(&[(Stream, 2)]),
    point("purge.selected").without(&[one_statement(NOT_MYSQL)]).later(&[(Brief, 2)]),
    point("purge.written").without(&[one_statement(NOT_MYSQL)]),
    point("purge.dead_locked").without(&[NO_PARKED_DEAD]),
    point("purge.dead_deleted").without(&[NO_PARKED_DEAD]),
    point("purge.answered").later(&[(Brief, 2)]),
    point("purge.unlocked"),
    point("lanes.due").without(&[NO_LANES]).later(&[(Stream, 2), (Stream, 4)]),
    point("lanes.joined").without(&[NO_LANES, one_statement(&[Postgres])]),
    point("lanes.renewed").without(&[NO_LANES, one_statement(&[Postgres])]),
    point("lanes.beaten").without(&[NO_LANES]).later(&[(Stream, 2)]),
    point("lanes.fenced").without(&[NO_LANES]),
    point("lanes.taken").without(&[NO_LANES]),
    point("lanes.opened").without(&[NO_LANES]),
    point("lanes.flushed").without(&[NO_LANES]),
    point("lanes.released").without(&[NO_LANES]),
    point("lanes.left").without(&[NO_LANES]),
    point("page.read").without(&[NO_LANES]).later(&[(Stream, 2), (Stream, 3)]),
    point("page.noted").without(&[NO_LANES]).later(&[(Stream, 2)]),
    point("page.placed").without(&[NO_LANES]).later(&[(Stream, 2), (Stream, 3)]),
    point("page.given_out").without(&[NO_LANES]).later(&[(Stream, 2)]),
    point("park.locked").without(&[NO_LANES, one_statement(&[Postgres])]),
    point("park.inserted").without(&[NO_LANES]),
    point("park.written").without(&[NO_LANES]),
    point("park.answered").without(&[NO_LANES]),
    point("parked.claiming").without(&[NO_LANES, one_statement(&[Postgres])]).later(&[(Stream, 2)]),
    point("parked.claimed").without(&[NO_LANES]).later(&[(Stream, 2)]),
    point("parked.ending").without(&[NO_LANES]).later(&[(Stream, 2)]),
    point("parked.ended").without(&[NO_LANES]).later(&[(Stream, 2)]),
    point("place.due").without(&[NO_LANES]).later(&[(Stream, 2), (Stream, 3)]),
    point("place.marked").without(&[NO_LANES, one_statement(&[Postgres])]).later(&[(Stream, 2)]),
    point("place.written").without(&[NO_LANES]).later(&[(Stream, 2)]),
];

#[cfg(all(test, feature = "__failpoints"))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pr2_every_failpoint_is_tried() {
        let points: Vec<&str> = POINTS.iter().map(|point| point.name).collect();
        assert_eq!(points, posthaste::failpoint::ALL);
        let tried: HashSet<&str> =
            ALL.iter().flat_map(|database| cases(*database)).map(|c| c.point).collect();
        assert_eq!(tried.len(), POINTS.len());
    }

    /// A scenario dies wherever it gets to, and once at each passing that is named.
    #[test]
    fn pr2_whoever_does_not_die_at_a_failpoint_cannot_get_there() {
        for database in ALL {
            let cases = cases(*database);
            let named: HashSet<String> = cases.iter().map(|case| format!("{case:?}")).collect();
            assert_eq!(named.len(), cases.len(), "a case is there twice");
            for point in POINTS {
                for scenario in Scenario::ALL {
                    let dies = cases.iter().any(|case| case.point == point.name && case.scenario == scenario);
                    let missing = point.missing(*database, scenario);
                    assert_ne!(dies, missing.is_some(), "{} of {scenario:?}: {missing:?}", point.name);
                }
            }
        }
    }
}
