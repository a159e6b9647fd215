//! Lanes: who owns which, and since when nobody does.

use std::time::Duration;

use crate::store::WorkerId;

/// The right to read one lane and to write of it, until somebody else takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hold {
    /// The lane.
    pub lane: u16,
    /// Which ownership of it; it grows with every one.
    pub fence: i64,
}

/// A relay that says it lives.
#[derive(Debug, Clone)]
pub struct Beat<'a> {
    /// Its name.
    pub relay: &'a WorkerId,
    /// Whether the database knows its session under [`WorkerId::present`](super::super::WorkerId)'s name: then its
    /// lanes are free as soon as that is gone.
    pub present: bool,
    /// Of a beat, the lanes that are to last. Of a take, the lanes that this very process held last, under the fences it
    /// had: see [`Stream::take`](super::Stream::take).
    pub holds: &'a [Hold],
    /// How long, if it is not heard of again.
    pub lease: Duration,
    /// How far it has read, where it wants to know whether there is more.
    pub seen: Option<&'a Seen>,
}

/// How far a reader has read that has nothing under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// From which transaction on none had ended, and which before it had not, where rows are known by their transactions.
    pub(crate) next: String,
    pub(crate) running: Vec<String>,
    /// In which run of the server.
    pub(crate) run: i64,
    /// Whether something of its lanes may be parked.
    pub(crate) parked: bool,
}

/// Who lives and how the lanes stand.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Council {
    /// The names of the relays that live, in the order they came.
    pub relays: Vec<String>,
    /// Every lane.
    pub lanes: Vec<LaneState>,
    /// Whether there may be something to deliver: rows that the one who asked has not seen, whosever, or parked events of its lanes
    /// that are due. `None` where it did not ask.
    pub news: Option<bool>,
}

/// How a lane stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneState {
    /// The lane.
    pub lane: u16,
    /// The ownership that is or was the last.
    pub fence: i64,
    /// Whose it is or was.
    pub owner: Option<String>,
    /// Whether its lease has ended, or it has no owner.
    pub free: bool,
    /// Whether the database knows that its owner's session is gone.
    pub absent: bool,
}
