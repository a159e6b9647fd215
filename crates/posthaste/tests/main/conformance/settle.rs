//! How leases end: batched, fenced, final.
//!
//! Rows of the contract: HK1, RE3, RT5, ST5.

use std::time::Duration;

use posthaste::store::{Extended, Filter, Keep, Lease, Settlement, Status, Verdict};
use uuid::Uuid;

use crate::harness::{Db, MINUTE, worker};

conformance!(
    st5_delivered_is_final,
    re3_a_retry_waits_and_keeps_its_error,
    re3_dead_is_final_without_an_operator,
    re3_a_release_gives_the_attempt_back,
    re3_a_released_row_may_wait,
    re3_any_mix_is_one_batch_and_only_holders_succeed,
    re3_the_first_of_two_settlements_counts,
    re3_an_extended_lease_lasts_from_now,
    hk1_nothing_is_kept_where_nothing_is_wanted,
    rt5_errors_are_cut,
    re3_an_expired_lease_that_nobody_took_still_settles,
);

async fn one(db: &Db) -> Lease {
    db.enqueue_numbers("a", 0..1).await;
    db.claim(&worker(), 1).await.remove(0).lease
}

async fn settle(db: &Db, settlement: Settlement) -> usize {
    db.store().settle(&[settlement], Keep::Delivered).await.unwrap().written
}

async fn st5_delivered_is_final(db: &Db) {
    let lease = one(db).await;
    assert_eq!(settle(db, Settlement::delivered(lease.clone())).await, 1);
    let record = db.store().get(lease.id()).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts, record.last_error), (Status::Delivered, 1, None));
    assert_eq!((record.locked_by, record.locked_until), (None, None));
    assert!(record.settled_at.unwrap() >= record.created_at);
    for settlement in [
        Settlement::dead(lease.clone(), "no"),
        Settlement::retry(lease.clone(), Duration::ZERO, "no"),
        Settlement::released(lease.clone()),
        Settlement::delivered(lease.clone()),
    ] {
        assert_eq!(settle(db, settlement).await, 0);
    }
    db.shift(100 * MINUTE).await;
    assert!(db.claim(&worker(), 10).await.is_empty());
    assert_eq!(db.store().replay(&Filter::all(), 10).await.unwrap(), 0);
    assert_eq!(db.store().get(lease.id()).await.unwrap().unwrap().status, Status::Delivered);
}

async fn re3_a_retry_waits_and_keeps_its_error(db: &Db) {
    let lease = one(db).await;
    settle(db, Settlement::retry(lease.clone(), Duration::from_secs(90), "broker said no")).await;
    let record = db.store().get(lease.id()).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts), (Status::Pending, 1));
    assert_eq!(record.last_error.as_deref(), Some("broker said no"));
    assert_eq!(record.settled_at, None);
    db.shift(MINUTE).await;
    assert!(db.claim(&worker(), 10).await.is_empty());
    db.shift(MINUTE).await;
    let again = db.claim(&worker(), 10).await.remove(0);
    assert_eq!(again.lease.attempt(), 2);
    settle(db, Settlement::delivered(again.lease)).await;
    assert_eq!(db.store().get(lease.id()).await.unwrap().unwrap().last_error, None);
}

async fn re3_dead_is_final_without_an_operator(db: &Db) {
    let lease = one(db).await;
    settle(db, Settlement::dead(lease.clone(), "rejected")).await;
    db.shift(100 * MINUTE).await;
    assert!(db.claim(&worker(), 10).await.is_empty());
    let record = db.store().get(lease.id()).await.unwrap().unwrap();
    assert_eq!((record.status, record.last_error.as_deref()), (Status::Dead, Some("rejected")));
}

async fn re3_a_release_gives_the_attempt_back(db: &Db) {
    let ids = db.enqueue_numbers("a", 0..2).await;
    let mut claimed = db.claim(&worker(), 2).await;
    settle(db, Settlement::retry(claimed.remove(0).lease, Duration::ZERO, "kept")).await;
    let mut claimed = db.claim(&worker(), 1).await;
    assert_eq!(claimed[0].lease.attempt(), 2);
    settle(db, Settlement::released(claimed.remove(0).lease)).await;
    let record = db.store().get(ids[0]).await.unwrap().unwrap();
    assert_eq!(
        (record.status, record.attempts, record.last_error.as_deref()),
        (Status::Pending, 1, Some("kept"))
    );
    assert_eq!(db.claim(&worker(), 10).await[0].lease.attempt(), 2);
}

async fn re3_a_released_row_may_wait(db: &Db) {
    let lease = one(db).await;
    settle(db, Settlement { lease, verdict: Verdict::Released { after: Duration::from_secs(90) } }).await;
    assert!(db.claim(&worker(), 10).await.is_empty());
    db.shift(2 * MINUTE).await;
    assert_eq!(db.claim(&worker(), 10).await[0].lease.attempt(), 1);
}

async fn re3_any_mix_is_one_batch_and_only_holders_succeed(db: &Db) {
    db.enqueue_numbers("a", 0..5).await;
    let stale = db.claim(&worker(), 1).await.remove(0).lease;
    db.shift(2 * MINUTE).await;
    let claimed = db.claim(&worker(), 10).await;
    let ids: Vec<Uuid> = claimed.iter().map(|c| c.event.id()).collect();
    let mut leases = claimed.into_iter().map(|c| c.lease);
    let mut next = || leases.next().unwrap();
    let batch = [
        Settlement::delivered(next()),
        Settlement::retry(next(), Duration::ZERO, "ünïcödé 'quoted' \"\\\n"),
        Settlement::delivered(stale.clone()),
        Settlement::dead(next(), "dead"),
        Settlement::released(next()),
    ];
    let settled = db.store().settle(&batch, Keep::Delivered).await.unwrap();
    assert_eq!((settled.written, settled.lost), (4, vec![stale.id()]));
    let mut found = Vec::new();
    for id in &ids {
        let record = db.store().get(*id).await.unwrap().unwrap();
        found.push((record.status, record.attempts, record.last_error));
    }
    let text = |error: &str| Some(error.to_owned());
    assert_eq!(
        found,
        [
            (Status::Delivered, 2, None),
            (Status::Pending, 1, text("ünïcödé 'quoted' \"\\\n")),
            (Status::Dead, 1, text("dead")),
            (Status::Pending, 0, None),
            (Status::Processing, 1, None),
        ]
    );
}

async fn re3_the_first_of_two_settlements_counts(db: &Db) {
    let lease = one(db).await;
    let both = [Settlement::dead(lease.clone(), "first"), Settlement::delivered(lease.clone())];
    let settled = db.store().settle(&both, Keep::Delivered).await.unwrap();
    assert_eq!((settled.written, settled.lost), (1, vec![lease.id()]));
    assert_eq!(db.store().get(lease.id()).await.unwrap().unwrap().status, Status::Dead);
}

async fn re3_an_extended_lease_lasts_from_now(db: &Db) {
    db.enqueue_numbers("a", 0..2).await;
    let leases: Vec<Lease> = db.claim(&worker(), 2).await.into_iter().map(|c| c.lease).collect();
    db.shift(Duration::from_secs(50)).await;
    assert_eq!(db.store().extend(&leases[..1], MINUTE).await.unwrap(), Extended::default());
    db.shift(Duration::from_secs(50)).await;
    let claimed = db.claim(&worker(), 10).await;
    assert_eq!(claimed.iter().map(|c| c.event.id()).collect::<Vec<_>>(), [leases[1].id()]);
    let extended = db.store().extend(&leases, MINUTE).await.unwrap();
    assert_eq!(extended, Extended { lost: vec![leases[1].id()], busy: Vec::new() });
    let record = db.store().get(leases[0].id()).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts), (Status::Processing, 1));
}

async fn hk1_nothing_is_kept_where_nothing_is_wanted(db: &Db) {
    db.enqueue_numbers("a", 0..4).await;
    let claimed = db.claim(&worker(), 4).await;
    let [one, two, three, four] = <[_; 4]>::try_from(claimed).unwrap();
    let batch = [
        Settlement::delivered(one.lease.clone()),
        Settlement::retry(two.lease, Duration::ZERO, "again"),
        Settlement::dead(three.lease, "dead"),
        Settlement::delivered(four.lease),
    ];
    let settled = db.store().settle(&batch, Keep::Nothing).await.unwrap();
    assert_eq!((settled.written, settled.lost.len()), (4, 0));
    assert_eq!(db.store().get(one.event.id()).await.unwrap(), None);
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 2);
    let settled = db.store().settle(&[Settlement::delivered(one.lease)], Keep::Nothing).await.unwrap();
    assert_eq!(settled.lost, [one.event.id()], "a row that is gone is a lost lease");
}

async fn rt5_errors_are_cut(db: &Db) {
    let lease = one(db).await;
    settle(db, Settlement::dead(lease.clone(), "é".repeat(3000))).await;
    let stored = db.store().get(lease.id()).await.unwrap().unwrap().last_error.unwrap();
    assert_eq!(stored, "é".repeat(1024));
}

async fn re3_an_expired_lease_that_nobody_took_still_settles(db: &Db) {
    let lease = one(db).await;
    db.shift(2 * MINUTE).await;
    assert_eq!(settle(db, Settlement::delivered(lease)).await, 1);
}
