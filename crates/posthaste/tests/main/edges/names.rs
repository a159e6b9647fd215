//! Names of tables, which are the only text that is ever put into SQL, and ids.

use posthaste::event::parse_id;
use posthaste::{ErrorKind, TableName};
use posthaste_testkit::fuzz::text;

use crate::harness::CORPUS;

#[test]
fn st2_a_name_is_plain_or_refused() {
    CORPUS.each_input("names", 30_000, |input| {
        let Some(text) = text(input) else { return };
        let is_plain = |part: &str| {
            let mut bytes = part.bytes();
            bytes.next().is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
                && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
                && part.len() <= 40
        };
        let parts: Vec<&str> = text.split('.').collect();
        match text.parse::<TableName>() {
            Ok(name) => {
                assert!(parts.len() <= 2 && parts.iter().all(|part| is_plain(part)), "{text:?}");
                assert_eq!(name.to_string(), text);
                assert_eq!(name.name(), parts[parts.len() - 1]);
                assert_eq!(name.schema().is_some(), parts.len() == 2);
            }
            Err(error) => {
                assert!(parts.len() > 2 || !parts.iter().all(|part| is_plain(part)), "{text:?}");
                assert_eq!(error.kind(), &ErrorKind::InvalidTableName);
                assert!(error.message().len() < 1200, "{} bytes", error.message().len());
                assert!(!error.message().contains(char::is_control), "{error}");
            }
        }
    });
}

#[test]
fn ev1_an_id_is_128_bits_or_refused() {
    CORPUS.each_input("names", 40_000, |input| {
        let Some(text) = text(input) else { return };
        match parse_id(text) {
            Ok(id) => {
                assert!(text.len() <= 45, "{text:?}");
                assert_eq!(parse_id(&id.to_string()).unwrap(), id);
            }
            Err(error) => {
                assert_eq!(error.kind(), &ErrorKind::InvalidId);
                assert!(error.message().len() < 1200, "{} bytes", error.message().len());
            }
        }
    });
}
