//! What a statement does not change it does not wait for, however small the table is: a database may well read all of
//! a table that has three rows, and lock what it reads.
//!
//! Rows of the contract: RE1, RE2, RE3, ST7, OP4, HK1.

use std::time::Duration;

use posthaste::store::{Claimed, Ending, Extended, Filter, Keep, Purge, Settlement};

use crate::harness::{Db, MINUTE, event, until, worker};

// SQLite has one writer at a time.
conformance_servers!(
    re1_a_claim_waits_for_no_other_row,
    st7_a_burial_waits_for_no_other_row,
    re3_an_extension_waits_for_no_other_row,
    re3_a_settlement_waits_for_no_other_row,
    re2_ending_orphaned_leases_waits_for_no_other_row,
    op4_replay_and_discard_wait_for_no_other_row,
    hk1_a_purge_waits_for_no_other_row,
);

/// Holds a row that nothing here is about, as a transaction that changes it would, while something else is done.
async fn beside_a_locked_row<T>(db: &Db, what: &str, done: impl Future<Output = T>) -> T {
    let bystander = db.number("SELECT seq FROM outbox WHERE topic = 'bystander'").await;
    let mut holder = db.begin().await;
    let lock = format!("UPDATE outbox SET version = 2 WHERE seq = {bystander}");
    assert_eq!(holder.execute(lock).await.unwrap(), 1);
    // Who waits for a lock does so for 50 s, or for ever.
    let done = tokio::time::timeout(Duration::from_secs(10), done).await;
    holder.rollback().await;
    done.unwrap_or_else(|_| panic!("{what} waits for a row that it does not change"))
}

/// So many claimed rows, and one among them that nobody may claim yet.
async fn claimed_and_a_bystander(db: &Db, rows: usize) -> Vec<Claimed> {
    enqueue(db, rows).await;
    let claimed = db.claim(&worker(), 10).await;
    assert_eq!(claimed.len(), rows);
    claimed
}

async fn enqueue(db: &Db, rows: usize) {
    let mut events = vec![event("a", 1); rows];
    events.insert(1, event("bystander", 1).delay(60 * MINUTE));
    let events: Vec<_> = events.into_iter().map(|event| event.build().unwrap()).collect();
    db.store().insert(&events).await.unwrap();
}

async fn re1_a_claim_waits_for_no_other_row(db: &Db) {
    enqueue(db, 2).await;
    let worker = worker();
    let claimed = beside_a_locked_row(db, "a claim", db.claim(&worker, 10)).await;
    assert_eq!(claimed.len(), 2);
}

async fn st7_a_burial_waits_for_no_other_row(db: &Db) {
    enqueue(db, 2).await;
    let broken = r#"UPDATE outbox SET headers = '{"number": 1}' WHERE topic <> 'bystander'"#;
    assert_eq!(db.execute(broken).await.unwrap(), 2);
    let worker = worker();
    assert_eq!(beside_a_locked_row(db, "a burial", db.claim(&worker, 10)).await.len(), 0);
    assert_eq!(db.store().count(&Filter::dead(), 10).await.unwrap().n, 2);
}

async fn re3_an_extension_waits_for_no_other_row(db: &Db) {
    let leases: Vec<_> = claimed_and_a_bystander(db, 2).await.into_iter().map(|c| c.lease).collect();
    let extended = beside_a_locked_row(db, "an extension", db.store().extend(&leases, MINUTE)).await.unwrap();
    assert_eq!(extended, Extended::default());
}

async fn re3_a_settlement_waits_for_no_other_row(db: &Db) {
    let leases: Vec<_> = claimed_and_a_bystander(db, 2).await.into_iter().map(|c| c.lease).collect();
    let [one, other] = <[_; 2]>::try_from(leases).unwrap();
    for (lease, keep) in [(one, Keep::Delivered), (other, Keep::Nothing)] {
        let ends = [Settlement::delivered(lease)];
        beside_a_locked_row(db, "a settlement", db.store().settle(&ends, keep)).await.unwrap();
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 2, "one was deleted");
}

async fn re2_ending_orphaned_leases_waits_for_no_other_row(db: &Db) {
    enqueue(db, 2).await;
    let session = db.store().session(&worker()).await.unwrap();
    let gone = session.worker().clone();
    assert_eq!(db.claim(&gone, 10).await.len(), 2);
    session.close().await;
    let mut absent = Vec::new();
    until("its session is known to be gone", async || {
        absent = db.store().absent_workers().await.unwrap();
        !absent.is_empty()
    })
    .await;
    let ended = beside_a_locked_row(db, "ending leases", db.store().end_leases_of(&absent)).await.unwrap();
    assert_eq!(ended, 2);
}

/// So many of a table's rows that a database reads all of it to find them.
const MOST: usize = 5;

async fn op4_replay_and_discard_wait_for_no_other_row(db: &Db) {
    for round in ["replay", "discard"] {
        let ends: Vec<_> = match round {
            "replay" => claimed_and_a_bystander(db, MOST).await,
            _ => db.claim(&worker(), 10).await,
        }
        .into_iter()
        .map(|claimed| Settlement::dead(claimed.lease, "no"))
        .collect();
        assert_eq!(ends.len(), MOST);
        db.store().settle(&ends, Keep::Delivered).await.unwrap();
        let dead = Filter::dead();
        let done = async {
            match round {
                "replay" => db.store().replay(&dead, 10).await,
                _ => db.store().discard(&dead, 10).await,
            }
        };
        assert_eq!(beside_a_locked_row(db, round, done).await.unwrap(), MOST as u64);
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 1);
}

async fn hk1_a_purge_waits_for_no_other_row(db: &Db) {
    for ending in [Ending::Delivered, Ending::Dead] {
        db.execute("DELETE FROM outbox").await.unwrap();
        let claimed = claimed_and_a_bystander(db, MOST).await.into_iter();
        let ends: Vec<_> = match ending {
            Ending::Delivered => claimed.map(|c| Settlement::delivered(c.lease)).collect(),
            Ending::Dead => claimed.map(|c| Settlement::dead(c.lease, "no")).collect(),
        };
        db.store().settle(&ends, Keep::Delivered).await.unwrap();
        let purge = Purge { ending, older_than: Duration::ZERO, limit: 10 };
        assert_eq!(beside_a_locked_row(db, "a purge", db.store().purge(purge)).await.unwrap(), MOST as u64);
    }
}
