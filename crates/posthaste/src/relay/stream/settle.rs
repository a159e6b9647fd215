//! How events ended: what was delivered lets its page be done, everything else is parked.

use std::collections::{HashMap, HashSet};

use rustc_hash::FxHashMap;
use uuid::Uuid;

use super::super::feed::{Heard, Said};
use super::StreamFeed;
use super::state::{Source, State, UnderWay};
use crate::error::Result;
use crate::event::Event;
use crate::store::stream::{Park, ParkedEnd, ParkedVerdict, Wait};
use crate::store::{Extended, Keep, Lease, Verdict};

impl StreamFeed {
    /// Gives up on writing how these ended: their lanes are taken anew, and they are delivered again.
    pub(in super::super) async fn abandon(&self, leases: &[&Lease]) {
        let mut state = self.state.lock().await;
        let under_way = leases.iter().filter_map(|lease| state.under_way.get(&lease.sequence()));
        let lanes: Vec<u16> = under_way.map(|out| out.hold.lane).collect();
        self.forget(&mut state, &lanes);
        self.signals.keeper.notify_one();
    }

    /// Which of these are no longer this relay's.
    pub(in super::super) async fn extend(&self, leases: &[Lease]) -> Extended {
        let state = self.state.lock().await;
        let is_held = |lease: &&Lease| {
            state.under_way.get(&lease.sequence()).is_some_and(|out| out.lease.holder() == lease.holder())
        };
        // Of an event that was read anew the older lease is not said to be lost: both go by the same id, and what is said of the
        // end of the older one counts for nothing.
        let held: HashSet<Uuid> = leases.iter().filter(is_held).map(Lease::id).collect();
        let lost = leases.iter().map(Lease::id).filter(|id| !held.contains(id)).collect();
        Extended { lost, busy: Vec::new() }
    }

    /// Writes how events ended. What is written twice, because nobody heard that it was, does no harm.
    pub(in super::super) async fn settle(&self, said: &[Said<'_>], keep: Keep) -> Result<Heard> {
        let mut state = self.state.lock().await;
        let mut parks: Vec<(Option<u64>, Park)> = Vec::new();
        let (mut delivered, mut ends) = (Vec::new(), Vec::new());
        let mut ended: FxHashMap<i64, &Lease> = FxHashMap::default();
        ended.reserve(said.len());
        let mut lost: HashSet<Lease> = HashSet::new();
        for said in said {
            let sequence = said.lease.sequence();
            match state.under_way.get(&sequence) {
                Some(out) if out.lease.holder() == said.lease.holder() => {
                    ended.insert(sequence, said.lease);
                    let end = |out: &UnderWay| ParkedEnd {
                        hold: out.hold,
                        sequence,
                        verdict: self.parked_verdict(&out.event, said.verdict, said.behind),
                    };
                    match (out.source, said.verdict) {
                        (Source::Parked { .. }, _) => ends.push(end(out)),
                        (Source::Page(_), verdict) => {
                            if state.maybe_parked.contains(&sequence) {
                                ends.push(end(out));
                            }
                            match verdict {
                                Verdict::Delivered => delivered.push((out.hold, sequence)),
                                verdict => parks.push((out.page(), self.parked(out, verdict, said.behind))),
                            }
                        }
                    }
                }
                _ => {
                    lost.insert(said.lease.clone());
                }
            }
        }
        // Aggregates stand in line in the order in which their events were read.
        for park in self.places(&state, self.ahead_of(&state, &parks, &ended)) {
            let page = state.under_way.get(&park.sequence).and_then(UnderWay::page);
            parks.push((page, park));
        }
        parks.sort_by_key(|(page, park)| (*page, park.sequence));
        let parks: Vec<Park> = parks.into_iter().map(|(_, park)| park).collect();
        let mut refused = self.park_with_places(&mut state, &parks).await?;
        if !ends.is_empty() {
            refused.append(&mut self.stream.settle_parked(&ends, keep).await?);
            failpoint!("parked.ended");
        }
        let finished = state.finished_without(ended.keys());
        if !delivered.is_empty() || !finished.is_empty() {
            failpoint!("place.due");
            refused.append(&mut state.reader.settle(&delivered, &finished, keep).await?);
            failpoint!("place.written");
        }
        let theirs = |state: &State, sequence: &i64| {
            state.under_way.get(sequence).is_some_and(|out| refused.contains(&out.hold.lane))
        };
        let refused_of = ended.iter().filter(|(sequence, _)| theirs(&state, sequence));
        lost.extend(refused_of.map(|(_, lease)| Lease::clone(lease)));
        state.end(&ended.keys().copied().collect::<Vec<_>>());
        state.maybe_parked.retain(|sequence| !ended.contains_key(sequence));
        state.pages.retain(|number, _| !finished.contains(number));
        self.lose_in(&mut state, &refused);
        if !ends.is_empty() {
            // What stood behind them is due, or the next suspect is.
            self.signals.claimer.notify_one();
        }
        Ok(Heard { lost, busy: HashSet::new() })
    }

    /// What is under way before those of these that are parked behind it: it has to have its place before them.
    fn ahead_of(
        &self,
        state: &State,
        parks: &[(Option<u64>, Park)],
        ended: &FxHashMap<i64, &Lease>,
    ) -> Vec<i64> {
        let behind = parks.iter().filter(|(_, park)| park.wait == Wait::Behind);
        let mut last: HashMap<&str, (Option<u64>, i64)> = HashMap::new();
        for (page, park) in behind {
            let place = (*page, park.sequence);
            last.entry(&park.key).and_modify(|last| *last = place.max(*last)).or_insert(place);
        }
        if last.is_empty() {
            return Vec::new();
        }
        let is_ahead = |out: &&UnderWay| {
            let place = (out.page(), out.lease.sequence());
            out.page().is_some()
                && !ended.contains_key(&place.1)
                && last.get(self.stored_key(&out.event).as_str()).is_some_and(|last| place < *last)
        };
        state.under_way.values().filter(is_ahead).map(|out| out.lease.sequence()).collect()
    }

    /// How an event of a page is parked that was not delivered.
    fn parked(&self, out: &UnderWay, verdict: &Verdict, behind: bool) -> Park {
        let attempt = out.lease.attempt();
        match verdict {
            _ if behind => self.park(out, Wait::Behind, attempt - 1, None),
            Verdict::Retry { after, error } => self.park(out, Wait::After(*after), attempt, Some(error)),
            Verdict::Dead { error } => {
                self.park(out, Wait::Dead { blocks: self.blocks(&out.event) }, attempt, Some(error))
            }
            Verdict::Released { after } => self.park(out, Wait::After(*after), attempt - 1, None),
            Verdict::Delivered => self.park(out, Wait::Behind, attempt, None),
        }
    }

    fn parked_verdict(&self, event: &Event, verdict: &Verdict, behind: bool) -> ParkedVerdict {
        match verdict {
            Verdict::Delivered => ParkedVerdict::Delivered,
            _ if behind => ParkedVerdict::Behind,
            Verdict::Retry { after, error } => ParkedVerdict::Retry { after: *after, error: error.clone() },
            Verdict::Dead { error } => {
                ParkedVerdict::Dead { error: error.clone(), blocks: self.blocks(event) }
            }
            Verdict::Released { after } => ParkedVerdict::Released { after: *after },
        }
    }
}
