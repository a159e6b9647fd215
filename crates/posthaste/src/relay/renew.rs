//! Lease renewal: whatever waits or runs keeps its lease, and nothing starts whose lease would not outlast its
//! timeout.
//!
//! Every sixth of a lease, the leases that have lost a third of their time are extended in one statement. A
//! lease found lost is marked; who holds the event finds that out before starting it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;
use crate::store::Lease;

/// A lease, and until when it surely lasts.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    /// Milliseconds after the beginning of the relay's time.
    until: AtomicU64,
    lost: AtomicBool,
}

impl Held {
    /// Whether somebody else has the event by now.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// Every lease the relay holds.
pub(super) struct Leases {
    began: Instant,
    length: Duration,
    held: Mutex<Kept>,
}

struct Kept {
    all: Vec<Arc<Held>>,
    /// From how many on those that are settled are swept out.
    sweep_at: usize,
}

impl Leases {
    pub(super) fn new(length: Duration) -> Self {
        Self { began: Instant::now(), length, held: Mutex::new(Kept { all: Vec::new(), sweep_at: 1024 }) }
    }

    /// Keeps these leases, which last until then, for as long as anybody has what this answers with.
    pub(super) fn hold(&self, leases: impl Iterator<Item = (Lease, Instant)>) -> Vec<Arc<Held>> {
        let new: Vec<Arc<Held>> =
            leases.map(|(lease, until)| Arc::new(self.new_held(lease, until))).collect();
        self.keep(&new);
        new
    }

    fn new_held(&self, lease: Lease, until: Instant) -> Held {
        Held { lease, until: AtomicU64::new(self.stamp(until)), lost: AtomicBool::new(false) }
    }

    fn keep(&self, new: &[Arc<Held>]) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.all.len() >= held.sweep_at {
            held.all.retain(|held| Arc::strong_count(held) > 1);
            held.sweep_at = (held.all.len() * 2).max(1024);
        }
        held.all.extend(new.iter().cloned());
    }

    /// Keeps one lease.
    pub(super) fn hold_one(&self, lease: Lease, until: Instant) -> Arc<Held> {
        let held = Arc::new(self.new_held(lease, until));
        self.keep(std::slice::from_ref(&held));
        held
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all.iter().filter(|held| Arc::strong_count(held) > 1).count()
    }

    /// Tells of a lease whether it lasts at least this long from now.
    pub(super) fn lasting(&self, long: Duration) -> impl Fn(&Held) -> bool + use<> {
        let until = self.stamp(Instant::now() + long);
        move |held| held.until.load(Ordering::Acquire) >= until
    }

    /// Extends these leases and marks those that were lost; a busy one lasts as long as it did.
    pub(super) async fn extend(&self, engine: &Engine, held: &[Arc<Held>]) -> Result<()> {
        let leases: Vec<Lease> = held.iter().map(|held| held.lease.clone()).collect();
        let until = self.stamp(Instant::now() + self.length);
        failpoint!("renew.due");
        let extended =
            engine.in_time(async { engine.feed().await?.extend(&leases, self.length).await }).await?;
        failpoint!("renew.answered");
        for held in held {
            if extended.lost.contains(&held.lease.id()) {
                held.lost.store(true, Ordering::Release);
            } else if !extended.busy.contains(&held.lease.id()) {
                held.until.store(until, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Those that have lost a third of their time.
    fn due(&self) -> Vec<Arc<Held>> {
        let fresh = self.stamp(Instant::now() + self.length * 2 / 3);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.all.retain(|held| Arc::strong_count(held) > 1 && !held.is_lost());
        held.all.iter().filter(|held| held.until.load(Ordering::Acquire) < fresh).cloned().collect()
    }

    fn stamp(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Renews until the relay has drained.
pub(super) async fn run(engine: Arc<Engine>, mut drained: watch::Receiver<bool>) {
    /// Rows of one statement.
    const MOST: usize = 1000;
    let every = engine.settings.lease / 6;
    loop {
        tokio::select! {
            _ = drained.changed() => return,
            () = tokio::time::sleep(every) => {}
        }
        for part in engine.leases.due().chunks(MOST) {
            match engine.leases.extend(&engine, part).await {
                Ok(()) => engine.outage.over(Doing::Renewing),
                Err(error) => {
                    engine.outage.say(Doing::Renewing, &error);
                    break;
                }
            }
        }
    }
}
