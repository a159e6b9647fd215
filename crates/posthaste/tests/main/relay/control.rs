//! Start, stop, pause, resume, one pass; and what is left after a stop.
//!
//! Rows of the contract: RE10, RE12.

use std::sync::Arc;
use std::time::Duration;

use posthaste::sink::Delivery;
use posthaste::store::{Filter, Page, Status};
use posthaste::{Backoff, Failure};
use tokio::sync::{Semaphore, mpsc};

use crate::harness::{Db, Kind, Recorder, event};

const SECOND: Duration = Duration::from_secs(1);

conformance!(
    re10_shutdown_in_the_middle_of_slow_work,
    re12_a_relay_starts_stops_and_starts_again,
    re12_one_pass_delivers_what_is_due_and_no_more,
    re12_a_relay_that_was_stopped_for_good_stays_so,
);

streams!(
    re10_shutdown_in_the_middle_of_slow_work,
    re12_a_relay_starts_stops_and_starts_again,
    re12_one_pass_delivers_what_is_due_and_no_more,
);

async fn re12_a_relay_that_was_stopped_for_good_stays_so(db: &Db) {
    let recorder = Recorder::default();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    relay.retire().await;
    db.enqueue_numbers("a", 0..1).await;
    for refused in [relay.start().await, relay.run_once().await.map(drop)] {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("was stopped for good"), "{refused}");
    }
    assert_eq!(db.count(Status::Pending).await, 1, "nobody was sent it");
}

/// Finished work is settled, unstarted events are pending with their attempts unchanged, and the report says so.
async fn re10_shutdown_in_the_middle_of_slow_work(db: &Db) {
    db.enqueue_numbers("a", 0..100).await;
    let (entered, mut entering) = mpsc::unbounded_channel();
    let finish = Arc::new(Semaphore::new(0));
    let handler = {
        let finish = Arc::clone(&finish);
        move |delivery: Delivery| {
            let (finish, entered) = (Arc::clone(&finish), entered.clone());
            async move {
                entered.send(delivery.event.id()).unwrap();
                finish.acquire().await.unwrap().forget();
                Ok::<_, Failure>(())
            }
        }
    };
    let relay = db.relay().handler(handler).concurrency(10).drain_timeout(SECOND).start().await.unwrap();
    for _ in 0..10 {
        entering.recv().await.unwrap();
    }
    // Ten run; six of them finish in time.
    let stopping = tokio::spawn({
        let relay = relay.clone();
        async move { relay.stop().await }
    });
    while db.count(Status::Pending).await < 90 {
        tokio::task::yield_now().await;
    }
    finish.add_permits(6);
    let drained = stopping.await.unwrap();
    assert_eq!(drained.settled, 6, "{drained:?}");
    assert_eq!(drained.abandoned, 4, "{drained:?}");
    assert_eq!((drained.handed_back, drained.unsettled), (90, 0), "{drained:?}");
    assert!(!relay.is_running());
    assert_eq!(db.count(Status::Delivered).await, 6);
    let pending = db.store().list(&Filter::status(Status::Pending), Page::first(200)).await.unwrap();
    let attempts = |n| pending.iter().filter(|record| record.attempts == n).count();
    assert_eq!((attempts(0), attempts(1)), (90, 4));
    assert!(pending.iter().all(|record| record.locked_by.is_none()));
    assert!(entering.try_recv().is_err(), "something was started after the stop");
}

async fn re12_a_relay_starts_stops_and_starts_again(db: &Db) {
    let recorder = Recorder::default();
    let relay = db.relay().handler(recorder.clone()).build().unwrap();
    assert!(!relay.is_running());
    for round in 1..=3 {
        relay.start().await.unwrap();
        relay.start().await.unwrap();
        assert!(relay.is_running());
        db.enqueue_numbers("a", 0..20).await;
        recorder.wait_for(round * 20).await;
        relay.stop().await;
        assert!(!relay.is_running());
        assert_eq!(relay.stop().await, Default::default(), "stopping twice is stopping once");
    }
    db.enqueue_numbers("a", 0..1).await;
    assert_eq!(db.count(Status::Delivered).await, 60);
    assert_eq!(db.count(Status::Pending).await, 1);
}

async fn re12_one_pass_delivers_what_is_due_and_no_more(db: &Db) {
    let recorder = Recorder::answering(|delivery| match delivery.event.topic() {
        "retry" => Err(Failure::retry_after(60 * SECOND, "later")),
        "reject" => Err(Failure::reject("never")),
        _ => Ok(()),
    });
    let relay = db.relay().handler(recorder.clone()).build().unwrap();
    assert_eq!(relay.run_once().await.unwrap(), Default::default());
    db.enqueue_numbers("a", 0..700).await;
    db.enqueue_numbers("retry", 0..2).await;
    db.enqueue_numbers("reject", 0..3).await;
    let mut tx = db.begin().await;
    tx.enqueue(db, event("a", 9).delay(60 * SECOND)).await.unwrap();
    tx.commit().await;
    let passed = relay.run_once().await.unwrap();
    assert_eq!((passed.delivered, passed.retried, passed.dead, passed.handed_back), (700, 2, 3, 0));
    assert!(!relay.is_running(), "it did not run before");
    assert_eq!(relay.run_once().await.unwrap(), Default::default());
    db.shift(2 * 60 * SECOND).await;
    let passed = relay.run_once().await.unwrap();
    assert_eq!((passed.delivered, passed.retried), (1, 2));
    // And as a trigger of one that runs.
    relay.start().await.unwrap();
    db.enqueue_numbers("b", 0..5).await;
    relay.run_once().await.unwrap();
    assert_eq!(db.count(Status::Delivered).await, 706);
    assert!(relay.is_running());
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re12_a_paused_relay_takes_nothing_and_keeps_nothing() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default().taking(10 * SECOND);
    let relay = db.relay().handler(recorder.clone()).concurrency(2).start().await.unwrap();
    db.enqueue_numbers("a", 0..6).await;
    tokio::time::sleep(5 * SECOND).await;
    relay.pause();
    assert!(relay.is_paused() && relay.is_running() && relay.status().paused);
    tokio::time::sleep(SECOND).await;
    // Two run on, four are handed back.
    assert_eq!((db.count(Status::Processing).await, db.count(Status::Pending).await), (2, 4));
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((recorder.events(), db.count(Status::Pending).await), (2, 4));
    assert_eq!(relay.run_once().await.unwrap(), Default::default(), "a paused relay makes no pass");
    relay.resume();
    recorder.wait_for(6).await;
    assert_eq!(recorder.repeats(), 0);
    relay.pause();
    relay.stop().await;
    relay.start().await.unwrap();
    assert!(relay.is_paused(), "a pause lasts over a restart");
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re12_dropping_the_last_handle_stops_it() {
    let db = Db::new(Kind::Memory).await;
    let recorder = Recorder::default();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("a", 0..1).await;
    recorder.wait_for(1).await;
    let other = relay.clone();
    drop(relay);
    db.enqueue_numbers("a", 0..1).await;
    recorder.wait_for(2).await;
    drop(other);
    tokio::time::sleep(10 * SECOND).await;
    db.enqueue_numbers("a", 0..1).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((recorder.events(), db.count(Status::Pending).await), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn re10_a_cancelled_relay_drains() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..3).await;
    let recorder = Recorder::default().taking(3 * SECOND);
    let relay =
        db.relay().handler(recorder.clone()).retry(Backoff::default()).concurrency(1).build().unwrap();
    let drained = relay.run_until(tokio::time::sleep(4 * SECOND)).await.unwrap();
    assert_eq!((recorder.events(), drained.settled, drained.handed_back), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn re10_what_is_cut_short_in_its_last_attempt_is_not_killed_and_counted_once() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..10).await;
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let handler = move |_: Delivery| {
        let n = begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            tokio::time::sleep(if n < 6 { 2 * SECOND } else { 25 * SECOND }).await;
            Ok::<_, Failure>(())
        }
    };
    let once = Backoff::default().max_attempts(1);
    let relay = db.relay().handler(handler).retry(once).start().await.unwrap();
    tokio::time::sleep(SECOND).await;
    let drained = relay.stop().await;
    assert_eq!((drained.settled, drained.abandoned, drained.handed_back), (6, 4, 0));
    assert_eq!((db.count(Status::Delivered).await, db.count(Status::Pending).await), (6, 4));
}

#[tokio::test(start_paused = true)]
async fn re12_a_relay_paused_while_it_starts_is_paused() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..10).await;
    let spy = crate::harness::spy::Spy::slow(db.shared_store(), SECOND / 10);
    let recorder = Recorder::default();
    let relay = posthaste::Relay::on(spy).handler(recorder.clone()).build().unwrap();
    let starting = tokio::spawn({
        let relay = relay.clone();
        async move { relay.start().await }
    });
    tokio::time::sleep(SECOND / 20).await;
    relay.pause();
    starting.await.unwrap().unwrap();
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((relay.is_paused(), recorder.events()), (true, 0));
    relay.resume();
    recorder.wait_for(10).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re12_one_pass_of_a_relay_that_is_to_be_the_only_active_one() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..5).await;
    let relay = db.relay().single_active().handler(Recorder::default()).build().unwrap();
    assert_eq!(relay.run_once().await.unwrap().delivered, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re10_a_clean_stop_is_no_error() {
    let table = format!("stop_{}", &uuid::Uuid::now_v7().simple().to_string()[..24]);
    let setup = crate::harness::Setup { table: Some(table.clone()), ..Default::default() };
    let db = Db::with(Kind::Memory, setup).await;
    let log = crate::harness::log::watch(table);
    for _ in 0..60 {
        let relay = db.relay().handler(Recorder::default()).start().await.unwrap();
        db.enqueue_numbers("a", 0..20).await;
        assert!(relay.stop().await.is_clean());
    }
    assert_eq!(log.count("ERROR"), 0, "{:?}", log.lines());
    assert!(log.count("the relay has stopped") == 60);
}
