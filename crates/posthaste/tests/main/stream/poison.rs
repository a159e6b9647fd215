//! One event that fails, and who waits for it: those behind it of its aggregate, in order, and nobody else.
//!
//! Rows of the contract: SM2.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste::relay::OnDead;
use posthaste::store::{Filter, Status};
use posthaste::{Admin, Backoff, Event, Failure};

use super::fleet::Fleet;
use super::history::{Fact, History, Latencies, Witness};
use super::producers::{commit, event, steady, versions};
use super::{SECOND, done, stream};
use crate::harness::{Db, Kind, MINUTE, until};

conformance_sql_by_kind!(
    sm2_a_rejected_event_parks_its_aggregate_until_a_replay,
    sm2_an_event_out_of_attempts_parks_its_aggregate_until_it_is_discarded,
    sm2_an_event_that_succeeds_at_its_third_attempt_is_waited_for,
    sm2_a_busy_aggregate_is_tried_again_before_all_of_it_is_parked,
    sm2_a_delayed_event_of_a_busy_aggregate_comes_at_its_time,
    sm2_an_unordered_topic_parks_only_itself,
    sm2_events_of_nothing_and_of_something_else_wait_for_nobody,
    sm2_a_delayed_event_holds_up_nobody,
    sm2_a_topic_may_go_on_after_a_death,
    sm2_what_is_replayed_comes_to_its_turn_in_a_busy_aggregate,
);

/// The one that fails, and how many come after it.
const POISON: u64 = 101;
const TAIL: u64 = 10_000;

/// A busy aggregate, at a rate that its handler keeps up with, and others at a steady one; how the others fared.
async fn traffic(db: &Db, history: &History, busy: &str, first: u64) -> Latencies {
    let producing = async {
        let mut tick = tokio::time::interval(Duration::from_millis(80));
        for part in 0..TAIL / 100 {
            tick.tick().await;
            let from = first + part * 100;
            versions(db, history, busy, from..=from + 99).await;
        }
    };
    let (began, ()) = tokio::join!(steady(db, history, "calm-", 100, 8 * SECOND), producing);
    flowing(history).await;
    history.latencies(began, |aggregate| aggregate.starts_with("calm-"))
}

/// Waits until everything of the others is delivered.
async fn flowing(history: &History) {
    let calm = |n: usize| format!("calm-{n}");
    until("the others are delivered", async || {
        (0..8).all(|n| history.deliveries_of(&calm(n)) == history.commits_of(&calm(n)))
    })
    .await;
}

/// The same with an event that fails in it; then what an operator does about it.
async fn poisoned(kind: Kind, failure: fn() -> Failure, mend: bool) {
    let db = stream(kind, 8).await;
    let history = History::default();
    let mended = Arc::new(AtomicBool::new(false));
    let fleet = {
        let mended = Arc::clone(&mended);
        Fleet::with(&db, 2, |relay, n| {
            let mended = Arc::clone(&mended);
            relay.handler(Witness::new(&history, n).answering(move |delivery| {
                match Fact::of(delivery) == Fact::new("busy", POISON) && !mended.load(Ordering::SeqCst) {
                    true => Err(failure()),
                    false => Ok(()),
                }
            }))
        })
        .await
    };
    let before = traffic(&db, &history, "healthy", 1).await;
    until("the healthy one is delivered", async || history.deliveries_of("healthy") == TAIL as usize).await;

    versions(&db, &history, "busy", 1..=POISON - 1).await;
    let poison = event("order.changed", &Fact::new("busy", POISON));
    let poison = commit(&db, &history, vec![poison]).await[0];
    let then = traffic(&db, &history, "busy", POISON + 1).await;
    println!("beside a healthy one: {before}; beside a poisoned one: {then}");
    until("it is dead", async || db.count(Status::Dead).await == 1).await;
    assert_eq!(history.versions_of("busy"), (1..POISON).collect::<Vec<_>>(), "the tail waits");
    let expected = if failure().message() == "rejected" { vec![1] } else { vec![1, 2, 3] };
    assert_eq!(history.attempts_at(poison), expected);
    let blocked = db.store().stream().await.unwrap().unwrap().blocked(10).await.unwrap();
    assert_eq!(blocked.len(), 1);
    assert_eq!((blocked[0].aggregate_id.as_str(), blocked[0].event_id), ("busy", poison));

    let admin = Admin::new(db.shared_store());
    let began = Instant::now();
    if mend {
        mended.store(true, Ordering::SeqCst);
        assert_eq!(admin.replay(Filter::dead()).run().await.unwrap(), 1);
    } else {
        history.discarded(poison);
        assert_eq!(admin.discard(Filter::dead()).run().await.unwrap(), 1);
    }
    let tail = (POISON + TAIL) as usize - usize::from(!mend);
    let tail_drains = async {
        until("the tail is delivered", async || history.deliveries_of("busy") == tail).await;
        println!("the tail took {:?}", began.elapsed());
    };
    let (began, ()) = tokio::join!(steady(&db, &history, "calm-", 50, SECOND), tail_drains);
    flowing(&history).await;
    let during = history.latencies(began, |aggregate| aggregate.starts_with("calm-"));
    println!("while the tail was delivered: {during}");
    fleet.stop().await;
    history.assert_clean();
    assert_eq!(db.count(Status::Dead).await, 0);
    then.assert_like(&before, "beside a poisoned one");
    assert!(during.percentile(99) < 2 * SECOND, "the others waited for the tail: {during}");
    done(db).await;
}

async fn sm2_a_rejected_event_parks_its_aggregate_until_a_replay(kind: Kind) {
    poisoned(kind, || Failure::reject("rejected"), true).await;
}

async fn sm2_an_event_out_of_attempts_parks_its_aggregate_until_it_is_discarded(kind: Kind) {
    poisoned(kind, || Failure::retry("not now"), false).await;
}

/// Much of it waits to be read, so that something of it is always under way.
async fn sm2_a_busy_aggregate_is_tried_again_before_all_of_it_is_parked(kind: Kind) {
    const BACKLOG: u64 = 5000;
    let db = stream(kind, 1).await;
    let history = History::default();
    versions(&db, &history, "busy", 1..=BACKLOG).await;
    let again = Arc::new(tokio::sync::Notify::new());
    let witness = {
        let again = Arc::clone(&again);
        Witness::new(&history, 0).answering(move |delivery| {
            if Fact::of(delivery).version > 1 || delivery.attempt > 2 {
                return Ok(());
            }
            if delivery.attempt == 2 {
                again.notify_one();
            }
            Err(Failure::retry("not yet"))
        })
    };
    let backoff = Backoff::exponential(Duration::from_millis(10), Duration::from_millis(20)).max_attempts(5);
    let relay = db.relay().batch(50).retry(backoff).handler(witness).start().await.unwrap();
    again.notified().await;
    let lag = db.store().stream().await.unwrap().unwrap().lag(10_000).await.unwrap();
    assert!(lag[0].events.n > BACKLOG / 2, "all of it was read before the first was tried again: {lag:?}");
    history.wait_for(BACKLOG as usize, MINUTE).await;
    relay.stop().await;
    history.assert_clean();
    done(db).await;
}

/// Something of it is always under way.
async fn sm2_a_delayed_event_of_a_busy_aggregate_comes_at_its_time(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let busy = |n: u64| event("order.changed", &Fact::new("busy", n));
    let late = Event::json("late", &Fact::new("late", 1)).unwrap().aggregate("order", "busy").delay(SECOND);
    let late = late.build().unwrap();
    let id = late.id();
    let mut tx = db.begin().await;
    tx.enqueue(&db, late).await.unwrap();
    tx.commit().await;
    let witness = Witness::new(&history, 0).taking(Duration::from_millis(5));
    let relay = db.relay().batch(20).handler(witness).start().await.unwrap();
    let began = Instant::now();
    let mut written = 0;
    while !history.is_delivered(id) {
        assert!(began.elapsed() < 20 * SECOND, "it waits for the others: {written} have come meanwhile");
        // A little ahead of what the handler gets done.
        if written < history.deliveries_of("busy") as u64 + 60 {
            commit(&db, &history, (written + 1..=written + 20).map(busy).collect()).await;
            written += 20;
        } else {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(began.elapsed() >= SECOND / 2);
    relay.stop().await;
    done(db).await;
}

async fn sm2_an_event_that_succeeds_at_its_third_attempt_is_waited_for(kind: Kind) {
    let db = stream(kind, 2).await;
    let history = History::default();
    let fleet = Fleet::with(&db, 2, |relay, n| {
        relay.handler(Witness::new(&history, n).answering(|delivery| {
            match Fact::of(delivery).version.is_multiple_of(10) && delivery.attempt < 3 {
                true => Err(Failure::retry("not yet")),
                false => Ok(()),
            }
        }))
    })
    .await;
    for version in 1..=50 {
        let events = ["a", "b", "c"].map(|name| event("order.changed", &Fact::new(name, version)));
        let ids = commit(&db, &history, events.to_vec()).await;
        if version % 10 == 0 {
            until("it is delivered", async || history.is_delivered(ids[0])).await;
            assert_eq!(history.attempts_at(ids[0]), [1, 2, 3]);
        }
    }
    // All at once, so that many stand behind each failure.
    for aggregate in ["d", "e"] {
        versions(&db, &history, aggregate, 1..=500).await;
    }
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    history.assert_clean();
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (0, 0));
    done(db).await;
}

async fn sm2_an_unordered_topic_parks_only_itself(kind: Kind) {
    let db = stream(kind, 2).await;
    let history = History::default();
    let fleet = Fleet::with(&db, 1, |relay, n| {
        let witness = Witness::new(&history, n).answering(|delivery| match Fact::of(delivery).version {
            2 | 6 => Err(Failure::retry_after(MINUTE, "not now")),
            _ => Ok(()),
        });
        relay.handler(witness).unordered_topic("note")
    })
    .await;
    for (version, topic) in
        (1..).zip(["order.changed", "note", "note", "order.changed", "note", "order.changed", "note"])
    {
        commit(&db, &history, vec![event(topic, &Fact::new("a", version))]).await;
        let delivered = history.commits() - [2, 6].iter().filter(|failing| **failing <= version).count();
        history.wait_for(delivered, MINUTE).await;
    }
    assert_eq!(history.versions_of("a"), [1, 3, 4, 5, 7], "only 2 and 6 wait, and nobody for the unordered");
    let behind = event("order.changed", &Fact::new("a", 8));
    commit(&db, &history, vec![behind]).await;
    commit(&db, &history, vec![event("note", &Fact::new("a", 9))]).await;
    commit(&db, &history, vec![event("order.changed", &Fact::new("b", 1))]).await;
    until("the unordered one passes, and another aggregate's", async || {
        history.versions_of("a").contains(&9) && history.deliveries_of("b") == 1
    })
    .await;
    assert!(!history.versions_of("a").contains(&8), "the ordered one waits behind 6");
    fleet.stop().await;
    done(db).await;
}

/// The same id is another aggregate under another type or in another namespace; an event without an aggregate is in order
/// with nobody.
async fn sm2_events_of_nothing_and_of_something_else_wait_for_nobody(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let fleet = Fleet::with(&db, 1, |relay, n| {
        relay.handler(Witness::new(&history, n).answering(|delivery| {
            match Fact::of(delivery).version == 1 && delivery.event.namespace() == "first" {
                true => Err(Failure::retry_after(MINUTE, "not now")),
                false => Ok(()),
            }
        }))
    })
    .await;
    let fact = |name: &str, version| Event::json("order.changed", &Fact::new(name, version)).unwrap();
    let events = |version| {
        [
            fact("order", version).aggregate("order", 7).namespace("first"),
            fact("none", version).namespace("first"),
            fact("type", version + 1).aggregate("customer", 7).namespace("first"),
            fact("namespace", version).aggregate("order", 7).namespace("second"),
        ]
        .map(|event| event.build().unwrap())
        .to_vec()
    };
    for version in 1..=10 {
        commit(&db, &history, events(version)).await;
    }
    history.wait_for(9 + 10 + 10, MINUTE).await;
    let mut none = history.versions_of("none");
    none.sort_unstable();
    assert_eq!(none, (2..=10).collect::<Vec<_>>());
    assert_eq!(history.versions_of("type"), (2..=11).collect::<Vec<_>>());
    assert_eq!(history.versions_of("namespace"), (1..=10).collect::<Vec<_>>());
    assert!(history.versions_of("order").is_empty(), "only what is of the same aggregate waits");
    fleet.stop().await;
    done(db).await;
}

async fn sm2_a_delayed_event_holds_up_nobody(kind: Kind) {
    let db = stream(kind, 2).await;
    let history = History::default();
    let fleet = Fleet::start(&db, &history, 2).await;
    let later = event("order.changed", &Fact::new("a", 1)).to_builder().delay(3 * SECOND).build().unwrap();
    let began = Instant::now();
    let later = commit(&db, &history, vec![later]).await[0];
    versions(&db, &history, "a", 2..=50).await;
    history.wait_for(49, MINUTE).await;
    assert!(began.elapsed() < 3 * SECOND && !history.is_delivered(later), "nobody waits for it");
    assert_eq!(history.versions_of("a"), (2..=50).collect::<Vec<_>>());
    history.wait_for(50, MINUTE).await;
    let took = began.elapsed();
    assert!(took > 5 * SECOND / 2 && took < 6 * SECOND, "it was delivered after {took:?}");
    fleet.stop().await;
    assert_eq!(history.verdict().repeats, 0);
    done(db).await;
}

async fn sm2_a_topic_may_go_on_after_a_death(kind: Kind) {
    let db = stream(kind, 2).await;
    let history = History::default();
    let mended = Arc::new(AtomicBool::new(false));
    let fleet = Fleet::with(&db, 1, |relay, n| {
        let mended = Arc::clone(&mended);
        let witness = Witness::new(&history, n).answering(move |delivery| match Fact::of(delivery).version {
            3 if !mended.load(Ordering::SeqCst) => Err(Failure::retry("never")),
            _ => Ok(()),
        });
        relay.handler(witness).on_dead("order.changed", OnDead::GoOn)
    })
    .await;
    versions(&db, &history, "a", 1..=20).await;
    history.wait_for(19, MINUTE).await;
    until("it is dead", async || db.count(Status::Dead).await == 1).await;
    let without: Vec<u64> = (1..=20).filter(|version| *version != 3).collect();
    assert_eq!(history.versions_of("a"), without, "in order, as if it were not there");
    assert_eq!(db.store().stream().await.unwrap().unwrap().blocked(10).await.unwrap(), []);
    mended.store(true, Ordering::SeqCst);
    assert_eq!(Admin::new(db.shared_store()).replay(Filter::dead()).run().await.unwrap(), 1);
    history.wait_for(20, MINUTE).await;
    fleet.stop().await;
    assert_eq!((history.verdict().lost.len(), db.count(Status::Dead).await), (0, 0));
    done(db).await;
}

/// Its aggregate went on without it, and always has something under way.
async fn sm2_what_is_replayed_comes_to_its_turn_in_a_busy_aggregate(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let mended = Arc::new(AtomicBool::new(false));
    let fleet = Fleet::with(&db, 1, |relay, n| {
        let mended = Arc::clone(&mended);
        let witness = Witness::new(&history, n).taking(Duration::from_millis(5)).answering(move |delivery| {
            match Fact::of(delivery).version {
                3 if !mended.load(Ordering::SeqCst) => Err(Failure::reject("never")),
                _ => Ok(()),
            }
        });
        relay.handler(witness).on_dead("order.changed", OnDead::GoOn)
    })
    .await;
    versions(&db, &history, "a", 1..=3).await;
    until("it is dead", async || db.count(Status::Dead).await == 1).await;
    mended.store(true, Ordering::SeqCst);
    let had_its_turn = || history.versions_of("a").contains(&3);
    // It is busy to the end of a transaction: one that is dropped half-way may stay open in its pool, with its locks.
    let busy = async {
        for part in 0.. {
            versions(&db, &history, "a", part * 50 + 4..=part * 50 + 53).await;
            until("there is room", async || history.commits() < history.deliveries() + 100).await;
            if had_its_turn() {
                break;
            }
        }
    };
    let replaying = async {
        until("it is busy", async || history.deliveries() > 50).await;
        assert_eq!(Admin::new(db.shared_store()).replay(Filter::dead()).run().await.unwrap(), 1);
        until("it has had its turn", async || had_its_turn()).await;
    };
    tokio::join!(busy, replaying);
    history.wait_for(history.commits(), MINUTE).await;
    fleet.stop().await;
    let mut came = history.versions_of("a");
    came.retain(|version| *version != 3);
    assert!(came.is_sorted_by(|a, b| a < b), "{came:?}");
    assert_eq!((history.verdict().lost.len(), db.count(Status::Dead).await), (0, 0));
    done(db).await;
}
