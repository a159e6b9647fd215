//! An event is delivered again only by a right, and for a reason.
//!
//! The right is by the database's record: of a queue, that whoever delivers the event has claimed it as often; of a stream, that
//! since the delivery before, or the fault that explains this one, a lane of the table got a new fence, or the event was parked.
//! Claims do not wait for the disk: those of the last moment before a server dies are gone with it, and so is their record.
//!
//! The reason is that the sink had not accepted it, whether it lied or not; or a fault. Near the first delivery it befell who made it,
//! and could not say so; near the second who made that, and was late; near either the sink, or what all depend on. Near is a lease
//! before and after, and some.

use std::collections::HashMap;

use super::index::{Event, Index, is_delivered};
use super::violation::Violation;
use crate::history::{Answer, Change, Delivery, Fault, Leased, Micros};

const RULE: &str = "duplicate";

/// The faults after which what was under way goes on, and is late.
const LATE: [&str; 4] = ["stop", "slow", "hole", "way_hole"];

/// The database's clock is read to the millisecond by some.
const MILLI: Micros = 1000;

/// What was not to wait for the disk is there after so long: PostgreSQL says three times 200 ms.
const UNWRITTEN: Micros = 1000 * MILLI;

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (id, event) in &index.events {
        let table = event.table();
        let mut find = |at, what| violations.push(Violation::new(RULE, table, Leased::Event(*id), at, what));
        let changes = index.changes_of(table, *id);
        if !index.rules.is_stream(table) {
            let mut counts: HashMap<Option<&str>, usize> = HashMap::new();
            for delivery in event.deliveries.iter().filter(|delivery| !is_forgotten(index, delivery)) {
                let who = Some(delivery.by.as_str()).filter(|by| index.sessions.has(by));
                let claims = claims(changes, who, delivery.at);
                let number = counts.entry(who).and_modify(|number| *number += 1).or_insert(1);
                if *number > claims {
                    let by = who.map(|who| format!(" by {who}")).unwrap_or_default();
                    let what = format!("it was delivered {number} times{by}, and claimed {claims} times");
                    find(delivery.at, what);
                }
            }
        }
        for (before, again) in pairs(event) {
            if let Some(what) = judge(index, table, changes, before, again) {
                find(again.at, what);
            }
        }
    }
    violations
}

/// How often an event of a queue was claimed until then, by this one or, where nobody knows, by anybody; it may be born so.
fn claims(changes: &[&Change], by: Option<&str>, until: Micros) -> usize {
    let is_claim = |change: &&&Change| {
        let Change { before, after, at, session, .. } = change;
        let taken = after.holder != before.holder || after.attempts > before.attempts;
        let by_this_one = by.is_none_or(|by| by == session);
        *at <= until + MILLI && after.holder.is_some() && taken && by_this_one
    };
    changes.iter().filter(is_claim).count()
}

/// Whether the claim that a delivery was made by may have gone with the server.
fn is_forgotten(index: &Index<'_>, delivery: &Delivery) -> bool {
    let since = delivery.at - index.rules.lease;
    let deaths = index.faults.felt_between(since, delivery.at + UNWRITTEN);
    deaths
        .into_iter()
        .any(|fault| fault.kind == "restart" && index.rules.is_server(&fault.whom) && fault.from >= since)
}

fn judge(
    index: &Index<'_>,
    table: &str,
    changes: &[&Change],
    before: &Delivery,
    again: &Delivery,
) -> Option<String> {
    if before.answer != Answer::Accepted {
        return None;
    }
    let Delivery { sink, by, at, .. } = again;
    let after = at - before.at;
    let had =
        format!("{sink} had accepted it from {} and got it again from {by} after {after} µs", before.by);
    let explains = |fault: &&Fault| explains(index, fault, before, again);
    let mut reasons = index.faults.felt_between(before.at, *at).filter(explains).peekable();
    if reasons.peek().is_none() {
        return Some(format!("{had}, without a fault that explains it"));
    }
    let is_settled =
        |change: &&Change| is_delivered(change.after.outcome.as_deref()) && change.at + 2 * MILLI < *at;
    let is_late = |fault: &Fault| LATE.contains(&&*fault.kind) && fault.befell(by);
    if index.rules.is_stream(table)
        && changes.iter().any(is_settled)
        && !index.faults.felt_at(*at).any(is_late)
    {
        return Some(format!("{had}, though it was settled as delivered"));
    }
    let by_right = |fault: &Fault| {
        let from = fault.from.min(before.at) - MILLI;
        let parked = changes.iter().any(|change| (from..=at + MILLI).contains(&change.at));
        parked || index.is_fenced_between(table, from, at + MILLI)
    };
    let wrong = index.rules.is_stream(table) && !reasons.any(by_right);
    wrong.then(|| format!("{had}, and no lane had changed hands, nor was it parked"))
}

/// Whether a fault is why one of those two deliveries was made.
fn explains(index: &Index<'_>, fault: &Fault, before: &Delivery, again: &Delivery) -> bool {
    let is_near = |at: Micros| {
        let reach = index.rules.lease + index.rules.slack;
        fault.from <= at + reach && at <= fault.until + reach
    };
    let [near_first, near_second] = [before.at, again.at].map(is_near);
    match fault.kind.as_str() {
        "broker" => !index.rules.is_prompt(&again.sink) && (near_first || near_second),
        kind if kind.starts_with("sink") => fault.befell(&again.sink) && (near_first || near_second),
        _ if index.rules.is_server(&fault.whom) => near_first || near_second,
        kind => {
            let is_late = LATE.contains(&kind) && fault.befell(&again.by);
            fault.befell(&before.by) && near_first || is_late && near_second
        }
    }
}

/// Each two deliveries of an event to the same sink that come after each other.
fn pairs<'e, 'a>(event: &'e Event<'a>) -> impl Iterator<Item = (&'a Delivery, &'a Delivery)> + 'e {
    let each = event.deliveries.iter().enumerate();
    each.filter_map(|(at, again)| {
        let before = event.deliveries[..at].iter().rev().find(|before| before.sink == again.sink)?;
        Some((*before, *again))
    })
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE, SECOND, Story, free, gone, held, settled};
    use super::*;
    use crate::history::State;
    use uuid::Uuid;

    const TWICE: &str = "without a fault that explains it";
    const UNCLAIMED: &str = "it was delivered 2 times by relay-1, and claimed 1 times";
    const ONCE: &str = "it was delivered 1 times, and claimed 0 times";
    const UNMOVED: &str = "no lane had changed hands";

    impl Story {
        /// A queue's event that was claimed this often.
        fn claimed(&mut self, times: i64) -> Uuid {
            let event = self.commit("queue", "a", 1);
            (1..=times).for_each(|attempt| self.claim(event, attempt));
            event
        }

        fn claim(&mut self, event: Uuid, attempt: i64) {
            self.claim_by(event, attempt, "relay-1");
        }

        fn claim_by(&mut self, event: Uuid, attempt: i64, session: &str) {
            let lease = held(&format!("one#{attempt}"), self.now() + LEASE, attempt);
            self.change(event, session, free(attempt - 1), lease);
        }

        fn deliver_by(&mut self, event: Uuid, by: &str) {
            self.deliver_as(event, Answer::Accepted, |delivery| delivery.by = by.to_owned());
        }

        /// A lane of the stream gets a new fence.
        fn fence(&mut self) {
            let fence = |fence| State { fence: Some(fence), ..held("one", 0, 0) };
            self.change_of("stream", Leased::Lane(1), "relay-1", fence(1), fence(2));
        }
    }

    #[test]
    fn pr2_a_second_delivery_without_a_fault_is_found_each_time() {
        let mut story = Story::new();
        let event = story.claimed(3);
        story.deliver(event, Answer::Accepted);
        story.deliver(event, Answer::Accepted);
        story.deliver(event, Answer::Failed);
        story.assert_found(RULE, &[TWICE, TWICE]);
    }

    #[test]
    fn pr2_a_delivery_without_a_claim_is_found_whatever_was_broken_and_answered() {
        for answer in [Answer::Accepted, Answer::Failed, Answer::Lied] {
            let mut story = Story::new();
            let event = story.claimed(1);
            story.deliver(event, answer);
            story.fault("kill", "relay-1");
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, &[UNCLAIMED]);
            // One that comes later gives no right.
            story.wait(SECOND);
            story.claim(event, 2);
            story.assert_found(RULE, &[UNCLAIMED]);
        }
        let mut story = Story::new();
        let event = story.claimed(0);
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[ONCE]);
    }

    #[test]
    fn pr2_a_claim_of_the_last_moment_before_a_server_dies_goes_with_it() {
        for (kind, whom, wait, words) in [
            ("restart", "postgres", 0, &[][..]),
            ("restart", "postgres", 2 * SECOND, &[UNCLAIMED]),
            ("terminate", "postgres", 0, &[UNCLAIMED]),
            ("restart", "relay-1", 0, &[UNCLAIMED]),
        ] {
            let mut story = Story::new();
            let event = story.claimed(1);
            story.fault("stop", "relay-1");
            story.deliver(event, Answer::Accepted);
            story.deliver(event, Answer::Accepted);
            story.wait(wait);
            story.fault(kind, whom);
            story.assert_found(RULE, words);
        }
        let mut story = Story::new();
        let event = story.claimed(0);
        story.fault("restart", "postgres");
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[]);
        story.wait(LEASE);
        story.deliver(event, Answer::Failed);
        story.assert_found(RULE, &[ONCE]);
    }

    #[test]
    fn pr2_an_event_may_be_born_claimed() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let lease = held("one#1", story.now() + LEASE, 1);
        story.change(event, "relay-1", gone(), lease);
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_fault_of_the_first_the_second_or_everybody_explains_the_second() {
        let mut explained = Vec::new();
        for whom in ["relay-1", "relay-2", "postgres", "relay-3, relay-1", "relay-3", "producer-1", "http"] {
            for kind in ["cut", "stop"] {
                let mut story = Story::new();
                let event = story.claimed(1);
                story.claim_by(event, 2, "relay-2");
                story.deliver_by(event, "relay-1");
                story.fault(kind, whom);
                story.deliver_by(event, "relay-2");
                if story.violations_of(RULE).is_empty() {
                    explained.push((kind, whom));
                }
            }
        }
        // Who is cut off ends what it does: only one that stood still is late.
        assert_eq!(
            explained,
            [
                ("cut", "relay-1"),
                ("stop", "relay-1"),
                ("stop", "relay-2"),
                ("cut", "postgres"),
                ("stop", "postgres"),
                ("cut", "relay-3, relay-1"),
                ("stop", "relay-3, relay-1"),
            ]
        );
    }

    #[test]
    fn pr2_a_fault_that_is_near_neither_delivery_explains_nothing() {
        for (wait, words) in [(0, &[][..]), (60 * SECOND, &[TWICE])] {
            let mut story = Story::new();
            let event = story.commit("stream", "a", 1);
            story.deliver(event, Answer::Accepted);
            story.wait(wait);
            story.fault("kill", "relay-1");
            story.fence();
            story.deliver_by(event, "relay-2");
            story.assert_found(RULE, words);
        }
    }

    #[test]
    fn pr2_a_claim_is_nobody_elses() {
        let mut story = Story::new();
        let event = story.claimed(1);
        story.claim_by(event, 2, "relay-2");
        story.fault("kill", "relay-1");
        story.deliver_by(event, "relay-2");
        story.deliver_by(event, "relay-2");
        story.assert_found(RULE, &["it was delivered 2 times by relay-2, and claimed 1 times", TWICE]);
    }

    #[test]
    fn pr2_a_fault_of_a_sink_or_a_broker_is_a_matter_of_their_events() {
        let cases = [("sink_slow", "http", true), ("sink_slow", "kept", false), ("broker", "NATS", false)];
        for (kind, whom, explains) in cases {
            let mut story = Story::new();
            let event = story.claimed(2);
            story.deliver(event, Answer::Accepted);
            story.fault(kind, whom);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, if explains { &[] } else { &[TWICE] });
        }
        let mut story = Story::new();
        let event = story.claimed(2);
        let brokered = |delivery: &mut Delivery| delivery.sink = "nats".to_owned();
        story.deliver_as(event, Answer::Accepted, brokered);
        story.fault("broker", "NATS");
        story.deliver_as(event, Answer::Accepted, brokered);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_fault_is_felt_for_a_lease_after_its_end_and_not_for_longer() {
        for (wait, words) in [(LEASE, &[][..]), (LEASE + 3 * SECOND, &[TWICE])] {
            let mut story = Story::new();
            let event = story.claimed(2);
            story.fault("stop", "relay-1");
            story.wait(wait);
            story.deliver(event, Answer::Accepted);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, words);
        }
    }

    #[test]
    fn pr2_a_fault_that_came_later_explains_nothing() {
        let mut story = Story::new();
        let event = story.claimed(2);
        story.deliver(event, Answer::Accepted);
        story.deliver(event, Answer::Accepted);
        story.fault("kill", "relay-1");
        story.assert_found(RULE, &[TWICE]);
    }

    #[test]
    fn pr2_a_lie_and_a_failure_explain_the_next_delivery_and_no_other() {
        for answer in [Answer::Lied, Answer::Failed] {
            let mut story = Story::new();
            let event = story.claimed(3);
            story.deliver(event, answer);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, &[]);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, &[TWICE]);
        }
    }

    #[test]
    fn pr2_two_sinks_may_each_have_it() {
        let mut story = Story::new();
        let event = story.claimed(3);
        story.deliver(event, Answer::Accepted);
        story.deliver_as(event, Answer::Accepted, |delivery| delivery.sink = "nats".to_owned());
        story.assert_found(RULE, &[]);
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[TWICE]);
    }

    #[test]
    fn pr2_a_stream_delivers_again_when_a_lane_has_changed_hands_or_the_event_was_parked() {
        let rights: [fn(&mut Story, Uuid); 3] = [
            |_, _| {},
            |story, _| story.fence(),
            |story, event| _ = story.change(event, "relay-1", gone(), free(1)),
        ];
        for (right, words) in rights.into_iter().zip([&[UNMOVED][..], &[], &[]]) {
            let mut story = Story::new();
            let event = story.commit("stream", "a", 1);
            // What was before the first delivery gives no right.
            story.fence();
            story.wait(SECOND);
            story.deliver(event, Answer::Accepted);
            story.fault("kill", "relay-1");
            right(&mut story, event);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, words);
        }
    }

    #[test]
    fn pr2_what_a_stream_has_settled_is_delivered_again_only_by_who_is_late() {
        for (whom, words) in [("relay-1", &["though it was settled as delivered"][..]), ("relay-2", &[])] {
            let mut story = Story::new();
            let event = story.commit("stream", "a", 1);
            story.deliver_by(event, "relay-1");
            story.change(event, "relay-1", free(0), settled("delivered", 0));
            story.fault("stop", whom);
            story.fence();
            story.deliver_by(event, "relay-2");
            story.assert_found(RULE, words);
        }
    }

    #[test]
    fn pr2_a_stream_that_delivers_again_without_a_fault_is_found_also_after_a_change_of_hands() {
        let mut story = Story::new();
        let event = story.commit("stream", "a", 1);
        story.deliver(event, Answer::Accepted);
        story.fence();
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[TWICE]);
    }

    #[test]
    fn pr2_who_is_late_had_a_lane_that_changed_hands_while_it_was_away() {
        let mut story = Story::new();
        let event = story.commit("stream", "a", 1);
        let from = story.now();
        story.fence();
        story.deliver_by(event, "relay-2");
        story.deliver_by(event, "relay-1");
        let until = story.now();
        let (kind, whom) = ("stop".to_owned(), "relay-1".to_owned());
        story.write(crate::history::Record::Fault(Fault { kind, whom, from, until }));
        story.assert_found(RULE, &[]);
    }
}
