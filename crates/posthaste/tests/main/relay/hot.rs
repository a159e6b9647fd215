//! The hot path: from commit to handler without a claim.
//!
//! Rows of the contract: EN6, RE5, RE2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste::relay::RelayBuilder;
use posthaste::sink::Delivery;
use posthaste::store::{Filter, Page, Record, Status};
use posthaste::{Handler, Relay};
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, Recorder, Setup, event, log};

const SECOND: Duration = Duration::from_secs(1);

conformance_sql_by_kind!(en6_with_room_no_claim_is_asked_for);

conformance_sql!(
    re5_what_finds_no_room_is_delivered_by_a_claim,
    en6_a_rollback_delivers_nothing_and_frees_the_slot,
    re5_hot_and_claimed_events_share_the_workers_two_to_one,
    re5_after_a_crash_another_relay_delivers,
    re5_a_paused_relay_takes_nothing_from_a_commit,
    re5_what_commits_after_the_relay_has_stopped_is_pending,
);

streams!(
    re5_what_finds_no_room_is_delivered_by_a_claim,
    re5_a_paused_relay_takes_nothing_from_a_commit,
    re5_what_commits_after_the_relay_has_stopped_is_pending,
);

/// How a transaction ends.
#[derive(Clone, Copy)]
enum End {
    Commit,
    Rollback,
    Drop,
}

/// Enqueues an event through the outbox's own transaction.
async fn hot(db: &Db, topic: &str, n: u64, end: End) -> Uuid {
    macro_rules! run {
        ($sql:expr) => {{
            let mut tx = $sql.outbox.begin().await.unwrap();
            let id = $sql.outbox.enqueue(&mut tx, event(topic, n)).await.unwrap().id;
            match end {
                End::Commit => tx.commit().await.unwrap(),
                End::Rollback => tx.rollback().await.unwrap(),
                End::Drop => drop(tx),
            }
            id
        }};
    }
    match db.handle() {
        Handle::Postgres(sql) => run!(sql),
        Handle::MySql(sql) => run!(sql),
        Handle::Sqlite(sql) => run!(sql),
        Handle::Memory(_) => panic!("memory has no hot path"),
    }
}

async fn record(db: &Db, id: Uuid) -> Record {
    db.store().get(id).await.unwrap().unwrap()
}

/// A relay that would not find anything by polling for a long time.
fn rarely_polling(db: &Db) -> RelayBuilder {
    db.relay().poll_interval(20 * SECOND)
}

/// A handler that says when it is entered and waits to be let go.
fn gated(recorder: &Recorder) -> (impl Handler + use<>, mpsc::UnboundedReceiver<Uuid>, Arc<Semaphore>) {
    let (entered, entering) = mpsc::unbounded_channel();
    let go = Arc::new(Semaphore::new(0));
    let (recorder, may_go) = (recorder.clone(), Arc::clone(&go));
    let handler = move |delivery: Delivery| {
        let (recorder, may_go, entered) = (recorder.clone(), Arc::clone(&may_go), entered.clone());
        async move {
            entered.send(delivery.event.id()).ok();
            may_go.acquire().await.unwrap().forget();
            recorder.handle(&delivery).await
        }
    };
    (handler, entering, go)
}

async fn en6_with_room_no_claim_is_asked_for(kind: Kind) {
    let table = format!("hot_{}", Uuid::now_v7().simple());
    let table = table[..36].to_owned();
    let db = Db::with(kind, Setup { table: Some(table.clone()), ..Setup::default() }).await;
    let log = log::watch(table);
    let recorder = Recorder::default();
    let relay = rarely_polling(&db).handler(recorder.clone()).start().await.unwrap();
    // Only claims look for rows whose lease, if they have one, has ended.
    let claims = || log.count("locked_until IS NULL OR locked_until");
    let began = Instant::now();
    for n in 0..300 {
        let id = hot(&db, "a", n, End::Commit).await;
        if n == 0 {
            recorder.wait_for(1).await;
            assert_eq!(recorder.begun(), [(id, 1)]);
        }
    }
    recorder.wait_for(300).await;
    // Polling begins at a twentieth of its interval: one claim a second, however many events there were.
    let most = began.elapsed().as_secs() as usize + 2;
    assert!(claims() <= most, "{} claims: {:?}", claims(), log.lines());
    relay.stop().await;
    assert!(claims() > 0, "claims are not seen at all");
    assert_eq!((db.count(Status::Delivered).await, recorder.repeats()), (300, 0));
    let all = db.store().list(&Filter::all(), Page::first(1000)).await.unwrap();
    assert!(all.iter().all(|record| record.attempts == 1));
    db.drop_everything().await;
}

async fn re5_what_finds_no_room_is_delivered_by_a_claim(db: &Db) {
    let recorder = Recorder::default();
    let (handler, mut entering, go) = gated(&recorder);
    let relay = db.relay().handler(handler).hot_queue(2).concurrency(1).capacity(1).start().await.unwrap();
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(hot(db, "a", n, End::Commit).await);
    }
    entering.recv().await.unwrap();
    go.add_permits(1000);
    recorder.wait_for(20).await;
    relay.stop().await;
    assert_eq!((db.count(Status::Delivered).await, recorder.repeats()), (20, 0));
}

async fn en6_a_rollback_delivers_nothing_and_frees_the_slot(db: &Db) {
    let recorder = Recorder::default();
    let (handler, mut entering, go) = gated(&recorder);
    let relay = rarely_polling(db).handler(handler).hot_queue(1).start().await.unwrap();
    for n in 0..5 {
        hot(db, "rolled back", n, End::Rollback).await;
        hot(db, "dropped", n, End::Drop).await;
    }
    // The only slot is free: the event is leased from the moment it is written.
    let id = hot(db, "a", 0, End::Commit).await;
    assert_eq!(entering.recv().await, Some(id));
    let row = record(db, id).await;
    assert_eq!((row.status, row.attempts), (Status::Processing, 1));
    // It is taken now: the next is an ordinary row.
    let next = hot(db, "b", 0, End::Commit).await;
    go.add_permits(1000);
    recorder.wait_for(2).await;
    relay.stop().await;
    assert_eq!(db.store().count(&Filter::all(), 100).await.unwrap().n, 2);
    assert_eq!(recorder.begun(), [(id, 1), (next, 1)]);
}

async fn re5_hot_and_claimed_events_share_the_workers_two_to_one(db: &Db) {
    let recorder = Recorder::default();
    let (handler, mut entering, go) = gated(&recorder);
    let claimed = db.enqueue_numbers("claimed", 0..60).await;
    let relay = db.relay().handler(handler).concurrency(1).start().await.unwrap();
    entering.recv().await.unwrap();
    while relay.status().claimed < 59 {
        tokio::task::yield_now().await;
    }
    for n in 0..60 {
        hot(db, "hot", n, End::Commit).await;
    }
    while relay.status().hot < 60 {
        tokio::task::yield_now().await;
    }
    go.add_permits(1000);
    recorder.wait_for(120).await;
    relay.stop().await;
    let order: Vec<bool> = recorder.begun().iter().map(|(id, _)| !claimed.contains(id)).collect();
    let hot_among = |events: &[bool]| events.iter().filter(|hot| **hot).count();
    for third in 0..10 {
        let from = 1 + third * 3;
        assert_eq!(hot_among(&order[from..from + 3]), 2, "{order:?}");
    }
    assert_eq!(hot_among(&order), 60);
}

/// The process that enqueued dies after the commit, before its handler is done.
async fn re5_after_a_crash_another_relay_delivers(db: &Db) {
    let crashed = tokio::task::spawn_blocking({
        let (kind, url, table) = (db.kind(), db.url(), db.table());
        move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.unwrap();
            let id = runtime.block_on(crash_after_commit(kind, url, table));
            runtime.shutdown_background();
            id
        }
    });
    let id = crashed.await.unwrap();
    let row = record(db, id).await;
    assert_eq!((row.status, row.attempts), (Status::Processing, 1));
    let recorder = Recorder::default();
    let relay = Relay::on(db.second_store().await).handler(recorder.clone()).start().await.unwrap();
    if db.kind() == Kind::Sqlite {
        // A file does not know who is gone: the lease has to end.
        db.shift(61 * SECOND).await;
    }
    recorder.wait_for(1).await;
    relay.stop().await;
    assert_eq!(recorder.begun(), [(id, 2)]);
    assert_eq!(db.count(Status::Delivered).await, 1);
}

async fn crash_after_commit(kind: Kind, url: String, table: String) -> Uuid {
    macro_rules! run {
        ($outbox:expr) => {{
            let outbox = $outbox.table(table).build().unwrap();
            let (handler, mut entering, _never) = gated(&Recorder::default());
            let relay = outbox.relay().handler(handler).start().await.unwrap();
            // Until its session is known, its leases would have to end by themselves.
            while kind != Kind::Sqlite && !relay.status().worker.unwrap().ends_with('~') {
                tokio::task::yield_now().await;
            }
            let mut tx = outbox.begin().await.unwrap();
            let id = outbox.enqueue(&mut tx, event("a", 1)).await.unwrap().id;
            tx.commit().await.unwrap();
            entering.recv().await.unwrap();
            std::mem::forget(relay);
            id
        }};
    }
    match kind {
        Kind::Postgres => run!(posthaste::Outbox::postgres(sqlx::PgPool::connect(&url).await.unwrap())),
        Kind::MySql | Kind::MariaDb => {
            run!(posthaste::Outbox::mysql(sqlx::MySqlPool::connect(&url).await.unwrap()))
        }
        Kind::Sqlite => run!(posthaste::Outbox::sqlite(sqlx::SqlitePool::connect(&url).await.unwrap())),
        Kind::Memory => panic!("memory dies with its process"),
    }
}

async fn re5_a_paused_relay_takes_nothing_from_a_commit(db: &Db) {
    let recorder = Recorder::default();
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    relay.pause();
    // A claim may be under way still; a pass that gets nothing comes after it.
    assert_eq!(relay.run_once().await.unwrap(), Default::default());
    let id = hot(db, "a", 1, End::Commit).await;
    let row = record(db, id).await;
    assert_eq!((row.status, row.attempts), (Status::Pending, 0));
    relay.resume();
    recorder.wait_for(1).await;
    relay.stop().await;
}

async fn re5_what_commits_after_the_relay_has_stopped_is_pending(db: &Db) {
    let relay = db.relay().handler(Recorder::default()).start().await.unwrap();
    macro_rules! run {
        ($sql:expr) => {{
            let mut tx = $sql.outbox.begin().await.unwrap();
            let id = $sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap().id;
            relay.stop().await;
            tx.commit().await.unwrap();
            id
        }};
    }
    let id = match db.handle() {
        // The relay's last writes wait for SQLite's only writer: it has nothing to write here.
        Handle::Sqlite(sql) => run!(sql),
        Handle::Postgres(sql) => run!(sql),
        Handle::MySql(sql) => run!(sql),
        Handle::Memory(_) => panic!("memory has no hot path"),
    };
    let row = record(db, id).await;
    assert_eq!((row.status, row.attempts, row.locked_by), (Status::Pending, 0, None));
}
