//! A stream's feed: pages of the lanes that this relay owns, and what is parked of them.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `lane_lease` | 10 s | how long the lanes of a relay that died stand still where the database cannot tell |
//! | `on_dead` | block | an aggregate whose event died waits for an operator rather than go on with a gap |
//! | `unordered_topic` | none | topics whose events wait for nobody |
//!
//! A page is done when each of its events was delivered or parked; the reader moves on past it then, and never looks
//! back. An event that takes long is parked while it runs, so that a crash repeats at most what was read in the
//! last moment. All that is written names the fence of its lane: what is refused is somebody else's by now.
//!
//! What was read and what is parked are changed one at a time: who reads sees everything parked that was said before.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::feed::{Fed, FedEvent, Said};
use super::order::{Key, Order, Standing, Turn, stored_key};
use super::settings::Settings;
use crate::error::Result;
use crate::event::Event;
use crate::store::stream::{
    Hold, Page, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Reader, Row, Wait,
};
use crate::store::{
    Buried, Claim, Extended, Keep, Lease, Settled, Stream, Topics, Verdict, WorkerId, exhausted,
};
use crate::telemetry;

/// What a page still has under way after this long, and after as many events more as fit into memory, is parked where it
/// stands.
const STRAGGLES: Duration = Duration::from_secs(1);
/// How often to ask whether anything is parked at all, while nothing parked is due.
const ASK: Duration = Duration::from_secs(1);
/// How often to look for what stands first of its aggregate and is not due.
const REPAIR: Duration = Duration::from_secs(10);
/// How long a parked event waits whose aggregate has others under way that are not parked yet.
const JOSTLED: Duration = Duration::from_millis(50);

/// What happens to an aggregate whose event died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    straggles_after: u64,
    order: Arc<Order>,
    state: tokio::sync::Mutex<State>,
    /// The lanes, for those who only look.
    lanes: Mutex<Vec<u16>>,
    began: Instant,
    /// Until when it surely owns its lanes, in milliseconds since it began.
    alive_until: AtomicU64,
    /// Whether it has taken part in sharing the lanes, since it works.
    looked: AtomicBool,
}

struct State {
    reader: Box<dyn Reader>,
    holds: BTreeMap<u16, Hold>,
    /// Lanes that are being given up.
    leaving: BTreeSet<u16>,
    /// What is under way and may have been parked where it stands: nobody heard whether it was.
    maybe_parked: HashSet<i64>,
    /// By `seq`, what has been given out and is not settled.
    under_way: HashMap<i64, UnderWay>,
    pages: BTreeMap<u64, PageState>,
    /// A page that was read and has not been dealt with yet.
    kept: Option<Page>,
    /// Parked events that were claimed and have not been given out yet.
    claimed: Vec<FedEvent>,
    /// Whether it is not known what came of a claim of parked events.
    unsure: bool,
    /// How many events of pages were given out.
    given: u64,
    has_parked: bool,
    asked: Option<Instant>,
    repaired: Instant,
}

/// What becomes of a row that has been read.
enum Fate {
    GivenOut(Option<Turn>),
    Parked,
}

struct UnderWay {
    hold: Hold,
    lease: Lease,
    event: Arc<Event>,
    source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Page(u64),
    Parked { suspect: bool },
}

struct PageState {
    left: usize,
    read: Instant,
    /// How many events had been given out with it.
    given: u64,
}

impl State {
    fn holds(&self) -> Vec<Hold> {
        self.holds.values().copied().collect()
    }

    /// Those of which more is to be given out.
    fn staying(&self) -> Vec<Hold> {
        self.holds.values().filter(|hold| !self.leaving.contains(&hold.lane)).copied().collect()
    }

    /// Forgets lanes that are somebody else's by now, and what was under way of them.
    fn lose(&mut self, lanes: &[u16]) {
        self.reader.close(lanes);
        if let Some(page) = &mut self.kept {
            page.rows.retain(|row| !lanes.contains(&row.hold.lane));
        }
        self.holds.retain(|lane, _| !lanes.contains(lane));
        self.leaving.retain(|lane| !lanes.contains(lane));
        let is_lost = |event: &FedEvent| {
            self.under_way.get(&event.lease.sequence()).is_none_or(|out| lanes.contains(&out.hold.lane))
        };
        self.claimed.retain(|event| !is_lost(event));
        let (under_way, pages) = (&mut self.under_way, &mut self.pages);
        under_way.retain(|_, out| {
            let lost = lanes.contains(&out.hold.lane);
            if let (true, Source::Page(number)) = (lost, out.source)
                && let Some(page) = pages.get_mut(&number)
            {
                page.left -= 1;
            }
            !lost
        });
    }

    /// These have ended.
    fn end(&mut self, sequences: &[i64]) {
        for sequence in sequences {
            if let Some(UnderWay { source: Source::Page(number), .. }) = self.under_way.remove(sequence)
                && let Some(page) = self.pages.get_mut(&number)
            {
                page.left -= 1;
            }
        }
    }

    /// These are parked where they stand.
    fn has_places(&mut self, sequences: &[i64]) {
        for sequence in sequences {
            let Some(out) = self.under_way.get_mut(sequence) else { continue };
            if let Some(number) = out.page()
                && let Some(page) = self.pages.get_mut(&number)
            {
                page.left -= 1;
            }
            out.source = Source::Parked { suspect: false };
        }
    }

    /// Pages of which nothing would be left without these.
    fn finished_without(&self, ended: &HashSet<i64>) -> Vec<u64> {
        let mut left: HashMap<u64, usize> =
            self.pages.iter().map(|(number, page)| (*number, page.left)).collect();
        for sequence in ended {
            if let Some(UnderWay { source: Source::Page(number), .. }) = self.under_way.get(sequence) {
                left.entry(*number).and_modify(|left| *left -= 1);
            }
        }
        left.into_iter().filter(|(_, left)| *left == 0).map(|(number, _)| number).collect()
    }

    fn has_suspect(&self) -> bool {
        self.under_way.values().any(|out| out.source == Source::Parked { suspect: true })
    }
}

impl StreamFeed {
    pub(super) fn new(
        table: Arc<str>,
        stream: Arc<dyn Stream>,
        worker: WorkerId,
        settings: &Settings,
    ) -> Self {
        let state = State {
            reader: stream.reader(),
            holds: BTreeMap::new(),
            leaving: BTreeSet::new(),
            maybe_parked: HashSet::new(),
            under_way: HashMap::new(),
            pages: BTreeMap::new(),
            kept: None,
            claimed: Vec::new(),
            unsure: false,
            given: 0,
            has_parked: false,
            asked: None,
            repaired: Instant::now(),
        };
        Self {
            table,
            stream,
            worker,
            on_dead: settings.on_dead.clone(),
            unordered: settings.unordered.clone(),
            straggles_after: settings.capacity(1) as u64,
            order: Arc::default(),
            state: tokio::sync::Mutex::new(state),
            lanes: Mutex::default(),
            began: Instant::now(),
            alive_until: AtomicU64::new(0),
            looked: AtomicBool::new(false),
        }
    }

    pub(super) fn stream(&self) -> &Arc<dyn Stream> {
        &self.stream
    }

    /// The name under which it owns lanes.
    pub(super) fn worker(&self) -> &WorkerId {
        &self.worker
    }

    /// The lanes it owns.
    pub(super) fn lanes(&self) -> Vec<u16> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// What it owns.
    pub(super) async fn holds(&self) -> Vec<Hold> {
        self.state.lock().await.holds()
    }

    /// Begins to read lanes that it has taken.
    pub(super) async fn open(&self, holds: &[Hold]) -> Result<()> {
        let mut state = self.state.lock().await;
        state.reader.open(holds).await?;
        state.holds.extend(holds.iter().map(|hold| (hold.lane, *hold)));
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
        let read = state.kept.iter().flat_map(|page| &page.rows).map(|row| row.hold.lane);
        let busy: HashSet<u16> = state.under_way.values().map(|out| out.hold.lane).chain(read).collect();
        let free: Vec<Hold> = state
            .holds
            .values()
            .filter(|h| lanes.contains(&h.lane) && !busy.contains(&h.lane))
            .copied()
            .collect();
        if free.is_empty() {
            return Ok(Vec::new());
        }
        let released: Vec<u16> = free.iter().map(|hold| hold.lane).collect();
        state.reader.finished(&released);
        let lost = state.reader.flush().await?;
        self.lose_in(&mut state, &lost);
        self.stream.release(&free).await?;
        state.lose(&released);
        self.show(&state);
        Ok(released)
    }

    fn lose_in(&self, state: &mut State, lanes: &[u16]) {
        if lanes.is_empty() {
            return;
        }
        tracing::warn!(table = %self.table, ?lanes, "lanes of the stream are another relay's by now; what was under way of them is delivered by it");
        telemetry::lease_lost(&self.table, lanes.len() as u64);
        state.lose(lanes);
        self.show(state);
    }

    fn show(&self, state: &State) {
        *self.lanes.lock().unwrap_or_else(PoisonError::into_inner) = state.holds.keys().copied().collect();
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

    /// Parked events that are due, and the next rows of its lanes. Whatever has been claimed or read and could not be given
    /// out, because the database failed in the middle of it or took too long, is given out the next time.
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Fed> {
        let mut state = self.state.lock().await;
        let mut fed = Fed::default();
        if !self.has_looked() {
            // Whether the database is there, at least.
            self.stream.has_parked(&[]).await?;
            return Ok(Fed { unready: true, ..fed });
        }
        if state.holds.is_empty() || !self.is_alive() {
            return Ok(fed);
        }
        let read = self.claim_and_read(&mut state, claim, &mut fed).await;
        let room = (claim.limit as usize).saturating_sub(fed.events.len()).min(state.claimed.len());
        fed.events.splice(..0, state.claimed.drain(..room));
        match read {
            Err(error) if fed.events.is_empty() && fed.buried.is_empty() => Err(error),
            Err(_) => Ok(Fed { more: true, ..fed }),
            Ok(()) => Ok(fed),
        }
    }

    async fn claim_and_read(&self, state: &mut State, claim: &Claim, fed: &mut Fed) -> Result<()> {
        self.park_stragglers(state).await?;
        if state.has_parked && state.claimed.is_empty() {
            self.claim_parked(state, claim, fed).await?;
        }
        let claimed = u32::try_from(state.claimed.len()).unwrap_or(u32::MAX);
        let left = claim.limit.saturating_sub(claimed);
        if left == 0 || matches!(claim.topics, Topics::Only(_)) {
            fed.more = true;
            return Ok(());
        }
        if state.kept.is_none() {
            state.kept = Some(state.reader.read(left).await?);
        }
        self.take_page(state, left, fed).await
    }

    /// Parks what takes long, so that its page is done.
    async fn park_stragglers(&self, state: &mut State) -> Result<()> {
        let slow: Vec<u64> = {
            let is_passed = |page: &PageState| state.given - page.given >= self.straggles_after;
            let slow =
                |page: &PageState| page.left > 0 && page.read.elapsed() >= STRAGGLES && is_passed(page);
            let slow = state.pages.iter().filter(|(_, page)| slow(page));
            slow.map(|(number, _)| *number).collect()
        };
        if slow.is_empty() {
            return Ok(());
        }
        let running = |out: &&UnderWay| matches!(out.source, Source::Page(number) if slow.contains(&number));
        let mut stragglers: Vec<&UnderWay> = state.under_way.values().filter(running).collect();
        stragglers.sort_by_key(|out| (out.page(), out.lease.sequence()));
        let parks: Vec<Park> =
            stragglers.iter().map(|out| self.park(out, Wait::Running, out.lease.attempt(), None)).collect();
        state.maybe_parked.extend(parks.iter().map(|park| park.sequence));
        let lost = self.stream.park(&parks).await?;
        parks.iter().for_each(|park| {
            state.maybe_parked.remove(&park.sequence);
        });
        self.lose_in(state, &lost);
        state.has_places(&parks.iter().map(|park| park.sequence).collect::<Vec<_>>());
        state.has_parked = true;
        self.finish_pages(state, &[], &slow, Keep::Delivered).await
    }

    async fn finish_pages(
        &self,
        state: &mut State,
        delivered: &[(Hold, i64)],
        pages: &[u64],
        keep: Keep,
    ) -> Result<()> {
        let lost = state.reader.settle(delivered, pages, keep).await?;
        state.pages.retain(|number, _| !pages.contains(number));
        self.lose_in(state, &lost);
        Ok(())
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

    async fn claim_parked(&self, state: &mut State, claim: &Claim, fed: &mut Fed) -> Result<()> {
        let holds = state.staying();
        let request = ParkedClaim {
            holds: &holds,
            limit: claim.limit,
            suspects: !state.has_suspect(),
            topics: &claim.topics,
        };
        if state.unsure {
            self.give_back_unknown(state, &holds).await?;
        }
        state.unsure = true;
        let parked = self.stream.claim_parked(&request).await?;
        if parked.is_empty() && state.asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            let lanes: Vec<u16> = state.holds.keys().copied().collect();
            state.has_parked = self.stream.has_parked(&lanes).await?;
            if state.has_parked && state.repaired.elapsed() >= REPAIR {
                self.stream.repair(&holds).await?;
                state.repaired = Instant::now();
            }
            state.asked = Some(Instant::now());
        }
        let holder = self.worker.next_holder();
        let (mut ends, mut given_out) = (Vec::new(), Vec::new());
        let mut jostled = HashSet::new();
        for parked in parked {
            let limit = claim.attempts.of(&parked.topic);
            let verdict = match &parked.event {
                Err(reason) => ParkedVerdict::Dead { error: reason.clone(), blocks: false },
                Ok(event) if parked.attempt > limit.max(1) => ParkedVerdict::Dead {
                    error: exhausted(parked.suspect, parked.last_error.clone()),
                    blocks: self.blocks(event),
                },
                Ok(event) => match self.key(event).map(|key| self.order.join(key)) {
                    // And so do those behind it, even if the others have ended by now.
                    Some((turn, standing))
                        if standing == Standing::UnderWay || jostled.contains(&turn.key()) =>
                    {
                        jostled.insert(turn.key());
                        ParkedVerdict::Released { after: JOSTLED }
                    }
                    joined => {
                        given_out.push((parked, joined.map(|(turn, _)| turn)));
                        continue;
                    }
                },
            };
            if let ParkedVerdict::Dead { error, .. } = &verdict {
                let Parked { id, sequence, topic, .. } = &parked;
                fed.buried.push(Buried {
                    id: *id,
                    sequence: *sequence,
                    topic: topic.clone(),
                    reason: error.clone(),
                });
            }
            ends.push(ParkedEnd { hold: parked.hold, sequence: parked.sequence, verdict });
        }
        let lost = match ends.is_empty() {
            true => Vec::new(),
            false => self.stream.settle_parked(&ends, Keep::Delivered).await?,
        };
        state.unsure = false;
        for (parked, turn) in given_out {
            Self::give_out(state, &holder, parked, turn);
        }
        self.lose_in(state, &lost);
        Ok(())
    }

    /// The answer to a claim was lost, or not waited for: what it claimed is not claimed any more.
    async fn give_back_unknown(&self, state: &mut State, holds: &[Hold]) -> Result<()> {
        let claimed = self.stream.claimed(holds).await?;
        let unknown = claimed.into_iter().filter(|(_, sequence)| !state.under_way.contains_key(sequence));
        let verdict = ParkedVerdict::Released { after: Duration::ZERO };
        let ends: Vec<ParkedEnd> =
            unknown.map(|(hold, sequence)| ParkedEnd { hold, sequence, verdict: verdict.clone() }).collect();
        if !ends.is_empty() {
            let lost = self.stream.settle_parked(&ends, Keep::Delivered).await?;
            self.lose_in(state, &lost);
        }
        Ok(())
    }

    fn give_out(state: &mut State, holder: &Arc<str>, parked: Parked, turn: Option<Turn>) {
        let Parked { hold, sequence, id, attempt, suspect, created_at, event: Ok(event), .. } = parked else {
            return;
        };
        let lease = Lease { id, sequence, holder: Arc::clone(holder), attempt };
        let event = Arc::new(event);
        let source = Source::Parked { suspect };
        let out = UnderWay { hold, lease: lease.clone(), event: Arc::clone(&event), source };
        // It may have been parked a moment ago by a settlement that was cut off.
        state.end(&[sequence]);
        state.under_way.insert(sequence, out);
        state.claimed.push(FedEvent { event, lease, created_at, turn });
    }

    /// Gives out the rows of the page that was read, if there is room for it, and parks those that are not to be delivered
    /// now. Until that is done the page is kept.
    async fn take_page(&self, state: &mut State, room: u32, fed: &mut Fed) -> Result<()> {
        let Some(page) = &mut state.kept else { return Ok(()) };
        let lost = std::mem::take(&mut page.lost);
        self.lose_in(state, &lost);
        let Some(page) = &state.kept else { return Ok(()) };
        fed.more |= page.more;
        if page.rows.len() > room as usize {
            fed.more = true;
            return Ok(());
        }
        let blocked = self.blocked_of(state.has_parked, &page.rows).await?;
        let (fates, parks) = self.decide(&page.rows, blocked);
        let lost = match parks.is_empty() {
            true => Vec::new(),
            false => {
                state.has_parked = true;
                self.stream.park(&parks).await?
            }
        };
        let Some(page) = state.kept.take() else { return Ok(()) };
        self.lose_in(state, &lost);
        if page.rows.is_empty() {
            return Ok(());
        }
        let holder = self.worker.next_holder();
        let mut left = 0;
        for (row, fate) in page.rows.into_iter().zip(fates) {
            let Row { hold, sequence, id, topic, created_at, event, .. } = row;
            match (fate, event) {
                (Fate::GivenOut(turn), Ok(event)) if !lost.contains(&hold.lane) => {
                    let lease = Lease { id, sequence, holder: Arc::clone(&holder), attempt: 1 };
                    let event = Arc::new(event);
                    let source = Source::Page(page.number);
                    let out = UnderWay { hold, lease: lease.clone(), event: Arc::clone(&event), source };
                    state.under_way.insert(sequence, out);
                    fed.events.push(FedEvent { event, lease, created_at, turn });
                    left += 1;
                }
                (_, Err(reason)) => fed.buried.push(Buried { id, sequence, topic, reason }),
                _ => {}
            }
        }
        state.given += left as u64;
        state.pages.insert(page.number, PageState { left, read: Instant::now(), given: state.given });
        match left {
            0 => self.finish_pages(state, &[], &[page.number], Keep::Delivered).await,
            _ => Ok(()),
        }
    }

    /// What becomes of each of these rows, and what is to be parked of them.
    fn decide(&self, rows: &[Row], mut blocked: HashSet<String>) -> (Vec<Fate>, Vec<Park>) {
        let mut parks = Vec::new();
        let fate = |row: &Row| {
            let mut park = |key: String, attempts: u32, error: Option<String>, wait: Wait| {
                let Row { hold, sequence, id, topic, .. } = row;
                let (hold, sequence, id) = (*hold, *sequence, *id);
                parks.push(Park { hold, sequence, id, topic: topic.clone(), key, attempts, error, wait });
                Fate::Parked
            };
            let event = match &row.event {
                Ok(event) => event,
                Err(reason) => {
                    return park(row.id.to_string(), 0, Some(reason.clone()), Wait::Dead { blocks: false });
                }
            };
            if row.suspect {
                let key = self.stored_key(event);
                blocked.insert(key.clone());
                // It was begun, as far as anybody knows.
                return park(key, 1, None, Wait::Suspect);
            }
            if row.delayed {
                return park(self.stored_key(event), 0, None, Wait::Delay);
            }
            let Some(key) = self.key(event) else { return Fate::GivenOut(None) };
            let (turn, standing) = self.order.join(key);
            if standing == Standing::Known && !blocked.is_empty() {
                let key = self.stored_key(event);
                if blocked.contains(&key) {
                    return park(key, 0, None, Wait::Behind);
                }
            }
            Fate::GivenOut(Some(turn.unparked()))
        };
        let fates = rows.iter().map(fate).collect();
        (fates, parks)
    }

    /// Which of the aggregates of these rows have events parked.
    async fn blocked_of(&self, has_parked: bool, rows: &[Row]) -> Result<HashSet<String>> {
        if !has_parked {
            return Ok(HashSet::new());
        }
        let keys: HashSet<String> = rows
            .iter()
            .filter_map(|row| row.event.as_ref().ok())
            .filter(|event| self.key(event).is_some())
            .map(|event| self.stored_key(event))
            .collect();
        match keys.is_empty() {
            true => Ok(keys),
            false => self.stream.blocked_among(&keys.into_iter().collect::<Vec<_>>()).await,
        }
    }

    /// Gives up on writing how these ended: their lanes are taken anew, and they are delivered again.
    pub(super) async fn abandon(&self, leases: &[&Lease]) {
        let mut state = self.state.lock().await;
        let lanes =
            leases.iter().filter_map(|lease| state.under_way.get(&lease.sequence())).map(|out| out.hold.lane);
        let lanes: Vec<u16> = lanes.collect();
        state.lose(&lanes);
        self.show(&state);
    }

    /// Which of these are no longer this relay's.
    pub(super) async fn extend(&self, leases: &[Lease]) -> Extended {
        let state = self.state.lock().await;
        let is_held = |lease: &&Lease| {
            state.under_way.get(&lease.sequence()).is_some_and(|out| out.lease.holder() == lease.holder())
        };
        let lost = leases.iter().filter(|lease| !is_held(lease)).map(Lease::id).collect();
        Extended { lost, busy: Vec::new() }
    }

    /// Writes how events ended. What is written twice, because nobody heard that it was, does no harm.
    pub(super) async fn settle(&self, said: &[Said<'_>], keep: Keep) -> Result<Settled> {
        let mut state = self.state.lock().await;
        let mut parks: Vec<(Option<u64>, Park)> = Vec::new();
        let (mut delivered, mut ends) = (Vec::new(), Vec::new());
        let mut ended: HashMap<i64, Uuid> = HashMap::with_capacity(said.len());
        let mut lost = Vec::new();
        for said in said {
            let sequence = said.lease.sequence();
            match state.under_way.get(&sequence) {
                Some(out) if out.lease.holder() == said.lease.holder() => {
                    ended.insert(sequence, out.event.id());
                    if out.page().is_some() && state.maybe_parked.contains(&sequence) {
                        let verdict = self.parked_verdict(&out.event, said.verdict, said.behind);
                        ends.push(ParkedEnd { hold: out.hold, sequence, verdict });
                    }
                    match (out.source, said.verdict) {
                        (Source::Page(_), Verdict::Delivered) => delivered.push((out.hold, sequence)),
                        (Source::Page(_), verdict) => {
                            parks.push((out.page(), self.parked(out, verdict, said.behind)))
                        }
                        (Source::Parked { .. }, verdict) => ends.push(ParkedEnd {
                            hold: out.hold,
                            sequence,
                            verdict: self.parked_verdict(&out.event, verdict, said.behind),
                        }),
                    }
                }
                _ => lost.push(said.lease.id()),
            }
        }
        let ahead = self.ahead_of(&state, &parks, &ended);
        parks.extend(ahead.iter().filter_map(|sequence| {
            let out = state.under_way.get(sequence)?;
            Some((out.page(), self.park(out, Wait::Running, out.lease.attempt(), None)))
        }));
        // Aggregates stand in line in the order in which their events were read.
        parks.sort_by_key(|(page, park)| (*page, park.sequence));
        let parks: Vec<Park> = parks.into_iter().map(|(_, park)| park).collect();
        state.maybe_parked.extend(&ahead);
        let mut refused = Vec::new();
        if !parks.is_empty() {
            refused.append(&mut self.stream.park(&parks).await?);
            state.has_parked = true;
        }
        if !ends.is_empty() {
            refused.append(&mut self.stream.settle_parked(&ends, keep).await?);
        }
        let gone: HashSet<i64> = ended.keys().chain(&ahead).copied().collect();
        let finished = state.finished_without(&gone);
        if !delivered.is_empty() || !finished.is_empty() {
            refused.append(&mut state.reader.settle(&delivered, &finished, keep).await?);
        }
        let theirs = |state: &State, sequence: &i64| {
            state.under_way.get(sequence).is_some_and(|out| refused.contains(&out.hold.lane))
        };
        lost.extend(ended.iter().filter(|(sequence, _)| theirs(&state, sequence)).map(|(_, id)| *id));
        state.end(&ended.keys().copied().collect::<Vec<_>>());
        state.maybe_parked.retain(|sequence| !ended.contains_key(sequence) && !ahead.contains(sequence));
        state.has_places(&ahead);
        state.pages.retain(|number, _| !finished.contains(number));
        self.lose_in(&mut state, &refused);
        Ok(Settled { written: said.len() - lost.len(), lost, busy: Vec::new() })
    }

    /// What is under way before those of these that are parked behind it: it has to have its place before them.
    fn ahead_of(&self, state: &State, parks: &[(Option<u64>, Park)], ended: &HashMap<i64, Uuid>) -> Vec<i64> {
        let behind = parks.iter().filter(|(_, park)| park.wait == Wait::Behind);
        let behind: HashMap<&str, (Option<u64>, i64)> =
            behind.map(|(page, park)| (park.key.as_str(), (*page, park.sequence))).collect();
        if behind.is_empty() {
            return Vec::new();
        }
        let is_ahead = |out: &&UnderWay| {
            let place = (out.page(), out.lease.sequence());
            out.page().is_some()
                && !ended.contains_key(&place.1)
                && behind.get(self.stored_key(&out.event).as_str()).is_some_and(|behind| place < *behind)
        };
        state.under_way.values().filter(is_ahead).map(|out| out.lease.sequence()).collect()
    }

    /// How an event of a page is parked that was not delivered.
    fn parked(&self, out: &UnderWay, verdict: &Verdict, behind: bool) -> Park {
        let attempt = out.lease.attempt();
        match verdict {
            _ if behind => self.park(out, Wait::Behind, attempt - 1, None),
            Verdict::Retry { after, error } => self.park(out, Wait::After(*after), attempt, Some(error)),
            Verdict::Dead { error } => {
                self.park(out, Wait::Dead { blocks: self.blocks(&out.event) }, attempt, Some(error))
            }
            Verdict::Released { after } => self.park(out, Wait::After(*after), attempt - 1, None),
            Verdict::Delivered => self.park(out, Wait::Behind, attempt, None),
        }
    }

    fn parked_verdict(&self, event: &Event, verdict: &Verdict, behind: bool) -> ParkedVerdict {
        match verdict {
            Verdict::Delivered => ParkedVerdict::Delivered,
            _ if behind => ParkedVerdict::Behind,
            Verdict::Retry { after, error } => ParkedVerdict::Retry { after: *after, error: error.clone() },
            Verdict::Dead { error } => {
                ParkedVerdict::Dead { error: error.clone(), blocks: self.blocks(event) }
            }
            Verdict::Released { after } => ParkedVerdict::Released { after: *after },
        }
    }
}

impl UnderWay {
    fn page(&self) -> Option<u64> {
        match self.source {
            Source::Page(number) => Some(number),
            Source::Parked { .. } => None,
        }
    }
}
