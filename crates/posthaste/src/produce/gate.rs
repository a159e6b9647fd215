//! The gate between a producer's commit and a relay in the same process.
//!
//! A relay puts its [`HotQueue`] into the gate of its outbox. A transaction that knows its commit asks for
//! slots when it writes: what got a slot is written already leased to that relay and handed over after the
//! commit, without a claim. What got none is an ordinary pending row, for whose sake the relays are woken.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::event::Event;
use crate::store::{Lease, WorkerId};

/// The hot queues of the relays that run on an outbox in this process.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    queues: RwLock<Vec<Arc<HotQueue>>>,
}

impl Gate {
    /// Lets a relay's queue take part.
    pub(crate) fn attach(&self, queue: &Arc<HotQueue>) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(queue));
    }

    /// Takes it out again.
    pub(crate) fn detach(&self, queue: &Arc<HotQueue>) {
        self.queues
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|other| !Arc::ptr_eq(other, queue));
    }

    /// Slots for up to this many events, of the first queue that has any.
    pub(crate) fn reserve(&self, wanted: usize) -> Option<Reservation> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.iter().find_map(|queue| queue.reserve(wanted))
    }

    /// Whether any relay takes part.
    pub(crate) fn has_relay(&self) -> bool {
        !self.queues.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Wakes the claimers of this process; whether there is any.
    pub(crate) fn wake(&self) -> bool {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.iter().for_each(|queue| queue.wake.notify_one());
        !queues.is_empty()
    }
}

/// Where one relay takes events straight from their commit.
#[derive(Debug)]
pub(crate) struct HotQueue {
    worker: RwLock<WorkerId>,
    lease: Duration,
    slots: Arc<Semaphore>,
    open: AtomicBool,
    committed: mpsc::UnboundedSender<HotEvent>,
    wake: Arc<Notify>,
    /// The database's clock less this process's, in microseconds.
    skew: AtomicI64,
}

/// A committed event on its way to the relay; its slot is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct HotEvent {
    pub(crate) event: Arc<Event>,
    pub(crate) lease: Lease,
    /// When it was written, by this process's clock corrected to the database's.
    pub(crate) created_at: OffsetDateTime,
    /// Until when its lease surely lasts.
    pub(crate) leased_until: Instant,
    pub(crate) committed: Instant,
    pub(crate) slot: OwnedSemaphorePermit,
}

impl HotQueue {
    /// A queue of this many slots; its other end hands over no more than that many at once.
    pub(crate) fn new(
        worker: WorkerId,
        lease: Duration,
        slots: usize,
        wake: Arc<Notify>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<HotEvent>) {
        let (committed, receiver) = mpsc::unbounded_channel();
        let queue = Self {
            worker: RwLock::new(worker),
            lease,
            slots: Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS))),
            open: AtomicBool::new(true),
            committed,
            wake,
            skew: AtomicI64::new(0),
        };
        (Arc::new(queue), receiver)
    }

    /// Under which name events are leased from now on.
    pub(crate) fn set_worker(&self, worker: WorkerId) {
        *self.worker.write().unwrap_or_else(PoisonError::into_inner) = worker;
    }

    /// Whether it gives out slots: not while its relay is paused, stopping or without a sink to go to.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }

    /// The database's clock less this process's.
    pub(crate) fn set_skew(&self, skew: time::Duration) {
        self.skew.store(i64::try_from(skew.whole_microseconds()).unwrap_or(0), Ordering::Relaxed);
    }

    fn reserve(self: &Arc<Self>, wanted: usize) -> Option<Reservation> {
        if !self.open.load(Ordering::Acquire) {
            return None;
        }
        let free = self.slots.available_permits().min(wanted);
        let slots = Arc::clone(&self.slots).try_acquire_many_owned(u32::try_from(free).ok()?).ok()?;
        if slots.num_permits() == 0 {
            return None;
        }
        let holder = self.worker.read().unwrap_or_else(PoisonError::into_inner).next_holder();
        Some(Reservation { queue: Arc::clone(self), slots, holder, since: Instant::now() })
    }
}

/// Slots held for events that are about to be written; free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    queue: Arc<HotQueue>,
    slots: OwnedSemaphorePermit,
    holder: Arc<str>,
    since: Instant,
}

impl Reservation {
    /// For how many events.
    pub(crate) fn len(&self) -> usize {
        self.slots.num_permits()
    }

    /// What the rows' leases are marked with.
    pub(crate) fn holder(&self) -> &Arc<str> {
        &self.holder
    }

    /// How long the leases last.
    pub(crate) fn lease(&self) -> Duration {
        self.queue.lease
    }

    /// The database's time now, as well as this process knows it, to the microsecond that databases store.
    pub(crate) fn now(&self) -> OffsetDateTime {
        let now =
            OffsetDateTime::now_utc() + time::Duration::microseconds(self.queue.skew.load(Ordering::Relaxed));
        now.replace_microsecond(now.microsecond()).unwrap_or(now)
    }

    /// One of the slots, for an event that was written with this lease; `None` if all are taken.
    pub(crate) fn take(
        &mut self,
        event: Arc<Event>,
        lease: Lease,
        created_at: OffsetDateTime,
    ) -> Option<Written> {
        let slot = self.slots.split(1)?;
        let leased_until = self.since + self.queue.lease;
        let event = HotEvent { event, lease, created_at, leased_until, committed: self.since, slot };
        Some(Written { queue: Arc::clone(&self.queue), event })
    }
}

/// A leased event whose transaction has not ended yet; dropping it frees its slot.
#[derive(Debug)]
pub(crate) struct Written {
    queue: Arc<HotQueue>,
    event: HotEvent,
}

impl Written {
    /// The event's lease.
    pub(crate) fn lease(&self) -> &Lease {
        &self.event.lease
    }

    /// Whether at least half of its lease is left.
    pub(crate) fn is_fresh(&self) -> bool {
        self.event.leased_until.saturating_duration_since(Instant::now()) >= self.queue.lease / 2
    }

    /// Says where in the table it is, if the database told only now.
    pub(crate) fn set_sequence(&mut self, sequence: i64) {
        self.event.lease.sequence = sequence;
    }

    /// Hands it to the relay after the commit; gives the lease back if the relay takes nothing any more.
    pub(crate) fn hand_over(self) -> Result<(), Lease> {
        let Self { queue, mut event } = self;
        event.committed = Instant::now();
        if !queue.open.load(Ordering::Acquire) {
            return Err(event.lease);
        }
        queue.committed.send(event).map_err(|unsent| unsent.0.lease)
    }
}
