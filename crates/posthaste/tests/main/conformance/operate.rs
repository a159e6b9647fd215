//! The operator's view: status, listing, and dead letters replayed or discarded.
//!
//! Rows of the contract: RT6, OP6.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste::store::{Ending, Filter, Page, Status};
use posthaste::{Admin, Failure};

use crate::harness::{Db, Recorder};

const MINUTE: Duration = Duration::from_secs(60);

conformance!(
    rt6_dead_letters_are_replayed_by_filter_in_batches_after_a_dry_run,
    rt6_what_dies_again_during_a_replay_is_replayed_once,
    rt6_dead_letters_are_discarded_and_the_rest_is_not,
    rt6_an_operator_sees_the_same_by_list_count_and_show,
    hk1_an_operator_purges_in_batches,
);

fn admin(db: &Db) -> Admin {
    Admin::new(db.shared_store())
}

/// Operators do with a stream what they do with a queue.
mod stream {
    as_on_a_queue!(8:
        rt6_dead_letters_are_replayed_by_filter_in_batches_after_a_dry_run,
        rt6_what_dies_again_during_a_replay_is_replayed_once,
        rt6_dead_letters_are_discarded_and_the_rest_is_not,
        rt6_an_operator_sees_the_same_by_list_count_and_show,
        hk1_an_operator_purges_in_batches,
    );
}

async fn kill(db: &Db, topic: &str, events: u64) {
    db.let_die(topic, 0..events, "broken").await;
}

async fn rt6_dead_letters_are_replayed_by_filter_in_batches_after_a_dry_run(db: &Db) {
    kill(db, "order.placed", 25).await;
    kill(db, "order.paid", 5).await;
    kill(db, "stock.moved", 3).await;
    let admin = admin(db);
    let progress: Arc<Mutex<Vec<u64>>> = Arc::default();
    let seen = Arc::clone(&progress);
    let replay = admin
        .replay(Filter::all().topic("order.*"))
        .batch(10)
        .on_progress(move |done| seen.lock().unwrap().push(done));
    let preview = replay.dry_run().await.unwrap();
    assert_eq!((preview.count.n, preview.count.capped, preview.sample.len()), (30, false, 10));
    assert!(preview.sample.iter().all(|record| record.status == Status::Dead));
    assert_eq!(db.count(Status::Dead).await, 33, "a dry run changed something");
    assert_eq!(replay.run().await.unwrap(), 30);
    assert_eq!(*progress.lock().unwrap(), [10, 20, 30, 30]);
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (3, 30));
    // The history of the last error stays until it is delivered.
    let pending = admin.list(&Filter::status(Status::Pending), Page::first(100)).await.unwrap();
    assert!(pending.iter().all(|r| r.attempts == 0 && r.last_error.as_deref() == Some("broken")));
    db.deliver_all().await;
    let delivered = admin.list(&Filter::status(Status::Delivered), Page::first(100)).await.unwrap();
    // Of what a stream has delivered nothing but that is known.
    let attempts = if db.is_stream().await { 0 } else { 1 };
    assert!(delivered.iter().all(|r| r.attempts == attempts && r.last_error.is_none()));
    // One by its id, and no more than asked for.
    let dead = admin.dead_letters(&Filter::all(), Page::first(10)).await.unwrap();
    assert_eq!(admin.replay(Filter::all().id(dead[1].id)).run().await.unwrap(), 1);
    assert_eq!(admin.show(dead[1].id).await.unwrap().unwrap().status, Status::Pending);
    assert_eq!(admin.replay(Filter::all()).limit(1).dry_run().await.unwrap().count.n, 1);
    assert_eq!(admin.replay(Filter::all()).limit(1).run().await.unwrap(), 1);
    assert_eq!(db.count(Status::Dead).await, 1);
}

/// A relay runs beside the replay and the events die again at once.
async fn rt6_what_dies_again_during_a_replay_is_replayed_once(db: &Db) {
    kill(db, "a", 40).await;
    let recorder = Recorder::answering(|_| Err(Failure::reject("still broken")));
    let relay = db.relay().handler(recorder.clone()).start().await.unwrap();
    let replay = admin(db).replay(Filter::all()).batch(1);
    assert_eq!(replay.run().await.unwrap(), 40);
    while db.count(Status::Dead).await < 40 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
    assert_eq!(recorder.begun().len(), 40);
}

async fn rt6_dead_letters_are_discarded_and_the_rest_is_not(db: &Db) {
    kill(db, "a", 12).await;
    kill(db, "b", 4).await;
    db.enqueue_numbers("a", 0..3).await;
    let discard = admin(db).discard(Filter::all().topic("a")).batch(5);
    assert_eq!(discard.dry_run().await.unwrap().count.n, 12);
    assert_eq!(discard.run().await.unwrap(), 12);
    assert_eq!((db.count(Status::Dead).await, db.count(Status::Pending).await), (4, 3));
}

async fn rt6_an_operator_sees_the_same_by_list_count_and_show(db: &Db) {
    kill(db, "a", 2).await;
    db.enqueue_numbers("b", 0..5).await;
    let admin = admin(db);
    let status = admin.status().await.unwrap();
    assert_eq!((status.stats.pending.n, status.stats.dead.n), (5, 2));
    assert!(status.clock_skew.abs() < MINUTE, "{}", status.clock_skew);
    assert_eq!((status.table.to_string(), status.dialect), (db.table(), db.store().dialect()));
    for filter in [Filter::all(), Filter::dead(), Filter::all().topic("b"), Filter::all().topic("none")] {
        let listed = admin.list(&filter, Page::first(100)).await.unwrap();
        assert_eq!(admin.count(&filter).await.unwrap().n, listed.len() as u64, "{filter:?}");
        for record in listed {
            assert_eq!(admin.show(record.id).await.unwrap().as_ref(), Some(&record));
        }
    }
    assert_eq!(admin.show(uuid::Uuid::nil()).await.unwrap(), None);
}

async fn hk1_an_operator_purges_in_batches(db: &Db) {
    db.enqueue_numbers("a", 0..30).await;
    db.deliver_all().await;
    db.shift(10 * MINUTE).await;
    db.enqueue_numbers("a", 0..5).await;
    db.deliver_all().await;
    kill(db, "b", 2).await;
    let purge = admin(db).purge(Ending::Delivered, 5 * MINUTE).batch(7);
    assert_eq!(purge.dry_run().await.unwrap().count.n, 30);
    assert_eq!(purge.run().await.unwrap(), 30);
    assert_eq!((db.count(Status::Delivered).await, db.count(Status::Dead).await), (5, 2));
}
