//! Several routes in one relay: each rests, fails and is slow by itself.
//!
//! Rows of the contract: RT3, RE9, RE12.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::dispatch::{HandlerSink, Route, Routes};
use posthaste::sink::{Delivery, Outcome, Sink};
use posthaste::store::{Filter, Page, Status};
use posthaste::{Backoff, ErrorKind, Event, Failure, Relay, Router};

use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, Recorder};

const SECOND: Duration = Duration::from_secs(1);

conformance!(re12_a_paused_route_waits_and_spends_no_attempt);

streams!(re12_a_paused_route_waits_and_spends_no_attempt);

/// A handler that is unavailable while the switch is on.
fn switched(down: &Arc<AtomicBool>) -> Recorder {
    let down = Arc::clone(down);
    Recorder::answering(move |_| match down.load(Ordering::SeqCst) {
        true => Err(Failure::unavailable("down")),
        false => Ok(()),
    })
}

fn down(is: bool) -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(is))
}

#[tokio::test(start_paused = true)]
async fn rt3_all_routes_rest_and_all_come_back() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("mail", 0..300).await;
    db.enqueue_numbers("stock", 0..300).await;
    let outage = down(true);
    let recorder = switched(&outage);
    let router = Router::new().topic("mail", recorder.clone()).topic("stock", recorder.clone());
    let relay = db.relay().handler(router).start().await.unwrap();
    tokio::time::sleep(600 * SECOND).await;
    assert!(relay.status().routes.iter().all(|route| route.resting.is_some()));
    outage.store(false, Ordering::SeqCst);
    tokio::time::sleep(65 * SECOND).await;
    assert_eq!((recorder.events(), recorder.repeats()), (600, 0));
    assert!(relay.status().routes.iter().all(|route| route.resting.is_none()));
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn rt3_a_route_is_probed_though_one_event_is_claimed_at_a_time() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("mail", 0..50).await;
    let outage = down(true);
    let (mail, stock) = (switched(&outage), Recorder::default());
    let router = Router::new().topic("mail", mail.clone()).topic("stock", stock.clone());
    let relay = db.relay().handler(router).batch(1).start().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    outage.store(false, Ordering::SeqCst);
    tokio::time::sleep(65 * SECOND).await;
    assert_eq!(mail.events(), 50);
    relay.stop().await;
}

/// Routes that do not say which topics are theirs.
struct Opaque([Recorder; 2]);

impl Routes for Opaque {
    fn routes(&self) -> Vec<Route> {
        let route = |(name, recorder): (&str, &Recorder)| Route {
            name: name.into(),
            sink: Arc::new(HandlerSink(recorder.clone())),
        };
        ["mail", "stock"].into_iter().zip(&self.0).map(route).collect()
    }

    fn find(&self, event: &Event) -> Option<usize> {
        Some(usize::from(event.topic() == "stock"))
    }
}

#[tokio::test(start_paused = true)]
async fn rt3_one_of_two_resting_routes_comes_back_behind_the_others_backlog() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("mail", 0..2000).await;
    tokio::time::sleep(SECOND).await;
    db.enqueue_numbers("stock", 0..10).await;
    let (mail_down, stock_down) = (down(true), down(true));
    let (mail, stock) = (switched(&mail_down), switched(&stock_down));
    let relay = db.relay().routes(Opaque([mail.clone(), stock.clone()])).start().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    stock_down.store(false, Ordering::SeqCst);
    tokio::time::sleep(180 * SECOND).await;
    assert_eq!((stock.events(), mail.events()), (10, 0));
    mail_down.store(false, Ordering::SeqCst);
    mail.wait_for(2000).await;
    relay.stop().await;
}

/// The sink comes back, and the event that is to find out hangs by itself.
#[tokio::test(start_paused = true)]
async fn rt3_a_probe_that_hangs_steps_aside() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("poison", 0..1).await;
    tokio::time::sleep(SECOND).await;
    db.enqueue_numbers("good", 0..100).await;
    let outage = down(true);
    let good = Recorder::default();
    let handler = {
        let (outage, good) = (Arc::clone(&outage), good.clone());
        move |delivery: Delivery| {
            let (outage, good) = (Arc::clone(&outage), good.clone());
            async move {
                if outage.load(Ordering::SeqCst) {
                    return Err(Failure::unavailable("down"));
                }
                if delivery.event.topic() == "poison" {
                    std::future::pending::<()>().await;
                }
                posthaste::Handler::handle(&good, &delivery).await
            }
        }
    };
    let relay = db.relay().handler(handler).retry(Backoff::default().max_attempts(3)).start().await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    outage.store(false, Ordering::SeqCst);
    tokio::time::sleep(150 * SECOND).await;
    assert_eq!((good.events(), good.repeats()), (100, 0));
    while db.count(Status::Dead).await == 0 {
        tokio::time::sleep(SECOND).await;
    }
    relay.stop().await;
}

/// What began before the outage ends in it, one way or another: the sink is not taken to be back for that.
#[tokio::test(start_paused = true)]
async fn rt3_stragglers_do_not_end_an_outage() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("hang", 0..10).await;
    db.enqueue_numbers("down", 0..200).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |delivery: Delivery| {
            let calls = Arc::clone(&calls);
            async move {
                if delivery.event.topic() == "hang" && delivery.attempt == 1 {
                    std::future::pending::<()>().await;
                }
                calls.fetch_add(1, Ordering::SeqCst);
                Err::<(), _>(Failure::unavailable("down"))
            }
        }
    };
    let relay = db.relay().handler(handler).start().await.unwrap();
    tokio::time::sleep(5 * SECOND).await;
    let before = calls.load(Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    let probes = calls.load(Ordering::SeqCst) - before;
    assert!(probes <= 10, "{probes} calls in a minute of outage");
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn re9_a_slow_route_does_not_starve_the_others() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("slow", 0..4000).await;
    db.enqueue_numbers("slower", 0..4000).await;
    db.enqueue_numbers("fast", 0..10).await;
    let (slow, fast) = (Recorder::default().taking(10 * SECOND), Recorder::default());
    let router =
        Router::new().topic("slow", slow.clone()).topic("slower", slow.clone()).topic("fast", fast.clone());
    let relay = db.relay().handler(router).start().await.unwrap();
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(fast.events(), 10);
    for round in 2..=5 {
        db.enqueue_numbers("fast", 0..10).await;
        tokio::time::sleep(20 * SECOND).await;
        assert_eq!(fast.events(), round * 10);
    }
    relay.stop().await;
}

/// A sink for batches that never answers, and a handler.
struct HangsBesideHandler(Recorder);

struct Never;

#[async_trait]
impl Sink for Never {
    async fn publish(&self, _: &[Delivery]) -> Vec<Outcome> {
        std::future::pending().await
    }
}

impl Routes for HangsBesideHandler {
    fn routes(&self) -> Vec<Route> {
        let handler = Arc::new(HandlerSink(self.0.clone()));
        vec![
            Route { name: "never".into(), sink: Arc::new(Never) },
            Route { name: "fast".into(), sink: handler },
        ]
    }

    fn find(&self, event: &Event) -> Option<usize> {
        self.of_topic(event.topic())
    }

    fn of_topic(&self, topic: &str) -> Option<usize> {
        Some(usize::from(topic == "fast"))
    }
}

#[tokio::test(start_paused = true)]
async fn re9_a_sink_that_hangs_does_not_take_up_every_slot() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("never", 0..4000).await;
    db.enqueue_numbers("fast", 0..10).await;
    let fast = Recorder::default();
    let relay = db.relay().routes(HangsBesideHandler(fast.clone())).start().await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    for round in 1..=5 {
        assert_eq!(fast.events(), round * 10);
        db.enqueue_numbers("fast", 0..10).await;
        tokio::time::sleep(40 * SECOND).await;
    }
    relay.stop().await;
}

/// A route with a backlog has its events left out of claims now and then; a pass is not over before they are.
#[tokio::test(start_paused = true)]
async fn re12_one_pass_of_several_routes_delivers_everything_that_is_due() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("slow", 0..3000).await;
    db.enqueue_numbers("fast", 0..3000).await;
    let (slow, fast) = (Recorder::default().taking(SECOND / 10), Recorder::default());
    let router = Router::new().topic("slow", slow.clone()).topic("fast", fast.clone());
    let began = tokio::time::Instant::now();
    let passed = db.relay().handler(router).build().unwrap().run_once().await.unwrap();
    assert_eq!(passed.delivered, 6000);
    // 24 of the workers take a tenth of a second each: claims were not what it waited for.
    assert!(began.elapsed() < 18 * SECOND, "{:?}", began.elapsed());
}

/// Hangs on a batch that holds a certain event.
struct Hangs(Recorder);

#[async_trait]
impl Sink for Hangs {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        if batch.iter().any(|delivery| delivery.event.topic() == "poison") {
            std::future::pending::<()>().await;
        }
        for delivery in batch {
            posthaste::Handler::handle(&self.0, delivery).await.unwrap();
        }
        vec![Outcome::Delivered; batch.len()]
    }
}

#[tokio::test(start_paused = true)]
async fn re9_of_a_batch_that_hangs_only_the_culprit_fails() {
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("good", 0..200).await;
    db.enqueue_numbers("poison", 0..1).await;
    db.enqueue_numbers("good", 0..200).await;
    let recorder = Recorder::default();
    let relay = db
        .relay()
        .sink(Hangs(recorder.clone()))
        .timeout(3 * SECOND)
        .retry(Backoff::default().max_attempts(1))
        .start()
        .await
        .unwrap();
    recorder.wait_for(400).await;
    while db.count(Status::Dead).await == 0 {
        tokio::time::sleep(SECOND).await;
    }
    relay.stop().await;
    assert_eq!((recorder.repeats(), db.count(Status::Dead).await), (0, 1));
    assert_eq!(db.count(Status::Delivered).await, 400, "with their only attempt");
}

/// An operator's pause of one sink: the other goes on, a stop and start do not end it, and no attempt is spent.
async fn re12_a_paused_route_waits_and_spends_no_attempt(db: &Db) {
    let (mail, stock) = (Recorder::default(), Recorder::default());
    let router = Router::new().topic("mail", mail.clone()).topic("stock", stock.clone());
    let relay = db.relay().handler(router).probe_interval(SECOND / 10, SECOND / 2).build().unwrap();
    relay.pause_route("mail").unwrap();
    relay.start().await.unwrap();
    db.enqueue_numbers("mail", 0..50).await;
    for round in 1..=3 {
        db.enqueue_numbers("stock", 0..20).await;
        stock.wait_for(20 * round).await;
        let status = relay.status();
        let route = |name: &str| status.routes.iter().find(|route| *route.name == *name).unwrap().clone();
        assert_eq!((route("mail").paused, route("stock").paused), (true, false));
        assert_eq!((route("mail").resting, mail.events()), (None, 0));
        if round == 2 {
            relay.stop().await;
            relay.start().await.unwrap();
        }
    }
    relay.run_once().await.unwrap();
    let waiting = db.store().list(&Filter::all().topic("mail"), Page::first(100)).await.unwrap();
    assert!(waiting.iter().all(|record| record.attempts <= u32::from(record.status == Status::Processing)));
    assert_eq!(mail.events(), 0);
    relay.resume_route("mail").unwrap();
    mail.wait_for(50).await;
    assert_eq!(mail.repeats(), 0);
    assert!(mail.begun().iter().all(|(_, attempt)| *attempt == 1), "{:?}", mail.begun());
    relay.stop().await;
    assert_eq!(db.count(Status::Delivered).await, 110);
}

/// The only route: nothing is even asked for while it is paused.
#[tokio::test(start_paused = true)]
async fn re12_nothing_is_claimed_while_the_only_route_is_paused() {
    let db = Db::new(Kind::Memory).await;
    let spy = Spy::on(db.shared_store());
    let recorder = Recorder::default();
    let relay = Relay::on(spy.clone()).handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("a", 0..10).await;
    recorder.wait_for(10).await;
    relay.pause_route("handler").unwrap();
    relay.pause_route("handler").unwrap();
    tokio::time::sleep(10 * SECOND).await;
    let claims = spy.claims.lock().unwrap().len();
    db.enqueue_numbers("a", 0..10).await;
    tokio::time::sleep(600 * SECOND).await;
    assert_eq!((spy.claims.lock().unwrap().len(), recorder.events()), (claims, 10));
    assert_eq!(relay.run_once().await.unwrap(), Default::default());
    relay.resume_route("handler").unwrap();
    let resumed = tokio::time::Instant::now();
    recorder.wait_for(20).await;
    assert!(resumed.elapsed() < SECOND, "{:?}", resumed.elapsed());
    relay.stop().await;
}

/// A sink that becomes unavailable and available again while it is paused stays paused.
#[tokio::test(start_paused = true)]
async fn re12_a_pause_outlasts_an_outage() {
    let db = Db::new(Kind::Memory).await;
    let outage = down(true);
    let recorder = switched(&outage);
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("a", 0..10).await;
    while relay.status().routes[0].resting.is_none() {
        tokio::time::sleep(SECOND / 10).await;
    }
    relay.pause_route("handler").unwrap();
    outage.store(false, Ordering::SeqCst);
    tokio::time::sleep(600 * SECOND).await;
    let route = relay.status().routes[0].clone();
    assert!(route.paused && route.resting.is_some(), "{route:?}");
    assert_eq!(recorder.events(), 0, "a probe was let through");
    relay.resume_route("handler").unwrap();
    recorder.wait_for(10).await;
    let route = relay.status().routes[0].clone();
    assert!(!route.paused && route.resting.is_none(), "{route:?}");
    relay.stop().await;
}

#[tokio::test]
async fn re12_a_route_that_is_not_there_cannot_be_paused() {
    let db = Db::new(Kind::Memory).await;
    let relay = db.relay().handler(Recorder::default()).build().unwrap();
    for error in [relay.pause_route("mail").unwrap_err(), relay.resume_route("mail").unwrap_err()] {
        assert_eq!(*error.kind(), ErrorKind::InvalidSetting);
        assert!(error.to_string().contains("no route \"mail\" among [\"handler\"]"), "{error}");
    }
}
