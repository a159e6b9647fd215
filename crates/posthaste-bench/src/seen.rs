//! What contenders report deliveries to: each number once, when it came, and what came again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::sample;

/// Clones share it.
#[derive(Clone)]
pub(crate) struct Seen(Arc<Inner>);

struct Inner {
    began: Instant,
    /// When each number came first, in nanoseconds since it began; 0 for one that has not.
    at: Box<[AtomicU64]>,
    fresh: AtomicU64,
    again: AtomicU64,
    unknown: AtomicU64,
    awaited: AtomicU64,
    reached: Notify,
}

impl Seen {
    /// For the numbers below this.
    pub(crate) fn new(numbers: u64) -> Self {
        let at = (0..numbers).map(|_| AtomicU64::new(0)).collect();
        Self(Arc::new(Inner {
            began: Instant::now(),
            at,
            fresh: AtomicU64::new(0),
            again: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            awaited: AtomicU64::new(u64::MAX),
            reached: Notify::new(),
        }))
    }

    /// For any numbers, which are only counted.
    pub(crate) fn counting() -> Self {
        Self::new(0)
    }

    /// Waits until so many have come, of any numbers.
    pub(crate) async fn counts(&self, count: u64) {
        while self.0.unknown.load(Ordering::Acquire) < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The event with this number was delivered.
    pub(crate) fn number(&self, number: u64) {
        let inner = &*self.0;
        let Some(at) = usize::try_from(number).ok().and_then(|number| inner.at.get(number)) else {
            inner.unknown.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let now = u64::try_from(inner.began.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
        if at.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            inner.again.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let fresh = inner.fresh.fetch_add(1, Ordering::AcqRel) + 1;
        if fresh >= inner.awaited.load(Ordering::Acquire) {
            inner.reached.notify_waiters();
        }
    }

    /// The event with this payload was delivered.
    pub(crate) fn payload(&self, payload: &[u8]) {
        match sample::number_in(payload) {
            Some(number) => self.number(number),
            None => {
                self.0.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// How many different numbers came.
    pub(crate) fn count(&self) -> u64 {
        self.0.fresh.load(Ordering::Acquire)
    }

    /// How many deliveries repeated one before.
    pub(crate) fn again(&self) -> u64 {
        self.0.again.load(Ordering::Acquire)
    }

    /// How many deliveries were of nothing that was to be delivered.
    pub(crate) fn unknown(&self) -> u64 {
        self.0.unknown.load(Ordering::Acquire)
    }

    /// Waits until so many have come, or for so long; whether they have. One waits at a time.
    pub(crate) async fn reaches(&self, count: u64, patience: Duration) -> bool {
        let waiting = async {
            loop {
                let reached = self.0.reached.notified();
                tokio::pin!(reached);
                reached.as_mut().enable();
                self.0.awaited.store(count, Ordering::Release);
                if self.count() >= count {
                    return;
                }
                reached.await;
            }
        };
        tokio::time::timeout(patience, waiting).await.is_ok()
    }

    /// The clock of [`Self::when`].
    pub(crate) fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// When this number came.
    pub(crate) fn when(&self, number: u64) -> Option<Duration> {
        let at = self.0.at.get(usize::try_from(number).ok()?)?.load(Ordering::Acquire);
        (at > 0).then(|| Duration::from_nanos(at))
    }

    /// When the first and the last of all came, and how many there are.
    pub(crate) fn span(&self) -> Option<(Duration, Duration, u64)> {
        let times = self.0.at.iter().map(|at| at.load(Ordering::Acquire)).filter(|at| *at > 0);
        let (first, last, count) =
            times.fold((u64::MAX, 0, 0), |(first, last, count), at| (at.min(first), at.max(last), count + 1));
        (count > 0).then(|| (Duration::from_nanos(first), Duration::from_nanos(last), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_number_counts_once() {
        let seen = Seen::new(3);
        seen.number(0);
        seen.number(0);
        seen.payload(br#"{"n":2,"x":1}"#);
        seen.payload(b"nothing");
        seen.number(3);
        assert_eq!((seen.count(), seen.again(), seen.unknown()), (2, 1, 2));
        assert!(seen.reaches(2, Duration::ZERO).await || seen.count() == 2);
        assert!(!seen.reaches(3, Duration::from_millis(1)).await);
        assert!(seen.when(0).is_some() && seen.when(1).is_none());
        assert!(seen.span().is_some_and(|(first, last, count)| first <= last && count == 2));
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        let seen = Seen::new(1);
        let other = seen.clone();
        let (reached, ()) = tokio::join!(seen.reaches(1, Duration::from_secs(60)), async {
            tokio::task::yield_now().await;
            other.number(0);
        });
        assert!(reached);
    }
}
