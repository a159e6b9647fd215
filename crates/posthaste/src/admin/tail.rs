//! Following a table: events as they are committed.
//!
//! Sequences are given out when rows are written, so that an event may appear below others that were seen before. A
//! sequence that is passed over is looked for again until it is there or its transaction cannot be running any more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use uuid::Uuid;

use super::Admin;
use crate::error::Result;
use crate::store::arrivals::SLACK;
use crate::store::{Arrival, Filter, Missed, Record, Running, Sought, Store};

/// Events read at once.
const PAGE: usize = 200;
/// How far back the beginning is looked for, how many rows are found at once, and how many sequences are missed at most.
const FAR: u32 = 10_000;
/// For how long a sequence is missed at least: one may have been given out to a transaction that the database does not
/// count as running yet.
const SOON: Duration = Duration::from_secs(5);
/// And for how long at most, where the database does not say what is running.
const LONG: Duration = Duration::from_secs(60 * 60);

/// What may still be running when it begins wrote its rows of late.
const RECENT: Duration = Duration::from_secs(10 * 60);
/// How many sequences are missed below the first row of all, of which nothing is known.
const BELOW: i64 = 1000;
/// Missed sequences looked for at once.
const SOUGHT: usize = 2000;

/// A look at what has been committed since the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// Events that fit, in the order of their sequences.
    pub events: Vec<Record>,
    /// Whether there is more to be read at once.
    pub more: bool,
    /// Whether sequences were given up that might still be committed: too many were missing at once.
    pub overlooked: bool,
}

/// Follows a table; each look costs a bounded amount.
///
/// ```
/// use posthaste::store::Filter;
/// # use posthaste::{Event, testing};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
/// # let outbox = testing::outbox();
/// let mut tail = outbox.admin().tail(Filter::all().topic("order.*"), None).await?;
/// # let mut tx = outbox.begin();
/// # outbox.enqueue(&mut tx, Event::json("order.placed.v1", &42)?).await?;
/// # tx.commit();
/// for record in tail.look().await?.events {
///     println!("{} {:?}", record.id, record.topic());
/// }
/// # Ok(()) }
/// ```
pub struct Tail {
    store: Arc<dyn Store>,
    filter: Filter,
    /// Everything above has not been looked for.
    after: i64,
    /// When the last row before was written: what is above was at about that time, or later.
    at: OffsetDateTime,
    /// Found above it, and not passed yet: what has been written since some time is looked for once, not with each page.
    ahead: VecDeque<Arrival>,
    /// Whether there is more than that, and what was known of transactions when it was found.
    more: bool,
    running: Running,
    missing: BTreeMap<i64, Missing>,
    /// Found, and not told yet: the database was gone in between.
    untold: Vec<Uuid>,
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tail")
            .field("table", self.store.table())
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

/// A sequence that was passed over.
#[derive(Debug, Clone, Copy)]
struct Missing {
    /// When the rows around it were written: this one was at about that time.
    since: OffsetDateTime,
    until: OffsetDateTime,
    noticed: Instant,
    looked: Instant,
    /// The next transaction to begin, once it has been missing for a while: those before are the ones that may have it.
    before: Option<u64>,
}

impl Missing {
    fn new(since: OffsetDateTime, until: OffsetDateTime) -> Self {
        let now = Instant::now();
        Self { since, until, noticed: now, looked: now, before: None }
    }

    /// The longer it has been missing, the more rarely it is looked for.
    fn is_due(&self, now: Instant) -> bool {
        now - self.looked >= (now - self.noticed) / 8
    }

    /// Whether it may still come.
    fn may_come(&mut self, running: Running, now: Instant) -> bool {
        let missing_for = now - self.noticed;
        match running {
            Running::InOrder => false,
            Running::Unknown => missing_for < LONG,
            Running::From(..) if missing_for < SOON => true,
            Running::From(oldest, next) => oldest < *self.before.get_or_insert(next),
        }
    }
}

impl Admin {
    /// Follows the table: events that fit and are committed from now on, and before them those that were written since a
    /// time, if one is given, among the newest 10 000.
    ///
    /// On PostgreSQL and SQLite no event is missed, however late it is committed; on MySQL and MariaDB none that is committed
    /// within an hour of its insert. Three can be: one that is delivered and deleted between two looks, one whose row says
    /// that it was written at another time (PostgreSQL), and one that was inserted, when it began, more than ten minutes
    /// ago or before the newest 10 000. Should more than 10 000 sequences be missing at once, [`Committed::overlooked`] says so.
    pub async fn tail(&self, filter: Filter, since: Option<OffsetDateTime>) -> Result<Tail> {
        let store = Arc::clone(&self.store);
        let now = store.now().await?;
        let recently = now - RECENT;
        let from = since.unwrap_or(recently).min(recently);
        let begun = store.arrivals(Sought::Newest { limit: FAR, since: from - SLACK }).await?;
        let rows = &begun.rows[..];
        let mut tail = Tail {
            store,
            filter,
            after: 0,
            at: from,
            ahead: VecDeque::new(),
            more: false,
            running: begun.running,
            missing: BTreeMap::new(),
            untold: Vec::new(),
        };
        // Where it begins is behind everything that is not to be told, and may be in the middle of what was written of late.
        let first = since.and_then(|since| rows.iter().position(|row| row.created_at >= since));
        let (before, told) = rows.split_at(first.unwrap_or(rows.len()));
        let late = before.iter().position(|row| row.created_at >= recently).unwrap_or(before.len());
        if let Some(row) = before.get(late) {
            tail.after = row.sequence - 1;
        }
        tail.pass(&before[late..], begun.running, now);
        tail.after = match (before.last(), told.first()) {
            (Some(row), _) => row.sequence,
            (None, Some(row)) => row.sequence - 1,
            (None, None) => 0,
        };
        tail.ahead = told.to_vec().into();
        Ok(tail)
    }
}

impl Tail {
    /// What has been committed since the last look.
    pub async fn look(&mut self) -> Result<Committed> {
        let now = self.store.now().await?;
        if self.ahead.is_empty() {
            let sought = Sought::After { sequence: self.after, written: self.at, limit: FAR };
            let arrived = self.store.arrivals(sought).await?;
            (self.more, self.running) = (arrived.more, arrived.running);
            self.ahead = arrived.rows.into();
        }
        let page: Vec<Arrival> = self.ahead.drain(..self.ahead.len().min(PAGE)).collect();
        let more = self.more || !self.ahead.is_empty();
        let overlooked = self.pass(&page, self.running, now);
        self.untold.extend(page.iter().map(|row| row.id));
        self.look_for_missing().await?;
        let mut events = self.store.fitting(&self.filter, &self.untold).await?;
        self.untold.clear();
        events.sort_unstable_by_key(|record| record.sequence);
        Ok(Committed { events, more, overlooked })
    }

    /// Finds what was passed over and is there by now.
    async fn look_for_missing(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut due: Vec<(Instant, i64)> = self
            .missing
            .iter()
            .filter(|(_, missing)| missing.is_due(now))
            .map(|(sequence, missing)| (missing.looked, *sequence))
            .collect();
        due.sort_unstable();
        due.truncate(SOUGHT);
        let missed = |sequence: i64| {
            let Missing { since, until, .. } = *self.missing.get(&sequence)?;
            Some(Missed { sequence, since, until })
        };
        let due: Vec<Missed> = due.into_iter().filter_map(|(_, sequence)| missed(sequence)).collect();
        if due.is_empty() {
            return Ok(());
        }
        let found = self.store.arrivals(Sought::Among(&due)).await?;
        for row in &found.rows {
            self.missing.remove(&row.sequence);
            self.untold.push(row.id);
        }
        for Missed { sequence, .. } in due {
            if let Some(missing) = self.missing.get_mut(&sequence) {
                missing.looked = now;
                if !missing.may_come(found.running, now) {
                    self.missing.remove(&sequence);
                }
            }
        }
        Ok(())
    }

    /// Goes on behind these rows and remembers what is missing between them; whether some of that was given up.
    fn pass(&mut self, rows: &[Arrival], running: Running, now: OffsetDateTime) -> bool {
        let mut overlooked = false;
        for row in rows {
            if running != Running::InOrder {
                let furthest = match self.after {
                    0 => row.sequence.saturating_sub(BELOW),
                    after => {
                        overlooked |= row.sequence - after > i64::from(FAR);
                        row.sequence.saturating_sub(i64::from(FAR))
                    }
                };
                // Whose row says that it was written before its forerunner says nothing of the time in between.
                let until = if row.created_at < self.at - SLACK { now } else { row.created_at.min(now) };
                for sequence in (self.after + 1).max(furthest)..row.sequence {
                    self.missing.insert(sequence, Missing::new(self.at, until.max(self.at)));
                }
            }
            self.after = self.after.max(row.sequence);
            // A producer may have said any time.
            self.at = self.at.max(row.created_at.min(now));
        }
        while self.missing.len() > FAR as usize {
            self.missing.pop_first();
            overlooked = true;
        }
        overlooked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_a_sequence_is_missed_until_its_transaction_must_have_ended() {
        let mut missing = Missing::new(OffsetDateTime::UNIX_EPOCH, OffsetDateTime::UNIX_EPOCH);
        let begun = missing.noticed;
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert!(missing.may_come(Running::From(50, 50), after(1)), "it may have begun only now");
        assert!(missing.may_come(Running::From(40, 60), after(6)));
        assert!(missing.may_come(Running::From(59, 90), after(7200)), "one from before still runs");
        assert!(!missing.may_come(Running::From(60, 90), after(7200)));
        assert!(missing.may_come(Running::Unknown, after(3599)));
        assert!(!missing.may_come(Running::Unknown, after(3601)));
        assert!(!missing.may_come(Running::InOrder, after(0)));
    }

    #[test]
    fn op1_what_has_been_missing_for_long_is_looked_for_rarely() {
        let mut missing = Missing::new(OffsetDateTime::UNIX_EPOCH, OffsetDateTime::UNIX_EPOCH);
        missing.looked = missing.noticed + Duration::from_secs(80);
        assert!(!missing.is_due(missing.noticed + Duration::from_secs(90)));
        assert!(missing.is_due(missing.noticed + Duration::from_secs(92)));
    }
}
