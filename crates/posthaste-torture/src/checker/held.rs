//! No two held an event of a queue at once, and nobody changed one that he did not hold, by the database's own record.
//!
//! What may happen to a row, and by whom:
//!
//! | change | when | by whom |
//! |---|---|---|
//! | born leased | with the row | its producer, for a relay of the same process |
//! | leased, one attempt more | no lease, or one that has ended | anybody |
//! | the lease lasts longer | held, also after its end | its holder |
//! | the lease ends now | held by one whose session is gone: after a fault that ends sessions | anybody |
//! | delivered, or deleted for it; retried; dead; given back with its attempt | held, also after the lease's end | its holder |
//! | dead | all attempts used up, no lease, or one that has ended | anybody |
//! | dead to pending, no attempts | | an operator |
//! | deleted | delivered or dead | anybody: a purge, an operator |
//!
//! Times are the database's. A claim is judged by a clock that is read after the one that the claim went by.

use super::index::{Index, is_dead};
use super::sessions::is_present;
use super::violation::Violation;
use crate::history::{Change, Leased, Micros, State};

const RULE: &str = "held";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (event, table, changes) in index.events_changed(false) {
        for change in changes {
            if let Some(what) = judge(index, change) {
                violations.push(Violation::new(RULE, table, Leased::Event(event), change.at, what));
            }
        }
    }
    violations
}

fn judge(index: &Index<'_>, change: &Change) -> Option<String> {
    let Change { before, after, at, .. } = change;
    if before.gone {
        return None;
    }
    if before.outcome.is_some() {
        return judge_settled(before, after);
    }
    if let Some(taker) = after.holder.as_ref().filter(|_| after.holder != before.holder) {
        return judge_claim(before, after, taker, *at);
    }
    let buried = is_dead(after.outcome.as_deref()) && before.attempts >= index.rules.max_attempts;
    if buried && after.attempts == before.attempts && !is_leased(before, *at) {
        return None;
    }
    let Some(holder) = &before.holder else {
        return Some(format!("it became {} while nobody held it", said(after)));
    };
    let session = &change.session;
    let is_ended = after.holder.is_some() && after.until < before.until && after.until <= Some(*at);
    let may_be_holder = index.sessions.may_be(change, holder);
    // Nobody ends his own lease: where no session is known, it was another one.
    if is_ended && (session.is_empty() || !may_be_holder) {
        let is_gone =
            is_present(holder) && index.sessions.is_gone(&index.faults, change, holder, index.rules.lease);
        if !is_gone {
            return Some(format!("{session} ended the lease of {holder}, who was not gone"));
        }
    } else if !may_be_holder {
        return Some(format!("{session} made it {} while {holder} held it", said(after)));
    }
    let released = after.holder.is_none() && after.outcome.is_none() && after.attempts == before.attempts - 1;
    let counted = after.gone || after.attempts == before.attempts || released;
    (!counted).then(|| format!("its attempts went from {} to {}", before.attempts, after.attempts))
}

/// What is settled stays so, but for what is replayed and what is deleted.
fn judge_settled(before: &State, after: &State) -> Option<String> {
    let pending = after.outcome.is_none() && after.holder.is_none() && after.attempts == 0;
    let replayed = is_dead(before.outcome.as_deref()) && pending;
    let wrong = !after.gone && !replayed;
    wrong.then(|| format!("it was {} and became {}", said(before), said(after)))
}

fn judge_claim(before: &State, after: &State, taker: &str, at: Micros) -> Option<String> {
    if let Some((holder, until)) = before.holder.as_ref().zip(before.until).filter(|_| is_leased(before, at))
    {
        let early = until - at;
        return Some(format!("{taker} claimed it while {holder} held it for another {early} µs"));
    }
    let counted = after.attempts == before.attempts + 1 && after.outcome.is_none();
    let (from, to) = (before.attempts, after.attempts);
    (!counted).then(|| format!("{taker} claimed it, and its attempts went from {from} to {to}"))
}

fn is_leased(state: &State, at: Micros) -> bool {
    state.holder.is_some() && state.until.is_some_and(|until| until > at)
}

/// A state in a word or two.
fn said(state: &State) -> String {
    match (&state.outcome, &state.holder) {
        _ if state.gone => "deleted".to_owned(),
        (Some(outcome), _) => outcome.clone(),
        (None, Some(holder)) => format!("leased to {holder} until {}", state.until.unwrap_or_default()),
        (None, None) => format!("pending, with {} attempts", state.attempts),
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE, MILLI, Story, free, gone, held, settled};
    use super::*;
    use uuid::Uuid;

    /// An event that `one`, of relay-1, holds for a lease from now.
    fn claimed() -> (Story, Uuid, State) {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let lease = held("one~#1", story.now() + LEASE, 1);
        story.change(event, "relay-1", free(0), lease.clone());
        (story, event, lease)
    }

    /// The same, and `two`, of relay-2, has taken it since the lease's end.
    fn claimed_again() -> (Story, Uuid, State) {
        let (mut story, event, first) = claimed();
        story.wait(LEASE);
        let second = held("two~#1", story.now() + LEASE, 2);
        story.change(event, "relay-2", first, second.clone());
        (story, event, second)
    }

    #[test]
    fn pr2_whoever_holds_a_lease_may_renew_settle_and_give_back() {
        let ends = [settled("delivered", 1), settled("dead", 1), gone(), free(1), free(0)];
        for end in ends {
            let (mut story, event, lease) = claimed();
            let renewed = held("one~#1", story.now() + LEASE, 1);
            story.change(event, "relay-1", lease, renewed.clone());
            // Also after its end, while nobody else has it.
            story.wait(2 * LEASE);
            story.change(event, "relay-1", renewed, end);
            story.assert_found(RULE, &[]);
        }
    }

    /// `two` ends the lease of `one`, at a time and in a session of this name, and takes the event.
    fn ended(story: &mut Story, event: Uuid, lease: State, session: &str) {
        let end = State { until: Some(story.now() + MILLI), ..lease.clone() };
        story.change(event, session, lease, end.clone());
        let second = held("two~#1", story.now() + LEASE, 2);
        story.change(event, session, end, second);
    }

    #[test]
    fn pr2_a_lease_that_has_ended_may_be_taken_and_one_that_was_ended_with_its_session_too() {
        let (story, ..) = claimed_again();
        story.assert_found(RULE, &[]);
        for (kind, whom) in [("kill", "relay-1"), ("cut", "relay-3, relay-1"), ("restart", "postgres")] {
            let (mut story, event, lease) = claimed();
            story.fault(kind, whom);
            ended(&mut story, event, lease, "relay-2");
            story.assert_found(RULE, &[]);
        }
    }

    #[test]
    fn pr2_a_lease_that_is_ended_while_its_holder_lives_is_found() {
        let words = ["ended the lease of one~#1, who was not gone"];
        let (mut story, event, lease) = claimed();
        ended(&mut story, event, lease, "relay-2");
        story.assert_found(RULE, &words);
        for (kind, whom) in
            [("kill", "relay-2"), ("stop", "relay-1"), ("slow", "relay-1"), ("sink_slow", "http")]
        {
            let (mut story, event, lease) = claimed();
            let other = story.commit("queue", "a", 2);
            story.change(other, "relay-2", free(0), held("two~#0", story.now() + LEASE, 1));
            story.fault(kind, whom);
            ended(&mut story, event, lease, "relay-2");
            story.assert_found(RULE, &words);
        }
        // A file does not know whose process is gone.
        let (mut story, event, lease) = claimed();
        story.fault("kill", "relay-1");
        ended(&mut story, event, lease, "");
        story.assert_found(RULE, &words);
    }

    #[test]
    fn pr2_a_lease_of_one_whose_session_nobody_knew_is_not_ended_nor_is_one_made_shorter() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let lease = held("one#1", story.now() + LEASE, 1);
        story.change(event, "relay-1", free(0), lease.clone());
        story.fault("kill", "relay-1");
        ended(&mut story, event, lease, "relay-2");
        story.assert_found(RULE, &["ended the lease of one#1, who was not gone"]);
        let (mut story, event, lease) = claimed();
        story.fault("kill", "relay-1");
        let shorter = held("one~#1", story.now() + LEASE / 2, 1);
        story.change(event, "relay-2", lease, shorter);
        story.assert_found(RULE, &["relay-2 made it leased to one~#1"]);
    }

    #[test]
    fn pr2_an_event_may_be_born_leased_and_settled_by_the_same_process() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let lease = held("hot~#1", story.now() + LEASE, 1);
        story.change(event, "producer-1", gone(), lease.clone());
        story.change(event, "producer-1", lease, settled("delivered", 1));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_anybody_may_bury_replay_and_delete() {
        let (mut story, event, _) = claimed();
        story.wait(LEASE);
        let spent = held("one~#5", story.now(), 5);
        story.change(event, "relay-2", spent, settled("dead", 5));
        story.change(event, "operator", settled("dead", 5), free(0));
        story.change(event, "relay-2", free(5), settled("dead", 5));
        story.change(event, "operator", settled("dead", 5), gone());
        let delivered = story.commit("queue", "a", 2);
        story.change(delivered, "relay-2", settled("delivered", 1), gone());
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_second_holder_before_the_end_of_the_first_is_found() {
        let (mut story, event, lease) = claimed();
        let second = held("two~#1", story.now() + LEASE, 2);
        story.change(event, "relay-2", lease, second);
        story.assert_found(RULE, &["two~#1 claimed it while one~#1 held it"]);
        // Two claims of one process are two holders.
        let (mut story, event, lease) = claimed();
        let second = held("one~#2", story.now() + LEASE, 2);
        story.change(event, "relay-1", lease, second);
        story.assert_found(RULE, &["one~#2 claimed it while one~#1 held it"]);
    }

    #[test]
    fn pr2_a_claim_that_counts_no_attempt_is_found() {
        let (mut story, event, lease) = claimed();
        story.wait(LEASE);
        let second = held("two~#1", story.now() + LEASE, 1);
        story.change(event, "relay-2", lease, second);
        story.assert_found(RULE, &["its attempts went from 1 to 1"]);
    }

    #[test]
    fn pr2_a_settlement_by_another_than_the_holder_is_found() {
        for end in [settled("delivered", 2), settled("dead", 2), gone(), free(2), free(1)] {
            let (mut story, event, lease) = claimed_again();
            story.change(event, "relay-1", lease, end);
            story.assert_found(RULE, &["while two~#1 held it"]);
        }
    }

    #[test]
    fn pr2_a_settlement_of_what_nobody_holds_is_found_also_where_no_session_is_known() {
        for session in ["relay-1", ""] {
            for end in [settled("delivered", 1), settled("dead", 1), gone(), free(0)] {
                let mut story = Story::new();
                let event = story.commit("queue", "a", 1);
                story.change(event, session, free(1), end);
                story.assert_found(RULE, &["while nobody held it"]);
            }
        }
    }

    #[test]
    fn pr2_a_renewal_by_another_than_the_holder_is_found() {
        let (mut story, event, lease) = claimed_again();
        let longer = held("two~#1", story.now() + 2 * LEASE, 2);
        story.change(event, "relay-1", lease, longer);
        story.assert_found(RULE, &["relay-1 made it leased to two~#1"]);
    }

    #[test]
    fn pr2_what_is_delivered_stays_so() {
        for after in [settled("dead", 1), settled("delivered", 1), free(0), held("one#2", 0, 2)] {
            let mut story = Story::new();
            let event = story.commit("queue", "a", 1);
            story.change(event, "relay-1", settled("delivered", 1), after);
            story.assert_found(RULE, &["it was delivered and became"]);
        }
    }

    #[test]
    fn pr2_what_is_dead_is_only_replayed_or_deleted() {
        for after in [settled("delivered", 5), settled("dead", 5), free(3)] {
            let mut story = Story::new();
            let event = story.commit("queue", "a", 1);
            story.change(event, "relay-1", settled("dead", 5), after);
            story.assert_found(RULE, &["it was dead and became"]);
        }
    }

    #[test]
    fn pr2_attempts_that_are_not_what_a_settlement_leaves_are_found() {
        for attempts in [0, 2, 4] {
            let (mut story, event, _) = claimed();
            let third = held("one~#3", story.now() + LEASE, 3);
            let after = if attempts == 0 { settled("dead", 0) } else { free(attempts) };
            story.change(event, "relay-1", third, after);
            let expected: &[&str] = if attempts == 2 { &[] } else { &["its attempts went from 3"] };
            story.assert_found(RULE, expected);
        }
    }

    #[test]
    fn pr2_an_event_is_not_buried_while_somebody_holds_it_or_attempts_are_left() {
        let (mut story, event, _) = claimed();
        let last = held("one~#5", story.now() + LEASE, 5);
        story.change(event, "relay-2", last, settled("dead", 5));
        story.change(event, "relay-2", free(4), settled("dead", 4));
        story.assert_found(RULE, &["relay-2 made it dead while one~#5 held it", "while nobody held it"]);
    }
}
