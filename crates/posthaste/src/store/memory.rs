//! An outbox in the process's memory: the same rules as the databases', for tests without a server.
//!
//! Its clock begins as the system's and runs with tokio's, which a test can pause, plus whatever is added with
//! [`MemoryStore::advance`].

mod health;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

use super::claim::exhausted;
use super::settlement::{rounds, stored_error};
use super::{
    Arrival, Arrivals, Buried, Claim, Claimed, ClaimedBatch, Count, Dialect, Difference, Ending, Enqueued,
    Extended, Filter, Health, Keep, Lease, Lock, Mark, MigrationState, Notifications, Page, Purge, Record,
    Running, Session, Settled, Settlement, Sought, Stats, Status, Store, TableName, Verdict, WorkerId,
};
use crate::error::Result;
use crate::event::{Available, Event};

/// An outbox table in memory; clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    table: TableName,
    rows: Arc<Mutex<Rows>>,
}

#[derive(Debug)]
struct Rows {
    by_sequence: BTreeMap<i64, Row>,
    sequences: HashMap<Uuid, i64>,
    last_sequence: i64,
    locks: HashMap<Lock, WorkerId>,
    began: (OffsetDateTime, Instant),
    advanced: Duration,
}

impl Default for Rows {
    fn default() -> Self {
        Self {
            by_sequence: BTreeMap::new(),
            sequences: HashMap::new(),
            last_sequence: 0,
            locks: HashMap::new(),
            began: (OffsetDateTime::now_utc(), Instant::now()),
            advanced: Duration::ZERO,
        }
    }
}

#[derive(Debug, Clone)]
struct Row {
    event: Event,
    sequence: i64,
    created_at: OffsetDateTime,
    available_at: OffsetDateTime,
    attempts: u32,
    locked_by: Option<Arc<str>>,
    locked_until: Option<OffsetDateTime>,
    outcome: Option<Ending>,
    settled_at: Option<OffsetDateTime>,
    last_error: Option<String>,
}

impl MemoryStore {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty table of this name.
    pub fn named(table: TableName) -> Self {
        Self { table, ..Self::default() }
    }

    /// Moves its clock forward, so that leases end and delays pass without waiting.
    pub fn advance(&self, by: Duration) {
        self.lock().advanced += by;
    }

    /// Whether it is a clone of this one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rows, &other.rows)
    }

    /// Every event in the table, in the order of their writing.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.lock().by_sequence.values().map(|row| row.event.clone()).collect()
    }

    /// Writes events, as at the end of a transaction.
    pub(crate) fn write(&self, events: &[Event]) -> Vec<Enqueued> {
        let mut rows = self.lock();
        events.iter().map(|event| rows.insert(event)).collect()
    }

    /// What writing the event would answer now, without writing it.
    pub(crate) fn find_first(&self, event: &Event) -> Option<Enqueued> {
        self.lock().first(event).map(|row| Enqueued::duplicate(row.event.id, Some(row.sequence)))
    }

    // A panic elsewhere cannot leave the rows half-changed in a way that matters to a test.
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    fn now(&self) -> OffsetDateTime {
        let (time, instant) = self.began;
        time + instant.elapsed() + self.advanced
    }

    fn first(&self, event: &Event) -> Option<&Row> {
        let same_id = self.sequences.get(&event.id).and_then(|sequence| self.by_sequence.get(sequence));
        let same_key = || self.by_sequence.values().find(|row| same_dedupe_key(&row.event, event));
        same_id.or_else(|| event.dedupe_key.as_ref().and_then(|_| same_key()))
    }

    fn insert(&mut self, event: &Event) -> Enqueued {
        if let Some(row) = self.first(event) {
            return Enqueued::duplicate(row.event.id, Some(row.sequence));
        }
        let now = self.now();
        let available_at = match event.available {
            Available::Now => now,
            Available::After(delay) => now + delay,
            Available::At(at) => at,
        };
        let mut event = event.clone();
        event.occurred_at.get_or_insert(now);
        event.available = Available::At(available_at);
        self.last_sequence += 1;
        let (id, sequence) = (event.id, self.last_sequence);
        let row = Row {
            event,
            sequence,
            created_at: now,
            available_at,
            attempts: 0,
            locked_by: None,
            locked_until: None,
            outcome: None,
            settled_at: None,
            last_error: None,
        };
        self.by_sequence.insert(sequence, row);
        self.sequences.insert(id, sequence);
        Enqueued::new(id, Some(sequence))
    }

    fn remove(&mut self, sequence: i64) {
        if let Some(row) = self.by_sequence.remove(&sequence) {
            self.sequences.remove(&row.event.id);
        }
    }

    fn claim(&mut self, claim: &Claim) -> ClaimedBatch {
        let now = self.now();
        let holder = claim.worker.next_holder();
        let mut claimable: Vec<Mark> = self
            .by_sequence
            .values()
            .filter(|row| row.outcome.is_none() && row.available_at <= now && !row.is_leased(now))
            .filter(|row| claim.topics.has(&row.event.topic))
            .map(|row| Mark { available_at: row.available_at, sequence: row.sequence })
            .filter(|mark| claim.after.is_none_or(|after| *mark > after))
            .collect();
        claimable.sort_unstable();
        claimable.truncate(claim.limit as usize);
        let mut batch =
            ClaimedBatch { mark: claimable.last().copied().or(claim.after), ..ClaimedBatch::default() };
        for mark in claimable {
            let Some(row) = self.by_sequence.get_mut(&mark.sequence) else { continue };
            if row.attempts > 0 && row.attempts >= claim.attempts.of(&row.event.topic) {
                let reason = exhausted(row.locked_by.is_some(), row.last_error.take());
                row.end(Ending::Dead, Some(reason.clone()), now);
                let (id, topic) = (row.event.id, row.event.topic.to_string());
                batch.buried.push(Buried { id, sequence: row.sequence, topic, reason });
                continue;
            }
            row.attempts += 1;
            row.locked_by = Some(Arc::clone(&holder));
            row.locked_until = Some(now + claim.lease);
            let lease = Lease {
                id: row.event.id,
                sequence: row.sequence,
                holder: Arc::clone(&holder),
                attempt: row.attempts,
            };
            let mut event = row.event.clone();
            event.available = Available::At(row.available_at);
            batch.events.push(Claimed { event: Arc::new(event), lease, created_at: row.created_at });
        }
        batch
    }

    fn held(&mut self, lease: &Lease) -> Option<&mut Row> {
        let row = self.by_sequence.get_mut(&lease.sequence)?;
        let held = row.outcome.is_none()
            && row.locked_by.as_ref() == Some(&lease.holder)
            && row.attempts == lease.attempt;
        held.then_some(row)
    }

    fn settle(&mut self, settlement: &Settlement, keep: Keep) -> Option<Uuid> {
        let now = self.now();
        let row = self.held(&settlement.lease)?;
        row.locked_by = None;
        row.locked_until = None;
        match &settlement.verdict {
            Verdict::Delivered => row.end(Ending::Delivered, None, now),
            Verdict::Retry { after, error } => {
                row.available_at = now + *after;
                row.last_error = Some(stored_error(error));
            }
            Verdict::Dead { error } => row.end(Ending::Dead, Some(stored_error(error)), now),
            Verdict::Released { after } => {
                row.attempts -= 1;
                if !after.is_zero() {
                    row.available_at = now + *after;
                }
            }
        }
        if keep == Keep::Nothing && settlement.verdict == Verdict::Delivered {
            self.remove(settlement.lease.sequence);
        }
        Some(settlement.lease.id)
    }

    /// Rows that fit, in the order of their ids.
    fn fitting(&self, filter: &Filter) -> Vec<&Row> {
        let now = self.now();
        let mut rows: Vec<&Row> = self.by_sequence.values().filter(|row| row.fits(filter, now)).collect();
        rows.sort_unstable_by_key(|row| row.event.id);
        rows
    }

    fn dead(&self, filter: &Filter, limit: u32) -> Vec<i64> {
        let dead = self.fitting(filter).into_iter().filter(|row| row.outcome == Some(Ending::Dead));
        dead.take(limit as usize).map(|row| row.sequence).collect()
    }
}

impl Row {
    fn is_leased(&self, now: OffsetDateTime) -> bool {
        self.locked_until.is_some_and(|until| until > now)
    }

    fn end(&mut self, ending: Ending, error: Option<String>, now: OffsetDateTime) {
        self.outcome = Some(ending);
        self.settled_at = Some(now);
        self.last_error = error;
        self.locked_by = None;
        self.locked_until = None;
    }

    fn status(&self, now: OffsetDateTime) -> Status {
        Status::read(self.outcome.map(Ending::as_str), self.locked_until, now)
    }

    fn fits(&self, filter: &Filter, now: OffsetDateTime) -> bool {
        fn same(wanted: &Option<String>, found: Option<&str>) -> bool {
            wanted.as_deref().is_none_or(|wanted| Some(wanted) == found)
        }
        let event = &self.event;
        filter.id.is_none_or(|id| id == event.id)
            && filter.status.is_none_or(|status| status == self.status(now))
            && filter.topic.as_deref().is_none_or(|pattern| matches(pattern, &event.topic))
            && same(&filter.event_type, Some(event.event_type()))
            && same(&filter.aggregate_type, event.aggregate_type())
            && same(&filter.aggregate_id, event.aggregate_id())
            && same(&filter.tenant_id, event.tenant_id())
            && same(&filter.namespace, Some(event.namespace()))
            && filter.since.is_none_or(|since| self.created_at >= since)
            && filter.until.is_none_or(|until| self.created_at < until)
            && filter.settled_before.is_none_or(|before| self.settled_at.is_some_and(|at| at < before))
    }

    fn record(&self, now: OffsetDateTime) -> Record {
        let mut event = self.event.clone();
        event.available = Available::At(self.available_at);
        Record {
            id: event.id,
            sequence: self.sequence,
            status: self.status(now),
            attempts: self.attempts,
            locked_by: self.locked_by.as_deref().map(str::to_owned),
            locked_until: self.locked_until,
            created_at: self.created_at,
            available_at: self.available_at,
            settled_at: self.settled_at,
            last_error: self.last_error.clone(),
            event: Ok(event),
        }
    }
}

pub(crate) fn same_dedupe_key(one: &Event, other: &Event) -> bool {
    one.dedupe_key.is_some()
        && one.dedupe_key == other.dedupe_key
        && one.namespace == other.namespace
        && one.topic == other.topic
}

/// Whether a topic fits a pattern in which `*` stands for any characters.
fn matches(pattern: &str, topic: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == topic };
    let Some(mut left) = topic.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(end)
}

#[async_trait]
impl Store for MemoryStore {
    fn table(&self) -> &TableName {
        &self.table
    }

    fn dialect(&self) -> Dialect {
        Dialect::Memory
    }

    async fn now(&self) -> Result<OffsetDateTime> {
        Ok(self.lock().now())
    }

    async fn insert(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        Ok(self.write(events))
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimedBatch> {
        Ok(self.lock().claim(claim))
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Extended> {
        let mut rows = self.lock();
        let until = rows.now() + length;
        let mut extended = Extended::default();
        for lease in leases {
            match rows.held(lease) {
                Some(row) => row.locked_until = Some(until),
                None => extended.lost.push(lease.id),
            }
        }
        Ok(extended)
    }

    async fn settle(&self, settlements: &[Settlement], keep: Keep) -> Result<Settled> {
        let mut rows = self.lock();
        let mut settled = Settled::default();
        for round in rounds(settlements, |settlement| settlement.lease.id) {
            let written: Vec<Uuid> =
                round.iter().filter_map(|settlement| rows.settle(settlement, keep)).collect();
            settled.add(&round, &written);
        }
        Ok(settled)
    }

    fn with_connections(&self, _connections: u32) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn within(&self, _limit: Duration) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    fn dedicated(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    async fn session(&self, worker: &WorkerId) -> Result<Box<dyn Session>> {
        Ok(Box::new(MemorySession { store: self.clone(), worker: worker.clone() }))
    }

    async fn absent_workers(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn end_leases_of(&self, _workers: &[String]) -> Result<u64> {
        Ok(0)
    }

    async fn notify(&self) -> Result<()> {
        Ok(())
    }

    async fn listen(&self) -> Result<Option<Box<dyn Notifications>>> {
        Ok(None)
    }

    async fn get(&self, id: Uuid) -> Result<Option<Record>> {
        let rows = self.lock();
        let row = rows.sequences.get(&id).and_then(|sequence| rows.by_sequence.get(sequence));
        Ok(row.map(|row| row.record(rows.now())))
    }

    async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<Record>> {
        let rows = self.lock();
        let mut fitting = rows.fitting(filter);
        if page.newest_first {
            fitting.reverse();
        }
        let behind = |row: &&&Row| match page.after {
            None => true,
            Some(id) if page.newest_first => row.event.id < id,
            Some(id) => row.event.id > id,
        };
        Ok(fitting
            .iter()
            .filter(behind)
            .take(page.limit as usize)
            .map(|row| row.record(rows.now()))
            .collect())
    }

    async fn arrivals(&self, sought: Sought<'_>) -> Result<Arrivals> {
        let rows = self.lock();
        let arrived = |row: &Row| Arrival {
            sequence: row.sequence,
            id: row.event.id,
            created_at: row.record(rows.now()).created_at,
        };
        let all = &rows.by_sequence;
        let rows = match sought {
            Sought::Newest { limit, .. } => all.values().rev().take(limit as usize).map(arrived).collect(),
            Sought::After { sequence, limit, .. } => all
                .range(sequence.saturating_add(1)..)
                .take(limit as usize)
                .map(|(_, row)| arrived(row))
                .collect(),
            Sought::Among(missed) => {
                missed.iter().filter_map(|missed| all.get(&missed.sequence)).map(arrived).collect()
            }
        };
        // A row is written when its transaction commits.
        Ok(Arrivals::of(rows, sought.limit(), Running::InOrder))
    }

    async fn fitting(&self, filter: &Filter, ids: &[Uuid]) -> Result<Vec<Record>> {
        let rows = self.lock();
        let named = rows.fitting(filter).into_iter().filter(|row| ids.contains(&row.event.id));
        Ok(named.map(|row| row.record(rows.now())).collect())
    }

    async fn count(&self, filter: &Filter, cap: u32) -> Result<Count> {
        let rows = self.lock();
        let state = Filter { id: filter.id, status: filter.status, ..Filter::default() };
        let looked_at: Vec<&Row> = rows.fitting(&state).into_iter().take(cap as usize + 1).collect();
        let fitting = looked_at.iter().filter(|row| row.fits(filter, rows.now())).count();
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        Ok(Count::among(number(looked_at.len()), number(fitting), cap))
    }

    async fn stats(&self, cap: u32) -> Result<Stats> {
        let rows = self.lock();
        let now = rows.now();
        let count = |status| {
            let n = rows.by_sequence.values().filter(|row| row.status(now) == status).count();
            Count::of(i64::try_from(n).unwrap_or(i64::MAX), cap)
        };
        let open = rows.by_sequence.values().filter(|row| row.outcome.is_none() && row.available_at <= now);
        Ok(Stats {
            pending: count(Status::Pending),
            processing: count(Status::Processing),
            dead: count(Status::Dead),
            oldest_age: open.map(|row| row.available_at).min().map(|at| (now - at).unsigned_abs()),
        })
    }

    async fn replay(&self, filter: &Filter, limit: u32) -> Result<u64> {
        let mut rows = self.lock();
        let now = rows.now();
        let dead = rows.dead(filter, limit);
        for sequence in &dead {
            if let Some(row) = rows.by_sequence.get_mut(sequence) {
                row.outcome = None;
                row.settled_at = None;
                row.attempts = 0;
                row.available_at = now;
            }
        }
        Ok(dead.len() as u64)
    }

    async fn discard(&self, filter: &Filter, limit: u32) -> Result<u64> {
        let mut rows = self.lock();
        let dead = rows.dead(filter, limit);
        for sequence in &dead {
            rows.remove(*sequence);
        }
        Ok(dead.len() as u64)
    }

    async fn purge(&self, purge: Purge) -> Result<u64> {
        let mut rows = self.lock();
        let cutoff = rows.now() - purge.older_than;
        let old = rows
            .by_sequence
            .values()
            .filter(|row| row.outcome == Some(purge.ending) && row.settled_at.is_some_and(|at| at <= cutoff));
        let old: Vec<i64> = old.take(purge.limit as usize).map(|row| row.sequence).collect();
        for sequence in &old {
            rows.remove(*sequence);
        }
        Ok(old.len() as u64)
    }

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }

    async fn migrate_up(&self) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    async fn migrate_down(&self, _target: u32) -> Result<Vec<u32>> {
        let mut rows = self.lock();
        rows.by_sequence.clear();
        rows.sequences.clear();
        Ok(Vec::new())
    }

    async fn migrations(&self) -> Result<Vec<MigrationState>> {
        Ok(Vec::new())
    }

    async fn validate(&self) -> Result<Vec<Difference>> {
        Ok(Vec::new())
    }

    async fn close(&self) {}
}

/// A session on a table in memory: its locks are entries in the table's own list.
struct MemorySession {
    store: MemoryStore,
    worker: WorkerId,
}

#[async_trait]
impl Session for MemorySession {
    fn worker(&self) -> &WorkerId {
        &self.worker
    }

    async fn try_lock(&mut self, lock: Lock) -> Result<bool> {
        let mut rows = self.store.lock();
        Ok(*rows.locks.entry(lock).or_insert_with(|| self.worker.clone()) == self.worker)
    }

    async fn unlock(&mut self, lock: Lock) -> Result<()> {
        self.store.lock().locks.retain(|held, holder| *held != lock || *holder != self.worker);
        Ok(())
    }

    async fn check(&mut self) -> Result<()> {
        Ok(())
    }

    async fn close(self: Box<Self>) {}
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.store.lock().locks.retain(|_, holder| *holder != self.worker);
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, topic, fits) in [
            ("a.b", "a.b", true),
            ("a.*", "a.b", true),
            ("a.*", "b.a.b", false),
            ("*", "", true),
            ("*.v1", "order.placed.v1", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern, topic), fits, "{pattern} on {topic}");
        }
    }
}
