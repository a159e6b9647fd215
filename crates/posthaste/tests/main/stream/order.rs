//! The order suite: whatever relays do, and whatever is done to them, the events of an aggregate arrive in the order of
//! their commits, none lost and none invented.
//!
//! Rows of the contract: SM1, PR2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste::sink::Delivery;
use posthaste::store::Status;
use posthaste::{Backoff, Handler};

use super::child::{Child, Nursery, Temper};
use super::fleet::Fleet;
use super::history::{Fact, History, Witness, flaky};
use super::producers::{self, ENDLESS, Plan, Writing, prepare, versions};
use super::{SECOND, done, stream};
use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE};

/// Of each of the six ways; 50 000 on each database.
const EVENTS: usize = 8334;

macro_rules! ways {
    ($($name:ident: $relays:literal relays, $lanes:literal lanes;)*) => {
        $(
            async fn $name(kind: Kind) {
                relays_come_and_go(kind, $relays, $lanes).await;
            }
        )*
        conformance_sql_by_kind!($($name),*);
    };
}

ways! {
    sm1_order_with_one_relay_and_one_lane: 1 relays, 1 lanes;
    sm1_order_with_two_relays_and_one_lane: 2 relays, 1 lanes;
    sm1_order_with_four_relays_and_one_lane: 4 relays, 1 lanes;
    sm1_order_with_one_relay_and_eight_lanes: 1 relays, 8 lanes;
    sm1_order_with_two_relays_and_eight_lanes: 2 relays, 8 lanes;
    sm1_order_with_four_relays_and_eight_lanes: 4 relays, 8 lanes;
}

conformance_sql_by_kind!(
    sm1_other_aggregates_do_not_wait_for_a_slow_one,
    sm1_order_while_events_fail_and_relays_come_and_go,
    sm1_order_while_transactions_stay_open_for_seconds,
    sm1_order_while_relays_are_killed,
    sm1_order_while_relays_are_paused_past_their_lease,
);

/// Relays stop and start again at random while producers write.
async fn relays_come_and_go(kind: Kind, relays: usize, lanes: u16) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let db = stream(kind, lanes).await;
    prepare(&db).await;
    let history = History::default();
    let fleet = Fleet::start(&db, &history, relays).await;
    let writing = producers::run(&db, &history, Plan::busy(kind, seed, EVENTS));
    fleet.restless(seed, writing).await;
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    let verdict = history.assert_clean();
    // Nobody was cut off: a clean stop repeats nothing.
    assert_eq!(verdict.repeats, 0);
    done(db).await;
}

/// The same, where some events fail at first: what is behind them is parked when relays stop and start.
async fn sm1_order_while_events_fail_and_relays_come_and_go(kind: Kind) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let db = stream(kind, 2).await;
    prepare(&db).await;
    let history = History::default();
    let millis = Duration::from_millis;
    let fleet = Fleet::with(&db, 3, |relay, n| {
        relay
            .handler(Witness::new(&history, n).taking(millis(1)).answering(flaky))
            .retry(Backoff::exponential(millis(20), millis(100)).max_attempts(20))
            .batch(50)
    })
    .await;
    let plan = Plan { rest: millis(2), ..Plan::busy(kind, seed, 4000) };
    fleet.restless(seed, producers::run(&db, &history, plan)).await;
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    history.assert_clean();
    assert_eq!((db.count(Status::Pending).await, db.count(Status::Dead).await), (0, 0));
    done(db).await;
}

/// They commit far below what was read since, with pages of a few events.
async fn sm1_order_while_transactions_stay_open_for_seconds(kind: Kind) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let db = stream(kind, 2).await;
    prepare(&db).await;
    let history = History::default();
    let fleet =
        Fleet::with(&db, 1, |relay, n| relay.handler(Witness::new(&history, n)).batch(5).capacity(20)).await;
    // SQLite has one writer: everybody waits for who stays.
    let (events, long) = if kind == Kind::Sqlite { (600, 1) } else { (3000, 2) };
    producers::run(&db, &history, Plan { long, ..Plan::busy(kind, seed, events) }).await;
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    let verdict = history.assert_clean();
    assert_eq!(verdict.repeats, 0);
    done(db).await;
}

/// In the same lane, past many pages.
async fn sm1_other_aggregates_do_not_wait_for_a_slow_one(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let fleet = Fleet::with(&db, 1, |relay, n| {
        let witness = Witness::new(&history, n);
        relay.batch(100).handler(move |delivery: Delivery| {
            let witness = witness.clone();
            async move {
                if Fact::of(&delivery) == Fact::new("slow", 1) {
                    tokio::time::sleep(6 * SECOND).await;
                }
                witness.handle(&delivery).await
            }
        })
    })
    .await;
    let began = Instant::now();
    versions(&db, &history, "slow", 1..=300).await;
    for part in 0..20 {
        for aggregate in ["a", "b", "c", "d"] {
            versions(&db, &history, aggregate, part * 50 + 1..=part * 50 + 50).await;
        }
    }
    history.wait_for(4000, MINUTE).await;
    println!("the others were delivered after {:?}", began.elapsed());
    assert!(history.deliveries_of("slow") == 0 && began.elapsed() < 6 * SECOND, "{:?}", began.elapsed());
    history.wait_for(4300, MINUTE).await;
    fleet.stop().await;
    let verdict = history.assert_clean();
    assert_eq!(verdict.repeats, 0);
    done(db).await;
}

/// Children, each with a number that no other has had.
struct Herd {
    nursery: Nursery,
    temper: Temper,
    children: Vec<Child>,
    born: usize,
}

impl Herd {
    async fn new(db: &Db, history: &History, count: usize) -> Self {
        let temper = Temper { flaky: true, ..Temper::default() };
        let mut herd = Self { nursery: Nursery::new(db, history), temper, children: Vec::new(), born: 0 };
        for _ in 0..count {
            herd.add().await;
        }
        herd
    }

    async fn add(&mut self) {
        let child = self.nursery.child(self.born, &self.temper).await;
        self.born += 1;
        self.children.push(child);
    }

    fn close(self) {
        self.children.into_iter().for_each(Child::stop);
        self.nursery.close();
    }
}

async fn sm1_order_while_relays_are_killed(kind: Kind) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let db = stream(kind, 4).await;
    prepare(&db).await;
    let history = History::default();
    let mut herd = Herd::new(&db, &history, 2).await;
    // Where the database cannot tell that a relay is gone, each time costs a lease.
    let (times, events) = if kind == Kind::Sqlite { (2, 3000) } else { (8, 6000) };
    let plan = Plan { writers: 4, rest: 5 * SECOND / 1000, ..Plan::busy(kind, seed, events) };
    let writing = Writing::start(&db, &history, plan);
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..times {
        // In the middle of something; no more than these are sure to come.
        let next = history.deliveries() + rng.usize(20..200);
        history.wait_for(next.min(events), MINUTE).await;
        let mut victim = herd.children.swap_remove(rng.usize(..herd.children.len()));
        victim.kill();
        herd.add().await;
        if writing.is_fulfilled() {
            break;
        }
    }
    writing.fulfilled().await;
    history.wait_for(history.commits(), MINUTE).await;
    herd.close();
    let verdict = history.assert_clean();
    // What was under way when one was killed: at most its pages.
    assert!(verdict.repeats < (times + 1) * 1000, "{verdict}");
    done(db).await;
}

async fn sm1_order_while_relays_are_paused_past_their_lease(kind: Kind) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let db = stream(kind, 4).await;
    prepare(&db).await;
    let history = History::default();
    let herd = Herd::new(&db, &history, 2).await;
    let plan = Plan { writers: 4, rest: 100 * SECOND / 1000, ..Plan::busy(kind, seed, ENDLESS) };
    let writing = Writing::start(&db, &history, plan);
    for child in &herd.children {
        history.wait_for(history.deliveries() + 100, MINUTE).await;
        let before = history.begun_by();
        child.pause(&db).await;
        tokio::time::sleep(13 * SECOND).await;
        child.resume();
        println!("child {} was paused after {before:?}, until {:?}", child.number(), history.begun_by());
        // Both are there again before it is the other's turn.
        tokio::time::sleep(3 * SECOND).await;
    }
    writing.enough().await;
    history.wait_for(history.commits(), MINUTE).await;
    herd.close();
    history.assert_clean();
    done(db).await;
}

/// What a stream must not be: a reader that remembers only the greatest number it has seen passes over what commits
/// late. The same producers and the same checker find it guilty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm1_a_reader_by_bare_numbers_is_found_guilty() {
    let db = Arc::new(Db::new(Kind::Postgres).await);
    prepare(&db).await;
    let history = History::default();
    let writing = {
        let (db, history) = (Arc::clone(&db), history.clone());
        tokio::spawn(async move { producers::run(&db, &history, Plan::busy(Kind::Postgres, 1, 3000)).await })
    };
    let Handle::Postgres(sql) = db.handle() else { unreachable!() };
    let next = "SELECT seq, id, aggregate_id, (payload->>'version')::bigint FROM outbox
                 WHERE seq > $1 ORDER BY seq LIMIT 500";
    let mut last = 0;
    loop {
        let ended = writing.is_finished();
        let rows: Vec<(i64, uuid::Uuid, String, i64)> =
            sqlx::query_as(next).bind(last).fetch_all(&sql.pool).await.unwrap();
        for (seq, id, aggregate, version) in &rows {
            let fact = Fact::new(aggregate, *version as u64);
            history.begun(*id, fact.clone(), 1, 0);
            history.ended(*id, fact, true, 0);
            last = *seq;
        }
        if ended && rows.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    writing.await.unwrap();
    let verdict = history.verdict();
    println!("{verdict}");
    assert!(!verdict.lost.is_empty() && verdict.out_of_order > 0 && verdict.invented.is_empty(), "{verdict}");
    done(db).await;
}
