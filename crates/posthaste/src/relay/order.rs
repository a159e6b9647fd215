//! Order: what is under way of each aggregate, so that its events take turns.
//!
//! An event of a stream has a [`Turn`] from the moment it is read until its end is written. Of one aggregate one is
//! dispatched at a time (or one batch, where the sink keeps the order of a batch). Once one of them has not been
//! delivered, those that are under way behind it are not dispatched any more: they are parked behind it, in order. What
//! is read later is found parked in the database by then, or is still among those under way.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::event::Event;

/// What an event is in order with, as the relay compares it. That two of the thousands of aggregates that are under way at once are the
/// same to it comes up once in a million million times; they are taken for one then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    /// The aggregate's; `None` for an event without one.
    pub(super) fn of(event: &Event) -> Option<Self> {
        // One without a type and one with an empty type are the same, as in the database.
        let kind = event.aggregate_type().unwrap_or_default();
        let aggregate = (event.namespace(), kind, event.aggregate_id()?);
        let mut hasher = DefaultHasher::new();
        aggregate.hash(&mut hasher);
        Some(Self(hasher.finish()))
    }
}

/// What an event is in order with, as the database has it: its aggregate, or itself.
pub(super) fn stored_key(event: &Event, ordered: bool) -> String {
    match event.aggregate_id() {
        Some(id) if ordered => {
            format!("{}\u{1f}{}\u{1f}{id}", event.namespace(), event.aggregate_type().unwrap_or_default())
        }
        _ => event.id().to_string(),
    }
}

/// What is under way of each aggregate.
#[derive(Debug, Default)]
pub(super) struct Order {
    under_way: Mutex<UnderWay>,
    /// How many aggregates have failed, and how many turns are of forgotten ones: while there are none, nobody is behind, and no
    /// event has to be looked up to know.
    troubles: AtomicUsize,
}

#[derive(Debug, Default)]
struct UnderWay {
    aggregates: FxHashMap<Key, Aggregate>,
    /// How many turns there were.
    turns: u64,
}

/// One aggregate's events under way.
#[derive(Debug)]
struct Aggregate {
    /// The ticket of the first of them: another aggregate of the same key may have been forgotten.
    since: u64,
    under_way: usize,
    /// Whether they have their places among the parked already.
    parked: bool,
    /// Whether something that is parked waits for them.
    waited_for: bool,
    /// The first of them that was not delivered.
    failed: Option<u64>,
}

/// How an aggregate stands, for an event that has just been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing of it is under way, or what is has its places among the parked: the database knows whether it waits.
    Known,
    /// Events of it are under way that have no place yet: this one goes behind them.
    UnderWay,
    /// The same, but something that is parked waits for them, and comes before what is read from now on: where the database
    /// still has it, this one is parked behind it.
    WaitedFor,
    /// One of those under way was not delivered: this one is parked behind them. Were it to join them, an aggregate that has
    /// always something under way would never come to be tried again.
    Failed,
}

impl Order {
    /// Turns for events that have just been read, all at once.
    pub(super) fn round(self: &Arc<Self>) -> Round<'_> {
        Round { order: self, under_way: self.lock() }
    }

    /// What is under way of this aggregate is somebody else's by now: what of it has not begun comes behind what has.
    pub(super) fn forget(&self, key: Key) {
        let mut under_way = self.lock();
        if let Some(aggregate) = under_way.aggregates.remove(&key) {
            self.troubles.fetch_add(aggregate.under_way, Ordering::Release);
            self.settle_trouble(&aggregate);
        }
    }

    /// Ends the turns of these, which are many, at once.
    pub(super) fn end(turns: impl Iterator<Item = Turn>) {
        let mut turns = turns.peekable();
        let Some(order) = turns.peek().map(|turn| Arc::clone(&turn.order)) else { return };
        let mut under_way = order.lock();
        for mut turn in turns {
            if Arc::ptr_eq(&turn.order, &order) {
                turn.has_ended = true;
                order.leave(&mut under_way, turn.key, turn.since);
            }
        }
    }

    /// One of this aggregate is no longer under way.
    fn leave(&self, under_way: &mut UnderWay, key: Key, since: u64) {
        match under_way.aggregates.entry(key) {
            Entry::Occupied(mut entry) if entry.get().since == since => {
                entry.get_mut().under_way -= 1;
                if entry.get().under_way == 0 {
                    self.settle_trouble(&entry.remove());
                }
            }
            _ => {
                self.troubles.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// This aggregate is gone.
    fn settle_trouble(&self, aggregate: &Aggregate) {
        if aggregate.failed.is_some() {
            self.troubles.fetch_sub(1, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events that were read together take their turns. Nobody else does before all of them have theirs, and nothing fails meanwhile. A turn
/// that is not given out ends by [`wait`](Self::wait) or [`leave`](Self::leave): dropped, it would wait for this very round.
pub(super) struct Round<'a> {
    order: &'a Arc<Order>,
    under_way: MutexGuard<'a, UnderWay>,
}

impl Round<'_> {
    /// A turn for an event, and how its aggregate stood before.
    pub(super) fn join(&mut self, key: Key) -> (Turn, Standing) {
        let UnderWay { aggregates, turns } = &mut *self.under_way;
        let ticket = *turns;
        *turns += 1;
        let new = || Aggregate { since: ticket, under_way: 0, parked: true, waited_for: false, failed: None };
        let aggregate = aggregates.entry(key).or_insert_with(new);
        aggregate.under_way += 1;
        let standing = match aggregate {
            Aggregate { failed: Some(_), .. } => Standing::Failed,
            Aggregate { parked: true, .. } => Standing::Known,
            Aggregate { waited_for: true, .. } => Standing::WaitedFor,
            _ => Standing::UnderWay,
        };
        let order = Arc::clone(self.order);
        (Turn { order, key, ticket, since: aggregate.since, has_ended: false }, standing)
    }

    /// It goes, and has no place among the parked: whatever is read later goes behind it.
    pub(super) fn go(&mut self, turn: Turn) -> Turn {
        self.with(&turn, |aggregate| aggregate.parked = false);
        turn
    }

    /// It is parked until those have ended that are under way: whatever is read later goes behind it.
    pub(super) fn wait(&mut self, turn: Turn) {
        self.with(&turn, |aggregate| aggregate.waited_for = true);
        self.leave(turn);
    }

    /// It has no turn after all.
    pub(super) fn leave(&mut self, mut turn: Turn) {
        turn.has_ended = true;
        self.order.leave(&mut self.under_way, turn.key, turn.since);
    }

    fn with(&mut self, turn: &Turn, look: impl FnOnce(&mut Aggregate)) {
        if let Some(aggregate) = self.under_way.of(turn) {
            look(aggregate);
        }
    }
}

impl UnderWay {
    /// The aggregate of a turn, unless that was forgotten.
    fn of(&mut self, turn: &Turn) -> Option<&mut Aggregate> {
        self.aggregates.get_mut(&turn.key).filter(|aggregate| aggregate.since == turn.since)
    }
}

/// An event's place among those of its aggregate that are under way.
#[derive(Debug)]
pub(super) struct Turn {
    order: Arc<Order>,
    key: Key,
    ticket: u64,
    since: u64,
    has_ended: bool,
}

impl Turn {
    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Its place: what is read later has a higher one.
    pub(super) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// It was not delivered: what comes behind it waits.
    pub(super) fn fail(&self) {
        self.with(|aggregate| {
            if aggregate.failed.is_none() {
                self.order.troubles.fetch_add(1, Ordering::Release);
            }
            aggregate.failed = Some(aggregate.failed.map_or(self.ticket, |first| first.min(self.ticket)));
        });
    }

    /// Whether one before it was not delivered, or nobody knows.
    pub(super) fn is_behind(&self) -> bool {
        if self.order.troubles.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.with(|aggregate| aggregate.failed.is_some_and(|first| first < self.ticket)).unwrap_or(true)
    }

    /// Its aggregate, unless that was forgotten.
    fn with<T>(&self, look: impl FnOnce(&mut Aggregate) -> T) -> Option<T> {
        self.order.lock().of(self).map(look)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.has_ended {
            self.order.leave(&mut self.order.lock(), self.key, self.since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(aggregate: u32) -> Key {
        let event = Event::json("t", &0).and_then(|event| event.aggregate("order", aggregate).build());
        event.ok().and_then(|event| Key::of(&event)).unwrap_or(Key(0))
    }

    fn join(order: &Arc<Order>, key: Key) -> (Turn, Standing) {
        order.round().join(key)
    }

    fn go(order: &Arc<Order>, key: Key) -> Turn {
        let mut round = order.round();
        let turn = round.join(key).0;
        round.go(turn)
    }

    fn wait(order: &Arc<Order>, key: Key) {
        let mut round = order.round();
        let turn = round.join(key).0;
        round.wait(turn);
    }

    #[test]
    fn sm2_what_failed_is_remembered_until_all_that_is_under_way_has_ended() {
        let order = Arc::new(Order::default());
        let (first, standing) = join(&order, key(1));
        assert_eq!(standing, Standing::Known);
        let first = order.round().go(first);
        let (second, standing) = join(&order, key(1));
        assert_eq!(standing, Standing::UnderWay);
        assert_eq!(join(&order, key(2)).1, Standing::Known);
        first.fail();
        assert!(second.is_behind());
        drop(first);
        assert!(second.is_behind());
        drop(second);
        let (again, standing) = join(&order, key(1));
        assert_eq!(standing, Standing::Known);
        assert!(!again.is_behind());
    }

    #[test]
    fn sm2_what_has_its_place_among_the_parked_is_known_to_the_database() {
        let order = Arc::new(Order::default());
        let _parked = join(&order, key(1));
        assert_eq!(join(&order, key(1)).1, Standing::Known);
    }

    #[test]
    fn sm2_what_is_read_behind_a_failure_does_not_join_what_is_under_way() {
        let order = Arc::new(Order::default());
        let first = go(&order, key(1));
        let second = go(&order, key(1));
        first.fail();
        drop(first);
        assert_eq!(join(&order, key(1)).1, Standing::Failed);
        drop(second);
        assert_eq!(join(&order, key(1)).1, Standing::Known);
    }

    #[test]
    fn sm2_what_is_read_while_something_parked_waits_does_not_join_what_is_under_way() {
        let order = Arc::new(Order::default());
        let under_way = go(&order, key(1));
        wait(&order, key(1));
        assert_eq!(join(&order, key(1)).1, Standing::WaitedFor);
        assert_eq!(join(&order, key(2)).1, Standing::Known);
        drop(under_way);
        assert_eq!(join(&order, key(1)).1, Standing::Known);
        let _under_way = go(&order, key(1));
        assert_eq!(join(&order, key(1)).1, Standing::UnderWay, "that was long ago");
    }

    #[test]
    fn sm1_what_was_forgotten_does_not_begin_and_does_not_hold_up_what_is_read_anew() {
        let order = Arc::new(Order::default());
        let old = go(&order, key(1));
        order.forget(key(1));
        let (new, standing) = join(&order, key(1));
        assert_eq!(standing, Standing::Known);
        old.fail();
        assert!(old.is_behind());
        assert!(!new.is_behind());
        drop(old);
        let later = join(&order, key(1)).0;
        new.fail();
        assert!(later.is_behind());
    }

    #[test]
    fn sm2_nobody_is_looked_up_while_there_is_no_trouble() {
        let order = Arc::new(Order::default());
        let troubles = || order.troubles.load(Ordering::Relaxed);
        let join = |n| go(&order, key(n));
        let (first, second, third) = (join(1), join(1), join(1));
        first.fail();
        second.fail();
        assert_eq!((troubles(), third.is_behind()), (1, true), "once an aggregate");
        drop(first);
        Order::end([second, third].into_iter());
        assert_eq!(troubles(), 0, "all of it has ended");
        let (old, older) = (join(2), join(2));
        old.fail();
        order.forget(key(2));
        assert_eq!(troubles(), 2, "whose turns are of nothing");
        let new = join(2);
        assert!(old.is_behind() && older.is_behind() && !new.is_behind());
        Order::end([old, new].into_iter());
        drop(older);
        assert_eq!(troubles(), 0);
        assert!(order.lock().aggregates.is_empty());
    }
}
