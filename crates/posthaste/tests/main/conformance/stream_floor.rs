//! Streams where each delivered row is marked: what happens between owners, after a failover, and where somebody has a row
//! locked.
//!
//! Rows of the contract: SM1, SM2.

use std::sync::Arc;
use std::time::Duration;

use posthaste::Event;
use posthaste::store::stream::{
    Beat, Hold, Page, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Reader, Row, Wait,
};
use posthaste::store::{Keep, Mode, Stream, Topics, WorkerId};

use crate::harness::{Db, Kind, MINUTE, Setup, event, worker};

databases!(sm1_who_continues_its_lane_suspects_nothing, by_kind: mysql MySql, sqlite Sqlite);
databases!(sm1_fences_do_not_repeat_after_a_failover, by_kind: mysql MySql, sqlite Sqlite);

const NOBODY: [u16; 0] = [];

/// A stream of one lane.
struct Rig {
    db: Db,
    stream: Arc<dyn Stream>,
}

impl Rig {
    async fn new(kind: Kind) -> Self {
        let mode = Some(Mode::stream(1).unwrap());
        let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
        let stream = db.store().stream().await.unwrap().unwrap();
        Self { db, stream }
    }

    /// Commits an event of each of these aggregates; the numbers are their payloads, counted from the first.
    async fn enqueue(&self, aggregates: &[&str]) {
        let numbered = aggregates.iter().enumerate();
        let event = |(n, id): (usize, &&str)| event("a", n as u64).aggregate("order", *id).build().unwrap();
        self.enqueue_events(numbered.map(event).collect()).await;
    }

    async fn enqueue_events(&self, events: Vec<Event>) {
        let mut tx = self.db.begin().await;
        tx.enqueue_all(&self.db, events).await.unwrap();
        tx.commit().await;
    }

    /// Takes the lane, whoever has it, for a relay that held it like this before.
    async fn take(&self, relay: &WorkerId, held: &[Hold]) -> Vec<Hold> {
        self.execute("UPDATE outbox_lanes SET leased_until = NULL").await;
        let beat = Beat { relay, present: false, holds: held, lease: MINUTE };
        let holds = self.stream.take(&beat, &[0], &[]).await.unwrap();
        assert_eq!(holds.len(), 1);
        holds
    }

    async fn reader(&self, holds: &[Hold]) -> Box<dyn Reader> {
        let mut reader = self.stream.reader();
        reader.open(holds).await.unwrap();
        reader
    }

    async fn park(&self, parks: Vec<Park>) {
        assert_eq!(self.stream.park(&parks).await.unwrap(), NOBODY);
    }

    async fn claim(&self, holds: &[Hold], suspects: bool) -> Vec<Parked> {
        let claim = ParkedClaim { holds, limit: 100, suspects, topics: &Topics::All };
        self.stream.claim_parked(&claim).await.unwrap()
    }

    async fn execute(&self, sql: &str) {
        self.db.execute(sql).await.unwrap();
    }

    async fn count(&self, what: &str) -> i64 {
        self.db.number(format!("SELECT COUNT(*) FROM {what}")).await
    }
}

/// The number an event was made with.
fn number(event: &Result<Event, String>) -> u64 {
    serde_json::from_str(event.as_ref().unwrap().payload().as_json().unwrap()).unwrap()
}

fn numbers(page: &Page) -> Vec<u64> {
    page.rows.iter().map(|row| number(&row.event)).collect()
}

fn parked_numbers(parked: &[Parked]) -> Vec<u64> {
    parked.iter().map(|parked| number(&parked.event)).collect()
}

fn park(row: &Row, wait: Wait) -> Park {
    Park {
        hold: row.hold,
        sequence: row.sequence,
        id: row.id,
        topic: row.topic.clone(),
        key: row.event.as_ref().unwrap().aggregate_id().unwrap().to_owned(),
        attempts: 1,
        error: None,
        wait,
    }
}

fn said(page: &Page) -> Vec<(Hold, i64)> {
    page.rows.iter().map(|row| (row.hold, row.sequence)).collect()
}

/// A relay whose lease ended while it lived, and that takes its lane again before anybody else did, knows that what it had
/// under way ended no process.
async fn sm1_who_continues_its_lane_suspects_nothing(kind: Kind) {
    let rig = Rig::new(kind).await;
    let relay = worker();
    for continued in [true, false] {
        rig.enqueue(&["a", "b", "b", "c", "d", "e"]).await;
        let held = rig.take(&relay, &[]).await;
        let mut reader = rig.reader(&held).await;
        let page = reader.read(5).await.unwrap();
        let rows = &page.rows;
        rig.park(vec![
            park(&rows[0], Wait::Suspect),
            park(&rows[1], Wait::Running),
            park(&rows[2], Wait::Behind),
            park(&rows[3], Wait::Suspect),
        ])
        .await;
        assert_eq!(parked_numbers(&rig.claim(&held, true).await), [0], "a suspect is being tried");

        let last = if continued { held[0] } else { Hold { fence: held[0].fence - 1, ..held[0] } };
        let holds = rig.take(&relay, &[last]).await;
        assert!(holds[0].fence > held[0].fence);
        let mut reader = rig.reader(&holds).await;
        let page = reader.read(10).await.unwrap();
        assert_eq!(numbers(&page), [4, 5], "what was parked is not read again");
        assert_eq!(page.rows[0].suspect, !continued, "it was under way");
        assert!(!page.rows[1].suspect);
        let unsuspected = rig.claim(&holds, false).await;
        let mut suspects = Vec::new();
        while let [suspect] = &rig.claim(&holds, true).await[..] {
            assert!(suspect.suspect);
            suspects.push(number(&suspect.event));
        }
        suspects.sort_unstable();
        if continued {
            assert_eq!(parked_numbers(&unsuspected), [1], "what ran comes first of its aggregate");
            assert_eq!(unsuspected[0].attempt, 2);
            assert_eq!(suspects, [0, 3], "who was one before is one still");
        } else {
            assert!(unsuspected.is_empty());
            assert_eq!(suspects, [0, 1, 3]);
        }
        rig.execute("DELETE FROM outbox_parked").await;
        rig.execute("DELETE FROM outbox").await;
    }
    rig.db.drop_everything().await;
}

/// A server that takes over knows less than the one before it: it may have lost the last change of owner.
async fn sm1_fences_do_not_repeat_after_a_failover(kind: Kind) {
    let rig = Rig::new(kind).await;
    let mut fences = Vec::new();
    for _ in 0..5 {
        let before = rig.db.number("SELECT fence FROM outbox_lanes").await;
        let holds = rig.take(&worker(), &[]).await;
        assert!(holds[0].fence > before && !fences.contains(&holds[0].fence), "{fences:?}");
        fences.push(holds[0].fence);
        // SQLite's clock counts milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
        rig.execute(&format!("UPDATE outbox_lanes SET fence = {before}")).await;
    }
    let ahead = fences[4] + 3_600_000_000;
    rig.execute(&format!("UPDATE outbox_lanes SET fence = {ahead}")).await;
    assert_eq!(rig.take(&worker(), &[]).await[0].fence, ahead + 1, "whatever the clock says, it grows");
    rig.db.drop_everything().await;
}
