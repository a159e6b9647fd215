//! What a relay with nothing to do asks of its database: one statement in each poll interval, and hardly more.
//!
//! Each test runs in a process of its own: every statement that sqlx sends in it while nothing happens is the relay's.
//!
//! Rows of the contract: PR3.

use std::time::{Duration, Instant};

use posthaste::store::{Mode, Status};

use crate::harness::process::alone;
use crate::harness::{Db, Kind, Recorder, Setup, log, until};

const SECOND: Duration = Duration::from_secs(1);
/// For how long it is watched; the poll interval is a second.
const LONG: Duration = Duration::from_secs(15);
/// Beside one statement in each poll interval: the session asks for its locks every half a minute, and a survey may just miss the poll
/// whose place it takes.
const BESIDE: usize = 3;

conformance_sql_by_kind!(
    pr3_an_idle_relay_of_a_queue_asks_once_in_a_poll_interval,
    pr3_an_idle_relay_of_a_stream_asks_once_in_a_poll_interval,
);

/// Statements by their texts, without what begins and ends transactions.
fn sent(log: &log::Watch) -> Vec<String> {
    let summary = |line: String| {
        let text = line.split_once("summary=")?.1;
        let text = text.split_once(" db.statement=").map_or(text, |(summary, _)| summary).to_owned();
        let is_statement = ["BEGIN", "COMMIT", "ROLLBACK", "SET "].iter().all(|word| !text.contains(word));
        is_statement.then_some(text)
    };
    log.lines().into_iter().filter_map(summary).collect()
}

/// The statements that it sends while it is idle, and the poll intervals that have begun meanwhile.
async fn asked_while_idle(db: &Db) -> (Vec<String>, usize) {
    let log = log::watch("summary=");
    let recorder = Recorder::default();
    let relay = db.relay().poll_interval(SECOND).handler(recorder.clone()).start().await.unwrap();
    db.enqueue_numbers("a", 0..3).await;
    recorder.wait_for(3).await;
    until("all are delivered", async || db.count(Status::Pending).await == 0).await;
    // Connections, prepared statements, quick polls after the last event, the first questions to the session.
    tokio::time::sleep(7 * SECOND).await;
    let before = sent(&log).len();
    let began = Instant::now();
    tokio::time::sleep(LONG).await;
    let asked = sent(&log).split_off(before);
    let intervals = began.elapsed().as_millis().div_ceil(SECOND.as_millis()) as usize;
    println!("{:?}: {} in {intervals} s: {asked:#?}", db.kind(), asked.len());
    // It is not that it slept: what comes now is there soon, though nobody is told of it.
    let began = Instant::now();
    db.enqueue_numbers("a", 3..4).await;
    recorder.wait_for(4).await;
    assert!(began.elapsed() < 3 * SECOND, "an event took {:?}", began.elapsed());
    relay.stop().await;
    (asked, intervals)
}

async fn pr3_an_idle_relay_of_a_queue_asks_once_in_a_poll_interval(kind: Kind) {
    alone(
        "relay::idle::pr3_an_idle_relay_of_a_queue_asks_once_in_a_poll_interval",
        kind,
        queue_asks_once(kind),
    )
    .await;
}

async fn queue_asks_once(kind: Kind) {
    let db = Db::with(kind, Setup::default()).await;
    let (asked, intervals) = asked_while_idle(&db).await;
    assert!(asked.len() <= intervals + BESIDE, "{} in {intervals} s: {asked:#?}", asked.len());
    db.drop_everything().await;
}

/// Elsewhere than on PostgreSQL it takes more than one statement to say that a relay lives, and to see how the lanes stand.
async fn pr3_an_idle_relay_of_a_stream_asks_once_in_a_poll_interval(kind: Kind) {
    alone(
        "relay::idle::pr3_an_idle_relay_of_a_stream_asks_once_in_a_poll_interval",
        kind,
        stream_asks_once(kind),
    )
    .await;
}

async fn stream_asks_once(kind: Kind) {
    let db = Db::with(kind, Setup { mode: Some(Mode::stream(8).unwrap()), ..Setup::default() }).await;
    let (asked, intervals) = asked_while_idle(&db).await;
    let each = if kind == Kind::Postgres { 1 } else { 6 };
    assert!(asked.len() <= intervals * each + BESIDE, "{} in {intervals} s: {asked:#?}", asked.len());
    let reads = asked.iter().filter(|text| text.contains("max(seq)") || text.contains("MAX(seq)")).count();
    assert!(reads <= BESIDE, "{reads} pages were read of which it could be known that they are empty");
    db.drop_everything().await;
}
