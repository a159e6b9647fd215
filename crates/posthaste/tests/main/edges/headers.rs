//! Headers: those of an event travel beside every format, and can be read back from the message.

use axum::http::{HeaderName, HeaderValue};
use posthaste::sink::{Envelope, Format, Message};
use posthaste::{ErrorKind, Event, testing};
use posthaste_testkit::fuzz::text;

use crate::harness::CORPUS;

/// Names that a transport sets itself: an event's header of that name is left out.
const TRANSPORT: [&str; 13] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A seed is a header on each line: its name, `: `, its value.
#[test]
fn si3_headers_are_refused_or_can_be_read_back() {
    CORPUS.each_input("headers", 8_000, |input| {
        let Some(text) = text(input) else { return };
        let mut event = Event::json("edge", &1).unwrap();
        for line in text.split('\n') {
            let (name, value) = line.split_once(": ").unwrap_or((line, ""));
            event = event.header(name, value);
        }
        match event.build() {
            Ok(event) => Format::ALL.into_iter().for_each(|format| read_back(&event, format)),
            Err(error) => {
                use ErrorKind::{ControlCharacter, HeaderKeyEmpty, TooLong};
                let kind = error.kind();
                assert!(
                    matches!(kind, TooLong { .. } | ControlCharacter { .. } | HeaderKeyEmpty),
                    "{error:?}"
                );
                // Lengths and places, and nothing of what was there.
                let said = format!("{error} {error:?}");
                assert!(said.contains("header") && said.len() < 500, "{said}");
            }
        }
    });
}

fn read_back(event: &Event, format: Format) {
    let message = Envelope::new(format).wrap(&testing::delivery(event.clone()));
    let headers = message.headers();
    for (name, value) in &headers {
        // As both transports take them.
        assert!(HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?}");
        assert!(HeaderValue::from_bytes(value.as_bytes()).is_ok(), "{name:?}");
        assert!(!value.contains(['\r', '\n', '\0']), "{name:?}");
    }
    let own = 1 + message.attributes.len();
    let expected: Vec<(String, String)> = event
        .headers()
        .iter()
        .filter(|(name, _)| !is_left_out(name, &message))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let read: Vec<(String, String)> =
        headers[own..].iter().map(|(name, value)| (decoded(name), value.clone())).collect();
    assert_eq!(read, expected);
}

fn is_left_out(name: &str, message: &Message) -> bool {
    let name = name.to_ascii_lowercase();
    TRANSPORT.contains(&name.as_str())
        || name.starts_with("nats-")
        || name.starts_with("webhook-")
        || message.attributes.iter().any(|(attribute, _)| name == format!("ce-{attribute}"))
}

/// What was percent-encoded.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap().as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}
