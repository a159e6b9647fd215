//! Streams that keep what was delivered: nothing that a reader does is to take longer for it.
//!
//! Rows of the contract: SM1.

use std::time::{Duration, Instant};

use posthaste::store::Keep;

use super::rig::{NOBODY, Rig, numbers, said};
use crate::harness::{Kind, event};

// PostgreSQL is read from a place, and SQLite has an index of what is unsettled and nothing else.
databases!(sm1_what_was_delivered_is_looked_at_in_parts, by_kind: mysql MySql, mariadb MariaDb);

/// How often one delivered row is doubled: 131 072 of them are kept, of a kilobyte each.
const DOUBLINGS: u32 = 17;

async fn fill(rig: &Rig) {
    let columns = "topic, aggregate_id, payload, outcome, settled_at";
    let values = "'a', 'x', CONCAT('\"', REPEAT('0', 1000), '\"'), 'delivered', UTC_TIMESTAMP(6)";
    rig.execute(&format!("INSERT INTO outbox ({columns}) SELECT {values}")).await;
    for _ in 0..DOUBLINGS {
        rig.execute(&format!("INSERT INTO outbox ({columns}) SELECT {columns} FROM outbox")).await;
    }
}

/// How long it takes to look at all of them at once.
async fn scan(rig: &Rig) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(rig.count("outbox FORCE INDEX (PRIMARY) WHERE seq > 0 AND topic = 'b'").await, 0);
        least = least.min(began.elapsed());
    }
    least
}

/// Whoever opens a lane finds out from where on it has to read. That takes a while, but no read does, and what is committed late
/// comes before what was committed after it all the time.
async fn sm1_what_was_delivered_is_looked_at_in_parts(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    fill(&rig).await;
    let scan = scan(&rig).await;
    let mut late = rig.db.begin().await;
    late.enqueue(&rig.db, event("late", 7).aggregate("order", "x")).await.unwrap();
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds[..1]).await.unwrap();
    let mut took = Vec::new();
    for n in 0..24 {
        // One lane comes later.
        if n == 12 {
            reader.open(&holds).await.unwrap();
        }
        rig.enqueue(["a", "b", "c", "d"]).await;
        let began = Instant::now();
        let page = reader.read(100).await.unwrap();
        took.push(began.elapsed());
        assert_eq!(reader.settle(&said(&page), &[page.number], Keep::Delivered).await.unwrap(), NOBODY);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    late.commit().await;
    rig.enqueue(["x"]).await;
    assert_eq!(numbers(&reader.read(100).await.unwrap().rows), [7, 0]);
    println!("all at once: {scan:?}; reads: {took:?}");
    took.sort_unstable();
    // One may have been held up by something else.
    assert!(took[took.len() - 2] < scan / 2, "{:?} of {scan:?}", &took[took.len() - 4..]);
    rig.db.drop_everything().await;
}
