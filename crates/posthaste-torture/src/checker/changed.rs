//! Payload, headers and id arrived as they were written.
//!
//! All databases keep the text of a JSON payload as it is, and the sinks put its bytes into the message: they are the
//! same, blanks and the order of members included. A header's name may have changed its case, as HTTP allows; beside the
//! event's own headers there are those of the message and its transport, and no others.

use uuid::Uuid;

use super::index::Index;
use super::violation::Violation;
use crate::history::{Delivery, Intent, Leased};

const RULE: &str = "changed";

/// What the message and its transport add.
const ADDED: [&str; 11] = [
    "accept",
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "traceparent",
    "tracestate",
    "user-agent",
];
/// What begins so is theirs, too.
const ADDED_PREFIXES: [&str; 3] = ["ce-", "nats-", "webhook-"];
/// Those that say the event's id.
const IDS: [&str; 3] = ["ce-id", "nats-msg-id", "webhook-id"];

pub(super) fn check(index: &Index<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (id, event) in &index.events {
        let Some(intent) = event.intent else { continue };
        let changed =
            event.deliveries.iter().filter_map(|delivery| Some((delivery, judge(intent, delivery)?)));
        // Every try sends the same: one is enough.
        if let Some((delivery, what)) = { changed }.next() {
            let what = format!("{what}, delivered to {}", delivery.sink);
            violations.push(Violation::new(RULE, event.table(), Leased::Event(*id), delivery.at, what));
        }
    }
    violations
}

fn judge(intent: &Intent, delivery: &Delivery) -> Option<String> {
    if delivery.payload != intent.payload {
        return Some("its payload is another".to_owned());
    }
    let values = |headers: &[(String, String)], name: &str| {
        let of_it = headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        of_it.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    for (name, _) in &intent.headers {
        let (written, arrived) = (values(&intent.headers, name), values(&delivery.headers, name));
        if written != arrived {
            return Some(format!("its header {name:?} is {arrived:?} instead of {written:?}"));
        }
    }
    let is_own = |name: &str| intent.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    for (name, value) in &delivery.headers {
        if !is_own(name) && !is_added(name) {
            return Some(format!("its header {name:?} was never written"));
        }
        let says_id = IDS.iter().any(|id| id.eq_ignore_ascii_case(name));
        if says_id && Uuid::try_parse(value).ok() != Some(intent.event) {
            return Some(format!("its id is {value:?} by the header {name:?}"));
        }
    }
    None
}

fn is_added(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ADDED.contains(&name.as_str()) || ADDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::super::story::Story;
    use super::*;
    use crate::history::Answer;

    fn found(change: impl FnOnce(&mut Delivery), words: &[&str]) {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.deliver_as(event, Answer::Accepted, change);
        story.assert_found(RULE, words);
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn pr2_what_arrives_as_it_was_written_is_unchanged_with_whatever_the_transport_adds() {
        found(
            |delivery| {
                let id = delivery.event.to_string();
                delivery.headers = vec![
                    header("Content-Type", "application/json"),
                    header("ce-id", &id),
                    header("webhook-timestamp", "1"),
                    header("X-Number", "1"),
                ];
            },
            &[],
        );
    }

    #[test]
    fn pr2_another_payload_is_found_even_if_it_means_the_same() {
        found(|delivery| delivery.payload = delivery.payload.replace(':', ": "), &["its payload is another"]);
    }

    #[test]
    fn pr2_a_header_that_is_missing_or_another_is_found() {
        found(|delivery| delivery.headers.clear(), &["is [] instead of [\"1\"]"]);
        found(|delivery| delivery.headers[0].1 = "2".to_owned(), &["is [\"2\"] instead of [\"1\"]"]);
        found(|delivery| delivery.headers.push(header("X-NUMBER", "1")), &["instead of [\"1\"]"]);
    }

    #[test]
    fn pr2_a_header_that_was_never_written_is_found() {
        found(|delivery| delivery.headers.push(header("x-other", "1")), &["\"x-other\" was never written"]);
    }

    #[test]
    fn pr2_another_id_is_found() {
        for name in IDS {
            let other = Uuid::from_u128(4711).to_string();
            found(|delivery| delivery.headers.push(header(name, &other)), &["its id is"]);
        }
    }

    #[test]
    fn pr2_a_try_that_failed_is_compared_too_and_an_event_is_said_once() {
        let mut story = Story::new();
        let event = story.commit("queue", "a", 1);
        story.deliver_as(event, Answer::Failed, |delivery| delivery.payload.clear());
        story.deliver_as(event, Answer::Accepted, |delivery| delivery.payload.clear());
        story.assert_found(RULE, &["its payload is another"]);
    }
}
