//! The doctor: a healthy table is told so, and each fault, made for real, is named.
//!
//! Servers are shared: what other tests do to one is seen from here, too. So only findings about the test's own table, or
//! about somebody whom the test has named itself, are looked at.
//!
//! Rows of the contract: OP10.

mod mysql;
mod postgres;
mod sqlite;

use std::time::Duration;

use posthaste::admin::doctor::{self, Check, Finding, Limits, Report, Verdict};
use posthaste::sink::Outcome;
use posthaste::store::stream::{Beat, Wait};
use posthaste::store::{Keep, Mode};
use posthaste::{Admin, Delivery, ErrorKind, Event, Failure};

use crate::harness::{Db, Kind, MINUTE, Owner, Setup, until, worker};

conformance!(
    op10_a_healthy_table_is_said_to_be_so,
    op10_due_events_that_nobody_takes_are_named,
    op10_leases_of_a_worker_that_never_came_back_are_named,
    op10_dead_letters_are_counted_with_the_reason_of_the_newest,
);
conformance_sql!(op10_a_missing_index_is_named, op10_a_newer_migration_is_named);
conformance_sql_by_kind!(
    op10_a_missing_table_is_named,
    op10_lanes_of_an_owner_that_never_came_back_are_named,
    op10_blocked_aggregates_are_named_with_their_reason,
);
conformance_servers!(op10_leases_of_a_worker_that_is_not_connected_are_named);
streams!(
    op10_a_healthy_table_is_said_to_be_so,
    op10_due_events_that_nobody_takes_are_named,
    op10_dead_letters_are_counted_with_the_reason_of_the_newest;
    servers: op10_lanes_of_an_owner_that_is_not_connected_are_named,
);

const LATE: Duration = Duration::from_secs(600);

/// What there is to say of this database.
pub async fn examine(db: &Db) -> Report {
    Admin::new(db.shared_store()).doctor().await
}

/// The same with limits that the caller changes.
pub async fn examine_with(db: &Db, change: impl FnOnce(&mut Limits)) -> Report {
    let mut limits = Limits::default();
    change(&mut limits);
    Admin::new(db.shared_store()).doctor_with(&limits).await
}

/// The only finding of a check.
#[track_caller]
pub fn one(report: &Report, check: Check) -> Finding {
    let found: Vec<&Finding> = report.of(&check).collect();
    assert_eq!(found.len(), 1, "{check}: {report:#?}");
    found[0].clone()
}

/// The finding of a check that says this.
#[track_caller]
pub fn saying(report: &Report, check: Check, words: &str) -> Finding {
    let found = report.of(&check).find(|finding| finding.found.contains(words));
    let found = found.unwrap_or_else(|| panic!("{check} does not say {words:?}: {report:#?}"));
    assert!(found.verdict == Verdict::Ok || found.advice.is_some(), "{found:?}");
    found.clone()
}

/// What is about the table alone, and not about the server.
fn own(report: &Report) -> Vec<&Finding> {
    let server = |finding: &&Finding| finding.check != Check::OldTransactions;
    report.findings.iter().filter(server).collect()
}

async fn op10_a_healthy_table_is_said_to_be_so(db: &Db) {
    let handler = |_: Delivery| async { Ok::<(), Failure>(()) };
    let relay = db.relay().handler(handler).start().await.unwrap();
    db.enqueue_numbers("order.placed.v1", 0..10).await;
    until("delivered and seen to be", async || {
        let report = examine(db).await;
        own(&report).iter().all(|finding| finding.verdict == Verdict::Ok)
    })
    .await;
    let report = examine(db).await;
    let names: Vec<&str> = own(&report).iter().map(|finding| finding.check.as_str()).collect();
    let of_mode: &[&str] = if db.is_stream().await { &["lanes", "blocked"] } else { &["leases"] };
    for name in ["database", "migrations", "relay", "dead-letters", "clock"].iter().chain(of_mode) {
        assert!(names.contains(name), "{name} was not looked at: {report:#?}");
    }
    assert_eq!(names.contains(&"cleanup"), db.kind() != Kind::Memory);
    assert!(own(&report).iter().all(|finding| finding.advice.is_none() && finding.page.is_none()));
    relay.stop().await;
}

async fn op10_a_missing_table_is_named(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let report = examine(&db).await;
    assert!(!report.is_healthy());
    let finding = one(&report, Check::Migrations);
    assert_eq!((finding.verdict, finding.found.as_str()), (Verdict::Fault, "table outbox does not exist"));
    assert_eq!(finding.error, Some(ErrorKind::TableMissing));
    assert!(finding.advice.unwrap().contains("posthaste migrate up"));
    // What can be known without it still is.
    assert_eq!(one(&report, Check::Database).verdict, Verdict::Ok);
    assert_eq!(one(&report, Check::Clock).verdict, Verdict::Ok);
    assert_eq!(report.of(&Check::Relay).count(), 0);
    db.drop_everything().await;
}

async fn op10_a_missing_index_is_named(db: &Db) {
    let on = if db.kind().is_mysql() { " ON outbox" } else { "" };
    db.execute(format!("DROP INDEX outbox_claim{on}")).await.unwrap();
    let finding = one(&examine(db).await, Check::Migrations);
    assert_eq!(finding.verdict, Verdict::Fault);
    assert!(finding.found.contains("index outbox_claim is missing"), "{finding:?}");
    assert!(finding.advice.unwrap().contains("every claim reads the table"));
    assert_eq!(finding.page, Some("operate/migrations"));
}

async fn op10_a_newer_migration_is_named(db: &Db) {
    let newer = "INSERT INTO posthaste_migrations (table_name, version, name) VALUES ('outbox', 99, 'later')";
    db.execute(newer).await.unwrap();
    let finding = one(&examine(db).await, Check::Migrations);
    assert_eq!(finding.error, Some(ErrorKind::SchemaTooNew { found: 99, known: 1 }));
    assert!(finding.found.contains("migration 99 is newer"), "{finding:?}");
}

async fn op10_due_events_that_nobody_takes_are_named(db: &Db) {
    db.enqueue_numbers("order.placed.v1", 0..3).await;
    let young = one(&examine(db).await, Check::Relay);
    assert!(young.verdict <= Verdict::Note, "{young:?}");
    db.shift(LATE).await;
    let report = examine(db).await;
    let finding = one(&report, Check::Relay);
    assert_eq!(finding.verdict, Verdict::Fault, "{report:#?}");
    assert!(finding.found.starts_with("nobody delivers: "), "{finding:?}");
    assert!(
        finding.found.contains("3 events are") && finding.found.contains("oldest for 10m"),
        "{finding:?}"
    );
    assert!(finding.advice.unwrap().starts_with("Start a relay"));
    // Somebody who works, but cannot keep up, is another matter.
    if !db.is_stream().await {
        assert_eq!(db.claim(&worker(), 1).await.len(), 1);
        let behind = one(&examine(db).await, Check::Relay);
        assert!(behind.found.starts_with("deliveries are behind: 2 events"), "{behind:?}");
        assert_eq!(behind.verdict, Verdict::Warning);
    }
    assert!(
        one(&examine_with(db, |limits| limits.overdue = 2 * LATE).await, Check::Relay).verdict
            < Verdict::Fault
    );
}

async fn op10_leases_of_a_worker_that_never_came_back_are_named(db: &Db) {
    db.enqueue_numbers("order.placed.v1", 0..3).await;
    let gone = worker();
    assert_eq!(db.claim(&gone, 2).await.len(), 2);
    assert_eq!(one(&examine(db).await, Check::Leases).verdict, Verdict::Ok);
    db.shift(LATE).await;
    let report = examine(db).await;
    let finding = one(&report, Check::Leases);
    assert_eq!(finding.verdict, Verdict::Fault);
    let words = format!("orphaned leases: worker {gone} had 2 events leased, the first lease ended 9m");
    assert!(finding.found.starts_with(&words), "{finding:?}");
    assert_eq!(one(&report, Check::Relay).verdict, Verdict::Fault);
    // The next claim is all they need.
    assert_eq!(db.claim(&worker(), 10).await.len(), 3);
    assert_eq!(one(&examine(db).await, Check::Leases).verdict, Verdict::Ok);
}

async fn op10_leases_of_a_worker_that_is_not_connected_are_named(db: &Db) {
    db.enqueue_numbers("order.placed.v1", 0..3).await;
    let session = db.store().session(&worker()).await.unwrap();
    let present = session.worker().clone();
    assert_eq!(db.claim(&present, 2).await.len(), 2);
    assert_eq!(one(&examine(db).await, Check::Leases).verdict, Verdict::Ok);
    session.close().await;
    let finding = one(&examine(db).await, Check::Leases);
    let words = format!("worker {present} holds 2 events and is not connected any more");
    assert!(finding.found.contains(&words), "{finding:?}");
    // How bad it is depends on whether another relay lives, of this test or of any other in the database.
    assert!(finding.verdict >= Verdict::Warning && finding.advice.is_some());
}

async fn op10_lanes_of_an_owner_that_never_came_back_are_named(kind: Kind) {
    let mode = Some(Mode::stream(4).unwrap());
    let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
    let owner = Owner::of(&db).await;
    assert_eq!(one(&examine(&db).await, Check::Lanes).found, "4 of 4 lanes owned");
    db.enqueue_numbers("order.placed.v1", 0..3).await;
    db.shift(LATE).await;
    // Others live: they will see to it.
    let report = examine(&db).await;
    let finding = one(&report, Check::Lanes);
    let words =
        format!("4 of 4 lanes without a living owner: lane 0 is {}'s, whose lease ended 9m", owner.worker);
    assert!(finding.found.starts_with(&words), "{finding:?}");
    assert_eq!(finding.verdict, Verdict::Warning);

    owner.stream.leave(&owner.worker).await.unwrap();
    let report = examine(&db).await;
    assert_eq!(one(&report, Check::Lanes).verdict, Verdict::Fault);
    let relay = one(&report, Check::Relay);
    assert!(relay.found.starts_with("nobody delivers: no relay of this stream lives; 3 events"), "{relay:?}");
    db.drop_everything().await;
}

async fn op10_lanes_of_an_owner_that_is_not_connected_are_named(db: &Db) {
    let stream = db.store().stream().await.unwrap().unwrap();
    let relay = worker();
    let session = db.store().session(&relay).await.unwrap();
    let beat = Beat { relay: &relay, present: true, holds: &[], lease: MINUTE, seen: None };
    stream.beat(&beat).await.unwrap();
    let lanes: Vec<u16> = (0..stream.lanes().count()).collect();
    assert_eq!(stream.take(&beat, &lanes, &[]).await.unwrap().len(), lanes.len());
    assert_eq!(one(&examine(db).await, Check::Lanes).verdict, Verdict::Ok);
    session.close().await;
    let finding = one(&examine(db).await, Check::Lanes);
    let words =
        format!("8 of 8 lanes without a living owner: lane 0 is {relay}'s, who is not connected any more");
    assert_eq!((finding.verdict, finding.found), (Verdict::Warning, words));
}

async fn op10_dead_letters_are_counted_with_the_reason_of_the_newest(db: &Db) {
    let ids = db.let_die("order.placed.v1", 0..2, "no such\n customer").await;
    let finding = one(&examine(db).await, Check::DeadLetters);
    assert_eq!(finding.verdict, Verdict::Warning);
    let words = format!("2 dead letters; the newest is {} (order.placed.v1): no such customer", ids[1]);
    assert_eq!(finding.found, words);
}

async fn op10_blocked_aggregates_are_named_with_their_reason(kind: Kind) {
    let mode = Some(Mode::stream(1).unwrap());
    let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
    assert_eq!(one(&examine(&db).await, Check::Blocked).found, "no aggregate is blocked");
    let event = |n: u64| Event::json("order.placed.v1", &n).unwrap().aggregate("order", "7").build().unwrap();
    db.store().insert(&[event(1), event(2), event(3)]).await.unwrap();
    let mut owner = Owner::of(&db).await;
    let page = owner.read(10).await;
    let mut parks = vec![(&page.rows[0], Wait::Dead { blocks: true })];
    parks.extend(page.rows[1..].iter().map(|row| (row, Wait::Behind)));
    owner.park(&parks, 1, Some("no such customer")).await;
    owner.finish(page.number, &[], Keep::Delivered).await;
    let finding = one(&examine(&db).await, Check::Blocked);
    let words = format!(
        "aggregate order/7 is blocked by its dead event {} (order.placed.v1), 2 events behind it: no such customer",
        page.rows[0].id
    );
    assert_eq!((finding.verdict, finding.found), (Verdict::Fault, words));
    db.drop_everything().await;
}

/// The memory's clock can be set, so that it is really ahead of this machine's.
#[tokio::test]
async fn op10_a_database_whose_clock_is_wrong_is_named() {
    let store = posthaste::store::MemoryStore::new();
    let report = Admin::new(std::sync::Arc::new(store.clone())).doctor().await;
    assert!(one(&report, Check::Clock).found.starts_with("clock skew "), "{report:#?}");
    store.advance(Duration::from_secs(5430));
    let report = Admin::new(std::sync::Arc::new(store)).doctor().await;
    let finding = one(&report, Check::Clock);
    assert_eq!(finding.verdict, Verdict::Fault);
    assert!(
        finding.found.starts_with("the database's clock is 1h 30m ahead of this machine's"),
        "{finding:?}"
    );
    assert!(!report.is_healthy() && report.findings[0] == finding, "the worst is first: {report:#?}");
}

#[tokio::test]
async fn op10_what_a_relay_says_of_itself_is_judged() {
    let outbox = posthaste::testing::outbox();
    let handler = |_: Delivery| async { Err::<(), _>(Failure::unavailable("the mail server is down")) };
    let relay = outbox.relay().handler(handler).start().await.unwrap();
    let ok = doctor::relay(&relay.status());
    assert_eq!((ok.len(), ok[0].verdict), (1, Verdict::Ok), "{ok:?}");

    let mut tx = outbox.begin();
    outbox.enqueue(&mut tx, Event::json("order.placed.v1", &1).unwrap()).await.unwrap();
    tx.commit();
    until("it rests", async || relay.status().routes[0].resting.is_some()).await;
    let resting = doctor::relay(&relay.status());
    let route = relay.status().routes[0].name.to_string();
    assert_eq!((resting[0].check.clone(), resting[0].verdict), (Check::Sink(route), Verdict::Fault));
    assert!(resting[0].found.contains("the mail server is down"), "{resting:?}");

    relay.pause();
    let paused = doctor::relay(&relay.status());
    assert!(paused[0].found.ends_with("is paused") && paused[0].verdict == Verdict::Fault, "{paused:?}");
    relay.stop().await;
    assert!(doctor::relay(&relay.status())[0].found.ends_with("does not run"));
}

/// A sink that never answers.
struct Silent;

#[async_trait::async_trait]
impl posthaste::sink::Sink for Silent {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        vec![Outcome::Delivered; batch.len()]
    }

    async fn probe(&self) -> Result<(), String> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn op10_a_sink_that_does_not_answer_is_named() {
    let finding = doctor::sink("mail", &Silent).await;
    assert_eq!(
        (finding.verdict, finding.found.as_str()),
        (Verdict::Fault, "sink mail cannot be reached: no answer within 10s")
    );
}
