//! What a relay of a queue does, a relay of a stream does too: where it does so in its own way.
//!
//! Rows of the contract: EN6, RE6, RE10, RE11, RE12, SM1.

use std::sync::atomic::Ordering;
use std::time::Instant;

use posthaste::store::{Mode, Status, Store};
use posthaste::{Backoff, Failure, Relay};
use uuid::Uuid;

use super::history::{History, Witness};
use super::producers::versions;
use super::{SECOND, done, stream};
use crate::harness::database::Handle;
use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, MINUTE, Recorder, Setup, event, log, until};

conformance_sql_by_kind!(
    en6_in_a_stream_a_commit_is_a_wake_up_and_no_more,
    re10_a_stop_does_not_wait_for_a_retry,
    re11_what_was_claimed_by_a_claim_without_an_answer_is_delivered,
    re12_a_pass_leaves_alone_what_another_relay_owns,
    sm1_two_relays_of_one_process_share_a_stream,
    sm1_a_handler_may_take_longer_than_the_lanes_last,
);

databases!(sm1_an_idle_relay_asks_little_however_many_lanes, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);

/// Commits an event through the outbox's own transaction.
async fn begun(db: &Db, n: u64) -> Uuid {
    macro_rules! run {
        ($sql:expr) => {{
            let mut tx = $sql.outbox.begin().await.unwrap();
            let id = $sql.outbox.enqueue(&mut tx, event("a", n).aggregate("order", 1)).await.unwrap().id;
            tx.commit().await.unwrap();
            id
        }};
    }
    match db.handle() {
        Handle::Postgres(sql) => run!(sql),
        Handle::MySql(sql) => run!(sql),
        Handle::Sqlite(sql) => run!(sql),
        Handle::Memory(_) => panic!("memory has no streams"),
    }
}

/// It goes past nothing that was committed before it.
async fn en6_in_a_stream_a_commit_is_a_wake_up_and_no_more(kind: Kind) {
    let db = stream(kind, 4).await;
    let recorder = Recorder::default();
    let relay = db.relay().poll_interval(20 * SECOND).handler(recorder.clone()).start().await.unwrap();
    let mut ids = vec![begun(&db, 0).await];
    recorder.wait_for(1).await;
    for n in 1..=100 {
        ids.push(begun(&db, n).await);
        assert_eq!(relay.status().hot, 0);
    }
    let began = Instant::now();
    recorder.wait_for(101).await;
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
    assert_eq!(recorder.begun(), ids.into_iter().map(|id| (id, 1)).collect::<Vec<_>>());
    done(db).await;
}

async fn re10_a_stop_does_not_wait_for_a_retry(kind: Kind) {
    let db = stream(kind, 4).await;
    let recorder = Recorder::answering(|delivery| match delivery.attempt {
        1 => Err(Failure::retry_after(MINUTE, "later")),
        _ => Ok(()),
    });
    let id = begun(&db, 0).await;
    begun(&db, 1).await;
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    until("it is parked", async || db.store().get(id).await.unwrap().unwrap().attempts == 1).await;
    let began = Instant::now();
    assert!(relay.stop().await.is_clean());
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    let record = db.store().get(id).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts, recorder.begun().len()), (Status::Pending, 1, 1));
    assert_eq!(relay.run_once().await.unwrap(), Default::default());
    db.shift(2 * MINUTE).await;
    relay.start().await.unwrap();
    recorder.wait_for(1).await;
    assert_eq!(recorder.begun()[..2], [(id, 1), (id, 2)]);
    relay.stop().await;
    done(db).await;
}

/// The database has counted the attempts, and nobody knows of it.
async fn re11_what_was_claimed_by_a_claim_without_an_answer_is_delivered(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    for aggregate in ["a", "b", "c"] {
        versions(&db, &history, aggregate, 1..=20).await;
    }
    let spy = Spy::on(db.second_store().await);
    spy.lost_answers.store(10, Ordering::SeqCst);
    let witness = Witness::new(&history, 0).answering(|delivery| match delivery.attempt {
        1 => Err(Failure::retry("not at first")),
        _ => Ok(()),
    });
    let relay = Relay::on(spy.clone())
        .handler(witness)
        .retry(Backoff::exponential(SECOND / 100, SECOND / 100).max_attempts(2))
        .start()
        .await
        .unwrap();
    history.wait_for(60, MINUTE).await;
    relay.stop().await;
    assert_eq!(spy.lost_answers.load(Ordering::SeqCst), 0);
    history.assert_clean();
    assert_eq!(db.count(Status::Dead).await, 0, "an attempt was spent");
    spy.close().await;
    done(db).await;
}

async fn re12_a_pass_leaves_alone_what_another_relay_owns(kind: Kind) {
    let db = stream(kind, 1).await;
    let recorder = Recorder::default();
    let owner = db.relay().handler(recorder.clone()).start().await.unwrap();
    until("it owns the lane", async || owner.status().lanes == [0]).await;
    let store = db.second_store().await;
    let other = Relay::on(store.clone()).handler(recorder.clone()).build().unwrap();
    db.enqueue_numbers("a", 0..100).await;
    assert_eq!(other.run_once().await.unwrap(), Default::default());
    recorder.wait_for(100).await;
    owner.stop().await;
    db.enqueue_numbers("a", 0..100).await;
    assert_eq!(other.run_once().await.unwrap().delivered, 100);
    assert_eq!(recorder.repeats(), 0);
    store.close().await;
    done(db).await;
}

async fn sm1_two_relays_of_one_process_share_a_stream(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    let start = |n| db.relay().handler(Witness::new(&history, n)).start();
    let relays = [start(0).await.unwrap(), start(1).await.unwrap()];
    until("they share the lanes", async || relays.iter().all(|relay| relay.status().lanes.len() == 2)).await;
    for aggregate in 0..20 {
        versions(&db, &history, &aggregate.to_string(), 1..=20).await;
    }
    history.wait_for(400, MINUTE).await;
    assert_eq!(history.begun_by().len(), 2);
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(history.assert_clean().repeats, 0);
    done(db).await;
}

/// Whoever else waits for the lanes gets them from nobody who lives.
async fn sm1_a_handler_may_take_longer_than_the_lanes_last(kind: Kind) {
    let db = stream(kind, 2).await;
    let recorder = Recorder::default().taking(3 * SECOND);
    let start = || db.relay().lane_lease(SECOND).handler(recorder.clone()).start();
    let one = start().await.unwrap();
    db.enqueue_numbers("a", 0..20).await;
    until("all have begun", async || recorder.begun().len() == 20).await;
    let other = start().await.unwrap();
    recorder.wait_for(20).await;
    until("they share the lanes", async || {
        [&one, &other].iter().all(|relay| relay.status().lanes.len() == 1)
    })
    .await;
    one.stop().await;
    other.stop().await;
    assert_eq!((recorder.begun().len(), recorder.repeats()), (20, 0));
    done(db).await;
}

async fn sm1_an_idle_relay_asks_little_however_many_lanes(kind: Kind) {
    let table = format!("idle_{}", &Uuid::now_v7().simple().to_string()[..24]);
    let setup =
        Setup { table: Some(table.clone()), mode: Some(Mode::stream(256).unwrap()), ..Setup::default() };
    let db = Db::with(kind, setup).await;
    let log = log::watch(table);
    let recorder = Recorder::default();
    let began = Instant::now();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    until("it owns all lanes", async || relay.status().lanes.len() == 256).await;
    let owned = began.elapsed();
    db.enqueue_numbers("a", 0..1).await;
    recorder.wait_for(1).await;
    let statements = || log.count("SELECT") + log.count("UPDATE") + log.count("INSERT");
    let before = statements();
    tokio::time::sleep(10 * SECOND).await;
    let asked = statements() - before;
    println!("{kind:?}: 256 lanes after {owned:.1?}, {asked} statements in ten idle seconds");
    assert!(owned < 5 * SECOND && asked < 200, "{owned:?}, {asked}");
    relay.stop().await;
    db.drop_everything().await;
}
