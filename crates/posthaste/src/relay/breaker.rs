//! Breakers: an outage is not a failure of the event.
//!
//! When a sink says it is unavailable, its route rests: its events go back without spending an attempt, and
//! after a pause that grows from one probe to the next a single event is let through. If it arrives, the route
//! is open again. An operator can pause a route, too: then it is the same, but that nothing is let through until
//! somebody ends the pause.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::retry::{Backoff, Random, RetryPolicy};
use crate::telemetry;

/// The breaker of one route.
pub(super) struct Breaker {
    table: Arc<str>,
    route: Arc<str>,
    pauses: Backoff,
    random: Arc<dyn Random>,
    /// Since when an operator has it paused, if so.
    paused: Mutex<Option<Instant>>,
    state: Mutex<State>,
    changed: Arc<watch::Sender<()>>,
}

#[derive(Debug, Clone)]
enum State {
    Working,
    Resting {
        since: Instant,
        until: Instant,
        probes: u32,
        error: String,
        /// One event is under way to find out.
        probing: bool,
    },
}

/// What may go through now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Everything.
    All,
    /// One event, to find out.
    Probe,
    /// Nothing before then.
    After(Duration),
}

impl Breaker {
    pub(super) fn new(
        table: Arc<str>,
        route: Arc<str>,
        (first, longest): (Duration, Duration),
        random: Arc<dyn Random>,
        changed: Arc<watch::Sender<()>>,
        paused: bool,
    ) -> Self {
        telemetry::sink_paused(&table, &route, paused);
        let pauses = Backoff::exponential(first, longest).equal_jitter();
        let paused = Mutex::new(paused.then(Instant::now));
        Self { table, route, pauses, random, paused, state: Mutex::new(State::Working), changed }
    }

    /// An operator pauses it, or ends that.
    pub(super) fn set_paused(&self, paused: bool) {
        let mut since = self.lock_paused();
        if since.is_some() == paused {
            return;
        }
        let words = if paused { "paused: its events wait" } else { "resumed" };
        tracing::info!(table = %self.table, sink = %self.route, "the sink is {words}");
        *since = paused.then(Instant::now);
        let state = self.lock();
        let rests = matches!(&*state, State::Resting { .. });
        telemetry::sink_paused(&self.table, &self.route, paused || rests);
        drop((state, since));
        self.changed.send_replace(());
    }

    /// Whether an operator has paused it.
    pub(super) fn is_paused(&self) -> bool {
        self.lock_paused().is_some()
    }

    /// What may go through, without letting it.
    pub(super) fn peek(&self) -> Admission {
        if let Some(since) = *self.lock_paused() {
            // Nobody knows how long. What is handed back waits no longer than it has lasted, so that little is asked
            // for in vain and little comes late when it ends.
            let (first, longest) = (self.pauses.delay(1, 1.0), self.pauses.delay(u32::MAX, 1.0));
            return Admission::After(since.elapsed().clamp(first.min(longest), longest));
        }
        match &*self.lock() {
            State::Working => Admission::All,
            // Its probe is bound to end; who waits is told when it does.
            State::Resting { probing: true, .. } => Admission::After(self.pauses.delay(1, 1.0)),
            State::Resting { until, .. } => match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Admission::After(left),
                _ => Admission::Probe,
            },
        }
    }

    /// What may go through; a probe is let through once.
    pub(super) fn admit(&self) -> Admission {
        let admission = self.peek();
        if let (Admission::Probe, State::Resting { probing, .. }) = (admission, &mut *self.lock()) {
            *probing = true;
        }
        admission
    }

    /// The sink said it is unavailable, to the probe or to anything else. Of many that fail together the first
    /// counts, and while it rests only the probe.
    pub(super) fn trip(&self, error: &str, probe: bool) {
        let mut state = self.lock();
        let (since, probes) = match &*state {
            State::Working => (Instant::now(), 0),
            State::Resting { since, probes, .. } if probe => (*since, *probes),
            State::Resting { .. } => return,
        };
        let pause = self.pauses.delay(probes + 1, self.random.next());
        if probes == 0 {
            tracing::warn!(table = %self.table, sink = %self.route, error, next_probe = ?pause, "the sink is unavailable: its events wait, no attempt is spent");
            telemetry::sink_paused(&self.table, &self.route, true);
        } else {
            tracing::info!(table = %self.table, sink = %self.route, error, next_probe = ?pause, since = ?since.elapsed(), "the sink is still unavailable");
        }
        *state = State::Resting {
            since,
            until: Instant::now() + pause,
            probes: probes + 1,
            error: error.to_owned(),
            probing: false,
        };
        drop(state);
        self.changed.send_replace(());
    }

    /// The sink took or refused an event: it is there.
    pub(super) fn close(&self) {
        let paused = self.lock_paused();
        let mut state = self.lock();
        if let State::Resting { since, .. } = &*state {
            tracing::info!(table = %self.table, sink = %self.route, after = ?since.elapsed(), "the sink is available again");
            telemetry::sink_paused(&self.table, &self.route, paused.is_some());
            *state = State::Working;
            drop(state);
            drop(paused);
            self.changed.send_replace(());
        }
    }

    /// The probe ended without an answer, as when its event was lost: another may be sent.
    pub(super) fn forget_probe(&self) {
        if let State::Resting { probing, .. } = &mut *self.lock() {
            *probing = false;
        }
        self.changed.send_replace(());
    }

    /// How long it is until the next probe.
    pub(super) fn left(&self) -> Duration {
        match self.peek() {
            Admission::After(left) => left,
            Admission::All | Admission::Probe => Duration::ZERO,
        }
    }

    /// Since when it rests, and why.
    pub(super) fn resting(&self) -> Option<(Duration, String)> {
        match &*self.lock() {
            State::Working => None,
            State::Resting { since, error, .. } => Some((since.elapsed(), error.clone())),
        }
    }

    /// Taken before that of the state, where both are.
    fn lock_paused(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
