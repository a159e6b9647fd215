//! Producers that write the same event at the same time.
//!
//! Rows of the contract: EN3, HK2, RE3.

use std::collections::HashSet;
use std::sync::Arc;

use posthaste::ErrorKind;
use posthaste::store::{Extended, Filter, Keep, Lease, Mode, Settlement, Status};
use tokio::sync::{Barrier, oneshot};

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, Setup, event, worker};

conformance_sql_by_kind!(
    en3_sixteen_racing_dedupe_keys_give_one_row,
    en3_sixteen_racing_ids_give_one_row,
    en3_sixteen_racing_dedupe_keys_give_one_row_in_a_stream,
    en3_sixteen_racing_ids_give_one_row_in_a_stream,
    en3_racing_batches_give_one_row_each,
    en3_the_waiting_one_is_first_if_the_other_rolls_back,
    en3_a_snapshot_from_before_never_hides_the_first,
    hk2_of_racing_consumers_one_is_first,
    re3_settling_and_extending_at_once_neither_fail_nor_block,
    re3_a_producer_with_a_duplicate_holds_up_nobodys_settlement,
);

// Elsewhere a producer that met a duplicate locks nothing.
databases!(re3_a_lease_whose_row_is_locked_is_busy_and_not_extended, with_db: mysql MySql, mariadb MariaDb);

async fn sixteen(kind: Kind, mode: Mode, key: impl Fn(u64) -> posthaste::EventBuilder) {
    let db = Arc::new(Db::with(kind, Setup { mode: Some(mode), ..Setup::default() }).await);
    let barrier = Arc::new(Barrier::new(16));
    let tasks: Vec<_> = (0..16)
        .map(|n| {
            let (db, barrier, event) = (Arc::clone(&db), Arc::clone(&barrier), key(n));
            tokio::spawn(async move {
                barrier.wait().await;
                let mut tx = db.begin().await;
                let answer = tx.enqueue(&db, event).await.unwrap();
                tx.commit().await;
                answer
            })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1);
    assert_eq!(answers.iter().map(|answer| answer.id).collect::<HashSet<_>>().len(), 1, "all name the first");
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 1);
    let sequence = db.number("SELECT seq FROM outbox").await;
    assert!(answers.iter().all(|answer| answer.sequence == Some(sequence)));
    Arc::into_inner(db).unwrap().drop_everything().await;
}

async fn en3_sixteen_racing_dedupe_keys_give_one_row(kind: Kind) {
    sixteen(kind, Mode::Queue, |n| event("race", n).dedupe_key("k")).await;
}

async fn en3_sixteen_racing_dedupe_keys_give_one_row_in_a_stream(kind: Kind) {
    sixteen(kind, Mode::stream(8).unwrap(), |n| event("race", n).dedupe_key("k")).await;
}

async fn en3_sixteen_racing_ids_give_one_row(kind: Kind) {
    let id = uuid::Uuid::now_v7();
    sixteen(kind, Mode::Queue, move |n| event("race", n).id(id)).await;
}

async fn en3_sixteen_racing_ids_give_one_row_in_a_stream(kind: Kind) {
    let id = uuid::Uuid::now_v7();
    sixteen(kind, Mode::stream(8).unwrap(), move |n| event("race", n).id(id)).await;
}

async fn en3_racing_batches_give_one_row_each(kind: Kind) {
    let db = Arc::new(Db::new(kind).await);
    let barrier = Arc::new(Barrier::new(4));
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let (db, barrier) = (Arc::clone(&db), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                let events: Vec<_> =
                    (0..50).map(|n| event("race", task).dedupe_key(format!("key-{n:02}"))).collect();
                let mut tx = db.begin().await;
                let answers = tx.enqueue_all(&db, events).await.unwrap();
                tx.commit().await;
                answers
            })
        })
        .collect();
    let mut written = 0;
    let mut ids = HashSet::new();
    for task in tasks {
        let answers = task.await.unwrap();
        assert_eq!(answers.len(), 50);
        written += answers.iter().filter(|answer| !answer.duplicate).count();
        ids.extend(answers.iter().map(|answer| answer.id));
    }
    assert_eq!((written, ids.len()), (50, 50));
    assert_eq!(db.store().count(&Filter::all(), 100).await.unwrap().n, 50);
    Arc::into_inner(db).unwrap().drop_everything().await;
}

async fn en3_the_waiting_one_is_first_if_the_other_rolls_back(kind: Kind) {
    let db = Arc::new(Db::new(kind).await);
    let mut first = db.begin().await;
    assert!(!first.enqueue(&db, event("race", 1).dedupe_key("k")).await.unwrap().duplicate);
    let (started, start) = oneshot::channel();
    let second = tokio::spawn({
        let db = Arc::clone(&db);
        async move {
            started.send(()).unwrap();
            let mut tx = db.begin().await;
            let answer = tx.enqueue(&db, event("race", 2).dedupe_key("k")).await.unwrap();
            tx.commit().await;
            answer
        }
    });
    start.await.unwrap();
    if db.kind() == Kind::Postgres {
        // The second really waits for the first before that ends.
        while db
            .number("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
            .await
            == 0
        {
            tokio::task::yield_now().await;
        }
    }
    first.rollback().await;
    let answer = second.await.unwrap();
    assert!(!answer.duplicate);
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 1);
    Arc::into_inner(db).unwrap().drop_everything().await;
}

/// A transaction that has read before another one wrote the event: it is told of the duplicate where the
/// database lets it see that, and must be run again where it does not. It never writes a second one.
async fn en3_a_snapshot_from_before_never_hides_the_first(kind: Kind) {
    let db = Db::new(kind).await;
    let again = || event("race", 2).dedupe_key("k");
    match db.handle() {
        Handle::Postgres(sql) => {
            let mut committed = sql.pool.begin().await.unwrap();
            let repeatable = "BEGIN ISOLATION LEVEL REPEATABLE READ";
            let mut repeatable = sql.pool.begin_with(repeatable).await.unwrap();
            for tx in [&mut committed, &mut repeatable] {
                sqlx::query("SELECT count(*) FROM outbox").execute(&mut **tx).await.unwrap();
            }
            let first = db.enqueue_first().await;
            assert_eq!(sql.outbox.enqueue(&mut committed, again()).await.unwrap().id, first);
            let error = sql.outbox.enqueue(&mut repeatable, again()).await.unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
        }
        Handle::MySql(sql) => {
            let mut tx = sql.pool.begin().await.unwrap();
            sqlx::query("SELECT count(*) FROM outbox").execute(&mut *tx).await.unwrap();
            let first = db.enqueue_first().await;
            // With `innodb_snapshot_isolation` (newer MariaDB's default) it must be run again instead.
            for again in [event("race", 3).id(first), again()] {
                match sql.outbox.enqueue(&mut tx, again).await {
                    Ok(answer) => assert_eq!((answer.id, answer.duplicate), (first, true)),
                    Err(error) => assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}"),
                }
            }
        }
        Handle::Sqlite(sql) => {
            let mut tx = sql.pool.begin().await.unwrap();
            sqlx::query("SELECT count(*) FROM outbox").fetch_all(&mut *tx).await.unwrap();
            db.enqueue_first().await;
            let error = sql.outbox.enqueue(&mut tx, again()).await.unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Conflict, "{error}");
            assert!(error.is_transient());
        }
        Handle::Memory(_) => unreachable!(),
    }
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 1);
    db.drop_everything().await;
}

impl Db {
    async fn enqueue_first(&self) -> uuid::Uuid {
        let mut tx = self.begin().await;
        let answer = tx.enqueue(self, event("race", 1).dedupe_key("k")).await.unwrap();
        tx.commit().await;
        answer.id
    }
}

async fn hk2_of_racing_consumers_one_is_first(kind: Kind) {
    let db = Arc::new(Db::new(kind).await);
    let id = uuid::Uuid::now_v7();
    let barrier = Arc::new(Barrier::new(8));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (db, barrier) = (Arc::clone(&db), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                let mut tx = db.begin().await;
                let first = tx.first(&db, "billing", id).await.unwrap();
                tx.commit().await;
                first
            })
        })
        .collect();
    let mut first = 0;
    for task in tasks {
        first += usize::from(task.await.unwrap());
    }
    assert_eq!(first, 1);
    Arc::into_inner(db).unwrap().drop_everything().await;
}

/// Whoever holds a lease must know that it was not extended, or would go on past its end.
async fn re3_a_lease_whose_row_is_locked_is_busy_and_not_extended(db: &Db) {
    let first = db.enqueue_first().await;
    db.enqueue_numbers("a", 0..10).await;
    let leases: Vec<Lease> = db.claim(&worker(), 20).await.into_iter().map(|claimed| claimed.lease).collect();
    let before = db.store().get(first).await.unwrap().unwrap().locked_until;
    let mut producer = db.begin().await;
    assert!(producer.enqueue(db, event("race", 2).dedupe_key("k")).await.unwrap().duplicate);
    let extended = db.store().extend(&leases, 10 * MINUTE).await.unwrap();
    assert_eq!(extended, Extended { lost: Vec::new(), busy: vec![first] });
    for lease in &leases {
        let until = db.store().get(lease.id()).await.unwrap().unwrap().locked_until;
        assert_eq!(until == before, lease.id() == first, "{until:?}, before {before:?}");
    }
    producer.commit().await;
    assert_eq!(db.store().extend(&leases, 10 * MINUTE).await.unwrap(), Extended::default());
    assert!(db.store().get(first).await.unwrap().unwrap().locked_until > before);
}

/// A worker renews leases while it settles others of the same batch, in whatever order.
async fn re3_settling_and_extending_at_once_neither_fail_nor_block(kind: Kind) {
    let db = Db::new(kind).await;
    db.enqueue_numbers("a", 0..400).await;
    let claimed = db.claim(&worker(), 400).await;
    let leases: Vec<Lease> = claimed.into_iter().map(|claimed| claimed.lease).collect();
    let extend = async {
        for _ in 0..30 {
            let mut backwards = leases.clone();
            backwards.reverse();
            db.store().extend(&backwards, MINUTE).await.unwrap();
        }
    };
    let settle = async {
        for round in 0..4 {
            let part: Vec<_> =
                leases.iter().skip(round).step_by(4).cloned().map(Settlement::delivered).collect();
            let settled = db.store().settle(&part, Keep::Delivered).await.unwrap();
            // What the extension has locked just now is settled a moment later.
            let mut busy: HashSet<_> = settled.busy.into_iter().collect();
            while !busy.is_empty() {
                let again: Vec<_> = part.iter().filter(|s| busy.contains(&s.lease.id())).cloned().collect();
                busy = db.store().settle(&again, Keep::Delivered).await.unwrap().busy.into_iter().collect();
            }
        }
    };
    tokio::join!(extend, settle);
    assert_eq!(db.store().count(&Filter::status(Status::Delivered), 1000).await.unwrap().n, 400);
    db.drop_everything().await;
}

/// On MySQL a producer that met a duplicate holds the first one's row until it ends.
async fn re3_a_producer_with_a_duplicate_holds_up_nobodys_settlement(kind: Kind) {
    let db = Db::new(kind).await;
    let first = db.enqueue_first().await;
    db.enqueue_numbers("a", 0..10).await;
    let leases: Vec<Lease> = db.claim(&worker(), 20).await.into_iter().map(|claimed| claimed.lease).collect();
    let batch: Vec<_> = leases.iter().cloned().map(Settlement::delivered).collect();
    if kind == Kind::Sqlite {
        // One writer at a time is how SQLite is: there is nothing to hold up meanwhile.
        db.drop_everything().await;
        return;
    }
    let mut producer = db.begin().await;
    assert!(producer.enqueue(&db, event("race", 2).dedupe_key("k")).await.unwrap().duplicate);
    let settled = db.store().settle(&batch, Keep::Delivered).await.unwrap();
    assert!(settled.lost.is_empty());
    assert_eq!(settled.written + settled.busy.len(), 11);
    assert!(settled.busy.is_empty() || settled.busy == [first], "{settled:?}");
    producer.commit().await;
    let rest: Vec<_> = batch.into_iter().filter(|s| settled.busy.contains(&s.lease.id())).collect();
    let settled = db.store().settle(&rest, Keep::Delivered).await.unwrap();
    assert_eq!((settled.written, settled.busy.len()), (rest.len(), 0));
    assert_eq!(db.store().count(&Filter::status(Status::Delivered), 100).await.unwrap().n, 11);
    db.drop_everything().await;
}
