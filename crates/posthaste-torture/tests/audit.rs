//! The record on real databases: what the library does to leases is recorded as it happened, nothing that it does breaks a
//! rule, and what somebody else does behind its back is found.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste::sink::Delivery;
use posthaste::store::{Claim, Ending, Filter, Keep, Mode, Purge, Settlement, Store, WorkerId, connect};
use posthaste::{Event, Failure, Outbox, Relay};
use posthaste_torture::audit::{Table, collect, install};
use posthaste_torture::checker::{Rules, check};
use posthaste_torture::history::{Change, History, Leased, Record, State, Writer};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::servers::setting;

const MINUTE: Duration = Duration::from_secs(60);
const TOPIC: &str = "number.counted.v1";
const BUSINESS: &str = "
CREATE TABLE torture_business (
    id CHAR(36) NOT NULL PRIMARY KEY, outbox VARCHAR(64) NOT NULL, aggregate VARCHAR(64) NOT NULL,
    number BIGINT NOT NULL, hash BIGINT NOT NULL)";

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Postgres,
    MySql,
    MariaDb,
    Sqlite,
}

/// A schema, database or file of its own, and a directory for histories. It stays for a look when the test fails.
struct Place {
    kind: Kind,
    name: String,
    server: String,
    home: PathBuf,
}

impl Place {
    async fn new(kind: Kind) -> Self {
        let name = format!("t_{}", Uuid::now_v7().simple());
        let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&home).unwrap();
        let server = match kind {
            Kind::Postgres => setting("POSTHASTE_TEST_POSTGRES_URL"),
            Kind::MySql => setting("POSTHASTE_TEST_MYSQL_URL"),
            Kind::MariaDb => setting("POSTHASTE_TEST_MARIADB_URL"),
            Kind::Sqlite => String::new(),
        };
        let place = Self { kind, name, server, home };
        match kind {
            Kind::Postgres => place.on_server(format!("CREATE SCHEMA {}", place.name)).await,
            Kind::MySql | Kind::MariaDb => place.on_server(format!("CREATE DATABASE {}", place.name)).await,
            Kind::Sqlite => drop(std::fs::File::create(place.home.join("events.db")).unwrap()),
        }
        place.execute("relay-1", BUSINESS).await;
        place
    }

    /// The URL of a session of this name, where the database knows names.
    fn url(&self, session: &str) -> String {
        let Self { name, server, home, .. } = self;
        match self.kind {
            Kind::Postgres => format!("{server}?options=-csearch_path%3D{name}&application_name={session}"),
            Kind::MySql | Kind::MariaDb => format!("{}/{name}", server.rsplit_once('/').unwrap().0),
            Kind::Sqlite => format!("sqlite://{}", home.join("events.db").display()),
        }
    }

    async fn on_server(&self, sql: String) {
        self.execute_at(&self.server, sql).await;
    }

    async fn execute(&self, session: &str, sql: &str) {
        self.execute_at(&self.url(session), sql.to_owned()).await;
    }

    async fn execute_at(&self, url: &str, sql: String) {
        let sql = AssertSqlSafe(sql);
        let executed = match self.kind {
            Kind::Postgres => PgConnection::connect(url).await.unwrap().execute(sql).await.map(drop),
            Kind::MySql | Kind::MariaDb => {
                MySqlConnection::connect(url).await.unwrap().execute(sql).await.map(drop)
            }
            Kind::Sqlite => SqliteConnection::connect(url).await.unwrap().execute(sql).await.map(drop),
        };
        executed.unwrap();
    }

    /// A table whose changes are recorded.
    async fn table(&self, name: &str, mode: Mode) -> Arc<dyn Store> {
        let store = connect(&self.url("relay-1"), name).await.unwrap();
        store.migrate_up_as(mode).await.unwrap();
        install(&self.url("nobody"), &[self.named(name)]).await.unwrap();
        store
    }

    fn named(&self, name: &str) -> Table {
        Table { name: name.to_owned(), stream: name == "stream" }
    }

    /// What the record says by now.
    async fn history(&self, table: &str) -> History {
        let directory = self.home.join(Uuid::now_v7().to_string());
        std::fs::create_dir(&directory).unwrap();
        let writer = Writer::open(&directory, "audit").unwrap();
        collect(&self.url("nobody"), &[self.named(table)], &writer).await.unwrap();
        History::read(&directory).unwrap()
    }

    async fn drop(self) {
        match self.kind {
            Kind::Postgres => self.on_server(format!("DROP SCHEMA {} CASCADE", self.name)).await,
            Kind::MySql | Kind::MariaDb => self.on_server(format!("DROP DATABASE {}", self.name)).await,
            Kind::Sqlite => {}
        }
        std::fs::remove_dir_all(&self.home).unwrap();
    }
}

macro_rules! on_every_database {
    ($($test:ident),*) => {
        $(mod $test {
            use super::Kind;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$test(Kind::Postgres).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mysql() {
                super::$test(Kind::MySql).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mariadb() {
                super::$test(Kind::MariaDb).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$test(Kind::Sqlite).await;
            }
        })*
    };
}

on_every_database!(
    pr2_what_happens_to_a_queues_events_is_recorded,
    pr2_what_is_born_leased_is_recorded,
    pr2_what_happens_to_a_streams_events_and_lanes_is_recorded
);

fn event(number: i64, aggregate: &str) -> Event {
    Event::json(TOPIC, &number).unwrap().aggregate("counter", aggregate).build().unwrap()
}

fn changes_of(history: &History, of: impl Fn(&Leased) -> bool) -> Vec<&Change> {
    let changes = history.records.iter().filter_map(|record| match record {
        Record::Change(change) => Some(change),
        _ => None,
    });
    let mut changes: Vec<&Change> = changes.filter(|change| of(&change.of)).collect();
    changes.sort_by_key(|change| change.number);
    changes
}

/// What became of an event, in words.
fn life(history: &History, event: Uuid) -> Vec<String> {
    let said = |state: &State| match (&state.outcome, &state.holder) {
        _ if state.gone => "gone".to_owned(),
        (Some(outcome), _) => format!("{outcome} {}", state.attempts),
        (None, Some(_)) => format!("held {}", state.attempts),
        (None, None) => format!("free {}", state.attempts),
    };
    let changes = changes_of(history, |of| *of == Leased::Event(event));
    changes.iter().map(|change| format!("{} > {}", said(&change.before), said(&change.after))).collect()
}

/// What the rules say that are about the record alone: nobody wrote down who wrote and what arrived.
fn found(history: &History) -> Vec<String> {
    let streams = vec!["stream".to_owned()];
    let rules = Rules { max_attempts: 25, streams, ..Rules::default() };
    let about_leases = ["held", "lane", "parked", "attempts"];
    let violations = check(history, &rules).into_iter().filter(|v| about_leases.contains(&v.rule));
    violations.map(|violation| violation.to_string()).collect()
}

fn assert_one(found: &[String], words: &str) {
    assert!(matches!(found, [one] if one.contains(words)), "one with {words:?}, not {found:#?}");
}

fn outcomes(history: &History) -> Vec<(Uuid, Option<&str>)> {
    let rows = history.records.iter().filter_map(|record| match record {
        Record::Row(row) => Some((row.event, row.outcome.as_deref())),
        _ => None,
    });
    rows.collect()
}

async fn pr2_what_happens_to_a_queues_events_is_recorded(kind: Kind) {
    let place = Place::new(kind).await;
    let store = place.table("queue", Mode::Queue).await;
    let worker = WorkerId::unique();
    let claim = async |limit| {
        let claim = Claim::by(worker.clone()).limit(limit).lease(MINUTE);
        store.claim(&claim).await.unwrap().events.into_iter().map(|claimed| claimed.lease).collect::<Vec<_>>()
    };
    let settle = async |settlement: Settlement, keep| {
        assert_eq!(store.settle(&[settlement], keep).await.unwrap().written, 1);
    };

    store.insert(&[1, 2, 3].map(|number| event(number, "a"))).await.unwrap();
    let leases = claim(3).await;
    let [purged, deleted, replayed] = &leases[..] else { panic!("three leases") };
    assert!(store.extend(&leases, 2 * MINUTE).await.unwrap().lost.is_empty());
    settle(Settlement::delivered(purged.clone()), Keep::Delivered).await;
    settle(Settlement::retry(deleted.clone(), Duration::ZERO, "not now"), Keep::Delivered).await;
    settle(Settlement::dead(replayed.clone(), "never"), Keep::Delivered).await;
    let again = claim(1).await;
    settle(Settlement::delivered(again[0].clone()), Keep::Nothing).await;
    let purge = Purge { ending: Ending::Delivered, older_than: Duration::ZERO, limit: 10 };
    assert_eq!(store.purge(purge).await.unwrap(), 1);
    assert_eq!(store.replay(&Filter::dead(), 10).await.unwrap(), 1);
    let again = claim(1).await;
    settle(Settlement::released(again[0].clone()), Keep::Delivered).await;

    let history = place.history("queue").await;
    let [purged, deleted, replayed] = [purged, deleted, replayed].map(posthaste::store::Lease::id);
    let begins = ["free 0 > held 1", "held 1 > held 1"];
    let lives = |ends: &[&'static str]| [&begins, ends].concat();
    assert_eq!(life(&history, purged), lives(&["held 1 > delivered 1", "delivered 1 > gone"]));
    assert_eq!(life(&history, deleted), lives(&["held 1 > free 1", "free 1 > held 2", "held 2 > gone"]));
    let replay = ["held 1 > dead 1", "dead 1 > free 0", "free 0 > held 1", "held 1 > free 0"];
    assert_eq!(life(&history, replayed), lives(&replay));
    assert_eq!(outcomes(&history), [(replayed, None)]);
    let session = match kind {
        Kind::Postgres => "relay-1",
        Kind::MySql | Kind::MariaDb => "posthaste",
        Kind::Sqlite => "",
    };
    let changes = changes_of(&history, |_| true);
    assert!(changes.iter().all(|change| change.session == session && change.table == "queue"));
    let claimed = changes[0];
    let lease = claimed.after.until.unwrap() - claimed.at;
    assert!((lease - 60_000_000).abs() < 5_000_000, "{lease} µs");
    assert!((claimed.at - posthaste_torture::history::now()).abs() < 60_000_000, "{}", claimed.at);
    assert_eq!(found(&history), Vec::<String>::new());

    // Who settles what nobody holds, and, where sessions are known, what another holds.
    place.execute("relay-2", "UPDATE queue SET outcome = 'delivered'").await;
    assert_one(&found(&place.history("queue").await), "it became delivered while nobody held it");
    if kind == Kind::Postgres {
        place.execute("relay-1", "TRUNCATE torture_audit").await;
        store.insert(&[event(4, "a")]).await.unwrap();
        claim(1).await;
        place
            .execute(
                "relay-2",
                "UPDATE queue SET outcome = 'delivered', locked_by = NULL WHERE outcome IS NULL",
            )
            .await;
        assert_one(&found(&place.history("queue").await), "relay-2 made it delivered while");
    }
    store.close().await;
    place.drop().await;
}

/// Waits for what a handler has told.
async fn told(telling: &mut mpsc::UnboundedReceiver<Uuid>) -> Uuid {
    tokio::time::timeout(MINUTE, telling.recv()).await.unwrap().unwrap()
}

async fn pr2_what_is_born_leased_is_recorded(kind: Kind) {
    let place = Place::new(kind).await;
    let store = place.table("queue", Mode::Queue).await;
    let (tell, mut telling) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery| {
        let told = tell.send(delivery.event.id()).map_err(Failure::retry);
        async move { told }
    };
    macro_rules! run {
        ($outbox:expr) => {{
            let outbox = $outbox.table("queue").build().unwrap();
            // Nothing is claimed meanwhile.
            let relay =
                outbox.relay().handler(handler).poll_interval(Duration::from_secs(20)).start().await.unwrap();
            let mut tx = outbox.begin().await.unwrap();
            let hot = outbox.enqueue(&mut tx, event(1, "a")).await.unwrap().id;
            tx.commit().await.unwrap();
            assert_eq!(told(&mut telling).await, hot);
            let mut tx = outbox.begin().await.unwrap();
            outbox.enqueue(&mut tx, event(2, "a")).await.unwrap();
            tx.rollback().await.unwrap();
            relay.stop().await;
            hot
        }};
    }
    let url = place.url("producer-1");
    let hot = match kind {
        Kind::Postgres => run!(Outbox::postgres(sqlx::PgPool::connect(&url).await.unwrap())),
        Kind::MySql | Kind::MariaDb => run!(Outbox::mysql(sqlx::MySqlPool::connect(&url).await.unwrap())),
        Kind::Sqlite => run!(Outbox::sqlite(sqlx::SqlitePool::connect(&url).await.unwrap())),
    };
    let history = place.history("queue").await;
    assert_eq!(life(&history, hot), ["gone > held 1", "held 1 > delivered 1"]);
    assert_eq!(outcomes(&history), [(hot, Some("delivered"))]);
    let changes = changes_of(&history, |_| true);
    assert_eq!(changes.len(), 2, "what was rolled back is not recorded");
    assert!(kind != Kind::Postgres || changes.iter().all(|change| change.session == "producer-1"));
    assert_eq!(found(&history), Vec::<String>::new());
    store.close().await;
    place.drop().await;
}

async fn pr2_what_happens_to_a_streams_events_and_lanes_is_recorded(kind: Kind) {
    let place = Place::new(kind).await;
    let store = place.table("stream", Mode::stream(2).unwrap()).await;
    let events = [event(1, "a"), event(2, "a"), event(3, "b"), event(4, "c")];
    let [one, fails, three, rejected] = events.each_ref().map(Event::id);
    store.insert(&events).await.unwrap();

    let (tell, mut telling) = mpsc::unbounded_channel();
    let failed = Arc::new(AtomicBool::new(false));
    let handler = move |delivery: Delivery| {
        let id = delivery.event.id();
        let outcome = if id == rejected {
            Err(Failure::reject("never"))
        } else if id == fails && !failed.swap(true, Ordering::Relaxed) {
            Err(Failure::retry_after(Duration::ZERO, "not now"))
        } else {
            tell.send(id).map_err(Failure::retry)
        };
        async move { outcome }
    };
    let relay = Relay::on(Arc::clone(&store)).handler(handler).start().await.unwrap();
    let mut delivered = [told(&mut telling).await, told(&mut telling).await, told(&mut telling).await];
    delivered.sort_unstable();
    assert_eq!(delivered, [one, fails, three]);
    while store.get(rejected).await.unwrap().unwrap().status != posthaste::store::Status::Dead {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;

    let history = place.history("stream").await;
    assert_eq!(found(&history), Vec::<String>::new());
    let mut rows = outcomes(&history);
    rows.sort_unstable();
    let [said, dead] = ["delivered", "dead"].map(Some);
    assert_eq!(rows, [(one, said), (fails, said), (three, said), (rejected, dead)]);

    // Of an event that is tried in its turn there is nothing to record on PostgreSQL; elsewhere its row is marked.
    let marked: &[&str] = if kind == Kind::Postgres { &[] } else { &["held 0 > delivered 0"] };
    assert_eq!(life(&history, one), marked);
    assert_eq!(life(&history, three), marked);
    let parked: Vec<String> = life(&history, fails);
    for step in ["gone > held 1", "held 1 > held 2", "held 2 > gone"] {
        assert!(parked.iter().any(|change| change == step), "{step} in {parked:?}");
    }
    let died = life(&history, rejected);
    assert!(died.iter().any(|change| change == "gone > dead 1"), "{died:?}");

    let lanes = changes_of(&history, |of| matches!(of, Leased::Lane(_)));
    for lane in [0, 1] {
        let of_it: Vec<&&Change> = lanes.iter().filter(|change| change.of == Leased::Lane(lane)).collect();
        let first = of_it.first().unwrap();
        assert!(first.before.holder.is_none() && first.after.holder.is_some(), "{first:?}");
        assert!(first.after.fence > first.before.fence && first.after.until > Some(first.at), "{first:?}");
        let last = of_it.last().unwrap();
        assert!(last.before.holder.is_some() && last.after.holder.is_none(), "{last:?}");
    }
    assert!(lanes.iter().any(|change| change.after.position > change.before.position), "{lanes:?}");
    assert!(kind != Kind::Postgres || lanes.iter().all(|change| change.session == "relay-1"));

    // Who takes a lane without a new fence.
    place.execute("relay-2", "UPDATE stream_lanes SET owner = 'another' WHERE lane = 1").await;
    assert_one(&found(&place.history("stream").await), "another took it, and its fence did not grow");

    // What happens to an event is recorded also where its lane is gone.
    place.execute("relay-1", "DELETE FROM stream_lanes").await;
    place.execute("relay-1", "UPDATE stream_parked SET attempts = 7").await;
    let died = life(&place.history("stream").await, rejected);
    assert_eq!(died.last().unwrap(), "dead 1 > dead 7");
    store.close().await;
    place.drop().await;
}
