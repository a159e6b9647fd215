//! Retry, outage and dead letters.
//!
//! Rows of the contract: RT1, RT2, RT3, RT4, RT5, RE11.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use posthaste::relay::RetryPolicy;
use posthaste::sink::{Delivery, MemorySink, Outcome};
use posthaste::store::{Filter, Page, Status};
use posthaste::{Backoff, Failure, Relay, Router};
use tokio::time::Instant;

use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, Recorder};

const SECOND: Duration = Duration::from_secs(1);

conformance!(
    rt3_each_kind_of_failure_is_written_as_what_it_is,
    rt4_no_handler_is_dead_at_once,
    rt5_no_payload_and_no_secret_is_kept_of_an_error,
    rt5_as_much_of_an_error_is_kept_as_was_said,
    rt3_a_sink_that_is_gone_longer_than_all_retries_loses_nothing,
);

streams!(
    rt3_each_kind_of_failure_is_written_as_what_it_is,
    rt4_no_handler_is_dead_at_once,
    rt5_no_payload_and_no_secret_is_kept_of_an_error,
    rt5_as_much_of_an_error_is_kept_as_was_said,
    rt3_a_sink_that_is_gone_longer_than_all_retries_loses_nothing,
);

async fn rt3_each_kind_of_failure_is_written_as_what_it_is(db: &Db) {
    for topic in ["retry", "after", "reject", "unavailable", "fine"] {
        db.enqueue_numbers(topic, 0..1).await;
    }
    let fail = |failure: fn() -> Failure| move |_: Delivery| async move { Err::<(), _>(failure()) };
    let router = Router::new()
        .topic("retry", fail(|| Failure::retry("a")))
        .topic("after", fail(|| Failure::retry_after(1000 * SECOND, "b")))
        .topic("reject", fail(|| Failure::reject("c")))
        .topic("unavailable", fail(|| Failure::unavailable("d")))
        .topic("fine", Recorder::default());
    let relay = db.relay().handler(router).build().unwrap();
    let passed = relay.run_once().await.unwrap();
    assert_eq!((passed.delivered, passed.retried, passed.dead, passed.handed_back), (1, 2, 1, 1));
    let now = db.store().now().await.unwrap();
    // Nothing is written of what a stream delivers at once.
    let counted = u32::from(!db.is_stream().await);
    for record in db.store().list(&Filter::all(), Page::first(10)).await.unwrap() {
        let waits = record.available_at - now;
        let topic = record.event.as_ref().unwrap().topic().to_owned();
        let state = (record.status, record.attempts, record.last_error.as_deref());
        match topic.as_str() {
            "retry" => {
                assert_eq!(state, (Status::Pending, 1, Some("a")));
                assert!(waits <= SECOND, "{waits}");
            }
            "after" => {
                assert_eq!(state, (Status::Pending, 1, Some("b")));
                assert!(waits > 900 * SECOND && waits <= 1000 * SECOND, "{waits}");
            }
            "reject" => assert_eq!(state, (Status::Dead, 1, Some("c"))),
            "unavailable" => assert_eq!(state, (Status::Pending, 0, None)),
            _ => assert_eq!(state, (Status::Delivered, counted, None)),
        }
    }
}

async fn rt4_no_handler_is_dead_at_once(db: &Db) {
    db.enqueue_numbers("unheard.of", 0..1).await;
    let router = Router::new().topic("known", Recorder::default());
    let passed = db.relay().handler(router).build().unwrap().run_once().await.unwrap();
    assert_eq!(passed.dead, 1);
    let dead = db.store().list(&Filter::dead(), Page::first(10)).await.unwrap();
    let reason = dead[0].last_error.as_deref().unwrap();
    assert!(reason.contains("no handler") && reason.contains("unheard.of"), "{reason}");
}

async fn rt5_no_payload_and_no_secret_is_kept_of_an_error(db: &Db) {
    let payload = serde_json::json!({"card": "4111-1111-1111-1111", "note": "quite private"});
    let mut tx = db.begin().await;
    tx.enqueue(db, posthaste::Event::json("pay", &payload).unwrap()).await.unwrap();
    tx.commit().await;
    let leak = |delivery: Delivery| async move {
        let payload = String::from_utf8_lossy(delivery.event.payload().bytes()).into_owned();
        let error = format!("POST https://user:hunter22@bank/pay password=hunter22 failed for {payload}");
        Err::<(), _>(Failure::reject(format!("{error} {}", "x".repeat(5000))))
    };
    db.relay().handler(leak).build().unwrap().run_once().await.unwrap();
    let dead = db.store().list(&Filter::dead(), Page::first(10)).await.unwrap();
    let error = dead[0].last_error.as_deref().unwrap();
    assert!(error.len() <= 2048 && error.starts_with("POST https://"), "{error}");
    for secret in ["hunter22", "4111", "private"] {
        assert!(!error.contains(secret), "{secret} in {error}");
    }
}

async fn rt5_as_much_of_an_error_is_kept_as_was_said(db: &Db) {
    db.enqueue_numbers("long", 0..1).await;
    let fail = |_: Delivery| async { Err::<(), _>(Failure::reject("é".repeat(5000))) };
    db.relay().handler(fail).error_bytes(101).build().unwrap().run_once().await.unwrap();
    let dead = db.store().list(&Filter::dead(), Page::first(10)).await.unwrap();
    assert_eq!(dead[0].last_error.as_deref(), Some("é".repeat(50).as_str()), "whole characters");
    for bytes in [63, 2049] {
        let refused = db.relay().handler(fail).error_bytes(bytes).build().unwrap_err();
        assert!(refused.to_string().contains("between 64 and 2048"), "{refused}");
    }
}

/// Attempts and the times between them, of an event that always fails.
async fn schedule(relay: posthaste::relay::RelayBuilder, db: &Db, topic: &str) -> Vec<u64> {
    db.enqueue_numbers(topic, 0..1).await;
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&times);
    let fail = move |_: Delivery| {
        seen.lock().unwrap().push(Instant::now());
        async { Err::<(), _>("no") }
    };
    let relay = relay.handler(fail).poll_interval(SECOND / 10).start().await.unwrap();
    while db.count(Status::Dead).await == 0 {
        tokio::time::sleep(SECOND).await;
    }
    relay.stop().await;
    db.store().discard(&Filter::dead(), 10).await.unwrap();
    let times = times.lock().unwrap();
    times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64().round() as u64).collect()
}

#[tokio::test(start_paused = true)]
async fn rt1_failed_events_are_tried_again_by_the_policy() {
    let db = Db::new(Kind::Memory).await;
    let secs = Duration::from_secs;
    let plain = Backoff::exponential(secs(2), secs(20)).no_jitter().max_attempts(7);
    assert_eq!(schedule(db.relay().retry(plain), &db, "a").await, [2, 4, 8, 16, 20, 20]);
    let equal = Backoff::exponential(secs(8), secs(32)).equal_jitter().max_attempts(4);
    assert_eq!(schedule(db.relay().retry(equal.clone()).random(|| 0.0), &db, "a").await, [4, 8, 16]);
    assert_eq!(schedule(db.relay().retry(equal).random(|| 0.9999), &db, "a").await, [8, 16, 32]);
    let scaled = Backoff::exponential(secs(8), secs(32)).scaled_jitter().max_attempts(3);
    assert_eq!(schedule(db.relay().retry(scaled).random(|| 0.0), &db, "a").await, [4, 8]);
    let additive = Backoff::exponential(secs(8), secs(32)).additive_jitter(secs(10)).max_attempts(3);
    assert_eq!(schedule(db.relay().retry(additive).random(|| 0.5), &db, "a").await, [13, 21]);
    struct Hourly;
    impl RetryPolicy for Hourly {
        fn delay(&self, _: u32, _: f64) -> Duration {
            Duration::from_secs(3600)
        }
        fn max_attempts(&self) -> u32 {
            3
        }
    }
    assert_eq!(schedule(db.relay().retry(Hourly), &db, "a").await, [3600, 3600]);
}

#[tokio::test(start_paused = true)]
async fn rt2_the_defaults_and_a_topic_of_its_own() {
    let db = Db::new(Kind::Memory).await;
    let waits = schedule(db.relay().random(|| 0.9999), &db, "a").await;
    assert_eq!(waits.len(), 24, "25 attempts");
    assert_eq!(waits[..7], [1, 2, 4, 8, 16, 32, 60]);
    let own = Backoff::exponential(SECOND, SECOND).no_jitter().max_attempts(2);
    assert_eq!(schedule(db.relay().retry_topic("b", own), &db, "b").await, [1]);
}

#[tokio::test(start_paused = true)]
async fn rt1_a_policy_that_panics_breaks_nothing() {
    struct Broken;
    impl RetryPolicy for Broken {
        fn delay(&self, _: u32, _: f64) -> Duration {
            panic!("broken")
        }
        fn max_attempts(&self) -> u32 {
            5
        }
    }
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..1).await;
    let recorder = Recorder::answering(|d| if d.attempt < 3 { Err(Failure::retry("no")) } else { Ok(()) });
    let relay = db.relay().retry(Broken).handler(recorder.clone()).start().await.unwrap();
    recorder.wait_for(1).await;
    relay.stop().await;
}

/// The sink is unavailable until it has been probed more often than an event may be attempted.
async fn rt3_a_sink_that_is_gone_longer_than_all_retries_loses_nothing(db: &Db) {
    const EVENTS: u64 = 5000;
    db.enqueue_numbers("a", 0..EVENTS).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let sink = {
        let asked = Arc::clone(&asked);
        MemorySink::answering(move |delivery| match asked.load(Ordering::SeqCst) {
            ..2000 => {
                asked.fetch_add(if delivery.attempt == 1 { 20 } else { 1_000_000 }, Ordering::SeqCst);
                Outcome::Unavailable { error: "connection refused".into() }
            }
            _ => Outcome::Delivered,
        })
    };
    let relay = db
        .relay()
        .sink(sink.clone())
        .batch(20)
        .retry(Backoff::exponential(SECOND / 100, SECOND / 100).max_attempts(2))
        .probe_interval(SECOND / 100, SECOND / 50)
        .start()
        .await
        .unwrap();
    while db.count(Status::Delivered).await < EVENTS {
        let status = relay.status();
        let in_memory = status.claimed + status.dispatching + status.settling;
        most.fetch_max(in_memory, Ordering::SeqCst);
        assert_eq!(db.count(Status::Dead).await, 0);
        tokio::time::sleep(SECOND / 100).await;
    }
    relay.stop().await;
    assert!(asked.load(Ordering::SeqCst) < 3000, "an attempt was spent");
    assert!(most.load(Ordering::SeqCst) <= 40 + 1, "{most:?} events were in memory");
    assert!(sink.refused().len() > 25, "the outage was too short to show anything");
    let all = db.store().list(&Filter::all(), Page::first(6000)).await.unwrap();
    let counted = u32::from(!db.is_stream().await);
    assert!(all.iter().all(|record| record.attempts == counted && record.last_error.is_none()));
    assert_eq!(sink.delivered().len() as u64, EVENTS);
}

/// Longer than all retries would last: everything is delivered afterwards, no attempt spent, nothing dead.
#[tokio::test(start_paused = true)]
async fn rt3_an_unavailable_sink_costs_no_attempt_however_long() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..5000).await;
    let spy = Spy::on(db.shared_store());
    let down = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicUsize::new(0));
    let sink = {
        let (down, asked) = (Arc::clone(&down), Arc::clone(&asked));
        MemorySink::answering(move |delivery| {
            assert_eq!(delivery.attempt, 1, "an attempt was spent");
            if down.load(Ordering::SeqCst) {
                asked.fetch_add(1, Ordering::SeqCst);
                Outcome::Unavailable { error: "connection refused".into() }
            } else {
                Outcome::Delivered
            }
        })
    };
    let relay = Relay::on(spy.clone())
        .sink(sink.clone())
        .retry(Backoff::exponential(SECOND, SECOND).max_attempts(2))
        .start()
        .await
        .unwrap();
    tokio::time::sleep(3600 * SECOND).await;
    let status = relay.status();
    let (since, why) = status.routes[0].resting.clone().unwrap();
    assert!(since > 3500 * SECOND && why == "connection refused", "{since:?} {why}");
    assert_eq!(status.claimed + status.dispatching + status.settling, 0, "nothing piles up in memory");
    // Once a batch or a few, then one event at each probe: at least every 30 s, at most every second.
    let events = asked.load(Ordering::SeqCst);
    assert!((120..2000 + 300).contains(&events), "{events} events were tried on a dead sink");
    assert!(spy.claims.lock().unwrap().len() < 300, "the database was asked all the time");
    assert_eq!(db.count(Status::Pending).await, 5000);
    db.enqueue_numbers("a", 0..10).await;
    down.store(false, Ordering::SeqCst);
    let begun = Instant::now();
    while db.count(Status::Delivered).await < 5010 {
        tokio::time::sleep(SECOND).await;
    }
    assert!(begun.elapsed() < 35 * SECOND, "{:?}", begun.elapsed());
    assert!(relay.status().routes[0].resting.is_none());
    relay.stop().await;
    assert_eq!((db.count(Status::Dead).await, sink.delivered().len()), (0, 5010));
}

/// One of two handlers is unavailable: the other goes on.
#[tokio::test(start_paused = true)]
async fn rt3_only_the_unavailable_route_rests() {
    let db = Db::new(Kind::Memory).await;
    let down = Arc::new(AtomicBool::new(true));
    let (mail, stock) = {
        let down = Arc::clone(&down);
        let mail = Recorder::answering(move |_| match down.load(Ordering::SeqCst) {
            true => Err(Failure::unavailable("smtp is down")),
            false => Ok(()),
        });
        (mail, Recorder::default())
    };
    let router = Router::new().topic("mail", mail.clone()).topic("stock", stock.clone());
    let spy = Spy::on(db.shared_store());
    let relay = Relay::on(spy.clone()).handler(router).start().await.unwrap();
    db.enqueue_numbers("mail", 0..2000).await;
    for round in 1..=10 {
        db.enqueue_numbers("stock", 0..500).await;
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(stock.events(), round * 500, "the healthy route waited");
    }
    assert_eq!(mail.events(), 0);
    // What waits for the resting route is left alone: a few batches before that was known, then probes.
    let written: usize = spy.settles.lock().unwrap().iter().sum();
    assert!(written < 5000 + 2000 + 50, "{written} settlements");
    down.store(false, Ordering::SeqCst);
    mail.wait_for(2000).await;
    relay.stop().await;
    let all = db.store().list(&Filter::all().topic("mail"), Page::first(3000)).await.unwrap();
    assert!(all.iter().all(|record| record.attempts == 1 && record.status == Status::Delivered));
}

#[tokio::test(start_paused = true)]
async fn re11_a_database_that_goes_away_is_waited_for() {
    let db = Db::new(Kind::Memory).await;
    let spy = Spy::on(db.shared_store());
    spy.gone.store(true, Ordering::SeqCst);
    let recorder = Recorder::default();
    let relay = Relay::on(spy.clone()).handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("a", 0..500).await;
    for round in 1..=5 {
        tokio::time::sleep(300 * SECOND).await;
        assert!(relay.status().database.unwrap().contains("the database is gone"));
        spy.gone.store(false, Ordering::SeqCst);
        recorder.wait_for(500 * round).await;
        tokio::time::sleep(10 * SECOND).await;
        assert_eq!(relay.status().database, None);
        spy.gone.store(true, Ordering::SeqCst);
        db.enqueue_numbers("a", 0..500).await;
    }
    // Five outages of five minutes: tried again and again, but not in a frenzy.
    let failures = spy.failures.load(Ordering::SeqCst);
    assert!((100..5000).contains(&failures), "{failures} failures");
    spy.gone.store(false, Ordering::SeqCst);
    recorder.wait_for(3000).await;
    relay.stop().await;
    assert_eq!((db.count(Status::Delivered).await, recorder.repeats()), (3000, 0));
}

/// The database carries the claim out and answers too late: its attempt is not spent.
#[tokio::test(start_paused = true)]
async fn re11_a_claim_that_answers_too_late_is_given_back() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..10).await;
    let spy = Spy::on(db.shared_store());
    *spy.claim_answers_after.lock().unwrap() = 20 * SECOND;
    let recorder = Recorder::default();
    let once = Backoff::default().max_attempts(1);
    let relay = Relay::on(spy.clone()).handler(recorder.clone()).retry(once).start().await.unwrap();
    tokio::time::sleep(18 * SECOND).await;
    assert_eq!(recorder.events(), 0);
    *spy.claim_answers_after.lock().unwrap() = Duration::ZERO;
    recorder.wait_for(10).await;
    relay.stop().await;
    assert_eq!((db.count(Status::Delivered).await, db.count(Status::Dead).await), (10, 0));
}
