//! Leases: who gets what, for how long, how often.
//!
//! Rows of the contract: RE1, RE2, RT2, RT3, RT5, ST5, ST7.

use std::time::Duration;

use posthaste::store::{AttemptLimits, Claim, ClaimedBatch, Filter, Keep, Page, Settlement, Status, Topics};

use crate::harness::{Db, Kind, MINUTE, event, worker};

conformance!(
    re1_a_claim_leases_in_order_and_counts_the_attempt,
    re1_a_claim_takes_no_more_than_it_asks_for,
    re1_leased_rows_are_nobody_elses,
    re2_an_ended_lease_is_claimed_again_and_counted,
    re2_a_row_without_attempts_left_becomes_dead,
    rt2_topics_may_have_limits_of_their_own,
    re2_a_lowered_limit_buries_what_is_above_it,
    rt5_a_crash_at_the_last_attempt_keeps_the_error_before_it,
    claims_continue_from_a_mark_and_sweep_without_it,
    re1_two_claims_of_one_worker_are_two_holders,
    rt3_a_claim_is_of_some_topics_or_of_all_but_some,
);

conformance_sql!(
    st7_rows_that_no_program_could_read_are_refused,
    st7_undecodable_rows_become_dead_and_stop_nobody,
    st5_the_view_shows_the_status_by_name,
);

async fn re1_a_claim_leases_in_order_and_counts_the_attempt(db: &Db) {
    let mut tx = db.begin().await;
    let second = tx
        .enqueue(db, event("a", 2).available_at(time::macros::datetime!(2021-01-02 0:00 UTC)))
        .await
        .unwrap()
        .id;
    let first = tx
        .enqueue(db, event("a", 1).available_at(time::macros::datetime!(2021-01-01 0:00 UTC)))
        .await
        .unwrap()
        .id;
    let third = tx.enqueue(db, event("a", 3)).await.unwrap().id;
    let fourth = tx.enqueue(db, event("a", 4)).await.unwrap().id;
    tx.commit().await;
    let me = worker();
    let before = db.store().now().await.unwrap();
    let claimed = db.claim(&me, 10).await;
    assert_eq!(claimed.iter().map(|c| c.event.id()).collect::<Vec<_>>(), [first, second, third, fourth]);
    for claimed in &claimed {
        assert_eq!(claimed.lease.attempt(), 1);
        assert!(claimed.lease.holder().starts_with(me.as_str()));
        let record = db.store().get(claimed.event.id()).await.unwrap().unwrap();
        assert_eq!((record.status, record.attempts), (Status::Processing, 1));
        assert_eq!(record.locked_by.as_deref(), Some(claimed.lease.holder()));
        let lease = record.locked_until.unwrap() - before;
        assert!((59.0..90.0).contains(&lease.as_seconds_f64()), "{lease}");
    }
}

async fn re1_a_claim_takes_no_more_than_it_asks_for(db: &Db) {
    let ids = db.enqueue_numbers("a", 0..10).await;
    let (one, two) = (worker(), worker());
    let first: Vec<_> = db.claim(&one, 4).await.iter().map(|c| c.event.id()).collect();
    let second: Vec<_> = db.claim(&two, 100).await.iter().map(|c| c.event.id()).collect();
    assert_eq!((&first[..], &second[..]), (&ids[..4], &ids[4..]));
}

async fn re1_leased_rows_are_nobody_elses(db: &Db) {
    db.enqueue_numbers("a", 0..3).await;
    let me = worker();
    assert_eq!(db.claim(&me, 10).await.len(), 3);
    assert!(db.claim(&worker(), 10).await.is_empty());
    assert!(db.claim(&me, 10).await.is_empty());
    db.shift(Duration::from_secs(50)).await;
    assert!(db.claim(&worker(), 10).await.is_empty());
}

async fn re2_an_ended_lease_is_claimed_again_and_counted(db: &Db) {
    db.enqueue_numbers("a", 0..1).await;
    let stale = db.claim(&worker(), 1).await.remove(0);
    db.shift(2 * MINUTE).await;
    let record = db.store().get(stale.event.id()).await.unwrap().unwrap();
    assert_eq!(record.status, Status::Pending, "an ended lease is no lease");
    let fresh = db.claim(&worker(), 1).await.remove(0);
    assert_eq!((fresh.event.id(), fresh.lease.attempt()), (stale.event.id(), 2));
    // RE3: the first one's word no longer counts.
    let settled =
        db.store().settle(&[Settlement::delivered(stale.lease.clone())], Keep::Delivered).await.unwrap();
    assert_eq!((settled.written, settled.lost), (0, vec![stale.event.id()]));
    assert_eq!(
        db.store().extend(std::slice::from_ref(&stale.lease), MINUTE).await.unwrap().lost,
        [stale.event.id()]
    );
    let settled = db.store().settle(&[Settlement::delivered(fresh.lease)], Keep::Delivered).await.unwrap();
    assert_eq!((settled.written, settled.lost.len()), (1, 0));
}

async fn re2_a_row_without_attempts_left_becomes_dead(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    let limits = AttemptLimits::new(2);
    for attempt in 1..=2 {
        let claim = Claim::by(worker()).lease(MINUTE).attempts(limits.clone());
        let batch = db.store().claim(&claim).await.unwrap();
        assert_eq!(batch.events[0].lease.attempt(), attempt);
        db.shift(2 * MINUTE).await;
    }
    let live = db.enqueue_numbers("a", 1..2).await[0];
    let batch = db.store().claim(&Claim::by(worker()).attempts(limits)).await.unwrap();
    assert_eq!(batch.events.iter().map(|c| c.event.id()).collect::<Vec<_>>(), [live]);
    assert_eq!(batch.buried.iter().map(|b| (b.id, b.topic.as_str())).collect::<Vec<_>>(), [(id, "a")]);
    let record = db.store().get(id).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts, record.locked_by), (Status::Dead, 2, None));
    assert_eq!(record.last_error.as_deref(), Some(batch.buried[0].reason.as_str()));
    assert!(record.settled_at.is_some());
}

async fn rt2_topics_may_have_limits_of_their_own(db: &Db) {
    db.enqueue_numbers("short", 0..1).await;
    db.enqueue_numbers("it's \"long\"", 0..1).await;
    let limits = AttemptLimits::new(1).topic("short", 1).topic("it's \"long\"", 3).topic("other", 9);
    let claim = || Claim::by(worker()).lease(MINUTE).attempts(limits.clone());
    assert_eq!(db.store().claim(&claim()).await.unwrap().events.len(), 2);
    for _ in 0..2 {
        db.shift(2 * MINUTE).await;
        let batch = db.store().claim(&claim()).await.unwrap();
        assert_eq!(batch.events.iter().map(|c| c.event.topic()).collect::<Vec<_>>(), ["it's \"long\""]);
    }
    db.shift(2 * MINUTE).await;
    assert!(db.store().claim(&claim()).await.unwrap().events.is_empty());
    assert_eq!(db.store().count(&Filter::dead(), 10).await.unwrap().n, 2);
}

async fn rt5_a_crash_at_the_last_attempt_keeps_the_error_before_it(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    let claimed = db.claim(&worker(), 1).await.remove(0);
    db.store()
        .settle(&[Settlement::retry(claimed.lease, Duration::ZERO, "broker said no")], Keep::Delivered)
        .await
        .unwrap();
    db.claim(&worker(), 1).await.remove(0);
    db.shift(2 * MINUTE).await;
    let batch = db.store().claim(&Claim::by(worker()).attempts(AttemptLimits::new(2))).await.unwrap();
    let error = db.store().get(id).await.unwrap().unwrap().last_error.unwrap();
    assert!(error.contains("never settled") && error.contains("broker said no"), "{error}");
    assert_eq!(batch.buried[0].reason, error);
}

async fn re2_a_lowered_limit_buries_what_is_above_it(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    for _ in 0..3 {
        let claimed = db.claim(&worker(), 1).await.remove(0);
        db.store()
            .settle(&[Settlement::retry(claimed.lease, Duration::ZERO, "no")], Keep::Delivered)
            .await
            .unwrap();
    }
    let batch = db.store().claim(&Claim::by(worker()).attempts(AttemptLimits::new(3))).await.unwrap();
    assert!(batch.events.is_empty());
    assert_eq!(batch.buried[0].id, id);
    let record = db.store().get(id).await.unwrap().unwrap();
    assert_eq!((record.attempts, record.last_error.as_deref()), (3, Some("no")), "its own error is kept");
    assert_eq!(batch.buried[0].reason, "no");
}

async fn claims_continue_from_a_mark_and_sweep_without_it(db: &Db) {
    let ids = db.enqueue_numbers("a", 0..6).await;
    let claim = Claim::by(worker()).limit(3);
    let first = db.store().claim(&claim).await.unwrap();
    let released = first.events[1].clone();
    db.store().settle(&[Settlement::released(released.lease)], Keep::Delivered).await.unwrap();
    let second = db.store().claim(&claim.clone().after(first.mark)).await.unwrap();
    assert_eq!(
        second.events.iter().map(|c| c.event.id()).collect::<Vec<_>>(),
        &ids[3..],
        "not what lies before the mark"
    );
    assert!(second.mark > first.mark);
    let nothing = db.store().claim(&claim.clone().after(second.mark)).await.unwrap();
    assert!(nothing.events.is_empty());
    assert_eq!(nothing.mark, second.mark, "an empty claim keeps its place");
    let late = db.enqueue_numbers("a", 7..8).await;
    let third = db.store().claim(&claim.clone().after(nothing.mark)).await.unwrap();
    assert_eq!(third.events.iter().map(|c| c.event.id()).collect::<Vec<_>>(), late);
    let swept = db.store().claim(&claim).await.unwrap();
    assert_eq!(swept.events.iter().map(|c| c.event.id()).collect::<Vec<_>>(), [ids[1]]);
}

async fn re1_two_claims_of_one_worker_are_two_holders(db: &Db) {
    let id = db.enqueue_numbers("a", 0..1).await[0];
    let me = worker();
    let first = db.claim(&me, 1).await.remove(0);
    db.store().settle(&[Settlement::released(first.lease.clone())], Keep::Delivered).await.unwrap();
    let second = db.claim(&me, 1).await.remove(0);
    assert_eq!((first.lease.attempt(), second.lease.attempt()), (1, 1), "a release gives the attempt back");
    let settled =
        db.store().settle(&[Settlement::dead(first.lease, "stale")], Keep::Delivered).await.unwrap();
    assert_eq!(settled.lost, [id], "the same worker and attempt, but of an earlier claim");
}

async fn st7_undecodable_rows_become_dead_and_stop_nobody(db: &Db) {
    db.enqueue_numbers("a", 0..2).await;
    db.execute("INSERT INTO outbox (topic, payload, headers) VALUES ('bad', '1', '{\"n\": 1}')")
        .await
        .unwrap();
    db.execute("INSERT INTO outbox (topic, payload, version) VALUES ('worse', '1', -1)").await.unwrap();
    db.enqueue_numbers("a", 2..4).await;
    let batch = db.store().claim(&Claim::by(worker())).await.unwrap();
    assert_eq!(batch.events.len(), 4);
    let mut buried: Vec<_> = batch.buried.iter().map(|b| (b.topic.as_str(), b.reason.as_str())).collect();
    buried.sort();
    assert!(buried[0].0 == "bad" && buried[0].1.starts_with("undecodable: headers"), "{buried:?}");
    assert!(buried[1].0 == "worse" && buried[1].1.starts_with("undecodable: version"), "{buried:?}");
    let dead = db.store().list(&Filter::dead(), Page::first(10)).await.unwrap();
    assert_eq!(dead.len(), 2);
    for record in dead {
        assert!(record.event.unwrap_err().starts_with("undecodable"));
        assert!(record.last_error.unwrap().starts_with("undecodable"));
        assert_eq!((record.status, record.attempts, record.locked_by), (Status::Dead, 1, None));
    }
    assert!(db.store().claim(&Claim::by(worker())).await.unwrap().buried.is_empty());
}

async fn st5_the_view_shows_the_status_by_name(db: &Db) {
    let statuses = || db.texts("SELECT status FROM outbox_status ORDER BY seq");
    db.enqueue_numbers("a", 0..4).await;
    assert_eq!(statuses().await, ["pending"; 4]);
    let claimed = db.claim(&worker(), 3).await;
    assert_eq!(statuses().await, ["processing", "processing", "processing", "pending"]);
    let [one, two, three] = <[_; 3]>::try_from(claimed).unwrap();
    let settlements = [
        Settlement::delivered(one.lease),
        Settlement::dead(two.lease, "no"),
        Settlement::retry(three.lease, MINUTE, "later"),
    ];
    db.store().settle(&settlements, Keep::Delivered).await.unwrap();
    assert_eq!(statuses().await, ["delivered", "dead", "pending", "pending"]);
    let ids = db
        .texts("SELECT CAST(id AS CHAR(36)) FROM outbox_status WHERE seq = (SELECT min(seq) FROM outbox)")
        .await;
    assert_eq!(ids, [one.event.id().to_string()], "as people write it");
}

/// What a client library cannot read could not be buried either: the table does not take it.
async fn st7_rows_that_no_program_could_read_are_refused(db: &Db) {
    let times: &[&str] = match db.kind() {
        Kind::Postgres => &["'-infinity'", "'infinity'", "'0044-03-15 BC'", "'12026-01-01'"],
        Kind::MySql | Kind::MariaDb => &["'0000-00-00 00:00:00'", "'0001-01-01'"],
        _ => &["9223372036854775807", "'soon'", "-9000000000000000000"],
    };
    for column in ["created_at", "occurred_at", "available_at"] {
        for time in times {
            let sql = format!("INSERT INTO outbox (topic, payload, {column}) VALUES ('a', '1', {time})");
            assert!(db.execute(sql.clone()).await.is_err(), "{sql}");
        }
    }
    if db.kind() == Kind::Sqlite {
        for id in
            ["'------------------------------------'", "'0190A6B0-0000-7000-8000-000000000001'", "x'00'"]
        {
            assert!(
                db.execute(format!("INSERT INTO outbox (topic, payload, id) VALUES ('a', '1', {id})"))
                    .await
                    .is_err()
            );
        }
    }
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 0);
}

async fn rt3_a_claim_is_of_some_topics_or_of_all_but_some(db: &Db) {
    let odd = "odd \"quoted\" ünïcode";
    for n in 0..3 {
        db.enqueue_numbers("a", n..n + 1).await;
        db.enqueue_numbers("b", n..n + 1).await;
        db.enqueue_numbers(odd, n..n + 1).await;
    }
    let me = worker();
    let claim = |topics| Claim::by(me.clone()).limit(2).lease(MINUTE).topics(topics);
    let topics = |batch: &ClaimedBatch| -> Vec<String> {
        batch.events.iter().map(|claimed| claimed.event.topic().to_owned()).collect()
    };
    let only = Topics::Only(vec![odd.to_owned(), "none".to_owned()]);
    let batch = db.store().claim(&claim(only.clone())).await.unwrap();
    assert_eq!(topics(&batch), [odd, odd]);
    let batch = db.store().claim(&claim(only).after(batch.mark)).await.unwrap();
    assert_eq!(topics(&batch), [odd], "from where the last one left off");
    let except = Topics::Except(vec![odd.to_owned(), "a".to_owned()]);
    let batch = db.store().claim(&claim(except.clone())).await.unwrap();
    assert_eq!(topics(&batch), ["b", "b"]);
    let batch = db.store().claim(&claim(except).after(batch.mark)).await.unwrap();
    assert_eq!(topics(&batch), ["b"]);
    assert!(db.store().claim(&claim(Topics::Only(Vec::new()))).await.unwrap().events.is_empty());
    let batch = db.store().claim(&claim(Topics::Except(Vec::new())).limit(10)).await.unwrap();
    assert_eq!(topics(&batch), ["a", "a", "a"]);
}
