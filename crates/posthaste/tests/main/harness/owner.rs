//! An owner of every lane of a stream that does what it is told, and the same for a queue's rows.

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::stream::{
    Beat, Hold, Page, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Reader, Row, Wait,
};
use posthaste::store::{AttemptLimits, Keep, Settlement, Stream, Topics, WorkerId};
use uuid::Uuid;

use super::{Db, MINUTE, worker};

/// Rows that one read is to have.
const ALL: u32 = 5000;

pub struct Owner {
    pub stream: Arc<dyn Stream>,
    pub worker: WorkerId,
    pub holds: Vec<Hold>,
    pub reader: Box<dyn Reader>,
}

impl Owner {
    /// Takes every lane, whoever had it.
    pub async fn of(db: &Db) -> Self {
        let stream = db.store().stream().await.unwrap().unwrap();
        let worker = worker();
        let beat = Beat { relay: &worker, present: false, holds: &[], lease: MINUTE, seen: None };
        let council = stream.beat(&beat).await.unwrap();
        let before: Vec<String> = council.lanes.iter().filter_map(|lane| lane.owner.clone()).collect();
        let lanes: Vec<u16> = (0..stream.lanes().count()).collect();
        let holds = stream.take(&beat, &lanes, &before).await.unwrap();
        assert_eq!(holds.len(), lanes.len());
        let mut reader = stream.reader();
        reader.open(&holds).await.unwrap();
        Self { stream, worker, holds, reader }
    }

    /// The next rows, where there are any.
    pub async fn read(&mut self, limit: u32) -> Page {
        loop {
            let page = self.reader.read(limit).await.unwrap();
            self.carry_out_errand();
            if !page.rows.is_empty() || !page.more {
                return page;
            }
            self.reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
        }
    }

    /// What the reader wants to be done goes on beside the test.
    pub fn carry_out_errand(&mut self) {
        if let Some(errand) = self.reader.errand() {
            tokio::spawn(errand);
        }
    }

    /// Says that these rows of a page were delivered, and that all others of it are parked.
    pub async fn finish(&mut self, page: u64, delivered: &[&Row], keep: Keep) {
        let delivered: Vec<(Hold, i64)> = delivered.iter().map(|row| (row.hold, row.sequence)).collect();
        assert_eq!(self.reader.settle(&delivered, &[page], keep).await.unwrap(), [0; 0]);
        self.reader.flush().await.unwrap();
    }

    /// Parks rows, each in order with those of its aggregate.
    pub async fn park(&self, rows: &[(&Row, Wait)], attempts: u32, error: Option<&str>) {
        let parks: Vec<Park> = rows
            .iter()
            .map(|(row, wait)| Park {
                hold: row.hold,
                sequence: row.sequence,
                id: row.id,
                topic: row.topic().to_owned(),
                key: key(row),
                attempts,
                error: error.map(str::to_owned),
                wait: *wait,
            })
            .collect();
        assert_eq!(self.stream.park(&parks).await.unwrap(), [0; 0]);
    }

    /// Parked events that are due.
    pub async fn claim(&self) -> Vec<Parked> {
        let topics = Topics::All;
        let attempts = AttemptLimits::default();
        let claim = ParkedClaim {
            holds: &self.holds,
            limit: ALL,
            suspects: true,
            topics: &topics,
            attempts: &attempts,
        };
        self.stream.claim_parked(&claim).await.unwrap()
    }

    /// What became of a claimed one.
    pub async fn settle(&self, parked: &Parked, verdict: ParkedVerdict) {
        let end = ParkedEnd { hold: parked.hold, sequence: parked.sequence, verdict };
        assert_eq!(self.stream.settle_parked(&[end], Keep::Delivered).await.unwrap(), [0; 0]);
    }

    /// Gives up everything.
    pub async fn end(mut self) {
        self.reader.flush().await.unwrap();
        self.stream.release(&self.holds).await.unwrap();
        self.stream.leave(&self.worker).await.unwrap();
    }
}

/// What a row is in order with.
fn key(row: &Row) -> String {
    let aggregate = row.event.as_ref().ok().and_then(|event| event.aggregate_id());
    aggregate.map_or_else(|| row.id.to_string(), str::to_owned)
}

impl Db {
    pub async fn is_stream(&self) -> bool {
        self.store().stream().await.unwrap().is_some()
    }

    /// Commits these numbers as events of one topic and lets everything die that can; answers with their ids.
    pub async fn let_die(&self, topic: &str, numbers: std::ops::Range<u64>, why: &str) -> Vec<Uuid> {
        let ids = self.enqueue_numbers(topic, numbers).await;
        self.let_all_die(why).await;
        ids
    }

    /// Lets everything die that can be delivered now.
    pub async fn let_all_die(&self, why: &str) {
        if !self.is_stream().await {
            let claimed = self.claim(&worker(), ALL).await;
            let dead: Vec<_> = claimed.into_iter().map(|c| Settlement::dead(c.lease, why)).collect();
            assert_eq!(self.store().settle(&dead, Keep::Delivered).await.unwrap().written, dead.len());
            return;
        }
        let mut owner = Owner::of(self).await;
        for parked in owner.claim().await {
            let dead = ParkedVerdict::Dead { error: why.to_owned(), blocks: true };
            owner.settle(&parked, dead).await;
        }
        let page = owner.read(ALL).await;
        let dead: Vec<_> = page.rows.iter().map(|row| (row, Wait::Dead { blocks: true })).collect();
        owner.park(&dead, 1, Some(why)).await;
        owner.finish(page.number, &[], Keep::Delivered).await;
        owner.end().await;
    }

    /// Delivers everything that can be.
    pub async fn deliver_all(&self) {
        if !self.is_stream().await {
            let claimed = self.claim(&worker(), ALL).await;
            let delivered: Vec<_> =
                claimed.into_iter().map(|claimed| Settlement::delivered(claimed.lease)).collect();
            self.store().settle(&delivered, Keep::Delivered).await.unwrap();
            return;
        }
        let mut owner = Owner::of(self).await;
        for parked in owner.claim().await {
            owner.settle(&parked, ParkedVerdict::Delivered).await;
        }
        loop {
            let page = owner.read(ALL).await;
            if page.rows.is_empty() {
                break;
            }
            owner.finish(page.number, &page.rows.iter().collect::<Vec<_>>(), Keep::Delivered).await;
        }
        owner.end().await;
    }
}

/// Never, as far as a test is concerned.
pub const AN_HOUR: Duration = Duration::from_secs(3600);
