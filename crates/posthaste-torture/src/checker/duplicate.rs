//! What a sink has accepted is given to it again only because of a fault: one that was felt between the two deliveries.
//!
//! A sink that said that it failed, whether it lied or not, is itself why it is asked again.

use super::index::{Event, Index};
use super::violation::Violation;
use crate::history::{Answer, Delivery, Leased};

const RULE: &str = "duplicate";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (id, event) in &index.events {
        for (before, again) in pairs(event) {
            if is_unexplained(index, before, again) {
                let (sink, after) = (&again.sink, again.at - before.at);
                let what =
                    format!("{sink} had accepted it and got it again after {after} µs, without a fault near");
                violations.push(Violation::new(RULE, event.table(), Leased::Event(*id), again.at, what));
            }
        }
    }
    violations
}

fn is_unexplained(index: &Index<'_>, before: &Delivery, again: &Delivery) -> bool {
    before.answer == Answer::Accepted && !index.faults.felt_between(before.at, again.at)
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
    use super::super::story::{LEASE, SECOND, Story};
    use super::*;

    const WORDS: &str = "got it again";

    #[test]
    fn pr2_a_second_delivery_without_a_fault_is_found_each_time() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.deliver(event, Answer::Accepted);
        story.deliver(event, Answer::Accepted);
        story.deliver(event, Answer::Failed);
        story.assert_found(RULE, &[WORDS, WORDS]);
    }

    #[test]
    fn pr2_a_fault_between_the_two_explains_the_second() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.deliver(event, Answer::Accepted);
        story.fault("kill", "relay-1");
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_fault_is_felt_for_a_lease_after_its_end_and_not_for_longer() {
        for (wait, words) in [(LEASE, &[][..]), (LEASE + 3 * SECOND, &[WORDS])] {
            let mut story = Story::new();
            let event = story.commit("queue", "a", 1);
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
        let event = story.commit("queue", "a", 1);
        story.deliver(event, Answer::Accepted);
        story.deliver(event, Answer::Accepted);
        story.fault("kill", "relay-1");
        story.assert_found(RULE, &[WORDS]);
    }

    #[test]
    fn pr2_a_lie_and_a_failure_explain_the_next_delivery_and_no_other() {
        for answer in [Answer::Lied, Answer::Failed] {
            let mut story = Story::new();
            let event = story.commit("queue", "a", 1);
            story.deliver(event, answer);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, &[]);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, &[WORDS]);
        }
    }

    #[test]
    fn pr2_two_sinks_may_each_have_it() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.deliver(event, Answer::Accepted);
        story.deliver_as(event, Answer::Accepted, |delivery| delivery.sink = "nats".to_owned());
        story.assert_found(RULE, &[]);
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[WORDS]);
    }
}
