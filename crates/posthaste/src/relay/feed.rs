//! The feed: where a relay's events come from and where it says how they ended. Rows are leased one by one from a queue;
//! of a stream the relay owns lanes.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::order::Turn;
use super::stream::StreamFeed;
use crate::error::Result;
use crate::event::Event;
use crate::store::{
    Buried, Claim, Claimed, Extended, Keep, Lease, Mark, Settled, Settlement, Store, Verdict,
};

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

impl Feed {
    /// The next events.
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Fed> {
        match self {
            Self::Stream(stream) => stream.claim(claim).await,
            Self::Queue(store) => {
                let batch = store.claim(claim).await?;
                let event = |Claimed { event, lease, created_at }| FedEvent {
                    event: Arc::new(event),
                    lease,
                    created_at,
                    turn: None,
                };
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
    pub(super) async fn settle(&self, said: &[Said<'_>], keep: Keep) -> Result<Settled> {
        match self {
            Self::Stream(stream) => stream.settle(said, keep).await,
            Self::Queue(store) => {
                let settlement =
                    |said: &Said<'_>| Settlement { lease: said.lease.clone(), verdict: said.verdict.clone() };
                store.settle(&said.iter().map(settlement).collect::<Vec<_>>(), keep).await
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
