//! Claim, dispatch and settle: bounded, overlapping, each event by itself.
//!
//! Rows of the contract: RE4, RE8, RE9.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::sink::{Delivery, Outcome, Sink};
use posthaste::store::{Claim, Filter, Page, Status};
use posthaste::{Backoff, ErrorKind, Failure, Relay};
use tokio::sync::{Notify, Semaphore};

use crate::harness::log;
use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, Recorder, worker};

const SECOND: Duration = Duration::from_secs(1);

conformance!(
    re4_everything_is_delivered_and_settled,
    re4_claiming_publishing_and_settling_overlap,
    re9_a_poison_event_holds_up_nobody,
);

conformance_sql!(re9_a_row_that_cannot_be_settled_holds_up_nobody);

streams!(
    re4_everything_is_delivered_and_settled,
    re4_claiming_publishing_and_settling_overlap,
    re9_a_poison_event_holds_up_nobody,
);

async fn re4_everything_is_delivered_and_settled(db: &Db) {
    db.enqueue_numbers("a", 0..1200).await;
    let recorder = Recorder::default();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    recorder.wait_for(1200).await;
    db.enqueue_numbers("b", 0..10).await;
    recorder.wait_for(1210).await;
    relay.stop().await;
    assert_eq!(db.count(Status::Delivered).await, 1210);
    assert_eq!((recorder.repeats(), recorder.overlaps()), (0, 0));
}

/// Holds its first batch until told, and counts what it has of the others.
struct Stuck {
    release: Arc<Semaphore>,
    first: AtomicUsize,
    others: Arc<Semaphore>,
}

#[async_trait]
impl Sink for Stuck {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        if self.first.fetch_add(1, Ordering::SeqCst) == 0 {
            self.release.acquire().await.unwrap().forget();
        } else {
            self.others.add_permits(batch.len());
        }
        vec![Outcome::Delivered; batch.len()]
    }
}

async fn re4_claiming_publishing_and_settling_overlap(db: &Db) {
    db.enqueue_numbers("a", 0..100).await;
    let (release, others) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let sink =
        Stuck { release: Arc::clone(&release), first: AtomicUsize::new(0), others: Arc::clone(&others) };
    let relay = db.relay().batch(10).sink(sink).start().await.unwrap();
    // Ten are stuck in the sink; the other ninety are claimed, published and settled meanwhile.
    others.acquire_many(90).await.unwrap().forget();
    while db.count(Status::Delivered).await < 90 {
        tokio::task::yield_now().await;
    }
    release.add_permits(1);
    let drained = relay.stop().await;
    assert_eq!((drained.abandoned, drained.unsettled), (0, 0), "{drained:?}");
    assert_eq!(db.count(Status::Delivered).await, 100);
}

async fn re9_a_poison_event_holds_up_nobody(db: &Db) {
    db.enqueue_numbers("poison.error", 0..1).await;
    db.enqueue_numbers("poison.panic", 0..1).await;
    db.enqueue_numbers("poison.hang", 0..1).await;
    db.enqueue_numbers("good", 0..1000).await;
    let recorder = Recorder::default();
    // One handler for all: the good ones have no route of their own to escape to.
    let handler = {
        let recorder = recorder.clone();
        move |delivery: Delivery| {
            let recorder = recorder.clone();
            async move {
                match delivery.event.topic() {
                    "poison.error" => Err(Failure::retry("never works")),
                    "poison.panic" => panic!("never works"),
                    "poison.hang" => std::future::pending().await,
                    _ => posthaste::Handler::handle(&recorder, &delivery).await,
                }
            }
        }
    };
    let relay = db
        .relay()
        .handler(handler)
        .concurrency(4)
        .timeout(Duration::from_millis(200))
        .retry(Backoff::exponential(Duration::from_millis(10), Duration::from_millis(20)).max_attempts(3))
        .start()
        .await
        .unwrap();
    recorder.wait_for(1000).await;
    while db.count(Status::Dead).await < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
    assert_eq!((db.count(Status::Delivered).await, recorder.repeats()), (1000, 0));
    let dead = db.store().list(&Filter::dead(), Page::first(10)).await;
    let mut reasons: Vec<(u32, String)> =
        dead.unwrap().into_iter().map(|record| (record.attempts, record.last_error.unwrap())).collect();
    reasons.sort();
    assert_eq!(reasons[0], (3, "never works".to_owned()));
    assert_eq!(reasons[1], (3, "panicked: never works".to_owned()));
    assert_eq!(reasons[2], (3, "timed out after 200ms".to_owned()));
}

/// A trigger of somebody else's refuses to let one event be delivered.
async fn re9_a_row_that_cannot_be_settled_holds_up_nobody(db: &Db) {
    match db.kind() {
        Kind::Postgres => {
            let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                          'BEGIN IF NEW.topic = ''bad'' AND NEW.outcome IS NOT NULL THEN RAISE EXCEPTION ''no''; END IF;
                            RETURN NEW; END'";
            db.execute(refuse).await.unwrap();
            let on = "CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()";
            db.execute(on).await.unwrap();
        }
        Kind::MySql | Kind::MariaDb => {
            let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW
                          IF NEW.topic = 'bad' AND NEW.outcome IS NOT NULL
                          THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF";
            db.execute(refuse).await.unwrap();
        }
        _ => {
            let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON outbox
                          WHEN NEW.topic = 'bad' AND NEW.outcome IS NOT NULL BEGIN SELECT RAISE(ABORT, 'no'); END";
            db.execute(refuse).await.unwrap();
        }
    }
    db.enqueue_numbers("good", 0..50).await;
    let bad = db.enqueue_numbers("bad", 0..1).await[0];
    db.enqueue_numbers("good", 50..100).await;
    let log = log::watch(bad.to_string());
    let recorder = Recorder::default();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    recorder.wait_for(101).await;
    while db.count(Status::Delivered).await < 100 || log.count("refuses to settle") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // And it goes on.
    db.enqueue_numbers("good", 100..110).await;
    recorder.wait_for(111).await;
    let drained = relay.stop().await;
    assert!(drained.is_clean(), "{drained:?}");
    assert_eq!(db.count(Status::Processing).await, 1, "the refused one is left to its lease");
}

#[tokio::test(start_paused = true)]
async fn re4_a_claim_asks_only_for_what_there_is_room_for() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..100).await;
    let spy = Spy::on(db.shared_store());
    let gate = Arc::new(Semaphore::new(0));
    let slow = {
        let gate = Arc::clone(&gate);
        move |_: Delivery| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok::<_, Failure>(())
            }
        }
    };
    let relay =
        Relay::on(spy.clone()).handler(slow).batch(8).capacity(12).concurrency(3).start().await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    // Eight, then the four that are left; nothing more until something has been settled.
    assert_eq!(*spy.claims.lock().unwrap(), [8, 4]);
    assert_eq!((relay.status().claimed, relay.status().dispatching), (9, 3));
    gate.add_permits(4);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(spy.claims.lock().unwrap()[2..], [4]);
    gate.add_permits(1000);
    tokio::time::sleep(5 * SECOND).await;
    assert!(spy.claims.lock().unwrap().iter().all(|limit| *limit <= 8));
    assert_eq!(db.count(Status::Delivered).await, 100);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re4_settlements_are_gathered() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..2000).await;
    let spy = Spy::on(db.shared_store());
    let recorder = Recorder::default().taking(Duration::from_millis(1));
    let relay = Relay::on(spy.clone()).handler(recorder.clone()).concurrency(500).start().await.unwrap();
    recorder.wait_for(2000).await;
    relay.stop().await;
    let settles = spy.settles.lock().unwrap().clone();
    assert_eq!(settles.iter().sum::<usize>(), 2000);
    assert!(settles.len() <= 8, "2000 settlements took {} statements", settles.len());
}

#[tokio::test(start_paused = true)]
async fn re8_a_lease_is_renewed_while_its_event_waits_or_runs() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..4).await;
    let spy = Spy::on(db.shared_store());
    let recorder = Recorder::default().taking(40 * SECOND);
    let relay = Relay::on(spy.clone())
        .handler(recorder.clone())
        .concurrency(1)
        .lease(60 * SECOND)
        .timeout(50 * SECOND)
        .start()
        .await
        .unwrap();
    let me = worker();
    for _ in 0..32 {
        tokio::time::sleep(5 * SECOND).await;
        let claim = Claim::by(me.clone());
        assert!(db.store().claim(&claim).await.unwrap().events.is_empty(), "a lease ended");
    }
    recorder.wait_for(4).await;
    relay.stop().await;
    assert!(spy.extended.load(Ordering::SeqCst) > 0);
    assert_eq!((db.count(Status::Delivered).await, recorder.repeats()), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn re8_what_has_too_little_lease_left_is_not_started() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..2).await;
    let spy = Spy::on(db.shared_store());
    let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let recorder = Recorder::default();
    let handler = {
        let (entered, leave, recorder) = (Arc::clone(&entered), Arc::clone(&leave), recorder.clone());
        move |delivery: Delivery| {
            let (entered, leave, recorder) = (Arc::clone(&entered), Arc::clone(&leave), recorder.clone());
            async move {
                entered.notify_one();
                leave.acquire().await.unwrap().forget();
                posthaste::Handler::handle(&recorder, &delivery).await
            }
        }
    };
    let relay = Relay::on(spy.clone())
        .handler(handler)
        .concurrency(1)
        .lease(30 * SECOND)
        .timeout(29 * SECOND)
        .start()
        .await
        .unwrap();
    entered.notified().await;
    // The database is gone while the second event waits: its lease runs out and cannot be renewed.
    spy.gone.store(true, Ordering::SeqCst);
    tokio::time::sleep(28 * SECOND).await;
    leave.add_permits(10);
    tokio::time::sleep(SECOND).await;
    assert_eq!(recorder.begun().len(), 1, "the second was started without a lease that lasts");
    // Somebody else takes it over when its lease has ended, and the first is settled when the database is back.
    tokio::time::sleep(5 * SECOND).await;
    spy.gone.store(false, Ordering::SeqCst);
    recorder.wait_for(2).await;
    relay.stop().await;
    assert_eq!((db.count(Status::Delivered).await, recorder.repeats()), (2, 0));
}

#[tokio::test]
async fn re8_settings_that_cannot_work_are_refused() {
    let db = Db::new(Kind::Memory).await;
    let relay = || db.relay().handler(Recorder::default());
    let refused = [
        (relay().timeout(60 * SECOND), "timeout 60s is not shorter than the lease 60s"),
        (relay().lease(10 * SECOND), "timeout 30s is not shorter than the lease 10s"),
        (relay().poll_interval(21 * SECOND), "poll interval 21s is longer than a third of the lease 60s"),
        (relay().batch(0), "batch is 0"),
        (relay().concurrency(0), "concurrency is 0"),
        (relay().poll_interval(Duration::ZERO), "poll interval is 0"),
        (relay().probe_interval(2 * SECOND, SECOND), "shorter than the first"),
        (db.relay(), "no handler, sink or routes"),
    ];
    for (builder, reason) in refused {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidSetting);
        assert!(error.to_string().contains(reason) && error.to_string().contains("outbox"), "{error}");
    }
    let relay = relay().lease(90 * SECOND).timeout(89 * SECOND).poll_interval(30 * SECOND).build().unwrap();
    assert!(!relay.is_running());
}

/// Panics on a batch that holds a certain event.
struct Touchy(Recorder);

#[async_trait]
impl Sink for Touchy {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        assert!(!batch.iter().any(|delivery| delivery.event.topic() == "bad"), "touchy");
        for delivery in batch {
            posthaste::Handler::handle(&self.0, delivery).await.unwrap();
        }
        vec![Outcome::Delivered; batch.len()]
    }
}

#[tokio::test(start_paused = true)]
async fn re9_of_a_batch_that_panics_only_the_culprit_fails() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("good", 0..50).await;
    db.enqueue_numbers("bad", 0..1).await;
    db.enqueue_numbers("good", 0..50).await;
    let recorder = Recorder::default();
    let relay = db
        .relay()
        .sink(Touchy(recorder.clone()))
        .retry(Backoff::default().max_attempts(2))
        .start()
        .await
        .unwrap();
    recorder.wait_for(100).await;
    tokio::time::sleep(10 * SECOND).await;
    relay.stop().await;
    assert_eq!((recorder.repeats(), db.count(Status::Delivered).await), (0, 100));
    assert_eq!(db.count(Status::Dead).await, 1);
    let good = db.store().list(&Filter::all().topic("good"), Page::first(200)).await.unwrap();
    assert!(good.iter().all(|record| record.attempts == 1), "nobody else's attempt was spent");
}

#[tokio::test(start_paused = true)]
async fn re9_a_sink_that_answers_too_little_fails_only_those_it_left_out() {
    struct Mute;
    #[async_trait]
    impl Sink for Mute {
        async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
            vec![Outcome::Delivered; batch.len().min(3)]
        }
    }
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..5).await;
    let relay = db.relay().sink(Mute).build().unwrap();
    let passed = relay.run_once().await.unwrap();
    assert_eq!((passed.delivered, passed.retried), (3, 2));
}
