//! Pages: what a reader reads, in which order, and that it misses nothing.
//!
//! Rows of the contract: SM1.

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::Keep;
use posthaste::store::stream::{Page, Park, Wait};

use super::rig::{
    NOBODY, Rig, dead_park, delivered, failed, key, number, numbers, park, parked_numbers, said,
};
use crate::harness::{Kind, event, until, worker};

conformance_sql_by_kind!(
    sm1_pages_come_in_order_without_loss,
    sm1_delivered_rows_are_kept_or_not,
    sm1_late_commits_come_beside_busy_producers,
    sm1_rows_that_cannot_be_read_come_as_such,
);

// Where one transaction at a time writes, nobody commits late.
databases!(sm1_late_commits_are_found, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);

// Elsewhere nobody writes to a row that somebody may hold.
databases!(sm1_a_producer_of_duplicates_holds_up_nobody, by_kind: mysql MySql, mariadb MariaDb);

async fn sm1_pages_come_in_order_without_loss(kind: Kind) {
    let rig = Rig::new(kind, 4).await;
    let ids: Vec<String> = (0..10_000).map(|n| format!("{}", n % 97)).collect();
    for ids in ids.chunks(1000) {
        rig.enqueue(ids.iter().map(String::as_str)).await;
    }
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let mut read = Vec::new();
    let mut pages: Vec<Page> = Vec::new();
    while read.len() < 10_000 {
        let page = reader.read(700).await.unwrap();
        assert!(page.rows.len() == 700 && page.more || page.rows.len() == 10_000 - read.len());
        read.extend(page.rows.iter().map(|row| row.sequence));
        pages.push(page);
        // Several are under way at any time, and they end in any order.
        if pages.len() == 4 {
            let page = pages.remove(2);
            reader.settle(&said(&page), &[page.number], Keep::Delivered).await.unwrap();
        }
    }
    assert!(read.is_sorted_by(|a, b| a < b), "each once, in order");
    for page in &pages {
        reader.settle(&said(page), &[page.number], Keep::Delivered).await.unwrap();
        reader.settle(&said(page), &[page.number], Keep::Delivered).await.unwrap();
    }
    let nothing = reader.read(700).await.unwrap();
    assert!(nothing.rows.is_empty() && !nothing.more);
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    assert!(rig.page(&rig.own().await).await.rows.is_empty());
    rig.db.drop_everything().await;
}

async fn sm1_delivered_rows_are_kept_or_not(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    for (keep, left) in [(Keep::Delivered, 4), (Keep::Nothing, 0)] {
        rig.enqueue(["a", "a", "b", "c"]).await;
        let holds = rig.own().await;
        let mut reader = rig.stream.reader();
        reader.open(&holds).await.unwrap();
        let page = reader.read(10).await.unwrap();
        rig.park(vec![failed(&page.rows[0], Duration::ZERO), park(&page.rows[1], Wait::Behind)]).await;
        reader.settle(&said(&page)[2..], &[page.number], keep).await.unwrap();
        for n in [0, 1] {
            let parked = rig.claim(&holds, 1).await;
            assert_eq!(parked_numbers(&parked), [n]);
            assert_eq!(rig.stream.settle_parked(&delivered(&parked), keep).await.unwrap(), NOBODY);
        }
        assert_eq!(rig.count("outbox_parked").await, 0);
        if kind != Kind::Postgres {
            assert_eq!(rig.count("outbox").await, left);
            assert_eq!(
                rig.count("outbox WHERE outcome = 'delivered' AND settled_at IS NOT NULL").await,
                left
            );
        }
        assert_eq!(rig.count("outbox_status WHERE status <> 'delivered'").await, 0);
        rig.execute("DELETE FROM outbox").await;
    }
    rig.db.drop_everything().await;
}

async fn sm1_late_commits_are_found(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    rig.enqueue(["a"]).await;
    assert_eq!(reader.read(100).await.unwrap().rows.len(), 1);
    for late in ["soon", "later"] {
        let mut tx = rig.db.begin().await;
        tx.enqueue(&rig.db, event("late", 7).aggregate("order", "x")).await.unwrap();
        rig.enqueue(["b", "c", "d"]).await;
        let mut read = reader.read(100).await.unwrap();
        assert_eq!(numbers(&read.rows), [0, 1, 2], "{late}: of an open transaction nothing is seen");
        if late == "later" {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            assert!(reader.read(100).await.unwrap().rows.is_empty());
        }
        tx.commit().await;
        if late == "soon" {
            read = reader.read(100).await.unwrap();
        } else {
            until("a sweep finds it", async || {
                read = reader.read(100).await.unwrap();
                !read.rows.is_empty()
            })
            .await;
        }
        assert_eq!(numbers(&read.rows), [7], "{late}");
        assert!(reader.read(100).await.unwrap().rows.is_empty());
    }
    rig.db.drop_everything().await;
}

/// Producers commit in any order beside an owner that delivers and parks: nothing is lost, nothing comes twice, and of
/// each aggregate, which has one producer, everything comes in order.
async fn sm1_late_commits_come_beside_busy_producers(kind: Kind) {
    const PRODUCERS: u64 = 4;
    const EACH: u64 = 300;
    let rig = Arc::new(Rig::new(kind, 4).await);
    let holds = rig.own().await;
    let mut producers = tokio::task::JoinSet::new();
    for producer in 0..PRODUCERS {
        let rig = Arc::clone(&rig);
        producers.spawn(async move {
            let mut n = 0;
            while n < EACH {
                let mut tx = rig.db.begin().await;
                for _ in 0..=(n + producer) % 5 {
                    let id = format!("{producer}");
                    tx.enqueue(&rig.db, event("a", n).aggregate("order", id)).await.unwrap();
                    n += 1;
                }
                tokio::task::yield_now().await;
                tx.commit().await;
            }
            n
        });
    }
    let delivering = {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move {
            let mut reader = rig.stream.reader();
            reader.open(&holds).await.unwrap();
            let mut came: Vec<Vec<u64>> = vec![Vec::new(); PRODUCERS as usize];
            let mut idle = 0;
            // Until nothing has come for longer than a sweep takes.
            while idle < 200 {
                let page = reader.read(50).await.unwrap();
                assert!(page.lost.is_empty());
                let mut parks = Vec::new();
                let mut done = Vec::new();
                let keys: Vec<String> = page.rows.iter().map(key).collect();
                let mut blocked = rig.stream.blocked_among(&keys).await.unwrap();
                for row in &page.rows {
                    if blocked.contains(&key(row)) {
                        parks.push(park(row, Wait::Behind));
                    } else if number(&row.event) % 10 == 3 {
                        parks.push(failed(row, Duration::ZERO));
                        blocked.insert(key(row));
                    } else {
                        came[key(row).parse::<usize>().unwrap()].push(number(&row.event));
                        done.push((row.hold, row.sequence));
                    }
                }
                rig.park(parks).await;
                let keep = if page.number % 2 == 0 { Keep::Delivered } else { Keep::Nothing };
                assert_eq!(reader.settle(&done, &[page.number], keep).await.unwrap(), NOBODY);
                let parked = rig.claim(&holds, 50).await;
                for parked in &parked {
                    let event = parked.event.as_ref().unwrap();
                    came[event.aggregate_id().unwrap().parse::<usize>().unwrap()].push(number(&parked.event));
                }
                rig.settle(&delivered(&parked)).await;
                if page.rows.is_empty() && parked.is_empty() {
                    idle += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                } else {
                    idle = 0;
                }
            }
            came
        })
    };
    let written = producers.join_all().await;
    let came = delivering.await.unwrap();
    let mut counts: Vec<u64> = came.iter().map(|numbers| numbers.len() as u64).collect();
    for numbers in &came {
        assert_eq!(*numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    }
    let mut written = written;
    counts.sort_unstable();
    written.sort_unstable();
    assert_eq!(counts, written);
    assert_eq!(rig.count("outbox_status WHERE status <> 'delivered'").await, 0);
    Arc::into_inner(rig).unwrap().db.drop_everything().await;
}

/// Who met a duplicate of an event holds its row until it commits: nobody waits for that.
async fn sm1_a_producer_of_duplicates_holds_up_nobody(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let made = |n| event("a", n).aggregate("order", n).dedupe_key(format!("k{n}")).build().unwrap();
    let (by_id, by_key) = (made(0), made(1));
    rig.enqueue_events(vec![by_id.clone(), by_key, made(2), made(3), made(4)]).await;
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(10).await.unwrap();
    rig.park(vec![failed(&page.rows[3], Duration::ZERO)]).await;
    let parked = rig.claim(&holds, 10).await;
    let mut tx = rig.db.begin().await;
    for duplicate in [by_id, made(1), made(3), made(4)] {
        assert!(tx.enqueue(&rig.db, duplicate).await.unwrap().duplicate);
    }
    let settling = async {
        rig.park(vec![failed(&page.rows[4], Duration::ZERO)]).await;
        assert_eq!(reader.settle(&said(&page)[..3], &[page.number], Keep::Nothing).await.unwrap(), NOBODY);
        rig.stream.settle_parked(&delivered(&parked), Keep::Nothing).await.unwrap();
        let parked = rig.claim(&holds, 10).await;
        assert_eq!(parked_numbers(&parked), [4]);
        rig.settle(&delivered(&parked)).await;
        rig.beat(&worker(), &holds).await;
    };
    tokio::time::timeout(Duration::from_secs(5), settling).await.unwrap();
    assert_eq!(rig.count("outbox_status WHERE status = 'delivered'").await, 4, "some are written to later");
    assert!(reader.read(10).await.unwrap().rows.is_empty());
    assert!(rig.claim(&holds, 10).await.is_empty());
    tx.commit().await;
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    assert!(rig.claim(&holds, 10).await.is_empty());
    assert_eq!(rig.count("outbox").await, rig.count("outbox WHERE outcome = 'delivered'").await);
    assert_eq!(rig.count("outbox_parked").await, 0);
    assert!(rig.page(&rig.own().await).await.rows.is_empty());
    rig.db.drop_everything().await;
}

async fn sm1_rows_that_cannot_be_read_come_as_such(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b"]).await;
    rig.execute("INSERT INTO outbox (topic, payload, headers) VALUES ('bad', '1', '{\"a\": 1}')").await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    assert_eq!(page.rows.len(), 3);
    let bad = &page.rows[2];
    assert_eq!((bad.topic(), bad.event.is_err()), ("bad", true));
    let dead = Park { key: bad.id.to_string(), ..dead_park(bad, false, "bad") };
    rig.park(vec![dead]).await;
    assert!(rig.claim(&holds, 10).await.is_empty());
    assert_eq!(rig.count("outbox_status WHERE status = 'dead' AND last_error = 'bad'").await, 1);
    rig.db.drop_everything().await;
}
