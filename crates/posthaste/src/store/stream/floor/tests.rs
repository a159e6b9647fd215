#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use time::OffsetDateTime;

use super::*;
use crate::store::stream::Unreadable;

/// A table in memory.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    /// Unsettled rows and their lanes.
    rows: BTreeMap<i64, u16>,
    fences: HashMap<u16, i64>,
    noted: HashMap<u16, i64>,
    /// Which event a row is, where it is not the first of its place.
    ids: HashMap<i64, Uuid>,
    /// Rows that are inserted and not committed.
    uncommitted: BTreeSet<i64>,
    /// The highest number that was ever given.
    highest: i64,
    /// Whether the server has crashed since it was last asked.
    crashed: bool,
    /// Rows that somebody has locked.
    locked: HashSet<i64>,
    /// Rows that were delivered meanwhile.
    shelved: BTreeSet<i64>,
    /// From where and how many rows were asked for.
    asked: Vec<(i64, u32)>,
    /// How many rows were looked at, each time.
    looked: Vec<u32>,
    /// How long it takes to look at as many as may be.
    look_takes: Duration,
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
        let mut table = self.table();
        for sequence in sequences {
            table.rows.insert(sequence, lane);
            table.uncommitted.remove(&sequence);
            table.highest = table.highest.max(sequence);
        }
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
    type Footing = bool;

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
        let Table { rows, shelved, .. } = &*table;
        let rows = rows
            .range((Excluded(above), Unbounded))
            .filter(|(sequence, lane)| lanes.contains(lane) && !shelved.contains(sequence));
        Ok(rows.map(|(sequence, _)| *sequence).take(limit as usize).collect())
    }

    async fn highest(&self, known: &mut bool) -> Result<Option<i64>> {
        if !std::mem::replace(known, true) || std::mem::take(&mut self.table().crashed) {
            return Ok(None);
        }
        Ok(Some(self.table().highest))
    }

    // There is a row for every number.
    async fn look(&self, known: &mut bool, above: i64, until: i64, rows: u32) -> Result<Option<Look>> {
        let takes = self.table().look_takes;
        tokio::time::advance(takes).await;
        let mut table = self.table();
        *known &= !std::mem::take(&mut table.crashed);
        if !*known {
            return Ok(None);
        }
        table.looked.push(rows);
        let until = until.min(above + i64::from(rows));
        let unsettled = table.rows.keys().chain(&table.uncommitted).copied();
        let lowest = unsettled.filter(|sequence| *sequence > above && *sequence <= until).min();
        let settled = lowest.map_or(until, |lowest| lowest - 1);
        Ok(Some(Look { settled, unsettled: lowest.is_some() }))
    }

    async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>> {
        let table = self.table();
        let row = |sequence: &i64| {
            table.rows.get(sequence).map(|lane| Row {
                hold: Hold { lane: *lane, fence: 0 },
                sequence: *sequence,
                id: table.ids.get(sequence).copied().unwrap_or_default(),
                created_at: OffsetDateTime::UNIX_EPOCH,
                delayed: false,
                suspect: false,
                event: Err(Unreadable { topic: "a".to_owned(), reason: "none".to_owned() }),
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

    async fn deliver(&self, rows: &[(Hold, RowId)], _: Keep) -> Result<Delivered> {
        let refused = self.refused(rows.iter().map(|(hold, _)| *hold));
        let mut table = self.table();
        for (_, RowId { sequence, id }) in rows.iter().filter(|(hold, _)| !refused.contains(hold)) {
            if table.ids.get(sequence).copied().unwrap_or_default() != *id {
                continue;
            }
            if table.locked.contains(sequence) {
                table.shelved.insert(*sequence);
            } else {
                table.rows.remove(sequence);
            }
        }
        Ok(Delivered { refused, shelved: !table.shelved.is_empty() })
    }

    async fn tidy(&self, _: &[Hold]) -> Result<bool> {
        let mut table = self.table();
        let free: Vec<i64> =
            table.shelved.difference(&table.locked.iter().copied().collect()).copied().collect();
        for sequence in free {
            table.shelved.remove(&sequence);
            table.rows.remove(&sequence);
        }
        Ok(!table.shelved.is_empty())
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
const NOBODY: [u16; 0] = [];

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
    fake.table().uncommitted.insert(3);
    let mut reader = fake.reader(&fake.take([0])).await;
    let page = reader.read(10).await.unwrap();
    assert_eq!(sequences(&page), [1, 2, 4]);
    deliver(&mut reader, &page).await;
    // A transaction that was open for long, and one that waited for it.
    for _ in 0..10 {
        tokio::time::advance(SETTLES).await;
        assert_eq!(sequences(&reader.read(10).await.unwrap()), NONE);
    }
    assert_eq!(reader.floor, 2);
    fake.commit([3, 5]);
    assert_eq!(sequences(&reader.read(10).await.unwrap()), [3, 5]);
    // The same where there is little room.
    fake.commit([7, 8, 9]);
    assert_eq!(sequences(&reader.read(3).await.unwrap()), [7, 8, 9]);
    fake.commit([6, 10]);
    assert_eq!(sequences(&reader.read(1).await.unwrap()), [6]);
    assert_eq!(sequences(&reader.read(1).await.unwrap()), [10]);
}

/// A read, after so much time, of rows that are delivered at once; above which row it began.
async fn reads_above(fake: &Fake, reader: &mut FloorReader<Fake>, after: Duration) -> i64 {
    tokio::time::advance(after).await;
    let page = reader.read(10).await.unwrap();
    deliver(reader, &page).await;
    fake.table().asked.last().unwrap().0
}

#[tokio::test(start_paused = true)]
async fn sm1_a_floor_counts_after_a_while() {
    let fake = Fake::default();
    fake.commit([1, 2]);
    let mut reader = fake.reader(&fake.take([0])).await;
    assert_eq!(reads_above(&fake, &mut reader, Duration::ZERO).await, 0);
    // It is asked for, and counts the next time.
    for floor in [0, 2, 2] {
        assert_eq!(reads_above(&fake, &mut reader, SETTLES).await, floor);
    }
    fake.commit([4]);
    assert_eq!(reads_above(&fake, &mut reader, SETTLES / 2).await, 2);
    // An insert that got its number before the other is seen now.
    fake.commit([3]);
    assert_eq!(reads_above(&fake, &mut reader, Duration::ZERO).await, 2);
    assert!(fake.table().rows.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sm1_a_floor_does_not_rise_above_what_got_its_place_late() {
    let fake = Fake::default();
    fake.commit([1, 3]);
    let mut reader = fake.reader(&fake.take([0])).await;
    for _ in 0..2 {
        reads_above(&fake, &mut reader, SETTLES).await;
    }
    assert_eq!(reader.highest.map(|(_, highest)| highest), Some(3));
    // It had its number before the other, and is committed long after it.
    fake.table().uncommitted.insert(2);
    for _ in 0..8 {
        tokio::time::advance(SETTLES).await;
        reader.read(10).await.unwrap();
        assert_eq!(reader.floor, 1);
    }
    fake.commit([2, 4]);
    assert_eq!(sequences(&reader.read(10).await.unwrap()), [2, 4]);
}

#[tokio::test(start_paused = true)]
async fn sm1_a_floor_rises_in_steps_and_keeps_what_it_has() {
    const KEPT: i64 = 100_000;
    let fake = Fake::default();
    // All below was delivered.
    fake.commit([KEPT]);
    fake.table().look_takes = LOOKS / 2;
    let mut reader = fake.reader(&fake.take([0])).await;
    let mut floors = Vec::new();
    while floors.last() != Some(&KEPT) {
        reads_above(&fake, &mut reader, SETTLES).await;
        assert!(fake.table().looked.len() <= 2 && reader.floor >= *floors.last().unwrap_or(&0));
        fake.table().looked.clear();
        floors.push(reader.floor);
        // A lane more, or one that was to be left, changes nothing of that.
        reader.leave(&[0]);
        reader.open(&[Hold { lane: 0, fence: 1 }]).await.unwrap();
        reader.open(&fake.take([1])).await.unwrap();
    }
    assert_eq!(floors[..4], [0, 0, i64::from(FEW + MANY), 2 * i64::from(FEW + MANY)]);
    assert!(floors.len() < 25, "{floors:?}");
}

#[tokio::test(start_paused = true)]
async fn sm1_what_came_to_nothing_is_found_below_the_floor_by_who_takes_its_lane() {
    let fake = Fake::default();
    fake.commit([10]);
    let mut reader = fake.reader(&fake.take([0])).await;
    for _ in 0..4 {
        reads_above(&fake, &mut reader, SETTLES).await;
    }
    // Its owner had marked it as delivered, and died before that was committed.
    fake.commit_to(1, [7]);
    reader.open(&fake.take([1])).await.unwrap();
    assert_eq!(reader.floor, 10);
    assert_eq!(sequences(&reader.read(10).await.unwrap()), [7]);
}

#[tokio::test(start_paused = true)]
async fn sm1_a_sweep_that_found_more_than_a_page_is_gone_on_with() {
    let fake = Fake::default();
    fake.commit([100]);
    let mut reader = fake.reader(&fake.take([0])).await;
    for _ in 0..4 {
        reads_above(&fake, &mut reader, SETTLES).await;
    }
    assert_eq!(reader.floor, 100);
    tokio::time::advance(SWEEP).await;
    fake.commit(1..=3);
    fake.commit([101]);
    for late in 1..=3 {
        assert_eq!(sequences(&reader.read(1).await.unwrap()), [late]);
    }
    assert_eq!(sequences(&reader.read(1).await.unwrap()), [101]);
}

#[tokio::test(start_paused = true)]
async fn sm1_what_turns_up_below_the_floor_is_found_by_a_sweep() {
    let fake = Fake::default();
    fake.commit([5]);
    let mut reader = fake.reader(&fake.take([0])).await;
    for _ in 0..4 {
        reads_above(&fake, &mut reader, SETTLES).await;
    }
    fake.commit([4]);
    assert_eq!(reads_above(&fake, &mut reader, SWEEP).await, 0);
    assert!(fake.table().rows.is_empty());
    // Where it takes long it is done more rarely.
    fake.table().takes = SWEEP;
    assert_eq!(reads_above(&fake, &mut reader, SWEEP).await, 0);
    assert_eq!(reads_above(&fake, &mut reader, SWEEP).await, 5);
    assert_eq!(reads_above(&fake, &mut reader, SWEEP * SHARE).await, 0);
}

#[tokio::test(start_paused = true)]
async fn sm1_a_server_that_crashed_may_give_numbers_anew() {
    let fake = Fake::default();
    fake.commit([10]);
    let mut reader = fake.reader(&fake.take([0])).await;
    for _ in 0..4 {
        reads_above(&fake, &mut reader, SETTLES).await;
    }
    assert_eq!(reader.floor, 10);
    fake.table().crashed = true;
    fake.commit([8, 11]);
    tokio::time::advance(SETTLES).await;
    assert_eq!(sequences(&reader.read(10).await.unwrap()), [8, 11]);
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
async fn sm1_what_is_committed_after_the_suspects_were_read_is_none_of_them() {
    let fake = Fake::default();
    fake.commit([1, 10]);
    let mut gone = fake.reader(&fake.take([0])).await;
    gone.read(10).await.unwrap();
    fake.commit([12]);
    let mut reader = fake.reader(&fake.take([0])).await;
    let page = reader.read(10).await.unwrap();
    assert_eq!((sequences(&page), suspects(&page)), (vec![1, 10, 12], vec![1, 10]));
    // One transaction, of which one row has its place below what the owner before had read.
    fake.commit([9, 13]);
    let page = reader.read(10).await.unwrap();
    assert_eq!((sequences(&page), suspects(&page)), (vec![9, 13], vec![]));
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
    assert_eq!(reader.under_way.values().map(|out| out.lane).collect::<Vec<_>>(), [0, 0]);
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
    assert_eq!(deliver(&mut reader, &before).await, NOBODY, "the lane is held anew");
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
    assert!(fake.table().noted.is_empty(), "that it was delivered is known");
    tokio::time::advance(TIDY).await;
    assert_eq!(sequences(&reader.read(10).await.unwrap()), NONE, "it was delivered");
    fake.table().locked.clear();
    reader.read(10).await.unwrap();
    assert_eq!(fake.table().rows.len(), 1, "not every time");
    tokio::time::advance(TIDY).await;
    reader.read(10).await.unwrap();
    assert!(fake.table().rows.is_empty() && fake.table().shelved.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sm1_a_place_that_is_another_events_by_now_is_not_marked() {
    let fake = Fake::default();
    fake.commit([1, 2]);
    let mut reader = fake.reader(&fake.take([0])).await;
    let page = reader.read(10).await.unwrap();
    // A server that does not know of the second takes over, and gives its place to another.
    fake.table().ids.insert(2, Uuid::max());
    assert!(deliver(&mut reader, &page).await.is_empty());
    let other = reader.read(10).await.unwrap();
    assert_eq!((sequences(&other), other.rows[0].id), (vec![2], Uuid::max()));
    assert!(deliver(&mut reader, &other).await.is_empty());
    assert!(fake.table().rows.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sm1_a_lane_that_is_held_anew_is_not_lost() {
    let fake = Fake::default();
    fake.commit([1]);
    let holds = fake.take([0, 1]);
    let mut reader = fake.reader(&holds).await;
    reader.read(10).await.unwrap();
    reader.open(&fake.take([0])).await.unwrap();
    assert_eq!(reader.lose(&holds[..1]), NOBODY, "that was the ownership before");
    assert_eq!(reader.open.keys().copied().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(reader.lose(&holds), [1]);
    assert_eq!(reader.lose(&holds), [1], "it is not read any more");
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
