//! A stream's feed: pages of the lanes that this relay owns, and what is parked of them.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `lane_lease` | 10 s | how long the lanes of a relay that died stand still where the database cannot tell |
//! | `on_dead` | block | an aggregate whose event died waits for an operator rather than go on with a gap |
//! | `unordered_topic` | none | topics whose events wait for nobody |
//!
//! A page is done when each of its events was delivered or parked; the reader moves on past it then, and never looks
//! back. An event that takes long is parked while it runs, so that a crash repeats little. All that is written names the
//! fence of its lane: what is refused is somebody else's by now.
//!
//! What was read and what is parked are changed one at a time: who reads sees everything parked that was said before.
//!
//! | file | what is in it |
//! |---|---|
//! | `state.rs` | what it has in its hands |
//! | `claim.rs` | what is given out next |
//! | `settle.rs` | how events ended |

mod claim;
mod settle;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::crew::Crew;
use super::order::{Key, Order, stored_key};
use super::settings::Settings;
use crate::error::Result;
use crate::event::Event;
use crate::store::stream::{Hold, Park, Seen, Wait};
use crate::store::{Keep, Stream, WorkerId};
use crate::telemetry;
use state::{State, UnderWay};

/// What happens to an aggregate whose event died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnDead {
    /// Its later events wait until an operator replays or discards the dead one.
    #[default]
    Block,
    /// They go on without it.
    GoOn,
}

/// The events of the lanes this relay owns.
pub(super) struct StreamFeed {
    table: Arc<str>,
    stream: Arc<dyn Stream>,
    worker: WorkerId,
    on_dead: HashMap<String, OnDead>,
    unordered: HashSet<String>,
    capacity: u64,
    keep: Keep,
    order: Arc<Order>,
    state: tokio::sync::Mutex<State>,
    /// The lanes, for those who only look.
    owned: Mutex<Owned>,
    began: Instant,
    /// Until when it surely owns its lanes, in milliseconds since it began.
    alive_until: AtomicU64,
    /// Whether it has taken part in sharing the lanes, since it works.
    looked: AtomicBool,
    signals: Signals,
}

/// Whom the feed calls.
pub(super) struct Signals {
    /// There is something to be claimed.
    pub(super) claimer: Arc<Notify>,
    /// Lanes were lost, and may be free.
    pub(super) keeper: Arc<Notify>,
    /// Something is to be carried out while others go on.
    pub(super) crew: Crew,
}

#[derive(Default)]
struct Owned {
    holds: Vec<Hold>,
    /// The lanes it did not hand over, whether it owns them still or not, as it last owned them; without those of which
    /// something may have ended the process of the owner before.
    last: HashMap<u16, Hold>,
}

impl StreamFeed {
    pub(super) fn new(
        table: Arc<str>,
        stream: Arc<dyn Stream>,
        worker: WorkerId,
        settings: &Settings,
        signals: Signals,
    ) -> Self {
        Self {
            table,
            worker,
            on_dead: settings.on_dead.clone(),
            unordered: settings.unordered.clone(),
            capacity: settings.capacity(1) as u64,
            keep: settings.keep(),
            order: Arc::default(),
            state: tokio::sync::Mutex::new(State::new(stream.reader())),
            stream,
            owned: Mutex::default(),
            began: Instant::now(),
            alive_until: AtomicU64::new(0),
            looked: AtomicBool::new(false),
            signals,
        }
    }

    pub(super) fn stream(&self) -> &Arc<dyn Stream> {
        &self.stream
    }

    /// The name under which it owns lanes.
    pub(super) fn worker(&self) -> &WorkerId {
        &self.worker
    }

    fn owned(&self) -> std::sync::MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lanes it owns.
    pub(super) fn lanes(&self) -> Vec<u16> {
        self.owned().holds.iter().map(|hold| hold.lane).collect()
    }

    /// What it owns, however long the database takes over what it was asked.
    pub(super) fn holds(&self) -> Vec<Hold> {
        self.owned().holds.clone()
    }

    /// What it owned last and did not hand over: what is under way of that in the database's eyes is nobody else's.
    pub(super) fn owned_last(&self) -> Vec<Hold> {
        self.owned().last.values().copied().collect()
    }

    /// Whether it surely owns its lanes still.
    pub(super) fn is_alive(&self) -> bool {
        self.began.elapsed().as_millis() < u128::from(self.alive_until.load(Ordering::Acquire))
    }

    /// It was heard of: what it owns lasts until then.
    pub(super) fn lives_until(&self, until: Instant) {
        let until = until.saturating_duration_since(self.began).as_millis();
        self.alive_until.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn has_looked(&self) -> bool {
        self.looked.load(Ordering::Acquire)
    }

    /// Whether the lanes were shared with it taking part: until then nobody knows which are its own.
    pub(super) fn set_looked(&self, looked: bool) {
        self.looked.store(looked, Ordering::Release);
    }

    /// How far it has read, if it has nothing to do and nobody is at it: then whoever says that it lives may ask whether there is
    /// more.
    pub(super) async fn seen(&self) -> Option<Seen> {
        let mut state = self.state.try_lock().ok()?;
        if state.under_way.is_empty() && state.kept.is_none() {
            // Nobody claims while a relay or its only route is paused.
            let lost = state.reader.catch_up().await.ok()?;
            self.lose_in(&mut state, &lost);
        }
        if !state.is_idle() {
            return None;
        }
        let parked = state.has_parked;
        Some(Seen { parked, ..state.reader.seen().await? })
    }

    /// Begins to read lanes that it has taken.
    pub(super) async fn open(&self, holds: &[Hold]) -> Result<()> {
        let mut state = self.state.lock().await;
        state.reader.open(holds).await?;
        state.holds.extend(holds.iter().map(|hold| (hold.lane, *hold)));
        state.unproven.extend(holds.iter().map(|hold| hold.lane));
        state.has_parked = true;
        self.show(&state);
        Ok(())
    }

    /// Forgets lanes that are somebody else's.
    pub(super) async fn lose(&self, lanes: &[u16]) {
        let mut state = self.state.lock().await;
        self.lose_in(&mut state, lanes);
    }

    /// Reads no more of these lanes.
    pub(super) async fn leave(&self, lanes: &[u16]) {
        let mut state = self.state.lock().await;
        state.reader.leave(lanes);
        state.leaving.extend(lanes);
    }

    /// Gives up those of these lanes of which nothing is under way; which.
    pub(super) async fn release(&self, lanes: &[u16]) -> Result<Vec<u16>> {
        let mut state = self.state.lock().await;
        self.give_back_claimed(&mut state, lanes).await?;
        let busy: HashSet<u16> = state.under_way.values().map(|out| out.hold.lane).collect();
        let is_free = |hold: &&Hold| lanes.contains(&hold.lane) && !busy.contains(&hold.lane);
        let free: Vec<u16> = state.holds.values().filter(is_free).map(|hold| hold.lane).collect();
        if free.is_empty() {
            return Ok(Vec::new());
        }
        self.park_kept(&mut state, &free).await?;
        state.reader.finished(&free);
        let lost = state.reader.flush().await?;
        failpoint!("lanes.flushed");
        self.lose_in(&mut state, &lost);
        let free: Vec<Hold> = free.iter().filter_map(|lane| state.holds.get(lane)).copied().collect();
        if !free.is_empty() {
            self.stream.release(&free).await?;
        }
        failpoint!("lanes.released");
        let released: Vec<u16> = free.iter().map(|hold| hold.lane).collect();
        state.lose(&released);
        self.owned().last.retain(|lane, _| !released.contains(lane));
        self.show(&state);
        Ok(released)
    }

    fn lose_in(&self, state: &mut State, lanes: &[u16]) {
        if lanes.is_empty() {
            return;
        }
        tracing::warn!(table = %self.table, ?lanes, "lanes of the stream were lost, to another relay or with a connection; what was under way of them is delivered by whoever takes them next");
        telemetry::lease_lost(&self.table, lanes.len() as u64);
        self.forget(state, lanes);
        self.signals.keeper.notify_one();
    }

    /// Forgets lanes; of what was under way of them, what has not begun does not begin any more.
    fn forget(&self, state: &mut State, lanes: &[u16]) {
        let lost = state.under_way.values().filter(|out| lanes.contains(&out.hold.lane));
        lost.filter_map(|out| self.key(&out.event)).for_each(|key| self.order.forget(key));
        state.lose(lanes);
        self.show(state);
    }

    fn show(&self, state: &State) {
        let mut owned = self.owned();
        let proven = state.holds.iter().filter(|(lane, _)| !state.unproven.contains(lane));
        owned.last.extend(proven.map(|(lane, hold)| (*lane, *hold)));
        owned.holds = state.holds();
    }

    /// What an event is in order with; `None` if with nothing.
    fn key(&self, event: &Event) -> Option<Key> {
        if self.unordered.contains(event.topic()) { None } else { Key::of(event) }
    }

    fn stored_key(&self, event: &Event) -> String {
        stored_key(event, !self.unordered.contains(event.topic()))
    }

    /// Whether what comes later of its aggregate waits for an operator when it is dead.
    fn blocks(&self, event: &Event) -> bool {
        self.key(event).is_some()
            && self.on_dead.get(event.topic()).copied().unwrap_or_default() == OnDead::Block
    }

    fn park(&self, out: &UnderWay, wait: Wait, attempts: u32, error: Option<&str>) -> Park {
        Park {
            hold: out.hold,
            sequence: out.lease.sequence(),
            id: out.event.id(),
            topic: out.event.topic().to_owned(),
            key: self.stored_key(&out.event),
            attempts,
            error: error.map(str::to_owned),
            wait,
        }
    }

    /// How these are given their places among the parked while they are under way: in the order in which they were read.
    fn places(&self, state: &State, sequences: Vec<i64>) -> Vec<Park> {
        let mut under_way: Vec<&UnderWay> =
            sequences.iter().filter_map(|sequence| state.under_way.get(sequence)).collect();
        under_way.sort_by_key(|out| (out.page(), out.lease.sequence()));
        under_way.iter().map(|out| self.park(out, Wait::Running, out.lease.attempt(), None)).collect()
    }

    /// Parks events, some of them while they are under way. Answers with the lanes that were refused.
    async fn park_with_places(&self, state: &mut State, parks: &[Park]) -> Result<Vec<u16>> {
        if parks.is_empty() {
            return Ok(Vec::new());
        }
        let running = parks.iter().filter(|park| park.wait == Wait::Running);
        let running: Vec<i64> = running.map(|park| park.sequence).collect();
        state.maybe_parked.extend(&running);
        state.has_parked = true;
        let refused = self.stream.park(parks).await?;
        failpoint!("park.answered");
        for sequence in &running {
            state.maybe_parked.remove(sequence);
        }
        state.has_places(&running);
        Ok(refused)
    }
}
