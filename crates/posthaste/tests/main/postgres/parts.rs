//! Claims on a table that somebody has made of several: the same place is in each of its parts.
//!
//! Rows of the contract: RE1.

use std::collections::HashSet;

use posthaste::store::Claim;

use crate::harness::{Db, Kind, MINUTE, worker};

/// Rows of each part.
const ROWS: i64 = 20;

/// Another table that is part of the outbox.
const PART: &str = "CREATE TABLE outbox_part () INHERITS (outbox)";
/// Rows of it at the same places: of three one is free, one delivered and one leased.
const MIXED: &str = "
INSERT INTO outbox_part (topic, payload, seq, attempts, outcome, settled_at, locked_by, locked_until)
SELECT CASE n % 3 WHEN 0 THEN 'free' ELSE 'taken' END, '1', 100 + n, CASE n % 3 WHEN 0 THEN 0 ELSE 1 END,
       CASE n % 3 WHEN 1 THEN 'delivered' END, CASE n % 3 WHEN 1 THEN now() END,
       CASE n % 3 WHEN 2 THEN 'somebody#1' END, CASE n % 3 WHEN 2 THEN now() + interval '1 hour' END
  FROM generate_series(1, 60) AS n";

async fn with_rows() -> Db {
    let db = Db::new(Kind::Postgres).await;
    db.execute(format!(
        "INSERT INTO outbox (topic, payload) SELECT 'free', '1' FROM generate_series(1, {ROWS})"
    ))
    .await
    .unwrap();
    db
}

/// How many rows that were taken before somebody has changed since.
async fn changed(db: &Db) -> i64 {
    db.number(
        "SELECT count(*) FROM outbox_part WHERE topic = 'taken'
            AND (attempts <> 1 OR num_nonnulls(outcome, locked_by) <> 1 OR locked_by <> 'somebody#1')",
    )
    .await
}

/// Claims all that is free in tens.
async fn claim_all(db: &Db, all: i64) -> Vec<usize> {
    let (mut ids, mut sizes) = (HashSet::new(), Vec::new());
    loop {
        let claimed = db.store().claim(&Claim::by(worker()).limit(10).lease(MINUTE)).await.unwrap().events;
        if claimed.is_empty() {
            assert_eq!(ids.len() as i64, all);
            return sizes;
        }
        sizes.push(claimed.len());
        for one in claimed {
            assert_eq!(one.event.topic(), "free");
            assert!(ids.insert(one.event.id()), "claimed twice");
        }
    }
}

#[tokio::test]
async fn re1_of_a_table_of_several_parts_no_more_is_claimed_than_was_chosen() {
    let db = with_rows().await;
    db.execute(PART).await.unwrap();
    db.execute(format!(
        "INSERT INTO outbox_part (topic, payload, seq) SELECT 'free', '1', n FROM generate_series(100, {}) AS n",
        99 + ROWS
    ))
    .await
    .unwrap();
    assert_eq!(claim_all(&db, 2 * ROWS).await, [10, 10, 10, 10]);
    db.drop_everything().await;
}

/// Whoever has claimed before names rows by their places until the table says that it is not one any more.
#[tokio::test]
async fn re1_a_table_that_becomes_one_of_several_parts_loses_nothing_and_gives_no_more_than_was_chosen() {
    let db = with_rows().await;
    let first = db.store().claim(&Claim::by(worker()).limit(1).lease(MINUTE)).await.unwrap().events;
    assert_eq!(first.len(), 1);
    db.execute("UPDATE outbox SET locked_by = NULL, locked_until = NULL, attempts = 0").await.unwrap();
    db.execute("VACUUM outbox").await.unwrap();
    db.execute(PART).await.unwrap();
    db.execute(MIXED).await.unwrap();
    let shared = "SELECT count(*) FROM ONLY outbox AS one JOIN outbox_part AS other ON one.ctid = other.ctid";
    assert!(db.number(shared).await > 10, "their rows are at other places");
    assert_eq!(claim_all(&db, 2 * ROWS).await, [10, 10, 10, 10]);
    assert_eq!(changed(&db).await, 0);
    db.drop_everything().await;
}

/// Parts as PostgreSQL itself makes them.
#[tokio::test]
async fn re1_of_a_partitioned_table_all_that_is_free_is_claimed_once() {
    const PARTITIONED: &str =
        "CREATE TABLE outbox (LIKE whole INCLUDING DEFAULTS INCLUDING GENERATED) PARTITION BY HASH (id)";
    let db = with_rows().await;
    db.execute("ALTER TABLE outbox RENAME TO whole").await.unwrap();
    db.execute(PARTITIONED).await.unwrap();
    for part in 0..2 {
        db.execute(format!(
            "CREATE TABLE part_{part} PARTITION OF outbox FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
        ))
        .await
        .unwrap();
    }
    db.execute("INSERT INTO outbox SELECT * FROM whole").await.unwrap();
    assert_eq!(claim_all(&db, ROWS).await, [10, 10]);
    db.drop_everything().await;
}

/// It has no places at all.
#[tokio::test]
async fn re1_of_a_view_all_that_is_free_is_claimed_once() {
    let db = with_rows().await;
    db.execute("ALTER TABLE outbox RENAME TO whole").await.unwrap();
    db.execute("CREATE VIEW outbox AS SELECT * FROM whole").await.unwrap();
    assert_eq!(claim_all(&db, ROWS).await, [10, 10]);
    db.execute("DROP VIEW outbox").await.unwrap();
    db.drop_everything().await;
}
