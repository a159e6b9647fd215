//! What operators see: rows, counts and the state of a table.

use std::fmt;
use std::time::Duration;

use time::OffsetDateTime;
use uuid::Uuid;

use super::Status;
use crate::event::Event;

/// A row as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The event's id.
    pub id: Uuid,
    /// Its place in the table.
    pub sequence: i64,
    /// Where it is in its life.
    pub status: Status,
    /// Attempts counted so far; of a stream, those of events that were parked.
    pub attempts: u32,
    /// Who holds or held the lease; of a stream, who owns the lane while the event is under way.
    pub locked_by: Option<String>,
    /// Until when.
    pub locked_until: Option<OffsetDateTime>,
    /// When the row was written.
    pub created_at: OffsetDateTime,
    /// From when on it may be delivered.
    pub available_at: OffsetDateTime,
    /// When it was delivered or died; streams on PostgreSQL write nothing to a delivered row.
    pub settled_at: Option<OffsetDateTime>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// The event, or why it cannot be read.
    pub event: std::result::Result<Event, String>,
}

impl Record {
    /// The event's topic, if the event can be read.
    pub fn topic(&self) -> Option<&str> {
        self.event.as_ref().ok().map(Event::topic)
    }
}

/// A count that stops at a cap, so that its cost does not grow with the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// How many, at most the cap.
    pub n: u64,
    /// Whether there may be more.
    pub capped: bool,
}

impl Count {
    /// From a count that looked at one more than the cap.
    pub(crate) fn of(n: i64, cap: u32) -> Self {
        let n = u64::try_from(n).unwrap_or(0);
        Self { n: n.min(u64::from(cap)), capped: n > u64::from(cap) }
    }

    /// From a count of what fits among the rows looked at, which were one more than the cap if there are more.
    pub(crate) fn among(looked_at: i64, fitting: i64, cap: u32) -> Self {
        let capped = looked_at > i64::from(cap);
        Self { n: u64::try_from(fitting).unwrap_or(0).min(u64::from(cap)), capped }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}{}", self.n, if self.capped { "+" } else { "" });
        f.pad_integral(true, "", &text)
    }
}

/// The state of a table at a cost that does not grow with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Waiting, delayed ones included.
    pub pending: Count,
    /// Leased.
    pub processing: Count,
    /// Given up.
    pub dead: Count,
    /// How long the oldest undelivered event has been available; `None` if none is.
    pub oldest_age: Option<Duration>,
}

/// How far back [`Throughput`] looks.
pub(crate) const LATELY: Duration = Duration::from_secs(10);

/// How many events were delivered of late, as far as the rows that are kept say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Throughput {
    /// So many.
    pub delivered: u64,
    /// Within this time: ten seconds, or less where very many were.
    pub within: Duration,
}

impl Throughput {
    /// Rows looked at.
    pub(crate) const MOST: i64 = 10_000;

    /// From a count of the newest ones, and the microseconds since the oldest of those.
    pub(crate) fn of(n: i64, age: Option<i64>) -> Self {
        let within = match age {
            Some(age) if n >= Self::MOST => Duration::from_micros(age.max(1).unsigned_abs()).min(LATELY),
            _ => LATELY,
        };
        Self { delivered: u64::try_from(n).unwrap_or(0), within }
    }

    /// Events per second.
    pub fn per_second(&self) -> f64 {
        self.delivered as f64 / self.within.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_a_rate_is_of_ten_seconds_or_of_the_rows_looked_at() {
        assert_eq!(Throughput::of(25, Some(9_000_000)).per_second(), 2.5);
        assert_eq!(Throughput::of(0, None).per_second(), 0.0);
        assert_eq!(Throughput::of(Throughput::MOST, Some(2_000_000)).per_second(), 5000.0);
    }
}
