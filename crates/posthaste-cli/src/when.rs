//! Times: durations such as `5m`, instants such as `2026-01-31T12:00:00Z`, and both back as text.

use std::time::Duration;

use time::format_description::BorrowedFormatItem;
use time::format_description::well_known::Rfc3339;
use time::macros::format_description;
use time::{Date, OffsetDateTime, UtcOffset};

/// How an instant is shown to people.
const STAMP: &[BorrowedFormatItem<'static>] =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");

/// A day.
const DATE: &[BorrowedFormatItem<'static>] = format_description!("[year]-[month]-[day]");

/// Units, largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A point in time as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// This long before the database's clock.
    Ago(Duration),
    /// This instant.
    At(OffsetDateTime),
}

impl When {
    /// The instant, given the database's clock.
    pub(crate) fn resolve(self, now: OffsetDateTime) -> OffsetDateTime {
        match self {
            Self::Ago(ago) => time::Duration::try_from(ago)
                .ok()
                .and_then(|ago| now.checked_sub(ago))
                .unwrap_or(OffsetDateTime::UNIX_EPOCH),
            Self::At(at) => at,
        }
    }
}

/// Reads a whole number and a unit: `500ms`, `30s`, `5m`, `2h`, `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .and_then(|(_, millis)| number.parse::<u64>().ok()?.checked_mul(*millis))
        .map(Duration::from_millis)
        .ok_or_else(|| "not a duration such as 500ms, 30s, 5m, 2h or 7d".to_owned())
}

/// Reads an instant of RFC 3339, or a date, which is the beginning of that day in UTC.
pub(crate) fn instant(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .or_else(|_| Date::parse(text, DATE).map(|date| date.midnight().assume_utc()))
        .ok()
        // A day later or earlier may be in a year that there is none of in UTC.
        .and_then(|at| at.checked_to_offset(UtcOffset::UTC))
        .ok_or_else(|| "not a time such as 2026-01-31T12:00:00Z, nor a date such as 2026-01-31".to_owned())
}

/// Reads a duration, meant as so long ago, or an instant.
pub(crate) fn when(text: &str) -> Result<When, String> {
    duration(text).map(When::Ago).or_else(|_| instant(text).map(When::At)).map_err(|_| {
        "neither a duration such as 30s, 5m or 2h nor a time such as 2026-01-31 or 2026-01-31T12:00:00Z"
            .into()
    })
}

/// A length for people, in its largest unit: `40ms`, `12s`, `5m`, `3h`, `7d`.
pub(crate) fn length(length: Duration) -> String {
    let millis = length.as_millis();
    let (unit, size) = UNITS.into_iter().find(|(_, size)| millis >= u128::from(*size)).unwrap_or(("ms", 1));
    format!("{}{unit}", millis / u128::from(size))
}

/// How long something has been, and not less than nothing.
pub(crate) fn since(then: OffsetDateTime, now: OffsetDateTime) -> Duration {
    Duration::try_from(now - then).unwrap_or_default()
}

/// How long it still takes, in whole seconds begun.
pub(crate) fn until(then: OffsetDateTime, now: OffsetDateTime) -> Duration {
    let left = since(now, then);
    Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
}

/// An instant for people.
pub(crate) fn stamp(at: OffsetDateTime) -> String {
    at.to_offset(UtcOffset::UTC).format(STAMP).unwrap_or_else(|_| at.to_string())
}

/// An instant for programs: RFC 3339, in UTC.
pub(crate) fn rfc3339(at: OffsetDateTime) -> String {
    at.to_offset(UtcOffset::UTC).format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_durations_are_read() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "m", "-5m", "5 m", "1.5h", "5min", "1h30m", "99999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn op1_a_time_is_ago_or_an_instant() -> Result<(), String> {
        let now = instant("2026-01-31T12:00:00Z")?;
        assert_eq!(when("2h")?.resolve(now), instant("2026-01-31T10:00:00Z")?);
        assert_eq!(when("2026-01-31T12:00:00+01:00")?.resolve(now), instant("2026-01-31T11:00:00Z")?);
        assert_eq!(when("99999999999d")?.resolve(now), OffsetDateTime::UNIX_EPOCH);
        assert_eq!(when("2026-01-31")?.resolve(now), instant("2026-01-31T00:00:00Z")?);
        for text in [
            "yesterday",
            "2026-02-30",
            "2026-1-31",
            "31.01.2026",
            "2026-01-31T12:00:00",
            "9999-12-31T23:59:59-01:00",
        ] {
            assert!(when(text).is_err(), "{text}");
        }
        Ok(())
    }

    #[test]
    fn op1_lengths_are_shown_in_their_largest_unit() {
        for text in ["0ms", "40ms", "12s", "5m", "3h", "7d"] {
            assert_eq!(duration(text).map(length).as_deref(), Ok(text));
        }
        assert_eq!(length(Duration::from_millis(61_999)), "1m");
    }
}
