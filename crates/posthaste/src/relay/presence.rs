//! Presence and leadership: the relay's session with the database.
//!
//! While the session lives, the database knows the relay: should it die, others end its leases soon instead of
//! waiting for them (`orphans.rs`). Where only one relay is to be active, the session holds
//! the lock that says which; the others stand by and try again every second.
//!
//! Every second it asks whether its connection is there, for which the servers need no statement. Whether the database still knows
//! its lock is seen by the survey or by the word to the lanes, which look at the locks of all; where neither says so, and now and
//! then in any case, the session asks itself, as a pooler may have given its connection to somebody else. The active one of several
//! asks for its lock every second.
//!
//! A relay that loses its session dispatches nothing four seconds after the last sign that it had it. One that
//! takes over waits five before it begins, also if nothing is leased: until the one before has found out, it
//! goes on leasing. So two never dispatch at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::engine::Engine;
use super::outage::{Doing, Pauses};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Lock, Session, WorkerId};
use crate::telemetry;

/// How often it looks after its session.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long it counts that somebody saw the session's lock: less than others need to take the relay for gone.
const WORD: Duration = Duration::from_secs(6);
/// The longest time between two questions to the session itself; they begin with one a heartbeat, as a pooler shows early.
const RAREST: Duration = Duration::from_secs(30);
/// How long the database may take to answer before the session is taken for lost.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the one before may go on after the last sign of its session: heartbeat, patience and grace.
const HANDOVER: Duration = Duration::from_secs(5);

/// What others say of the relay's session who have looked at the database's locks.
pub(super) struct Presence {
    began: Instant,
    /// When its lock was last seen, in milliseconds since it began.
    seen: AtomicU64,
    doubted: Notify,
}

impl Presence {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), seen: AtomicU64::new(0), doubted: Notify::new() }
    }

    /// Who asked at this moment saw the lock.
    pub(super) fn confirm(&self, asked: Instant) {
        let seen = asked.saturating_duration_since(self.began).as_millis();
        self.seen.fetch_max(u64::try_from(seen).unwrap_or(0), Ordering::Relaxed);
    }

    /// Somebody did not: the session is to ask itself, at once.
    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    fn is_seen(&self) -> bool {
        let seen = Duration::from_millis(self.seen.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(seen) < WORD
    }
}

/// Keeps a session until the relay has drained.
pub(super) async fn run(engine: Arc<Engine>, plain: WorkerId, mut drained: watch::Receiver<bool>) {
    let mut pauses = Pauses::new(Arc::clone(&engine.settings.random));
    telemetry::leader(&engine.table, !engine.settings.single_active);
    if engine.settings.single_active {
        tracing::info!(table = %engine.table, "this relay stands by until it is the active one");
    }
    while !*drained.borrow_and_update() {
        match engine.store.session(&plain).await {
            Ok(session) => {
                engine.set_worker(session.worker());
                let mut keeper = Keeper::new(&engine, session);
                match keeper.keep(&mut drained, &mut pauses).await {
                    Ok(()) => return keeper.session.close().await,
                    Err(error) => engine.outage.say(Doing::KeepingSession, &error),
                }
            }
            Err(error) => engine.outage.say(Doing::KeepingSession, &error),
        }
        engine.set_worker(&plain);
        stand_by(&engine);
        tokio::select! {
            _ = drained.changed() => {}
            () = tokio::time::sleep(pauses.next()) => {}
        }
    }
}

struct Keeper<'e> {
    engine: &'e Arc<Engine>,
    session: Box<dyn Session>,
    /// When the session surely lived.
    lived: Instant,
    /// When it said itself that its locks are its own, and how long after that it is asked again.
    checked: Instant,
    check_after: Duration,
    /// From when on it may act as the active relay, while it holds the lock.
    leads_from: Option<Instant>,
}

impl<'e> Keeper<'e> {
    fn new(engine: &'e Arc<Engine>, session: Box<dyn Session>) -> Self {
        let now = Instant::now();
        Self { engine, session, lived: now, checked: now, check_after: HEARTBEAT, leads_from: None }
    }

    /// Returns when the relay has drained, or with an error when the session is lost.
    async fn keep(&mut self, drained: &mut watch::Receiver<bool>, pauses: &mut Pauses) -> Result<()> {
        let mut doubted = false;
        loop {
            let asked = Instant::now();
            let answer = tokio::time::timeout_at(self.lived + HEARTBEAT + PATIENCE, self.beat(doubted)).await;
            answer.unwrap_or_else(|_| Err(silence()))?;
            // It lived when it was asked; its answer may have taken its time.
            self.lived = asked;
            pauses.reset();
            self.engine.outage.over(Doing::KeepingSession);
            let next = match self.leads_from {
                Some(from) if !self.engine.control.now().leading => from.min(asked + HEARTBEAT),
                _ => asked + HEARTBEAT,
            };
            doubted = tokio::select! {
                _ = drained.changed() => return Ok(()),
                () = tokio::time::sleep_until(next) => false,
                () = self.engine.presence.doubted.notified() => true,
            };
        }
    }

    async fn beat(&mut self, doubted: bool) -> Result<()> {
        if !self.engine.settings.single_active {
            return match self.is_check_due(doubted) {
                true => self.check().await,
                false => self.session.ping().await,
            };
        }
        // Trying for a lock that is held is a check, and for one that is not, as good as a ping.
        if self.session.try_lock(Lock::Leader).await? {
            self.engine.stands_by.store(false, Ordering::Relaxed);
            let from = *self.leads_from.get_or_insert_with(|| Instant::now() + HANDOVER);
            if Instant::now() >= from {
                lead(self.engine, true);
            }
            return Ok(());
        }
        self.leads_from = None;
        stand_by(self.engine);
        if self.is_check_due(doubted) { self.check().await } else { Ok(()) }
    }

    /// A worker without a lock on its name has nobody who takes it for gone.
    fn is_check_due(&self, doubted: bool) -> bool {
        let since = self.checked.elapsed();
        let is_known =
            || since < WORD || self.engine.presence.is_seen() || !self.session.worker().is_present();
        doubted || since >= self.check_after || !is_known()
    }

    async fn check(&mut self) -> Result<()> {
        self.checked = Instant::now();
        self.check_after = (self.check_after * 2).min(RAREST);
        self.session.check().await
    }
}

/// Another is the active one, or may be.
fn stand_by(engine: &Engine) {
    engine.stands_by.store(engine.settings.single_active, Ordering::Relaxed);
    lead(engine, false);
    engine.wake.notify_one();
}

/// Makes this relay the active one, or not; where all may work it always is.
fn lead(engine: &Engine, leads: bool) {
    if engine.settings.single_active && engine.control.change(|state| state.leading = leads) {
        telemetry::leader(&engine.table, leads);
        engine.open_or_close_gate();
        tracing::info!(table = %engine.table, "{}", if leads { "this relay is the active one" } else { "this relay stands by" });
    }
}

fn silence() -> Error {
    Error::new(ErrorKind::Unreachable, format!("the relay's session did not answer within {PATIENCE:?}"))
}
