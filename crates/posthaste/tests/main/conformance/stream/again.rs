//! Lanes that are taken again by the process that held them last: what it had under way has ended nobody.
//!
//! Rows of the contract: RE11, SM1, SM2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use posthaste::store::stream::{Beat, Hold, Page, Park, Parked, ParkedClaim, Row, Wait};
use posthaste::store::{AttemptLimits, Keep, Mode, Stream, Topics, WorkerId};

use crate::harness::{Db, Kind, MINUTE, Setup, event, worker};

conformance_sql_by_kind!(
    re11_what_a_living_owner_had_under_way_is_not_suspect,
    re11_a_suspect_stays_one_when_its_lane_is_taken_again,
    re11_a_lane_that_others_had_in_between_is_not_gone_on_with,
    re11_of_lanes_taken_at_once_those_that_are_gone_on_with_have_no_suspects,
    re11_a_lane_is_gone_on_with_any_number_of_times,
);

// Where a standby may be promoted without having heard of the last owners.
databases!(re11_fences_do_not_repeat_after_a_failover, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);

const NOBODY: [u16; 0] = [];

/// A stream, and the name of a relay.
struct Rig {
    db: Db,
    stream: Arc<dyn Stream>,
    relay: WorkerId,
}

impl Rig {
    async fn new(kind: Kind, lanes: u16) -> Self {
        let mode = Some(Mode::stream(lanes).unwrap());
        let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
        let stream = db.store().stream().await.unwrap().unwrap();
        Self { db, stream, relay: worker() }
    }

    /// Commits an event of each of these aggregates.
    async fn enqueue(&self, aggregates: impl IntoIterator<Item = &str>) {
        let mut tx = self.db.begin().await;
        for aggregate in aggregates {
            tx.enqueue(&self.db, event("a", 0).aggregate("order", aggregate)).await.unwrap();
        }
        tx.commit().await;
    }

    /// Every lane, by a relay that says what it held last.
    async fn take(&self, relay: &WorkerId, holds: &[Hold]) -> Vec<Hold> {
        let lanes: Vec<u16> = (0..self.stream.lanes().count()).collect();
        let beat = Beat { relay, present: false, holds, lease: MINUTE, seen: None };
        let taken = self.stream.take(&beat, &lanes, &[]).await.unwrap();
        assert_eq!(taken.len(), lanes.len());
        taken
    }

    async fn end_leases(&self) {
        self.db.execute("UPDATE outbox_lanes SET leased_until = NULL").await.unwrap();
    }

    /// Two pages of them, which have everything: what was noted is read by itself.
    async fn read(&self, holds: &[Hold]) -> BTreeMap<String, bool> {
        let mut reader = self.stream.reader();
        reader.open(holds).await.unwrap();
        let mut rows = reader.read(100).await.unwrap().rows;
        rows.append(&mut reader.read(100).await.unwrap().rows);
        rows.iter().map(|row| (aggregate(row), row.suspect)).collect()
    }

    async fn park(&self, row: &Row, wait: Wait) {
        let park = Park {
            hold: row.hold,
            sequence: row.sequence,
            id: row.id,
            topic: row.topic().to_owned(),
            key: aggregate(row),
            attempts: 1,
            error: None,
            wait,
        };
        assert_eq!(self.stream.park(&[park]).await.unwrap(), NOBODY);
    }

    /// Claims what is due, one suspect at most among it; the aggregates, and whether each is suspect.
    async fn claim(&self, holds: &[Hold]) -> Vec<(String, bool)> {
        let attempts = AttemptLimits::default();
        let claim =
            ParkedClaim { holds, limit: 100, suspects: true, topics: &Topics::All, attempts: &attempts };
        let claimed = self.stream.claim_parked(&claim).await.unwrap();
        let said = |parked: &Parked| {
            (parked.event.as_ref().unwrap().aggregate_id().unwrap().to_owned(), parked.suspect)
        };
        let mut said: Vec<_> = claimed.iter().map(said).collect();
        said.sort_unstable();
        said
    }
}

fn aggregate(row: &Row) -> String {
    row.event.as_ref().unwrap().aggregate_id().unwrap().to_owned()
}

fn said(rows: &[Row]) -> Vec<(Hold, i64)> {
    rows.iter().map(|row| (row.hold, row.sequence)).collect()
}

fn row<'p>(page: &'p Page, name: &str) -> &'p Row {
    page.rows.iter().find(|row| aggregate(row) == name).unwrap()
}

fn not_suspect(names: &[&str]) -> Vec<(String, bool)> {
    names.iter().map(|name| ((*name).to_owned(), false)).collect()
}

async fn re11_what_a_living_owner_had_under_way_is_not_suspect(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    rig.enqueue(["a", "b", "c", "d", "e"]).await;
    let held = rig.take(&rig.relay, &[]).await;
    let mut reader = rig.stream.reader();
    reader.open(&held).await.unwrap();
    let page = reader.read(4).await.unwrap();
    rig.park(row(&page, "a"), Wait::After(Duration::ZERO)).await;
    rig.park(row(&page, "b"), Wait::Running).await;
    rig.park(row(&page, "c"), Wait::After(MINUTE)).await;
    assert_eq!(rig.claim(&held).await, not_suspect(&["a"]));

    let holds = rig.take(&rig.relay, &held).await;
    for (new, old) in holds.iter().zip(&held) {
        assert!(new.lane == old.lane && new.fence > old.fence, "it is another ownership all the same");
    }
    let read = rig.read(&holds).await;
    assert!(read.values().all(|suspect| !suspect), "{read:?}");
    assert!(read.contains_key("d") && read.contains_key("e"), "nothing is passed over: {read:?}");
    assert_eq!(rig.claim(&holds).await, not_suspect(&["a", "b"]), "both are due, and neither is suspect");
    // What the process before the taking still says counts for nothing.
    let lanes: BTreeSet<u16> = page.rows.iter().map(|row| row.hold.lane).collect();
    let mut refused = reader.settle(&said(&page.rows), &[page.number], Keep::Delivered).await.unwrap();
    refused.append(&mut reader.flush().await.unwrap());
    assert_eq!(BTreeSet::from_iter(refused), lanes);
    rig.db.drop_everything().await;
}

async fn re11_a_suspect_stays_one_when_its_lane_is_taken_again(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b"]).await;
    let held = rig.take(&rig.relay, &[]).await;
    let mut reader = rig.stream.reader();
    reader.open(&held).await.unwrap();
    let page = reader.read(10).await.unwrap();
    rig.park(row(&page, "a"), Wait::Suspect).await;
    rig.park(row(&page, "b"), Wait::After(Duration::ZERO)).await;
    let claimed = vec![("a".to_owned(), true), ("b".to_owned(), false)];
    assert_eq!(rig.claim(&held).await, claimed);
    let holds = rig.take(&rig.relay, &held).await;
    assert_eq!(rig.claim(&holds).await, claimed);
    rig.db.drop_everything().await;
}

async fn re11_a_lane_that_others_had_in_between_is_not_gone_on_with(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a"]).await;
    let held = rig.take(&rig.relay, &[]).await;
    rig.end_leases().await;
    let others = rig.take(&worker(), &held).await;
    assert!(
        rig.read(&others).await.values().all(|suspect| !suspect),
        "of the first one nothing was under way"
    );
    rig.end_leases().await;
    let holds = rig.take(&rig.relay, &held).await;
    assert!(rig.read(&holds).await["a"], "the other one had it under way, and is gone");
    rig.db.drop_everything().await;
}

async fn re11_of_lanes_taken_at_once_those_that_are_gone_on_with_have_no_suspects(kind: Kind) {
    let rig = Rig::new(kind, 8).await;
    let names: Vec<String> = (0..40).map(|n| format!("{n}")).collect();
    rig.enqueue(names.iter().map(String::as_str)).await;
    let held = rig.take(&rig.relay, &[]).await;
    let mut reader = rig.stream.reader();
    reader.open(&held).await.unwrap();
    let rows = reader.read(100).await.unwrap().rows;
    for row in rows.iter().step_by(2) {
        rig.park(row, Wait::Running).await;
    }
    let goes_on = |lane: u16| lane % 2 == 1;
    let known: Vec<Hold> = held.iter().filter(|hold| goes_on(hold.lane)).copied().collect();
    let holds = rig.take(&rig.relay, &known).await;
    let lane_of: BTreeMap<String, u16> = rows.iter().map(|row| (aggregate(row), row.hold.lane)).collect();
    let read = rig.read(&holds).await;
    assert!(read.values().any(|suspect| *suspect) && read.values().any(|suspect| !suspect));
    for (name, suspect) in read {
        assert_eq!(suspect, !goes_on(lane_of[&name]), "{name}");
    }
    let running = rows.iter().step_by(2).filter(|row| goes_on(row.hold.lane)).count();
    let claimed = rig.claim(&holds).await;
    assert_eq!(claimed.iter().filter(|(_, suspect)| !suspect).count(), running);
    assert_eq!(claimed.len(), running + 1, "of suspects one is tried at a time");
    rig.db.drop_everything().await;
}

/// Whatever is kept of a lane's places does not grow with it.
async fn re11_a_lane_is_gone_on_with_any_number_of_times(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b"]).await;
    let mut holds = rig.take(&rig.relay, &[]).await;
    for _ in 0..30 {
        assert!(rig.read(&holds).await.values().all(|suspect| !suspect));
        holds = rig.take(&rig.relay, &holds).await;
    }
    if kind == Kind::Postgres {
        assert!(rig.db.number("SELECT count(*) FROM outbox_places").await <= 12);
    }
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(10).await.unwrap();
    assert_eq!(page.rows.len(), 2);
    assert_eq!(reader.settle(&said(&page.rows), &[page.number], Keep::Delivered).await.unwrap(), NOBODY);
    let holds = rig.take(&rig.relay, &holds).await;
    assert!(rig.read(&holds).await.is_empty(), "what is done stays done");
    rig.db.drop_everything().await;
}

async fn re11_fences_do_not_repeat_after_a_failover(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let before = rig.take(&rig.relay, &[]).await;
    let last = rig.take(&rig.relay, &[]).await;
    // What a standby has that missed the last taking.
    for hold in &before {
        let Hold { lane, fence } = hold;
        rig.db.execute(format!("UPDATE outbox_lanes SET fence = {fence} WHERE lane = {lane}")).await.unwrap();
    }
    let taken = rig.take(&rig.relay, &[]).await;
    for ((before, last), taken) in before.iter().zip(&last).zip(&taken) {
        assert!(before.fence < last.fence && last.fence < taken.fence, "{before:?} {last:?} {taken:?}");
    }
    // Of a clock that is behind.
    rig.db.execute(format!("UPDATE outbox_lanes SET fence = {}", i64::MAX / 2)).await.unwrap();
    assert!(rig.take(&rig.relay, &[]).await.iter().all(|hold| hold.fence == i64::MAX / 2 + 1));
    rig.db.drop_everything().await;
}
