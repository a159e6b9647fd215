//! The store under test, driven by operations.

use std::time::Duration;

use posthaste::store::*;
use posthaste::{Enqueued, Event};
use uuid::Uuid;

use super::operation::{ATTEMPTS, Kindness, LEASE, RETRY};
use crate::harness::{Db, Kind};

pub struct Subject<'a> {
    db: &'a Db,
    store: &'a dyn Store,
    workers: [WorkerId; 3],
}

impl<'a> Subject<'a> {
    pub fn new(db: &'a Db) -> Self {
        Self::with_store(db, db.store())
    }

    pub fn with_store(db: &'a Db, store: &'a dyn Store) -> Self {
        Self { db, store, workers: std::array::from_fn(|_| WorkerId::unique()) }
    }

    /// An empty table for the next script.
    pub async fn clear(&self) {
        if self.db.kind() == Kind::Memory {
            self.db.store().migrate_down(0).await.unwrap();
        } else {
            self.db.execute("DELETE FROM outbox").await.unwrap();
        }
    }

    pub async fn enqueue(&self, event: Event, commit: bool) -> Enqueued {
        let mut tx = self.db.begin().await;
        let answer = tx.enqueue(self.db, event).await.unwrap();
        if commit {
            tx.commit().await
        } else {
            tx.rollback().await
        }
        answer
    }

    pub async fn claim(&self, worker: u8, limit: u32, mark: Option<Mark>) -> ClaimedBatch {
        let claim = Claim::by(self.workers[usize::from(worker)].clone())
            .limit(limit)
            .lease(Duration::from_secs(LEASE))
            .attempts(AttemptLimits::new(ATTEMPTS))
            .after(mark);
        self.store.claim(&claim).await.unwrap()
    }

    pub async fn settle(&self, batch: &[(Lease, Kindness)], keep: Keep) -> Settled {
        let settlement = |(lease, verdict): &(Lease, Kindness)| match verdict {
            Kindness::Delivered => Settlement::delivered(lease.clone()),
            Kindness::Retry => Settlement::retry(lease.clone(), Duration::ZERO, "retry"),
            Kindness::RetryLater => Settlement::retry(lease.clone(), Duration::from_secs(RETRY), "later"),
            Kindness::Dead => Settlement::dead(lease.clone(), "dead"),
            Kindness::Released => Settlement::released(lease.clone()),
        };
        let batch: Vec<Settlement> = batch.iter().map(settlement).collect();
        self.store.settle(&batch, keep).await.unwrap()
    }

    pub async fn extend(&self, lease: &Lease) -> Vec<Uuid> {
        let extended =
            self.store.extend(std::slice::from_ref(lease), Duration::from_secs(LEASE)).await.unwrap();
        assert!(extended.busy.is_empty(), "nobody else is here");
        extended.lost
    }

    pub async fn shift(&self, seconds: u64) {
        self.db.shift(Duration::from_secs(seconds)).await;
    }

    pub async fn replay(&self, topic: Option<u8>) -> u64 {
        self.store.replay(&dead(topic), 1000).await.unwrap()
    }

    pub async fn discard(&self, topic: Option<u8>) -> u64 {
        self.store.discard(&dead(topic), 1000).await.unwrap()
    }

    pub async fn purge(&self, ending: Ending, seconds: u64) -> u64 {
        let purge = Purge { ending, older_than: Duration::from_secs(seconds), limit: 1000 };
        self.store.purge(purge).await.unwrap()
    }

    pub async fn records(&self) -> Vec<Record> {
        self.store.list(&Filter::all(), Page::first(1000)).await.unwrap()
    }
}

fn dead(topic: Option<u8>) -> Filter {
    match topic {
        Some(topic) => Filter::dead().topic(format!("topic-{topic}")),
        None => Filter::dead(),
    }
}
