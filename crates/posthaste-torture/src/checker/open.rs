//! Nothing is still to be delivered at the end, but for what waits behind an event that the sink rejected.

use super::index::Index;
use super::violation::Violation;
use crate::history::Leased;

const RULE: &str = "open";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let open = index.events.iter().filter_map(|(id, event)| {
        let row = event.row.filter(|row| row.outcome.is_none())?;
        if event.intent.is_some_and(|intent| index.is_behind(intent)) {
            return None;
        }
        let delivered = if event.is_delivered() { "the sink has it" } else { "no sink has it" };
        let what = format!("its row is open at the end, after {} attempts; {delivered}", row.attempts);
        Some(Violation::new(RULE, &row.table, Leased::Event(*id), event.at(), what))
    });
    open.collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;
    use crate::history::Answer;

    #[test]
    fn pr2_at_the_end_all_rows_are_delivered_dead_or_gone() {
        let mut story = Story::new();
        let [delivered, dead, _gone] = [1, 2, 3].map(|number| story.commit("queue", "a", number));
        story.row(delivered, "delivered");
        story.row(dead, "dead");
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_an_open_row_is_found_whether_the_sink_has_it_or_not() {
        let mut story = Story::new();
        let [known, unknown] = [1, 2].map(|number| story.commit("queue", "a", number));
        story.deliver(known, Answer::Accepted);
        story.row(known, "open");
        story.row(unknown, "open");
        story.assert_found(RULE, &["the sink has it", "no sink has it"]);
    }

    #[test]
    fn pr2_what_waits_behind_poison_in_a_stream_stays_open() {
        let mut story = Story::new();
        let poison = story.poison("stream", "a", 1);
        story.row(poison, "dead");
        let behind = story.commit("stream", "a", 2);
        story.row(behind, "open");
        story.assert_found(RULE, &[]);
        let other = story.commit("stream", "b", 2);
        story.row(other, "open");
        story.assert_found(RULE, &["no sink has it"]);
    }
}
