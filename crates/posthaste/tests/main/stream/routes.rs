//! Several routes, batches and breakers: whichever ways the events of an aggregate go, they arrive in order.
//!
//! Rows of the contract: SM1, SM2, RT3, RT4, RE4, RE9.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use posthaste::dispatch::{HandlerSink, Route, Routes};
use posthaste::relay::RelayBuilder;
use posthaste::sink::{Delivery, Outcome, Sink};
use posthaste::{Backoff, Event, Failure, Handler, Relay, Router};

use super::history::{Fact, History, Witness};
use super::producers::{commit, event};
use super::{SECOND, done, stream};
use crate::harness::{Db, Kind, MINUTE, Recorder, until};

conformance_sql_by_kind!(
    sm1_order_across_routes,
    sm1_order_across_routes_of_which_one_rests,
    sm1_order_in_batches,
    sm1_order_in_batches_of_which_some_panic,
    sm1_order_in_batches_that_fail_in_the_middle,
    sm1_order_while_a_relay_is_paused_and_resumed,
    sm1_order_with_the_least_room,
    sm2_what_has_no_route_blocks_its_aggregate_in_its_turn,
    rt3_only_the_unavailable_route_rests,
    re9_a_slow_route_does_not_starve_the_others,
);

const MILLIS: Duration = Duration::from_millis(1);
const AGGREGATES: u64 = 20;

/// A relay that is quick about everything.
fn brisk(db: &Db) -> RelayBuilder {
    db.relay()
        .poll_interval(20 * MILLIS)
        .probe_interval(20 * MILLIS, 50 * MILLIS)
        .retry(Backoff::exponential(10 * MILLIS, 20 * MILLIS).max_attempts(50))
}

/// Commits versions of several aggregates, in turns; the topic of each is the one that this says.
async fn write(
    db: &Db,
    history: &History,
    versions: std::ops::RangeInclusive<u64>,
    topic: impl Fn(u64) -> &'static str,
) {
    let facts = versions.flat_map(|version| (0..AGGREGATES).map(move |n| Fact::new(format!("{n}"), version)));
    let events: Vec<Event> = facts.map(|fact| event(topic(fact.version), &fact)).collect();
    for part in events.chunks(200) {
        commit(db, history, part.to_vec()).await;
    }
}

/// Everything is delivered, in order.
async fn arrives(history: &History, relay: &Relay) {
    history.wait_for(history.commits(), MINUTE).await;
    let drained = relay.stop().await;
    assert!(drained.is_clean(), "{drained:?}");
    history.assert_clean();
}

/// An aggregate's events take turns between a quick handler, a slow one, and one for many.
async fn sm1_order_across_routes(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    let topic = |version| ["quick", "slow", "quick", "quick", "third"][version as usize % 5];
    write(&db, &history, 1..=30, topic).await;
    let witness = |takes| Witness::new(&history, 0).taking(takes);
    let router = Router::new()
        .topic("quick", witness(Duration::ZERO))
        .topic("slow", witness(5 * MILLIS))
        .topic("third", witness(MILLIS));
    let relay = brisk(&db).handler(router).concurrency(4).start().await.unwrap();
    write(&db, &history, 31..=60, topic).await;
    arrives(&history, &relay).await;
    done(db).await;
}

/// One of the routes is unavailable now and then: what comes behind waits, and goes on.
async fn sm1_order_across_routes_of_which_one_rests(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    let topic = |version| if version % 3 == 0 { "moody" } else { "well" };
    write(&db, &history, 1..=30, topic).await;
    let calls = AtomicUsize::new(0);
    let moody =
        Witness::new(&history, 0).answering(move |_| match calls.fetch_add(1, Ordering::SeqCst) % 7 {
            0..3 => Err(Failure::unavailable("in a mood")),
            _ => Ok(()),
        });
    let router = Router::new().topic("moody", moody).topic("well", Witness::new(&history, 0));
    let relay = brisk(&db).handler(router).start().await.unwrap();
    write(&db, &history, 31..=60, topic).await;
    arrives(&history, &relay).await;
    done(db).await;
}

/// A sink that keeps the order of a batch, and what it does to each event of it.
struct Ordered<F>(Witness, F);

#[async_trait]
impl<F: Fn(&Delivery) + Send + Sync + 'static> Sink for Ordered<F> {
    fn keeps_order(&self) -> bool {
        true
    }

    /// What comes behind a failure of its aggregate is not tried.
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        batch.iter().for_each(&self.1);
        let mut failed = std::collections::HashSet::new();
        let mut outcomes = Vec::new();
        for delivery in batch {
            let aggregate = delivery.event.aggregate_id().map(str::to_owned);
            let outcome = match failed.contains(&aggregate) {
                true => Outcome::Retry { after: None, error: "not tried".to_owned() },
                false => match self.0.handle(delivery).await {
                    Ok(()) => Outcome::Delivered,
                    Err(_) => {
                        failed.insert(aggregate);
                        Outcome::Retry { after: None, error: "no".to_owned() }
                    }
                },
            };
            outcomes.push(outcome);
        }
        outcomes
    }
}

async fn sm1_order_in_batches(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    write(&db, &history, 1..=50, |_| "a").await;
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let count = AtomicUsize::new(0);
    let sink = Ordered(Witness::new(&history, 0).taking(MILLIS / 5), move |delivery: &Delivery| {
        // How many of one aggregate there are at most in a batch is seen by how many batches there are.
        if delivery.event.aggregate_id() == Some("0") {
            seen.store(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
    });
    let relay = brisk(&db).sink(sink).batch(100).start().await.unwrap();
    write(&db, &history, 51..=100, |_| "a").await;
    arrives(&history, &relay).await;
    assert_eq!(most.load(Ordering::SeqCst), 100, "nothing was published twice");
    done(db).await;
}

/// Nobody knows whose fault it was: each goes by itself, and in order.
async fn sm1_order_in_batches_of_which_some_panic(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    write(&db, &history, 1..=50, |_| "a").await;
    let calls = AtomicUsize::new(0);
    let sink = Ordered(Witness::new(&history, 0), move |_: &Delivery| {
        assert!(calls.fetch_add(1, Ordering::SeqCst) % 97 != 20, "clumsy");
    });
    let relay = brisk(&db).sink(sink).batch(40).start().await.unwrap();
    write(&db, &history, 51..=100, |_| "a").await;
    arrives(&history, &relay).await;
    done(db).await;
}

/// Those of an aggregate that come behind a failure spend no attempt and wait for it.
async fn sm1_order_in_batches_that_fail_in_the_middle(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    write(&db, &history, 1..=50, |_| "a").await;
    let witness = Witness::new(&history, 0).answering(|delivery| {
        match Fact::of(delivery).version % 10 == 5 && delivery.attempt < 3 {
            true => Err(Failure::retry("not yet")),
            false => Ok(()),
        }
    });
    let once = Backoff::exponential(5 * MILLIS, 5 * MILLIS).max_attempts(3);
    let relay =
        brisk(&db).retry(once).sink(Ordered(witness, |_: &Delivery| {})).batch(60).start().await.unwrap();
    write(&db, &history, 51..=100, |_| "a").await;
    arrives(&history, &relay).await;
    done(db).await;
}

async fn sm1_order_while_a_relay_is_paused_and_resumed(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    write(&db, &history, 1..=50, |_| "a").await;
    let relay = brisk(&db).handler(Witness::new(&history, 0).taking(2 * MILLIS)).start().await.unwrap();
    until("it has begun", async || history.deliveries() > 0).await;
    for n in 0..40 {
        relay.pause();
        tokio::time::sleep(MILLIS * (n % 7)).await;
        relay.resume();
        tokio::time::sleep(MILLIS * (n % 11)).await;
    }
    arrives(&history, &relay).await;
    done(db).await;
}

/// One event in memory, one at a time.
async fn sm1_order_with_the_least_room(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    write(&db, &history, 1..=5, |_| "a").await;
    let witness = Witness::new(&history, 0).answering(super::history::flaky);
    let relay = brisk(&db).handler(witness).batch(1).capacity(1).concurrency(1).start().await.unwrap();
    write(&db, &history, 6..=10, |_| "a").await;
    arrives(&history, &relay).await;
    done(db).await;
}

/// It is dead, whatever becomes of the routes there are; before it all goes well, and behind it nothing goes.
async fn sm2_what_has_no_route_blocks_its_aggregate_in_its_turn(kind: Kind) {
    let db = stream(kind, 4).await;
    let history = History::default();
    let topic = |version| if version == 5 { "unheard.of" } else { "known" };
    write(&db, &history, 1..=9, topic).await;
    let router = Router::new()
        .topic("down", |_: Delivery| async { Err::<(), _>(Failure::unavailable("down")) })
        .topic("known", Witness::new(&history, 0).taking(MILLIS));
    let relay = brisk(&db).handler(router).start().await.unwrap();
    let blocked = async || db.store().stream().await.unwrap().unwrap().blocked(100).await.unwrap();
    until("all are blocked", async || blocked().await.len() as u64 == AGGREGATES).await;
    until("all that come behind are parked", async || blocked().await.iter().all(|one| one.waiting.n == 4))
        .await;
    relay.stop().await;
    for aggregate in 0..AGGREGATES {
        assert_eq!(history.versions_of(&aggregate.to_string()), [1, 2, 3, 4]);
    }
    done(db).await;
}

/// The other goes on meanwhile, and not much is written for the one that rests.
async fn rt3_only_the_unavailable_route_rests(kind: Kind) {
    let db = stream(kind, 4).await;
    let down = Arc::new(AtomicBool::new(true));
    let is_down = Arc::clone(&down);
    let mail = Recorder::answering(move |delivery| match is_down.load(Ordering::SeqCst) {
        _ if delivery.attempt > 1 => Err(Failure::reject("an attempt was spent")),
        true => Err(Failure::unavailable("smtp is down")),
        false => Ok(()),
    });
    let stock = Recorder::default();
    let router = Router::new().topic("mail", mail.clone()).topic("stock", stock.clone());
    let relay = brisk(&db).handler(router).start().await.unwrap();
    db.enqueue_numbers("mail", 0..500).await;
    for round in 1..=5 {
        db.enqueue_numbers("stock", 0..500).await;
        let began = Instant::now();
        stock.wait_for(round * 500).await;
        assert!(began.elapsed() < 10 * SECOND, "the healthy route waited for {:?}", began.elapsed());
    }
    assert_eq!(mail.events(), 0);
    down.store(false, Ordering::SeqCst);
    mail.wait_for(500).await;
    relay.stop().await;
    assert_eq!((mail.repeats(), stock.repeats()), (0, 0));
    done(db).await;
}

/// A route that never gets anywhere, beside a quick one.
struct Beside(Recorder);

struct Never;

#[async_trait]
impl Sink for Never {
    async fn publish(&self, _: &[Delivery]) -> Vec<Outcome> {
        std::future::pending().await
    }
}

impl Routes for Beside {
    fn routes(&self) -> Vec<Route> {
        let quick = Arc::new(HandlerSink(self.0.clone()));
        vec![
            Route { name: "never".into(), sink: Arc::new(Never) },
            Route { name: "quick".into(), sink: quick },
        ]
    }

    fn find(&self, event: &Event) -> Option<usize> {
        self.of_topic(event.topic())
    }

    fn of_topic(&self, topic: &str) -> Option<usize> {
        Some(usize::from(topic == "quick"))
    }
}

async fn re9_a_slow_route_does_not_starve_the_others(kind: Kind) {
    let db = stream(kind, 4).await;
    for part in 0..4 {
        db.enqueue_numbers("never", part * 1000..(part + 1) * 1000).await;
    }
    let quick = Recorder::default();
    let relay = db.relay().routes(Beside(quick.clone())).drain_timeout(SECOND).start().await.unwrap();
    for round in 1..=3 {
        db.enqueue_numbers("quick", 0..10).await;
        let began = Instant::now();
        quick.wait_for(round * 10).await;
        assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    }
    relay.stop().await;
    done(db).await;
}
