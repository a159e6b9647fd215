//! Every committed event was delivered at least once. One that the sink rejects for good was rejected, and is dead;
//! what waits behind such a one in a stream is not missed.

use super::index::{Event, Index};
use super::violation::Violation;
use crate::history::{Intent, Leased};

pub(crate) const RULE: &str = "lost";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let missed = index.events.iter().filter_map(|(id, event)| {
        let intent = event.intent.filter(|intent| event.is_meant() && !index.is_behind(intent))?;
        let what = if intent.poison { judge_poison(event)? } else { judge(event, intent)? };
        Some(Violation::new(RULE, event.table(), Leased::Event(*id), event.at(), what))
    });
    missed.collect()
}

fn judge(event: &Event<'_>, intent: &Intent) -> Option<String> {
    if event.is_delivered() {
        return None;
    }
    let row = match event.row {
        None => "its row is gone".to_owned(),
        Some(row) => format!("its row is {}", row.outcome.as_deref().unwrap_or("still open")),
    };
    let Intent { aggregate, number, .. } = intent;
    Some(format!("number {number} of {aggregate:?} was committed and never delivered; {row}"))
}

fn judge_poison(event: &Event<'_>) -> Option<String> {
    if !event.is_rejected() {
        return Some("it was committed for the sink to reject it, and the sink never did".to_owned());
    }
    (!event.died).then(|| "the sink rejected it, and it is not dead".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::story::{Story, gone, settled};
    use super::*;
    use crate::history::Answer;

    #[test]
    fn pr2_what_was_delivered_is_not_lost_however_the_sink_answered() {
        let mut story = Story::new();
        let events = [1, 2].map(|number| story.commit("queue", "a", number));
        story.deliver(events[0], Answer::Accepted);
        story.deliver(events[1], Answer::Lied);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_committed_event_that_was_never_delivered_is_lost() {
        let mut story = Story::new();
        let [gone, said, open] = [1, 2, 3].map(|number| story.commit("queue", "a", number));
        story.deliver(gone, Answer::Failed);
        story.row(said, "delivered");
        story.row(open, "open");
        story.assert_found(RULE, &["its row is gone", "its row is delivered", "its row is still open"]);
    }

    #[test]
    fn pr2_where_nobody_knows_the_end_the_business_row_tells() {
        let mut story = Story::new();
        let [with, without, rolled_back] = [1, 2, 3].map(|number| story.intend("queue", "a", number));
        story.end(without, None);
        story.roll_back(rolled_back);
        story.business(with);
        story.assert_found(RULE, &["number 1 of \"a\""]);
    }

    #[test]
    fn pr2_a_deliberate_duplicate_is_not_missed() {
        let mut story = Story::new();
        story.commit_with("queue", "a", 1, |intent| intent.duplicate = true);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_poison_is_rejected_and_dead() {
        let mut story = Story::new();
        let [kept, discarded] = [1, 2].map(|number| story.poison("queue", "a", number));
        story.deliver(kept, Answer::Rejected);
        story.row(kept, "dead");
        story.deliver(discarded, Answer::Rejected);
        story.change(discarded, "relay-1", gone(), settled("dead", 1));
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_poison_that_is_not_rejected_or_not_dead_is_lost() {
        let mut story = Story::new();
        let [never, vanished] = [1, 2].map(|number| story.poison("queue", "a", number));
        story.row(never, "dead");
        story.deliver(vanished, Answer::Rejected);
        story.assert_found(RULE, &["the sink never did", "it is not dead"]);
    }

    #[test]
    fn pr2_what_waits_behind_poison_in_a_stream_is_not_lost() {
        let mut story = Story::new();
        let poison = story.poison("stream", "a", 1);
        story.deliver(poison, Answer::Rejected);
        story.row(poison, "dead");
        story.commit("stream", "a", 2);
        story.assert_found(RULE, &[]);
        // Another aggregate does not wait, nor does a queue.
        story.commit("stream", "b", 2);
        let poison = story.poison("queue", "a", 1);
        story.deliver(poison, Answer::Rejected);
        story.row(poison, "dead");
        story.commit("queue", "a", 2);
        story.assert_found(RULE, &["number 2 of \"b\"", "number 2 of \"a\""]);
    }

    #[test]
    fn pr2_where_aggregates_go_on_without_poison_nothing_waits_behind_it() {
        let mut story = Story::with_rules(|rules| rules.blocks = false);
        let poison = story.poison("stream", "a", 1);
        story.deliver(poison, Answer::Rejected);
        story.row(poison, "dead");
        story.commit("stream", "a", 2);
        story.assert_found(RULE, &["number 2 of \"a\""]);
    }
}
