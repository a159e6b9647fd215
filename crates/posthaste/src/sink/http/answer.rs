//! What an HTTP answer means for the event.
//!
//! | answer | outcome |
//! |---|---|
//! | 2xx | delivered |
//! | 408, 425, 429, 5xx, with `Retry-After` | retry, after that long |
//! | 408, 425, 429, 5xx, without | retry |
//! | 502, 503, 504 without `Retry-After`; no answer in time; a connection that broke | doubt: see below |
//! | 1xx, 3xx | retry: redirects are not followed, and a wrong URL or a login page in between is no fault of the event |
//! | 4xx but for those above, 410 among them | reject |
//! | no connection: refused, no such host, no TLS | unavailable |
//!
//! *Doubt*: a proxy says 503 when its service is down, and also when one request crashes it. If nothing of the
//! batch was answered in earnest, the sink asks the URL with `HEAD`. Does that fail, too, the destination is
//! unavailable; else it is the event, and a retry.

use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::sink::Outcome;

/// The longest that a destination can put an event off.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// One request's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is clear what it means.
    Clear(Outcome),
    /// The event's fault or the destination's.
    Doubtful(String),
}

/// What a status means; `excerpt` is what the destination said beside it.
pub(super) fn of_status(status: StatusCode, after: Option<Duration>, excerpt: &str) -> Answer {
    let error = match excerpt {
        "" => format!("HTTP {status}"),
        excerpt => format!("HTTP {status}: {excerpt}"),
    };
    let may_work_later = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
    Answer::Clear(match status.as_u16() {
        200..=299 => Outcome::Delivered,
        502..=504 if after.is_none() => return Answer::Doubtful(error),
        _ if may_work_later => Outcome::Retry { after, error },
        300..=399 => Outcome::Retry { after: None, error: format!("{error} (redirects are not followed)") },
        400..=499 => Outcome::Reject { error },
        _ => Outcome::Retry { after: None, error },
    })
}

/// Whether a proxy says that there is nobody behind it.
pub(super) fn is_outage(status: StatusCode) -> bool {
    (502..=504).contains(&status.as_u16())
}

/// What a request that got no answer means.
pub(super) fn of_error(error: reqwest::Error) -> Answer {
    let (no_connection, impossible) = (error.is_connect(), error.is_builder());
    let error = text(error);
    if no_connection {
        Answer::Clear(Outcome::Unavailable { error })
    } else if impossible {
        Answer::Clear(Outcome::Reject { error })
    } else {
        Answer::Doubtful(error)
    }
}

/// An error with its causes and without the URL, which may hold a secret.
pub(super) fn text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// `Retry-After`: seconds, or a date. None where that is now: the relay's policy knows better than to try at once.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default(),
    };
    (!wait.is_zero()).then(|| wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn outcome(status: u16, after: Option<u64>) -> Answer {
        of_status(StatusCode::from_u16(status).unwrap(), after.map(Duration::from_secs), "")
    }

    #[test]
    fn si4_every_status_has_its_outcome() {
        for status in 200..300 {
            assert_eq!(outcome(status, None), Answer::Clear(Outcome::Delivered), "{status}");
        }
        for status in (300..400).chain([408, 425, 429, 500, 501, 505, 599]) {
            let retried = matches!(outcome(status, None), Answer::Clear(Outcome::Retry { after: None, .. }));
            assert!(retried, "{status}");
        }
        for status in [502, 503, 504] {
            assert!(matches!(outcome(status, None), Answer::Doubtful(_)), "{status}");
        }
        let wait = Some(Duration::from_secs(7));
        for status in [408, 425, 429, 500, 502, 503, 504] {
            let Answer::Clear(Outcome::Retry { after, .. }) = outcome(status, Some(7)) else {
                panic!("{status}");
            };
            assert_eq!(after, wait, "{status}");
        }
        for status in (400..500).filter(|status| ![408, 425, 429].contains(status)) {
            assert!(matches!(outcome(status, Some(7)), Answer::Clear(Outcome::Reject { .. })), "{status}");
        }
    }

    #[test]
    fn si4_retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_767);
        for (value, wait) in [
            ("120", Some(120)),
            (" 0 ", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(10)),
            ("Sun, 06 Nov 1994 08:49:17 GMT", None),
            ("99999999", Some(24 * 3600)),
            ("soon", None),
            ("-1", None),
            ("99999999999999999999999", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            assert_eq!(retry_after(&headers, now), wait.map(Duration::from_secs), "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
