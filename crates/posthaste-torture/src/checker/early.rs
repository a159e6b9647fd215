//! Nothing is said to be delivered before the sink has said that it has it: one that lied has it, and nobody knows.
//!
//! Who settles an event of a queue as delivered had it accepted between its own claim and that moment: what the holder
//! before had delivered is not for this one to say. Of a stream's event there is no claim: it was accepted before.
//! Only events of prompt sinks are judged, whose record says when they had it.

use super::index::{Event, Index, is_delivered};
use super::violation::Violation;
use crate::history::{Answer, Change, Leased, Micros};

const RULE: &str = "early";

/// SQLite's clock counts milliseconds.
const ROUNDING: Micros = 2000;

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for is_stream in [false, true] {
        for (id, table, changes) in index.events_changed(is_stream) {
            let Some(event) = index.events.get(&id).filter(|event| is_judged(index, event)) else { continue };
            let mut claimed = Micros::MIN;
            for change in changes {
                if !is_stream && change.after.holder.is_some() && change.after.holder != change.before.holder
                {
                    claimed = change.at;
                }
                let says_delivered = if is_stream { stream_says_delivered } else { says_delivered };
                if says_delivered(change) && !was_accepted(event, claimed, change.at) {
                    let what =
                        "it was said to be delivered, and the sink had not accepted it since it was claimed";
                    violations.push(Violation::new(
                        RULE,
                        table,
                        Leased::Event(id),
                        change.at,
                        what.to_owned(),
                    ));
                }
            }
        }
    }
    violations
}

/// What no sink was ever given is lost, which is another rule; what died is not delivered.
fn is_judged(index: &Index<'_>, event: &Event<'_>) -> bool {
    let mut deliveries = event.deliveries.iter();
    !event.died && !event.deliveries.is_empty() && deliveries.all(|d| index.rules.is_prompt(&d.sink))
}

fn says_delivered(change: &Change) -> bool {
    let settles = change.after.gone || is_delivered(change.after.outcome.as_deref());
    settles && change.before.outcome.is_none()
}

/// A stream's row may be parked before it is delivered, and is taken from among the parked when it is.
fn stream_says_delivered(change: &Change) -> bool {
    let settles = change.after.gone || is_delivered(change.after.outcome.as_deref());
    settles && !change.before.gone && !is_delivered(change.before.outcome.as_deref())
}

fn was_accepted(event: &Event<'_>, from: Micros, until: Micros) -> bool {
    let within = from.saturating_sub(ROUNDING)..=until + ROUNDING;
    let mut told = event.deliveries.iter().filter(|delivery| delivery.answer == Answer::Accepted);
    told.any(|delivery| within.contains(&delivery.at))
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE, Story, free, gone, held, settled};
    use super::*;
    use crate::history::{Answer, State};

    const WORDS: &str = "the sink had not accepted it";

    #[test]
    fn pr2_what_the_sink_accepted_since_the_claim_may_be_settled() {
        let mut story = Story::new();
        story.whole_life("queue", "a", 1);
        let event = story.commit("queue", "a", 2);
        let lease = held("one#1", story.now() + LEASE, 1);
        story.change(event, "relay-1", free(0), lease.clone());
        story.deliver(event, Answer::Accepted);
        story.change(event, "relay-1", lease, gone());
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_settlement_before_the_sink_has_it_is_found() {
        for after in [settled("delivered", 1), gone()] {
            let mut story = Story::new();
            let event = story.commit("queue", "a", 1);
            let lease = held("one#1", story.now() + LEASE, 1);
            story.change(event, "relay-1", free(0), lease.clone());
            story.change(event, "relay-1", lease, after);
            story.wait(2 * ROUNDING);
            story.deliver(event, Answer::Accepted);
            story.assert_found(RULE, &[WORDS]);
        }
    }

    #[test]
    fn pr2_a_settlement_of_what_only_the_holder_before_delivered_is_found() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let first = held("one#1", story.now() + LEASE, 1);
        story.change(event, "", free(0), first.clone());
        story.deliver(event, Answer::Accepted);
        story.wait(LEASE);
        let second = held("two#1", story.now() + LEASE, 2);
        story.change(event, "", first, second.clone());
        story.wait(2 * ROUNDING);
        story.change(event, "", second, settled("delivered", 2));
        story.assert_found(RULE, &[WORDS]);
    }

    #[test]
    fn pr2_a_sink_that_is_not_prompt_may_be_late() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let lease = held("one#1", story.now() + LEASE, 1);
        story.change(event, "relay-1", free(0), lease.clone());
        story.change(event, "relay-1", lease, settled("delivered", 1));
        story.wait(2 * ROUNDING);
        story.deliver_as(event, Answer::Accepted, |delivery| delivery.sink = "nats".to_owned());
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_purge_says_nothing_of_a_delivery() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.deliver(event, Answer::Accepted);
        let lease = held("one#1", story.now() + LEASE, 2);
        story.change(event, "relay-1", free(1), lease);
        story.wait(2 * ROUNDING);
        story.change(event, "relay-2", settled("delivered", 1), gone());
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_of_a_streams_event_it_is_found_too() {
        let said = |story: &mut Story, event| {
            story.change(event, "relay-1", State::default(), settled("delivered", 0));
            story.wait(2 * ROUNDING);
        };
        let mut story = Story::new();
        let event = story.commit("stream", "a", 1);
        story.deliver(event, Answer::Accepted);
        said(&mut story, event);
        story.assert_found(RULE, &[]);
        let event = story.commit("stream", "a", 2);
        said(&mut story, event);
        story.deliver(event, Answer::Accepted);
        story.assert_found(RULE, &[WORDS]);
    }
}
