//! Bodies and queries with anything in them: an event or a filter that says what they say, or a refusal that is short, and
//! the sender's fault.

#![allow(clippy::unwrap_used, reason = "tests")]

use axum::body::Body as RawBody;
use axum::extract::{FromRequest, FromRequestParts, Request};
use posthaste_testkit::fuzz::text;
use serde_json::Value;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::CORPUS;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Demands that it is the sender's fault, and said in few words.
fn refused(problem: &Problem) {
    let (code, message) = (problem.status().as_u16(), problem.message());
    assert!(matches!(code, 400 | 413 | 415 | 422), "{code} {message}");
    assert!(!message.is_empty() && message.len() < 1500, "{} bytes: {message:.1500}", message.len());
    assert!(!message.contains(char::is_control), "{message:?}");
}

#[test]
fn op5_a_body_is_an_event_or_refused() {
    let runtime = runtime();
    CORPUS.each_input("bodies", 1_000, |input| {
        let request = Request::builder().header("content-type", "application/json");
        let request = request.body(RawBody::from(input.to_vec())).unwrap();
        let body = runtime.block_on(Body::from_request(request, &()));
        match body.and_then(|body| body.of(&EVENT)).and_then(|fields| event(&fields)) {
            Ok(event) => is_what_was_sent(&event, input),
            Err(problem) => refused(&problem),
        }
    });
}

fn is_what_was_sent(event: &Event, input: &[u8]) {
    #[derive(serde::Deserialize)]
    struct Sent<'a> {
        topic: String,
        #[serde(borrow)]
        payload: Option<&'a RawValue>,
        payload_base64: Option<String>,
        headers: Option<posthaste::event::Headers>,
        tenant_id: Option<String>,
        dedupe_key: Option<String>,
        namespace: Option<String>,
        version: Option<Value>,
    }
    let sent: Sent<'_> = serde_json::from_slice(input).unwrap();
    assert_eq!(event.topic(), sent.topic);
    match (sent.payload, &sent.payload_base64) {
        (_, Some(text)) => assert_eq!(STANDARD.encode(event.payload().bytes()), *text),
        // Null is a payload, too.
        (payload, None) => assert_eq!(event.payload().as_json(), Some(payload.map_or("null", RawValue::get))),
    }
    assert_eq!(event.headers(), &sent.headers.unwrap_or_default());
    assert_eq!(
        (event.tenant_id(), event.dedupe_key()),
        (sent.tenant_id.as_deref(), sent.dedupe_key.as_deref())
    );
    assert_eq!(event.namespace(), sent.namespace.as_deref().unwrap_or("default"));
    assert_eq!(
        event.version().to_string(),
        sent.version.map_or("1".to_owned(), |version| version.to_string())
    );
}

#[test]
fn op5_a_query_is_a_filter_and_a_page_or_refused() {
    let runtime = runtime();
    CORPUS.each_input("queries", 1_000, |input| {
        // What a request line can carry.
        let Some(uri) = text(input).and_then(|text| format!("/x?{text}").parse::<axum::http::Uri>().ok())
        else {
            return;
        };
        let (mut parts, ()) = Request::builder().uri(uri).body(()).unwrap().into_parts();
        let query = runtime.block_on(Query::from_request_parts(&mut parts, &()));
        let fields = query.and_then(|query| query.of(&[&["status"], &FILTER[..], &PAGE].concat()));
        let read = fields.and_then(|fields| {
            let page = page(&fields)?;
            assert!((1..=limits::PAGE).contains(&u64::from(page.limit)));
            filter(&fields, OffsetDateTime::UNIX_EPOCH)
        });
        match read {
            Ok(filter) => {
                for text in [&filter.topic, &filter.tenant_id, &filter.namespace].into_iter().flatten() {
                    assert!(!text.contains('\0') && text.chars().count() <= 512);
                }
            }
            Err(problem) => refused(&problem),
        }
    });
}

#[test]
fn op5_a_refusal_does_not_repeat_the_body() {
    let runtime = runtime();
    for body in [
        r#""hunter22-payload""#,
        r#"["hunter22-payload"]"#,
        r#"{"topic":"a","payload":"hunter22-payload","payload_base64":"aHVudGVyMjItcGF5bG9hZA==","content_type":"x"}"#,
        r#"{"topic":"a","payload":{"x":"hunter22-payload"}"#,
        r#"{"topic":"a","payload":1,"headers":{"a":["hunter22-payload"]}}"#,
        r#"{"topic":"a","payload":1,"headers":"hunter22-payload"}"#,
        r#"{"topic":"a","payload":1,"headers":{"a":"1","a":"hunter22-payload"}}"#,
        r#"{"topic":["hunter22-payload"],"payload":1}"#,
        r#"{"topic":"a","payload":"hunter22-payload\ud800"}"#,
        r#"{"topic":"","payload":"hunter22-payload"}"#,
    ] {
        let request = Request::builder().header("content-type", "application/json");
        let request = request.body(RawBody::from(body)).unwrap();
        let read = runtime.block_on(Body::from_request(request, &()));
        let problem = read.and_then(|body| body.of(&EVENT)).and_then(|fields| event(&fields)).unwrap_err();
        refused(&problem);
        assert!(!problem.message().contains("hunter22"), "{body}: {}", problem.message());
    }
}
