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

    /// Says that slots have been given back, or that nothing waits any more.
    pub(super) fn tell(&self) {
        self.freed.notify_one();
    }
}
