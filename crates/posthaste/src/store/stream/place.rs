//! Places: where parked events stand among those of their aggregate, worked out between a lane's lock and its
//! release, the same for MySQL, MariaDB and SQLite.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{Hold, Lanes, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Wait};
use crate::event::Event;
use crate::store::AttemptLimits;
use crate::store::settlement::{code, micros, stored_error};

/// Behind how many first events of a claim it is looked for others: each is a statement of its own.
const MOST_RUNS: usize = 32;

/// The number by which the statements know [`ParkedVerdict::Behind`], beside those of the queue's verdicts.
const BEHIND: i32 = 4;

/// An event's row. It is found by its place in the table and compared by its id: after a failover to a server that does not
/// know of the last writes, the place may be another event's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowId {
    pub(crate) sequence: i64,
    pub(crate) id: Uuid,
}

impl RowId {
    /// Of an event that is to be parked.
    pub(crate) fn of(park: &Park) -> Self {
        Self { sequence: park.sequence, id: park.id }
    }
}

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
    /// Its row.
    pub(crate) fn row(&self) -> RowId {
        RowId { sequence: self.sequence, id: self.id }
    }

    /// Whether those behind it are claimed with it.
    fn leads(&self) -> bool {
        self.attempts == 0 && !self.suspect && self.blocks
    }

    /// Whether it has no attempt left; the first one always is.
    pub(crate) fn is_spent(&self, limits: &AttemptLimits) -> bool {
        self.attempts > 0 && self.attempts >= limits.of(&self.topic)
    }

    /// Claimed, unless it is spent.
    pub(crate) fn into_parked(
        self,
        limits: &AttemptLimits,
        created_at: OffsetDateTime,
        event: std::result::Result<Event, String>,
    ) -> Parked {
        let spent = self.is_spent(limits);
        Parked {
            hold: self.hold,
            position: self.position,
            sequence: self.sequence,
            id: self.id,
            topic: self.topic,
            attempt: if spent { self.attempts } else { self.attempts + 1 },
            spent,
            suspect: self.suspect,
            last_error: self.last_error,
            blocks: self.blocks,
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

/// First events of a claim, each followed by those right behind it where it was never tried, as far as there is room.
pub(crate) struct Runs<'c> {
    claim: &'c ParkedClaim<'c>,
    room: usize,
    runs: usize,
    pub(crate) found: Vec<Waiting>,
}

impl<'c> Runs<'c> {
    /// Of none yet, but of so many to come.
    pub(crate) fn new(firsts: usize, claim: &'c ParkedClaim<'c>) -> Self {
        let limit = claim.limit as usize;
        Self { claim, room: limit.saturating_sub(firsts), runs: 0, found: Vec::with_capacity(limit) }
    }

    /// How many are to be looked for behind this one; `None`: it leads nobody, or there is no room.
    pub(crate) fn room_behind(&mut self, first: &Waiting) -> Option<i64> {
        if !first.leads() || self.room == 0 || self.runs == MOST_RUNS {
            return None;
        }
        self.runs += 1;
        Some(i64::try_from(self.room).unwrap_or(i64::MAX))
    }

    /// Adds a first one, and those behind it up to one that may not be tried now.
    pub(crate) fn add(&mut self, first: Waiting, behind: Vec<(Waiting, bool)>) {
        self.found.push(first);
        let topics = self.claim.topics;
        let run = behind.into_iter().take_while(|(next, may)| *may && topics.has(&next.topic));
        let before = self.found.len();
        self.found.extend(run.map(|(next, _)| next));
        self.room -= self.found.len() - before;
    }
}

/// How claimed parked events ended, of each the first word.
pub(crate) struct Ends<'a>(HashMap<i64, &'a ParkedEnd>);

impl<'a> Ends<'a> {
    pub(crate) fn of(ends: impl Iterator<Item = &'a ParkedEnd>) -> Self {
        let mut by_sequence = HashMap::new();
        for end in ends {
            by_sequence.entry(end.sequence).or_insert(end);
        }
        Self(by_sequence)
    }

    /// As the statements read them: their places in the table, lanes, and the fences that they are claimed under, if they are.
    pub(crate) fn json(&self) -> String {
        let claimed = |end: &ParkedEnd| match end.verdict {
            ParkedVerdict::Spent { .. } => None,
            _ => Some(end.hold.fence),
        };
        json_text(self.0.values().map(|end| json!([end.sequence, end.hold.lane, claimed(end)])))
    }

    /// Those that are parked and claimed like this, in their order: places among the parked and in the table, ids, what they
    /// are in order with, and whether others wait for them.
    pub(crate) fn found(
        mut self,
        rows: impl Iterator<Item = (i64, i64, Uuid, String, bool)>,
    ) -> Vec<Ended<'a>> {
        let ended = rows.filter_map(|(position, sequence, id, key, blocks)| {
            self.0.remove(&sequence).map(|end| Ended { position, id, key, blocks, end })
        });
        let mut ended: Vec<Ended<'a>> = ended.collect();
        ended.sort_by_key(|ended| ended.position);
        ended
    }
}

/// How a claimed parked event ended, and what is known of its row.
pub(crate) struct Ended<'a> {
    pub(crate) position: i64,
    id: Uuid,
    pub(crate) key: String,
    blocks: bool,
    end: &'a ParkedEnd,
}

impl Ended<'_> {
    /// Its event's row.
    pub(crate) fn row(&self) -> RowId {
        RowId { sequence: self.end.sequence, id: self.id }
    }

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
            ParkedVerdict::Dead { error, blocks } | ParkedVerdict::Spent { error, blocks } => {
                (code::DEAD, None, Some(error), *blocks)
            }
            // Where others wait for it, it may itself wait for others: if it does not, it is let come up.
            ParkedVerdict::Released { .. } => {
                (code::RELEASED, (!self.blocks).then_some(after), None, self.blocks)
            }
            ParkedVerdict::Behind => (BEHIND, (!self.blocks).then_some(after), None, self.blocks),
        };
        json!([self.position, verdict, due, error.map(|error| stored_error(error)), i32::from(blocks)])
    }

    /// In how many microseconds it is due once it is the first of its aggregate.
    fn wait(&self) -> i64 {
        match &self.end.verdict {
            ParkedVerdict::Retry { after, .. } | ParkedVerdict::Released { after } => micros(*after),
            _ => 0,
        }
    }
}

/// The first events of aggregates as the statements read them: their places, and in how many microseconds they are due.
pub(crate) fn firsts_json(firsts: &[i64], ended: &[Ended<'_>]) -> String {
    let waits: HashMap<i64, i64> = ended.iter().map(|ended| (ended.position, ended.wait())).collect();
    json_text(firsts.iter().map(|first| json!([first, waits.get(first).copied().unwrap_or(0)])))
}

/// The aggregates of these, each once.
pub(crate) fn keys_json<'k>(keys: impl Iterator<Item = &'k str>) -> String {
    let keys: std::collections::BTreeSet<&str> = keys.collect();
    json_text(keys.into_iter().map(|key| json!(key)))
}
