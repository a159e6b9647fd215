//! What is wrong, and the lines of the history that show it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;

use super::Rules;
use super::faults::Faults;
use crate::history::{History, Leased, Micros, Record};

/// Of so many violations of a rule the lines are shown: who has more of them has seen enough.
const SHOWN: usize = 20;
/// So many lines of each.
const LINES: usize = 12;
/// And so many faults that were felt at the time.
const FAULTS: usize = 3;
/// A line is cut after so many characters: payloads are long.
const LINE: usize = 400;

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The name of the rule.
    pub rule: &'static str,
    /// The outbox table; empty if it is not known.
    pub table: String,
    /// Of which event or lane.
    pub of: Leased,
    /// About when; zero if it is not known.
    pub at: Micros,
    /// What is wrong, in words.
    pub what: String,
    /// Lines of the history around it.
    pub lines: Vec<String>,
}

impl Violation {
    pub(super) fn new(rule: &'static str, table: &str, of: Leased, at: Micros, what: String) -> Self {
        Self { rule, table: table.to_owned(), of, at, what, lines: Vec::new() }
    }

    pub(super) fn in_time(&self, other: &Self) -> Ordering {
        (self.at, &self.table, &self.of).cmp(&(other.at, &other.table, &other.of))
    }

    fn subject(&self) -> Subject<'_> {
        Subject::of(&self.table, &self.of)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        match &self.of {
            Leased::Event(event) => write!(f, "event {event}")?,
            Leased::Lane(lane) => write!(f, "lane {lane}")?,
        }
        let table = if self.table.is_empty() { "an unknown table" } else { &self.table };
        write!(f, " of {table}: {}", self.what)?;
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// What lines are about. An event is the same in whatever table somebody believes it to be; a lane is not.
#[derive(PartialEq, Eq, Hash)]
struct Subject<'a> {
    table: &'a str,
    of: Leased,
}

impl<'a> Subject<'a> {
    fn of(table: &'a str, of: &Leased) -> Self {
        match of {
            Leased::Event(_) => Self { table: "", of: *of },
            Leased::Lane(_) => Self { table, of: *of },
        }
    }

    fn of_record(record: &'a Record) -> Option<Self> {
        let event = |event: &uuid::Uuid| Some(Self { table: "", of: Leased::Event(*event) });
        match record {
            Record::Intent(intent) => event(&intent.event),
            Record::Outcome { event: of, .. } | Record::Business { event: of, .. } => event(of),
            Record::Delivery(delivery) => event(&delivery.event),
            Record::Row(row) => event(&row.event),
            Record::Change(change) => Some(Self::of(&change.table, &change.of)),
            Record::Fault(_) => None,
        }
    }
}

/// When it happened; what is there at the end comes last.
fn time(record: &Record) -> Micros {
    match record {
        Record::Intent(intent) => intent.at,
        Record::Outcome { at, .. } => *at,
        Record::Delivery(delivery) => delivery.at,
        Record::Fault(fault) => fault.from,
        Record::Change(change) => change.at,
        Record::Row(_) | Record::Business { .. } => Micros::MAX,
    }
}

/// Adds their lines to the first violations of each rule.
pub(super) fn show_lines(history: &History, rules: &Rules, violations: &mut [Violation]) {
    let mut shown: HashMap<&'static str, usize> = HashMap::new();
    let mut is_shown = |violation: &Violation| {
        let before = shown.entry(violation.rule).or_default();
        *before += 1;
        *before <= SHOWN
    };
    let chosen: Vec<bool> = violations.iter().map(&mut is_shown).collect();
    let all: Vec<Vec<String>> = {
        let wanted = violations.iter().zip(&chosen).filter(|(_, chosen)| **chosen);
        let mut about: HashMap<Subject<'_>, Vec<&Record>> =
            wanted.map(|(violation, _)| (violation.subject(), Vec::new())).collect();
        if about.is_empty() {
            return;
        }
        for record in &history.records {
            if let Some(records) = Subject::of_record(record).and_then(|subject| about.get_mut(&subject)) {
                records.push(record);
            }
        }
        about.values_mut().for_each(|records| records.sort_by_key(|record| time(record)));
        let faults = Faults::of(history, rules);
        let lines = |violation: &Violation| {
            let records = about.get(&violation.subject()).map(Vec::as_slice).unwrap_or_default();
            let felt = faults.felt_at(violation.at).take(FAULTS).map(|fault| Record::Fault(fault.clone()));
            around(records, violation.at)
                .iter()
                .map(|record| line(record))
                .chain(felt.map(|f| line(&f)))
                .collect()
        };
        violations
            .iter()
            .zip(&chosen)
            .map(|(of, chosen)| if *chosen { lines(of) } else { Vec::new() })
            .collect()
    };
    violations.iter_mut().zip(all).for_each(|(violation, lines)| violation.lines = lines);
}

/// The records nearest to a time.
fn around<'r, 'a>(records: &'r [&'a Record], at: Micros) -> &'r [&'a Record] {
    let middle = records.partition_point(|record| time(record) < at);
    let start = middle.saturating_sub(LINES / 2).min(records.len().saturating_sub(LINES));
    &records[start..records.len().min(start + LINES)]
}

fn line(record: &Record) -> String {
    let line = serde_json::to_string(record).unwrap_or_else(|error| error.to_string());
    match line.char_indices().nth(LINE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use crate::history::Answer;

    #[test]
    fn pr2_the_lines_are_few_and_cut_and_near_what_is_wrong() {
        let mut story = Story::new();
        let event = story.commit_with("stream", "a", 1, |intent| intent.payload = "x".repeat(5000));
        story.row(event, "delivered");
        for _ in 0..100 {
            story.deliver(event, Answer::Failed);
        }
        story.deliver(event, Answer::Accepted);
        let last = story.deliver(event, Answer::Accepted);
        let found: Vec<_> = story.violations_of("duplicate");
        let [duplicate] = &found[..] else { unreachable!("one violation, not {found:?}") };
        assert_eq!(duplicate.lines.len(), super::LINES);
        assert!(duplicate.lines.iter().any(|line| line.contains(&format!("\"at\":{last}"))), "{duplicate}");
        assert!(duplicate.lines.iter().all(|line| line.chars().count() <= super::LINE + 1));
    }

    #[test]
    fn pr2_a_fault_that_was_felt_at_the_time_is_shown() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.fault("kill", "relay-1");
        story.row(event, "delivered");
        story.deliver_as(event, Answer::Accepted, |delivery| delivery.payload = "{}".to_owned());
        let found: Vec<_> = story.violations_of("changed");
        assert!(
            found.iter().all(|violation| violation.to_string().contains("\"kind\":\"kill\"")),
            "{found:?}"
        );
        assert_eq!(found.len(), 1);
    }
}
