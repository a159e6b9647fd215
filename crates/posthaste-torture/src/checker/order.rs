//! The first deliveries of each aggregate of a stream are in the order of their commits, without gaps; and none is as much as
//! offered to the sink before the one before it has its place.
//!
//! Numbers are given out under a lock that lasts until the commit, and rolled back with it: those of the committed
//! events are in the order of their commits, and each is there, from 1 on. A deliberate duplicate has the number of the event
//! that it repeats. Numbers with a gap are no fault of posthaste's, but of the run itself, which then shows nothing of the order.
//!
//! An event has its place once the sink has accepted it and said so. After a lie it is still to be tried, and those behind it
//! wait. One that the sink rejects blocks its aggregate: what comes behind it is not delivered. Where aggregates go on
//! without such an event, it takes its place by being rejected. Whoever takes a lane over, and whoever was paused while
//! another did, has the same events in the same order: what either offers first comes no earlier than that.

use std::collections::HashMap;

use uuid::Uuid;

use super::index::{Event, Index, has_it};
use super::violation::Violation;
use crate::history::{Answer, Intent, Leased, Micros};

const RULE: &str = "order";

/// An event of an aggregate.
struct Place<'a> {
    id: Uuid,
    intent: &'a Intent,
    /// When it was first offered to a sink, whatever came of it.
    tried: Option<Micros>,
    /// When a sink first had it.
    first: Option<Micros>,
    /// When a sink first said so.
    told: Option<Micros>,
}

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut aggregates: HashMap<(&str, &str), Vec<Place<'_>>> = HashMap::new();
    for (id, event) in &index.events {
        let Some(intent) = event.intent.filter(|_| event.is_meant()) else { continue };
        let place = place(*id, intent, event, index.rules.blocks);
        aggregates.entry((&intent.table, &intent.aggregate)).or_default().push(place);
    }
    let mut violations = Vec::new();
    for ((table, _), mut places) in aggregates {
        places.sort_by_key(|place| (place.intent.number, place.intent.at));
        violations.extend(judge_numbers(&places));
        if index.rules.is_stream(table) {
            violations.extend(judge(&places));
        }
    }
    violations
}

fn place<'a>(id: Uuid, intent: &'a Intent, event: &Event<'a>, blocks: bool) -> Place<'a> {
    let first = |is_it: &dyn Fn(Answer) -> bool| {
        event.deliveries.iter().find(|delivery| is_it(delivery.answer)).map(|delivery| delivery.at)
    };
    let goes_on = |answer| !blocks && answer == Answer::Rejected;
    Place {
        id,
        intent,
        tried: first(&|_| true),
        first: first(&|answer| has_it(answer) || goes_on(answer)),
        told: first(&|answer| answer == Answer::Accepted || goes_on(answer)),
    }
}

/// What producers wrote: the first number that is not the next one.
fn judge_numbers(places: &[Place<'_>]) -> Option<Violation> {
    let (expected, place) = (1..).zip(places).find(|(expected, place)| place.intent.number != *expected)?;
    let Intent { number, aggregate, table, at, .. } = place.intent;
    let what = format!(
        "the run is of no use: producers committed number {number} of {aggregate:?} where number {expected} was to be"
    );
    Some(Violation::new(RULE, table, Leased::Event(place.id), *at, what))
}

/// The first that is out of order: it may be that all others of its aggregate are so because of it.
fn judge(places: &[Place<'_>]) -> Option<Violation> {
    let mut missing: Option<&Place<'_>> = None;
    let mut last: Option<(Micros, i64)> = None;
    let mut told: Option<(Micros, i64)> = None;
    for place in places {
        let Intent { number, aggregate, table, .. } = place.intent;
        let found = |at, what| Some(Violation::new(RULE, table, Leased::Event(place.id), at, what));
        match (place.first, missing.map(|place| place.intent), last) {
            (Some(at), Some(Intent { number: before, poison: true, .. }), _) => {
                let what = format!(
                    "number {number} of {aggregate:?} was delivered behind number {before}, which the sink rejects"
                );
                return found(at, what);
            }
            (Some(at), Some(Intent { number: before, .. }), _) => {
                let what =
                    format!("number {number} of {aggregate:?} was delivered, and number {before} never was");
                return found(at, what);
            }
            (Some(at), None, Some((earlier, before))) if at < earlier => {
                return found(
                    at,
                    format!("number {number} of {aggregate:?} was delivered before number {before}"),
                );
            }
            (Some(at), ..) => last = Some((at, *number)),
            (None, ..) => missing = missing.or(Some(place)),
        }
        if let (Some(tried), Some((told, before))) = (place.tried, told)
            && tried < told
        {
            let what =
                format!("number {number} of {aggregate:?} was tried before number {before} was accepted");
            return found(tried, what);
        }
        let of_this = place.told.unwrap_or(Micros::MAX);
        if told.is_none_or(|(latest, _)| of_this > latest) {
            told = Some((of_this, *number));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;

    #[test]
    fn pr2_first_deliveries_in_order_are_right_however_the_others_come() {
        let mut story = Story::new();
        let [one, two, three] = [1, 2, 3].map(|number| story.commit("stream", "a", number));
        story.deliver(one, Answer::Failed);
        story.deliver(one, Answer::Lied);
        story.deliver(one, Answer::Accepted);
        story.deliver(two, Answer::Failed);
        story.deliver(one, Answer::Lied);
        story.deliver(two, Answer::Accepted);
        story.deliver(one, Answer::Accepted);
        story.deliver(three, Answer::Accepted);
        story.deliver(two, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_aggregates_and_queues_are_in_order_with_nothing_else() {
        let mut story = Story::new();
        let [one, two] = [1, 2].map(|number| story.commit("queue", "a", number));
        story.deliver(two, Answer::Accepted);
        story.deliver(one, Answer::Accepted);
        let [a, b] =
            [("a", 1), ("b", 1)].map(|(aggregate, number)| story.commit("stream", aggregate, number));
        story.deliver(b, Answer::Accepted);
        story.deliver(a, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_first_delivery_before_an_earlier_one_is_found() {
        let mut story = Story::new();
        let [one, two, three] = [1, 2, 3].map(|number| story.commit("stream", "a", number));
        story.deliver(one, Answer::Accepted);
        story.deliver(three, Answer::Accepted);
        story.deliver(two, Answer::Accepted);
        story.assert_found(RULE, &["number 3 of \"a\" was delivered before number 2"]);
    }

    #[test]
    fn pr2_a_gap_is_found() {
        let mut story = Story::new();
        let [one, two, three] = [1, 2, 3].map(|number| story.commit("stream", "a", number));
        story.deliver(one, Answer::Accepted);
        story.deliver(two, Answer::Failed);
        story.deliver(three, Answer::Accepted);
        story.assert_found(RULE, &["number 3 of \"a\" was delivered, and number 2 never was"]);
    }

    #[test]
    fn pr2_what_was_not_delivered_yet_at_the_end_is_no_gap() {
        let mut story = Story::new();
        let [one, _] = [1, 2].map(|number| story.commit("stream", "a", number));
        story.deliver(one, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_rolled_back_transactions_and_duplicates_have_no_place() {
        let mut story = Story::new();
        let rolled_back = story.intend("stream", "a", 1);
        story.roll_back(rolled_back);
        let one = story.commit("stream", "a", 1);
        story.commit_with("stream", "a", 1, |intent| intent.duplicate = true);
        let two = story.commit("stream", "a", 2);
        story.deliver(one, Answer::Accepted);
        story.deliver(two, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_what_is_tried_before_the_one_before_it_was_accepted_is_found_whatever_came_of_it() {
        for answer in [Answer::Failed, Answer::Lied, Answer::Accepted, Answer::Rejected] {
            for before in [Answer::Failed, Answer::Lied] {
                let mut story = Story::new();
                let [one, two] = [1, 2].map(|number| story.commit("stream", "a", number));
                story.deliver(one, before);
                story.deliver(two, answer);
                story.deliver(one, Answer::Accepted);
                story.deliver(two, Answer::Accepted);
                story.assert_found(RULE, &["number 2 of \"a\" was"]);
            }
        }
        // It need not be the next one that is tried too early, nor does the one before have to be accepted at all.
        let mut story = Story::new();
        let [one, two, three] = [1, 2, 3].map(|number| story.commit("stream", "a", number));
        story.deliver(one, Answer::Accepted);
        story.deliver(three, Answer::Failed);
        story.assert_found(RULE, &["number 3 of \"a\" was tried before number 2 was accepted"]);
        story.deliver(two, Answer::Accepted);
        story.deliver(three, Answer::Accepted);
        story.assert_found(RULE, &["number 3 of \"a\" was tried before number 2 was accepted"]);
    }

    #[test]
    fn pr2_numbers_with_a_gap_or_twice_the_same_are_a_fault_of_the_run() {
        for (table, numbers, words) in [
            ("queue", [2, 3, 4], "number 2 of \"a\" where number 1"),
            ("stream", [1, 2, 4], "number 4 of \"a\" where number 3"),
            ("stream", [1, 2, 2], "number 2 of \"a\" where number 3"),
        ] {
            let mut story = Story::new();
            for number in numbers {
                let event = story.commit(table, "a", number);
                story.deliver(event, Answer::Accepted);
            }
            story.assert_found(RULE, &[words]);
        }
    }

    #[test]
    fn pr2_nothing_is_delivered_behind_poison() {
        let mut story = Story::new();
        let one = story.commit("stream", "a", 1);
        let poison = story.poison("stream", "a", 2);
        let three = story.commit("stream", "a", 3);
        story.deliver(one, Answer::Accepted);
        story.deliver(poison, Answer::Rejected);
        story.assert_found(RULE, &[]);
        story.deliver(three, Answer::Accepted);
        story.assert_found(RULE, &["behind number 2, which the sink rejects"]);
    }

    #[test]
    fn pr2_where_aggregates_go_on_poison_takes_its_place_by_being_rejected() {
        let deliver = |poison_first: bool, words: &[&str]| {
            let mut story = Story::with_rules(|rules| rules.blocks = false);
            let poison = story.poison("stream", "a", 1);
            let two = story.commit("stream", "a", 2);
            if poison_first {
                story.deliver(poison, Answer::Rejected);
            }
            story.deliver(two, Answer::Accepted);
            story.deliver(poison, Answer::Rejected);
            story.assert_found(RULE, words);
        };
        deliver(true, &[]);
        deliver(false, &["number 2 of \"a\" was delivered before number 1"]);
    }
}
