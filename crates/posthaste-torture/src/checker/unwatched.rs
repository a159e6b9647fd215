//! Whether the database's record can be believed: of what it does not show, no rule about leases finds anything.
//!
//! Of a queue it has everything. A row is written pending, or leased, with the record of that; each change begins where the one
//! before it ended, and the last ends with what is there. What a sink was given, somebody held before.
//!
//! Of a stream it has who took lanes; what was parked, with its attempts, and what died; and where rows are marked, or deleted
//! one by one, that of each.
//!
//! What was rolled back, or lost with a server that crashed, is not in the record, and was never there for anybody to see.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::index::{Event, Index, is_dead, is_delivered};
use super::violation::Violation;
use crate::history::{Change, Leased, Micros, State};

const RULE: &str = "unwatched";

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let of_both = index.events_changed(false).chain(index.events_changed(true));
    let changed: HashMap<(&str, Uuid), &[&Change]> =
        of_both.map(|(event, table, changes)| ((table, event), changes)).collect();
    let mut violations = judge_lanes(index);
    for (id, event) in &index.events {
        let table = event.table();
        // What is neither there nor meant to be was never there.
        if !index.rules.is_audited(table) || event.row.is_none() && !event.is_meant() {
            continue;
        }
        let changes = changed.get(&(table, *id)).copied().unwrap_or_default();
        let found = match index.rules.is_stream(table) {
            true => judge_stream(event, changes, index.rules.is_marked(table)),
            false => judge_queue(event, changes),
        };
        if let Some((at, what)) = found {
            violations.push(Violation::new(RULE, table, Leased::Event(*id), at, what));
        }
    }
    violations
}

fn judge_queue(event: &Event<'_>, changes: &[&Change]) -> Option<(Micros, String)> {
    let written = State::default();
    let mut state = &written;
    for (number, change) in changes.iter().enumerate() {
        let is_born = number == 0 && change.before.gone;
        if !is_born && change.before != *state {
            let what = format!("it was {state:?}, and something made it {:?} unseen", change.before);
            return Some((change.at, what));
        }
        state = &change.after;
    }
    let what = match event.row {
        None if !state.gone => "its row is gone, and nobody was seen to delete it".to_owned(),
        Some(row) if state.gone || (state.attempts, &state.outcome) != (row.attempts, &row.outcome) => {
            let (attempts, outcome) = (row.attempts, row.outcome.as_deref().unwrap_or("open"));
            format!("its row is {outcome} after {attempts} attempts, and nobody was seen to make it so")
        }
        _ if !event.deliveries.is_empty() && !changes.iter().any(|change| change.after.holder.is_some()) => {
            "a sink was given it, and nobody was seen to hold it".to_owned()
        }
        _ => return None,
    };
    Some((event.at(), what))
}

fn judge_stream(event: &Event<'_>, changes: &[&Change], is_marked: bool) -> Option<(Micros, String)> {
    let was = |is_it: &dyn Fn(&State) -> bool| changes.iter().any(|change| is_it(&change.after));
    let what = match event.row {
        None if is_marked && !was(&|after| after.gone) => "its row is gone, and nobody was seen to delete it",
        Some(row) if row.attempts > 0 && !was(&|after| after.attempts == row.attempts) => {
            "it has attempts, and nobody was seen to count them"
        }
        Some(row) if is_dead(row.outcome.as_deref()) && !was(&|after| is_dead(after.outcome.as_deref())) => {
            "it is dead, and nobody was seen to settle it"
        }
        Some(row)
            if is_marked
                && is_delivered(row.outcome.as_deref())
                && !was(&|after| is_delivered(after.outcome.as_deref())) =>
        {
            "it is delivered, and nobody was seen to settle it"
        }
        _ => return None,
    };
    Some((event.at(), what.to_owned()))
}

/// The first event of each stream of which nobody was seen to take a lane.
fn judge_lanes(index: &Index<'_>) -> Vec<Violation> {
    let is_taken = |changes: &[&Change]| changes.iter().any(|change| change.after.holder.is_some());
    let lanes = index.lanes_changed().filter(|(_, _, changes)| is_taken(changes));
    let taken: HashSet<&str> = lanes.map(|(_, table, _)| table).collect();
    let unwatched = index
        .rules
        .streams
        .iter()
        .filter(|table| index.rules.is_audited(table) && !taken.contains(table.as_str()));
    let violation = |table: &String| {
        let events = index.events.iter().filter(|(_, event)| event.is_meant() && event.table() == table);
        let (id, event) = events.min_by_key(|(id, event)| (event.at(), **id))?;
        let what = "it was committed, and nobody was seen to take a lane of its table".to_owned();
        Some(Violation::new(RULE, table, Leased::Event(*id), event.at(), what))
    };
    unwatched.filter_map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::{LEASE, Story, free, gone, held, settled};
    use super::*;
    use crate::history::Answer;

    /// A history of tables that are watched: `queue`, and `stream`, whose rows are marked, or not.
    fn watched(marked: bool) -> Story {
        Story::with_rules(|rules| {
            rules.audited = vec!["queue".to_owned(), "stream".to_owned()];
            if marked {
                rules.marked = vec!["stream".to_owned()];
            }
        })
    }

    impl Story {
        /// Somebody takes a lane of the stream.
        fn take_a_lane(&mut self) {
            let lane = |holder: Option<&str>, fence| State {
                holder: holder.map(str::to_owned),
                fence: Some(fence),
                ..State::default()
            };
            self.change_of("stream", Leased::Lane(1), "relay-1", lane(None, 0), lane(Some("one"), 1));
        }
    }

    #[test]
    fn pr2_a_record_that_has_everything_is_believed() {
        let mut story = watched(false);
        story.take_a_lane();
        story.whole_life("queue", "a", 1);
        story.whole_life("stream", "a", 1);
        // One that is born leased, one that is deleted, one that nobody has claimed yet, and one that was never there.
        let born = story.commit("queue", "a", 2);
        let lease = held("hot~#1", story.now() + LEASE, 1);
        story.change(born, "producer-1", gone(), lease.clone());
        story.deliver(born, Answer::Accepted);
        story.change(born, "producer-1", lease, gone());
        let open = story.commit("queue", "a", 3);
        story.row_with(open, "open", 0);
        let rolled_back = story.intend("queue", "a", 4);
        story.roll_back(rolled_back);
        story.commit_with("queue", "a", 3, |intent| intent.duplicate = true);
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_of_tables_without_a_record_nothing_is_asked() {
        let mut story = Story::new();
        for table in ["queue", "stream"] {
            let event = story.commit(table, "a", 1);
            story.deliver(event, Answer::Accepted);
            story.row(event, "delivered");
        }
        story.assert_found(RULE, &[]);
    }

    #[test]
    fn pr2_a_queues_event_without_a_record_is_found_however_it_ended() {
        let mut story = watched(false);
        let [delivered, deleted, open] = [1, 2, 3].map(|number| story.commit("queue", "a", number));
        story.deliver(delivered, Answer::Accepted);
        story.row(delivered, "delivered");
        story.deliver(deleted, Answer::Accepted);
        story.deliver(open, Answer::Failed);
        story.row_with(open, "open", 0);
        story.assert_found(
            RULE,
            &[
                "its row is delivered after 1 attempts",
                "nobody was seen to delete it",
                "nobody was seen to hold it",
            ],
        );
    }

    #[test]
    fn pr2_a_change_of_a_queues_event_that_the_record_lacks_is_found() {
        let lease = |story: &Story| held("one#1", story.now() + LEASE, 1);
        // At the beginning.
        let mut story = watched(false);
        let event = story.commit("queue", "a", 1);
        let first = lease(&story);
        story.change(event, "relay-1", first, settled("delivered", 1));
        story.row(event, "delivered");
        story.assert_found(RULE, &["something made it"]);
        // In between.
        let mut story = watched(false);
        let event = story.commit("queue", "a", 1);
        let first = lease(&story);
        story.change(event, "relay-1", free(0), first);
        story.change(event, "relay-1", held("two#1", 0, 2), settled("delivered", 2));
        story.row_with(event, "delivered", 2);
        story.assert_found(RULE, &["something made it"]);
        // At the end.
        for (outcome, attempts) in [("open", 1), ("dead", 1), ("delivered", 2)] {
            let mut story = watched(false);
            let event = story.commit("queue", "a", 1);
            let first = lease(&story);
            story.change(event, "relay-1", free(0), first.clone());
            story.change(event, "relay-1", first, settled("delivered", 1));
            story.row_with(event, outcome, attempts);
            story.assert_found(RULE, &["nobody was seen to make it so"]);
        }
    }

    #[test]
    fn pr2_a_stream_without_a_lane_that_somebody_took_is_found_once() {
        let mut story = watched(false);
        for number in 1..=3 {
            story.whole_life("stream", "a", number);
        }
        story.assert_found(RULE, &["nobody was seen to take a lane"]);
    }

    #[test]
    fn pr2_what_died_or_was_tried_in_a_stream_unseen_is_found() {
        let mut story = watched(false);
        story.take_a_lane();
        let [dead, tried, seen] = [1, 2, 3].map(|number| story.commit("stream", "a", number));
        story.row_with(dead, "dead", 0);
        story.row_with(tried, "delivered", 2);
        story.change(seen, "relay-1", gone(), settled("dead", 1));
        story.row_with(seen, "dead", 1);
        story.assert_found(RULE, &["it is dead", "it has attempts"]);
    }

    #[test]
    fn pr2_where_a_streams_rows_are_marked_each_is_asked_for() {
        for (marked, words) in [(false, &[][..]), (true, &["it is delivered", "its row is gone"])] {
            let mut story = watched(marked);
            story.take_a_lane();
            let [unseen, _purged, seen] = [1, 2, 3].map(|number| story.commit("stream", "a", number));
            story.row_with(unseen, "delivered", 0);
            story.change(seen, "relay-1", State::default(), settled("delivered", 0));
            story.row_with(seen, "delivered", 0);
            story.assert_found(RULE, words);
        }
    }
}
