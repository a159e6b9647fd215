//! The reference: what a table of events is, in the fewest words.
//!
//! Time is in whole seconds that pass only when a script says so; what happens within the same second may
//! come in either order.

use std::collections::{BTreeMap, BTreeSet};

use posthaste::store::{ClaimedBatch, Ending, Keep, Lease, Mark, Record, Settled, Status};
use posthaste::{Enqueued, Event};
use uuid::Uuid;

use super::operation::{ATTEMPTS, DELAY, Kindness, LEASE, RETRY};

#[derive(Default)]
pub struct Model {
    now: u64,
    rows: BTreeMap<Uuid, Row>,
    /// Every id ever enqueued, to be enqueued again.
    ids: Vec<Uuid>,
    /// Every lease ever handed out.
    leases: Vec<Lease>,
    marks: BTreeMap<u8, (Mark, u64)>,
}

#[derive(Clone)]
struct Row {
    topic: u8,
    key: Option<u8>,
    available: u64,
    attempts: u32,
    holder: Option<String>,
    leased_until: Option<u64>,
    ending: Option<(Ending, u64)>,
    error: Option<&'static str>,
}

impl Row {
    fn is_claimable(&self, now: u64) -> bool {
        self.ending.is_none() && self.available <= now && self.leased_until.is_none_or(|until| until <= now)
    }

    fn status(&self, now: u64) -> Status {
        match self.ending {
            Some((Ending::Delivered, _)) => Status::Delivered,
            Some((Ending::Dead, _)) => Status::Dead,
            None if self.leased_until.is_some_and(|until| until > now) => Status::Processing,
            None => Status::Pending,
        }
    }

    fn end(&mut self, ending: Ending, now: u64, error: Option<&'static str>) {
        self.ending = Some((ending, now));
        self.error = error;
        self.holder = None;
        self.leased_until = None;
    }
}

fn topic_of(event: &Event) -> u8 {
    if event.topic() == "topic-0" { 0 } else { 1 }
}

fn key_of(event: &Event) -> Option<u8> {
    event.dedupe_key().map(|key| if key == "key-0" { 0 } else { 1 })
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

impl Model {
    /// Nothing happens at no time; scripts begin late enough that everything has a past.
    pub fn tick(&mut self) {
        if self.now == 0 {
            self.now = 1_000_000;
        }
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now += seconds;
        // What was found before a mark lies in the past with it.
        self.marks.clear();
    }

    pub fn event(&self, topic: u8, key: Option<u8>, again: Option<u8>, delay: bool) -> Event {
        let mut builder = Event::json(format!("topic-{topic}"), &0).unwrap();
        if let Some(key) = key {
            builder = builder.dedupe_key(format!("key-{key}"));
        }
        if let Some(id) = again.and_then(|at| self.ids.get(usize::from(at))) {
            builder = builder.id(*id);
        }
        if delay {
            builder = builder.delay(std::time::Duration::from_secs(DELAY));
        }
        builder.build().unwrap()
    }

    pub fn enqueued(
        &mut self,
        event: &Event,
        delay: bool,
        answer: &Enqueued,
        commit: bool,
    ) -> Result<(), String> {
        let (topic, key) = (topic_of(event), key_of(event));
        let same_key = |row: &Row| key.is_some() && (row.topic, row.key) == (topic, key);
        let first = if self.rows.contains_key(&event.id()) {
            Some(event.id())
        } else {
            self.rows.iter().find(|(_, row)| same_key(row)).map(|(id, _)| *id)
        };
        let expected = (first.unwrap_or(event.id()), first.is_some());
        expect((answer.id, answer.duplicate) == expected, || {
            format!("enqueue answered {answer:?}, expected {expected:?}")
        })?;
        if !self.ids.contains(&event.id()) {
            self.ids.push(event.id());
        }
        if first.is_none() && commit {
            let available = if delay { self.now + DELAY } else { self.now };
            let row = Row {
                topic,
                key,
                available,
                attempts: 0,
                holder: None,
                leased_until: None,
                ending: None,
                error: None,
            };
            self.rows.insert(event.id(), row);
        }
        Ok(())
    }

    pub fn mark(&self, worker: u8) -> Option<(Mark, u64)> {
        self.marks.get(&worker).copied()
    }

    /// What a claim got must be claimable, as much as was asked for, and nothing that was there earlier.
    pub fn claimed(
        &mut self,
        worker: u8,
        limit: u32,
        mark: Option<(Mark, u64)>,
        batch: ClaimedBatch,
    ) -> Result<(), String> {
        let got: Vec<Uuid> = batch.events.iter().map(|claimed| claimed.event.id()).collect();
        let taken: BTreeSet<Uuid> =
            got.iter().copied().chain(batch.buried.iter().map(|buried| buried.id)).collect();
        expect(taken.len() == batch.events.len() + batch.buried.len(), || {
            "claimed something twice".to_owned()
        })?;
        let claimable: BTreeMap<Uuid, u64> = self
            .rows
            .iter()
            .filter(|(_, row)| row.is_claimable(self.now))
            .map(|(id, row)| (*id, row.available))
            .collect();
        expect(taken.iter().all(|id| claimable.contains_key(id)), || {
            format!("claimed {taken:?}, claimable were {claimable:?}")
        })?;
        // Behind a mark only what is certainly later must be found.
        let must = claimable.values().filter(|at| mark.is_none_or(|(_, marked)| **at > marked)).count();
        expect(taken.len() >= must.min(limit as usize) && taken.len() <= limit as usize, || {
            format!("claimed {} of {must} claimable, asked for {limit}", taken.len())
        })?;
        let latest = taken.iter().map(|id| claimable[id]).max();
        let passed_over = claimable.iter().filter(|(id, at)| {
            !taken.contains(id) && mark.is_none_or(|(_, marked)| **at > marked) && Some(**at) < latest
        });
        expect(passed_over.count() == 0, || "passed over an event that was available earlier".to_owned())?;
        let order: Vec<u64> = got.iter().map(|id| claimable[id]).collect();
        expect(order.is_sorted(), || format!("claimed out of order: {order:?}"))?;

        for claimed in batch.events {
            let row = self.row(claimed.event.id())?;
            expect(row.attempts < ATTEMPTS, || "claimed an event without attempts left".to_owned())?;
            row.attempts += 1;
            row.holder = Some(claimed.lease.holder().to_owned());
            let attempts = row.attempts;
            expect(claimed.lease.attempt() == attempts, || {
                format!("attempt {} instead of {attempts}", claimed.lease.attempt())
            })?;
            self.leases.push(claimed.lease);
        }
        let now = self.now;
        for id in &got {
            self.row(*id)?.leased_until = Some(now + LEASE);
        }
        for buried in batch.buried {
            let row = self.row(buried.id)?;
            expect(row.attempts >= ATTEMPTS, || "buried an event with attempts left".to_owned())?;
            // A last attempt that said why it failed is believed.
            let error = if row.holder.is_none() { row.error } else { None };
            row.end(Ending::Dead, now, error.or(Some("no attempt left")));
        }
        if let (Some(mark), Some(latest)) = (batch.mark, latest) {
            self.marks.insert(worker, (mark, latest));
        }
        Ok(())
    }

    /// A lease ever handed out, counted back from the newest.
    pub fn lease(&self, back: u8) -> Option<Lease> {
        self.leases.iter().rev().nth(usize::from(back)).cloned()
    }

    fn row(&mut self, id: Uuid) -> Result<&mut Row, String> {
        self.rows.get_mut(&id).ok_or_else(|| format!("{id} is not in the table"))
    }

    fn is_held(&self, lease: &Lease) -> bool {
        self.rows.get(&lease.id()).is_some_and(|row| {
            row.ending.is_none()
                && row.holder.as_deref() == Some(lease.holder())
                && row.attempts == lease.attempt()
        })
    }

    /// Each in its turn: of two that name the same event, the first counts.
    pub fn settled(
        &mut self,
        batch: &[(Lease, Kindness)],
        keep: Keep,
        settled: &Settled,
    ) -> Result<(), String> {
        let (mut written, mut lost) = (0, Vec::new());
        for (lease, verdict) in batch {
            if self.is_held(lease) {
                written += 1;
                self.settle(lease, *verdict, keep)?;
            } else {
                lost.push(lease.id());
            }
        }
        let mut found = settled.lost.clone();
        found.sort();
        lost.sort();
        expect((settled.written, &found) == (written, &lost) && settled.busy.is_empty(), || {
            format!("settling answered {settled:?}, expected {written} written and {lost:?} lost")
        })
    }

    fn settle(&mut self, lease: &Lease, verdict: Kindness, keep: Keep) -> Result<(), String> {
        let now = self.now;
        let row = self.row(lease.id())?;
        row.holder = None;
        row.leased_until = None;
        match verdict {
            Kindness::Delivered if keep == Keep::Nothing => {
                self.rows.remove(&lease.id());
            }
            Kindness::Delivered => row.end(Ending::Delivered, now, None),
            Kindness::Dead => row.end(Ending::Dead, now, Some("dead")),
            Kindness::Retry => (row.available, row.error) = (now, Some("retry")),
            Kindness::RetryLater => (row.available, row.error) = (now + RETRY, Some("later")),
            Kindness::Released => row.attempts -= 1,
        }
        Ok(())
    }

    pub fn extended(&mut self, lease: &Lease, lost: &[Uuid]) -> Result<(), String> {
        let held = self.is_held(lease);
        expect(lost.is_empty() == held, || {
            format!("extending lost {lost:?}, the lease was {}", if held { "held" } else { "lost" })
        })?;
        if held {
            let now = self.now;
            self.row(lease.id())?.leased_until = Some(now + LEASE);
        }
        Ok(())
    }

    fn dead(&self, topic: Option<u8>) -> Vec<Uuid> {
        let dead = |row: &Row| {
            matches!(row.ending, Some((Ending::Dead, _))) && topic.is_none_or(|topic| topic == row.topic)
        };
        self.rows.iter().filter(|(_, row)| dead(row)).map(|(id, _)| *id).collect()
    }

    pub fn replayed(&mut self, topic: Option<u8>, count: u64) -> Result<(), String> {
        let dead = self.dead(topic);
        expect(dead.len() as u64 == count, || format!("replayed {count}, dead were {}", dead.len()))?;
        let now = self.now;
        for id in dead {
            let row = self.row(id)?;
            (row.ending, row.attempts, row.available) = (None, 0, now);
        }
        Ok(())
    }

    pub fn discarded(&mut self, topic: Option<u8>, count: u64) -> Result<(), String> {
        let dead = self.dead(topic);
        expect(dead.len() as u64 == count, || format!("discarded {count}, dead were {}", dead.len()))?;
        self.rows.retain(|id, _| !dead.contains(id));
        Ok(())
    }

    pub fn purged(&mut self, ending: Ending, seconds: u64, count: u64) -> Result<(), String> {
        let before = self.rows.len();
        let now = self.now;
        self.rows.retain(|_, row| row.ending.is_none_or(|(how, at)| how != ending || at + seconds > now));
        let gone = (before - self.rows.len()) as u64;
        expect(gone == count, || format!("purged {count}, {gone} were due"))
    }

    /// Every row is as it should be, and no other row is there.
    pub fn compare(&self, records: &[Record]) -> Result<(), String> {
        let found: Vec<Uuid> = records.iter().map(|record| record.id).collect();
        let expected: Vec<Uuid> = self.rows.keys().copied().collect();
        expect(found == expected, || format!("the table holds {found:?}, expected {expected:?}"))?;
        for (record, row) in records.iter().zip(self.rows.values()) {
            let found = (record.status, record.attempts, record.locked_by.clone());
            let expected = (row.status(self.now), row.attempts, row.holder.clone());
            expect(found == expected, || format!("event {} is {found:?}, expected {expected:?}", record.id))?;
            let error = record.last_error.as_deref();
            let fits = match (error, row.error) {
                (None, None) => true,
                (Some(found), Some(expected)) => found.starts_with(expected),
                _ => false,
            };
            expect(fits, || format!("event {} has error {error:?}, expected {:?}", record.id, row.error))?;
            expect(record.locked_until.is_some() == row.leased_until.is_some(), || {
                format!(
                    "event {} is leased until {:?}, expected {:?}",
                    record.id, record.locked_until, row.leased_until
                )
            })?;
            expect(record.settled_at.is_some() == row.ending.is_some(), || {
                format!("event {} has no time of its end", record.id)
            })?;
        }
        Ok(())
    }
}
