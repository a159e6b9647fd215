//! The databases under test behind one type. Adding a database is adding a constructor here and its name to
//! the macros below.
//!
//! Each test has a schema, database or file of its own, dropped when it succeeds and left for a look when it
//! fails. A server that is not there fails the test: nothing is skipped.

pub mod database;
pub mod servers;
pub mod statements;
pub mod transaction;

pub use database::{Db, Kind, Setup};

use std::time::Duration;

use posthaste::store::{Claim, Claimed, WorkerId};
use posthaste::{Event, EventBuilder};

/// Makes a test of each function on every database, and in memory: `async fn(&Db)`.
macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, with_db: postgres Postgres, mysql MySql, sqlite Sqlite, memory Memory);)*
    };
}

/// Makes a test of each function on every database that speaks SQL: `async fn(&Db)`.
macro_rules! conformance_sql {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, with_db: postgres Postgres, mysql MySql, sqlite Sqlite);)*
    };
}

/// The same for functions that make their database themselves: `async fn(Kind)`.
macro_rules! conformance_by_kind {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, by_kind: postgres Postgres, mysql MySql, sqlite Sqlite, memory Memory);)*
    };
}

/// The same without memory: `async fn(Kind)`.
macro_rules! conformance_sql_by_kind {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, by_kind: postgres Postgres, mysql MySql, sqlite Sqlite);)*
    };
}

macro_rules! databases {
    ($test:ident, $way:ident: $($name:ident $kind:ident),*) => {
        mod $test {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    databases!(@$way $test, $crate::harness::Kind::$kind);
                }
            )*
        }
    };
    (@with_db $test:ident, $kind:expr) => {
        let db = $crate::harness::Db::new($kind).await;
        super::$test(&db).await;
        db.drop_everything().await;
    };
    (@by_kind $test:ident, $kind:expr) => {
        super::$test($kind).await;
    };
}

/// An event with this number as its payload.
pub fn event(topic: &str, n: u64) -> EventBuilder {
    Event::json(topic, &n).unwrap()
}

/// A worker of its own.
pub fn worker() -> WorkerId {
    WorkerId::unique()
}

pub const MINUTE: Duration = Duration::from_secs(60);

impl Db {
    /// Commits these numbers as events of one topic; answers with their ids.
    pub async fn enqueue_numbers(&self, topic: &str, numbers: std::ops::Range<u64>) -> Vec<uuid::Uuid> {
        let events: Vec<Event> = numbers.map(|n| event(topic, n).build().unwrap()).collect();
        let mut tx = self.begin().await;
        let answers = tx.enqueue_all(self, events).await.unwrap();
        tx.commit().await;
        answers.into_iter().map(|answer| answer.id).collect()
    }

    /// Claims up to this many for a worker, for a minute.
    pub async fn claim(&self, worker: &WorkerId, limit: u32) -> Vec<Claimed> {
        self.store().claim(&Claim::by(worker.clone()).limit(limit).lease(MINUTE)).await.unwrap().events
    }
}
