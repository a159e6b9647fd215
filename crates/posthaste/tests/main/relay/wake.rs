//! Wake-ups: in the process, from other processes, and by polling when all else fails.
//!
//! Rows of the contract: RE6.

use std::sync::Arc;
use std::time::Duration;

use posthaste::Relay;
use posthaste::store::Store;
use tokio::time::Instant;

use crate::harness::database::Handle;
use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, Recorder, event};

const SECOND: Duration = Duration::from_secs(1);

databases!(re6_a_commit_wakes_relays_in_other_processes, with_db: postgres Postgres);
databases!(re6_a_word_after_any_commit_wakes_relays_in_other_processes, with_db: postgres Postgres);
databases!(re6_the_trigger_wakes_relays_for_producers_in_other_languages, with_db: postgres Postgres);

/// As on a queue.
mod stream {
    databases!(re6_a_commit_wakes_relays_in_other_processes, with_stream: postgres Postgres);
    databases!(re6_a_word_after_any_commit_wakes_relays_in_other_processes, with_stream: postgres Postgres);
    databases!(re6_the_trigger_wakes_relays_for_producers_in_other_languages, with_stream: postgres Postgres);
}

/// Waits until the relay is between two polls that are some seconds apart: the third is two seconds after the
/// second, the fourth four seconds after the third. Of a stream it reads a few times before it finds nothing.
async fn dozing(spy: &Spy) {
    let rests = || {
        let reads = spy.reads.lock().unwrap();
        reads.is_sorted_by(|earlier, later| *later - *earlier < 3 * SECOND / 2)
    };
    while spy.claims.lock().unwrap().len() < 3 && rests() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn rarely_polling(db: &Db) -> (Relay, Recorder) {
    let spy = Spy::on(db.second_store().await);
    let recorder = Recorder::default();
    let relay = Relay::on(spy.clone() as Arc<dyn Store>)
        .poll_interval(20 * SECOND)
        .handler(recorder.clone())
        .start()
        .await
        .unwrap();
    dozing(&spy).await;
    (relay, recorder)
}

async fn re6_a_commit_wakes_relays_in_other_processes(db: &Db) {
    let Handle::Postgres(sql) = db.handle() else { unreachable!() };
    let (relay, recorder) = rarely_polling(db).await;
    let began = Instant::now();
    // No relay in this process takes it: the commit notifies.
    let mut tx = sql.outbox.begin().await.unwrap();
    sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    recorder.wait_for(1).await;
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
}

async fn re6_a_word_after_any_commit_wakes_relays_in_other_processes(db: &Db) {
    let Handle::Postgres(sql) = db.handle() else { unreachable!() };
    let (relay, recorder) = rarely_polling(db).await;
    let began = Instant::now();
    db.enqueue_numbers("a", 1..2).await;
    sql.outbox.wake();
    recorder.wait_for(1).await;
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
}

/// A long transaction commits when newer events have been claimed already: all of it is gone through at once.
#[tokio::test(start_paused = true)]
async fn re6_much_that_commits_late_is_gone_through_at_once() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default();
    let relay = Relay::on(db.shared_store()).batch(100).handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("new", 0..1).await;
    recorder.wait_for(1).await;
    let past = db.store().now().await.unwrap() - Duration::from_secs(3600);
    let late = (0..3000).map(|n| event("late", n).available_at(past));
    let mut tx = db.begin().await;
    tx.enqueue_all(&db, late).await.unwrap();
    tx.commit().await;
    let began = Instant::now();
    recorder.wait_for(3001).await;
    assert!(began.elapsed() <= 3 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
}

async fn re6_the_trigger_wakes_relays_for_producers_in_other_languages(db: &Db) {
    let Handle::Postgres(sql) = db.handle() else { unreachable!() };
    sql.outbox.notify_on_insert(true).await.unwrap();
    let (relay, recorder) = rarely_polling(db).await;
    let began = Instant::now();
    db.execute("INSERT INTO outbox (topic, payload) SELECT 'a', '1' FROM generate_series(1, 100)")
        .await
        .unwrap();
    recorder.wait_for(100).await;
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re6_a_commit_wakes_the_relay_of_its_process() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default();
    let relay = db.relay().poll_interval(20 * SECOND).handler(recorder.clone()).start().await.unwrap();
    tokio::time::sleep(120 * SECOND).await;
    for n in 1..=5 {
        let began = Instant::now();
        db.enqueue_numbers("a", 0..1).await;
        recorder.wait_for(n).await;
        assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
        tokio::time::sleep(60 * SECOND).await;
    }
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re6_a_lost_notification_costs_at_most_a_poll_interval() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default();
    // Its gate is not the outbox's: no commit wakes it.
    let relay = Relay::on(db.shared_store())
        .poll_interval(10 * SECOND)
        .handler(recorder.clone())
        .start()
        .await
        .unwrap();
    for n in 1..=10 {
        tokio::time::sleep(137 * SECOND).await;
        let began = Instant::now();
        db.enqueue_numbers("a", 0..1).await;
        recorder.wait_for(n).await;
        assert!(began.elapsed() <= 10 * SECOND, "{:?}", began.elapsed());
    }
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re6_an_idle_relay_asks_ever_more_rarely_and_a_busy_one_at_once() {
    let db = Db::new(Kind::Memory).await;
    let spy = Spy::on(db.shared_store());
    let recorder = Recorder::default();
    let relay = Relay::on(spy.clone() as Arc<dyn Store>)
        .poll_interval(SECOND)
        .batch(10)
        .handler(recorder.clone())
        .start()
        .await
        .unwrap();
    tokio::time::sleep(600 * SECOND).await;
    // Every five seconds a survey takes the place of one.
    let idle = spy.claims.lock().unwrap().len();
    assert!((480..500).contains(&idle), "{idle} claims in ten idle minutes");
    let began = Instant::now();
    db.enqueue_numbers("a", 0..500).await;
    recorder.wait_for(500).await;
    assert!(began.elapsed() <= 2 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
}

/// A transaction that began before others and committed after them has written rows that lie before theirs.
#[tokio::test(start_paused = true)]
async fn re6_what_commits_a_little_late_is_found_by_the_next_claim() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default();
    let relay = Relay::on(db.shared_store()).handler(recorder.clone()).start().await.unwrap();
    for n in 0..5 {
        db.enqueue_numbers("a", 0..10).await;
        recorder.wait_for(11 * n + 10).await;
        let began = db.store().now().await.unwrap() - Duration::from_millis(100);
        let mut tx = db.begin().await;
        tx.enqueue(&db, event("late", 1).available_at(began)).await.unwrap();
        tx.commit().await;
        let committed = Instant::now();
        recorder.wait_for(11 * n + 11).await;
        assert!(committed.elapsed() <= SECOND / 5, "{:?}", committed.elapsed());
    }
    relay.stop().await;
}

/// Rows that become visible behind the place where the last claim left off are found all the same.
#[tokio::test(start_paused = true)]
async fn re6_what_becomes_available_behind_the_mark_is_found_within_a_second() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default();
    let relay = Relay::on(db.shared_store()).handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("a", 0..10).await;
    recorder.wait_for(10).await;
    let past = db.store().now().await.unwrap() - Duration::from_secs(3600);
    let mut tx = db.begin().await;
    tx.enqueue(&db, event("late", 1).available_at(past)).await.unwrap();
    tx.commit().await;
    let began = Instant::now();
    recorder.wait_for(11).await;
    assert!(began.elapsed() <= 2 * SECOND, "{:?}", began.elapsed());
    relay.stop().await;
}
