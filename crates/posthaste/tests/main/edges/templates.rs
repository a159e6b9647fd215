//! Templates: whatever they are filled with, no destination is empty, steers a terminal, or is everybody's.

use posthaste::{ErrorKind, Event, TopicMap};
use posthaste_testkit::fuzz::text;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::harness::CORPUS;

const FIELDS: [&str; 7] =
    ["topic", "event_type", "aggregate_type", "aggregate_id", "namespace", "tenant_id", "version"];

/// A seed is a template, and on the lines behind it the values of an event.
#[test]
fn di4_a_template_is_refused_or_makes_destinations() {
    CORPUS.each_input("templates", 25_000, |input| {
        let Some(text) = text(input) else { return };
        let mut lines = text.split('\n');
        let template = lines.next().unwrap();
        let map = match TopicMap::template(template) {
            Ok(map) => map,
            Err(error) => {
                assert_eq!(error.kind(), &ErrorKind::InvalidSetting);
                assert!(error.message().starts_with("the topic template \""), "{error}");
                return;
            }
        };
        let mut value = || lines.next().unwrap_or_default();
        let mut event = Event::json(value(), &1).unwrap();
        event = event.event_type(value()).aggregate(value(), value()).namespace(value()).tenant(value());
        let Ok(event) = event.build() else { return };
        match map.map(&event) {
            Ok(destination) => {
                assert!(!destination.is_empty());
                assert!(!destination.chars().any(char::is_control), "{destination:?}");
                let levels = || destination.split(['.', '/']);
                assert!(!levels().any(|level| matches!(level, "*" | ">" | "+" | "#")), "{destination:?}");
                if !template.contains(['{', '}']) {
                    assert_eq!(&*destination, template);
                }
            }
            Err(reason) => assert!(!reason.is_empty()),
        }
    });
}

/// A part of a template: some text, or the number of a field.
type Part = Result<String, usize>;

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let text = "[a-z{}.\\-é]{1,6}".prop_map(Ok);
    vec(prop_oneof![text, (0..FIELDS.len()).prop_map(Err)], 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn di4_a_template_is_filled_with_the_fields_that_it_names(parts in parts(), version in 1..=u32::MAX >> 1) {
        let event = Event::json("t-o", &1).unwrap();
        let event = event.event_type("e-t").aggregate("a-t", "a-i").namespace("n-s").tenant("t-i");
        let event = event.version(version).build().unwrap();
        let version = version.to_string();
        let values = ["t-o", "e-t", "a-t", "a-i", "n-s", "t-i", &version];
        let written = |part: &Part| match part {
            Ok(text) => text.replace('{', "{{").replace('}', "}}"),
            Err(field) => format!("{{{}}}", FIELDS[*field]),
        };
        let filled = |part: &Part| part.clone().unwrap_or_else(|field| values[field].to_owned());
        let map = TopicMap::template(&parts.iter().map(written).collect::<String>()).unwrap();
        let expected: String = parts.iter().map(filled).collect();
        let filled = map.map(&event);
        prop_assert_eq!(filled.as_deref(), Ok(expected.as_str()));
    }
}
