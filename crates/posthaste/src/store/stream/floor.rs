//! Floors: how a lane is read where the database cannot tell what was committed since it was last asked.
//!
//! Rows come in the order they were inserted, but a transaction may commit late, below what was read before; and what is
//! committed after it, of the same aggregate, must not come first. So every read begins below everything that is unsettled
//! or *may yet be committed*, at the *floor*, and leaves out what it has under way. What lies between has left the index that it
//! goes by; but somebody's old transaction, such as a backup, keeps the entries, and stepping over all of them would take longer
//! and longer.
//!
//! The floor is asked of the database. A row may have got its number some moments before anybody can see it: so the floor rises
//! no higher than the highest row was a while ago. It rises in small steps, by looking at some thousands of rows each time: what
//! was delivered is kept for days, and a new reader begins below all of it. Should a row turn up below the floor nevertheless,
//! because its insert waited for somebody in between, the *sweep* finds it: now and then a read begins below all rows.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use uuid::Uuid;

use super::place::RowId;
use super::{Hold, Page, Reader, Row, Seen};
use crate::error::Result;
use crate::store::Keep;

/// How long until the floor may rise to what was the highest row: longer than an insert takes from getting its number to being
/// seen. No more often is it looked for a higher floor.
const SETTLES: Duration = Duration::from_millis(250);

/// For how long it is looked for it each time; the last look may take longer.
const LOOKS: Duration = Duration::from_millis(20);

/// How many rows are looked at first: mostly one of them is unsettled.
const FEW: u32 = 200;

/// And how many at a time from there on.
const MANY: u32 = 5000;

/// How often a read begins below all rows.
const SWEEP: Duration = Duration::from_secs(1);

/// How much of the time that may take at most, as a divisor.
const SHARE: u32 = 10;

/// How often it is done at least, however long it takes.
const RAREST: Duration = Duration::from_secs(30);

/// How often it is tried to mark rows that were delivered while somebody had them locked.
const TIDY: Duration = Duration::from_secs(1);

/// The statements of a database that is read from a floor.
#[async_trait]
pub(crate) trait Ground: Send + Sync + 'static {
    /// What it remembers between two questions about the floor.
    type Footing: Default + Send;

    /// Up to which sequence these lanes' rows were noted as under way; lanes whose fence is no longer the holder's
    /// are left out.
    async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>>;

    /// The sequences of unsettled rows of these lanes above this one, in order, at most so many.
    async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>>;

    /// The highest row, committed or not; 0 if there is none. `None`: nothing is known of what is there now, and it may be less
    /// than before.
    async fn highest(&self, footing: &mut Self::Footing) -> Result<Option<i64>>;

    /// Up to where no row is unsettled or might be once its transaction commits, of those above the one and up to the other;
    /// but it need not look at more than so many of them. `None` as before.
    async fn look(
        &self,
        footing: &mut Self::Footing,
        above: i64,
        until: i64,
        rows: u32,
    ) -> Result<Option<Look>>;

    /// Those of these rows that are still unsettled, in order; the reader fills in the fence and who is suspect.
    async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>>;

    /// Notes that rows up to these are under way. Answers with what was refused.
    async fn note(&self, notes: &[(Hold, i64)]) -> Result<Vec<Hold>>;

    /// Marks rows as delivered or deletes them; those that are settled already are left alone.
    async fn deliver(&self, rows: &[(Hold, RowId)], keep: Keep) -> Result<Delivered>;

    /// Marks those rows of these lanes that were delivered while somebody had them locked. Whether any are left.
    async fn tidy(&self, _holds: &[Hold]) -> Result<bool> {
        Ok(false)
    }

    /// Notes that nothing is under way. Answers with what was refused.
    async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>>;
}

/// What was seen of the rows above the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Up to it everything is settled.
    pub(crate) settled: i64,
    /// Whether that is because the next one is not.
    pub(crate) unsettled: bool,
}

/// What became of rows that were to be marked as delivered.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    /// Of whom nothing was written.
    pub(crate) refused: Vec<Hold>,
    /// Whether another transaction had some of them locked: that they were delivered is written elsewhere, and they are to
    /// be tidied up.
    pub(crate) shelved: bool,
}

/// Reads lanes from a floor.
pub(crate) struct FloorReader<G: Ground> {
    ground: G,
    /// The fences of the lanes that are read.
    open: BTreeMap<u16, i64>,
    /// Lanes of which no more is to be read.
    leaving: BTreeSet<u16>,
    /// What the owners before had under way.
    left: HashMap<u16, Left>,
    /// Lanes that have a note.
    noted: BTreeSet<u16>,
    /// Lanes that turned out to be somebody else's before they were read.
    lost: BTreeSet<u16>,
    /// Up to it everything is settled.
    floor: i64,
    /// The highest row, and when that was asked.
    highest: Option<(Instant, i64)>,
    footing: G::Footing,
    swept: Option<Swept>,
    /// What was given out and is not settled.
    under_way: BTreeMap<i64, UnderWay>,
    /// Since when rows wait to be tidied up, or when that was last tried.
    shelved: Option<Instant>,
    pages: HashMap<u64, Vec<i64>>,
    last_page: u64,
}

/// An event that was given out.
struct UnderWay {
    lane: u16,
    id: Uuid,
}

/// The last look at everything unsettled.
struct Swept {
    at: Instant,
    took: Duration,
}

/// What the owner of a lane before had under way: rows up to this one that are not settled.
struct Left {
    until: i64,
    /// Whether all of them have been read.
    read: bool,
}

impl Left {
    /// Whether this row, which was just read, is one of them. What appears later, wherever it stands, was committed since.
    fn has(&self, sequence: i64) -> bool {
        !self.read && sequence <= self.until
    }
}

impl<G: Ground> FloorReader<G> {
    /// A reader of no lane.
    pub(crate) fn new(ground: G) -> Self {
        Self {
            ground,
            open: BTreeMap::new(),
            leaving: BTreeSet::new(),
            left: HashMap::new(),
            noted: BTreeSet::new(),
            lost: BTreeSet::new(),
            floor: 0,
            highest: None,
            footing: G::Footing::default(),
            swept: None,
            under_way: BTreeMap::new(),
            shelved: None,
            pages: HashMap::new(),
            last_page: 0,
        }
    }

    /// Above which row the next read begins, and whether that is below all of them.
    fn start(&self, now: Instant) -> (i64, bool) {
        match self.swept {
            Some(Swept { at, took }) if now - at < (took * SHARE).clamp(SWEEP, RAREST) => (self.floor, false),
            _ => (0, true),
        }
    }

    /// Lets the floor rise, as far as to what was the highest row some time ago: everything up to that has its place by now.
    async fn rise(&mut self, now: Instant) -> Result<()> {
        if let Some((at, until)) = self.highest {
            if now - at < SETTLES {
                return Ok(());
            }
            let mut rows = FEW;
            while self.floor < until {
                let looked = self.ground.look(&mut self.footing, self.floor, until, rows).await?;
                let Some(look) = looked else {
                    self.forget_floor();
                    return Ok(());
                };
                self.floor = look.settled.max(self.floor);
                if look.unsettled || now.elapsed() >= LOOKS {
                    break;
                }
                rows = MANY;
            }
        }
        match self.ground.highest(&mut self.footing).await? {
            // What gets its number from now on is above it.
            Some(highest) => self.highest = Some((Instant::now(), highest)),
            None => self.forget_floor(),
        }
        Ok(())
    }

    /// Nothing is known of where everything is settled.
    fn forget_floor(&mut self) {
        (self.floor, self.highest, self.swept) = (0, None, None);
    }

    /// Remembers how far a read came. One that began below all rows and did not come as far as the floor is gone on with.
    fn advance(&mut self, swept: Option<Swept>, fresh: &[i64], full: bool) {
        let reached = if full { fresh.last().copied().unwrap_or(0) } else { i64::MAX };
        if swept.is_some() {
            self.swept = swept.filter(|_| reached >= self.floor);
        }
        for (lane, left) in &mut self.left {
            left.read |= !self.leaving.contains(lane) && left.until <= reached;
        }
    }

    /// Forgets the lanes of which these were held until now. Answers with them and with those that are not read; one that is
    /// held anew by now is not lost.
    fn lose(&mut self, refused: &[Hold]) -> Vec<u16> {
        let is_lost = |hold: &&Hold| self.open.get(&hold.lane).is_none_or(|fence| *fence == hold.fence);
        let lanes: BTreeSet<u16> = refused.iter().filter(is_lost).map(|hold| hold.lane).collect();
        let lanes: Vec<u16> = lanes.into_iter().collect();
        self.close(&lanes);
        lanes
    }

    /// Those of these rows that are under way, in the order in which all who lock rows do so, and what is refused without
    /// asking: of lanes that are not read.
    fn known(&self, delivered: &[(Hold, i64)]) -> (Vec<(Hold, RowId)>, Vec<Hold>) {
        let mut rows = BTreeMap::new();
        let mut refused = Vec::new();
        for (hold, sequence) in delivered {
            match (self.open.get(&hold.lane), self.under_way.get(sequence)) {
                (None, _) => refused.push(*hold),
                // Of a lane that was lost and taken again, the same row may be under way anew.
                (Some(fence), _) if *fence != hold.fence => {}
                // It was said before.
                (Some(_), None) => {}
                (Some(_), Some(out)) => {
                    rows.insert(*sequence, (*hold, RowId { sequence: *sequence, id: out.id }));
                }
            }
        }
        (rows.into_values().collect(), refused)
    }

    /// Marks what was delivered while somebody had it locked.
    async fn tidy(&mut self) -> Result<()> {
        let holds: Vec<Hold> =
            self.open.iter().map(|(lane, fence)| Hold { lane: *lane, fence: *fence }).collect();
        self.shelved = self.ground.tidy(&holds).await?.then(Instant::now);
        Ok(())
    }
}

#[async_trait]
impl<G: Ground> Reader for FloorReader<G> {
    async fn open(&mut self, holds: &[Hold]) -> Result<()> {
        for hold in holds {
            if self.leaving.remove(&hold.lane) {
                self.swept = None;
            }
        }
        let new = |hold: &&Hold| self.open.get(&hold.lane) != Some(&hold.fence);
        let holds: Vec<Hold> = holds.iter().filter(new).copied().collect();
        if holds.is_empty() {
            return Ok(());
        }
        let known: HashMap<u16, Option<i64>> = self.ground.noted(&holds).await?.into_iter().collect();
        self.close(&holds.iter().map(|hold| hold.lane).collect::<Vec<_>>());
        for hold in holds {
            match known.get(&hold.lane) {
                Some(noted) => {
                    self.open.insert(hold.lane, hold.fence);
                    if let Some(until) = *noted {
                        self.left.insert(hold.lane, Left { until, read: false });
                        self.noted.insert(hold.lane);
                    }
                }
                None => {
                    self.lost.insert(hold.lane);
                }
            }
        }
        // The floor is that of all lanes. But what its owner before had marked in a transaction that came to nothing may be below.
        self.swept = None;
        Ok(())
    }

    fn has_suspects(&self, lane: u16) -> bool {
        self.left.get(&lane).is_some_and(|left| !left.read)
    }

    // What is unsettled is seen by itself; and what lies below the floor is seen with it.
    async fn seen(&mut self) -> Option<Seen> {
        let is_left = self.left.values().any(|left| !left.read);
        let idle = self.under_way.is_empty() && self.shelved.is_none() && self.lost.is_empty() && !is_left;
        (idle && self.leaving.is_empty() && !self.open.is_empty()).then(Seen::default)
    }

    fn leave(&mut self, lanes: &[u16]) {
        self.leaving.extend(lanes);
    }

    // Each row is settled by itself.
    fn finished(&mut self, _lanes: &[u16]) {}

    fn close(&mut self, lanes: &[u16]) {
        let lanes: HashSet<u16> = lanes.iter().copied().collect();
        if lanes.is_empty() {
            return;
        }
        self.open.retain(|lane, _| !lanes.contains(lane));
        self.leaving.retain(|lane| !lanes.contains(lane));
        self.left.retain(|lane, _| !lanes.contains(lane));
        self.noted.retain(|lane| !lanes.contains(lane));
        self.lost.retain(|lane| !lanes.contains(lane));
        self.under_way.retain(|_, out| !lanes.contains(&out.lane));
        if self.open.is_empty() {
            self.footing = G::Footing::default();
            self.forget_floor();
        }
        let under_way = &self.under_way;
        self.pages.retain(|_, rows| {
            rows.retain(|sequence| under_way.contains_key(sequence));
            !rows.is_empty()
        });
    }

    async fn read(&mut self, limit: u32) -> Result<Page> {
        let lanes: Vec<u16> = self.open.keys().copied().filter(|lane| !self.leaving.contains(lane)).collect();
        if limit == 0 || lanes.is_empty() {
            let lost = std::mem::take(&mut self.lost).into_iter().collect();
            return Ok(Page { lost, ..Page::default() });
        }
        if self.shelved.is_some_and(|at| at.elapsed() >= TIDY) {
            self.tidy().await?;
        }
        let now = Instant::now();
        self.rise(now).await?;
        let (above, sweep) = self.start(now);
        let under_way = self.under_way.range((Excluded(above), Unbounded)).count();
        let most = limit.saturating_add(u32::try_from(under_way).unwrap_or(u32::MAX));
        let found = self.ground.unsettled(&lanes, above, most).await?;
        let swept = sweep.then(|| Swept { at: now, took: now.elapsed() });
        let fresh = found.iter().copied().filter(|sequence| !self.under_way.contains_key(sequence));
        let mut fresh: Vec<i64> = fresh.collect();
        // What is under way and parked by now is not found, and leaves room for more than are given out.
        let full = found.len() >= most as usize || fresh.len() > limit as usize;
        fresh.truncate(limit as usize);
        let mut rows = if fresh.is_empty() { Vec::new() } else { self.ground.rows(&fresh).await? };
        rows.retain_mut(|row| match self.open.get(&row.hold.lane) {
            Some(fence) => {
                row.hold.fence = *fence;
                row.suspect = self.left.get(&row.hold.lane).is_some_and(|left| left.has(row.sequence));
                true
            }
            None => false,
        });
        rows.sort_by_key(|row| row.sequence);
        let notes: BTreeMap<Hold, i64> = rows.iter().map(|row| (row.hold, row.sequence)).collect();
        let notes: Vec<(Hold, i64)> = notes.into_iter().collect();
        let refused = match notes.is_empty() {
            true => Vec::new(),
            false => {
                failpoint!("page.read");
                let refused = self.ground.note(&notes).await?;
                failpoint!("page.noted");
                refused
            }
        };

        // Nothing is awaited from here on: what is remembered is given out.
        self.advance(swept, &fresh, full);
        self.noted.extend(notes.iter().map(|(hold, _)| hold.lane));
        let mut lost = std::mem::take(&mut self.lost);
        lost.extend(self.lose(&refused));
        rows.retain(|row| !refused.contains(&row.hold));
        let out = |row: &Row| (row.sequence, UnderWay { lane: row.hold.lane, id: row.id });
        self.under_way.extend(rows.iter().map(out));
        let mut number = 0;
        if !rows.is_empty() {
            self.last_page += 1;
            number = self.last_page;
            self.pages.insert(number, rows.iter().map(|row| row.sequence).collect());
        }
        Ok(Page { number, rows, lost: lost.into_iter().collect(), more: full })
    }

    async fn settle(&mut self, delivered: &[(Hold, i64)], pages: &[u64], keep: Keep) -> Result<Vec<u16>> {
        let (rows, mut refused) = self.known(delivered);
        if !rows.is_empty() {
            let done = self.ground.deliver(&rows, keep).await?;
            for (hold, row) in rows {
                if !done.refused.contains(&hold) {
                    self.under_way.remove(&row.sequence);
                }
            }
            if done.shelved {
                self.shelved = Some(Instant::now());
            }
            refused.extend(done.refused);
        }
        for sequence in pages.iter().filter_map(|page| self.pages.remove(page)).flatten() {
            self.under_way.remove(&sequence);
        }
        Ok(self.lose(&refused))
    }

    async fn flush(&mut self) -> Result<Vec<u16>> {
        if self.shelved.is_some() {
            self.tidy().await?;
        }
        let busy: HashSet<u16> = self.under_way.values().map(|out| out.lane).collect();
        // A note from before is kept until all that it says is under way has been read.
        let done = |lane: &u16| !busy.contains(lane) && self.left.get(lane).is_none_or(|left| left.read);
        let done = self.noted.iter().copied().filter(done);
        let done: Vec<Hold> =
            done.filter_map(|lane| self.open.get(&lane).map(|fence| Hold { lane, fence: *fence })).collect();
        if done.is_empty() {
            return Ok(Vec::new());
        }
        let refused = self.ground.clear(&done).await?;
        done.iter().for_each(|hold| {
            self.noted.remove(&hold.lane);
        });
        Ok(self.lose(&refused))
    }
}

#[cfg(test)]
mod tests;
