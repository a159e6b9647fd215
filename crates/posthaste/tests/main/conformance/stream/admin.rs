//! What operators see of a stream, and what they do about an event that died.
//!
//! Rows of the contract: RT6, OP6, HK1, SM2, SM3.

use std::time::Duration;

use posthaste::store::stream::{ParkedVerdict, Wait};
use posthaste::store::{Ending, Filter, Keep, Mode, Page, Purge, Record, Stats, Status};
use posthaste::{Admin, Event};
use uuid::Uuid;

use super::rig::{Rig, said};
use crate::harness::owner::AN_HOUR;
use crate::harness::{Db, Kind, MINUTE, Owner, Setup, event, until, worker};

conformance_sql_by_kind!(
    rt6_an_event_is_seen_through_its_life,
    op6_stats_tell_the_state_of_a_stream,
    rt6_what_is_not_delivered_is_found_whenever_it_was_written,
    sm2_a_replay_lets_the_tail_follow_in_order,
    sm2_a_discard_lets_the_tail_go_on_without_it,
    sm2_dead_events_of_one_aggregate_are_replayed_one_after_the_other,
    rt6_a_replay_keeps_the_error_until_the_event_is_delivered,
    sm2_blocked_aggregates_are_listed_with_who_waits,
    sm2_an_event_parked_while_the_one_before_it_is_discarded_is_not_stuck,
    hk1_a_purge_leaves_everything_that_is_not_delivered,
    hk1_a_purged_dead_event_unblocks_its_aggregate,
    rt6_a_table_may_become_a_stream_while_it_is_looked_at,
);

// Elsewhere rows have a time of their delivery, and none lie below others that were read.
databases!(hk1_a_row_of_a_long_transaction_is_purged_once_it_is_delivered, by_kind: postgres Postgres);
databases!(hk1_a_purge_does_not_begin_anew_with_every_batch, by_kind: postgres Postgres);
// Elsewhere a lane's rows are found by their lane.
databases!(op6_a_lane_in_which_nothing_happens_hides_nothing, by_kind: postgres Postgres);
databases!(sm2_who_vanishes_with_a_lane_in_hand_is_not_waited_for, by_kind: postgres Postgres);
// Elsewhere a statement sees what was committed while it waited.
databases!(sm2_an_event_is_not_stuck_behind_a_discard_that_its_parking_waited_for, by_kind: postgres Postgres);

async fn stream(kind: Kind, lanes: u16) -> Db {
    Db::with(kind, Setup { mode: Some(Mode::stream(lanes).unwrap()), ..Setup::default() }).await
}

fn admin(db: &Db) -> Admin {
    Admin::new(db.shared_store())
}

/// Commits this many events of an aggregate.
async fn of(db: &Db, aggregate: &str, events: u64) -> Vec<Uuid> {
    let events: Vec<Event> = (0..events)
        .map(|n| event("order.changed", n).aggregate("order", aggregate).build().unwrap())
        .collect();
    let mut tx = db.begin().await;
    let answers = tx.enqueue_all(db, events).await.unwrap();
    tx.commit().await;
    answers.into_iter().map(|answer| answer.id).collect()
}

async fn record(db: &Db, id: Uuid) -> Record {
    let record = db.store().get(id).await.unwrap().unwrap();
    let listed = db.store().list(&Filter::status(record.status).id(id), Page::first(2)).await.unwrap();
    assert_eq!(listed, std::slice::from_ref(&record), "it is listed under its status");
    let count = db.store().count(&Filter::status(record.status).id(id), 2).await.unwrap();
    assert_eq!(count.n, 1);
    record
}

async fn status(db: &Db, id: Uuid) -> Status {
    record(db, id).await.status
}

/// The first of these dies and the others wait behind it.
async fn poisoned(db: &Db, aggregate: &str, events: u64) -> (Owner, Vec<Uuid>) {
    let ids = of(db, aggregate, events).await;
    let mut owner = Owner::of(db).await;
    let page = owner.read(1000).await;
    let waits: Vec<_> = page
        .rows
        .iter()
        .map(|row| (row, if row.id == ids[0] { Wait::Dead { blocks: true } } else { Wait::Behind }))
        .collect();
    owner.park(&waits, 0, Some("broken")).await;
    owner.finish(page.number, &[], Keep::Delivered).await;
    assert_eq!(owner.claim().await.len(), 0, "nothing is due behind a dead one");
    (owner, ids)
}

/// Delivers what is due until nothing is; what it was, in order.
async fn drain(owner: &Owner) -> Vec<Uuid> {
    let mut delivered = Vec::new();
    loop {
        let claimed = owner.claim().await;
        if claimed.is_empty() {
            return delivered;
        }
        for parked in claimed {
            owner.settle(&parked, ParkedVerdict::Delivered).await;
            delivered.push(parked.id);
        }
    }
}

async fn rt6_an_event_is_seen_through_its_life(kind: Kind) {
    let db = stream(kind, 2).await;
    let a = of(&db, "a", 3).await;
    let b = of(&db, "b", 2).await;
    let first = record(&db, a[0]).await;
    assert_eq!((first.status, first.attempts, first.locked_by), (Status::Pending, 0, None));
    assert_eq!((first.locked_until, first.settled_at, first.last_error), (None, None, None));

    let mut owner = Owner::of(&db).await;
    let page = owner.read(100).await;
    assert_eq!(page.rows.len(), 5);
    for id in a.iter().chain(&b) {
        let record = record(&db, *id).await;
        assert_eq!(record.status, Status::Processing);
        assert_eq!(record.locked_by.as_deref(), Some(owner.worker.as_str()));
        assert!(record.locked_until.is_some());
    }
    let row = |id: Uuid| page.rows.iter().find(|row| row.id == id).unwrap();
    let waits = [(row(a[1]), Wait::After(AN_HOUR)), (row(a[2]), Wait::Behind)];
    owner.park(&waits, 1, Some("not now")).await;
    owner.park(&[(row(b[1]), Wait::Dead { blocks: true })], 3, Some("never")).await;
    owner.finish(page.number, &[row(a[0]), row(b[0])], Keep::Delivered).await;

    let delivered = record(&db, a[0]).await;
    assert_eq!((delivered.status, delivered.locked_by), (Status::Delivered, None));
    // Where nothing is written to a delivered row it has no such time.
    assert_eq!(delivered.settled_at.is_some(), kind != Kind::Postgres);
    let parked = record(&db, a[1]).await;
    assert_eq!((parked.status, parked.attempts, parked.locked_by), (Status::Pending, 1, None));
    assert_eq!(parked.last_error.as_deref(), Some("not now"));
    let now = db.store().now().await.unwrap();
    assert!(parked.available_at > now + AN_HOUR / 2, "{} at {now}", parked.available_at);
    let behind = record(&db, a[2]).await;
    assert!(behind.status == Status::Pending && behind.available_at <= now, "its own time");
    let dead = record(&db, b[1]).await;
    assert_eq!((dead.status, dead.attempts, dead.last_error.as_deref()), (Status::Dead, 3, Some("never")));
    assert!(dead.settled_at.is_some());

    db.shift(2 * AN_HOUR).await;
    let owner = Owner::of(&db).await;
    let again = owner.claim().await;
    assert_eq!(again.iter().map(|parked| parked.id).collect::<Vec<_>>(), [a[1]]);
    let tried = record(&db, a[1]).await;
    assert_eq!((tried.status, tried.attempts), (Status::Processing, 2));
    assert_eq!(tried.locked_by.as_deref(), Some(owner.worker.as_str()));
    owner.settle(&again[0], ParkedVerdict::Delivered).await;
    assert_eq!(drain(&owner).await, [a[2]]);
    for id in &a {
        assert_eq!(status(&db, *id).await, Status::Delivered);
    }
    db.drop_everything().await;
}

async fn op6_stats_tell_the_state_of_a_stream(kind: Kind) {
    let db = stream(kind, 4).await;
    assert_eq!(db.store().stats(100).await.unwrap(), Stats::default());
    of(&db, "delivered", 3).await;
    db.deliver_all().await;
    let (owner, _) = poisoned(&db, "poisoned", 4).await;
    owner.end().await;
    of(&db, "under way", 2).await;
    let mut owner = Owner::of(&db).await;
    assert_eq!(owner.read(100).await.rows.len(), 2);
    db.shift(Duration::from_secs(30)).await;
    let mut tx = db.begin().await;
    tx.enqueue_all(&db, [event("a", 1), event("later", 2).delay(10 * MINUTE)]).await.unwrap();
    tx.commit().await;

    let stats = db.store().stats(100).await.unwrap();
    assert_eq!((stats.pending.n, stats.processing.n, stats.dead.n), (5, 2, 1));
    assert!(!stats.pending.capped && !stats.processing.capped && !stats.dead.capped);
    let age = stats.oldest_age.unwrap().as_secs();
    assert!((30..60).contains(&age), "{age}");
    let stats = db.store().stats(1).await.unwrap();
    assert!(stats.pending.capped && stats.pending.n + stats.processing.n <= 2, "{stats:?}");
    for (of, expected) in
        [(Status::Pending, 5), (Status::Processing, 2), (Status::Delivered, 3), (Status::Dead, 1)]
    {
        let count = db.store().count(&Filter::status(of), 100).await.unwrap();
        assert_eq!((count.n, count.capped), (expected, false), "{of}");
        assert_eq!(
            db.store().list(&Filter::status(of), Page::first(100)).await.unwrap().len() as u64,
            expected
        );
    }
    let capped = db.store().count(&Filter::status(Status::Pending), 3).await.unwrap();
    assert_eq!((capped.n, capped.capped), (3, true));
    db.drop_everything().await;
}

/// A row of a transaction that ended after others were read, below them.
async fn rt6_what_is_not_delivered_is_found_whenever_it_was_written(kind: Kind) {
    let db = stream(kind, 2).await;
    // SQLite lets one write at a time: there nothing can be late.
    let late = if kind == Kind::Sqlite {
        None
    } else {
        let mut tx = db.begin().await;
        let late = tx.enqueue(&db, event("late", 1).aggregate("order", "a")).await.unwrap().id;
        Some((tx, late))
    };
    of(&db, "a", 20).await;
    of(&db, "b", 20).await;
    db.deliver_all().await;
    let expected = match late {
        Some((tx, late)) => {
            tx.commit().await;
            vec![late]
        }
        None => Vec::new(),
    };
    let pending = db.store().list(&Filter::status(Status::Pending), Page::first(10)).await.unwrap();
    assert_eq!(pending.iter().map(|record| record.id).collect::<Vec<_>>(), expected);
    assert_eq!(db.count(Status::Pending).await, expected.len() as u64);
    assert_eq!(db.store().stats(100).await.unwrap().pending.n, expected.len() as u64);
    db.deliver_all().await;
    assert_eq!(
        (db.count(Status::Pending).await, db.count(Status::Delivered).await),
        (0, 40 + expected.len() as u64)
    );
    db.drop_everything().await;
}

async fn sm2_a_replay_lets_the_tail_follow_in_order(kind: Kind) {
    let db = stream(kind, 2).await;
    let (owner, ids) = poisoned(&db, "a", 6).await;
    let replay = admin(&db).replay(Filter::all());
    assert_eq!(replay.dry_run().await.unwrap().count.n, 1);
    assert_eq!(replay.run().await.unwrap(), 1);
    let replayed = record(&db, ids[0]).await;
    assert_eq!((replayed.status, replayed.attempts, replayed.settled_at), (Status::Pending, 0, None));
    assert_eq!(drain(&owner).await, ids);
    assert_eq!(db.count(Status::Delivered).await, 6);
    db.drop_everything().await;
}

async fn sm2_a_discard_lets_the_tail_go_on_without_it(kind: Kind) {
    let db = stream(kind, 2).await;
    let (owner, ids) = poisoned(&db, "a", 6).await;
    let discard = admin(&db).discard(Filter::all().aggregate("order", "a"));
    assert_eq!(discard.dry_run().await.unwrap().count.n, 1);
    assert_eq!(discard.run().await.unwrap(), 1);
    assert_eq!(db.store().get(ids[0]).await.unwrap(), None);
    assert_eq!(drain(&owner).await, ids[1..]);
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 5);
    db.drop_everything().await;
}

/// Where an aggregate went on after a death, more than one of its events may be dead.
async fn sm2_dead_events_of_one_aggregate_are_replayed_one_after_the_other(kind: Kind) {
    let db = stream(kind, 1).await;
    let ids = of(&db, "a", 3).await;
    let mut owner = Owner::of(&db).await;
    let page = owner.read(10).await;
    let dead: Vec<_> = page.rows.iter().map(|row| (row, Wait::Dead { blocks: false })).collect();
    owner.park(&dead, 1, Some("no")).await;
    owner.finish(page.number, &[], Keep::Delivered).await;
    assert_eq!(db.store().replay(&Filter::dead(), 10).await.unwrap(), 3);
    let claimed = owner.claim().await;
    assert_eq!(claimed.iter().map(|parked| parked.id).collect::<Vec<_>>(), ids);
    let retry = ParkedVerdict::Retry { after: AN_HOUR, error: "not now".into() };
    owner.settle(&claimed[0], retry).await;
    for parked in &claimed[1..] {
        owner.settle(parked, ParkedVerdict::Behind).await;
    }
    assert!(drain(&owner).await.is_empty(), "they wait for the first");
    db.drop_everything().await;
}

async fn rt6_a_replay_keeps_the_error_until_the_event_is_delivered(kind: Kind) {
    let db = stream(kind, 2).await;
    let id = db.let_die("a", 0..1, "no").await[0];
    assert_eq!(db.store().replay(&Filter::dead().id(id), 10).await.unwrap(), 1);
    assert_eq!(db.store().replay(&Filter::dead().id(id), 10).await.unwrap(), 0, "it is not dead any more");
    assert_eq!(record(&db, id).await.last_error.as_deref(), Some("no"));
    let owner = Owner::of(&db).await;
    let claimed = owner.claim().await.remove(0);
    assert_eq!((claimed.attempt, claimed.last_error.as_deref()), (1, Some("no")));
    owner.settle(&claimed, ParkedVerdict::Delivered).await;
    assert_eq!(record(&db, id).await.last_error, None);
    db.drop_everything().await;
}

async fn sm2_blocked_aggregates_are_listed_with_who_waits(kind: Kind) {
    let db = stream(kind, 4).await;
    let admin = admin(&db);
    assert_eq!(admin.blocked(10).await.unwrap(), []);
    let (owner, a) = poisoned(&db, "a", 4).await;
    owner.end().await;
    db.let_die("of nothing", 0..1, "no").await;
    let (owner, b) = poisoned(&db, "b", 1).await;
    let blocked = admin.blocked(10).await.unwrap();
    let told: Vec<_> = blocked
        .iter()
        .map(|b| (b.aggregate_id.as_str(), b.event_id, b.topic.as_str(), b.reason.as_str(), b.waiting.n))
        .collect();
    assert_eq!(told, [("a", a[0], "order.changed", "broken", 3), ("b", b[0], "order.changed", "broken", 0)]);
    assert_eq!(
        (blocked[0].namespace.as_str(), blocked[0].aggregate_type.as_deref()),
        ("default", Some("order"))
    );
    assert_eq!(admin.blocked(1).await.unwrap().len(), 1);
    admin.replay(Filter::all().id(a[0])).run().await.unwrap();
    admin.discard(Filter::all().id(b[0])).run().await.unwrap();
    assert_eq!(admin.blocked(10).await.unwrap(), []);
    assert_eq!(drain(&owner).await, a);
    db.drop_everything().await;

    let queue = Db::new(kind).await;
    queue.let_die("a", 0..1, "no").await;
    assert_eq!(self::admin(&queue).blocked(10).await.unwrap(), []);
    queue.drop_everything().await;
}

/// An operator and an owner at the same moment, often.
async fn sm2_an_event_parked_while_the_one_before_it_is_discarded_is_not_stuck(kind: Kind) {
    let db = stream(kind, 1).await;
    let mut owner = Owner::of(&db).await;
    for _ in 0..20 {
        let ids = of(&db, "a", 2).await;
        let page = owner.read(10).await;
        let row = |id: Uuid| page.rows.iter().find(|row| row.id == id).unwrap();
        owner.park(&[(row(ids[0]), Wait::Dead { blocks: true })], 1, Some("no")).await;
        let parking = [(row(ids[1]), Wait::Behind)];
        let filter = Filter::dead();
        let (discarded, ()) = tokio::join!(db.store().discard(&filter, 10), owner.park(&parking, 0, None));
        assert_eq!(discarded.unwrap(), 1);
        owner.finish(page.number, &[], Keep::Delivered).await;
        assert_eq!(drain(&owner).await, [ids[1]]);
    }
    db.drop_everything().await;
}

async fn sm2_an_event_is_not_stuck_behind_a_discard_that_its_parking_waited_for(kind: Kind) {
    let db = stream(kind, 1).await;
    let mut owner = Owner::of(&db).await;
    let ids = of(&db, "a", 2).await;
    let page = owner.read(10).await;
    let row = |id: Uuid| page.rows.iter().find(|row| row.id == id).unwrap();
    owner.park(&[(row(ids[0]), Wait::Dead { blocks: true })], 1, Some("no")).await;
    let mut holder = db.begin().await;
    holder.execute("UPDATE outbox_lanes SET present = present").await.unwrap();
    let holder_pid = holder.number("SELECT pg_backend_pid()::bigint").await.unwrap();
    let blocked_by = |pids: String| {
        format!("SELECT count(*) FROM pg_stat_activity WHERE pg_blocking_pids(pid) && ARRAY({pids})")
    };
    let first = format!("SELECT {holder_pid}::int");
    let second = format!("SELECT pid FROM pg_stat_activity WHERE {holder_pid} = ANY (pg_blocking_pids(pid))");
    let (waits, waits_for_it) = (blocked_by(first), blocked_by(second));
    let filter = Filter::dead();
    let discard = db.store().discard(&filter, 10);
    let parking = async {
        until("the discard waits for the lane", async || db.number(waits.clone()).await == 1).await;
        let (behind, release) = ([(row(ids[1]), Wait::Behind)], async {
            until("the parking waits behind it", async || db.number(waits_for_it.clone()).await == 1).await;
            holder.rollback().await;
        });
        tokio::join!(owner.park(&behind, 0, None), release);
    };
    let (discarded, ()) = tokio::join!(discard, parking);
    assert_eq!(discarded.unwrap(), 1);
    owner.finish(page.number, &[], Keep::Delivered).await;
    assert_eq!(drain(&owner).await, [ids[1]]);
    db.drop_everything().await;
}

/// More of the other lane is delivered than gauges look at, and then some of it waits.
async fn op6_a_lane_in_which_nothing_happens_hides_nothing(kind: Kind) {
    const LOOKED_AT: u64 = 10_000;
    let rig = Rig::new(kind, 2).await;
    let in_lane = async |aggregate: &str| {
        rig.enqueue([aggregate]).await;
        rig.count("outbox WHERE lane = 1").await == 1
    };
    let mut busy = String::new();
    for n in 0..100 {
        busy = format!("busy-{n}");
        if in_lane(&busy).await {
            break;
        }
    }
    let (mut quiet, mut other) = (rig.stream.reader(), rig.stream.reader());
    quiet.open(&rig.take(&worker(), &[0]).await).await.unwrap();
    other.open(&rig.take(&worker(), &[1]).await).await.unwrap();
    let page = quiet.read(1000).await.unwrap();
    quiet.settle(&said(&page), &[page.number], Keep::Delivered).await.unwrap();
    for _ in 0..LOOKED_AT / 1000 {
        rig.enqueue(std::iter::repeat_n(busy.as_str(), 1000)).await;
    }
    let mut delivered = 0;
    while delivered <= LOOKED_AT {
        let page = other.read(1000).await.unwrap();
        delivered += page.rows.len() as u64;
        other.settle(&said(&page), &[page.number], Keep::Delivered).await.unwrap();
    }
    rig.enqueue(std::iter::repeat_n(busy.as_str(), 10)).await;
    let admin = admin(&rig.db);
    until("what waits in the other lane is seen", async || {
        assert!(quiet.read(1000).await.unwrap().rows.is_empty());
        let (lanes, stats) = (admin.lanes().await.unwrap(), admin.status().await.unwrap().stats);
        lanes[1].events.n == 10 && stats.pending.n == 10 && !stats.pending.capped
    })
    .await;
    rig.db.drop_everything().await;
}

/// A process that is stopped, or whose machine is gone, between two statements of a transaction.
async fn sm2_who_vanishes_with_a_lane_in_hand_is_not_waited_for(kind: Kind) {
    let db = stream(kind, 1).await;
    db.execute(
        "CREATE FUNCTION is_bounded() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
                 RAISE EXCEPTION 'a % of % in a transaction that may last for ever', TG_OP, TG_TABLE_NAME;
             END IF;
             IF current_setting('transaction_isolation') <> 'read committed' THEN
                 RAISE EXCEPTION 'a % of % that does not see what it waited for', TG_OP, TG_TABLE_NAME;
             END IF;
             RETURN coalesce(NEW, OLD);
         END $$",
    )
    .await
    .unwrap();
    let (mut owner, ids) = poisoned(&db, "a", 3).await;
    db.execute(
        "CREATE TRIGGER is_bounded BEFORE INSERT OR DELETE OR UPDATE OF due, outcome ON outbox_parked
            FOR EACH ROW EXECUTE FUNCTION is_bounded()",
    )
    .await
    .unwrap();
    let more = of(&db, "b", 2).await;
    let page = owner.read(10).await;
    let waits = [(&page.rows[0], Wait::Dead { blocks: true }), (&page.rows[1], Wait::Behind)];
    owner.park(&waits, 1, Some("no")).await;
    owner.finish(page.number, &[], Keep::Delivered).await;
    assert_eq!(db.store().replay(&Filter::dead().id(ids[0]), 10).await.unwrap(), 1);
    assert_eq!(db.store().discard(&Filter::dead().id(more[0]), 10).await.unwrap(), 1);
    let mut delivered = drain(&owner).await;
    delivered.sort();
    let mut expected = vec![ids[0], ids[1], ids[2], more[1]];
    expected.sort();
    assert_eq!(delivered, expected);
    db.drop_everything().await;
}

fn purge(ending: Ending, older_than: Duration) -> Purge {
    Purge { ending, older_than, limit: 100 }
}

async fn hk1_a_purge_leaves_everything_that_is_not_delivered(kind: Kind) {
    let db = stream(kind, 2).await;
    let delivered = of(&db, "a", 2).await;
    db.deliver_all().await;
    let (mut owner, dead) = poisoned(&db, "b", 3).await;
    let under_way = of(&db, "c", 2).await;
    assert_eq!(owner.read(10).await.rows.len(), 2);
    let pending = of(&db, "d", 2).await;
    assert_eq!(db.store().purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 0, "they are young");
    db.shift(10 * MINUTE).await;
    assert_eq!(db.store().purge(purge(Ending::Delivered, AN_HOUR)).await.unwrap(), 0);
    let preview = admin(&db).purge(Ending::Delivered, MINUTE).dry_run().await.unwrap();
    assert_eq!((preview.count.n, preview.sample.len()), (2, 2));
    assert_eq!(db.store().purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 2);
    assert_eq!(db.store().purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 0);
    for id in delivered {
        assert_eq!(db.store().get(id).await.unwrap(), None);
    }
    for id in dead.iter().chain(&under_way).chain(&pending) {
        assert!(db.store().get(*id).await.unwrap().is_some());
    }
    // What was passed over goes once it is delivered; who owned the lanes has lost them meanwhile.
    let owner = Owner::of(&db).await;
    owner.end().await;
    db.deliver_all().await;
    db.shift(10 * MINUTE).await;
    assert_eq!(db.store().purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 4);
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 3);
    db.drop_everything().await;
}

async fn hk1_a_purged_dead_event_unblocks_its_aggregate(kind: Kind) {
    let db = stream(kind, 2).await;
    let (_, ids) = poisoned(&db, "a", 3).await;
    assert_eq!(db.store().purge(purge(Ending::Dead, MINUTE)).await.unwrap(), 0);
    db.shift(10 * MINUTE).await;
    assert_eq!(db.store().purge(purge(Ending::Dead, MINUTE)).await.unwrap(), 1);
    assert_eq!(db.store().get(ids[0]).await.unwrap(), None);
    assert_eq!(admin(&db).blocked(10).await.unwrap(), []);
    assert_eq!(drain(&Owner::of(&db).await).await, ids[1..]);
    db.drop_everything().await;
}

async fn hk1_a_row_of_a_long_transaction_is_purged_once_it_is_delivered(kind: Kind) {
    let db = stream(kind, 2).await;
    let mut tx = db.begin().await;
    let late = tx.enqueue(&db, event("late", 1).aggregate("order", "a")).await.unwrap().id;
    of(&db, "a", 5).await;
    db.deliver_all().await;
    db.shift(10 * MINUTE).await;
    assert_eq!(db.store().purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 5);
    tx.commit().await;
    db.shift(10 * MINUTE).await;
    assert_eq!(db.store().purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 0);
    assert_eq!(status(&db, late).await, Status::Pending, "old, and not delivered");
    db.deliver_all().await;
    assert_eq!(status(&db, late).await, Status::Delivered);
    // It lies below what has gone: a purge that begins anew finds it.
    let other = db.second_store().await;
    assert_eq!(other.purge(purge(Ending::Delivered, MINUTE)).await.unwrap(), 1);
    other.close().await;
    db.drop_everything().await;
}

async fn hk1_a_purge_does_not_begin_anew_with_every_batch(kind: Kind) {
    let db = stream(kind, 1).await;
    let (owner, _) = poisoned(&db, "first", 2).await;
    owner.end().await;
    for part in 0..10 {
        of(&db, &format!("a{part}"), 900).await;
    }
    db.deliver_all().await;
    of(&db, "young", 10).await;
    db.execute("UPDATE outbox SET created_at = created_at - interval '1 hour' WHERE aggregate_id <> 'young'")
        .await
        .unwrap();
    let batch = Purge { ending: Ending::Delivered, older_than: MINUTE, limit: 1000 };
    for _ in 0..9 {
        assert_eq!(db.store().purge(batch).await.unwrap(), 1000);
    }
    assert_eq!(db.store().purge(batch).await.unwrap(), 0);
    // What comes to lie below is left until a purge begins anew.
    db.deliver_all().await;
    db.execute("UPDATE outbox SET created_at = created_at - interval '1 hour'").await.unwrap();
    assert_eq!(db.store().purge(batch).await.unwrap(), 10);
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 2);
    db.drop_everything().await;
}

async fn rt6_a_table_may_become_a_stream_while_it_is_looked_at(kind: Kind) {
    let db = Db::new(kind).await;
    let other = db.second_store().await;
    assert_eq!(other.stats(10).await.unwrap(), Stats::default());
    db.store().migrate_down(0).await.unwrap();
    db.store().migrate_up_as(Mode::stream(2).unwrap()).await.unwrap();
    of(&db, "a", 2).await;
    assert_eq!(db.store().stats(10).await.unwrap().pending.n, 2);
    // Who was not told finds out by an error, once.
    other.stats(10).await.unwrap_err();
    assert_eq!(other.stats(10).await.unwrap().pending.n, 2);
    other.close().await;
    db.drop_everything().await;
}
