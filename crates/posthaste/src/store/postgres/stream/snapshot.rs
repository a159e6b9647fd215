//! Snapshots: which transactions had ended at a moment, as PostgreSQL writes them (`xmin:xmax:running,…`).

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::error::quoted;

/// Which transactions had ended at a moment. Those of one server are in order: what a later one sees includes what an
/// earlier one saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Everything below had ended.
    oldest: u64,
    /// Everything from here on had not.
    next: u64,
    /// What had not ended in between.
    running: Vec<u64>,
}

impl Snapshot {
    /// From which number on no transaction had ended.
    pub(super) fn next(&self) -> String {
        self.next.to_string()
    }

    /// The numbers below that of those that had not.
    pub(super) fn running(&self) -> Vec<String> {
        self.running.iter().map(u64::to_string).collect()
    }

    /// Whether this one was taken after the server had seen more transactions than that one knows of.
    pub(super) fn is_ahead_of(&self, server: &Self) -> bool {
        self.next > server.next
    }

    /// Which of two of the same server is the earlier.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        self.next.cmp(&other.next).then(other.running.len().cmp(&self.running.len()))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.oldest, self.next, self.running().join(","))
    }
}

impl FromStr for Snapshot {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{} is not a snapshot", quoted(text, 80));
        let number = |part: &str| part.parse::<u64>().map_err(|_| refused());
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or_else(refused);
        let (oldest, after, running) = (number(next()?)?, number(next()?)?, next()?);
        let running =
            running.split(',').filter(|part| !part.is_empty()).map(number).collect::<Result<_, _>>()?;
        Ok(Self { oldest, next: after, running })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap_or(Snapshot { oldest: 0, next: 0, running: Vec::new() })
    }

    #[test]
    fn sm3_snapshots_are_read_and_written_as_postgresql_does() {
        for text in ["1:1:", "10:20:10,14", "747:747:"] {
            assert_eq!(snapshot(text).to_string(), text);
        }
        for text in ["", "1", "1:2", "a:2:", "1:2:x"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
    }

    #[test]
    fn sm3_a_snapshot_is_earlier_that_saw_less() {
        assert_eq!(snapshot("10:20:10").order(&snapshot("12:21:")), Ordering::Less);
        assert_eq!(snapshot("10:20:10,12").order(&snapshot("12:20:12")), Ordering::Less);
        assert_eq!(snapshot("10:20:10").order(&snapshot("10:20:10")), Ordering::Equal);
        assert!(snapshot("10:20:").is_ahead_of(&snapshot("10:19:")));
    }
}
