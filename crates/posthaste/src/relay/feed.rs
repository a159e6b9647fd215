//! The feed: where a relay's events come from and where it says how they ended. Rows are leased one by one from a queue;
//! of a stream the relay owns lanes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::order::Turn;
use super::stream::StreamFeed;
use crate::error::Result;
use crate::event::Event;
use crate::store::{Buried, Claim, Claimed, Extended, Keep, Lease, Mark, Settlement, Store, Verdict, rounds};

/// Where events come from.
pub(super) enum Feed {
    Queue(Arc<dyn Store>),
    Stream(Arc<StreamFeed>),
}

/// What came of a claim.
#[derive(Debug, Default)]
pub(super) struct Fed {
    /// Events to deliver, in order.
    pub(super) events: Vec<FedEvent>,
    /// Rows that came up and were marked dead instead.
    pub(super) buried: Vec<Buried>,
    /// How far it got.
    pub(super) mark: Option<Mark>,
    /// Whether there is more at once, however little this is.
    pub(super) more: bool,
    /// Whether nothing could be had because it is not known yet what is this relay's to deliver.
    pub(super) unready: bool,
}

/// An event to deliver.
#[derive(Debug)]
pub(super) struct FedEvent {
    pub(super) event: Arc<Event>,
    /// The right to say how it ended.
    pub(super) lease: Lease,
    /// When it was written, by the database's clock.
    pub(super) created_at: OffsetDateTime,
    /// Its place among those of its aggregate, where they are in order.
    pub(super) turn: Option<Turn>,
}

/// How an event ended.
#[derive(Debug)]
pub(super) struct Said<'a> {
    pub(super) lease: &'a Lease,
    pub(super) verdict: &'a Verdict,
    /// Whether it was not dispatched because one before it of its aggregate was not delivered.
    pub(super) behind: bool,
}

/// What was written of what was said. By lease, not by event: one that was lost may be had anew, and the ends of both be said
/// at once.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// No longer held: nothing was written.
    pub(super) lost: HashSet<Lease>,
    /// Held, but somebody has the row locked: to be said again.
    pub(super) busy: HashSet<Lease>,
}

impl Feed {
    /// The next events.
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Fed> {
        match self {
            Self::Stream(stream) => stream.claim(claim).await,
            Self::Queue(store) => {
                let batch = store.claim(claim).await?;
                let event =
                    |Claimed { event, lease, created_at }| FedEvent { event, lease, created_at, turn: None };
                let events = batch.events.into_iter().map(event).collect();
                Ok(Fed { events, buried: batch.buried, mark: batch.mark, ..Fed::default() })
            }
        }
    }

    /// Makes leases last from now.
    pub(super) async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Extended> {
        match self {
            Self::Stream(stream) => Ok(stream.extend(leases).await),
            Self::Queue(store) => store.extend(leases, length).await,
        }
    }

    /// Writes how events ended.
    pub(super) async fn settle(&self, said: &[Said<'_>], keep: Keep) -> Result<Heard> {
        match self {
            Self::Stream(stream) => stream.settle(said, keep).await,
            Self::Queue(store) => {
                let mut heard = Heard::default();
                // The store answers by event: each is named once.
                for round in rounds(said, |said| said.lease.id()) {
                    let settlement = |said: &&Said<'_>| Settlement {
                        lease: said.lease.clone(),
                        verdict: said.verdict.clone(),
                    };
                    let settled =
                        store.settle(&round.iter().map(settlement).collect::<Vec<_>>(), keep).await?;
                    if settled.lost.is_empty() && settled.busy.is_empty() {
                        continue;
                    }
                    let leases: HashMap<Uuid, &Lease> =
                        round.iter().map(|said| (said.lease.id(), said.lease)).collect();
                    let lease = |id: &Uuid| leases.get(id).map(|lease| Lease::clone(lease));
                    heard.lost.extend(settled.lost.iter().filter_map(lease));
                    heard.busy.extend(settled.busy.iter().filter_map(lease));
                }
                Ok(heard)
            }
        }
    }

    /// Whether an event may be dispatched now, as far as this process knows without asking.
    pub(super) fn may_dispatch(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.is_alive(),
            Self::Queue(_) => true,
        }
    }

    /// The stream, if it is one.
    pub(super) fn stream(&self) -> Option<&Arc<StreamFeed>> {
        match self {
            Self::Stream(stream) => Some(stream),
            Self::Queue(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::store::{MemoryStore, WorkerId};

    /// A lease ended and its event was claimed once more: of both ends one is to be written, and they are said at once.
    #[tokio::test]
    async fn re3_the_end_of_a_new_lease_counts_beside_that_of_the_old_one() {
        let store = Arc::new(MemoryStore::new());
        store.insert(&[Event::json("t", &0).unwrap().build().unwrap()]).await.unwrap();
        let feed = Feed::Queue(store);
        let claim = |length| Claim::by(WorkerId::new("w").unwrap()).lease(length);
        let mut leases = Vec::new();
        for length in [Duration::ZERO, Duration::from_secs(60)] {
            let fed = feed.claim(&claim(length)).await.unwrap();
            leases.push(fed.events[0].lease.clone());
        }
        let verdict = Verdict::Delivered;
        let said = leases.iter().map(|lease| Said { lease, verdict: &verdict, behind: false });
        let heard = feed.settle(&said.collect::<Vec<_>>(), Keep::Delivered).await.unwrap();
        assert_eq!(heard.lost.into_iter().collect::<Vec<_>>(), leases[..1]);
        assert!(heard.busy.is_empty());
    }
}
