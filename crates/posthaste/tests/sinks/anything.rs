//! Events with anything in them, and how they are compared with what arrived.

use std::collections::BTreeMap;

use posthaste::sink::Delivery;
use posthaste::{Event, testing};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::destination::Arrived;

/// So many of them, always the same.
pub fn deliveries_of_anything(count: usize) -> Vec<Delivery> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| event().new_tree(&mut runner).unwrap().current()).map(testing::delivery).collect()
}

fn words() -> impl Strategy<Value = String> {
    let any = vec(any::<char>().prop_filter("control", |c| !c.is_control()), 1..16)
        .prop_map(|chars| chars.into_iter().collect());
    let odd = prop::sample::select(vec!["%41", "a:b", "\"'`", "\u{feff}", " a ", "é🚀", "ce-id", "="]);
    prop_oneof![2 => any, 1 => odd.prop_map(str::to_owned)]
}

prop_compose! {
    fn event()(
        kind in words(), id in words(), namespace in words(), tenant in words(),
        headers in btree_map(words().prop_map(|name| format!("x-{name}")), words(), 0..5),
        payload in vec(any::<String>(), 0..4),
    ) -> Event {
        let event = Event::json("events.order.placed", &payload).unwrap();
        let event = event.event_type(kind).aggregate("order", id).namespace(namespace).tenant(tenant);
        // Names are compared in small letters, and of two that are the same then, nobody can tell which is which.
        let headers: BTreeMap<String, String> =
            headers.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        headers.into_iter().fold(event, |event, (name, value)| event.header(name, value)).build().unwrap()
    }
}

/// [`posthaste::sink::Format::Envelope`] as consumers read it.
#[derive(Deserialize)]
struct Envelope<'a> {
    r#type: String,
    tenant: String,
    namespace: String,
    headers: BTreeMap<String, String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Demands that an envelope has everything of its event.
pub fn is_in_its_envelope(arrived: &Arrived, event: &Event) {
    let read: Envelope<'_> = serde_json::from_slice(&arrived.body).unwrap();
    assert_eq!(
        (read.r#type.as_str(), read.tenant.as_str()),
        (event.event_type(), event.tenant_id().unwrap())
    );
    assert_eq!((read.namespace.as_str(), &read.headers), (event.namespace(), event.headers()));
    assert_eq!(Some(read.payload.get()), event.payload().as_json());
}

/// Demands that the headers of a message have everything of its event. Blanks around a value are the transport's to keep.
pub fn is_in_its_headers(arrived: &Arrived, event: &Event) {
    let bare = |text: &str| text.trim_matches([' ', '\t']).to_owned();
    let come: BTreeMap<String, String> =
        arrived.headers.iter().map(|(name, value)| (decoded(name), value.clone())).collect();
    for (name, value) in event.headers() {
        assert_eq!(come.get(name).map(|come| bare(come)), Some(bare(value)), "{name:?} in {come:?}");
    }
    let attribute = |name: &str| arrived.attribute(name).map(|value| decoded(&value));
    assert_eq!(attribute("type").as_deref(), Some(event.event_type()));
    assert_eq!(attribute("subject").as_deref(), event.aggregate_id());
    assert_eq!(attribute("namespace").as_deref(), Some(event.namespace()));
    assert_eq!(attribute("tenantid").as_deref(), event.tenant_id());
    assert_eq!(arrived.body, event.payload().bytes());
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
