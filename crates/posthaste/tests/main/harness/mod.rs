//! The databases under test behind one type. Adding a database is adding a constructor here and its name to
//! the macros below.
//!
//! Each test has a schema, database or file of its own, dropped when it succeeds and left for a look when it
//! fails. A server that is not there fails the test: nothing is skipped.

pub mod database;
pub mod faults;
pub mod log;
pub mod owner;
pub mod private;
pub mod process;
pub mod recorder;
pub mod servers;
pub mod spy;
pub mod statements;
pub mod transaction;

pub use database::{Db, Kind, Setup};
pub use owner::Owner;
pub use private::PrivateServer;
pub use recorder::Recorder;

use std::time::Duration;

use posthaste::store::{Claim, Claimed, WorkerId};
use posthaste::{Event, EventBuilder};
use posthaste_testkit::fuzz::Corpus;

/// Makes a test of each function on every database, and in memory: `async fn(&Db)`.
macro_rules! conformance {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, with_db: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite, memory Memory);)*
    };
}

/// Makes a test of each function on every database that speaks SQL: `async fn(&Db)`.
macro_rules! conformance_sql {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, with_db: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite);)*
    };
}

/// The same for functions that make their database themselves: `async fn(Kind)`.
macro_rules! conformance_by_kind {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite, memory Memory);)*
    };
}

/// The same without memory: `async fn(Kind)`.
macro_rules! conformance_sql_by_kind {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite);)*
    };
}

/// Makes a test of each function on every database that is a server, which knows who is connected: `async fn(&Db)`.
macro_rules! conformance_servers {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, with_db: postgres Postgres, mysql MySql, mariadb MariaDb);)*
    };
}

/// The same on those that are none: `async fn(&Db)`.
macro_rules! conformance_serverless {
    ($($test:ident),* $(,)?) => {
        $(databases!($test, with_db: sqlite Sqlite, memory Memory);)*
    };
}

/// Makes a test of each function on a stream in every database that has them: `async fn(&Db)`, as on a queue. Once in a
/// module; what makes its database itself, `async fn(Kind)`, is behind `by_kind:`, what is only for some of them behind
/// their names.
macro_rules! streams {
    ($($test:ident),* $(,)? $(; by_kind: $($by_kind:ident),* $(,)?)? $(; servers: $($servers:ident),* $(,)?)?) => {
        /// As on a queue.
        mod stream {
            $(databases!($test, with_stream: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite);)*
            $($(databases!($by_kind, stream_by_kind: postgres Postgres, mysql MySql, mariadb MariaDb, sqlite Sqlite);)*)?
            $($(databases!($servers, with_stream: postgres Postgres, mysql MySql, mariadb MariaDb);)*)?
        }
    };
}

/// Makes a test of each function of the module above on a stream with this many lanes, on every database that has
/// streams: `async fn(&Db)`.
macro_rules! as_on_a_queue {
    ($lanes:literal: $($test:ident),* $(,)?) => {
        $(async fn $test(kind: $crate::harness::Kind) {
            let mode = Some(posthaste::store::Mode::stream($lanes).unwrap());
            let setup = $crate::harness::Setup { mode, ..Default::default() };
            let db = $crate::harness::Db::with(kind, setup).await;
            super::$test(&db).await;
            db.drop_everything().await;
        })*
        conformance_sql_by_kind!($($test),*);
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
    (@with_stream $test:ident, $kind:expr) => {
        let db = $crate::harness::database::as_stream($crate::harness::Db::new($kind)).await;
        super::super::$test(&db).await;
        db.drop_everything().await;
    };
    (@stream_by_kind $test:ident, $kind:expr) => {
        $crate::harness::database::as_stream(super::super::$test($kind)).await;
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

/// Seeds of arbitrary input.
pub const CORPUS: Corpus = Corpus::of_crate(env!("CARGO_MANIFEST_DIR"));

pub const MINUTE: Duration = Duration::from_secs(60);

/// Asks until it is so, which is soon; the limit only ends a test that fails.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !is_so().await {
            // Else what is waited for would have to share its processor with the asking.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(MINUTE, asking).await.unwrap_or_else(|_| panic!("never so: {what}"));
}

impl Db {
    /// A relay of this database's outbox.
    pub fn relay(&self) -> posthaste::relay::RelayBuilder {
        match self.handle() {
            database::Handle::Postgres(sql) => sql.outbox.relay(),
            database::Handle::MySql(sql) => sql.outbox.relay(),
            database::Handle::Sqlite(sql) => sql.outbox.relay(),
            database::Handle::Memory(memory) => memory.outbox.relay(),
        }
    }

    /// How many events have this status.
    pub async fn count(&self, status: posthaste::store::Status) -> u64 {
        self.store().count(&posthaste::store::Filter::status(status), 1_000_000).await.unwrap().n
    }

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
