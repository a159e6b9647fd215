//! Whether what was promised was kept, by a run's history alone: a pure function that knows nothing of posthaste's code.
//!
//! | rule | what it finds | file |
//! |---|---|---|
//! | `lost` | a committed event that no sink was given | `lost.rs` |
//! | `invented` | a delivery of what was not committed, not yet, by nobody, or is a duplicate, or to a foreign sink | `invented.rs` |
//! | `changed` | a delivery with another payload, other headers or another id than were written | `changed.rs` |
//! | `early` | an event that was said to be delivered before the sink had it | `early.rs` |
//! | `held` | a queue's event that two held at once, or that somebody settled or freed who had no right to | `held.rs` |
//! | `lane` | a lane that two held at once, was written by another than its owner, or went back | `lane.rs` |
//! | `parked` | a stream's event that somebody settled who did not own its lane | `parked.rs` |
//! | `attempts` | more attempts than are allowed | `attempts.rs` |
//! | `duplicate` | a second delivery without a right to it, or without a fault that explains it | `duplicate.rs` |
//! | `dead` | an event that died without having been rejected | `dead.rs` |
//! | `orphan` | a business row without its event, or an event without its business row | `orphan.rs` |
//! | `order` | first deliveries of a stream's aggregate out of order, or with a gap; a try before its turn | `order.rs` |
//! | `unwatched` | what happened without a trace in the database's record | `unwatched.rs` |
//! | `open` | an event that is still to be delivered at the end | `open.rs` |
//!
//! All rules look at one index of the history and take time in proportion to its length.

mod attempts;
mod changed;
mod dead;
mod duplicate;
mod early;
mod faults;
mod held;
mod index;
mod invented;
mod lane;
mod lost;
mod open;
mod order;
mod orphan;
mod parked;
mod sessions;
#[cfg(test)]
mod story;
mod unwatched;
mod violation;

use crate::history::{History, Micros};
use index::Index;

pub use violation::Violation;

/// The rule that finds what was lost.
pub(crate) use lost::RULE as LOST;

/// What a run was set to, as far as the rules depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The most attempts that an event may have.
    pub max_attempts: i64,
    /// The longest lease, of an event or a lane: so long after a fault something may be held by who is gone.
    pub lease: Micros,
    /// How much longer a fault may be felt: time-outs, reconnects, a busy machine.
    pub slack: Micros,
    /// The tables that keep the order of their aggregates.
    pub streams: Vec<String>,
    /// Whether later events of a stream's aggregate wait for ever behind one that the sink rejected. Else they go on
    /// without it.
    pub blocks: bool,
    /// The sinks that write a delivery down before they answer it, and each time: of what they accept, it is known when.
    /// A broker's subscriber, which may hear of a message later than its publisher, is none of them.
    pub prompt: Vec<String>,
    /// The tables whose changes the database has recorded, all of them from the beginning. Of others nothing is missed in its
    /// record.
    pub audited: Vec<String>,
    /// Those of the streams whose rows are marked when they are delivered, which the record then has of each.
    pub marked: Vec<String>,
    /// The tables whose events belong to one sink, and which.
    pub sinks: Vec<(String, String)>,
    /// What everybody depends on: what befalls one of these befalls all.
    pub servers: Vec<String>,
}

impl Rules {
    fn is_stream(&self, table: &str) -> bool {
        self.streams.iter().any(|stream| stream == table)
    }

    fn is_audited(&self, table: &str) -> bool {
        self.audited.iter().any(|audited| audited == table)
    }

    fn is_marked(&self, table: &str) -> bool {
        self.marked.iter().any(|marked| marked == table)
    }

    fn sink_of(&self, table: &str) -> Option<&str> {
        self.sinks.iter().find(|(of, _)| of == table).map(|(_, sink)| sink.as_str())
    }

    fn is_server(&self, name: &str) -> bool {
        self.servers.iter().any(|server| server == name)
    }

    fn is_prompt(&self, sink: &str) -> bool {
        self.prompt.iter().any(|prompt| prompt == sink)
    }
}

/// A rule: what it finds is in no order.
type Rule = fn(&Index<'_>) -> Vec<Violation>;

/// The rules in the order in which what they find is shown: what matters most comes first.
const RULES: [Rule; 14] = [
    lost::check,
    invented::check,
    changed::check,
    order::check,
    early::check,
    held::check,
    lane::check,
    parked::check,
    attempts::check,
    duplicate::check,
    dead::check,
    orphan::check,
    unwatched::check,
    open::check,
];

/// All that is wrong, of each rule in the order of time.
pub fn check(history: &History, rules: &Rules) -> Vec<Violation> {
    let index = Index::of(history, rules);
    let mut violations = Vec::new();
    for rule in RULES {
        let mut found = rule(&index);
        found.sort_by(Violation::in_time);
        violations.append(&mut found);
    }
    violation::show_lines(history, rules, &mut violations);
    violations
}

#[cfg(test)]
mod tests {
    use super::story::Story;
    use super::*;
    use crate::history::Answer;

    #[test]
    fn pr2_a_run_in_which_all_is_right_has_no_violation() {
        let mut story = Story::new();
        for number in 1..=3 {
            story.whole_life("queue", "a", number);
            story.whole_life("stream", "a", number);
        }
        let rolled_back = story.intend("queue", "b", 1);
        story.roll_back(rolled_back);
        assert_eq!(story.violations(), Vec::new());
    }

    #[test]
    fn pr2_what_is_found_is_shown_with_its_event_its_table_and_the_lines_around_it() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.row(event, "delivered");
        let shown: Vec<String> = story.violations().iter().map(Violation::to_string).collect();
        let [shown] = &shown[..] else { unreachable!("one violation, not {shown:?}") };
        assert!(shown.starts_with(&format!("lost: event {event} of queue: ")), "{shown}");
        assert!(shown.contains("\n    {\"what\":\"intent\""), "{shown}");
        assert!(shown.contains("\n    {\"what\":\"row\""), "{shown}");
    }

    #[test]
    fn pr2_violations_come_in_the_order_of_time() {
        let mut story = Story::new();
        let events: Vec<_> = (1..=20).map(|number| story.commit("queue", "a", number)).collect();
        events.iter().for_each(|event| story.row(*event, "delivered"));
        let found: Vec<_> = story.violations().into_iter().map(|violation| violation.of).collect();
        assert_eq!(found, events.into_iter().map(crate::history::Leased::Event).collect::<Vec<_>>());
    }

    #[test]
    fn pr2_a_long_history_is_checked_in_one_go() {
        let mut story = Story::new();
        for number in 1..=20_000 {
            story.whole_life("queue", &format!("a{}", number % 100), (number + 99) / 100);
        }
        let repeated = story.whole_life("queue", "b", 1);
        story.deliver(repeated, Answer::Accepted);
        let found: Vec<_> = story.violations().iter().map(|violation| violation.rule).collect();
        assert_eq!(found, ["duplicate", "duplicate"], "without a claim and without a fault");
    }
}
