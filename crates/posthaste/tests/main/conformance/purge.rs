//! Settled rows leave after their retention; nothing else does.
//!
//! Rows of the contract: HK1.

use std::time::Duration;

use posthaste::store::{Ending, Filter, Keep, Purge, Settlement, Status};

use crate::harness::{Db, MINUTE, worker};

conformance!(
    hk1_only_old_settled_rows_of_the_kind_go,
    hk1_a_purge_is_bounded,
    hk1_age_counts_from_the_settlement
);

/// A stream's rows go as a queue's do.
mod stream {
    as_on_a_queue!(8: hk1_a_purge_is_bounded);
}

async fn hk1_only_old_settled_rows_of_the_kind_go(db: &Db) {
    db.enqueue_numbers("a", 0..5).await;
    let [one, two, three, _four] = <[_; 4]>::try_from(db.claim(&worker(), 4).await).unwrap();
    let batch = [
        Settlement::delivered(one.lease),
        Settlement::dead(two.lease, "no"),
        Settlement::retry(three.lease, Duration::ZERO, "no"),
    ];
    db.store().settle(&batch, Keep::Delivered).await.unwrap();
    let purge = |ending, minutes| Purge { ending, older_than: minutes * MINUTE, limit: 100 };
    assert_eq!(db.store().purge(purge(Ending::Delivered, 1)).await.unwrap(), 0);
    db.shift(10 * MINUTE).await;
    assert_eq!(db.store().purge(purge(Ending::Delivered, 20)).await.unwrap(), 0);
    assert_eq!(db.store().purge(purge(Ending::Delivered, 5)).await.unwrap(), 1);
    assert_eq!(
        db.store().count(&Filter::dead(), 10).await.unwrap().n,
        1,
        "dead ones have a retention of their own"
    );
    assert_eq!(db.store().purge(purge(Ending::Dead, 5)).await.unwrap(), 1);
    assert_eq!(
        db.store().count(&Filter::all(), 10).await.unwrap().n,
        3,
        "pending and leased rows are never touched"
    );
}

async fn hk1_a_purge_is_bounded(db: &Db) {
    db.enqueue_numbers("a", 0..25).await;
    db.deliver_all().await;
    db.shift(MINUTE).await;
    let purge = Purge { ending: Ending::Delivered, older_than: Duration::ZERO, limit: 10 };
    for expected in [10, 10, 5, 0] {
        assert_eq!(db.store().purge(purge).await.unwrap(), expected);
    }
}

async fn hk1_age_counts_from_the_settlement(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    db.shift(100 * MINUTE).await;
    let claimed = db.claim(&worker(), 1).await.remove(0);
    db.store().settle(&[Settlement::delivered(claimed.lease)], Keep::Delivered).await.unwrap();
    let purge = Purge { ending: Ending::Delivered, older_than: MINUTE, limit: 10 };
    assert_eq!(db.store().purge(purge).await.unwrap(), 0, "written long ago, delivered just now");
    assert_eq!(db.store().get(id).await.unwrap().unwrap().status, Status::Delivered);
}
