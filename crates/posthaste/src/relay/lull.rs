//! A lull: how long nobody has to ask whether there is something to claim, because somebody who looked at the table for another
//! reason has just seen that there is not. The gauges and the relay's word that it lives cost no statement more that way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub(super) struct Lull {
    began: Instant,
    /// When there was nothing, and until when that counts, in microseconds since it began; 0 if it was never so.
    seen: AtomicU64,
    until: AtomicU64,
    /// Whether who last said that the relay lives was told so, too.
    quiet: AtomicBool,
}

impl Lull {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            seen: AtomicU64::new(0),
            until: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
        }
    }

    /// Who asked at this moment was told that there is nothing; nobody else has to ask for so long.
    pub(super) fn see(&self, asked: Instant, long: Duration) {
        self.seen.fetch_max(self.stamp(asked), Ordering::Relaxed);
        self.until.fetch_max(self.stamp(asked + long), Ordering::Relaxed);
    }

    /// Whether who said that the relay lives was told that there is nothing, and that nothing is to be looked after.
    pub(super) fn set_quiet(&self, quiet: bool) {
        self.quiet.store(quiet, Ordering::Relaxed);
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    /// When it was last seen, if ever.
    pub(super) fn seen(&self) -> Option<Instant> {
        self.instant(&self.seen)
    }

    /// Waits for its end.
    pub(super) async fn over(&self) {
        // It may be seen again meanwhile.
        while let Some(until) = self.instant(&self.until).filter(|until| *until > Instant::now()) {
            tokio::time::sleep_until(until).await;
        }
    }

    fn stamp(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_micros()).unwrap_or(u64::MAX)
    }

    fn instant(&self, stamp: &AtomicU64) -> Option<Instant> {
        let stamp = stamp.load(Ordering::Relaxed);
        (stamp > 0).then(|| self.began + Duration::from_micros(stamp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn pr3_a_lull_lasts_as_long_as_it_is_seen() {
        let lull = Lull::new();
        let began = Instant::now();
        lull.over().await;
        assert_eq!((began.elapsed(), lull.seen()), (Duration::ZERO, None), "nobody has seen one");
        tokio::time::sleep(SECOND).await;
        lull.see(Instant::now(), SECOND);
        let longer = async {
            tokio::time::sleep(SECOND / 2).await;
            lull.see(Instant::now(), SECOND);
        };
        tokio::join!(lull.over(), longer);
        assert_eq!(began.elapsed().as_millis(), 2500);
        // An answer that comes late says nothing of now.
        lull.see(began, SECOND);
        assert_eq!(lull.seen(), Some(began + SECOND * 3 / 2));
        lull.over().await;
        assert_eq!(began.elapsed().as_millis(), 2500);
    }
}
