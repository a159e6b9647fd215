//! A stream whose places are another cluster's, while others write to it: it is anchored anew without holding them up.
//!
//! Rows of the contract: RE11, SM3.

use std::time::Duration;

use posthaste::ErrorKind;
use posthaste::store::stream::{Beat, Hold};
use posthaste::store::{Mode, Stream};
use tokio::time::Instant;

use crate::harness::{Db, Kind, MINUTE, Setup, event, until, worker};

const SECOND: Duration = Duration::from_secs(1);

/// A stream of two lanes, of which these come from another cluster, with an event of each of ten aggregates.
async fn moved(lanes: &str) -> (Db, std::sync::Arc<dyn Stream>, Vec<Hold>) {
    let db =
        Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(2).unwrap()), ..Setup::default() }).await;
    for n in 0..10 {
        enqueue(&db, n).await;
    }
    db.execute(format!("UPDATE outbox_lanes SET system_id = 1 WHERE lane IN ({lanes})")).await.unwrap();
    let stream = db.store().stream().await.unwrap().unwrap();
    let worker = worker();
    let beat = Beat { relay: &worker, present: false, holds: &[], lease: MINUTE, seen: None };
    let holds = stream.take(&beat, &[0, 1], &[]).await.unwrap();
    (db, stream, holds)
}

async fn enqueue(db: &Db, n: u64) {
    let mut tx = db.begin().await;
    tx.enqueue(db, event("a", n).aggregate("order", n)).await.unwrap();
    tx.commit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm3_producers_are_not_held_up_while_a_moved_stream_waits_for_one_of_them() {
    let (db, stream, holds) = moved("0, 1").await;
    let mut long = db.begin().await;
    long.enqueue(&db, event("a", 10).aggregate("order", 10)).await.unwrap();
    let mut reader = stream.reader();
    let until_then = Instant::now() + 4 * SECOND;
    let opening = async {
        let mut waited = Duration::ZERO;
        while Instant::now() < until_then {
            let asked = Instant::now();
            let error = reader.open(&holds).await.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Conflict, "{error}");
            waited += asked.elapsed();
            // As often as a relay looks at its lanes, and more.
            tokio::time::sleep(SECOND / 20).await;
        }
        waited
    };
    let producing = async {
        let (mut longest, mut n) = (Duration::ZERO, 11);
        while Instant::now() < until_then {
            let began = Instant::now();
            enqueue(&db, n).await;
            longest = longest.max(began.elapsed());
            n += 1;
        }
        (longest, n)
    };
    let (waited, (longest, written)) = tokio::join!(opening, producing);
    println!("tried for {waited:?}, {written} events beside it, of which one took {longest:?}");
    assert!(longest < SECOND, "who writes waited for {longest:?}");
    assert!(waited < 2 * SECOND, "for {waited:?} of four seconds others had to wait");
    long.commit().await;
    until("it is anchored", async || reader.open(&holds).await.is_ok()).await;
    let mut read = 0;
    until("everything is read", async || {
        let page = reader.read(1000).await.unwrap();
        read += page.rows.len() as u64;
        read == written
    })
    .await;
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sm3_lanes_that_are_anchored_do_not_wait_for_others() {
    let (db, stream, holds) = moved("1").await;
    let mut long = db.begin().await;
    long.enqueue(&db, event("a", 10).aggregate("order", 10)).await.unwrap();
    let mut reader = stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(1000).await.unwrap();
    assert_eq!(page.lost, [1]);
    assert!(!page.rows.is_empty() && page.rows.iter().all(|row| row.hold.lane == 0));
    assert_eq!(*reader.open(&holds[1..]).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(reader.read(1000).await.unwrap().lost.is_empty(), "that was said");
    long.commit().await;
    until("it is anchored", async || reader.open(&holds[1..]).await.is_ok()).await;
    let mut read = page.rows.len();
    until("everything is read", async || {
        read += reader.read(1000).await.unwrap().rows.len();
        read == 11
    })
    .await;
    db.drop_everything().await;
}
