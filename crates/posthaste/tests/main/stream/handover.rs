//! Who owns a lane, and how it passes to another: told, taken from the dead, or taken from one that only slept.
//!
//! Rows of the contract: SM1, SM2.

use std::time::{Duration, Instant};

use posthaste::store::{Filter, Status};
use posthaste::{Admin, Failure, Relay};

use super::child::{Child, Nursery, Temper};
use super::fleet::Fleet;
use super::history::{Fact, History, Witness};
use super::producers::{commit, event, versions};
use super::{SECOND, done, stream};
use crate::harness::{Db, Kind, MINUTE, until};

conformance_sql_by_kind!(
    sm1_a_clean_stop_hands_over_within_a_second,
    sm1_the_lanes_of_a_killed_relay_pass_on_within_its_lease,
    sm1_every_lane_of_a_killed_relay_gets_an_owner_and_keeps_it,
    sm2_a_clean_stop_hands_over_what_is_parked,
    sm1_what_a_paused_owner_writes_late_is_refused,
    sm1_lanes_are_shared_evenly,
    sm2_an_event_that_kills_its_process_dies_alone,
    sm2_an_event_that_kills_its_process_keeps_its_place_among_the_parked,
);

/// How long a lane belongs to a relay that is not heard of.
const LEASE: Duration = Duration::from_secs(10);

async fn sm1_a_clean_stop_hands_over_within_a_second(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let fleet = Fleet::start(&db, &history, 2).await;
    let owns = |relay: &Relay| !relay.status().lanes.is_empty();
    for round in 0..6 {
        until("one of them owns the lane", async || fleet.relays().filter(|relay| owns(relay)).count() == 1)
            .await;
        // The next one that takes over has not just been started.
        until("both are known", async || fleet.relays().all(Relay::is_running)).await;
        let owner = fleet.relays().find(|relay| owns(relay)).unwrap();
        versions(&db, &history, "a", round * 200 + 1..=round * 200 + 199).await;
        let began = Instant::now();
        let drained = owner.stop().await;
        let stopped = began.elapsed();
        assert!(drained.is_clean(), "{drained:?}");
        let next = event("order.changed", &Fact::new("a", round * 200 + 200));
        let next = commit(&db, &history, vec![next]).await[0];
        let began = Instant::now();
        until("the other delivers it", async || history.is_delivered(next)).await;
        let took = began.elapsed();
        println!("stopped within {stopped:?}, the next event was delivered {took:?} later");
        assert!(took < SECOND, "it took {took:?}");
        owner.start().await.unwrap();
    }
    fleet.stop().await;
    let verdict = history.assert_clean();
    assert_eq!(verdict.repeats, 0);
    done(db).await;
}

async fn sm1_the_lanes_of_a_killed_relay_pass_on_within_its_lease(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let nursery = Nursery::new(&db, &history);
    let mut owner = nursery.child(0, &Temper::default()).await;
    versions(&db, &history, "a", 1..=10).await;
    history.wait_for(10, MINUTE).await;
    let other = nursery.child(1, &Temper::default()).await;
    versions(&db, &history, "a", 11..=1000).await;
    history.wait_for(100, MINUTE).await;
    owner.kill();
    let began = Instant::now();
    let next = commit(&db, &history, vec![event("order.changed", &Fact::new("b", 1))]).await[0];
    until("the other delivers it", async || history.is_delivered(next)).await;
    let took = began.elapsed();
    println!("the next event was delivered {took:?} after the kill");
    assert!(took < LEASE + 2 * SECOND, "it took {took:?}");
    history.wait_for(history.commits(), MINUTE).await;
    other.stop();
    nursery.close();
    history.assert_clean();
    let by = history.begun_by();
    assert!(by[&0] >= 100 && by[&1] >= 1, "{by:?}");
    done(db).await;
}

/// The owner of each lane whose lease lasts, and its fence.
async fn owners(db: &Db) -> Vec<(String, i64)> {
    let lease_lasts = match db.kind() {
        Kind::Postgres => "leased_until > clock_timestamp()",
        Kind::MySql | Kind::MariaDb => "leased_until > UTC_TIMESTAMP(6)",
        _ => "leased_until > CAST(strftime('%s', 'now') AS INTEGER) * 1000000",
    };
    let text = if db.kind().is_mysql() { "CHAR" } else { "text" };
    let owned = |what: &str| format!("SELECT {what} FROM outbox_lanes WHERE {lease_lasts} ORDER BY lane");
    let names = db.texts(owned("owner")).await;
    let fences = db.texts(owned(&format!("CAST(fence AS {text})"))).await;
    names.into_iter().zip(fences.into_iter().map(|fence| fence.parse().unwrap())).collect()
}

async fn sm1_every_lane_of_a_killed_relay_gets_an_owner_and_keeps_it(kind: Kind) {
    const LANES: usize = 8;
    let db = stream(kind, LANES as u16).await;
    let history = History::default();
    let nursery = Nursery::new(&db, &history);
    let mut killed = nursery.child(0, &Temper::default()).await;
    until("one owns all lanes", async || owners(&db).await.len() == LANES).await;
    let first = owners(&db).await[0].0.clone();
    let other = nursery.child(1, &Temper::default()).await;
    until("they share the lanes", async || {
        let owners = owners(&db).await;
        owners.len() == LANES && owners.iter().filter(|(owner, _)| *owner == first).count() == LANES / 2
    })
    .await;
    for aggregate in 0..40 {
        versions(&db, &history, &aggregate.to_string(), 1..=50).await;
    }
    history.wait_for(100, MINUTE).await;
    killed.kill();
    let began = Instant::now();
    let living = async || owners(&db).await.into_iter().filter(|(owner, _)| *owner != first).count();
    until("the other owns every lane", async || living().await == LANES).await;
    let took = began.elapsed();
    println!("every lane had a living owner {took:?} after the kill");
    assert!(took < LEASE + 3 * SECOND, "it took {took:?}");
    // Nobody takes them from the living, for longer than a lease.
    let taken = owners(&db).await;
    let began = Instant::now();
    while began.elapsed() < LEASE + SECOND {
        assert_eq!(owners(&db).await, taken);
        tokio::time::sleep(SECOND / 10).await;
    }
    history.wait_for(history.commits(), MINUTE).await;
    other.stop();
    nursery.close();
    history.assert_clean();
    done(db).await;
}

/// One that fails, and what is parked behind it, passes to the next owner as it stands.
async fn sm2_a_clean_stop_hands_over_what_is_parked(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let start = async |n: usize| {
        let witness = Witness::new(&history, n).answering(move |delivery| {
            match n == 0 && Fact::of(delivery) == Fact::new("a", 3) {
                true => Err(Failure::retry_after(3 * SECOND, "not here")),
                false => Ok(()),
            }
        });
        Relay::on(db.second_store().await).handler(witness).start().await.unwrap()
    };
    let one = start(0).await;
    until("it owns the lane", async || one.status().lanes == [0]).await;
    let other = start(1).await;
    versions(&db, &history, "a", 1..=20).await;
    versions(&db, &history, "b", 1..=20).await;
    until("what comes behind it is parked", async || {
        db.number("SELECT count(*) FROM outbox_parked").await == 18
    })
    .await;
    history.wait_for(22, MINUTE).await;
    let drained = one.stop().await;
    assert!(drained.is_clean(), "{drained:?}");
    assert_eq!(history.versions_of("a"), [1, 2]);
    assert_eq!(db.number("SELECT count(*) FROM outbox_parked WHERE attempts = 1").await, 1);
    versions(&db, &history, "a", 21..=30).await;
    history.wait_for(50, MINUTE).await;
    other.stop().await;
    assert_eq!(history.versions_of("a"), (1..=30).collect::<Vec<_>>());
    history.assert_clean();
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (0, 0));
    // 22, and one in vain; that one again, and the rest.
    assert_eq!((history.begun_by()[&0], history.begun_by()[&1]), (23, 28));
    done(db).await;
}

async fn sm1_what_a_paused_owner_writes_late_is_refused(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let nursery = Nursery::new(&db, &history);
    let owner = nursery.child(0, &Temper::default()).await;
    versions(&db, &history, "a", 1..=10).await;
    history.wait_for(10, MINUTE).await;
    let other = nursery.child(1, &Temper::default()).await;
    // It is in the middle of many when it is paused.
    versions(&db, &history, "a", 11..=3000).await;
    history.wait_for(60, MINUTE).await;
    owner.pause(&db).await;
    tokio::time::sleep(SECOND).await;
    let paused_at = history.deliveries();
    assert!(paused_at < 3000, "it was too quick to be caught in the middle");
    until("the other goes on", async || history.deliveries() > paused_at).await;
    history.wait_for(3000, MINUTE).await;
    let begun = history.begun_by()[&0];
    owner.resume();
    // What it is told to do it does still, and is nobody's owner any more.
    tokio::time::sleep(SECOND).await;
    versions(&db, &history, "a", 3001..=3100).await;
    history.wait_for(3100, MINUTE).await;
    owner.stop();
    other.stop();
    let lost = nursery.lost_by(0).await;
    nursery.close();
    println!("{lost} lost by the paused one, which had begun {begun}");
    history.assert_clean();
    assert!(lost > 0, "nothing that it wrote late was refused");
    assert_eq!(db.count(Status::Pending).await, 0, "what it wrote late changed nothing");
    done(db).await;
}

/// How many lanes each relay owns, if every lane has exactly one owner.
fn shares(fleet: &Fleet) -> Option<Vec<usize>> {
    let owned: Vec<Vec<u16>> = fleet.relays().map(|relay| relay.status().lanes).collect();
    let mut all: Vec<u16> = owned.iter().flatten().copied().collect();
    all.sort_unstable();
    let mut shares: Vec<usize> = owned.iter().map(Vec::len).collect();
    shares.sort_unstable();
    (all == (0..8).collect::<Vec<u16>>()).then_some(shares)
}

async fn sm1_lanes_are_shared_evenly(kind: Kind) {
    let db = stream(kind, 8).await;
    let history = History::default();
    let fleet = Fleet::start(&db, &history, 3).await;
    let shared = async |expected: [usize; 3]| {
        let began = Instant::now();
        until(&format!("lanes are shared as {expected:?}"), async || {
            shares(&fleet).is_some_and(|shares| shares == expected)
        })
        .await;
        println!("shared as {expected:?} after {:?}", began.elapsed());
        // It stays so.
        for _ in 0..10 {
            tokio::time::sleep(SECOND / 20).await;
            assert_eq!(shares(&fleet).unwrap(), expected);
        }
    };
    shared([2, 3, 3]).await;
    fleet.relay(2).stop().await;
    shared([0, 4, 4]).await;
    fleet.relay(0).stop().await;
    shared([0, 0, 8]).await;
    fleet.relay(2).start().await.unwrap();
    shared([0, 4, 4]).await;
    fleet.relay(0).start().await.unwrap();
    shared([2, 3, 3]).await;
    for aggregate in 0..20 {
        versions(&db, &history, &aggregate.to_string(), 1..=50).await;
    }
    history.wait_for(1000, MINUTE).await;
    assert_eq!(history.begun_by().len(), 3, "all of them work");
    fleet.stop().await;
    history.assert_clean();
    done(db).await;
}

/// Starts a child as often as it dies, until an event is dead and so many are delivered; how often it died.
async fn until_one_is_dead(
    db: &Db,
    history: &History,
    nursery: &Nursery,
    temper: &Temper,
    delivered: usize,
) -> (Child, usize) {
    let began = Instant::now();
    let mut deaths = 0;
    let mut child = nursery.child(0, temper).await;
    while db.count(Status::Dead).await == 0 || history.deliveries() < delivered {
        if child.has_ended() {
            deaths += 1;
            assert!(deaths <= 5, "it kills one process after the other: {}", history.verdict());
            child = nursery.child(deaths, temper).await;
        }
        assert!(began.elapsed() < 2 * MINUTE, "{} deaths, {}", deaths, history.verdict());
        tokio::time::sleep(SECOND / 100).await;
    }
    (child, deaths)
}

/// It is parked, not read, when it kills, and others are under way behind it.
async fn sm2_an_event_that_kills_its_process_keeps_its_place_among_the_parked(kind: Kind) {
    let db = stream(kind, 1).await;
    let history = History::default();
    let facts: Vec<Fact> = (1..=20).map(|version| Fact::new("e", version)).collect();
    let ids = commit(&db, &history, facts.iter().map(|fact| event("order.changed", fact)).collect()).await;
    let temper = Temper {
        fails_at: Some(Fact::new("e", 1)),
        dies_at: Some(Fact::new("e", 2)),
        max_attempts: 3,
        ..Temper::default()
    };
    let nursery = Nursery::new(&db, &history);
    let (child, deaths) = until_one_is_dead(&db, &history, &nursery, &temper, 1).await;
    println!("{deaths} deaths, attempts {:?}", history.attempts_at(ids[1]));
    assert_eq!(history.versions_of("e"), [1], "what is behind it waits: {}", history.verdict());
    history.discarded(ids[1]);
    assert_eq!(Admin::new(db.shared_store()).discard(Filter::dead()).run().await.unwrap(), 1);
    history.wait_for(19, MINUTE).await;
    child.stop();
    nursery.close();
    let attempts: Vec<usize> = ids[2..].iter().map(|id| history.attempts_at(*id).len()).collect();
    println!("attempts at those behind it: {attempts:?}");
    history.assert_clean();
    done(db).await;
}

async fn sm2_an_event_that_kills_its_process_dies_alone(kind: Kind) {
    let db = stream(kind, 2).await;
    let history = History::default();
    for aggregate in ["a", "b", "c", "d"] {
        versions(&db, &history, aggregate, 1..=100).await;
    }
    let deadly = event("order.changed", &Fact::new("e", 1));
    let deadly = commit(&db, &history, vec![deadly]).await[0];
    versions(&db, &history, "e", 2..=20).await;
    versions(&db, &history, "f", 1..=100).await;
    let temper = Temper { dies_at: Some(Fact::new("e", 1)), max_attempts: 3, ..Temper::default() };
    let nursery = Nursery::new(&db, &history);
    let began = Instant::now();
    let (child, deaths) = until_one_is_dead(&db, &history, &nursery, &temper, 500).await;
    println!("{deaths} deaths, attempts {:?}, {:?}", history.attempts_at(deadly), began.elapsed());
    let dead = db.store().list(&Filter::dead(), posthaste::store::Page::first(10)).await.unwrap();
    assert_eq!(dead.iter().map(|record| record.id).collect::<Vec<_>>(), [deadly], "it died, and no other");
    assert!(history.attempts_at(deadly).len() <= 4);
    assert_eq!(history.deliveries_of("e"), 0, "its aggregate waits");
    history.discarded(deadly);
    assert_eq!(Admin::new(db.shared_store()).discard(Filter::dead()).run().await.unwrap(), 1);
    history.wait_for(519, MINUTE).await;
    child.stop();
    nursery.close();
    history.assert_clean();
    assert_eq!(db.count(Status::Dead).await, 0);
    done(db).await;
}
