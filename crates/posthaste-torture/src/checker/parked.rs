//! What becomes of a stream's event is written by the owner of its lane, by the database's own record.
//!
//! The record has two kinds of changes of such an event: of its own row, where the database marks those, and of its row
//! among the parked. In both the holder is the lane's owner at that moment. Of a parked row the fence before is the one
//! under which it is being tried, and the fence after that of its lane at that moment: who settles it still has both.
//!
//! An operator changes dead events alone; who purges deletes delivered ones.

use super::index::{Index, is_dead, is_delivered};
use super::violation::Violation;
use crate::history::{Change, Leased, State};

const RULE: &str = "parked";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (event, table, changes) in index.events_changed(true) {
        // Its own row goes with the parked one, before it or after it.
        let discarded = changes.iter().any(|c| c.after.gone && is_dead(c.before.outcome.as_deref()));
        for change in changes.iter().filter(|change| !(discarded && change.after.gone)) {
            if let Some(what) = judge(index, change) {
                violations.push(Violation::new(RULE, table, Leased::Event(event), change.at, what));
            }
        }
    }
    violations
}

fn judge(index: &Index<'_>, change: &Change) -> Option<String> {
    let Change { before, after, session, .. } = change;
    let outcome = before.outcome.as_deref();
    if is_dead(outcome) || is_delivered(outcome) {
        let replayed = is_dead(outcome) && after.outcome.is_none() && after.attempts == 0;
        let wrong = !after.gone && !replayed;
        let said = after.outcome.as_deref().unwrap_or("pending");
        return wrong.then(|| format!("it was {} and became {said}", outcome.unwrap_or_default()));
    }
    if let Some(owner) = after.holder.as_ref().filter(|owner| !index.sessions.may_be(change, owner)) {
        return Some(format!("{session} changed it while {owner} owned its lane"));
    }
    let claimed = before.fence?;
    if !before.gone && !after.gone && after.attempts > before.attempts {
        return Some(format!("it was tried while it was being tried under fence {claimed}"));
    }
    let wrong = settles(before, after) && after.fence != Some(claimed);
    let fence = after.fence.unwrap_or_default();
    wrong.then(|| format!("it was settled under fence {claimed} while its lane had fence {fence}"))
}

/// Whether a try that was under way has ended. A new owner that finds one leaves its attempts and its outcome.
fn settles(before: &State, after: &State) -> bool {
    after.gone || after.outcome != before.outcome || after.attempts < before.attempts
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;
    use uuid::Uuid;

    fn state(attempts: i64, fence: Option<i64>, outcome: Option<&str>) -> State {
        let holder = Some("one".to_owned());
        State { holder, attempts, fence, outcome: outcome.map(str::to_owned), ..State::default() }
    }

    fn no_row(fence: Option<i64>) -> State {
        State { gone: true, ..state(0, fence, None) }
    }

    /// An event of a stream whose lane 3 `one`, of relay-1, owns; relay-2 owned it before.
    fn owned() -> (Story, Uuid) {
        let mut story = Story::new();
        let lane = |holder: Option<&str>, fence| State {
            holder: holder.map(str::to_owned),
            fence: Some(fence),
            ..State::default()
        };
        story.change_of("stream", Leased::Lane(3), "relay-2", lane(None, 5), lane(Some("two"), 6));
        story.change_of("stream", Leased::Lane(3), "relay-1", lane(Some("two"), 6), lane(Some("one"), 7));
        let event = story.commit("stream", "a", 1);
        (story, event)
    }

    #[test]
    fn pr2_an_owner_parks_tries_and_ends_what_it_parked() {
        let ends = [
            no_row(Some(7)),
            state(1, Some(7), None),
            state(2, Some(7), None),
            state(2, Some(7), Some("dead")),
        ];
        for end in ends {
            let (mut story, event) = owned();
            story.change(event, "relay-1", no_row(None), state(1, Some(7), None));
            story.change(event, "relay-1", state(1, None, None), state(2, Some(7), None));
            story.change(event, "relay-1", state(2, Some(7), None), end);
            story.assert_found(RULE, &[]);
        }
    }

    #[test]
    fn pr2_a_new_owner_takes_back_what_the_one_before_was_trying() {
        let (mut story, event) = owned();
        story.change(event, "relay-1", state(2, Some(6), None), state(2, Some(7), None));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_rows_are_marked_by_the_owner_and_purged_by_anybody() {
        let (mut story, event) = owned();
        let marked = state(0, None, Some("delivered"));
        story.change(event, "relay-1", state(0, None, None), marked.clone());
        story.change(event, "operator", marked, no_row(Some(7)));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_an_operator_replays_and_discards_what_is_dead() {
        let (mut story, event) = owned();
        let dead = state(2, None, Some("dead"));
        story.change(event, "operator", dead.clone(), state(0, Some(7), None));
        story.change(event, "operator", dead, no_row(Some(7)));
        // The event's own row, which is marked as parked, goes with it.
        story.change(event, "operator", state(0, None, Some("parked")), no_row(Some(7)));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_whatever_another_than_the_owner_writes_is_found() {
        let changes = [
            (no_row(None), state(1, Some(7), None)),
            (state(1, None, None), state(2, Some(7), None)),
            (state(2, Some(6), None), no_row(Some(7))),
            (state(0, None, None), state(0, Some(7), Some("delivered"))),
            (state(0, None, None), state(0, Some(7), Some("parked"))),
        ];
        for (before, after) in changes {
            let (mut story, event) = owned();
            story.change(event, "relay-2", before, after);
            story.assert_found(RULE, &["relay-2 changed it while one owned its lane"]);
        }
    }

    #[test]
    fn pr2_a_settlement_under_another_fence_is_found_also_where_no_session_is_known() {
        for end in [no_row(Some(7)), state(2, Some(7), Some("dead")), state(1, Some(7), None)] {
            let (mut story, event) = owned();
            story.change(event, "", state(2, Some(6), None), end);
            story.assert_found(RULE, &["it was settled under fence 6 while its lane had fence 7"]);
        }
    }

    #[test]
    fn pr2_an_event_that_is_tried_twice_at_once_is_found() {
        let (mut story, event) = owned();
        story.change(event, "relay-1", state(2, Some(7), None), state(3, Some(7), None));
        story.assert_found(RULE, &["it was tried while it was being tried under fence 7"]);
    }

    #[test]
    fn pr2_what_is_dead_or_delivered_stays_so() {
        let (mut story, event) = owned();
        let outcome = |outcome| state(2, Some(7), Some(outcome));
        story.change(event, "relay-1", outcome("dead"), outcome("delivered"));
        story.change(event, "relay-1", outcome("delivered"), outcome("parked"));
        story.assert_found(RULE, &["it was dead and became delivered", "it was delivered and became parked"]);
    }
}
