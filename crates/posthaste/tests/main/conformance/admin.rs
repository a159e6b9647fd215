//! What operators do: look, count, replay, discard.
//!
//! Rows of the contract: OP6, RT6.

use std::time::Duration;

use posthaste::store::{Ending, Filter, Keep, Page, Settlement, Status};
use posthaste::{Admin, Event};
use uuid::Uuid;

use crate::harness::{Db, MINUTE, Owner, event, worker};

conformance!(
    rt6_one_filter_lists_and_counts,
    rt6_pages_follow_each_other_in_both_directions,
    rt6_topic_patterns_mind_case_and_special_characters,
    op6_counts_stop_at_their_cap,
    op6_stats_tell_the_state_of_the_table,
    rt6_replay_resets_attempts_and_keeps_the_error_until_delivered,
    rt6_replay_and_discard_touch_dead_ones_that_fit_only,
    rt6_replay_in_batches_ends_though_events_die_again,
    op4_a_purge_touches_what_was_shown_and_no_more,
);

/// What operators see of a stream is what they see of a queue.
mod stream {
    as_on_a_queue!(8:
        rt6_pages_follow_each_other_in_both_directions,
        rt6_topic_patterns_mind_case_and_special_characters,
        op6_counts_stop_at_their_cap,
        rt6_replay_and_discard_touch_dead_ones_that_fit_only,
        rt6_replay_in_batches_ends_though_events_die_again,
    );
}

/// Rows follow each other in one lane.
mod stream_of_one_lane {
    as_on_a_queue!(1: rt6_one_filter_lists_and_counts);
}

/// The first is delivered and the second under way.
async fn deliver_one_and_begin_another(db: &Db) {
    if !db.is_stream().await {
        let claimed = db.claim(&worker(), 2).await;
        let delivered = Settlement::delivered(claimed[0].lease.clone());
        db.store().settle(&[delivered], Keep::Delivered).await.unwrap();
        return;
    }
    let mut owner = Owner::of(db).await;
    let page = owner.read(1).await;
    owner.finish(page.number, &[&page.rows[0]], Keep::Delivered).await;
    assert_eq!(owner.read(1).await.rows.len(), 1);
}

async fn rt6_one_filter_lists_and_counts(db: &Db) {
    let events: Vec<Event> = [
        event("order.placed", 1).aggregate("order", 1).tenant("t1").event_type("Placed"),
        event("order.paid", 2).aggregate("order", 1).tenant("t2").namespace("pay"),
        event("stock.moved", 3).aggregate("item", 1),
        event("order.placed", 4).aggregate("order", 2).delay(MINUTE),
    ]
    .map(|builder| builder.build().unwrap())
    .into();
    let ids: Vec<Uuid> = events.iter().map(Event::id).collect();
    db.store().insert(&events).await.unwrap();
    deliver_one_and_begin_another(db).await;

    let now = db.store().now().await.unwrap();
    let future = now + MINUTE;
    let past = now - MINUTE;
    let cases: [(&str, Filter, &[usize]); 17] = [
        ("all", Filter::all(), &[0, 1, 2, 3]),
        ("id", Filter::all().id(ids[2]), &[2]),
        ("pending", Filter::status(Status::Pending), &[2, 3]),
        ("processing", Filter::status(Status::Processing), &[1]),
        ("delivered", Filter::status(Status::Delivered), &[0]),
        ("dead", Filter::dead(), &[]),
        ("topic", Filter::all().topic("order.placed"), &[0, 3]),
        ("pattern", Filter::all().topic("order.*"), &[0, 1, 3]),
        ("type", Filter::all().event_type("Placed"), &[0]),
        ("type that is the topic", Filter::all().event_type("stock.moved"), &[2]),
        ("aggregate", Filter::all().aggregate("order", 1), &[0, 1]),
        ("tenant", Filter::all().tenant("t2"), &[1]),
        ("namespace", Filter::all().namespace("default"), &[0, 2, 3]),
        ("since", Filter::all().since(past), &[0, 1, 2, 3]),
        ("since later", Filter::all().since(future), &[]),
        ("until", Filter::all().until(past), &[]),
        ("together", Filter::status(Status::Pending).topic("order.*").until(future), &[3]),
    ];
    for (name, filter, expected) in cases {
        let listed = db.store().list(&filter, Page::first(10)).await.unwrap();
        let expected: Vec<Uuid> = expected.iter().map(|at| ids[*at]).collect();
        assert_eq!(listed.iter().map(|r| r.id).collect::<Vec<_>>(), expected, "{name}");
        let count = db.store().count(&filter, 10).await.unwrap();
        assert_eq!((count.n, count.capped), (expected.len() as u64, false), "{name}");
    }
    assert_eq!(db.store().get(Uuid::now_v7()).await.unwrap(), None);
}

async fn rt6_pages_follow_each_other_in_both_directions(db: &Db) {
    let ids = db.enqueue_numbers("a", 0..7).await;
    let mut forward = Vec::new();
    let mut page = Page::first(3);
    loop {
        let records = db.store().list(&Filter::all(), page).await.unwrap();
        forward.extend(records.iter().map(|record| record.id));
        match records.last() {
            Some(last) => page = page.behind(last.id),
            None => break,
        }
    }
    assert_eq!(forward, ids);
    let newest = db.store().list(&Filter::all(), Page::newest(2)).await.unwrap();
    assert_eq!(newest.iter().map(|r| r.id).collect::<Vec<_>>(), [ids[6], ids[5]]);
    let older = db.store().list(&Filter::all(), Page::newest(2).behind(ids[5])).await.unwrap();
    assert_eq!(older.iter().map(|r| r.id).collect::<Vec<_>>(), [ids[4], ids[3]]);
}

async fn rt6_topic_patterns_mind_case_and_special_characters(db: &Db) {
    for topic in ["a_b", "axb", "A_b", "a%b", "a!b", "a\\b", "a[x]b", "a?b", "ab"] {
        db.enqueue_numbers(topic, 0..1).await;
    }
    for (pattern, expected) in [
        ("a_b", &["a_b"][..]),
        ("a_*", &["a_b"]),
        ("*_b", &["a_b", "A_b"]),
        ("a%*", &["a%b"]),
        ("a!*", &["a!b"]),
        ("a\\*", &["a\\b"]),
        ("a[x]*", &["a[x]b"]),
        ("a?*", &["a?b"]),
        ("A*", &["A_b"]),
        ("a*b", &["a_b", "axb", "a%b", "a!b", "a\\b", "a[x]b", "a?b", "ab"]),
    ] {
        let listed = db.store().list(&Filter::all().topic(pattern), Page::first(20)).await.unwrap();
        let topics: Vec<String> = listed.into_iter().map(|r| r.event.unwrap().topic().to_owned()).collect();
        assert_eq!(topics, expected, "{pattern}");
    }
}

async fn op6_counts_stop_at_their_cap(db: &Db) {
    db.enqueue_numbers("a", 0..20).await;
    let count = db.store().count(&Filter::all(), 20).await.unwrap();
    assert_eq!((count.n, count.capped, count.to_string().as_str()), (20, false, "20"));
    let count = db.store().count(&Filter::all(), 19).await.unwrap();
    assert_eq!((count.n, count.capped, count.to_string().as_str()), (19, true, "19+"));
    let stats = db.store().stats(5).await.unwrap();
    assert_eq!((stats.pending.n, stats.pending.capped), (5, true));
    // Among the first so many: what lies beyond is only said to be possible.
    let late = db.enqueue_numbers("late", 0..1).await[0];
    let count = db.store().count(&Filter::all().topic("late"), 5).await.unwrap();
    assert_eq!((count.n, count.capped), (0, true));
    let count = db.store().count(&Filter::all().id(late), 5).await.unwrap();
    assert_eq!((count.n, count.capped), (1, false), "one id is one row to look at");
}

async fn op6_stats_tell_the_state_of_the_table(db: &Db) {
    assert_eq!(db.store().stats(100).await.unwrap(), Default::default());
    db.enqueue_numbers("a", 0..10).await;
    let mut tx = db.begin().await;
    tx.enqueue(db, event("later", 1).delay(10 * MINUTE)).await.unwrap();
    tx.commit().await;
    let mut claimed = db.claim(&worker(), 5).await;
    let batch =
        [Settlement::dead(claimed.remove(0).lease, "no"), Settlement::delivered(claimed.remove(0).lease)];
    db.store().settle(&batch, Keep::Delivered).await.unwrap();
    db.shift(Duration::from_secs(30)).await;
    let stats = db.store().stats(100).await.unwrap();
    assert_eq!((stats.pending.n, stats.processing.n, stats.dead.n), (6, 3, 1));
    assert!(!stats.pending.capped && !stats.dead.capped);
    let age = stats.oldest_age.unwrap().as_secs();
    assert!((30..60).contains(&age), "{age}");
}

async fn rt6_replay_resets_attempts_and_keeps_the_error_until_delivered(db: &Db) {
    let ids = db.let_die("a", 0..1, "no").await;
    assert_eq!(db.store().replay(&Filter::dead().id(ids[0]), 10).await.unwrap(), 1);
    let record = db.store().get(ids[0]).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts, record.settled_at), (Status::Pending, 0, None));
    assert_eq!(record.last_error.as_deref(), Some("no"));
    let claimed = db.claim(&worker(), 10).await.remove(0);
    assert_eq!(claimed.lease.attempt(), 1);
    assert_eq!(db.store().get(ids[0]).await.unwrap().unwrap().last_error.as_deref(), Some("no"));
    db.store().settle(&[Settlement::delivered(claimed.lease)], Keep::Delivered).await.unwrap();
    assert_eq!(db.store().get(ids[0]).await.unwrap().unwrap().last_error, None);
}

async fn rt6_replay_and_discard_touch_dead_ones_that_fit_only(db: &Db) {
    let a = db.let_die("a", 0..3, "no").await;
    let b = db.let_die("b", 0..2, "no").await;
    let pending = db.enqueue_numbers("a", 9..10).await;
    assert_eq!(db.store().replay(&Filter::status(Status::Pending), 10).await.unwrap(), 0);
    assert_eq!(db.store().discard(&Filter::status(Status::Pending), 10).await.unwrap(), 0);
    assert_eq!(
        db.store().replay(&Filter::all().topic("a"), 2).await.unwrap(),
        2,
        "oldest first, at most so many"
    );
    assert_eq!(db.store().get(a[2]).await.unwrap().unwrap().status, Status::Dead);
    assert_eq!(db.store().discard(&Filter::dead().topic("b"), 1).await.unwrap(), 1);
    assert_eq!(db.store().get(b[0]).await.unwrap(), None);
    assert_eq!(db.store().discard(&Filter::all(), 10).await.unwrap(), 2);
    assert_eq!(db.store().get(pending[0]).await.unwrap().unwrap().status, Status::Pending);
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 3);
}

async fn op4_a_purge_touches_what_was_shown_and_no_more(db: &Db) {
    db.let_die("a", 0..2, "no").await;
    // Of what has died just now nobody can say whether that was before: the clocks are two, and one counts milliseconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let purge = Admin::new(db.shared_store()).purge(Ending::Dead, Duration::ZERO);
    assert_eq!(purge.dry_run().await.unwrap().count.n, 2);
    tokio::time::sleep(Duration::from_secs(1)).await;
    db.let_die("b", 0..3, "no").await;
    assert_eq!(purge.run().await.unwrap(), 2, "the others died after somebody was asked");
    assert_eq!(db.store().count(&Filter::dead(), 10).await.unwrap().n, 3);
}

async fn rt6_replay_in_batches_ends_though_events_die_again(db: &Db) {
    db.let_die("a", 0..5, "no").await;
    db.shift(MINUTE).await;
    let started = db.store().now().await.unwrap();
    let filter = Filter::dead().settled_before(started);
    let mut replayed = 0;
    loop {
        let batch = db.store().replay(&filter, 2).await.unwrap();
        replayed += batch;
        db.let_all_die("no").await;
        if batch < 2 {
            break;
        }
    }
    assert_eq!(replayed, 5);
}
