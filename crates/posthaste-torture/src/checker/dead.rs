//! Nothing is dead at the end but what the sink rejected.

use super::index::{Event, Index, is_dead};
use super::violation::Violation;
use crate::history::Leased;

const RULE: &str = "dead";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let dead = index.events.iter().filter(|(_, event)| {
        !event.is_rejected() && event.row.is_some_and(|row| is_dead(row.outcome.as_deref()))
    });
    let violation = |event: &Event<'_>, id| {
        let attempts = event.row.map_or(0, |row| row.attempts);
        let what = format!("it is dead after {attempts} attempts, and no sink rejected it");
        Violation::new(RULE, event.table(), Leased::Event(id), event.at(), what)
    };
    dead.map(|(id, event)| violation(event, *id)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
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
        story
            .assert_found(RULE, &["dead after 5 attempts", "dead after 0 attempts", "dead after 2 attempts"]);
    }
}
