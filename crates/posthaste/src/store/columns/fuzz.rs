//! Rows that anybody may have written by hand: each is an event, or cannot be read and says why without its values.

use posthaste_testkit::fuzz::text;

use super::*;
use crate::CORPUS;

/// A seed is the headers, a line with `---`, and the payload.
#[test]
fn st7_a_row_is_an_event_or_says_why_it_cannot_be_read() {
    CORPUS.each_input("stored", 13_000, |input| {
        let at = input.windows(5).position(|part| part == b"\n---\n");
        let (headers, payload) = at.map_or((input, &b"1"[..]), |at| (&input[..at], &input[at + 5..]));
        let Some(headers) = text(headers) else { return };
        let columns = |payload: Option<Vec<u8>>, payload_bytes: Option<Vec<u8>>| StoredColumns {
            id: Uuid::nil(),
            topic: headers,
            event_type: Some(headers),
            aggregate_type: None,
            aggregate_id: Some(""),
            namespace: "",
            tenant_id: Some(headers),
            dedupe_key: None,
            content_type: payload_bytes.as_ref().map(|_| headers.to_owned()),
            headers: Some(headers.to_owned()),
            payload,
            payload_bytes,
            version: i32::from(input.len() as u16) - 1,
            occurred_at: OffsetDateTime::UNIX_EPOCH,
            available_at: OffsetDateTime::UNIX_EPOCH,
        };
        let payload = || Some(payload.to_vec());
        for (json, bytes) in [(payload(), None), (None, payload())] {
            match columns(json, bytes).into_event() {
                Ok(event) => is_like_its_row(&event, headers, &payload().unwrap_or_default()),
                Err(reason) => {
                    assert!(reason.starts_with("undecodable: "), "{reason}");
                    // Places and counts at most: no header's value and nothing of the payload.
                    assert!(reason.len() < 100, "{reason}");
                }
            }
        }
        assert!(
            columns(None, None).into_event().is_err() && columns(payload(), payload()).into_event().is_err()
        );
    });
}

/// What can be read is what is in the row.
fn is_like_its_row(event: &Event, headers: &str, payload: &[u8]) {
    assert_eq!(event.payload.bytes(), payload);
    let stored = headers_text(&event.headers).unwrap_or_else(|| "{}".to_owned());
    assert_eq!(serde_json::from_str::<Headers>(&stored).ok(), serde_json::from_str::<Headers>(headers).ok());
}

/// What the reader of JSON would say of a value that is no string.
#[test]
fn st7_a_header_that_is_no_string_is_not_repeated() {
    for headers in
        [r#"{"pin": 271828182}"#, r#"{"pin": 2.71828}"#, r#""271828182""#, r#"{"a": ["271828182"]}"#]
    {
        let error = serde_json::from_str::<Headers>(headers).map_err(|error| not_headers(&error));
        let said = error.err().unwrap_or_default();
        assert!(
            said.contains("line 1, column ") && !said.contains("2718") && !said.contains("2.7"),
            "{said}"
        );
    }
}
