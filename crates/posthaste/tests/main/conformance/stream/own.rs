//! Lanes and their owners: who takes which, keeps it, and has lost it.
//!
//! Rows of the contract: SM1.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste::store::stream::{Beat, Wait};
use posthaste::store::{Keep, Topics, WorkerId};

use super::rig::{NOBODY, Rig, delivered, failed, lanes_of, numbers, park, parked_numbers, said};
use crate::harness::{Db, Kind, MINUTE, Setup, event, until, worker};

conformance_sql_by_kind!(
    sm1_a_queue_has_no_lanes,
    sm1_nothing_asked_for_is_nothing_done,
    sm1_lanes_are_taken_when_they_are_free,
    sm1_of_those_who_take_at_once_each_gets_others,
    sm1_relays_are_listed_in_the_order_they_came,
    sm1_a_beat_keeps_what_is_still_held,
    sm1_a_beat_tells_whether_there_is_anything_to_read,
    sm1_every_lane_is_read_and_only_by_its_owner,
    sm1_late_writes_are_refused,
    sm1_256_lanes_are_no_matter,
);

// A file has one writer at a time.
databases!(sm1_a_row_that_is_committed_late_is_news, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);

// A file cannot tell who is gone.
databases!(sm1_absent_owners_are_known_by_their_session, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);

async fn sm1_a_queue_has_no_lanes(kind: Kind) {
    let db = Db::new(kind).await;
    assert!(db.store().stream().await.unwrap().is_none());
    db.drop_everything().await;
    let bare = Db::bare(kind, Setup::default()).await;
    assert!(bare.store().stream().await.unwrap().is_none());
    bare.drop_everything().await;
}

async fn sm1_nothing_asked_for_is_nothing_done(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let holds = rig.own().await;
    assert!(rig.take(&worker(), &[]).await.is_empty());
    rig.stream.release(&[]).await.unwrap();
    rig.stream.leave(&worker()).await.unwrap();
    assert!(rig.stream.blocked_among(&[]).await.unwrap().is_empty());
    rig.park(Vec::new()).await;
    assert!(rig.claim(&[], 10).await.is_empty());
    assert!(rig.claim(&holds, 0).await.is_empty());
    assert!(rig.claim_with(&holds, 10, true, &Topics::Only(Vec::new())).await.is_empty());
    rig.settle(&[]).await;
    assert!(!rig.stream.has_parked(&[]).await.unwrap());
    assert!(!rig.stream.has_parked(&[0, 1]).await.unwrap());
    assert!(rig.stream.blocked(10).await.unwrap().is_empty());
    let mut reader = rig.stream.reader();
    reader.open(&[]).await.unwrap();
    assert!(reader.read(10).await.unwrap().rows.is_empty());
    reader.open(&holds).await.unwrap();
    assert!(reader.read(0).await.unwrap().rows.is_empty());
    assert!(reader.read(10).await.unwrap().rows.is_empty());
    assert_eq!(reader.settle(&[], &[], Keep::Nothing).await.unwrap(), NOBODY);
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    reader.close(&[]);
    rig.db.drop_everything().await;
}

async fn sm1_lanes_are_taken_when_they_are_free(kind: Kind) {
    let rig = Rig::new(kind, 4).await;
    let (one, other) = (worker(), worker());
    let council = rig.beat(&one, &[]).await;
    assert_eq!(council.lanes.len(), 4);
    assert!(council.lanes.iter().all(|lane| lane.free && !lane.absent && lane.owner.is_none()));
    let holds = rig.take(&one, &[0, 1, 2]).await;
    assert_eq!(lanes_of(&holds), [0, 1, 2]);
    assert_eq!(lanes_of(&rig.take(&other, &[1, 2, 3]).await), [3], "the others are somebody's");
    let council = rig.beat(&other, &[]).await;
    assert!(council.lanes.iter().all(|lane| !lane.free && !lane.absent));
    assert_eq!(council.lanes[0].owner.as_deref(), Some(one.as_str()));
    assert_eq!(council.lanes[3].owner.as_deref(), Some(other.as_str()));

    rig.stream.release(&holds[..1]).await.unwrap();
    rig.stream.release(&holds[..1]).await.unwrap();
    let taken = rig.take(&other, &[0, 1, 2]).await;
    assert_eq!(lanes_of(&taken), [0]);
    assert!(taken[0].fence > holds[0].fence);
    rig.stream.release(&holds[..1]).await.unwrap();
    assert_eq!(rig.take(&one, &[0]).await, [], "it was no longer the first one's to give up");

    let taken = rig.take_from(&other, &[0, 1, 2], &[one.as_str().to_owned()]).await;
    assert_eq!(lanes_of(&taken), [0, 1, 2], "one's own, and the absent one's");
    rig.end_leases().await;
    let council = rig.beat(&one, &[]).await;
    assert!(council.lanes.iter().all(|lane| lane.free && lane.owner.is_some()));
    assert_eq!(lanes_of(&rig.take(&one, &rig.lanes()).await), [0, 1, 2, 3]);
    rig.db.drop_everything().await;
}

async fn sm1_of_those_who_take_at_once_each_gets_others(kind: Kind) {
    let rig = Arc::new(Rig::new(kind, 16).await);
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let rig = Arc::clone(&rig);
        tries.spawn(async move { rig.take(&worker(), &rig.lanes()).await });
    }
    let mut taken: Vec<u16> = tries.join_all().await.iter().flat_map(|holds| lanes_of(holds)).collect();
    taken.sort_unstable();
    let each_once: HashSet<u16> = taken.iter().copied().collect();
    assert_eq!(each_once.len(), taken.len(), "{taken:?}");
    assert!(!taken.is_empty());
    Arc::into_inner(rig).unwrap().db.drop_everything().await;
}

async fn sm1_relays_are_listed_in_the_order_they_came(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let relays = [worker(), worker(), worker()];
    for (n, relay) in relays.iter().enumerate() {
        rig.beat(relay, &[]).await;
        // SQLite's clock counts milliseconds.
        let joined = match kind {
            Kind::Sqlite => format!("{n}"),
            _ => format!("'2020-01-01 00:00:0{n}'"),
        };
        rig.execute(&format!("UPDATE outbox_relays SET joined_at = {joined} WHERE relay = '{relay}'")).await;
    }
    let names = |relays: &[&WorkerId]| relays.iter().map(|relay| relay.to_string()).collect::<Vec<_>>();
    let [one, two, three] = &relays;
    assert_eq!(rig.beat(three, &[]).await.relays, names(&[one, two, three]));
    assert_eq!(
        rig.beat(one, &[]).await.relays,
        names(&[one, two, three]),
        "a beat does not make it a newcomer"
    );
    rig.stream.leave(two).await.unwrap();
    rig.stream.leave(two).await.unwrap();
    assert_eq!(rig.beat(one, &[]).await.relays, names(&[one, three]));
    rig.execute(&format!(
        "UPDATE outbox_relays SET {} = joined_at WHERE relay = '{one}'",
        quoted_until(kind)
    ))
    .await;
    assert_eq!(rig.beat(three, &[]).await.relays, names(&[three]), "it was not heard of");
    assert_eq!(rig.count("outbox_relays").await, 1, "for long");
    rig.db.drop_everything().await;
}

fn quoted_until(kind: Kind) -> &'static str {
    if kind.is_mysql() { "`until`" } else { "until" }
}

async fn sm1_a_beat_keeps_what_is_still_held(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let (one, other) = (worker(), worker());
    let holds = rig.take(&one, &[0, 1]).await;
    rig.end_leases().await;
    let taken = rig.take(&other, &[1]).await;
    rig.execute("UPDATE outbox_lanes SET leased_until = NULL").await;
    let council = rig.beat(&one, &holds).await;
    assert!(!council.lanes[0].free, "its lease lasts again");
    assert!(council.lanes[1].free, "that is not its own to keep");
    assert_eq!(council.lanes[1].fence, taken[0].fence);
    assert!(!rig.beat(&other, &taken).await.lanes[1].free);
    rig.stream.release(&holds[..1]).await.unwrap();
    assert!(rig.beat(&one, &holds).await.lanes[0].free, "what was given up is not taken by a beat");
    rig.db.drop_everything().await;
}

async fn sm1_absent_owners_are_known_by_their_session(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let name = worker();
    let session = rig.db.store().session(&name).await.unwrap();
    let beat = Beat { relay: &name, present: true, holds: &[], lease: MINUTE, seen: None };
    let holds = rig.stream.take(&beat, &[0], &[]).await.unwrap();
    let beat = Beat { holds: &holds, ..beat };
    assert!(!rig.stream.beat(&beat).await.unwrap().lanes[0].absent);
    session.close().await;
    let other = worker();
    until("it is absent", async || rig.beat(&other, &[]).await.lanes[0].absent).await;
    assert!(!rig.beat(&other, &[]).await.lanes[0].free, "its lease lasts");
    assert_eq!(rig.take(&other, &[0]).await, []);
    assert_eq!(rig.take_from(&other, &[0], &[name.to_string()]).await.len(), 1);
    assert!(!rig.beat(&other, &[]).await.lanes[0].absent, "of that one nobody can tell");
    rig.db.drop_everything().await;
}

async fn sm1_a_beat_tells_whether_there_is_anything_to_read(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let relay = worker();
    let holds = rig.take(&relay, &rig.lanes()).await;
    let mut reader = rig.stream.reader();
    assert!(reader.seen().await.is_none(), "it has no lanes");
    reader.open(&holds).await.unwrap();
    let news = async |seen| {
        let beat = Beat { relay: &relay, present: false, holds: &holds, lease: MINUTE, seen };
        rig.stream.beat(&beat).await.unwrap().news
    };
    while reader.read(10).await.unwrap().more {}
    let seen = reader.seen().await.expect("it has read everything");
    assert_eq!((news(None).await, news(Some(&seen)).await), (None, Some(false)));
    rig.enqueue(["a"]).await;
    assert_eq!(news(Some(&seen)).await, Some(true), "a row came");
    let page = reader.read(10).await.unwrap();
    assert!(reader.seen().await.is_none(), "something is under way");
    let row = &page.rows[0];
    reader.settle(&[(row.hold, row.sequence)], &[page.number], Keep::Delivered).await.unwrap();
    while reader.read(10).await.unwrap().more {}
    let seen = reader.seen().await.expect("it is delivered");
    assert_eq!(news(Some(&seen)).await, Some(false));
    // What is parked is news when it is due, and only then.
    rig.enqueue(["b"]).await;
    let page = reader.read(10).await.unwrap();
    rig.park(vec![park(&page.rows[0], Wait::After(MINUTE))]).await;
    reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
    while reader.read(10).await.unwrap().more {}
    let seen = reader.seen().await.expect("it is parked");
    assert_eq!(news(Some(&seen)).await, Some(false), "it waits");
    if kind == Kind::Postgres {
        rig.make_due().await;
        assert_eq!(news(Some(&seen)).await, Some(true), "it is due");
    }
    rig.db.drop_everything().await;
}

/// The number of a row is given out before it is committed, and others may be read meanwhile.
async fn sm1_a_row_that_is_committed_late_is_news(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let relay = worker();
    let holds = rig.take(&relay, &rig.lanes()).await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let mut late = rig.db.begin().await;
    late.enqueue(&rig.db, event("a", 0).aggregate("order", "late")).await.unwrap();
    rig.enqueue(["a"]).await;
    let page = reader.read(10).await.unwrap();
    assert_eq!(page.rows.len(), 1);
    let row = &page.rows[0];
    reader.settle(&[(row.hold, row.sequence)], &[page.number], Keep::Delivered).await.unwrap();
    while reader.read(10).await.unwrap().more {}
    let seen = reader.seen().await.expect("it has read everything that is committed");
    let beat = Beat { relay: &relay, present: false, holds: &holds, lease: MINUTE, seen: Some(&seen) };
    assert_eq!(rig.stream.beat(&beat).await.unwrap().news, Some(false));
    late.commit().await;
    assert_eq!(rig.stream.beat(&beat).await.unwrap().news, Some(true));
    rig.db.drop_everything().await;
}

async fn sm1_every_lane_is_read_and_only_by_its_owner(kind: Kind) {
    let rig = Rig::new(kind, 8).await;
    let ids: Vec<String> = (0..200).map(|n| format!("order-{n}")).collect();
    rig.enqueue(ids.iter().map(String::as_str)).await;
    let (one, other) = (worker(), worker());
    let low = rig.take(&one, &[0, 1, 2, 3]).await;
    let high = rig.take(&other, &[4, 5, 6, 7]).await;
    let (low_page, high_page) = (rig.page(&low).await, rig.page(&high).await);
    for (page, holds) in [(&low_page, &low), (&high_page, &high)] {
        assert!(page.rows.iter().all(|row| holds.contains(&row.hold) && !row.suspect && !row.delayed));
        let order = numbers(&page.rows);
        assert!(order.is_sorted() && !order.is_empty(), "{order:?}");
    }
    let mut all = numbers(&low_page.rows);
    all.extend(numbers(&high_page.rows));
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    rig.db.drop_everything().await;
}

async fn sm1_late_writes_are_refused(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b", "c", "d"]).await;
    let old = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&old).await.unwrap();
    let page = reader.read(3).await.unwrap();
    let mut settling = rig.stream.reader();
    settling.open(&old).await.unwrap();
    let slow = settling.read(10).await.unwrap();
    rig.park(vec![failed(&page.rows[0], Duration::ZERO)]).await;
    let claimed = rig.claim(&old, 10).await;
    assert_eq!(parked_numbers(&claimed), [0]);

    let new = rig.own().await;
    assert_eq!(rig.stream.park(&[failed(&page.rows[1], MINUTE)]).await.unwrap(), [0]);
    assert_eq!(rig.count("outbox_parked").await, 1);
    assert_eq!(rig.stream.settle_parked(&delivered(&claimed), Keep::Delivered).await.unwrap(), [0]);
    assert_eq!(rig.count("outbox_parked").await, 1);
    assert!(rig.claim_with(&old, 10, true, &Topics::All).await.is_empty());
    let late = reader.read(10).await.unwrap();
    assert_eq!((numbers(&late.rows), late.lost), (vec![], vec![0]));
    assert_eq!(settling.settle(&said(&slow), &[slow.number], Keep::Delivered).await.unwrap(), [0]);
    rig.stream.release(&old).await.unwrap();
    assert_eq!(rig.take(&worker(), &[0]).await, [], "it is the new owner's still");

    let again = rig.page(&new).await;
    assert!(numbers(&again.rows).ends_with(&[1, 2, 3]), "nothing of it was written");
    let tried = rig.claim_with(&new, 10, true, &Topics::All).await;
    assert_eq!(parked_numbers(&tried), [0]);
    assert!(tried[0].suspect);
    rig.db.drop_everything().await;
}

async fn sm1_256_lanes_are_no_matter(kind: Kind) {
    let rig = Rig::new(kind, 256).await;
    let ids: Vec<String> = (0..1000).map(|n| format!("order-{n}")).collect();
    rig.enqueue(ids.iter().map(String::as_str)).await;
    let holds = rig.own().await;
    assert_eq!(rig.beat(&worker(), &holds).await.lanes.len(), 256);
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(1000).await.unwrap();
    assert_eq!(numbers(&page.rows), (0..1000).collect::<Vec<_>>());
    rig.park(page.rows[..500].iter().map(|row| failed(row, Duration::ZERO)).collect()).await;
    assert_eq!(reader.settle(&said(&page)[500..], &[page.number], Keep::Delivered).await.unwrap(), NOBODY);
    let parked = rig.claim(&holds, 1000).await;
    assert_eq!(parked_numbers(&parked), (0..500).collect::<Vec<_>>());
    rig.settle(&delivered(&parked)).await;
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    assert!(!rig.stream.has_parked(&rig.lanes()).await.unwrap());
    let lag = rig.stream.lag(10_000).await.unwrap();
    assert_eq!(lag.len(), 256);
    assert!(
        lag.iter().all(|lane| lane.events.n == 0 && !lane.events.capped && lane.age.is_none()),
        "{lag:?}"
    );
    rig.stream.release(&holds).await.unwrap();
    rig.db.drop_everything().await;
}
