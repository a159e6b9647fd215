//! No event had more attempts than are allowed, at any time by the database's record, or at the end.

use std::collections::HashMap;

use uuid::Uuid;

use super::index::Index;
use super::violation::Violation;
use crate::history::{Leased, Micros};

const RULE: &str = "attempts";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let most = index.rules.max_attempts;
    let mut found: HashMap<Uuid, (&str, Micros, i64)> = HashMap::new();
    for is_stream in [false, true] {
        for (event, table, changes) in index.events_changed(is_stream) {
            if let Some(change) = changes.iter().find(|change| change.after.attempts > most) {
                found.insert(event, (table, change.at, change.after.attempts));
            }
        }
    }
    for (id, event) in &index.events {
        if let Some(row) = event.row.filter(|row| row.attempts > most) {
            found.entry(*id).or_insert((&row.table, event.at(), row.attempts));
        }
    }
    let violation = |(event, (table, at, attempts)): (Uuid, (&str, Micros, i64))| {
        let what = format!("it had {attempts} attempts, and {most} are allowed");
        Violation::new(RULE, table, Leased::Event(event), at, what)
    };
    found.into_iter().map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, free, held, settled};
    use super::*;

    #[test]
    fn pr2_the_last_attempt_that_is_allowed_is_no_violation() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.change(event, "relay-1", free(4), held("one#1", 0, 5));
        story.row_with(event, "delivered", 5);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_one_attempt_too_many_is_found_in_the_record_and_said_once() {
        for table in ["queue", "stream"] {
            let mut story = Story::new();
            let event = story.commit(table, "a", 1);
            story.change(event, "relay-1", free(5), held("one#1", 0, 6));
            story.change(event, "relay-1", held("one#1", 0, 6), settled("delivered", 6));
            story.row_with(event, "delivered", 6);
            story.assert_found(RULE, &["it had 6 attempts, and 5 are allowed"]);
        }
    }

    #[test]
    fn pr2_one_attempt_too_many_is_found_at_the_end() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.row_with(event, "delivered", 6);
        story.assert_found(RULE, &["it had 6 attempts, and 5 are allowed"]);
    }
}
