//! One active relay at a time, and who takes over from it.
//!
//! Rows of the contract: RE7.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::relay::RelayBuilder;
use posthaste::sink::Delivery;
use posthaste::store::{Lock, Status};
use posthaste::{Failure, Handler, Relay};

use crate::harness::{Db, Kind, Recorder, until, worker};

conformance_sql!(re7_a_relay_that_stops_is_replaced_and_only_one_dispatches);

conformance_servers!(
    re7_a_relay_that_is_cut_off_is_replaced_and_only_one_dispatches,
    re7_a_relay_that_is_cut_off_while_nothing_is_leased_dispatches_nothing_beside_the_next,
    re7_a_relay_that_is_cut_off_while_it_stands_by_stands_by_again,
    re7_a_relay_that_is_cut_off_while_it_drains_makes_way_for_the_next,
);

streams!(
    re7_a_relay_that_stops_is_replaced_and_only_one_dispatches;
    servers: re7_a_relay_that_is_cut_off_is_replaced_and_only_one_dispatches,
    re7_a_relay_that_is_cut_off_while_nothing_is_leased_dispatches_nothing_beside_the_next,
    re7_a_relay_that_is_cut_off_while_it_stands_by_stands_by_again,
    re7_a_relay_that_is_cut_off_while_it_drains_makes_way_for_the_next,
);

const EVENTS: usize = 2000;

/// Who dispatches: relays that did so at the same time are found out.
#[derive(Clone)]
struct Stage {
    state: Arc<Mutex<State>>,
    recorder: Recorder,
}

#[derive(Default)]
struct State {
    on_it: [usize; 2],
    begun: [usize; 2],
    together: usize,
}

impl Stage {
    /// Dispatches that take long enough to meet the other's.
    fn new() -> Self {
        Self::taking(Duration::from_millis(50))
    }

    /// Dispatches that take this long.
    fn taking(long: Duration) -> Self {
        Self { state: Arc::default(), recorder: Recorder::default().taking(long) }
    }

    /// The handler of one of the two relays.
    fn handler(&self, who: usize) -> Actor {
        Actor { who, stage: self.clone() }
    }

    /// How many dispatches each has begun.
    fn begun(&self) -> [usize; 2] {
        self.state.lock().unwrap().begun
    }

    /// How many dispatches one has begun while the other had some under way.
    fn together(&self) -> usize {
        self.state.lock().unwrap().together
    }
}

struct Actor {
    who: usize,
    stage: Stage,
}

#[async_trait]
impl Handler for Actor {
    async fn handle(&self, delivery: &Delivery) -> Result<(), Failure> {
        let _here = Entrance::new(self.who, &self.stage);
        self.stage.recorder.handle(delivery).await
    }
}

/// Ends also with a dispatch that is cut short.
struct Entrance {
    who: usize,
    state: Arc<Mutex<State>>,
}

impl Entrance {
    fn new(who: usize, stage: &Stage) -> Self {
        let mut state = stage.state.lock().unwrap();
        state.on_it[who] += 1;
        state.begun[who] += 1;
        state.together += usize::from(state.on_it[1 - who] > 0);
        Self { who, state: Arc::clone(&stage.state) }
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.state.lock().unwrap().on_it[self.who] -= 1;
    }
}

/// Two relays that look often for something to do; the second has connections of its own, as another process
/// would.
async fn two_relays(db: &Db, stage: &Stage, batch: usize) -> [Relay; 2] {
    let start = |relay: RelayBuilder, who| {
        relay
            .handler(stage.handler(who))
            .single_active()
            .poll_interval(Duration::from_millis(50))
            .batch(batch)
            .drain_timeout(Duration::from_secs(8))
            .start()
    };
    let first = start(db.relay(), 0).await.unwrap();
    until("the first leads", async || first.status().leading).await;
    let second = start(Relay::on(db.second_store().await), 1).await.unwrap();
    assert!(!second.status().leading);
    [first, second]
}

/// Ends the active relay's session, and again if it is back before the other has the lock.
async fn cut_off_until_the_other_leads(db: &Db, other: &Relay) {
    until("the other has the lock", async || {
        let Some(leader) = db.leader().await else { return false };
        if db.session_of(&other.status().worker.unwrap()).await == Some(leader) {
            return true;
        }
        db.kill(leader).await;
        false
    })
    .await;
}

async fn re7_a_relay_that_stops_is_replaced_and_only_one_dispatches(db: &Db) {
    const EVENTS: usize = 20_000;
    let stage = Stage::taking(Duration::from_millis(2));
    let [first, second] = two_relays(db, &stage, 500).await;
    for part in 0..EVENTS as u64 / 1000 {
        db.enqueue_numbers("a", part * 1000..(part + 1) * 1000).await;
    }
    stage.recorder.wait_for(EVENTS / 4).await;
    let drained = first.stop().await;
    assert_eq!((drained.abandoned, drained.unsettled), (0, 0), "{drained:?}");
    let [by_first, by_second] = stage.begun();
    assert_eq!(by_second, 0, "it stood by");
    stage.recorder.wait_for(EVENTS).await;
    assert!(second.status().leading);
    assert_eq!(stage.begun(), [by_first, EVENTS - by_first], "nobody dispatched twice");
    second.stop().await;
    assert_eq!(db.count(Status::Delivered).await, EVENTS as u64);
    assert_eq!(stage.together(), 0);
    let mut session = db.store().session(&worker()).await.unwrap();
    assert!(session.try_lock(Lock::Leader).await.unwrap(), "after a stop the lock is free at once");
}

async fn re7_a_relay_that_is_cut_off_is_replaced_and_only_one_dispatches(db: &Db) {
    let stage = Stage::new();
    let [first, second] = two_relays(db, &stage, 20).await;
    db.enqueue_numbers("a", 0..1000).await;
    db.enqueue_numbers("a", 1000..EVENTS as u64).await;
    stage.recorder.wait_for(EVENTS / 10).await;
    cut_off_until_the_other_leads(db, &second).await;
    stage.recorder.wait_for(EVENTS).await;
    until("all is settled", async || db.count(Status::Delivered).await == EVENTS as u64).await;
    let [by_first, by_second] = stage.begun();
    assert!(by_second > 0, "the second took over");
    println!("{by_first} and {by_second} dispatches");
    assert_eq!(stage.together(), 0);
    assert!(second.status().leading && !first.status().leading);
    until("it stands by, content", async || first.status().database.is_none()).await;
    first.stop().await;
    second.stop().await;
}

/// It does not know yet that it is not the active one when something to do comes up.
async fn re7_a_relay_that_is_cut_off_while_nothing_is_leased_dispatches_nothing_beside_the_next(db: &Db) {
    let stage = Stage::new();
    let [first, second] = two_relays(db, &stage, 20).await;
    cut_off_until_the_other_leads(db, &second).await;
    db.enqueue_numbers("a", 0..300).await;
    stage.recorder.wait_for(300).await;
    println!("{:?} dispatches", stage.begun());
    assert_eq!(stage.together(), 0);
    first.stop().await;
    second.stop().await;
}

/// It has time to finish what runs, but not when another leads.
async fn re7_a_relay_that_is_cut_off_while_it_drains_makes_way_for_the_next(db: &Db) {
    let stage = Stage::taking(Duration::from_secs(8));
    let [first, second] = two_relays(db, &stage, 20).await;
    db.enqueue_numbers("a", 0..5).await;
    until("all have begun", async || stage.begun() == [5, 0]).await;
    let stopping = tokio::spawn(async move { first.stop().await });
    cut_off_until_the_other_leads(db, &second).await;
    stage.recorder.wait_for(5).await;
    let drained = stopping.await.unwrap();
    assert_eq!((drained.settled, drained.abandoned), (0, 5), "{drained:?}");
    assert_eq!((stage.begun(), stage.together()), ([5, 5], 0));
    second.stop().await;
}

async fn re7_a_relay_that_is_cut_off_while_it_stands_by_stands_by_again(db: &Db) {
    let [first, second] = two_relays(db, &Stage::new(), 20).await;
    let session = async || db.session_of(&second.status().worker.unwrap()).await;
    until("it stands by", async || session().await.is_some()).await;
    let cut_off = session().await.unwrap();
    assert!(db.kill(cut_off).await);
    until("it is back", async || session().await.is_some_and(|now| now != cut_off)).await;
    until("it is content", async || second.status().database.is_none()).await;
    assert!(first.status().leading && !second.status().leading);
    first.stop().await;
    until("it takes over", async || second.status().leading).await;
    second.stop().await;
}

/// A process that is gone cannot say so: on SQLite its lock lasts for ten seconds more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re7_a_relay_that_vanished_is_replaced_when_its_lock_ends() {
    let db = Db::new(Kind::Sqlite).await;
    let stage = Stage::new();
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, actor) = (db.url(), stage.handler(0));
    let starting = process.spawn(async move {
        let store = posthaste::store::connect(&url, "outbox").await.unwrap();
        Relay::on(store).handler(actor).single_active().start().await.unwrap()
    });
    let first = starting.await.unwrap();
    until("the first leads", async || first.status().leading).await;
    let second = db.relay().handler(stage.handler(1)).single_active().start().await.unwrap();
    db.enqueue_numbers("a", 0..500).await;
    stage.recorder.wait_for(100).await;
    process.shutdown_background();
    drop(first);

    let holder = "SELECT holder FROM posthaste_locks WHERE name = 'outbox.leader'";
    let gone = db.texts(holder).await;
    let mut session = db.store().session(&worker()).await.unwrap();
    assert!(!session.try_lock(Lock::Leader).await.unwrap(), "nobody knows that it is gone");
    assert!(!second.status().leading);
    db.execute("UPDATE posthaste_locks SET until = until - 10000000").await.unwrap();
    until("the second has the lock", async || db.texts(holder).await != gone).await;
    // What the first had leased comes up when its leases end.
    db.shift(Duration::from_secs(60)).await;
    stage.recorder.wait_for(500).await;
    until("all is settled", async || db.count(Status::Delivered).await == 500).await;
    assert!(second.status().leading);
    assert_eq!(stage.together(), 0);
    second.stop().await;
    db.drop_everything().await;
}
