//! Slots: how many claimed events may be in memory at once. A claim asks for no more than are free.

use std::sync::Arc;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The slots of one relay; clones share them.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    freed: Arc<Notify>,
}

impl Slots {
    pub(super) fn new(all: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(all.min(Semaphore::MAX_PERMITS))), freed: Arc::default() }
    }

    /// Waits until a claim is worth its statement, and takes up to `most` slots: half of what was asked for, or
    /// any at all if nothing is waiting to be dispatched.
    pub(super) async fn take(&self, most: usize, hungry: impl Fn() -> bool) -> OwnedSemaphorePermit {
        loop {
            let freed = self.freed.notified();
            if let Some(taken) = self.take_now(most, &hungry) {
                return taken;
            }
            freed.await;
        }
    }

    /// Up to `most` slots, if a claim is worth its statement now.
    pub(super) fn try_take(&self, most: usize) -> Option<OwnedSemaphorePermit> {
        self.take_now(most, || false)
    }

    fn take_now(&self, most: usize, hungry: impl Fn() -> bool) -> Option<OwnedSemaphorePermit> {
        let free = self.free.available_permits().min(most);
        if free == 0 || free < most.div_ceil(2) && !hungry() {
            return None;
        }
        let wanted = u32::try_from(free).unwrap_or(u32::MAX);
        Arc::clone(&self.free).try_acquire_many_owned(wanted).ok()
    }

    /// Whether a claim of up to `most` waits for more to be free.
    pub(super) fn are_short(&self, most: usize) -> bool {
        self.free.available_permits() < most.div_ceil(2)
    }

    /// Slots that were taken, one for each of so many events.
    pub(super) fn each(mut taken: OwnedSemaphorePermit, events: usize) -> impl Iterator<Item = Slot> {
        let taken = taken.split(events.min(taken.num_permits()));
        let (free, n) = taken.map_or((None, 0), |taken| {
            let all = (Some(Arc::clone(taken.semaphore())), taken.num_permits());
            taken.forget();
            all
        });
        (0..n).map(move |_| Slot::Claimed(Claimed(free.clone())))
    }

    /// Says that slots have been given back, or that nothing waits any more.
    pub(super) fn tell(&self) {
        self.freed.notify_one();
    }
}

/// One event's slot; it is free again when this is dropped.
pub(super) enum Slot {
    /// One of those that producers take for what they write.
    Hot(#[expect(dead_code, reason = "it is dropped with the rest")] OwnedSemaphorePermit),
    Claimed(Claimed),
}

/// A slot of a claimed event.
pub(super) struct Claimed(Option<Arc<Semaphore>>);

impl Slot {
    /// Gives these back. Those of claims, which are many and all of one relay, at once: each by itself would lock the rest.
    pub(super) fn give_back(slots: impl Iterator<Item = Self>) {
        let (mut free, mut n) = (None, 0);
        for slot in slots {
            if let Self::Claimed(mut slot) = slot {
                free = slot.0.take().or(free);
                n += 1;
            }
        }
        if let Some(free) = free {
            free.add_permits(n);
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if let Some(free) = self.0.take() {
            free.add_permits(1);
        }
    }
}
