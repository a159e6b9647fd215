//! Relays that die with events in their hands.
//!
//! Rows of the contract: RE2.

use std::time::Duration;

use posthaste::Backoff;
use posthaste::store::{Claim, Status};

use crate::harness::{Db, Kind, MINUTE, Recorder, until, worker};

conformance_sql!(re2_what_a_dead_relay_held_is_delivered_by_another);

const LEASE: Duration = Duration::from_secs(10 * 60);
const ATTEMPTS: u32 = 3;

/// At once where the database can tell that it is dead, else when its leases end; what is at its attempt limit
/// is dead instead.
async fn re2_what_a_dead_relay_held_is_delivered_by_another(db: &Db) {
    db.enqueue_numbers("a", 0..98).await;
    let last = db.enqueue_numbers("last", 0..1).await[0];
    let spent = db.enqueue_numbers("spent", 0..1).await[0];
    for (topic, attempts) in [("last", ATTEMPTS - 2), ("spent", ATTEMPTS - 1)] {
        db.execute(format!("UPDATE outbox SET attempts = {attempts} WHERE topic = '{topic}'")).await.unwrap();
    }
    // The relay that is going to die has connections of its own, as another process would.
    let store = db.second_store().await;
    let session = store.session(&worker()).await.unwrap();
    let claim = Claim::by(session.worker().clone()).limit(100).lease(LEASE);
    assert_eq!(store.claim(&claim).await.unwrap().events.len(), 100);

    let recorder = Recorder::default();
    let retry = Backoff::default().max_attempts(ATTEMPTS);
    let relay = db.relay().handler(recorder.clone()).retry(retry).start().await.unwrap();
    db.enqueue_numbers("b", 0..1).await;
    until("the relay works", async || db.count(Status::Delivered).await == 1).await;
    assert_eq!(db.count(Status::Processing).await, 100);
    assert!(db.store().absent_workers().await.unwrap().is_empty(), "it lives");

    let died = tokio::time::Instant::now();
    match db.kind() {
        Kind::Postgres | Kind::MySql | Kind::MariaDb => db.kill_session(session.worker()).await,
        Kind::Sqlite | Kind::Memory => {
            drop(session);
            assert!(db.store().absent_workers().await.unwrap().is_empty(), "nobody can tell");
            db.shift(LEASE).await;
        }
    }
    recorder.wait_for(100).await;
    assert!(died.elapsed() < MINUTE, "long before the leases end");
    until("the last is settled", async || db.count(Status::Delivered).await == 100).await;
    let attempts: Vec<u32> =
        recorder.begun().into_iter().filter(|(id, _)| *id == last).map(|(_, attempt)| attempt).collect();
    assert_eq!(attempts, [ATTEMPTS], "the dead relay's attempt counts");
    let record = db.store().get(spent).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts), (Status::Dead, ATTEMPTS));
    let reason = record.last_error.unwrap();
    assert!(reason.contains("crashed"), "{reason}");
    assert_eq!(recorder.repeats(), 0);
    relay.stop().await;
    store.close().await;
}
