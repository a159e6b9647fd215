//! No two owned a lane of a stream at once, and nobody but its owner changed it, by the database's own record.
//!
//! A lane's fence grows with every change of owner, and only then; its position never goes back. Who takes a lane before
//! its lease has ended knows that its owner's session is gone: that is so after a fault that ends sessions and befell the
//! owner, or everybody, and never where the database knows no sessions.
//!
//! Who has given a lane up may still write to it while nobody else has taken it: its fence still fits.

use super::index::Index;
use super::violation::Violation;
use crate::history::{Change, Leased};

const RULE: &str = "lane";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (lane, table, changes) in index.lanes_changed() {
        let mut past = Past::default();
        for change in changes {
            if let Some(what) = judge(index, change, &past) {
                violations.push(Violation::new(RULE, table, Leased::Lane(lane), change.at, what));
            }
            past.add(change);
        }
    }
    violations
}

/// What was seen of a lane so far.
#[derive(Default)]
struct Past<'a> {
    owner: Option<&'a str>,
    fence: Option<i64>,
}

impl<'a> Past<'a> {
    fn add(&mut self, change: &'a Change) {
        self.owner = change.after.holder.as_deref().or(self.owner);
        self.fence = self.fence.max(change.after.fence);
    }
}

fn judge(index: &Index<'_>, change: &Change, past: &Past<'_>) -> Option<String> {
    let Change { before, after, .. } = change;
    let highest = past.fence.max(before.fence);
    if after.fence < highest {
        let fence = |fence: Option<i64>| fence.unwrap_or_default();
        return Some(format!("its fence went back from {} to {}", fence(highest), fence(after.fence)));
    }
    if let (Some(from), Some(to)) = (before.position, after.position)
        && to < from
    {
        return Some(format!("its position went back from {from} to {to}"));
    }
    let is_taken = after.holder.is_some() && (after.holder != before.holder || after.fence > before.fence);
    if is_taken {
        return judge_take(index, change);
    }
    if after.fence != before.fence {
        return Some("its fence grew, and nobody took it".to_owned());
    }
    let Some(owner) = before.holder.as_deref().or(past.owner) else {
        return Some(format!("{} wrote to it, and nobody has ever owned it", change.session));
    };
    let wrong = !index.sessions.may_be(change, owner);
    wrong.then(|| format!("{} wrote to it while {owner} owned it", change.session))
}

fn judge_take(index: &Index<'_>, change: &Change) -> Option<String> {
    let Change { before, after, at, .. } = change;
    let taker = after.holder.as_deref().unwrap_or_default();
    if after.fence <= before.fence {
        return Some(format!("{taker} took it, and its fence did not grow"));
    }
    let owner = before.holder.as_deref().filter(|owner| *owner != taker)?;
    let until = before.until.filter(|until| until > at)?;
    let early = until - at;
    let is_gone = index.sessions.is_gone(&index.faults, change, owner, index.rules.lease);
    (!is_gone).then(|| format!("{taker} took it while {owner} owned it for another {early} µs"))
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE, SECOND, Story};
    use super::*;
    use crate::history::{Micros, State};

    impl Story {
        fn lane(&mut self, session: &str, before: &State, after: &State) {
            self.change_of("stream", Leased::Lane(3), session, before.clone(), after.clone());
        }
    }

    fn owned(owner: &str, until: Micros, fence: i64, position: i64) -> State {
        State {
            holder: Some(owner.to_owned()),
            until: Some(until),
            fence: Some(fence),
            position: Some(position),
            ..State::default()
        }
    }

    fn free(fence: i64, position: i64) -> State {
        State { holder: None, until: None, ..owned("", 0, fence, position) }
    }

    /// A lane that `one`, of relay-1, owns for a lease from now.
    fn taken() -> (Story, State) {
        let mut story = Story::new();
        let lease = owned("one", story.now() + LEASE, 7, 100);
        story.lane("relay-1", &free(6, 100), &lease);
        (story, lease)
    }

    /// The same, and `two`, of relay-2, has taken it since the lease's end.
    fn taken_again() -> (Story, State) {
        let (mut story, first) = taken();
        story.wait(LEASE);
        let second = owned("two", story.now() + LEASE, 8, 100);
        story.lane("relay-2", &first, &second);
        (story, second)
    }

    #[test]
    fn pr2_an_owner_renews_moves_on_and_gives_up() {
        let (mut story, lease) = taken();
        let renewed = owned("one", story.now() + 2 * LEASE, 7, 100);
        story.lane("relay-1", &lease, &renewed);
        let moved = State { position: Some(120), ..renewed.clone() };
        story.lane("relay-1", &renewed, &moved);
        let unnoted = State { position: None, ..moved.clone() };
        story.lane("relay-1", &moved, &unnoted);
        let noted = State { position: Some(110), ..moved.clone() };
        story.lane("relay-1", &unnoted, &noted);
        story.lane("relay-1", &noted, &free(7, 110));
        // Nobody has taken it: what it says late fits.
        story.lane("relay-1", &free(7, 110), &free(7, 130));
        story.lane("relay-2", &free(7, 130), &owned("two", story.now() + LEASE, 8, 130));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_lane_is_taken_after_its_lease_by_its_own_owner_or_when_that_one_is_gone() {
        let (story, _) = taken_again();
        story.assert_found(RULE, &[]);
        let (mut story, lease) = taken();
        story.lane("relay-1", &lease, &owned("one", story.now() + LEASE, 8, 100));
        story.assert_found(RULE, &[]);
        let ends = ["kill", "kill_producer", "terminate", "restart", "cut", "hole"];
        for (kind, whom) in ends.into_iter().flat_map(|kind| [(kind, "relay-1"), (kind, "postgres")]) {
            let (mut story, lease) = taken();
            story.fault(kind, whom);
            story.lane("relay-2", &lease, &owned("two", story.now() + LEASE, 8, 100));
            story.assert_found(RULE, &[]);
        }
    }

    #[test]
    fn pr2_a_lane_that_is_taken_while_its_owner_lives_is_found() {
        let words = ["two took it while one owned it"];
        let (mut story, lease) = taken();
        story.lane("relay-2", &lease, &owned("two", story.now() + LEASE, 8, 100));
        story.assert_found(RULE, &words);
        // What befell the taker says nothing of the owner, nor does what befell a sink; and who was stopped has its session.
        let others =
            [("kill", "relay-2"), ("sink_slow", "stream"), ("broker", "NATS"), ("way_cut", "relay-1")];
        for (kind, whom) in others.into_iter().chain([("stop", "relay-1"), ("slow", "relay-1")]) {
            let (mut story, lease) = taken();
            story.fault(kind, whom);
            story.lane("relay-2", &lease, &owned("two", story.now() + LEASE, 8, 100));
            story.assert_found(RULE, &words);
        }
        // A file does not know whose process is gone.
        let (mut story, lease) = taken();
        story.fault("kill", "relay-1");
        story.lane("", &lease, &owned("two", story.now() + LEASE, 8, 100));
        story.assert_found(RULE, &words);
    }

    #[test]
    fn pr2_a_lane_that_is_taken_without_a_new_fence_is_found() {
        let (mut story, lease) = taken();
        story.wait(LEASE);
        story.lane("relay-2", &lease, &owned("two", story.now() + LEASE, 7, 100));
        story.assert_found(RULE, &["its fence did not grow"]);
    }

    #[test]
    fn pr2_a_fence_that_goes_back_or_grows_without_an_owner_is_found() {
        let (mut story, lease) = taken_again();
        story.lane("relay-2", &lease, &owned("two", story.now() + LEASE, 7, 100));
        story.assert_found(RULE, &["its fence went back from 8 to 7"]);
        let (mut story, _) = taken_again();
        story.lane("relay-2", &free(5, 100), &owned("two", story.now() + LEASE, 6, 100));
        story.assert_found(RULE, &["its fence went back from 8 to 6"]);
        let (mut story, lease) = taken_again();
        story.lane("relay-2", &lease, &free(9, 100));
        story.assert_found(RULE, &["its fence grew, and nobody took it"]);
    }

    #[test]
    fn pr2_a_position_that_goes_back_is_found() {
        let (mut story, lease) = taken();
        story.lane("relay-1", &lease, &State { position: Some(99), ..lease.clone() });
        story.assert_found(RULE, &["its position went back from 100 to 99"]);
    }

    #[test]
    fn pr2_whatever_another_than_the_owner_writes_is_found() {
        let words = ["relay-1 wrote to it while two owned it"];
        for change in [
            |lease: &State| State { until: lease.until.map(|until| until + SECOND), ..lease.clone() },
            |lease: &State| State { position: Some(120), ..lease.clone() },
            |_: &State| free(8, 100),
        ] {
            let (mut story, lease) = taken_again();
            story.lane("relay-1", &lease, &change(&lease));
            story.assert_found(RULE, &words);
        }
        // Nor may it be the one before the last, when the last has given the lane up.
        let (mut story, lease) = taken_again();
        story.lane("relay-2", &lease, &free(8, 100));
        story.lane("relay-1", &free(8, 100), &free(8, 120));
        story.assert_found(RULE, &words);
    }

    #[test]
    fn pr2_a_lane_that_nobody_has_owned_is_not_written() {
        let mut story = Story::new();
        story.lane("relay-1", &free(6, 100), &free(6, 120));
        story.assert_found(RULE, &["nobody has ever owned it"]);
    }
}
