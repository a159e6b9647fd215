//! PostgreSQL: transactions that stay open hold up nobody else's events, a delivered event costs no row write, and what
//! was delivered long ago and cannot be cleaned up costs nothing.
//!
//! Rows of the contract: SM1, SM3.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use posthaste::sink::{Delivery, Outcome, Sink};
use posthaste::store::{Keep, Mode};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection};
use tokio::sync::watch;

use super::fleet::Fleet;
use super::history::{Fact, History, Latencies};
use super::producers::{event, steady};
use super::{SECOND, done, stream};
use crate::harness::database::POSTGRES_URL;
use crate::harness::owner::Owner;
use crate::harness::servers::setting;
use crate::harness::{Db, Kind, MINUTE, PrivateServer, Setup, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm3_open_transactions_hold_up_nobody() {
    open_transactions(4 * SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes"]
async fn sm3_transactions_that_are_open_for_long_hold_up_nobody() {
    open_transactions(30 * SECOND).await;
}

/// A connection to a database of the cluster, with a transaction that has a number of its own.
async fn open(options: PgConnectOptions) -> PgConnection {
    let mut connection = options.connect().await.unwrap();
    connection.execute("BEGIN").await.unwrap();
    connection.execute("SELECT pg_current_xact_id()").await.unwrap();
    connection
}

async fn open_transactions(long: Duration) {
    let db = stream(Kind::Postgres, 1).await;
    let history = History::default();
    let fleet = Fleet::start(&db, &history, 1).await;
    let others = async || -> Latencies {
        let began = steady(&db, &history, "other-", 200, long).await;
        until("they are delivered", async || {
            history.deliveries() >= history.commits() - history.commits_of("held")
        })
        .await;
        history.latencies(began, |aggregate| aggregate.starts_with("other-"))
    };
    // Prepared statements, connections, the processor's clock.
    steady(&db, &history, "other-", 200, SECOND).await;
    let alone = others().await;
    println!("alone: {alone}");
    let mut fared = Vec::new();

    // One that has written to the stream.
    let held = Fact::new("held", 1);
    let held_event = event("order.changed", &held);
    let id = held_event.id();
    let mut tx = db.begin().await;
    tx.enqueue(&db, held_event).await.unwrap();
    fared.push(("beside one with an event", others().await));
    assert!(!history.is_delivered(id));
    tx.commit().await;
    let began = Instant::now();
    history.committed([(id, held)]);
    until("the held one arrives", async || history.is_delivered(id)).await;
    println!("it arrived {:?} after its commit", began.elapsed());
    assert!(began.elapsed() < SECOND);

    // One that has not.
    let place: PgConnectOptions = setting(POSTGRES_URL).parse().unwrap();
    let open_one = open(place.clone()).await;
    fared.push(("beside one without", others().await));
    open_one.close().await.unwrap();

    // One in another database of the cluster.
    let elsewhere = format!("{}_elsewhere", db.place());
    db.execute(format!("CREATE DATABASE {elsewhere}")).await.unwrap();
    let open_one = open(place.database(&elsewhere)).await;
    fared.push(("beside one elsewhere", others().await));
    open_one.close().await.unwrap();
    db.execute(format!("DROP DATABASE {elsewhere}")).await.unwrap();

    fleet.stop().await;
    history.assert_clean();
    for (how, latencies) in fared {
        println!("{how}: {latencies}");
        assert!(latencies.count() > 100, "{how}: {latencies}");
        latencies.assert_like(&alone, how);
    }
    done(db).await;
}

/// A sink that only counts.
#[derive(Clone)]
struct Counter(std::sync::Arc<watch::Sender<u64>>);

impl Counter {
    fn new() -> Self {
        Self(std::sync::Arc::new(watch::Sender::new(0)))
    }

    async fn reaches(&self, count: u64) {
        let mut counted = self.0.subscribe();
        let all = counted.wait_for(|counted| *counted >= count);
        if tokio::time::timeout(3 * MINUTE, all).await.is_err() {
            panic!("{} of {count} were delivered", *self.0.borrow());
        }
    }
}

#[async_trait]
impl Sink for Counter {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        self.0.send_modify(|counted| *counted += batch.len() as u64);
        vec![Outcome::Delivered; batch.len()]
    }
}

/// Writes events of a thousand aggregates, in transactions of ten thousand.
async fn write(db: &Db, events: u64) {
    for part in 0..events.div_ceil(10_000) {
        let many = (events - part * 10_000).min(10_000);
        let sql = format!(
            "INSERT INTO outbox (topic, aggregate_type, aggregate_id, payload)
             SELECT 'order.changed', 'order', (n % 1000)::text, to_json(n) FROM generate_series(1, {many}) n"
        );
        db.execute(sql).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm3_a_delivered_event_costs_no_row_write() {
    const EVENTS: u64 = 100_000;
    let db = stream(Kind::Postgres, 8).await;
    let counter = Counter::new();
    let fleet = Fleet::with(&db, 2, |relay, _| relay.sink(counter.clone())).await;
    write(&db, EVENTS).await;
    counter.reaches(EVENTS).await;
    fleet.stop().await;
    let asked =
        |what: &str| format!("SELECT {what} FROM pg_stat_user_tables WHERE relid = 'outbox'::regclass");
    until("the inserts are counted", async || db.number(asked("n_tup_ins")).await == EVENTS as i64).await;
    assert_eq!(db.number(asked("n_tup_upd + n_tup_del")).await, 0);
    done(db).await;
}

/// How many events are read in a second, with all that a page costs the database, and how many a relay delivers.
#[derive(Default)]
struct Rates {
    read: Vec<f64>,
    delivered: Vec<f64>,
}

impl Rates {
    async fn measure(&mut self, db: &Db, events: u64) {
        write(db, events).await;
        let mut owner = Owner::of(db).await;
        let (began, mut found) = (Instant::now(), 0);
        while found < events {
            let page = owner.read(1000).await;
            found += page.rows.len() as u64;
            owner.reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
        }
        self.read.push(events as f64 / began.elapsed().as_secs_f64());
        owner.stream.release(&owner.holds).await.unwrap();
        owner.stream.leave(&owner.worker).await.unwrap();

        write(db, events).await;
        let counter = Counter::new();
        let began = Instant::now();
        let fleet = Fleet::with(db, 1, |relay, _| relay.sink(counter.clone())).await;
        counter.reaches(events).await;
        self.delivered.push(events as f64 / began.elapsed().as_secs_f64());
        fleet.stop().await;
    }
}

fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// The rates of reading and delivering on a table with kept events and a transaction open since before them, in relation to
/// a fresh table's in a database without it. By turns, as the machine has its moods.
async fn pinned(kept: u64, events: u64, tries: usize) -> (f64, f64) {
    let server = PrivateServer::start(Kind::Postgres).await;
    let lanes = || Setup { mode: Some(Mode::stream(8).unwrap()), ..Setup::default() };
    let db = Arc::new(Db::on_with(&server, lanes()).await);
    let mut open_one = open(server.url().parse().unwrap()).await;
    open_one.execute(AssertSqlSafe("DECLARE pin CURSOR FOR SELECT 1")).await.unwrap();
    let counter = Counter::new();
    let fleet = Fleet::with(&db, 1, |relay, _| relay.sink(counter.clone())).await;
    write(&db, kept).await;
    counter.reaches(kept).await;
    fleet.stop().await;
    let (mut usual, mut then) = (Rates::default(), Rates::default());
    for n in 0..tries {
        let fresh = Arc::new(Db::beside(&server, &format!("fresh_{n}"), lanes()).await);
        usual.measure(&fresh, events).await;
        done(fresh).await;
        then.measure(&db, events).await;
    }
    open_one.close().await.unwrap();
    println!("on a fresh table: read {:.0?}, delivered {:.0?} in a second", usual.read, usual.delivered);
    println!("with {kept} kept and a pinned xmin: read {:.0?}, delivered {:.0?}", then.read, then.delivered);
    let read = median(&then.read) / median(&usual.read);
    let delivered = median(&then.delivered) / median(&usual.delivered);
    println!("medians: read {read:.2}, delivered {delivered:.2}");
    done(db).await;
    (read, delivered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm3_kept_events_and_a_pinned_xmin_cost_little() {
    let (read, _) = pinned(60_000, 20_000, 2).await;
    assert!(read > 0.5, "{read:.2}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes, and the machine for itself"]
async fn sm3_a_million_kept_events_and_a_pinned_xmin_cost_nothing() {
    let (read, delivered) = pinned(1_000_000, 100_000, 5).await;
    assert!(read > 0.9 && delivered > 0.9, "{read:.2}, {delivered:.2}");
}
