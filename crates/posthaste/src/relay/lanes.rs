//! Lanes: which of a stream's this relay owns.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `lane_lease` | 10 s | how long the lanes of a relay that died stand still where the database cannot tell |
//!
//! The relays that live share the lanes evenly, the ones that came first getting one more where it does not come out
//! even. Every second each says that it lives, and looks; twice a second while lanes change hands, or where there are others and it
//! would not hear of their coming and going. It gives up what is beyond its share, once nothing of it is under way,
//! and takes what is free, up to its share. A relay that stops or is paused gives up everything at once. One that is not
//! heard of for its lease, or whose session the database has not known for some seconds, has lost its lanes to
//! whoever takes them; its fence tells it so.
//!
//! A relay with nothing to do asks with the same statement whether there is something to read: if not, nobody else asks. And
//! when a survey has just seen that there is nothing, it says a second later that it lives.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::engine::Engine;
use super::outage::{Doing, Pauses};
use super::stream::StreamFeed;
use crate::error::Result;
use crate::store::stream::{Beat, Council, Hold, LaneState};
use crate::telemetry;

/// How often it says that it lives.
const EVERY: Duration = Duration::from_secs(1);
/// And while somebody comes or goes: not all lanes are where they are to be, or an owner's session is gone. No sooner does it look
/// at the lanes for a notification.
const HURRIED: Duration = Duration::from_millis(500);
/// How often at least, of a lease.
const PER_LEASE: u32 = 4;
/// The database may not renew a lease before a quarter of it is over: what is surely left after a beat is the rest.
const SURELY: (u32, u32) = (3, 4);
/// How long an owner's session is gone before its lanes are taken: longer than a live one takes to open another.
const ABSENCE: Duration = Duration::from_secs(3);
/// For how much of a lease the reader is asked at most how far it is.
const ASKS: u32 = 3;
/// Where it takes longer than this to find out that there is nothing, whoever polls finds out: the one more rarely if it takes long.
const DEAR: Duration = Duration::from_millis(100);
/// How often to look whether lanes that are given up have nothing under way; nor is there a look more often when called.
const DRAINS: Duration = Duration::from_millis(10);

/// The first look, before anything is claimed: who asks for one pass is to have lanes for it.
pub(super) async fn begin(engine: &Arc<Engine>) -> Option<Keeper> {
    let feed = Arc::clone(engine.feed().await.ok()?.stream()?);
    let mut keeper = Keeper::new(Arc::clone(engine), feed);
    keeper.look(&mut Pauses::new(Arc::clone(&engine.settings.random))).await;
    Some(keeper)
}

/// Owns lanes until the relay has drained; ends at once where the table is a queue.
pub(super) async fn run(engine: Arc<Engine>, begun: Option<Keeper>, mut drained: watch::Receiver<bool>) {
    let mut pauses = Pauses::new(Arc::clone(&engine.settings.random));
    let mut keeper = match begun {
        Some(keeper) => keeper,
        None => match feed(&engine, &mut pauses, &mut drained).await {
            Some(feed) => Keeper::new(Arc::clone(&engine), feed),
            None => return,
        },
    };
    while !*drained.borrow_and_update() {
        let rest = keeper.look(&mut pauses).await;
        let soonest = Instant::now() + DRAINS;
        tokio::select! {
            _ = drained.changed() => {}
            () = keeper.rest(rest) => {}
            () = keeper.engine.lanes_wake.notified() => tokio::time::sleep_until(soonest).await,
        }
    }
    keeper.resign().await;
}

/// The stream's feed, however long the database takes to say that it is one; `None` if it is not.
async fn feed(
    engine: &Engine,
    pauses: &mut Pauses,
    drained: &mut watch::Receiver<bool>,
) -> Option<Arc<StreamFeed>> {
    loop {
        match engine.feed().await {
            Ok(feed) => match feed.stream() {
                Some(feed) => return Some(Arc::clone(feed)),
                None => return None,
            },
            Err(error) => engine.outage.say(Doing::OwningLanes, &error),
        }
        tokio::select! {
            _ = drained.changed() => return None,
            () = tokio::time::sleep(pauses.next()) => {}
        }
    }
}

pub(super) struct Keeper {
    engine: Arc<Engine>,
    feed: Arc<StreamFeed>,
    /// Lanes that are being given up.
    leaving: BTreeSet<u16>,
    /// Since when the sessions of owners are gone.
    absent: HashMap<String, Instant>,
    /// Whether others count on it.
    member: bool,
    /// Who lived at the last look.
    relays: Vec<String>,
    /// Whether everybody has what is theirs, as far as is known.
    settled: bool,
    /// When it last said that it lives.
    said: Instant,
    /// When it last tried to.
    tried: Instant,
    /// Whether there was something to read when that was last asked.
    news: Option<bool>,
    /// Whether it took long to find out.
    dear: bool,
}

impl Keeper {
    pub(super) fn new(engine: Arc<Engine>, feed: Arc<StreamFeed>) -> Self {
        Self {
            engine,
            feed,
            leaving: BTreeSet::new(),
            absent: HashMap::new(),
            member: false,
            relays: Vec::new(),
            settled: false,
            said: Instant::now(),
            tried: Instant::now(),
            news: None,
            dear: false,
        }
    }

    /// Rests so long; and longer where a survey has seen meanwhile that there is nothing to read, once, and no longer than the lease
    /// allows.
    async fn rest(&self, long: Duration) {
        tokio::select! {
            () = tokio::time::sleep(long) => {}
            // Somebody may have come or gone.
            () = self.engine.heard.notified(), if !self.is_alone() => {
                return tokio::time::sleep_until(self.tried + HURRIED.min(long)).await;
            }
        }
        let longest = self.engine.settings.lane_lease / PER_LEASE;
        if let Some(seen) = self.engine.lull.seen().filter(|seen| self.settled && *seen > self.said) {
            tokio::time::sleep_until((seen + long).min(self.said + longest)).await;
        }
    }

    fn is_alone(&self) -> bool {
        self.relays.len() <= 1
    }

    /// Tells other relays to look at the lanes, where the database can: else they see it by themselves.
    async fn tell(&self) {
        if let Err(error) = self.engine.in_time(self.engine.store.notify()).await {
            tracing::debug!(table = %self.engine.table, %error, "other relays could not be told to look at the lanes");
        }
    }

    /// One look; how long to rest after it.
    pub(super) async fn look(&mut self, pauses: &mut Pauses) -> Duration {
        let state = self.engine.control.now();
        let looked = match state.works() || state.stopping && self.member {
            true => self.beat().await,
            false => self.withdraw().await,
        };
        match looked {
            Ok(()) => {
                self.engine.outage.over(Doing::OwningLanes);
                pauses.reset();
                let hears = self.is_alone() || self.engine.hears.load(Ordering::Relaxed);
                let every = if self.settled && hears { EVERY } else { HURRIED };
                match self.leaving.is_empty() {
                    true => every.min(self.engine.settings.lane_lease / PER_LEASE),
                    false => DRAINS,
                }
            }
            Err(error) => {
                self.engine.outage.say(Doing::OwningLanes, &error);
                self.settled = false;
                pauses.next().min(HURRIED)
            }
        }
    }

    async fn beat(&mut self) -> Result<()> {
        let lease = self.engine.settings.lane_lease;
        self.tried = Instant::now();
        let seen = match self.settled && !self.dear {
            true => tokio::time::timeout(lease / ASKS, self.feed.seen()).await.unwrap_or(None),
            false => None,
        };
        let asked = Instant::now();
        let holds = self.feed.holds();
        let beat = Beat { seen: seen.as_ref(), ..self.said(&holds) };
        failpoint!("lanes.due");
        let council = self.engine.in_time(self.feed.stream().beat(&beat)).await?;
        failpoint!("lanes.beaten");
        let came = !std::mem::replace(&mut self.member, true) && council.relays.len() > 1;
        self.said = asked;
        self.feed.lives_until(asked + lease * SURELY.0 / SURELY.1);
        self.heed(&council, asked);
        self.lose(&council, &holds).await;
        self.notice_absent(&council);
        let gone = self.gone();
        let alive: Vec<&str> =
            council.relays.iter().filter(|relay| !gone.contains(relay)).map(String::as_str).collect();
        let share = share(&alive, self.feed.worker().as_str(), council.lanes.len());
        self.give_up(share).await?;
        if !self.engine.control.now().stopping {
            self.take(&council, share, &gone).await?;
        }
        self.feed.set_looked(true);
        telemetry::lanes(&self.engine.table, self.feed.lanes().len());
        self.settled = self.relays == council.relays
            && self.absent.is_empty()
            && council.lanes.iter().all(|lane| !lane.free)
            && self.feed.lanes().len() == share;
        self.relays = council.relays;
        if came {
            self.tell().await;
        }
        Ok(())
    }

    /// What is told beside the lanes: whether there is something to read, and whether the database knows this relay's session.
    fn heed(&mut self, council: &Council, asked: Instant) {
        let was_dear = std::mem::replace(&mut self.dear, council.news.is_some() && asked.elapsed() >= DEAR);
        let was_quiet = self.engine.lull.is_quiet();
        self.engine.lull.set_quiet(council.news == Some(false));
        match council.news {
            Some(false) => self.engine.see_lull(asked),
            // It could not be asked: there is something to be looked after, and nobody else says so.
            None if was_quiet && !was_dear => self.engine.wake.notify_one(),
            // Else the claimer is at it already.
            Some(true) if self.news != Some(true) => self.engine.wake.notify_one(),
            _ => {}
        }
        self.news = council.news.or(self.news);
        let me = self.feed.worker().as_str();
        let mut mine = council.lanes.iter().filter(|lane| lane.owner.as_deref() == Some(me)).peekable();
        match mine.peek().is_some() {
            true if mine.any(|lane| lane.absent) => self.engine.presence.doubt(),
            true => self.engine.presence.confirm(asked),
            false => {}
        }
    }

    fn said<'a>(&'a self, holds: &'a [Hold]) -> Beat<'a> {
        let present = self.engine.worker() != *self.feed.worker();
        Beat { relay: self.feed.worker(), present, holds, lease: self.engine.settings.lane_lease, seen: None }
    }

    /// Lanes that somebody else has taken are forgotten.
    async fn lose(&mut self, council: &Council, holds: &[Hold]) {
        let me = self.feed.worker().as_str();
        let is_mine = |hold: &&Hold| {
            let mut lanes = council.lanes.iter();
            lanes.any(|lane| {
                // One that is renewed is not free: this one was another's by the time it was to be.
                let is_same = lane.lane == hold.lane && lane.fence == hold.fence;
                is_same && lane.owner.as_deref() == Some(me) && !lane.free
            })
        };
        let lost: Vec<u16> = holds.iter().filter(|hold| !is_mine(hold)).map(|hold| hold.lane).collect();
        if !lost.is_empty() {
            self.feed.lose(&lost).await;
        }
    }

    fn notice_absent(&mut self, council: &Council) {
        let now = Instant::now();
        let owners = council.lanes.iter().filter(|lane| lane.absent).filter_map(|lane| lane.owner.clone());
        let since = |owner: String| {
            let since = self.absent.get(&owner).copied().unwrap_or(now);
            (owner, since)
        };
        self.absent = owners.map(since).collect();
    }

    /// Owners whose sessions have been gone for long enough.
    fn gone(&self) -> Vec<String> {
        let gone = self.absent.iter().filter(|(_, since)| since.elapsed() >= ABSENCE);
        gone.map(|(owner, _)| owner.clone()).collect()
    }

    /// Gives up what is beyond the share, once nothing of it is under way.
    async fn give_up(&mut self, share: usize) -> Result<()> {
        let held = self.feed.lanes();
        self.leaving.retain(|lane| held.contains(lane));
        let kept = held.iter().filter(|lane| !self.leaving.contains(lane)).count();
        let beyond: Vec<u16> = held
            .iter()
            .rev()
            .filter(|lane| !self.leaving.contains(lane))
            .take(kept.saturating_sub(share))
            .copied()
            .collect();
        if !beyond.is_empty() {
            self.feed.leave(&beyond).await;
            self.leaving.extend(beyond);
        }
        if self.leaving.is_empty() {
            return Ok(());
        }
        let leaving: Vec<u16> = self.leaving.iter().copied().collect();
        let released = self.engine.in_time(self.feed.release(&leaving)).await?;
        if !released.is_empty() {
            tracing::info!(table = %self.engine.table, lanes = ?released, "lanes were handed over");
            self.leaving.retain(|lane| !released.contains(lane));
            self.tell().await;
        }
        Ok(())
    }

    /// Takes what is free, up to the share.
    async fn take(&mut self, council: &Council, share: usize, gone: &[String]) -> Result<()> {
        let held = self.feed.lanes();
        let wanted = share.saturating_sub(held.len());
        if wanted == 0 {
            return Ok(());
        }
        let me = self.feed.worker().as_str();
        let is_free = |lane: &&LaneState| {
            let owner = lane.owner.as_deref();
            let is_gone = || owner.is_some_and(|owner| owner == me || gone.iter().any(|gone| gone == owner));
            !held.contains(&lane.lane) && (lane.free || is_gone())
        };
        let free: Vec<u16> =
            council.lanes.iter().filter(is_free).take(wanted).map(|lane| lane.lane).collect();
        if free.is_empty() {
            return Ok(());
        }
        let before = self.feed.owned_last();
        let taken = self.engine.in_time(self.feed.stream().take(&self.said(&before), &free, gone)).await?;
        if taken.is_empty() {
            return Ok(());
        }
        failpoint!("lanes.taken");
        self.engine.in_time(self.feed.open(&taken)).await?;
        failpoint!("lanes.opened");
        let lanes: Vec<u16> = taken.iter().map(|hold| hold.lane).collect();
        tracing::info!(table = %self.engine.table, ?lanes, "lanes were taken");
        self.engine.wake.notify_one();
        Ok(())
    }

    /// A relay that does not work owns nothing.
    async fn withdraw(&mut self) -> Result<()> {
        if !self.member {
            return Ok(());
        }
        self.feed.set_looked(false);
        let (asked, lease) = (Instant::now(), self.engine.settings.lane_lease);
        self.give_up(0).await?;
        let holds = self.feed.holds();
        if holds.is_empty() {
            self.engine.in_time(self.feed.stream().leave(self.feed.worker())).await?;
            failpoint!("lanes.left");
            self.member = false;
            telemetry::lanes(&self.engine.table, 0);
            if !self.is_alone() {
                self.tell().await;
            }
            return Ok(());
        }
        // What is still under way keeps its lane.
        let council = self.engine.in_time(self.feed.stream().beat(&self.said(&holds))).await?;
        self.feed.lives_until(asked + lease * SURELY.0 / SURELY.1);
        self.lose(&council, &holds).await;
        Ok(())
    }

    /// The end: everything is settled, or is left to whoever takes over.
    async fn resign(mut self) {
        match self.withdraw().await {
            Ok(()) if self.member => {
                tracing::warn!(table = %self.engine.table, lanes = ?self.feed.lanes(), "lanes could not be handed over: what is under way of them is delivered by whoever takes them");
            }
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(table = %self.engine.table, %error, "lanes could not be handed over; they are taken when their lease ends");
            }
        }
    }
}

/// How many of the lanes a relay is to own.
fn share(relays: &[&str], me: &str, lanes: usize) -> usize {
    match relays.iter().position(|relay| *relay == me) {
        None => 0,
        Some(rank) => lanes / relays.len() + usize::from(rank < lanes % relays.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm1_lanes_are_shared_evenly() {
        let relays = ["a", "b", "c"];
        let shares = |lanes| relays.iter().map(|me| share(&relays, me, lanes)).collect::<Vec<_>>();
        assert_eq!(shares(8), [3, 3, 2]);
        assert_eq!(shares(1), [1, 0, 0]);
        assert_eq!(shares(256), [86, 85, 85]);
        assert_eq!(share(&relays, "d", 8), 0, "who is not known has no share");
    }
}
