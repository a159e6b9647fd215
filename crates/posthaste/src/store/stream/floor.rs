//! Floors: how a lane is read where the database cannot tell what was committed since it was last asked.
//!
//! Rows come in the order they were inserted, but a transaction may commit late, below what was read before; and what is
//! committed after it, of the same aggregate, must not come first. So every read begins at the lowest unsettled row and
//! leaves out what it has under way: settled rows have left the index that it goes by, so that there is little to step over.
//!
//! Only where stepping over takes long, because somebody's old transaction keeps entries that are gone, it begins for a
//! while at its *floor*: the lowest unsettled row of the last time that it began from below.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Hold, Page, Reader, Row};
use crate::error::Result;
use crate::store::Keep;

/// How long it may take to look at everything unsettled before it is done more rarely.
const LONG: Duration = Duration::from_millis(20);

/// How much of the time it may take then.
const SHARE: u32 = 10;

/// How often it is done at least.
const RAREST: Duration = Duration::from_secs(30);

/// The statements of a database that is read from a floor.
#[async_trait]
pub(crate) trait Ground: Send + Sync + 'static {
    /// Up to which sequence these lanes' rows were noted as under way; lanes whose fence is no longer the holder's
    /// are left out.
    async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>>;

    /// The sequences of unsettled rows of these lanes above this one, in order, at most so many.
    async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>>;

    /// Those of these rows that are still unsettled, in order; the reader fills in the fence and who is suspect.
    async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>>;

    /// Notes that rows up to these are under way. Answers with what was refused.
    async fn note(&self, notes: &[(Hold, i64)]) -> Result<Vec<Hold>>;

    /// Marks rows as delivered or deletes them; those that are settled already are left alone.
    async fn deliver(&self, rows: &[(Hold, i64)], keep: Keep) -> Result<Delivered>;

    /// Notes that nothing is under way. Answers with what was refused.
    async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>>;
}

/// What became of rows that were to be marked as delivered; those of which it says nothing were.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    /// Of whom nothing was written.
    pub(crate) refused: Vec<Hold>,
    /// Rows that another transaction has locked: they are to be tried again.
    pub(crate) busy: Vec<(Hold, i64)>,
}

/// Reads lanes from a floor.
pub(crate) struct FloorReader<G> {
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
    /// Everything below was settled, or not committed, when it was last looked at.
    floor: i64,
    swept: Option<Swept>,
    /// What was given out and is not settled, with its lane.
    under_way: BTreeMap<i64, u16>,
    /// What was delivered and could not be written yet.
    owed: Vec<(Hold, i64)>,
    keep: Keep,
    pages: HashMap<u64, Vec<i64>>,
    last_page: u64,
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
            swept: None,
            under_way: BTreeMap::new(),
            owed: Vec::new(),
            keep: Keep::default(),
            pages: HashMap::new(),
            last_page: 0,
        }
    }

    /// Above which row the next read begins, and whether that is below all of them.
    fn start(&self, now: Instant) -> (i64, bool) {
        match self.swept {
            Some(Swept { at, took }) if took >= LONG && now - at < (took * SHARE).min(RAREST) => {
                (self.floor, false)
            }
            _ => (0, true),
        }
    }

    /// Remembers how far a read came.
    fn advance(&mut self, swept: Option<Swept>, found: &[i64], fresh: &[i64], full: bool) {
        if swept.is_some() {
            self.swept = swept;
            self.floor = found.first().map_or(self.floor, |lowest| lowest - 1);
        }
        let reached = if full { fresh.last().copied().unwrap_or(0) } else { i64::MAX };
        for (lane, left) in &mut self.left {
            left.read |= !self.leaving.contains(lane) && left.until <= reached;
        }
    }

    /// Forgets the lanes of which these were held until now. Answers with all of them.
    fn lose(&mut self, refused: &[Hold]) -> Vec<u16> {
        let ours = refused.iter().filter(|hold| self.open.get(&hold.lane) == Some(&hold.fence));
        let ours: Vec<u16> = ours.map(|hold| hold.lane).collect();
        self.close(&ours);
        let lanes: BTreeSet<u16> = refused.iter().map(|hold| hold.lane).collect();
        lanes.into_iter().collect()
    }

    /// Writes what was delivered, also what could not be written before.
    async fn deliver(&mut self, delivered: &[(Hold, i64)], keep: Keep) -> Result<Vec<u16>> {
        let mut seen = HashSet::new();
        let mut rows: Vec<(Hold, i64)> = self
            .owed
            .iter()
            .chain(delivered)
            .copied()
            .filter(|(_, sequence)| seen.insert(*sequence))
            .collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        // All who lock rows do so in the same order.
        rows.sort_by_key(|(_, sequence)| *sequence);
        let done = self.ground.deliver(&rows, keep).await?;
        let busy: HashSet<i64> = done.busy.iter().map(|(_, sequence)| *sequence).collect();
        for (hold, sequence) in rows {
            // Of a lane that was lost and taken again, the same row may be under way anew.
            if !busy.contains(&sequence) && !done.refused.contains(&hold) {
                self.under_way.remove(&sequence);
            }
        }
        self.owed = done.busy;
        Ok(self.lose(&done.refused))
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
        self.swept = None;
        Ok(())
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
        self.owed.retain(|(hold, _)| !lanes.contains(&hold.lane));
        self.under_way.retain(|_, lane| !lanes.contains(lane));
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
        let now = Instant::now();
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
                row.suspect = self.left.get(&row.hold.lane).is_some_and(|left| row.sequence <= left.until);
                true
            }
            None => false,
        });
        rows.sort_by_key(|row| row.sequence);
        let notes: BTreeMap<Hold, i64> = rows.iter().map(|row| (row.hold, row.sequence)).collect();
        let notes: Vec<(Hold, i64)> = notes.into_iter().collect();
        let refused = if notes.is_empty() { Vec::new() } else { self.ground.note(&notes).await? };

        // Nothing is awaited from here on: what is remembered is given out.
        self.advance(swept, &found, &fresh, full);
        self.noted.extend(notes.iter().map(|(hold, _)| hold.lane));
        let mut lost = std::mem::take(&mut self.lost);
        lost.extend(self.lose(&refused));
        rows.retain(|row| !refused.contains(&row.hold));
        self.under_way.extend(rows.iter().map(|row| (row.sequence, row.hold.lane)));
        let mut number = 0;
        if !rows.is_empty() {
            self.last_page += 1;
            number = self.last_page;
            self.pages.insert(number, rows.iter().map(|row| row.sequence).collect());
        }
        Ok(Page { number, rows, lost: lost.into_iter().collect(), more: full })
    }

    async fn settle(&mut self, delivered: &[(Hold, i64)], pages: &[u64], keep: Keep) -> Result<Vec<u16>> {
        self.keep = keep;
        let refused = self.deliver(delivered, keep).await?;
        let owed: HashSet<i64> = self.owed.iter().map(|(_, sequence)| *sequence).collect();
        for sequence in pages.iter().filter_map(|page| self.pages.remove(page)).flatten() {
            if !owed.contains(&sequence) {
                self.under_way.remove(&sequence);
            }
        }
        Ok(refused)
    }

    async fn flush(&mut self) -> Result<Vec<u16>> {
        let mut refused = self.deliver(&[], self.keep).await?;
        let busy: HashSet<u16> = self.under_way.values().copied().collect();
        // A note from before is kept until all that it says is under way has been read.
        let done = |lane: &u16| !busy.contains(lane) && self.left.get(lane).is_none_or(|left| left.read);
        let done = self.noted.iter().copied().filter(done);
        let done: Vec<Hold> =
            done.filter_map(|lane| self.open.get(&lane).map(|fence| Hold { lane, fence: *fence })).collect();
        if !done.is_empty() {
            let lost = self.ground.clear(&done).await?;
            done.iter().for_each(|hold| {
                self.noted.remove(&hold.lane);
            });
            refused.extend(self.lose(&lost));
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;

    /// A table in memory.
    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Table>>);

    #[derive(Default)]
    struct Table {
        /// Unsettled rows and their lanes.
        rows: BTreeMap<i64, u16>,
        fences: HashMap<u16, i64>,
        noted: HashMap<u16, i64>,
        /// Rows that somebody has locked.
        locked: HashSet<i64>,
        /// From where and how many rows were asked for.
        asked: Vec<(i64, u32)>,
        /// How long it takes to look.
        takes: Duration,
    }

    impl Fake {
        fn table(&self) -> MutexGuard<'_, Table> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Commits rows of lane 0.
        fn commit(&self, sequences: impl IntoIterator<Item = i64>) {
            self.commit_to(0, sequences);
        }

        fn commit_to(&self, lane: u16, sequences: impl IntoIterator<Item = i64>) {
            self.table().rows.extend(sequences.into_iter().map(|sequence| (sequence, lane)));
        }

        /// Gives lanes to a new owner.
        fn take(&self, lanes: impl IntoIterator<Item = u16>) -> Vec<Hold> {
            let mut table = self.table();
            let next = |lane| {
                let fence = table.fences.entry(lane).or_default();
                *fence += 1;
                Hold { lane, fence: *fence }
            };
            lanes.into_iter().map(next).collect()
        }

        fn refused(&self, holds: impl Iterator<Item = Hold>) -> Vec<Hold> {
            let table = self.table();
            holds.filter(|hold| table.fences.get(&hold.lane) != Some(&hold.fence)).collect()
        }

        async fn reader(&self, holds: &[Hold]) -> FloorReader<Fake> {
            let mut reader = FloorReader::new(self.clone());
            reader.open(holds).await.unwrap();
            reader
        }
    }

    #[async_trait]
    impl Ground for Fake {
        async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>> {
            let refused = self.refused(holds.iter().copied());
            let held = holds.iter().filter(|hold| !refused.contains(hold));
            Ok(held.map(|hold| (hold.lane, self.table().noted.get(&hold.lane).copied())).collect())
        }

        async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>> {
            let takes = self.table().takes;
            tokio::time::advance(takes).await;
            let mut table = self.table();
            table.asked.push((above, limit));
            let rows =
                table.rows.range((Excluded(above), Unbounded)).filter(|(_, lane)| lanes.contains(lane));
            Ok(rows.map(|(sequence, _)| *sequence).take(limit as usize).collect())
        }

        async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>> {
            let table = self.table();
            let row = |sequence: &i64| {
                table.rows.get(sequence).map(|lane| Row {
                    hold: Hold { lane: *lane, fence: 0 },
                    sequence: *sequence,
                    id: Uuid::nil(),
                    topic: "a".to_owned(),
                    created_at: OffsetDateTime::UNIX_EPOCH,
                    delayed: false,
                    suspect: false,
                    event: Err("none".to_owned()),
                })
            };
            Ok(sequences.iter().filter_map(row).collect())
        }

        async fn note(&self, notes: &[(Hold, i64)]) -> Result<Vec<Hold>> {
            let refused = self.refused(notes.iter().map(|(hold, _)| *hold));
            for (hold, sequence) in notes.iter().filter(|(hold, _)| !refused.contains(hold)) {
                let mut table = self.table();
                let noted = table.noted.entry(hold.lane).or_default();
                *noted = (*noted).max(*sequence);
            }
            Ok(refused)
        }

        async fn deliver(&self, rows: &[(Hold, i64)], _: Keep) -> Result<Delivered> {
            let refused = self.refused(rows.iter().map(|(hold, _)| *hold));
            let mut table = self.table();
            let mut busy = Vec::new();
            for (hold, sequence) in rows.iter().filter(|(hold, _)| !refused.contains(hold)) {
                if table.locked.contains(sequence) {
                    busy.push((*hold, *sequence));
                } else {
                    table.rows.remove(sequence);
                }
            }
            Ok(Delivered { refused, busy })
        }

        async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>> {
            let refused = self.refused(holds.iter().copied());
            for hold in holds.iter().filter(|hold| !refused.contains(hold)) {
                self.table().noted.remove(&hold.lane);
            }
            Ok(refused)
        }
    }

    fn sequences(page: &Page) -> Vec<i64> {
        page.rows.iter().map(|row| row.sequence).collect()
    }

    fn suspects(page: &Page) -> Vec<i64> {
        page.rows.iter().filter(|row| row.suspect).map(|row| row.sequence).collect()
    }

    fn said(page: &Page) -> Vec<(Hold, i64)> {
        page.rows.iter().map(|row| (row.hold, row.sequence)).collect()
    }

    async fn deliver(reader: &mut FloorReader<Fake>, page: &Page) -> Vec<u16> {
        reader.settle(&said(page), &[page.number], Keep::Delivered).await.unwrap()
    }

    const NONE: [i64; 0] = [];

    #[tokio::test(start_paused = true)]
    async fn sm1_rows_are_read_in_order_and_given_out_once() {
        let fake = Fake::default();
        fake.commit(1..=10);
        let mut reader = fake.reader(&fake.take([0])).await;
        let first = reader.read(4).await.unwrap();
        assert_eq!((sequences(&first), first.more), (vec![1, 2, 3, 4], true));
        assert_eq!(first.rows[0].hold, Hold { lane: 0, fence: 1 });
        assert_eq!(sequences(&reader.read(4).await.unwrap()), [5, 6, 7, 8]);
        let last = reader.read(4).await.unwrap();
        assert_eq!((sequences(&last), last.more), (vec![9, 10], false));
        for _ in 0..3 {
            let nothing = reader.read(4).await.unwrap();
            assert_eq!((sequences(&nothing), nothing.number, nothing.more), (vec![], 0, false));
            tokio::time::advance(RAREST).await;
        }
        assert_eq!(sequences(&reader.read(4).await.unwrap()), NONE, "all of it is under way");
        assert!(deliver(&mut reader, &first).await.is_empty());
        assert_eq!(fake.table().rows.len(), 6);
        assert_eq!(sequences(&reader.read(4).await.unwrap()), NONE);
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_a_late_commit_comes_before_what_was_committed_after_it() {
        let fake = Fake::default();
        fake.commit([1, 2, 4]);
        let mut reader = fake.reader(&fake.take([0])).await;
        assert_eq!(sequences(&reader.read(10).await.unwrap()), [1, 2, 4]);
        // A transaction that was open for long, and one that waited for it.
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(sequences(&reader.read(10).await.unwrap()), NONE);
        fake.commit([3, 5]);
        assert_eq!(sequences(&reader.read(10).await.unwrap()), [3, 5]);
        // The same where there is little room.
        fake.commit([7, 8, 9]);
        assert_eq!(sequences(&reader.read(3).await.unwrap()), [7, 8, 9]);
        fake.commit([6, 10]);
        assert_eq!(sequences(&reader.read(1).await.unwrap()), [6]);
        assert_eq!(sequences(&reader.read(1).await.unwrap()), [10]);
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_where_looking_at_everything_takes_long_it_is_done_more_rarely() {
        let fake = Fake::default();
        fake.commit([5]);
        let mut reader = fake.reader(&fake.take([0])).await;
        fake.table().takes = LONG * 2;
        assert_eq!(sequences(&reader.read(10).await.unwrap()), [5]);
        fake.commit([3, 6]);
        assert_eq!(sequences(&reader.read(10).await.unwrap()), [6], "from the floor");
        assert_eq!(fake.table().asked.last().map(|(above, _)| *above), Some(4));
        tokio::time::advance(LONG * 2 * SHARE).await;
        assert_eq!(sequences(&reader.read(10).await.unwrap()), [3]);
        fake.table().takes = Duration::ZERO;
        tokio::time::advance(RAREST).await;
        reader.read(10).await.unwrap();
        fake.commit([2, 7]);
        assert_eq!(sequences(&reader.read(10).await.unwrap()), [2, 7], "it is quick again");
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_a_read_sees_past_what_is_under_way() {
        let fake = Fake::default();
        fake.commit(1..=100);
        let mut reader = fake.reader(&fake.take([0])).await;
        assert_eq!(reader.read(50).await.unwrap().rows.len(), 50);
        assert_eq!(sequences(&reader.read(10).await.unwrap()), (51..=60).collect::<Vec<_>>());
        assert_eq!(fake.table().asked, [(0, 50), (0, 60)]);
        assert_eq!(sequences(&reader.read(10).await.unwrap()), (61..=70).collect::<Vec<_>>());
        assert_eq!(fake.table().asked.last(), Some(&(0, 70)), "it begins below all of them");
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_nothing_is_passed_over_where_what_is_under_way_is_parked() {
        let fake = Fake::default();
        fake.commit(1..=4);
        fake.commit_to(1, [5, 6]);
        let mut reader = fake.reader(&fake.take([0, 1])).await;
        assert_eq!(reader.read(6).await.unwrap().rows.len(), 6);
        fake.table().rows.retain(|sequence, _| ![1, 2, 3].contains(sequence));
        reader.leave(&[1]);
        fake.commit(7..=20);
        tokio::time::advance(RAREST).await;
        for first in [7, 9, 11] {
            let page = reader.read(2).await.unwrap();
            assert_eq!((sequences(&page), page.more), (vec![first, first + 1], true));
        }
        reader.open(&[Hold { lane: 1, fence: 1 }]).await.unwrap();
        fake.commit_to(1, [21]);
        assert_eq!(sequences(&reader.read(20).await.unwrap()), (13..=21).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_what_was_parked_leaves_with_its_page() {
        let fake = Fake::default();
        fake.commit([1, 2]);
        let mut reader = fake.reader(&fake.take([0])).await;
        let page = reader.read(10).await.unwrap();
        assert!(reader.settle(&said(&page)[..1], &[], Keep::Delivered).await.unwrap().is_empty());
        assert!(reader.flush().await.unwrap().is_empty());
        assert_eq!(fake.table().noted.get(&0), Some(&2), "the other is under way");
        fake.table().rows.clear();
        assert!(reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap().is_empty());
        assert!(reader.under_way.is_empty() && reader.pages.is_empty());
        assert!(reader.flush().await.unwrap().is_empty());
        assert_eq!(fake.table().noted.get(&0), None);
        assert!(deliver(&mut reader, &page).await.is_empty(), "saying it twice does no harm");
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_what_an_owner_had_under_way_is_suspect() {
        let fake = Fake::default();
        fake.commit([1, 2, 3]);
        fake.commit_to(1, [4]);
        let mut gone = fake.reader(&fake.take([0, 1])).await;
        let page = gone.read(3).await.unwrap();
        gone.settle(&said(&page)[..1], &[], Keep::Delivered).await.unwrap();
        let mut reader = fake.reader(&fake.take([0, 1])).await;
        fake.commit([5]);
        let page = reader.read(1).await.unwrap();
        assert_eq!(suspects(&page), [2]);
        deliver(&mut reader, &page).await;
        reader.flush().await.unwrap();
        assert_eq!(fake.table().noted.get(&0), Some(&3), "not all of them have been read");
        let page = reader.read(10).await.unwrap();
        assert_eq!((sequences(&page), suspects(&page)), (vec![3, 4, 5], vec![3]));
        deliver(&mut reader, &page).await;
        reader.flush().await.unwrap();
        assert!(fake.table().noted.is_empty());
        fake.commit([6]);
        let mut next = fake.reader(&fake.take([0, 1])).await;
        assert_eq!(suspects(&next.read(10).await.unwrap()), NONE);
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_nothing_of_a_lost_lane_is_given_out() {
        let fake = Fake::default();
        fake.commit([1, 3]);
        fake.commit_to(1, [2, 4]);
        let holds = fake.take([0, 1]);
        let mut reader = fake.reader(&holds).await;
        let first = reader.read(2).await.unwrap();
        assert_eq!(sequences(&first), [1, 2]);
        fake.take([1]);
        let page = reader.read(10).await.unwrap();
        assert_eq!((sequences(&page), page.lost.clone()), (vec![3], vec![1]));
        assert_eq!(reader.under_way.values().copied().collect::<Vec<_>>(), [0, 0]);
        assert_eq!(deliver(&mut reader, &first).await, [1], "of the other it is written");
        assert_eq!(fake.table().rows.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        assert!(reader.read(10).await.unwrap().lost.is_empty(), "once");
        let mut late = fake.reader(&holds).await;
        assert_eq!(late.read(10).await.unwrap().lost, [1], "lost before it was opened");
        fake.take([0]);
        assert_eq!(deliver(&mut reader, &page).await, [0]);
        assert!(reader.open.is_empty());
        assert_eq!(reader.read(10).await.unwrap().number, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_a_late_word_of_an_earlier_ownership_changes_nothing() {
        let fake = Fake::default();
        fake.commit([1]);
        let mut reader = fake.reader(&fake.take([0])).await;
        let before = reader.read(10).await.unwrap();
        reader.close(&[0]);
        reader.open(&fake.take([0])).await.unwrap();
        let again = reader.read(10).await.unwrap();
        assert_eq!(suspects(&again), [1]);
        assert_eq!(deliver(&mut reader, &before).await, [0]);
        assert_eq!(sequences(&reader.read(10).await.unwrap()), NONE, "it is under way still");
        assert!(deliver(&mut reader, &again).await.is_empty());
        assert!(fake.table().rows.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_rows_that_somebody_has_locked_are_written_later() {
        let fake = Fake::default();
        fake.commit([1, 2]);
        fake.table().locked.insert(1);
        let mut reader = fake.reader(&fake.take([0])).await;
        let page = reader.read(10).await.unwrap();
        assert!(deliver(&mut reader, &page).await.is_empty());
        reader.flush().await.unwrap();
        tokio::time::advance(RAREST).await;
        assert_eq!(sequences(&reader.read(10).await.unwrap()), NONE, "it was delivered");
        assert_eq!(fake.table().noted.get(&0), Some(&2));
        fake.table().locked.clear();
        reader.flush().await.unwrap();
        assert!(fake.table().rows.is_empty() && fake.table().noted.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn sm1_a_reader_of_nothing_reads_nothing() {
        let fake = Fake::default();
        fake.commit([1]);
        let mut reader = fake.reader(&[]).await;
        assert_eq!(reader.read(10).await.unwrap().number, 0);
        assert!(reader.settle(&[], &[7], Keep::Nothing).await.unwrap().is_empty());
        assert!(reader.flush().await.unwrap().is_empty());
        reader.close(&[3]);
        reader.open(&fake.take([0])).await.unwrap();
        assert_eq!(reader.read(0).await.unwrap().number, 0);
        assert_eq!(fake.table().asked, []);
    }
}
