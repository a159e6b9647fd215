//! Payloads: what was enqueued is what a sink sends, in every format.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste::sink::{Envelope, Format};
use posthaste::{ErrorKind, Event, EventBuilder, testing};
use posthaste_testkit::fuzz::text;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::harness::CORPUS;

/// What a consumer reads of either structured format, whose names differ.
#[derive(Deserialize)]
struct Document<'a> {
    #[serde(alias = "messageId")]
    id: String,
    #[serde(borrow, alias = "payload")]
    data: Option<&'a RawValue>,
    #[serde(alias = "payloadBase64")]
    data_base64: Option<String>,
    #[serde(alias = "contentType")]
    datacontenttype: String,
}

#[test]
fn ev2_json_is_taken_or_refused_and_arrives_as_it_was() {
    CORPUS.each_input("json", 15_000, |input| {
        let Some(json) = text(input) else { return };
        match Event::builder("edge").json_text(json).and_then(EventBuilder::build) {
            Ok(event) => arrives(&event, json),
            Err(error) => {
                assert_eq!(error.kind(), &ErrorKind::PayloadNotJson);
                let said = format!("{error} {error:?}");
                assert!(said.contains("\"edge\"") && said.len() < 500, "{said}");
                // What an ordinary reader understands is JSON.
                assert!(serde_json::from_str::<Value>(json).is_err(), "refused: {error:?}");
            }
        }
    });
}

fn arrives(event: &Event, json: &str) {
    assert_eq!(event.payload().as_json(), Some(json));
    let delivery = testing::delivery(event.clone());
    let value = json.trim_matches([' ', '\t', '\r', '\n']);
    for format in Format::ALL {
        let message = Envelope::new(format).wrap(&delivery);
        match format {
            Format::CloudEvents | Format::Payload => assert_eq!(&message.body[..], json.as_bytes()),
            _ => {
                let read: Document<'_> = serde_json::from_slice(&message.body).unwrap();
                assert_eq!(read.data.map(RawValue::get), Some(value).filter(|value| *value != "null"));
                assert_eq!((read.id, read.data_base64), (event.id().to_string(), None));
            }
        }
        let mut line = Vec::new();
        Envelope::new(format).line(&delivery, &mut line);
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1), "{format}");
        assert!(serde_json::from_slice::<&RawValue>(&line).is_ok(), "{format}");
    }
}

#[test]
fn ev2_bytes_arrive_as_they_were() {
    CORPUS.each_input("json", 700, |input| {
        let event = Event::builder("edge").bytes("application/x-edge", input.to_vec()).build().unwrap();
        let delivery = testing::delivery(event);
        for format in Format::ALL {
            let message = Envelope::new(format).wrap(&delivery);
            match format {
                Format::CloudEvents | Format::Payload => assert_eq!(&message.body[..], input),
                _ => {
                    let read: Document<'_> = serde_json::from_slice(&message.body).unwrap();
                    assert_eq!(STANDARD.decode(read.data_base64.unwrap()).unwrap(), input);
                    assert_eq!(read.datacontenttype, "application/x-edge");
                    assert!(read.data.is_none());
                }
            }
            let mut line = Vec::new();
            Envelope::new(format).line(&delivery, &mut line);
            assert!(serde_json::from_slice::<&RawValue>(&line).is_ok(), "{format}");
        }
    });
}
