//! Nothing died but what the sink rejected: by the database's record, or at the end. What was discarded since, or replayed, is
//! judged, too.

use super::index::{Event, Index};
use super::violation::Violation;
use crate::history::Leased;

const RULE: &str = "dead";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let dead = index.events.iter().filter(|(_, event)| event.died && !event.is_rejected());
    let violation = |event: &Event<'_>, id| {
        let end = match event.row {
            Some(row) => format!("its row has {} attempts", row.attempts),
            None => "its row is gone".to_owned(),
        };
        let what = format!("it died, and no sink rejected it; {end}");
        Violation::new(RULE, event.table(), Leased::Event(id), event.at(), what)
    };
    dead.map(|(id, event)| violation(event, *id)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, free, gone, held, settled};
    use super::*;
    use crate::history::Answer;

    #[test]
    fn pr2_what_the_sink_rejected_may_be_dead() {
        let mut story = Story::new();
        let poison = story.poison("queue", "a", 1);
        story.deliver(poison, Answer::Failed);
        story.deliver(poison, Answer::Rejected);
        story.row(poison, "dead");
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_what_died_of_failures_or_of_nothing_at_all_is_found() {
        let mut story = Story::new();
        let [failed, untold, delivered] = [1, 2, 3].map(|number| story.commit("queue", "a", number));
        story.deliver(failed, Answer::Failed);
        story.row_with(failed, "dead", 5);
        story.row_with(untold, "dead", 0);
        story.deliver(delivered, Answer::Accepted);
        story.row_with(delivered, "dead", 2);
        story.assert_found(RULE, &["row has 5 attempts", "row has 0 attempts", "row has 2 attempts"]);
    }

    #[test]
    fn pr2_what_died_and_was_discarded_or_replayed_is_found_in_the_record() {
        for table in ["queue", "stream"] {
            let mut story = Story::new();
            let [discarded, replayed] = [1, 2].map(|number| story.commit(table, "a", number));
            for event in [discarded, replayed] {
                story.change(event, "relay-1", held("one#1", 0, 1), settled("dead", 1));
            }
            story.change(discarded, "operator", settled("dead", 1), gone());
            story.change(replayed, "operator", settled("dead", 1), free(0));
            story.deliver(replayed, Answer::Accepted);
            story.row(replayed, "delivered");
            story.assert_found(RULE, &["its row is gone", "its row has 1 attempts"]);
        }
    }
}
