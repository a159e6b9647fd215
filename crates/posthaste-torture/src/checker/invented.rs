//! Nothing was delivered that nobody wrote, whose transaction did not commit, or had not yet, no deliberate duplicate, and nothing
//! to another sink than its table's.
//!
//! A sink that was given an event knows of it, whatever it answered.

use uuid::Uuid;

use super::index::{Event, Index};
use super::violation::Violation;
use crate::history::{Delivery, Ending, Leased};

const RULE: &str = "invented";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let found = |id: &Uuid, event: &Event<'_>, at, what| {
        Violation::new(RULE, event.table(), Leased::Event(*id), at, what)
    };
    let invented = index.events.iter().filter_map(|(id, event)| {
        let first = event.deliveries.first()?;
        Some(found(id, event, first.at, judge(event, first)?))
    });
    let astray = index.events.iter().filter_map(|(id, event)| {
        let own = index.rules.sink_of(event.table())?;
        let elsewhere = event.deliveries.iter().find(|delivery| delivery.sink != own)?;
        let what = format!("it was given to {}, and belongs to {own}", elsewhere.sink);
        Some(found(id, event, elsewhere.at, what))
    });
    invented.chain(astray).collect()
}

fn judge(event: &Event<'_>, first: &Delivery) -> Option<String> {
    let sink = &first.sink;
    let Some(intent) = event.intent else {
        return Some(format!("it was delivered to {sink}, and nobody wrote it"));
    };
    let what = if intent.duplicate {
        "though its key for deduplication was taken"
    } else if !event.is_committed() {
        match event.ending {
            Some(Ending::RolledBack) => "though its transaction rolled back",
            _ => "though its transaction never committed",
        }
    } else if first.at < intent.at {
        "before its transaction committed"
    } else {
        return None;
    };
    Some(format!("it was delivered to {sink} {what}"))
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;
    use crate::history::{Answer, Record};

    #[test]
    fn pr2_what_committed_may_be_delivered_also_where_its_producer_never_learned_of_it() {
        let mut story = Story::new();
        let known = story.commit("queue", "a", 1);
        let unknown = story.intend("queue", "a", 2);
        story.business(unknown);
        story.deliver(known, Answer::Accepted);
        story.deliver(unknown, Answer::Accepted);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_delivery_to_the_sink_of_another_table_is_found() {
        let mut story = Story::with_rules(|rules| {
            rules.sinks =
                vec![("queue".to_owned(), "http".to_owned()), ("stream".to_owned(), "nats".to_owned())];
        });
        let right = story.commit("queue", "a", 1);
        story.deliver(right, Answer::Accepted);
        story.assert_found(RULE, &[]);
        let astray = story.commit("stream", "a", 1);
        story.deliver(astray, Answer::Accepted);
        story.assert_found(RULE, &["it was given to http, and belongs to nats"]);
    }

    #[test]
    fn pr2_a_delivery_of_what_rolled_back_or_never_committed_is_found_however_it_was_answered() {
        let mut story = Story::new();
        let rolled_back = story.intend("queue", "a", 1);
        story.roll_back(rolled_back);
        let never = story.intend("queue", "a", 1);
        story.deliver(rolled_back, Answer::Failed);
        story.deliver(never, Answer::Accepted);
        story.assert_found(RULE, &["transaction rolled back", "transaction never committed"]);
    }

    #[test]
    fn pr2_a_delivery_of_what_nobody_wrote_is_found() {
        let mut story = Story::new();
        let headers = Vec::new();
        let delivery = Delivery {
            at: story.now(),
            sink: "http".to_owned(),
            by: "relay-1".to_owned(),
            event: Uuid::from_u128(4711),
            payload: "{}".to_owned(),
            headers,
            answer: Answer::Accepted,
        };
        story.write(Record::Delivery(delivery));
        story.assert_found(RULE, &["nobody wrote it"]);
    }

    #[test]
    fn pr2_a_delivery_of_a_deliberate_duplicate_is_found() {
        let mut story = Story::new();
        let duplicate = story.commit_with("queue", "a", 1, |intent| intent.duplicate = true);
        story.deliver(duplicate, Answer::Accepted);
        story.assert_found(RULE, &["its key for deduplication was taken"]);
    }

    #[test]
    fn pr2_a_delivery_before_the_commit_is_found() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        let before = story.now() - 1_000_000;
        story.deliver_as(event, Answer::Accepted, |delivery| delivery.at = before);
        story.assert_found(RULE, &["before its transaction committed"]);
    }
}
