//! Retention: what is past it is deleted, by one relay at a time, and nothing else is.
//!
//! Rows of the contract: HK1.

use std::time::Duration;

use posthaste::store::{Filter, Lock, Settlement, Status, Store, WorkerId};
use posthaste::{Failure, Relay};

use crate::harness::{Db, Recorder, worker};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

conformance!(
    hk1_a_relay_purges_what_is_past_its_retention_and_nothing_else,
    hk1_retention_zero_deletes_on_delivery,
    hk1_one_relay_purges_at_a_time,
);

/// Delivers and kills events, and lets time pass.
async fn settled(db: &Db, delivered: u64, dead: u64, ago: Duration) {
    db.enqueue_numbers("delivered", 0..delivered).await;
    db.enqueue_numbers("dead", 0..dead).await;
    let claimed = db.claim(&worker(), u32::try_from(delivered + dead).unwrap()).await;
    let settlements: Vec<Settlement> = claimed
        .into_iter()
        .map(|claimed| match claimed.event.topic() {
            "dead" => Settlement::dead(claimed.lease, "no"),
            _ => Settlement::delivered(claimed.lease),
        })
        .collect();
    assert_eq!(db.store().settle(&settlements, Default::default()).await.unwrap().lost.len(), 0);
    db.shift(ago).await;
}

async fn wait_until_delivered_are(db: &Db, expected: u64) {
    let began = std::time::Instant::now();
    while db.count(Status::Delivered).await != expected {
        let found = db.count(Status::Delivered).await;
        assert!(began.elapsed() < 60 * SECOND, "{found} delivered rows are left, not {expected}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn hk1_a_relay_purges_what_is_past_its_retention_and_nothing_else(db: &Db) {
    // More than one batch of old ones; dead ones as old; younger ones of both.
    settled(db, 2500, 30, 8 * DAY).await;
    settled(db, 40, 20, Duration::ZERO).await;
    let handler = Recorder::answering(|_| Err(Failure::retry_after(DAY, "later")));
    let relay = db.relay().handler(handler.clone()).purge_interval(SECOND / 20).build().unwrap();
    db.enqueue_numbers("pending", 0..10).await;
    db.shift(DAY / 2).await;
    relay.start().await.unwrap();
    wait_until_delivered_are(db, 40).await;
    relay.stop().await;
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (50, 10));
    // Dead ones have a retention of their own only if they are given one.
    let relay = db
        .relay()
        .handler(handler)
        .dead_retention(DAY)
        .retention(DAY / 4)
        .purge_interval(SECOND / 20)
        .start()
        .await
        .unwrap();
    wait_until_delivered_are(db, 0).await;
    while db.count(Status::Dead).await > 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    relay.stop().await;
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (20, 10));
}

async fn hk1_retention_zero_deletes_on_delivery(db: &Db) {
    db.enqueue_numbers("a", 0..100).await;
    db.enqueue_numbers("reject", 0..2).await;
    let recorder = Recorder::answering(|delivery| match delivery.event.topic() {
        "reject" => Err(Failure::reject("no")),
        _ => Ok(()),
    });
    let relay = db.relay().handler(recorder).retention(Duration::ZERO).build().unwrap();
    let passed = relay.run_once().await.unwrap();
    assert_eq!((passed.delivered, passed.dead), (100, 2));
    assert_eq!(db.store().count(&Filter::all(), 1000).await.unwrap().n, 2, "only the dead are kept");
}

async fn hk1_one_relay_purges_at_a_time(db: &Db) {
    settled(db, 10, 0, 8 * DAY).await;
    // Somebody else is at it.
    let other = db.second_store().await;
    let mut session = other.session(&WorkerId::unique()).await.unwrap();
    assert!(session.try_lock(Lock::Purge).await.unwrap());
    let spy = crate::harness::spy::Spy::on(db.second_store().await);
    let relay = Relay::on(spy.clone() as std::sync::Arc<dyn Store>)
        .handler(Recorder::default())
        .purge_interval(SECOND / 50)
        .start()
        .await
        .unwrap();
    while spy.sessions() < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(db.count(Status::Delivered).await, 10, "two purged at once");
    session.close().await;
    wait_until_delivered_are(db, 0).await;
    relay.stop().await;
}
