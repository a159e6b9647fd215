//! What was found: a check, its verdict, a sentence with the figures, and what to do about it.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Worth knowing, and nothing to be done.
    Note,
    /// It costs something, or will.
    Warning,
    /// It keeps events from moving.
    Fault,
}

impl Verdict {
    /// Its name: `ok`, `note`, `warning` or `fault`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Whether the database answers and takes writes.
    Database,
    /// Whether somebody has locked the table as a whole.
    Lock,
    /// Whether the table is as its migrations make it.
    Migrations,
    /// Whether something old keeps the database from cleaning up: on PostgreSQL a pinned xmin.
    OldTransactions,
    /// Whether the database cleans up: autovacuum, purge, the write-ahead log.
    Cleanup,
    /// Whether somebody delivers what is due.
    Relay,
    /// Whether leases are held by who is gone.
    Leases,
    /// Whether the lanes of a stream are owned by who lives.
    Lanes,
    /// Events that were given up.
    DeadLetters,
    /// Aggregates of a stream that wait for an operator.
    Blocked,
    /// Whether this machine's clock and the database's agree.
    Clock,
    /// Whether a sink of this name can be reached.
    Sink(String),
}

impl Check {
    /// Its name, which is a contract; every sink's is `sink`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Lock => "lock",
            Self::Migrations => "migrations",
            Self::OldTransactions => "old-transactions",
            Self::Cleanup => "cleanup",
            Self::Relay => "relay",
            Self::Leases => "leases",
            Self::Lanes => "lanes",
            Self::DeadLetters => "dead-letters",
            Self::Blocked => "blocked",
            Self::Clock => "clock",
            Self::Sink(_) => "sink",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sink(name) => write!(f, "sink {name}"),
            other => f.write_str(other.as_str()),
        }
    }
}

/// One thing that was looked at, and what is the matter with it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at.
    pub check: Check,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was found, with the figures.
    pub found: String,
    /// What to do about it, with the statement or command; always there but for what is as it should be.
    pub advice: Option<String>,
    /// The page of the book that has more, such as `operate/pinned-xmin`.
    pub page: Option<&'static str>,
    /// The kind of error behind it, where it is one.
    pub error: Option<ErrorKind>,
}

impl Finding {
    /// Something that is as it should be.
    pub fn ok(check: Check, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), advice: None, page: None, error: None }
    }

    /// Something that is not, and what to do about it.
    pub fn new(check: Check, verdict: Verdict, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict, advice: Some(advice.into()), ..Self::ok(check, found) }
    }

    /// What an error says of a check that it ended.
    pub fn of_error(check: Check, error: &Error) -> Self {
        let found = Self::new(check, Verdict::Fault, error.message(), sentence(error.kind().advice()));
        Self { error: Some(error.kind().clone()), ..found }
    }

    /// With the page of the book that has more.
    #[must_use]
    pub fn page(mut self, page: &'static str) -> Self {
        self.page = Some(page);
        self
    }
}

/// The worst of findings of one kind, and that there are more.
pub(super) fn at_most(most: usize, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    let rest = findings.split_off(most.min(findings.len()));
    if let Some(next) = rest.first() {
        let found = format!("and {} more of this kind", rest.len());
        let more =
            Finding::new(next.check.clone(), next.verdict, found, "See to the first ones, then look again.");
        findings.push(Finding { page: next.page, ..more });
    }
    findings
}

/// Words of an error as a sentence of their own.
pub(super) fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

/// A length for people, in its two largest units: `40 ms`, `12s`, `3h 12m`.
pub(super) fn length(length: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    let seconds = length.as_secs();
    let Some(at) = UNITS.iter().position(|(_, size)| seconds >= *size) else {
        let millis = length.as_secs_f64() * 1000.0;
        return if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") };
    };
    let (unit, size) = UNITS[at];
    match UNITS.get(at + 1).map(|(smaller, of)| (smaller, seconds % size / of)) {
        Some((smaller, rest)) if rest > 0 => format!("{}{unit} {rest}{smaller}", seconds / size),
        _ => format!("{}{unit}", seconds / size),
    }
}

/// So many of something: `1 event`, `2 events`.
pub(super) fn many(n: impl fmt::Display, what: &str) -> String {
    let n = n.to_string();
    if n == "1" { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op10_lengths_have_two_units() {
        for (millis, text) in [
            (0, "0.0 ms"),
            (2, "2.0 ms"),
            (40, "40 ms"),
            (12_900, "12s"),
            (60_000, "1m"),
            (63_000, "1m 3s"),
            (11_520_000, "3h 12m"),
            (86_400_000, "1d"),
            (180_000_000, "2d 2h"),
        ] {
            assert_eq!(length(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn op10_of_many_of_a_kind_the_worst_are_told() {
        let finding = |verdict| Finding::new(Check::Leases, verdict, "orphaned", "wait").page("a");
        let told = |most| {
            let found = vec![finding(Verdict::Warning), finding(Verdict::Fault), finding(Verdict::Warning)];
            at_most(most, found).into_iter().map(|told| (told.verdict, told.found)).collect::<Vec<_>>()
        };
        let orphaned = |verdict| (verdict, "orphaned".to_owned());
        assert_eq!(
            told(1),
            [orphaned(Verdict::Fault), (Verdict::Warning, "and 2 more of this kind".to_owned())]
        );
        assert_eq!(told(3).len(), 3);
        assert!(at_most(1, Vec::new()).is_empty());
    }

    #[test]
    fn op10_verdicts_are_in_the_order_of_their_weight() {
        assert!(Verdict::Ok < Verdict::Note && Verdict::Note < Verdict::Warning);
        assert!(Verdict::Warning < Verdict::Fault);
        assert_eq!((many(1, "event"), many("10000+", "event")), ("1 event".into(), "10000+ events".into()));
    }
}
