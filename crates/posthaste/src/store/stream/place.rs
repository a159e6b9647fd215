//! Places: where parked events stand among those of their aggregate, worked out between a lane's lock and its
//! release, the same for MySQL, MariaDB and SQLite.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Hold, Lanes, Park, Parked, ParkedEnd, ParkedVerdict, Wait};
use crate::event::Event;
use crate::store::settlement::{code, micros, stored_error};

/// Behind how many first events of a claim it is looked for others: each is a statement of its own.
pub(crate) const MOST_RUNS: usize = 32;

/// How far those are counted that wait behind a dead event.
pub(crate) const MOST_WAITING: u32 = 10_000;

/// The number by which the statements know [`ParkedVerdict::Behind`], beside those of the queue's verdicts.
const BEHIND: i32 = 4;

/// Lanes as a text that says of each by its number whether it is one of them: an index into it costs less for every
/// row than a search.
pub(crate) fn mask(lanes: impl Iterator<Item = u16>) -> String {
    let mut mask = vec!['0'; usize::from(Lanes::MOST)];
    for lane in lanes {
        if let Some(place) = mask.get_mut(usize::from(lane)) {
            *place = '1';
        }
    }
    mask.into_iter().collect()
}

/// The lane that a column says.
pub(crate) fn lane(stored: i64) -> u16 {
    u16::try_from(stored).unwrap_or(u16::MAX)
}

/// Holds as a JSON array of arrays, each once and in the order in which everybody locks lanes.
pub(crate) fn holds_json(holds: impl Iterator<Item = Hold>) -> String {
    let holds: std::collections::BTreeSet<Hold> = holds.collect();
    json_text(holds.iter().map(|hold| json!([hold.lane, hold.fence])))
}

/// The lanes of what is not held.
pub(crate) fn refused(holds: impl Iterator<Item = Hold>, held: &HashSet<Hold>) -> Vec<u16> {
    let lanes: std::collections::BTreeSet<u16> =
        holds.filter(|hold| !held.contains(hold)).map(|hold| hold.lane).collect();
    lanes.into_iter().collect()
}

/// Lanes that are free and are taken.
pub(crate) struct Takes {
    pub(crate) holds: Vec<Hold>,
    /// Those of them, as a [`mask`], that nobody owned since who takes them did: what it had under way ended with nobody's
    /// process.
    pub(crate) continued: String,
}

impl Takes {
    /// Of these lanes, each with the fence that was the last and the one that is to be the next.
    pub(crate) fn of(free: impl Iterator<Item = (u16, i64, i64)>, held_last: &[Hold]) -> Self {
        let free: Vec<(Hold, Hold)> =
            free.map(|(lane, last, next)| (Hold { lane, fence: last }, Hold { lane, fence: next })).collect();
        let continued = free.iter().filter(|(last, _)| held_last.contains(last));
        Self {
            continued: mask(continued.map(|(last, _)| last.lane)),
            holds: free.iter().map(|(_, next)| *next).collect(),
        }
    }
}

/// Values as a JSON array.
pub(crate) fn json_text(values: impl Iterator<Item = Value>) -> String {
    Value::Array(values.collect()).to_string()
}

/// How an event is parked.
pub(crate) struct Place<'a> {
    pub(crate) park: &'a Park,
    blocks: bool,
    /// In how many microseconds it is due; `None` if it is not, or at the event's own time.
    due: Option<i64>,
}

/// The places of these events, in their order, behind aggregates that are blocked already.
pub(crate) fn places<'a>(
    parks: impl Iterator<Item = &'a Park>,
    mut blocked: HashSet<String>,
) -> Vec<Place<'a>> {
    let place = |park: &'a Park| {
        // Of an aggregate one after the other is due, whatever each waits for.
        let behind = blocked.contains(&park.key);
        let (blocks, due) = match park.wait {
            Wait::Behind | Wait::Suspect => (true, (!behind).then_some(0)),
            Wait::After(length) => (true, (!behind).then(|| micros(length))),
            Wait::Delay => (false, None),
            Wait::Running => (true, Some(0)),
            Wait::Dead { blocks } => (blocks, None),
        };
        if blocks && !behind {
            blocked.insert(park.key.clone());
        }
        Place { park, blocks, due }
    };
    parks.map(place).collect()
}

impl Place<'_> {
    /// As the statements read it, with the id in the database's words.
    pub(crate) fn json(&self, id: &str) -> Value {
        let park = self.park;
        json!([
            park.sequence,
            id,
            park.hold.lane,
            park.topic,
            park.key,
            i32::from(self.blocks),
            i32::from(park.wait == Wait::Suspect),
            park.attempts,
            self.due,
            i32::from(park.wait == Wait::Delay),
            (park.wait == Wait::Running).then_some(park.hold.fence),
            matches!(park.wait, Wait::Dead { .. }).then_some("dead"),
            park.error.as_deref().map(stored_error),
        ])
    }
}

/// A parked event that may be claimed.
pub(crate) struct Waiting {
    pub(crate) hold: Hold,
    pub(crate) position: i64,
    pub(crate) sequence: i64,
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) key: String,
    pub(crate) attempts: u32,
    pub(crate) suspect: bool,
    pub(crate) blocks: bool,
    pub(crate) last_error: Option<String>,
    /// Since when it is due, in whichever numbers, to compare it with others.
    pub(crate) due: i64,
}

impl Waiting {
    /// Whether those behind it are claimed with it.
    pub(crate) fn leads(&self) -> bool {
        self.attempts == 0 && !self.suspect && self.blocks
    }

    /// Claimed.
    pub(crate) fn into_parked(
        self,
        created_at: OffsetDateTime,
        event: std::result::Result<Event, String>,
    ) -> Parked {
        Parked {
            hold: self.hold,
            position: self.position,
            sequence: self.sequence,
            id: self.id,
            topic: self.topic,
            attempt: self.attempts + 1,
            suspect: self.suspect,
            last_error: self.last_error,
            created_at,
            event,
        }
    }
}

/// Those that have been due longest, of both kinds.
pub(crate) fn longest_due(mut one: Vec<Waiting>, mut other: Vec<Waiting>, limit: u32) -> Vec<Waiting> {
    one.append(&mut other);
    one.sort_by_key(|waiting| (waiting.due, waiting.position));
    one.truncate(limit as usize);
    one
}

/// How a claimed parked event ended, and what is known of its row.
pub(crate) struct Ended<'a> {
    pub(crate) position: i64,
    pub(crate) key: String,
    pub(crate) blocks: bool,
    pub(crate) end: &'a ParkedEnd,
}

impl Ended<'_> {
    /// Whether it is parked no longer.
    pub(crate) fn is_delivered(&self) -> bool {
        self.end.verdict == ParkedVerdict::Delivered
    }

    /// As the statements read it: its place, what became of it, when it is due, why, and whether others wait.
    pub(crate) fn json(&self) -> Value {
        let after = self.wait();
        let (verdict, due, error, blocks) = match &self.end.verdict {
            ParkedVerdict::Delivered => (code::DELIVERED, None, None, self.blocks),
            ParkedVerdict::Retry { error, .. } => (code::RETRY, Some(after), Some(error), true),
            ParkedVerdict::Dead { error, blocks } => (code::DEAD, None, Some(error), *blocks),
            // Where others wait for it, it may itself wait for others: if it does not, it is let come up.
            ParkedVerdict::Released { .. } => {
                (code::RELEASED, (!self.blocks).then_some(after), None, self.blocks)
            }
            ParkedVerdict::Behind => (BEHIND, (!self.blocks).then_some(after), None, self.blocks),
        };
        json!([self.position, verdict, due, error.map(|error| stored_error(error)), i32::from(blocks)])
    }

    /// In how many microseconds it is due once it is the first of its aggregate.
    pub(crate) fn wait(&self) -> i64 {
        match &self.end.verdict {
            ParkedVerdict::Retry { after, .. } | ParkedVerdict::Released { after } => micros(*after),
            _ => 0,
        }
    }
}

/// The first events of aggregates as the statements read them: their places, and in how many microseconds they are due.
pub(crate) fn firsts_json(firsts: &[i64], ended: &[Ended<'_>]) -> String {
    let waits: std::collections::HashMap<i64, i64> =
        ended.iter().map(|ended| (ended.position, ended.wait())).collect();
    json_text(firsts.iter().map(|first| json!([first, waits.get(first).copied().unwrap_or(0)])))
}

/// The aggregates of these, each once.
pub(crate) fn keys_json<'k>(keys: impl Iterator<Item = &'k str>) -> String {
    let keys: std::collections::BTreeSet<&str> = keys.collect();
    json_text(keys.into_iter().map(|key| json!(key)))
}

/// How long ago, in microseconds.
pub(crate) fn age(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}
