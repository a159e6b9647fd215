//! Events that no builder would let pass, as somebody may have written them into the table by hand: what they become is a
//! message all the same, and its headers are headers.

#![allow(clippy::unwrap_used, reason = "tests")]

use posthaste_testkit::fuzz::text;
use serde_json::Value;

use super::*;
use crate::CORPUS;
use crate::event::Event;
use crate::testing;

/// A seed is the headers, as for `stored`, which stand in every other place as well.
#[test]
fn si3_no_row_steers_its_transport() {
    CORPUS.each_input("stored", 250, |input| {
        let Some(text) = text(input) else { return };
        let mut event = Event::builder("t").bytes("x", input.to_vec()).build().unwrap();
        event.topic = text.into();
        event.event_type = Some(text.into());
        event.aggregate_id = Some(text.into());
        event.namespace = text.into();
        event.tenant_id = Some(text.into());
        // As many as a row may have; each with the whole text would be the test's own expense.
        let value: String = text.chars().take(200).collect();
        event.headers = text.lines().take(60).map(|line| (line.to_owned(), value.clone())).collect();
        event.payload = Payload::binary(text, input.to_vec());
        let delivery = testing::delivery(event);
        for format in Format::ALL {
            let message = Envelope::new(format).wrap(&delivery);
            for (name, value) in message.headers() {
                assert!(!name.is_empty());
                assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'), "{name:?}");
                assert!(!value.contains(char::is_control), "{name:?}: {value:?}");
            }
            let mut line = Vec::new();
            Envelope::new(format).line(&delivery, &mut line);
            assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
            let read: Value = serde_json::from_slice(&line).unwrap();
            match format {
                Format::Payload => {}
                Format::Envelope => {
                    assert_eq!((&read["topic"], &read["tenant"]), (&text.into(), &text.into()))
                }
                _ => assert_eq!((&read["topic"], &read["tenantid"]), (&text.into(), &text.into())),
            }
        }
    });
}
