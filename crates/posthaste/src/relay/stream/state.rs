//! What a feed has in its hands: lanes, pages, and events that were given out and have not ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use super::super::feed::FedEvent;
use super::claim::REPAIR;
use crate::event::Event;
use crate::store::Lease;
use crate::store::stream::{Hold, Page, Reader};

pub(super) struct State {
    pub(super) reader: Box<dyn Reader>,
    pub(super) holds: BTreeMap<u16, Hold>,
    /// Lanes of which not all has been read that their owner before had under way.
    pub(super) unproven: BTreeSet<u16>,
    /// Lanes that are being given up.
    pub(super) leaving: BTreeSet<u16>,
    /// What is under way and may have been parked where it stands: nobody heard whether it was.
    pub(super) maybe_parked: FxHashSet<i64>,
    /// By `seq`, what has been given out and is not settled.
    pub(super) under_way: FxHashMap<i64, UnderWay>,
    pub(super) pages: BTreeMap<u64, PageState>,
    /// What was read and has not been dealt with yet.
    pub(super) kept: Option<Page>,
    /// Parked events that were claimed and have not been given out yet.
    pub(super) claimed: Vec<FedEvent>,
    /// Whether it is not known what came of a claim of parked events.
    pub(super) unsure: bool,
    /// How many events of pages were given out.
    pub(super) given: u64,
    pub(super) has_parked: bool,
    pub(super) asked: Option<Instant>,
    pub(super) repaired: Instant,
    /// How long after that it is due again.
    pub(super) repair_after: Duration,
}

pub(super) struct UnderWay {
    pub(super) hold: Hold,
    pub(super) lease: Lease,
    pub(super) event: Arc<Event>,
    pub(super) source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Page(u64),
    Parked { suspect: bool },
}

pub(super) struct PageState {
    /// How many of its rows are kept or under way.
    pub(super) left: usize,
    pub(super) read: Instant,
    /// How many events had been given out when it was read.
    pub(super) given: u64,
}

impl UnderWay {
    pub(super) fn page(&self) -> Option<u64> {
        match self.source {
            Source::Page(number) => Some(number),
            Source::Parked { .. } => None,
        }
    }
}

impl State {
    pub(super) fn new(reader: Box<dyn Reader>) -> Self {
        Self {
            reader,
            holds: BTreeMap::new(),
            unproven: BTreeSet::new(),
            leaving: BTreeSet::new(),
            maybe_parked: FxHashSet::default(),
            under_way: FxHashMap::default(),
            pages: BTreeMap::new(),
            kept: None,
            claimed: Vec::new(),
            unsure: false,
            given: 0,
            has_parked: false,
            asked: None,
            repaired: Instant::now(),
            repair_after: REPAIR,
        }
    }

    pub(super) fn holds(&self) -> Vec<Hold> {
        self.holds.values().copied().collect()
    }

    /// Whether nothing is in its hands, and nothing of what is parked is to be looked after.
    pub(super) fn is_idle(&self) -> bool {
        let nothing = self.under_way.is_empty() && self.claimed.is_empty() && self.pages.is_empty();
        let nothing = nothing && self.kept.is_none() && self.leaving.is_empty() && self.unproven.is_empty();
        let repairs = self.has_parked && self.repaired.elapsed() >= self.repair_after;
        nothing && self.maybe_parked.is_empty() && !self.unsure && !repairs
    }

    /// Those of which more is to be given out.
    pub(super) fn staying(&self) -> Vec<Hold> {
        self.holds.values().filter(|hold| !self.leaving.contains(&hold.lane)).copied().collect()
    }

    /// Those of them whose parked events may come up: none of which something is still to be read that the owner before had under
    /// way. It may be parked already; were it delivered now, it would be read later, and be delivered once more.
    pub(super) fn coming_up(&self) -> Vec<Hold> {
        let is_unread = |lane: u16| {
            let mut kept = self.kept.iter().flat_map(|page| &page.rows);
            self.reader.has_suspects(lane) || kept.any(|row| row.suspect && row.hold.lane == lane)
        };
        self.staying().into_iter().filter(|hold| !is_unread(hold.lane)).collect()
    }

    /// A page was read.
    pub(super) fn keep(&mut self, page: Page) {
        if !page.rows.is_empty() {
            let read = PageState { left: page.rows.len(), read: Instant::now(), given: self.given };
            self.pages.insert(page.number, read);
        }
        self.kept = Some(page);
    }

    /// So many rows of a page are neither kept nor under way any more.
    pub(super) fn leave_page(&mut self, number: u64, rows: usize) {
        if let Some(page) = self.pages.get_mut(&number) {
            page.left = page.left.saturating_sub(rows);
        }
    }

    /// Forgets lanes that are somebody else's by now, and what was under way of them.
    pub(super) fn lose(&mut self, lanes: &[u16]) {
        self.reader.close(lanes);
        if let Some(page) = &mut self.kept {
            let (number, before) = (page.number, page.rows.len());
            page.rows.retain(|row| !lanes.contains(&row.hold.lane));
            let gone = before - page.rows.len();
            self.leave_page(number, gone);
        }
        self.holds.retain(|lane, _| !lanes.contains(lane));
        self.unproven.retain(|lane| !lanes.contains(lane));
        self.leaving.retain(|lane| !lanes.contains(lane));
        let is_lost = |event: &FedEvent| {
            self.under_way.get(&event.lease.sequence()).is_none_or(|out| lanes.contains(&out.hold.lane))
        };
        self.claimed.retain(|event| !is_lost(event));
        let lost = self.under_way.values().filter(|out| lanes.contains(&out.hold.lane));
        let lost: Vec<i64> = lost.map(|out| out.lease.sequence()).collect();
        self.end(&lost);
        self.maybe_parked.retain(|sequence| !lost.contains(sequence));
    }

    /// These have ended.
    pub(super) fn end(&mut self, sequences: &[i64]) {
        for sequence in sequences {
            if let Some(UnderWay { source: Source::Page(number), .. }) = self.under_way.remove(sequence) {
                self.leave_page(number, 1);
            }
        }
    }

    /// These are parked where they stand.
    pub(super) fn has_places(&mut self, sequences: &[i64]) {
        for sequence in sequences {
            let Some(out) = self.under_way.get_mut(sequence) else { continue };
            let page = out.page();
            out.source = Source::Parked { suspect: false };
            if let Some(number) = page {
                self.leave_page(number, 1);
            }
        }
    }

    /// Pages of which nothing would be left without these.
    pub(super) fn finished_without<'a>(&self, ended: impl Iterator<Item = &'a i64>) -> Vec<u64> {
        let mut left: BTreeMap<u64, usize> =
            self.pages.iter().map(|(number, page)| (*number, page.left)).collect();
        for sequence in ended {
            if let Some(UnderWay { source: Source::Page(number), .. }) = self.under_way.get(sequence) {
                left.entry(*number).and_modify(|left| *left -= 1);
            }
        }
        left.into_iter().filter(|(_, left)| *left == 0).map(|(number, _)| number).collect()
    }

    pub(super) fn has_suspect(&self) -> bool {
        self.under_way.values().any(|out| out.source == Source::Parked { suspect: true })
    }
}
