//! What is given out next: parked events that are due, and the rows of the next page.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashSet;
use tokio::time::Instant;

use super::super::feed::{Fed, FedEvent};
use super::super::order::{Key, Round, Standing, Turn};
use super::StreamFeed;
use super::state::{PageState, Source, State, UnderWay};
use crate::error::Result;
use crate::store::stream::{
    Hold, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Row, Unreadable, Wait,
};
use crate::store::{Buried, Claim, Lease, Topics, exhausted};

/// What a page still has under way after this long, and after as many events more as fit into memory, is parked where it
/// stands.
const STRAGGLES: Duration = Duration::from_secs(1);
/// And after so many times as many events, however quickly they went: a crash repeats no more of them.
const MOST_PASSED: u64 = 4;
/// How often to ask whether anything is parked at all, while nothing parked is due.
const ASK: Duration = Duration::from_secs(1);
/// How often to look for what stands first of its aggregate and is not due, or is claimed and not known here.
pub(super) const REPAIR: Duration = Duration::from_secs(10);
/// How often at least, however long it takes.
const REPAIR_RAREST: Duration = Duration::from_secs(600);
/// How long a page that is on its way is waited for while others may say how events ended: half of the shortest time that a claim
/// has.
const PAGE_COMES: Duration = Duration::from_millis(500);
/// How long a parked event waits whose aggregate has others under way that have not ended yet.
const JOSTLED: Duration = Duration::from_millis(50);

/// What becomes of a row that has been read.
enum Fate {
    GivenOut(Option<Turn>),
    Parked,
}

/// What becomes of the rows of a page.
#[derive(Default)]
struct Fates {
    /// In the order of the rows.
    each: Vec<Fate>,
    parks: Vec<Park>,
    /// The aggregates of which some are under way that have no place: they have to have it before what is parked now.
    overtaken: FxHashSet<Key>,
}

impl StreamFeed {
    /// Parked events that are due, and the next rows of its lanes. Whatever has been claimed or read and could not be given
    /// out, because the database failed in the middle of it or took too long, is given out the next time.
    pub(in super::super) async fn claim(&self, claim: &Claim) -> Result<Fed> {
        self.wait_for_page(claim).await;
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

    /// Waits for a page that is on its way, so that meanwhile it can be said how events ended.
    async fn wait_for_page(&self, claim: &Claim) {
        let coming = {
            let state = self.state.lock().await;
            let reads = state.kept.is_none() && !matches!(claim.topics, Topics::Only(_));
            if reads { state.reader.coming() } else { None }
        };
        if let Some(coming) = coming {
            // Who waits longer than that does so where the connection is given up with whoever stops waiting.
            let _ = tokio::time::timeout(PAGE_COMES, coming).await;
        }
    }

    async fn claim_and_read(&self, state: &mut State, claim: &Claim, fed: &mut Fed) -> Result<()> {
        self.park_stragglers(state).await?;
        self.finish_empty_pages(state).await?;
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
            let page = state.reader.read(left).await?;
            state.keep(page);
            if let Some(errand) = state.reader.errand() {
                self.signals.crew.go(errand).wait().await;
            }
        }
        self.take_page(state, left, fed).await?;
        self.prove(state);
        Ok(())
    }

    /// What the owners before had under way of some lanes has been read, and parked as suspect: from now on what is under way
    /// of them is this relay's own. A suspect that is only read is known to nobody but the note, which goes when a lane is
    /// gone on with.
    fn prove(&self, state: &mut State) {
        let State { unproven, reader, kept, .. } = state;
        let before = unproven.len();
        let suspects = kept.iter().flat_map(|page| &page.rows).filter(|row| row.suspect);
        let kept: HashSet<u16> = suspects.map(|row| row.hold.lane).collect();
        unproven.retain(|lane| reader.has_suspects(*lane) || kept.contains(lane));
        if unproven.len() < before {
            self.show(state);
        }
    }

    /// Parked events that were claimed and not given out go back: their lanes are given up.
    pub(super) async fn give_back_claimed(&self, state: &mut State, lanes: &[u16]) -> Result<()> {
        let of_them = |event: &FedEvent| {
            state.under_way.get(&event.lease.sequence()).filter(|out| lanes.contains(&out.hold.lane))
        };
        let verdict = ParkedVerdict::Released { after: Duration::ZERO };
        let end = |out: &UnderWay| ParkedEnd {
            hold: out.hold,
            sequence: out.lease.sequence(),
            verdict: verdict.clone(),
        };
        let ends: Vec<ParkedEnd> = state.claimed.iter().filter_map(of_them).map(end).collect();
        if !ends.is_empty() {
            let lost = self.stream.settle_parked(&ends, self.keep).await?;
            let ended: Vec<i64> = ends.iter().map(|end| end.sequence).collect();
            state.claimed.retain(|event| !ended.contains(&event.lease.sequence()));
            state.end(&ended);
            self.lose_in(state, &lost);
        }
        if state.unsure {
            let holds: Vec<Hold> = lanes.iter().filter_map(|lane| state.holds.get(lane)).copied().collect();
            self.give_back_unknown(state, &holds).await?;
        }
        Ok(())
    }

    /// Parks what takes long, so that its page is done.
    async fn park_stragglers(&self, state: &mut State) -> Result<()> {
        let kept = state.kept.as_ref().map(|page| page.number);
        let straggles = |page: &PageState| {
            let passed = state.given - page.given;
            let long = page.read.elapsed() >= STRAGGLES && passed >= self.capacity;
            page.left > 0 && (long || passed >= self.capacity.saturating_mul(MOST_PASSED))
        };
        let slow = state.pages.iter().filter(|(number, page)| Some(**number) != kept && straggles(page));
        let slow: Vec<u64> = slow.map(|(number, _)| *number).collect();
        if slow.is_empty() {
            return Ok(());
        }
        let running = |out: &&UnderWay| matches!(out.source, Source::Page(number) if slow.contains(&number));
        let stragglers = state.under_way.values().filter(running).map(|out| out.lease.sequence()).collect();
        let parks = self.places(state, stragglers);
        let lost = self.park_with_places(state, &parks).await?;
        self.lose_in(state, &lost);
        Ok(())
    }

    /// Tells the reader of pages of which nothing is left.
    async fn finish_empty_pages(&self, state: &mut State) -> Result<()> {
        let empty = state.finished_without(std::iter::empty());
        if empty.is_empty() {
            return Ok(());
        }
        let lost = state.reader.settle(&[], &empty, self.keep).await?;
        state.pages.retain(|number, _| !empty.contains(number));
        self.lose_in(state, &lost);
        Ok(())
    }

    async fn claim_parked(&self, state: &mut State, claim: &Claim, fed: &mut Fed) -> Result<()> {
        let (staying, holds) = (state.staying(), state.coming_up());
        fed.more |= holds.len() < staying.len();
        let request = ParkedClaim {
            holds: &holds,
            limit: claim.limit,
            suspects: !state.has_suspect(),
            topics: &claim.topics,
            attempts: &claim.attempts,
        };
        if state.repaired.elapsed() >= state.repair_after {
            self.repair(state, &staying).await?;
        } else if state.unsure {
            self.give_back_unknown(state, &staying).await?;
        }
        state.unsure = true;
        let parked = self.stream.claim_parked(&request).await?;
        if parked.is_empty() && state.asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            let lanes: Vec<u16> = state.holds.keys().copied().collect();
            state.has_parked = self.stream.has_parked(&lanes).await?;
            state.asked = Some(Instant::now());
        }
        let holder = self.worker.next_holder();
        let (mut ends, mut given_out, mut buried) = (Vec::new(), Vec::new(), Vec::new());
        let mut jostled = FxHashSet::default();
        for parked in parked {
            let verdict = match &parked.event {
                Err(reason) => dead(&parked, reason.clone(), false),
                Ok(event) if parked.spent => {
                    let error = exhausted(parked.suspect, parked.last_error.clone());
                    dead(&parked, error, self.blocks(event))
                }
                Ok(event) => match self.key(event).map(|key| self.turn_of(&parked, key, &mut jostled)) {
                    Some(None) => ParkedVerdict::Released { after: JOSTLED },
                    joined => {
                        failpoint!("parked.claimed");
                        given_out.push((parked, joined.flatten()));
                        continue;
                    }
                },
            };
            if let ParkedVerdict::Dead { error, .. } | ParkedVerdict::Spent { error, .. } = &verdict {
                let Parked { id, sequence, topic, .. } = &parked;
                buried.push(Buried {
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
            false => self.stream.settle_parked(&ends, self.keep).await?,
        };
        state.unsure = false;
        fed.buried.append(&mut buried);
        for (parked, turn) in given_out {
            Self::give_out(state, &holder, parked, turn);
        }
        self.lose_in(state, &lost);
        Ok(())
    }

    /// The turn of a parked event; `None` if it has to wait, and so do those behind it, even if the others have ended by now.
    fn turn_of(&self, parked: &Parked, key: Key, jostled: &mut FxHashSet<Key>) -> Option<Turn> {
        let mut round = self.order.round();
        let (turn, standing) = round.join(key);
        if must_wait(parked, standing) || jostled.contains(&key) {
            jostled.insert(key);
            // Were more to join the others, it might never come to its turn.
            round.wait(turn);
            return None;
        }
        Some(turn)
    }

    /// Looks after what nobody else does. It may take long where much is parked, and not come to its end in the time that a
    /// claim has: then it is done more rarely, and everything else goes on.
    async fn repair(&self, state: &mut State, holds: &[Hold]) -> Result<()> {
        state.repaired = Instant::now();
        state.repair_after = (state.repair_after * 2).min(REPAIR_RAREST);
        // A claim that was not waited for may have been carried out after the next one.
        self.give_back_unknown(state, holds).await?;
        let began = Instant::now();
        match self.stream.repair(holds).await {
            Ok(()) => state.repair_after = (began.elapsed() * 100).clamp(REPAIR, REPAIR_RAREST),
            Err(error) => {
                tracing::warn!(table = %self.table, %error, "parked events could not be looked over")
            }
        }
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
            let lost = self.stream.settle_parked(&ends, self.keep).await?;
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

    /// Gives out rows of the page that was read, as many as there is room for, and parks those that are not to be delivered
    /// now. Until that is done they are kept.
    async fn take_page(&self, state: &mut State, room: u32, fed: &mut Fed) -> Result<()> {
        let Some(page) = &mut state.kept else { return Ok(()) };
        let lost = std::mem::take(&mut page.lost);
        self.lose_in(state, &lost);
        let Some(page) = &state.kept else { return Ok(()) };
        let (number, taken) = (page.number, page.rows.len().min(room as usize));
        fed.more |= page.more || taken < page.rows.len();
        let rows = &page.rows[..taken];
        let blocked = self.blocked_of(state.has_parked, rows).await?;
        let mut fates = self.decide(rows, blocked);
        // Those under way come first, in their order.
        let is_overtaken = |key: &Key| fates.overtaken.contains(key);
        let is_ahead =
            |out: &&UnderWay| out.page().is_some() && self.key(&out.event).as_ref().is_some_and(is_overtaken);
        let ahead = match fates.overtaken.is_empty() {
            true => Vec::new(),
            false => state.under_way.values().filter(is_ahead).map(|out| out.lease.sequence()).collect(),
        };
        let mut parks = self.places(state, ahead);
        parks.append(&mut fates.parks);
        let lost = self.park_with_places(state, &parks).await?;
        failpoint!("page.placed");
        // Nothing is awaited until what was taken out of the page is under way.
        let Some(page) = &mut state.kept else { return Ok(()) };
        let rows: Vec<Row> = page.rows.drain(..taken).collect();
        if page.rows.is_empty() {
            state.kept = None;
        }
        let holder = self.worker.next_holder();
        let (mut given, mut gone) = (0, 0);
        for (row, fate) in rows.into_iter().zip(fates.each) {
            let Row { hold, sequence, id, created_at, event, .. } = row;
            match (fate, event) {
                (Fate::GivenOut(turn), Ok(event)) if !lost.contains(&hold.lane) => {
                    let lease = Lease { id, sequence, holder: Arc::clone(&holder), attempt: 1 };
                    let source = Source::Page(number);
                    let out = UnderWay { hold, lease: lease.clone(), event: Arc::clone(&event), source };
                    state.under_way.insert(sequence, out);
                    fed.events.push(FedEvent { event, lease, created_at, turn });
                    given += 1;
                    continue;
                }
                (_, Err(Unreadable { topic, reason, .. })) => {
                    fed.buried.push(Buried { id, sequence, topic, reason });
                }
                _ => {}
            }
            gone += 1;
        }
        state.given += given;
        state.leave_page(number, gone);
        self.lose_in(state, &lost);
        failpoint!("page.given_out");
        self.finish_empty_pages(state).await
    }

    /// Parks what was read of these lanes and has not been given out: they are given up.
    pub(super) async fn park_kept(&self, state: &mut State, lanes: &[u16]) -> Result<()> {
        let Some(page) = &state.kept else { return Ok(()) };
        let of_them = |row: &&Row| lanes.contains(&row.hold.lane);
        let rows: Vec<&Row> = page.rows.iter().filter(of_them).collect();
        if rows.is_empty() {
            return Ok(());
        }
        let parks: Vec<Park> = rows.into_iter().map(|row| self.parked_unread(row)).collect();
        state.has_parked = true;
        let lost = self.stream.park(&parks).await?;
        if let Some(page) = &mut state.kept {
            let number = page.number;
            page.rows.retain(|row| !lanes.contains(&row.hold.lane));
            state.leave_page(number, parks.len());
        }
        self.lose_in(state, &lost);
        Ok(())
    }

    /// How a row is parked that this relay has not begun with.
    fn parked_unread(&self, row: &Row) -> Park {
        let (key, error) = match &row.event {
            Err(unreadable) => (row.id.to_string(), Some(unreadable.reason.clone())),
            Ok(event) => (self.stored_key(event), None),
        };
        Park {
            hold: row.hold,
            sequence: row.sequence,
            id: row.id,
            topic: row.topic().to_owned(),
            key,
            attempts: 0,
            error,
            wait: wait_of(row),
        }
    }

    /// What becomes of each of these rows.
    fn decide(&self, rows: &[Row], mut blocked: HashSet<String>) -> Fates {
        let mut fates = Fates { each: Vec::with_capacity(rows.len()), ..Fates::default() };
        let mut round = self.order.round();
        for row in rows {
            let fate = self.fate_of(row, &mut round, &mut blocked, &mut fates);
            fates.each.push(fate);
        }
        fates
    }

    fn fate_of(
        &self,
        row: &Row,
        round: &mut Round<'_>,
        blocked: &mut HashSet<String>,
        fates: &mut Fates,
    ) -> Fate {
        let ordered = row.event.as_ref().ok().and_then(|event| Some((event, self.key(event)?)));
        match (wait_of(row), ordered) {
            (Wait::Behind, None) => return Fate::GivenOut(None),
            (wait @ (Wait::Behind | Wait::Suspect), Some((event, key))) => {
                let (turn, standing) = round.join(key);
                let goes = match standing {
                    Standing::UnderWay => true,
                    Standing::Known | Standing::WaitedFor => {
                        blocked.is_empty() || !blocked.contains(&self.stored_key(event))
                    }
                    Standing::Failed => false,
                };
                if goes && wait == Wait::Behind {
                    return Fate::GivenOut(Some(round.go(turn)));
                }
                if standing == Standing::Known {
                    round.leave(turn);
                } else {
                    fates.overtaken.insert(key);
                    round.wait(turn);
                }
            }
            _ => {}
        }
        let park = self.parked_unread(row);
        if matches!(park.wait, Wait::Suspect | Wait::Behind) {
            blocked.insert(park.key.clone());
        }
        fates.parks.push(park);
        Fate::Parked
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
}

/// Whether a parked event waits for those of its aggregate that are under way. They would stand behind it, but have no place
/// there yet; what nobody waits behind, such as one that was delayed until now, goes behind them instead.
fn must_wait(parked: &Parked, standing: Standing) -> bool {
    match standing {
        Standing::Known => false,
        Standing::UnderWay | Standing::WaitedFor => parked.blocks,
        Standing::Failed => true,
    }
}

/// How a parked event ends that cannot be tried: claimed or, if it is spent, not.
fn dead(parked: &Parked, error: String, blocks: bool) -> ParkedVerdict {
    match parked.spent {
        true => ParkedVerdict::Spent { error, blocks },
        false => ParkedVerdict::Dead { error, blocks },
    }
}

/// Until when a row is parked that is not given out. A suspect was perhaps never begun: no attempt is counted before it is
/// tried by itself.
fn wait_of(row: &Row) -> Wait {
    match &row.event {
        Err(_) => Wait::Dead { blocks: false },
        Ok(_) if row.suspect => Wait::Suspect,
        Ok(_) if row.delayed => Wait::Delay,
        Ok(_) => Wait::Behind,
    }
}
