//! Presence and leadership: the relay's session with the database.
//!
//! While the session lives, the database knows the relay: should it die, others end its leases at once instead
//! of waiting for them (where the database can tell). Where only one relay is to be active, the session holds
//! the lock that says which; the others stand by and try again every second.
//!
//! A relay that loses its session dispatches nothing four seconds after the last sign that it had it. One that
//! takes over waits as long before it begins, also if nothing is leased: until the one before has found out, it
//! goes on leasing. So two never dispatch at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::engine::Engine;
use super::outage::{Doing, Pauses};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Lock, Session, WorkerId};
use crate::telemetry;

/// How often an active relay, or one that wants to be, looks after its session.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often a relay looks after its session where all may work, and for the leases of those that are gone.
const ROUND: Duration = Duration::from_secs(5);
/// How long the database may take to answer before the session is taken for lost.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the one before may go on after the last sign of its session: heartbeat, patience and grace.
const HANDOVER: Duration = Duration::from_secs(4);

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
                pauses.reset();
                engine.set_worker(session.worker());
                let mut keeper = Keeper::new(&engine, session);
                match keeper.keep(&mut drained).await {
                    Ok(()) => return keeper.close().await,
                    Err(error) => engine.outage.say(Doing::KeepingSession, &error),
                }
            }
            Err(error) => engine.outage.say(Doing::KeepingSession, &error),
        }
        engine.set_worker(&plain);
        lead(&engine, false);
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
    /// From when on it may act as the active relay, while it holds the lock.
    leads_from: Option<Instant>,
    /// When it last looked for the leases of those that are gone.
    looked: Option<Instant>,
    looking: Option<JoinHandle<()>>,
}

impl<'e> Keeper<'e> {
    fn new(engine: &'e Arc<Engine>, session: Box<dyn Session>) -> Self {
        Self { engine, session, lived: Instant::now(), leads_from: None, looked: None, looking: None }
    }

    /// Returns when the relay has drained, or with an error when the session is lost.
    async fn keep(&mut self, drained: &mut watch::Receiver<bool>) -> Result<()> {
        let every = if self.engine.settings.single_active { HEARTBEAT } else { ROUND };
        loop {
            let asked = Instant::now();
            let answer = tokio::time::timeout_at(self.lived + every + PATIENCE, self.beat()).await;
            answer.unwrap_or_else(|_| Err(silence()))?;
            // It lived when it was asked; its answer may have taken its time.
            self.lived = asked;
            self.engine.outage.over(Doing::KeepingSession);
            self.look(asked);
            let next = match self.leads_from {
                Some(from) if !self.engine.control.now().leading => from.min(asked + every),
                _ => asked + every,
            };
            tokio::select! {
                _ = drained.changed() => return Ok(()),
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    async fn beat(&mut self) -> Result<()> {
        if !self.engine.settings.single_active {
            return self.session.check().await;
        }
        // Trying for a lock that is held is a check.
        if self.session.try_lock(Lock::Leader).await? {
            let from = *self.leads_from.get_or_insert_with(|| Instant::now() + HANDOVER);
            if Instant::now() >= from {
                lead(self.engine, true);
            }
            return Ok(());
        }
        self.leads_from = None;
        lead(self.engine, false);
        self.session.check().await
    }

    /// Looks for the leases of those that are gone now and then; a beat does not wait for it.
    fn look(&mut self, now: Instant) {
        let due = self.looked.is_none_or(|at| now.duration_since(at) >= ROUND);
        if due && self.looking.as_ref().is_none_or(JoinHandle::is_finished) {
            self.looked = Some(now);
            self.looking = Some(tokio::spawn(end_orphaned_leases(Arc::clone(self.engine))));
        }
    }

    async fn close(self) {
        if let Some(looking) = self.looking {
            let _ = looking.await;
        }
        self.session.close().await;
    }
}

async fn end_orphaned_leases(engine: Arc<Engine>) {
    let ended = match engine.store.absent_workers().await {
        Ok(absent) => engine.store.end_leases_of(&absent).await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(0) => engine.outage.over(Doing::EndingOrphans),
        Ok(leases) => {
            engine.outage.over(Doing::EndingOrphans);
            tracing::info!(table = %engine.table, leases, "the leases of relays that are gone were ended");
            engine.wake.notify_one();
        }
        Err(error) => engine.outage.say(Doing::EndingOrphans, &error),
    }
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
