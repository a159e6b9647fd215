//! The rules of events, each with an error kind of its own. No database is needed for any of this.
//!
//! Rows of the contract: EV1, EV2, EV3, EV4, EV5, OP7.

use posthaste::event::EventRules;
use posthaste::{ErrorKind, Event, IntoEvent};
use uuid::Uuid;

fn kind(builder: posthaste::EventBuilder) -> ErrorKind {
    builder.build().unwrap_err().kind().clone()
}

fn event() -> posthaste::EventBuilder {
    Event::json("order.placed.v1", &1).unwrap()
}

#[test]
fn ev1_ids_are_version_7_and_strictly_increasing_within_a_process() {
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| (0..5000).map(|_| event().build().unwrap().id()).collect::<Vec<Uuid>>())
        })
        .collect();
    let mut all = Vec::new();
    for thread in threads {
        let ids = thread.join().unwrap();
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert!(ids.iter().all(|id| id.get_version_num() == 7));
        all.extend(ids);
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn ev1_the_caller_may_give_the_id() {
    let id = Uuid::from_u128(42);
    assert_eq!(event().id(id).build().unwrap().id(), id);
    let ulid = event().parse_id("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap().build().unwrap();
    assert_eq!(ulid.id().to_string(), "01563e3a-b5d3-d676-4c61-efb99302bd5b");
    assert_eq!(event().parse_id("nonsense").unwrap_err().kind(), &ErrorKind::InvalidId);
}

#[test]
fn ev1_a_copied_builder_makes_another_event() {
    let base = event();
    assert_ne!(base.clone().build().unwrap().id(), base.build().unwrap().id());
}

#[test]
fn ev2_exactly_one_payload() {
    assert_eq!(kind(Event::builder("a")), ErrorKind::PayloadMissing);
    assert_eq!(kind(event().bytes("text/plain", "x")), ErrorKind::PayloadAmbiguous);
    assert_eq!(Event::builder("a").json_text("{").unwrap_err().kind(), &ErrorKind::PayloadNotJson);
    // Half a surrogate pair is no character: not every database, nor every consumer, would take it.
    for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#"{"\uD83D":1}"#, r#""\\\ud800""#] {
        assert_eq!(
            Event::builder("a").json_text(text).unwrap_err().kind(),
            &ErrorKind::PayloadNotJson,
            "{text}"
        );
        let raw: Box<serde_json::value::RawValue> = serde_json::from_str(text).unwrap();
        assert_eq!(Event::json("a", &raw).unwrap_err().kind(), &ErrorKind::PayloadNotJson, "{text}");
    }
    for text in [r#""\ud83d\ude80""#, r#""\\ud800""#, r#""\u0000\uffff""#, "1e400"] {
        assert!(Event::builder("a").json_text(text).is_ok(), "{text}");
    }
    struct Unserialisable;
    impl serde::Serialize for Unserialisable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    assert_eq!(Event::json("a", &Unserialisable).unwrap_err().kind(), &ErrorKind::PayloadNotJson);
}

#[test]
fn ev3_an_event_is_changed_only_by_making_another() {
    let one = event().header("a", "1").build().unwrap();
    let two = one.to_builder().header("a", "2").build().unwrap();
    assert_eq!((one.headers()["a"].as_str(), two.headers()["a"].as_str()), ("1", "2"));
    assert_eq!(one.id(), two.id());
    let bytes = Event::builder("a").bytes("text/plain", "x").build().unwrap();
    assert_eq!(bytes.to_builder().build().unwrap(), bytes);
}

#[test]
fn ev4_every_rule_has_a_kind_that_says_field_limit_and_size() {
    assert_eq!(kind(event().topic("")), ErrorKind::Empty { field: "topic" });
    let long = |n| "é".repeat(n);
    assert!(event().topic(long(128)).build().is_ok());
    for (builder, field, limit) in [
        (event().topic(long(129)), "topic", 128),
        (event().event_type(long(129)), "event_type", 128),
        (event().aggregate(long(129), 1), "aggregate_type", 128),
        (event().aggregate("a", long(256)), "aggregate_id", 255),
        (event().namespace(long(65)), "namespace", 64),
        (event().tenant(long(129)), "tenant_id", 128),
        (event().dedupe_key(long(256)), "dedupe_key", 255),
        (event().header(long(129), "x"), "header key", 128),
    ] {
        assert_eq!(kind(builder), ErrorKind::TooLong { field, limit, size: limit + 1 });
    }
    for (builder, field) in [
        (event().topic("a\0b"), "topic"),
        (event().event_type("a\nb"), "event_type"),
        (event().aggregate("a", "a\u{7f}b"), "aggregate_id"),
        (event().namespace("a\tb"), "namespace"),
        (event().tenant("a\rb"), "tenant_id"),
        (event().dedupe_key("a\u{85}b"), "dedupe_key"),
        (event().header("a\nb", "x"), "header key"),
        (event().header("x", "a\r\nb: c"), "header value"),
    ] {
        assert!(
            matches!(kind(builder), ErrorKind::ControlCharacter { field: f, at: 1, .. } if f == field),
            "{field}"
        );
    }
    assert_eq!(kind(event().header("", "x")), ErrorKind::HeaderKeyEmpty);
    assert_eq!(kind(event().namespace("")), ErrorKind::Empty { field: "namespace" });
    assert!(matches!(
        kind(event().header("x", "y".repeat(20_000))),
        ErrorKind::TooLong { field: "headers", .. }
    ));
    assert_eq!(kind(event().version(0)), ErrorKind::OutOfRange { field: "version" });
    let huge = Event::builder("a").bytes("text/plain", vec![0; (1 << 20) + 1]);
    assert_eq!(kind(huge), ErrorKind::PayloadTooLarge { limit: 1 << 20, size: (1 << 20) + 1 });
    assert_eq!(kind(Event::builder("a").bytes("", "x")), ErrorKind::Empty { field: "content_type" });
    let far = time::macros::datetime!(0999-01-01 0:00 UTC);
    assert_eq!(kind(event().occurred_at(far)), ErrorKind::OutOfRange { field: "occurred_at" });
    assert_eq!(kind(event().available_at(far)), ErrorKind::OutOfRange { field: "available_at" });
    let ages = std::time::Duration::from_secs(200 * 366 * 86_400);
    assert_eq!(kind(event().delay(ages)), ErrorKind::OutOfRange { field: "delay" });
}

#[test]
fn ev4_messages_say_what_and_what_to_do() {
    let error = event().topic("x".repeat(200)).build().unwrap_err().to_string();
    for part in ["topic", "200", "128", "shorten"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn ev4_topics_can_be_held_to_a_strict_policy() {
    let mut rules = EventRules::default();
    rules.strict_topics = true;
    for topic in [
        "order.placed.v1",
        "a.b.c",
        "Shop.order.placed.v1",
        "shop.order.placed.1",
        "shop.order..v1",
        "shop.order.placed.v0",
        "shop.or_der.placed.v1",
        "a.b.c.d.v1",
    ] {
        let error = event().topic(topic).into_event(&rules).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TopicPolicy, "{topic}");
    }
    for topic in ["shop.order.placed.v1", "a.b-2.c.v12"] {
        assert!(event().topic(topic).into_event(&rules).is_ok(), "{topic}");
    }
}

#[test]
fn ev5_a_dedupe_key_begins_with_its_tenant() {
    for key in ["t2/1", "t1", "t1-x/1", "/t1/1"] {
        assert_eq!(kind(event().tenant("t1").dedupe_key(key)), ErrorKind::DedupeKeyTenant, "{key}");
    }
    assert!(event().tenant("t1").dedupe_key("t1/").build().is_ok());
    assert!(event().tenant("t1").dedupe_key("t1/order/1").build().is_ok());
    assert!(event().dedupe_key("anything").build().is_ok());
}

#[test]
fn op7_payloads_stay_out_of_debug_output() {
    let event = Event::json("a", &"hunter2").unwrap().build().unwrap();
    assert!(!format!("{event:?}").contains("hunter2"));
    let builder = Event::json("a", &"hunter2").unwrap();
    assert!(!format!("{builder:?}").contains("hunter2"));
}
