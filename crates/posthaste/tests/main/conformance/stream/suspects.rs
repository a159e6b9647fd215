//! Suspects: what an owner that ended uncleanly had under way is tried by itself.
//!
//! Rows of the contract: SM1, SM2.

use std::collections::HashMap;
use std::time::Duration;

use posthaste::store::stream::Wait;
use posthaste::store::{Keep, Topics};

use super::rig::{NOBODY, Rig, delivered, failed, key, park, parked_numbers, retry, said};
use crate::harness::{Kind, MINUTE};

conformance_sql_by_kind!(
    sm1_what_was_under_way_is_suspect_after_an_unclean_end,
    sm1_a_clean_release_leaves_no_suspects,
    sm2_of_suspects_one_is_tried_at_a_time,
);

async fn sm1_what_was_under_way_is_suspect_after_an_unclean_end(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    rig.enqueue(["a", "b", "c", "d", "e"]).await;
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(4).await.unwrap();
    reader.settle(&said(&page)[..1], &[], Keep::Delivered).await.unwrap();
    rig.park(vec![failed(&page.rows[1], Duration::ZERO), failed(&page.rows[2], MINUTE)]).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [1]);

    let holds = rig.own().await;
    rig.enqueue(["f"]).await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let mut rows = reader.read(100).await.unwrap().rows;
    rows.append(&mut reader.read(100).await.unwrap().rows);
    // PostgreSQL writes nothing of a row that was delivered or parked: until its page is done it is read again.
    let found: HashMap<String, bool> = rows.iter().map(|row| (key(row), row.suspect)).collect();
    assert_eq!(
        (found["d"], found["e"], found["f"]),
        (true, false, false),
        "it was under way, those were not"
    );
    assert!(kind == Kind::Postgres || found.len() == 3, "{found:?}");
    rig.make_due().await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [2], "that waited and was not tried");
    let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    assert_eq!(parked_numbers(&tried), [1]);
    assert_eq!((tried[0].suspect, tried[0].attempt), (true, 3));
    rig.db.drop_everything().await;
}

async fn sm1_a_clean_release_leaves_no_suspects(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    for clean in ["flush", "release"] {
        rig.enqueue(["a", "b", "c", "d", "e", "f"]).await;
        let holds = rig.own().await;
        let mut reader = rig.stream.reader();
        reader.open(&holds).await.unwrap();
        let page = reader.read(4).await.unwrap();
        if let Some(errand) = reader.errand() {
            tokio::spawn(errand);
        }
        assert!(page.rows.iter().all(|row| !row.suspect), "{clean}");
        rig.park(vec![park(&page.rows[3], Wait::After(MINUTE))]).await;
        assert_eq!(reader.settle(&said(&page)[..3], &[page.number], Keep::Nothing).await.unwrap(), NOBODY);
        match clean {
            "flush" => assert_eq!(reader.flush().await.unwrap(), NOBODY),
            _ => {
                // The next page may be on its way, whose note would say how far this one is.
                if let Some(coming) = reader.coming() {
                    coming.await;
                }
                assert_eq!(reader.catch_up().await.unwrap(), NOBODY);
                rig.stream.release(&holds).await.unwrap();
            }
        }
        let holds = rig.own().await;
        let mut reader = rig.stream.reader();
        reader.open(&holds).await.unwrap();
        let page = reader.read(10).await.unwrap();
        assert!(page.rows.len() == 2 && page.rows.iter().all(|row| !row.suspect), "{clean}");
        rig.make_due().await;
        let parked = rig.claim(&holds, 10).await;
        assert_eq!(parked_numbers(&parked), [3], "{clean}");
        rig.settle(&delivered(&parked)).await;
        reader.settle(&said(&page), &[page.number], Keep::Nothing).await.unwrap();
    }
    rig.db.drop_everything().await;
}

async fn sm2_of_suspects_one_is_tried_at_a_time(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "b", "b", "c"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    rig.park(vec![
        park(&rows[0], Wait::Suspect),
        park(&rows[1], Wait::Suspect),
        park(&rows[2], Wait::Suspect),
        park(&rows[3], Wait::Behind),
        park(&rows[4], Wait::Behind),
    ])
    .await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [4], "no suspect unless one is asked for");
    let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    assert_eq!((parked_numbers(&tried), tried[0].suspect), (vec![0], true));
    rig.settle(&[retry(&tried[0], MINUTE)]).await;
    let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    assert_eq!(parked_numbers(&tried), [2], "never one behind another of its aggregate");
    rig.settle(&delivered(&tried)).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [3]);
    assert!(rig.claim_with(&holds, 10, true, &Topics::All).await.is_empty());
    rig.make_due().await;
    for n in [0, 1] {
        let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
        assert_eq!((parked_numbers(&tried), tried[0].suspect), (vec![n], true), "once a suspect, always one");
        rig.settle(&delivered(&tried)).await;
    }
    rig.db.drop_everything().await;
}
