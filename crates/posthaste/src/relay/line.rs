//! Lines: events of one aggregate that wait for the one before them.
//!
//! Whatever routes they take, the events of an aggregate stand in one line, in the order in which they were read. Its
//! first is *called*: it waits for a worker of its route, or runs. Where the sink keeps the order of a batch, those right
//! behind it that take the same route are called with it. The others are called when that has ended.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use super::job::Job;
use super::order::{Key, Turn};

/// The lines of all aggregates of which anything waits or runs.
#[derive(Default)]
pub(super) struct Lines(FxHashMap<Key, Line>);

/// One aggregate's line.
#[derive(Default)]
struct Line {
    running: bool,
    /// The route of those that are called or run.
    way: Option<usize>,
    /// Those that wait for a worker.
    called: Called,
    /// Those that wait to be called.
    waiting: BTreeMap<u64, Job>,
}

/// Tickets. Mostly there is one, and a tree of one would be made and thrown away for every event.
#[derive(Default)]
struct Called {
    first: Option<u64>,
    /// All of them are higher.
    rest: BTreeSet<u64>,
}

impl Called {
    fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The lowest.
    fn first(&self) -> Option<u64> {
        self.first
    }

    fn insert(&mut self, ticket: u64) {
        match self.first {
            Some(first) if first == ticket => {}
            Some(first) => {
                self.first = Some(first.min(ticket));
                self.rest.insert(first.max(ticket));
            }
            None => self.first = Some(ticket),
        }
    }

    fn remove(&mut self, ticket: u64) {
        if self.first == Some(ticket) {
            self.first = self.rest.pop_first();
        } else {
            self.rest.remove(&ticket);
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Line {
    fn is_over(&self) -> bool {
        !self.running && self.called.is_empty() && self.waiting.is_empty()
    }

    /// Whether nothing that stands here comes before this.
    fn begins_with(&self, ticket: u64) -> bool {
        let called = self.called.first().is_none_or(|first| ticket < first);
        called && self.waiting.first_key_value().is_none_or(|(first, _)| ticket < *first)
    }
}

/// The aggregates of one publish.
#[derive(Default)]
pub(super) struct Company {
    keys: FxHashSet<Key>,
    /// Whether the sink keeps the order of a batch.
    keeps_order: bool,
}

impl Company {
    pub(super) fn new(keeps_order: bool) -> Self {
        Self { keys: FxHashSet::default(), keeps_order }
    }
}

/// What becomes of a job that would run now.
pub(super) enum Admitted {
    /// It runs.
    Runs(Job),
    /// One before it was not delivered: it does not run.
    Behind(Job),
    /// It stands in line.
    Waits,
}

impl Lines {
    /// A job that comes in: called at once, or else it stands in line.
    pub(super) fn enter(&mut self, job: Job, keeps_order: bool) -> Option<Job> {
        let Some((key, ticket)) = place(&job) else { return Some(job) };
        let way = job.way();
        let line = self.0.entry(key).or_default();
        if line.is_over() {
            line.way = way;
        } else if !keeps_order || way.is_none() || line.way != way || !line.waiting.is_empty() {
            line.waiting.insert(ticket, job);
            return None;
        }
        line.called.insert(ticket);
        Some(job)
    }

    /// Whether a job that was called may be part of a publish.
    pub(super) fn admit(&mut self, job: Job, company: &mut Company) -> Admitted {
        let Some((key, ticket)) = place(&job) else { return Admitted::Runs(job) };
        let line = self.0.entry(key).or_default();
        line.called.remove(ticket);
        if job.is_behind() {
            return Admitted::Behind(job);
        }
        let is_next = line.begins_with(ticket);
        let goes_along = company.keeps_order && company.keys.contains(&key);
        if !is_next || line.running && !goes_along {
            line.waiting.insert(ticket, job);
            return Admitted::Waits;
        }
        line.running = true;
        company.keys.insert(key);
        Admitted::Runs(job)
    }

    /// A job that was called has ended without being published.
    pub(super) fn leave(&mut self, job: &Job) {
        if let Some((key, ticket)) = place(job)
            && let Some(line) = self.0.get_mut(&key)
        {
            line.called.remove(ticket);
        }
    }

    /// The publish that this job was part of came to nothing: it waits for a worker again, before all others.
    pub(super) fn call_again(&mut self, job: &Job) {
        if let Some((key, ticket)) = place(job) {
            let line = self.0.entry(key).or_default();
            line.running = false;
            line.called.insert(ticket);
        }
    }

    /// The publish of this aggregate has ended: calls those that are next, `most` of them if their sink keeps the order of
    /// a batch.
    pub(super) fn call(&mut self, key: Key, most: usize, keeps_order: impl Fn(usize) -> bool) -> Vec<Job> {
        let Some(line) = self.0.get_mut(&key) else { return Vec::new() };
        line.running = false;
        let until = line.called.first().unwrap_or(u64::MAX);
        let mut called: Vec<Job> = Vec::new();
        while let Some(next) = line.waiting.first_entry() {
            let (ticket, way) = (*next.key(), next.get().way());
            let goes_along =
                || way == line.way && way.is_some_and(&keeps_order) && called.len() < most.max(1);
            if ticket > until || !called.is_empty() && !goes_along() {
                break;
            }
            line.way = way;
            line.called.insert(ticket);
            called.push(next.remove());
        }
        if line.is_over() {
            self.0.remove(&key);
        }
        called
    }

    /// Whether anything of this aggregate runs.
    pub(super) fn is_running(&self, key: Key) -> bool {
        self.0.get(&key).is_some_and(|line| line.running)
    }

    /// Everything that waits to be called; who was called is called no longer. Only what runs is left of the line.
    pub(super) fn empty(&mut self, key: Key) -> Vec<Job> {
        let Some(line) = self.0.get_mut(&key) else { return Vec::new() };
        line.called.clear();
        let waiting = std::mem::take(&mut line.waiting);
        if line.is_over() {
            self.0.remove(&key);
        }
        waiting.into_values().collect()
    }

    /// A job that was called is to be handed back: it stands in line as long as something of its aggregate runs, else it goes
    /// with all that stand behind it.
    pub(super) fn hand_back(&mut self, job: Job) -> Vec<Job> {
        let Some((key, ticket)) = place(&job) else { return vec![job] };
        match self.0.get_mut(&key) {
            Some(line) if line.running => {
                line.called.remove(ticket);
                line.waiting.insert(ticket, job);
                Vec::new()
            }
            _ => std::iter::once(job).chain(self.empty(key)).collect(),
        }
    }
}

/// The aggregate of a job, and its place in the line.
fn place(job: &Job) -> Option<(Key, u64)> {
    job.turn.as_ref().map(|turn: &Turn| (turn.key(), turn.ticket()))
}
