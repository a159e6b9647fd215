//! Lease renewal: whatever waits or runs keeps its lease, and nothing starts whose lease would not outlast its
//! timeout.
//!
//! Every sixth of a lease, the leases that have lost a third of their time are extended in one statement. A
//! lease found lost is marked; who holds the event finds that out before starting it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;
use crate::store::Lease;

/// A lease, and until when it surely lasts.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) lease: Lease,
    /// Milliseconds after the beginning of the relay's time.
    until: AtomicU64,
    lost: AtomicBool,
    /// Whether nobody holds it any more.
    ended: AtomicBool,
}

impl Kept {
    /// Whether somebody else has the event by now.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// One of the leases of a claim, which are kept together.
#[derive(Debug, Clone)]
pub(super) struct Held {
    all: Arc<[Kept]>,
    at: usize,
}

impl Deref for Held {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.all[self.at]
    }
}

/// A lease that is renewed for as long as this is there.
#[derive(Debug)]
pub(super) struct Holding(Held);

impl Holding {
    /// The lease, which does not become longer by that.
    pub(super) fn lease(&self) -> Held {
        self.0.clone()
    }
}

impl Deref for Holding {
    type Target = Kept;

    fn deref(&self) -> &Kept {
        &self.0
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
    }
}

/// Every lease the relay holds.
pub(super) struct Leases {
    began: Instant,
    length: Duration,
    held: Mutex<Claims>,
}

/// From how many leases on, claims of which all have ended are swept out.
const SWEEPS: usize = 1024;

/// What was held of each claim is kept until all of it has ended: at most a batch for every event that is in memory, 80 bytes each.
struct Claims {
    all: Vec<Arc<[Kept]>>,
    leases: usize,
    sweep_at: usize,
}

impl Claims {
    fn sweep(&mut self) {
        self.all.retain(|claim| Arc::strong_count(claim) > 1);
        self.leases = self.all.iter().map(|claim| claim.len()).sum();
        self.sweep_at = (self.leases * 2).max(SWEEPS);
    }

    /// What is held, and not lost as far as is known.
    fn held(&self) -> impl Iterator<Item = Held> {
        self.all.iter().flat_map(|all| {
            let is_held = |at: &usize| !all[*at].has_ended() && !all[*at].is_lost();
            (0..all.len()).filter(is_held).map(|at| Held { all: Arc::clone(all), at })
        })
    }
}

impl Leases {
    pub(super) fn new(length: Duration) -> Self {
        let none = Claims { all: Vec::new(), leases: 0, sweep_at: SWEEPS };
        Self { began: Instant::now(), length, held: Mutex::new(none) }
    }

    /// Keeps the leases of a claim, which last until then, each for as long as anybody has what this answers with.
    pub(super) fn hold(&self, leases: impl Iterator<Item = Lease>, until: Instant) -> Vec<Holding> {
        let all: Arc<[Kept]> = leases.map(|lease| self.new_kept(lease, until)).collect();
        self.keep(&all);
        (0..all.len()).map(|at| Holding(Held { all: Arc::clone(&all), at })).collect()
    }

    /// Keeps one lease.
    pub(super) fn hold_one(&self, lease: Lease, until: Instant) -> Holding {
        let all: Arc<[Kept]> = Arc::new([self.new_kept(lease, until)]);
        self.keep(&all);
        Holding(Held { all, at: 0 })
    }

    fn new_kept(&self, lease: Lease, until: Instant) -> Kept {
        Kept {
            lease,
            until: AtomicU64::new(self.stamp(until)),
            lost: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    fn keep(&self, new: &Arc<[Kept]>) {
        let mut claims = self.lock();
        if claims.leases >= claims.sweep_at {
            claims.sweep();
        }
        claims.leases += new.len();
        claims.all.push(Arc::clone(new));
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().held().count()
    }

    /// Tells of a lease whether it lasts at least this long from now.
    pub(super) fn lasting(&self, long: Duration) -> impl Fn(&Kept) -> bool + use<> {
        let until = self.stamp(Instant::now() + long);
        move |held| held.until.load(Ordering::Acquire) >= until
    }

    /// Extends these leases and marks those that were lost; a busy one lasts as long as it did.
    pub(super) async fn extend(&self, engine: &Engine, held: &[Held]) -> Result<()> {
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
    fn due(&self) -> Vec<Held> {
        let fresh = self.stamp(Instant::now() + self.length * 2 / 3);
        let mut claims = self.lock();
        claims.sweep();
        let is_due = |held: &Held| held.until.load(Ordering::Acquire) < fresh;
        claims.held().filter(is_due).collect()
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
