//! The first deliveries of each aggregate of a stream are in the order of their commits, without gaps.
//!
//! Numbers are given out under a lock that lasts until the commit, and rolled back with it: those of the committed
//! events are in the order of their commits. A deliberate duplicate may have used one up; nobody waits for it.
//!
//! An event that the sink rejects blocks its aggregate: what comes behind it is not delivered. Where aggregates go on
//! without such an event, it takes its place in the order by being rejected.

use std::collections::HashMap;

use uuid::Uuid;

use super::index::{Event, Index, has_it};
use super::violation::Violation;
use crate::history::{Answer, Intent, Leased, Micros};

const RULE: &str = "order";

/// An event of an aggregate, and when it was first delivered.
struct Place<'a> {
    id: Uuid,
    intent: &'a Intent,
    first: Option<Micros>,
}

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut aggregates: HashMap<(&str, &str), Vec<Place<'_>>> = HashMap::new();
    for (id, event) in &index.events {
        let Some(intent) = event.intent.filter(|_| event.is_meant()) else { continue };
        if index.rules.is_stream(&intent.table) {
            let place = Place { id: *id, intent, first: first(event, index.rules.blocks) };
            aggregates.entry((&intent.table, &intent.aggregate)).or_default().push(place);
        }
    }
    aggregates.into_values().filter_map(judge).collect()
}

fn first(event: &Event<'_>, blocks: bool) -> Option<Micros> {
    let takes_place = |answer| has_it(answer) || !blocks && answer == Answer::Rejected;
    event.deliveries.iter().find(|delivery| takes_place(delivery.answer)).map(|delivery| delivery.at)
}

/// The first that is out of order: it may be that all others of its aggregate are so because of it.
fn judge(mut places: Vec<Place<'_>>) -> Option<Violation> {
    places.sort_by_key(|place| place.intent.number);
    let mut missing: Option<&Place<'_>> = None;
    let mut last: Option<(Micros, &Place<'_>)> = None;
    for place in &places {
        let Some(at) = place.first else {
            missing.get_or_insert(place);
            continue;
        };
        let Intent { number, aggregate, table, .. } = place.intent;
        let what = match (missing, last) {
            (Some(Place { intent: Intent { number: before, poison: true, .. }, .. }), _) => {
                format!(
                    "number {number} of {aggregate:?} was delivered behind number {before}, which the sink rejects"
                )
            }
            (Some(Place { intent: Intent { number: before, .. }, .. }), _) => {
                format!("number {number} of {aggregate:?} was delivered, and number {before} never was")
            }
            (None, Some((earlier, before))) if at < earlier => {
                let before = before.intent.number;
                format!("number {number} of {aggregate:?} was delivered before number {before}")
            }
            _ => {
                last = Some((at, place));
                continue;
            }
        };
        return Some(Violation::new(RULE, table, Leased::Event(place.id), at, what));
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
            [("a", 1), ("b", 2)].map(|(aggregate, number)| story.commit("stream", aggregate, number));
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
        story.commit_with("stream", "a", 2, |intent| intent.duplicate = true);
        let three = story.commit("stream", "a", 3);
        story.deliver(one, Answer::Accepted);
        story.deliver(three, Answer::Accepted);
        story.assert_found(RULE, &[]);
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
