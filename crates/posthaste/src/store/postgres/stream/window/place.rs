//! Places: how far a lane is, and what of it is under way.

use std::sync::Arc;

use super::super::snapshot::Snapshot;
use crate::store::stream::Hold;

/// How far a lane is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Everything it shows was read.
    pub(super) base: Snapshot,
    pub(super) base_seq: i64,
    /// Rows up to it are read by what `Part::Recovery` says, or were.
    pub(super) anchor: i64,
    pub(super) part: Part,
}

/// Of what comes after the base, what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Nothing,
    /// What the target shows, up to this `seq`.
    Window {
        target: Snapshot,
        after: i64,
    },
    /// Of what came from another cluster, up to this `seq`; the base is not begun before all of it is read.
    Recovery {
        delivered: Snapshot,
        delivered_seq: i64,
        after: i64,
    },
}

impl Place {
    /// Whether what comes after it is the same.
    pub(super) fn is_at(&self, other: &Self) -> bool {
        (&self.base, self.anchor, &self.part) == (&other.base, other.anchor, &other.part)
    }

    /// Whether nothing is half read.
    pub(super) fn is_whole(&self) -> bool {
        self.part == Part::Nothing
    }

    /// Up to where its rows are under way, while it is not done.
    pub(super) fn noted(&self) -> (Snapshot, i64) {
        match &self.part {
            Part::Nothing => (self.base.clone(), i64::MAX),
            Part::Window { target, after } => (target.clone(), *after),
            Part::Recovery { after, .. } => (self.base.clone(), *after),
        }
    }
}

/// One lane of this reader.
pub(super) struct Lane {
    pub(super) hold: Hold,
    pub(super) step: i64,
    /// In which run of the server it was loaded.
    pub(super) run: i64,
    pub(super) read: Arc<Place>,
    pub(super) done: Arc<Place>,
    /// What was under way when the owner before ended uncleanly.
    pub(super) suspects: Option<(Snapshot, i64)>,
    /// What the database has.
    pub(super) written: Arc<Place>,
    /// Whether it has a note of something under way.
    pub(super) noted: bool,
    /// Whether nothing more is to be read.
    pub(super) left: bool,
}

/// A page that is under way.
pub(super) struct UnderWay {
    pub(super) number: u64,
    pub(super) lanes: Vec<u16>,
    pub(super) before: Arc<Place>,
    pub(super) place: Arc<Place>,
    pub(super) finished: bool,
}
