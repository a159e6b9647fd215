//! What leaves a stream and when: what was delivered, once it is old enough, and nothing else.
//!
//! Rows of the contract: HK1, SM3.

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::{Filter, Status, Store};
use posthaste::{Backoff, Failure, Relay};

use super::{SECOND, done, stream};
use crate::harness::owner::AN_HOUR;
use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, Recorder, event, until};

conformance_sql_by_kind!(
    hk1_retention_zero_leaves_what_was_not_delivered,
    hk1_a_relay_of_a_stream_purges_what_was_delivered_and_nothing_else,
);

const DAY: Duration = Duration::from_secs(86_400);

/// Commits events of one aggregate, one of each topic.
async fn enqueue(db: &Db, aggregate: &str, topics: &[&str]) {
    let mut tx = db.begin().await;
    let events = topics.iter().map(|topic| event(topic, 1).aggregate("order", aggregate));
    tx.enqueue_all(db, events).await.unwrap();
    tx.commit().await;
}

/// Refuses poison, and fails what is flaky once.
fn handler() -> Recorder {
    Recorder::answering(|delivery| match delivery.event.topic() {
        "poison" => Err(Failure::reject("no")),
        "flaky" if delivery.attempt == 1 => Err(Failure::retry("not at first")),
        _ => Ok(()),
    })
}

async fn hk1_retention_zero_leaves_what_was_not_delivered(kind: Kind) {
    let db = stream(kind, 4).await;
    for n in 0..100 {
        enqueue(&db, &n.to_string(), &["fine"]).await;
    }
    // Parked, and delivered then; parked, and waiting.
    enqueue(&db, "flaky", &["flaky", "fine", "fine"]).await;
    enqueue(&db, "blocked", &["fine", "poison", "fine", "fine"]).await;
    let recorder = handler();
    let relay = async |purge_interval| {
        let retry = Backoff::exponential(SECOND / 100, SECOND / 100);
        let relay = db.relay().handler(recorder.clone()).retention(Duration::ZERO).retry(retry);
        relay.purge_interval(purge_interval).start().await.unwrap()
    };
    let rows = async || db.number("SELECT count(*) FROM outbox").await;
    let one = relay(AN_HOUR).await;
    recorder.wait_for(104).await;
    one.stop().await;
    // PostgreSQL writes nothing of what was delivered: a purge deletes it.
    if kind == Kind::Postgres {
        assert_eq!(rows().await, 107);
        let other = relay(SECOND / 20).await;
        until("what was delivered is gone", async || rows().await == 3).await;
        other.stop().await;
    }
    assert_eq!(rows().await, 3);
    assert_eq!(db.count(Status::Delivered).await, 0);
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (1, 2));
    let kept = db.texts("SELECT aggregate_id FROM outbox ORDER BY seq").await;
    assert_eq!(kept, ["blocked"; 3], "the dead one, and what waits behind it");
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked").await, 3);
    done(db).await;
}

/// A relay that purges all the time, and how often it has begun to.
async fn purging(db: &Db, recorder: &Recorder) -> (Relay, Arc<Spy>) {
    let spy = Spy::on(db.second_store().await);
    let relay = Relay::on(Arc::clone(&spy) as Arc<dyn Store>)
        .handler(recorder.clone())
        .retention(DAY)
        .purge_interval(SECOND / 20)
        .start()
        .await
        .unwrap();
    (relay, spy)
}

async fn hk1_a_relay_of_a_stream_purges_what_was_delivered_and_nothing_else(kind: Kind) {
    let db = stream(kind, 4).await;
    let recorder = handler();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    // More than one batch.
    for n in 0..30 {
        enqueue(&db, &n.to_string(), &["fine"; 50]).await;
    }
    enqueue(&db, "blocked", &["fine", "poison", "fine", "fine"]).await;
    recorder.wait_for(1501).await;
    until("three are parked", async || db.number("SELECT count(*) FROM outbox_parked").await == 3).await;
    relay.stop().await;
    db.shift(8 * DAY).await;
    db.enqueue_numbers("young", 0..10).await;

    // Nobody else sees it before it commits; a file has one writer at a time.
    let mut open = if kind == Kind::Sqlite { None } else { Some(late(&db).await) };
    let (relay, spy) = purging(&db, &recorder).await;
    recorder.wait_for(1511).await;
    let rows = async || db.store().count(&Filter::all(), 10_000).await.unwrap().n;
    until("what is old and was delivered is gone", async || rows().await == 13).await;
    relay.pause();
    let late = match open.take() {
        Some(late) => late,
        None => self::late(&db).await,
    };
    late.commit().await;
    // Each purge has a session of its own: three have begun and two have ended since it is there.
    let before = spy.sessions();
    until("it purges still", async || spy.sessions() >= before + 3).await;
    assert_eq!(rows().await, 14, "what is old and was not read stays");
    assert_eq!(db.count(Status::Delivered).await, 10, "and what is young");
    relay.resume();
    recorder.wait_for(1512).await;
    relay.stop().await;
    assert_eq!((db.count(Status::Dead).await, recorder.repeats()), (1, 0));
    spy.close().await;
    done(db).await;
}

/// A transaction that is open, with an event that was written long ago.
async fn late(db: &Db) -> crate::harness::transaction::Tx {
    let mut tx = db.begin().await;
    let late = tx.enqueue(db, event("late", 1).aggregate("order", "late")).await.unwrap();
    let age = match db.kind() {
        Kind::Postgres => "interval '30 days'",
        Kind::MySql | Kind::MariaDb => "INTERVAL 30 DAY",
        _ => "2592000000000",
    };
    let seq = late.sequence.unwrap();
    let aged = format!("UPDATE outbox SET created_at = created_at - {age} WHERE seq = {seq}");
    assert_eq!(tx.execute(aged).await.unwrap(), 1);
    tx
}
