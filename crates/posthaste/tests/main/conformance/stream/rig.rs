//! A stream under test, and what is said to it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use posthaste::Event;
use posthaste::store::stream::{
    Beat, Council, Hold, Page, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Row, Wait,
};
use posthaste::store::{AttemptLimits, Keep, Mode, Stream, Topics, WorkerId};

use crate::harness::{Db, Kind, MINUTE, Setup, event, until, worker};

/// A stream under test.
pub struct Rig {
    pub db: Db,
    pub stream: Arc<dyn Stream>,
}

pub const NOBODY: [u16; 0] = [];

impl Rig {
    pub async fn new(kind: Kind, lanes: u16) -> Self {
        let mode = Some(Mode::stream(lanes).unwrap());
        let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
        let stream = db.store().stream().await.unwrap().unwrap();
        assert_eq!(stream.lanes().count(), lanes);
        Self { db, stream }
    }

    /// What is written from now on is later than what was, by the database's clock.
    pub async fn clock_moves_on(&self) {
        let before = self.db.store().now().await.unwrap();
        until("the clock moves on", async || self.db.store().now().await.unwrap() > before).await;
    }

    pub fn lanes(&self) -> Vec<u16> {
        (0..self.stream.lanes().count()).collect()
    }

    /// Commits events of aggregates; the numbers are their payloads, counted from the first.
    pub async fn enqueue(&self, aggregates: impl IntoIterator<Item = &str>) {
        let numbered = aggregates.into_iter().enumerate();
        let event = |(n, id): (usize, &str)| event("a", n as u64).aggregate("order", id).build().unwrap();
        self.enqueue_events(numbered.map(event).collect()).await;
    }

    pub async fn enqueue_events(&self, events: Vec<Event>) {
        let mut tx = self.db.begin().await;
        tx.enqueue_all(&self.db, events).await.unwrap();
        tx.commit().await;
    }

    pub async fn beat(&self, relay: &WorkerId, holds: &[Hold]) -> Council {
        self.stream.beat(&Beat { relay, present: false, holds, lease: MINUTE, seen: None }).await.unwrap()
    }

    pub async fn take(&self, relay: &WorkerId, lanes: &[u16]) -> Vec<Hold> {
        self.take_from(relay, lanes, &[]).await
    }

    pub async fn take_from(&self, relay: &WorkerId, lanes: &[u16], absent: &[String]) -> Vec<Hold> {
        let beat = Beat { relay, present: false, holds: &[], lease: MINUTE, seen: None };
        self.stream.take(&beat, lanes, absent).await.unwrap()
    }

    /// Takes every lane for a relay of its own.
    pub async fn own(&self) -> Vec<Hold> {
        self.end_leases().await;
        let holds = self.take(&worker(), &self.lanes()).await;
        assert_eq!(holds.len(), self.lanes().len());
        holds
    }

    /// Lets the leases of all lanes end.
    pub async fn end_leases(&self) {
        self.execute("UPDATE outbox_lanes SET leased_until = NULL").await;
    }

    /// Lets everything that is to come up later come up.
    pub async fn make_due(&self) {
        self.execute("UPDATE outbox_parked SET due = parked_at WHERE due IS NOT NULL").await;
    }

    pub async fn execute(&self, sql: &str) {
        self.db.execute(sql).await.unwrap();
    }

    pub async fn count(&self, what: &str) -> i64 {
        self.db.number(format!("SELECT COUNT(*) FROM {what}")).await
    }

    /// Reads one page that has everything.
    pub async fn page(&self, holds: &[Hold]) -> Page {
        let mut reader = self.stream.reader();
        reader.open(holds).await.unwrap();
        reader.read(10_000).await.unwrap()
    }

    /// Parks these rows, and nobody is refused.
    pub async fn park(&self, parks: Vec<Park>) {
        assert_eq!(self.stream.park(&parks).await.unwrap(), NOBODY);
    }

    pub async fn claim(&self, holds: &[Hold], limit: u32) -> Vec<Parked> {
        self.claim_with(holds, limit, false, &Topics::All).await
    }

    pub async fn claim_with(
        &self,
        holds: &[Hold],
        limit: u32,
        suspects: bool,
        topics: &Topics,
    ) -> Vec<Parked> {
        let attempts = AttemptLimits::default();
        let claim = ParkedClaim { holds, limit, suspects, topics, attempts: &attempts };
        self.stream.claim_parked(&claim).await.unwrap()
    }

    /// Claims whatever is due, suspects too, where so many attempts are allowed.
    pub async fn claim_limited(&self, holds: &[Hold], attempts: &AttemptLimits) -> Vec<Parked> {
        let claim = ParkedClaim { holds, limit: 10, suspects: true, topics: &Topics::All, attempts };
        self.stream.claim_parked(&claim).await.unwrap()
    }

    pub async fn settle(&self, ends: &[ParkedEnd]) {
        assert_eq!(self.stream.settle_parked(ends, Keep::Delivered).await.unwrap(), NOBODY);
    }
}

/// The number an event was made with.
pub fn number(event: &Result<impl Borrow<Event>, impl std::fmt::Debug>) -> u64 {
    serde_json::from_str(event.as_ref().unwrap().borrow().payload().as_json().unwrap()).unwrap()
}

pub fn numbers(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| number(&row.event)).collect()
}

pub fn parked_numbers(parked: &[Parked]) -> Vec<u64> {
    parked.iter().map(|parked| number(&parked.event)).collect()
}

pub fn key(row: &Row) -> String {
    row.event.as_ref().unwrap().aggregate_id().unwrap().to_owned()
}

pub fn park(row: &Row, wait: Wait) -> Park {
    Park {
        hold: row.hold,
        sequence: row.sequence,
        id: row.id,
        topic: row.topic().to_owned(),
        key: key(row),
        attempts: 0,
        error: None,
        wait,
    }
}

pub fn failed(row: &Row, after: Duration) -> Park {
    Park { attempts: 1, error: Some("no".to_owned()), ..park(row, Wait::After(after)) }
}

pub fn end(parked: &Parked, verdict: ParkedVerdict) -> ParkedEnd {
    ParkedEnd { hold: parked.hold, sequence: parked.sequence, verdict }
}

pub fn delivered(parked: &[Parked]) -> Vec<ParkedEnd> {
    parked.iter().map(|parked| end(parked, ParkedVerdict::Delivered)).collect()
}

pub fn retry(parked: &Parked, after: Duration) -> ParkedEnd {
    end(parked, ParkedVerdict::Retry { after, error: "again".to_owned() })
}

pub fn dead(parked: &Parked, blocks: bool) -> ParkedEnd {
    end(parked, ParkedVerdict::Dead { error: "never".to_owned(), blocks })
}

pub fn lanes_of(holds: &[Hold]) -> Vec<u16> {
    holds.iter().map(|hold| hold.lane).collect()
}

pub fn said(page: &Page) -> Vec<(Hold, i64)> {
    page.rows.iter().map(|row| (row.hold, row.sequence)).collect()
}

pub const NONE: [u64; 0] = [];

pub fn dead_park(row: &Row, blocks: bool, error: &str) -> Park {
    let key = row.event.as_ref().ok().and_then(|event| event.aggregate_id()).unwrap_or_default().to_owned();
    Park {
        hold: row.hold,
        sequence: row.sequence,
        id: row.id,
        topic: row.topic().to_owned(),
        key,
        attempts: 1,
        error: Some(error.to_owned()),
        wait: Wait::Dead { blocks },
    }
}
