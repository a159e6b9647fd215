//! Hot and claimed events share the workers two to one, so that neither starves.

use std::collections::VecDeque;

use super::job::{Job, Source};

/// Of three turns, two are the hot events'.
const TURNS: u8 = 3;
const HOT_TURNS: u8 = 2;

/// The events of one route that wait for a worker.
#[derive(Default)]
pub(super) struct Waiting {
    hot: VecDeque<Job>,
    claimed: VecDeque<Job>,
    turn: u8,
}

impl Waiting {
    pub(super) fn push(&mut self, job: Job) {
        match job.source {
            Source::Hot => self.hot.push_back(job),
            Source::Claimed => self.claimed.push_back(job),
        }
    }

    /// Before the others.
    pub(super) fn push_front(&mut self, job: Job) {
        match job.source {
            Source::Hot => self.hot.push_front(job),
            Source::Claimed => self.claimed.push_front(job),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hot.is_empty() && self.claimed.is_empty()
    }

    /// The next up to `most` that go together, none of them in a larger batch than it may be part of; what `admit` keeps
    /// is not among them.
    pub(super) fn next_batch(&mut self, most: usize, mut admit: impl FnMut(Job) -> Option<Job>) -> Vec<Job> {
        let mut most = most.max(1);
        let mut batch = Vec::with_capacity(most.min(self.hot.len() + self.claimed.len()));
        while let Some(queue) = self.whose_turn() {
            most = queue.front().map_or(most, |job| most.min(job.largest_batch().max(1)));
            if batch.len() >= most {
                break;
            }
            batch.extend(queue.pop_front().and_then(&mut admit));
            self.turn = (self.turn + 1) % TURNS;
        }
        batch
    }

    /// Those that fit, in their order.
    pub(super) fn take_if(&mut self, fits: impl Fn(&Job) -> bool) -> Vec<Job> {
        let (taken, rest): (Vec<Job>, Vec<Job>) = self.claimed.drain(..).partition(|job| fits(job));
        self.claimed = rest.into();
        taken
    }

    /// All but the first so many of those that were claimed.
    pub(super) fn take_beyond(&mut self, kept: usize) -> VecDeque<Job> {
        self.claimed.split_off(kept.min(self.claimed.len()))
    }

    /// Everything, in no order of turns.
    pub(super) fn take_all(&mut self) -> Vec<Job> {
        self.hot.drain(..).chain(self.claimed.drain(..)).collect()
    }

    fn whose_turn(&mut self) -> Option<&mut VecDeque<Job>> {
        let hot_first = self.turn < HOT_TURNS;
        match (self.hot.is_empty(), self.claimed.is_empty()) {
            (true, true) => None,
            (false, true) => Some(&mut self.hot),
            (true, false) => Some(&mut self.claimed),
            (false, false) if hot_first => Some(&mut self.hot),
            (false, false) => Some(&mut self.claimed),
        }
    }
}
