//! How far lanes are behind, put together of what was counted, the same for MySQL, MariaDB and SQLite.

use std::collections::HashMap;
use std::time::Duration;

use super::LaneLag;
use crate::store::Count;

/// How far those are counted that wait behind a dead event.
pub(crate) const MOST_WAITING: u32 = 10_000;

/// What was counted, by lane.
pub(crate) struct Counted {
    /// Events that were not read or are under way, and how many microseconds ago the oldest was written.
    pub(crate) events: HashMap<u16, (i64, Option<i64>)>,
    /// Parked events.
    pub(crate) parked: HashMap<u16, i64>,
    /// Aggregates that stay blocked, and the dead events that block them.
    pub(crate) dead: HashMap<u16, (i64, i64)>,
}

impl Counted {
    /// Of these lanes with their owners, where no more than `cap` of each kind were counted.
    pub(crate) fn lag(self, owners: impl Iterator<Item = (u16, Option<String>)>, cap: u32) -> Vec<LaneLag> {
        let events = self.events.values().map(|(rows, _)| rows).sum();
        let parked = self.parked.values().sum();
        let dead = self.dead.values().map(|(_, rows)| rows).sum();
        let lag = |(lane, owner)| {
            let (unread, oldest) = self.events.get(&lane).copied().unwrap_or_default();
            let (blocked, _) = self.dead.get(&lane).copied().unwrap_or_default();
            LaneLag {
                lane,
                owner,
                events: Count::among(events, unread, cap),
                age: oldest.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
                parked: Count::among(parked, self.parked.get(&lane).copied().unwrap_or_default(), cap),
                blocked: Count::among(dead, blocked, cap),
            }
        };
        owners.map(lag).collect()
    }
}
