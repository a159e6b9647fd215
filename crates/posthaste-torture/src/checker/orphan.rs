//! Every business row has its event, and every event its business row: both or neither, for they are written in one
//! transaction.
//!
//! An event is there as a row of the outbox, or was: it was delivered, or died and was discarded. A deliberate duplicate
//! is never written; its transaction may have a business row.

use super::index::{Event, Index};
use super::violation::Violation;
use crate::history::{Ending, Leased};

const RULE: &str = "orphan";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let orphans = index.events.iter().filter_map(|(id, event)| {
        let what = judge(event)?.to_owned();
        Some(Violation::new(RULE, event.table(), Leased::Event(*id), event.at(), what))
    });
    orphans.collect()
}

fn judge(event: &Event<'_>) -> Option<&'static str> {
    let Some(intent) = event.intent else {
        let row = event.row.map(|_| "the outbox has it, and nobody wrote it");
        return row.or_else(|| event.business.map(|_| "it has a business row that nobody wrote"));
    };
    if let Some(business) = event.business {
        if event.ending == Some(Ending::RolledBack) {
            return Some("its transaction rolled back, and its business row is there");
        }
        let written = (intent.table.as_str(), intent.aggregate.as_str(), intent.number);
        if written != (business.table, business.aggregate, business.number) {
            return Some("its business row is another than was written");
        }
    }
    if intent.duplicate {
        return event.row.map(|_| "the outbox has it, though its key for deduplication was taken");
    }
    let there = event.row.is_some() || event.is_delivered() || event.died;
    match (event.business.is_some(), event.ending) {
        (true, _) if !there => Some("its business row is there, and the event is not"),
        (true, _) => None,
        (false, Some(Ending::Committed)) => {
            Some("its transaction committed, and its business row is missing")
        }
        (false, _) => event.row.map(|_| "the outbox has it, and its transaction did not commit"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;
    use crate::history::{Answer, Record, Row};
    use uuid::Uuid;

    #[test]
    fn pr2_an_event_and_its_business_row_are_there_together_or_not_at_all() {
        let mut story = Story::new();
        let [kept, deleted, died, rolled_back, unknown] =
            [1, 2, 3, 4, 5].map(|n| story.intend("queue", "a", n));
        for event in [kept, deleted, died] {
            story.end(event, Some(Ending::Committed));
            story.business(event);
        }
        story.row(kept, "open");
        story.deliver(deleted, Answer::Accepted);
        story.row(died, "dead");
        story.roll_back(rolled_back);
        story.end(unknown, None);
        let duplicate = story.commit_with("queue", "a", 6, |intent| intent.duplicate = true);
        story.end(duplicate, Some(Ending::Committed));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_business_row_without_its_event_is_found() {
        let mut story = Story::new();
        story.commit("queue", "a", 1);
        story.assert_found(RULE, &["its business row is there, and the event is not"]);
    }

    #[test]
    fn pr2_a_commit_without_its_business_row_is_found() {
        let mut story = Story::new();
        let event = story.intend("queue", "a", 1);
        story.end(event, Some(Ending::Committed));
        story.row(event, "delivered");
        story.assert_found(RULE, &["its business row is missing"]);
    }

    #[test]
    fn pr2_an_event_without_its_transaction_is_found() {
        let mut story = Story::new();
        let [rolled_back, unknown] = [1, 2].map(|number| story.intend("queue", "a", number));
        story.roll_back(rolled_back);
        story.row(rolled_back, "open");
        story.row(unknown, "delivered");
        story.assert_found(RULE, &["its transaction did not commit", "its transaction did not commit"]);
    }

    #[test]
    fn pr2_a_business_row_of_a_transaction_that_rolled_back_is_found() {
        let mut story = Story::new();
        let event = story.intend("queue", "a", 1);
        story.roll_back(event);
        story.business(event);
        story.row(event, "delivered");
        story.assert_found(RULE, &["its transaction rolled back"]);
    }

    #[test]
    fn pr2_a_row_of_a_deliberate_duplicate_is_found() {
        let mut story = Story::new();
        let event = story.commit_with("queue", "a", 1, |intent| intent.duplicate = true);
        story.row(event, "open");
        story.assert_found(RULE, &["its key for deduplication was taken"]);
    }

    #[test]
    fn pr2_what_nobody_wrote_is_found() {
        let mut story = Story::new();
        let [event, other] = [4711, 4712].map(Uuid::from_u128);
        story.write(Record::Row(Row { table: "queue".to_owned(), event, attempts: 0, outcome: None }));
        let (table, aggregate) = ("queue".to_owned(), "a".to_owned());
        story.write(Record::Business { event: other, table, aggregate, number: 1 });
        story.assert_found(
            RULE,
            &["the outbox has it, and nobody wrote it", "a business row that nobody wrote"],
        );
    }

    #[test]
    fn pr2_a_business_row_with_another_number_is_found() {
        let mut story = Story::new();
        let event = story.intend("queue", "a", 1);
        let (table, aggregate) = ("queue".to_owned(), "a".to_owned());
        story.write(Record::Business { event, table, aggregate, number: 2 });
        story.row(event, "delivered");
        story.assert_found(RULE, &["another than was written"]);
    }
}
