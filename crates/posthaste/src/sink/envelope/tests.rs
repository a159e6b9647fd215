#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::event::Event;
use crate::testing;

fn full() -> Delivery {
    let event = Event::builder("shop.order.placed.v2")
        .id(Uuid::from_u128(7))
        .json_text(r#"{ "total": 9.900, "b":1,"a":2 }"#)
        .unwrap()
        .event_type("placed")
        .aggregate("order", "4 2")
        .tenant("tenant-ä")
        .namespace("eu")
        .version(3)
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("tracestate", "a=\"b\" c%d")
        .header("Country", "Österreich")
        .occurred_at(OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap())
        .build()
        .unwrap();
    testing::delivery(event)
}

fn header(message: &Message, name: &str) -> Option<String> {
    let fitting: Vec<_> =
        message.headers().into_iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).collect();
    assert!(fitting.len() <= 1, "{name} is there twice");
    fitting.into_iter().next().map(|(_, value)| value)
}

#[test]
fn si3_binary_cloud_events_are_headers_and_the_bare_payload() {
    let message = Envelope::default().wrap(&full());
    assert_eq!(&message.body[..], br#"{ "total": 9.900, "b":1,"a":2 }"#);
    for (name, value) in [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-id", "00000000-0000-0000-0000-000000000007"),
        ("ce-source", "/posthaste/outbox"),
        ("ce-type", "placed"),
        ("ce-subject", "4%202"),
        ("ce-time", "2023-11-14T22:13:20Z"),
        ("ce-dataversion", "3"),
        ("ce-topic", "shop.order.placed.v2"),
        ("ce-namespace", "eu"),
        ("ce-tenantid", "tenant-%C3%A4"),
        ("ce-aggregatetype", "order"),
        ("ce-sequence", "0000000000000000001"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", "a=\"b\" c%d"),
        ("Country", "Österreich"),
    ] {
        assert_eq!(header(&message, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(message.headers().len(), 16);
}

#[test]
fn si3_structured_cloud_events_are_one_document() {
    let message = Envelope::new(Format::CloudEventsStructured).source("urn:shop").unwrap().wrap(&full());
    assert_eq!(message.content_type, "application/cloudevents+json");
    let body: Value = serde_json::from_slice(&message.body).unwrap();
    let expected = json!({
        "specversion": "1.0", "id": "00000000-0000-0000-0000-000000000007", "source": "urn:shop",
        "type": "placed", "subject": "4 2", "time": "2023-11-14T22:13:20Z", "dataversion": 3,
        "topic": "shop.order.placed.v2", "namespace": "eu", "tenantid": "tenant-ä", "aggregatetype": "order",
        "sequence": "0000000000000000001", "datacontenttype": "application/json",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=\"b\" c%d",
        "data": {"total": 9.9, "b": 1, "a": 2},
    });
    assert_eq!(body, expected);
    // The payload's very bytes, which a number written again would not be.
    assert!(String::from_utf8_lossy(&message.body).contains(r#""data":{ "total": 9.900, "b":1,"a":2 }"#));
    assert_eq!(header(&message, "ce-id"), None);
    assert_eq!(header(&message, "Country").as_deref(), Some("Österreich"));
}

#[test]
fn si3_the_envelope_names_its_message_id() {
    let message = Envelope::new(Format::Envelope).wrap(&full());
    let body: Value = serde_json::from_slice(&message.body).unwrap();
    let expected = json!({
        "messageId": "00000000-0000-0000-0000-000000000007", "topic": "shop.order.placed.v2",
        "type": "placed", "version": 3, "occurredAt": "2023-11-14T22:13:20Z", "namespace": "eu",
        "tenant": "tenant-ä", "aggregate": {"type": "order", "id": "4 2"}, "sequence": 1,
        "headers": {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "a=\"b\" c%d", "Country": "Österreich",
        },
        "contentType": "application/json", "payload": {"total": 9.9, "b": 1, "a": 2},
    });
    assert_eq!(body, expected);
}

#[test]
fn si3_bytes_are_base_64_in_json_and_themselves_elsewhere() {
    let event = Event::builder("t").bytes("image/png", vec![0xff, 0, 1]).build().unwrap();
    let delivery = testing::delivery(event);
    let wrap = |format| Envelope::new(format).wrap(&delivery);
    for format in [Format::CloudEvents, Format::Payload] {
        assert_eq!(&wrap(format).body[..], [0xff, 0, 1]);
        assert_eq!(wrap(format).content_type, "image/png");
    }
    let body: Value = serde_json::from_slice(&wrap(Format::CloudEventsStructured).body).unwrap();
    assert_eq!((&body["data_base64"], &body["data"]), (&json!("/wAB"), &Value::Null));
    assert_eq!(body["datacontenttype"], "image/png");
    let body: Value = serde_json::from_slice(&wrap(Format::Envelope).body).unwrap();
    assert_eq!((&body["payloadBase64"], &body["contentType"]), (&json!("/wAB"), &json!("image/png")));
}

#[test]
fn si3_every_try_sends_the_same() {
    for format in Format::ALL {
        let (first, mut second) = (full(), full());
        second.attempt = 7;
        assert_eq!(Envelope::new(format).wrap(&first), Envelope::new(format).wrap(&second));
    }
}

#[test]
fn si3_an_event_cannot_set_what_belongs_to_the_transport() {
    let event = Event::json("t", &1)
        .unwrap()
        .header("CE-Id", "mine")
        .header("ce-partitionkey", "extension")
        .header("Content-Type", "text/html")
        .header("Content-Length", "1")
        .header("Nats-Rollup", "all")
        .header("Webhook-Signature", "v1,x")
        .header("näme here:", "x")
        .build()
        .unwrap();
    let delivery = testing::delivery(event);
    let message = Envelope::default().wrap(&delivery);
    assert_eq!(header(&message, "ce-id"), Some(delivery.event.id().to_string()));
    assert_eq!(header(&message, "content-type").as_deref(), Some("application/json"));
    assert_eq!(header(&message, "ce-partitionkey").as_deref(), Some("extension"));
    assert_eq!(header(&message, "n%C3%A4me%20here%3A").as_deref(), Some("x"));
    for name in ["content-length", "nats-rollup", "webhook-signature"] {
        assert_eq!(header(&message, name), None, "{name}");
    }
}

#[test]
fn formats_have_names() {
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>().unwrap(), format);
    }
    let error = "cloudevent".parse::<Format>().unwrap_err();
    assert!(error.message().contains("cloudevents-structured"), "{error}");
    for source in ["", "a b", "a\nb"] {
        assert!(Envelope::default().source(source).is_err());
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&after[..2]).unwrap(), 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Texts that an event may have: no control characters, at least one character.
fn text() -> impl Strategy<Value = String> {
    "\\PC{1,40}"
}

/// JSON as a producer may have written it, with blanks and line breaks.
fn document() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<i32>().prop_map(|n| format!("{n}.50")),
        text().prop_map(|t| { serde_json::to_string(&t).unwrap() })
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|v| format!("[{}]", v.join(" ,\r\n\t"))),
            prop::collection::vec((text(), inner), 0..4).prop_map(|members| {
                let members: Vec<_> = members
                    .into_iter()
                    .map(|(name, value)| format!("{} :\n{value}", serde_json::to_string(&name).unwrap()))
                    .collect();
                format!("{{ {} }}", members.join(",\n"))
            }),
        ]
    })
}

proptest! {
    #[test]
    fn si3_encoded_values_are_printable_and_can_be_undone(value in "\\PC*") {
        for encoded in [encode::attribute(&value), encode::name(&value), encode::path(&value)] {
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_graphic()), "{encoded:?}");
            prop_assert_eq!(decoded(&encoded), value.clone());
        }
    }

    #[test]
    fn si3_strings_are_those_of_json(value in any::<String>()) {
        let mut out = Vec::new();
        json::string(&mut out, &value);
        let read: String = serde_json::from_slice(&out).unwrap();
        prop_assert_eq!(read, value);
    }

    #[test]
    fn si3_any_event_can_be_wrapped_and_read_back(
        payload in document(), kind in text(), tenant in text(), key in text(), value in "\\PC{0,40}",
    ) {
        let event = Event::builder("t")
            .json_text(payload.as_str())
            .unwrap()
            .event_type(kind.as_str())
            .tenant(tenant.as_str())
            .header(key.as_str(), value.as_str())
            .build()
            .unwrap();
        let delivery = testing::delivery(event);

        let binary = Envelope::default().wrap(&delivery);
        prop_assert_eq!(&binary.body[..], payload.as_bytes());
        prop_assert_eq!(decoded(&header(&binary, "ce-type").unwrap()), kind.clone());
        for (name, _) in binary.headers() {
            prop_assert!(name.bytes().all(|b| b.is_ascii_graphic() && b != b':'), "{name:?}");
        }

        let structured = Envelope::new(Format::CloudEventsStructured).wrap(&delivery);
        prop_assert!(structured.body.windows(payload.len()).any(|part| part == payload.as_bytes()));
        let read: Value = serde_json::from_slice(&structured.body).unwrap();
        prop_assert_eq!(&read["type"], &json!(kind));
        prop_assert_eq!(&read["data"], &serde_json::from_str::<Value>(&payload).unwrap());

        let own = Envelope::new(Format::Envelope).wrap(&delivery);
        let read: Value = serde_json::from_slice(&own.body).unwrap();
        prop_assert_eq!(&read["headers"][&key], &json!(value));
        prop_assert_eq!(&read["tenant"], &json!(tenant));

        for format in Format::ALL {
            let mut line = Vec::new();
            Envelope::new(format).line(&delivery, &mut line);
            prop_assert_eq!(line.iter().position(|b| *b == b'\n'), Some(line.len() - 1));
            prop_assert!(!line.contains(&b'\r'));
            let read: Value = serde_json::from_slice(&line).unwrap();
            if format == Format::Payload {
                prop_assert_eq!(read, serde_json::from_str::<Value>(&payload).unwrap());
            }
        }
    }
}
