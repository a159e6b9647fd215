//! Notifications to relays in other processes, sent outside of any transaction.
//!
//! However many transactions commit, one notification at most is on its way, and one at most is sent in
//! [`PAUSE`]: to send them inside the transactions would make the commits of a whole PostgreSQL cluster wait
//! for each other. A lost one costs a poll interval, so a failure is no more than a line in the log.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::Result;

/// How long to gather before the next one; short beside a poll interval, long beside a commit.
const PAUSE: Duration = Duration::from_millis(5);

/// Nothing to send.
const IDLE: u8 = 0;
/// One is being sent, or its pause runs.
const SENDING: u8 = 1;
/// Something was committed that the next one is for.
const DUE: u8 = 2;

type Notify = dyn Fn() -> Pin<Box<dyn Future<Output = Result<()>> + Send>> + Send + Sync;

/// The notifications of one outbox; clones share them.
#[derive(Clone)]
pub(crate) struct Notifier {
    notify: Arc<Notify>,
    state: Arc<AtomicU8>,
}

impl Notifier {
    /// Notifications that are sent in this way.
    pub(crate) fn new<F>(notify: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Self { notify: Arc::new(move || Box::pin(notify())), state: Arc::default() }
    }

    /// Has a notification sent in the background: at once if there was none lately, else with all others
    /// that are waiting.
    pub(crate) fn schedule(&self) {
        if self.state.swap(DUE, Ordering::AcqRel) != IDLE {
            return;
        }
        let sending = Sending { notifier: self.clone(), ended: false };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(sending.run())),
            Err(_) => tracing::debug!("outside of a tokio runtime no other process is notified"),
        }
    }
}

/// The background task, which ends when nothing is due.
struct Sending {
    notifier: Notifier,
    ended: bool,
}

impl Sending {
    async fn run(mut self) {
        let Notifier { notify, state } = self.notifier.clone();
        while !self.ended {
            // What is committed from here on is for the next one.
            state.swap(SENDING, Ordering::AcqRel);
            if let Err(error) = notify().await {
                tracing::debug!(%error, "other processes were not notified; they find the events when they poll");
            }
            tokio::time::sleep(PAUSE).await;
            self.ended = state.compare_exchange(SENDING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        }
    }
}

/// A task that never ran or was stopped, with its runtime say, leaves the way free for the next.
impl Drop for Sending {
    fn drop(&mut self) {
        if !self.ended {
            self.notifier.state.store(IDLE, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::time::{advance, sleep};

    use super::*;
    use crate::error::{Error, ErrorKind};

    /// A notifier whose sending takes a while, how many were sent, and the most at once.
    fn counting(takes: Duration) -> (Notifier, Arc<AtomicUsize>, Arc<AtomicUsize>) {
        let (sent, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let now = Arc::<AtomicUsize>::default();
        let notifier = Notifier::new({
            let (sent, most) = (Arc::clone(&sent), Arc::clone(&most));
            move || {
                let (sent, most, now) = (Arc::clone(&sent), Arc::clone(&most), Arc::clone(&now));
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    sleep(takes).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    sent.fetch_add(1, Ordering::SeqCst);
                    Err(Error::new(ErrorKind::Unreachable, "nobody is there, and nobody minds"))
                }
            }
        });
        (notifier, sent, most)
    }

    #[tokio::test(start_paused = true)]
    async fn re6_commits_at_once_are_one_notification() {
        let (notifier, sent, _) = counting(Duration::ZERO);
        (0..100).for_each(|_| notifier.schedule());
        sleep(Duration::from_millis(1)).await;
        assert_eq!(sent.load(Ordering::SeqCst), 1, "without waiting");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(sent.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn re6_commits_meanwhile_are_exactly_one_more() {
        let (notifier, sent, most) = counting(Duration::from_millis(20));
        notifier.schedule();
        sleep(Duration::from_millis(10)).await;
        (0..3).for_each(|_| notifier.schedule());
        sleep(Duration::from_millis(12)).await;
        (0..3).for_each(|_| notifier.schedule());
        sleep(Duration::from_secs(1)).await;
        assert_eq!((sent.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (2, 1));
        notifier.schedule();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(sent.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn re6_many_commits_are_one_notification_per_pause() {
        let (notifier, sent, _) = counting(Duration::ZERO);
        for _ in 0..100 {
            notifier.schedule();
            advance(Duration::from_millis(1)).await;
            tokio::task::yield_now().await;
        }
        sleep(Duration::from_secs(1)).await;
        let sent = sent.load(Ordering::SeqCst);
        assert!((10..=21).contains(&sent), "{sent}");
    }

    #[test]
    fn re6_a_runtime_that_ends_or_is_missing_does_not_silence_the_next() -> std::io::Result<()> {
        let (notifier, sent, _) = counting(Duration::from_secs(60));
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        notifier.schedule();
        runtime()?.block_on(async { notifier.schedule() });
        runtime()?.block_on(async {
            notifier.schedule();
            sleep(Duration::from_secs(61)).await;
        });
        assert_eq!(sent.load(Ordering::SeqCst), 1);
        Ok(())
    }
}
