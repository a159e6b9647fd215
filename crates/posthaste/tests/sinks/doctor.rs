//! Sinks whose destination is not there, as an operator is told of them.
//!
//! Rows of the contract: OP10.

use std::net::TcpListener;
use std::time::Duration;

use posthaste::admin::doctor::{self, Check, Verdict};
use posthaste::sink::{FileSink, HttpSink, NatsSink, Sink};

/// A port of this machine on which nobody listens.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[track_caller]
fn assert_unreachable(finding: &doctor::Finding, name: &str) {
    assert_eq!((&finding.check, finding.verdict), (&Check::Sink(name.to_owned()), Verdict::Fault));
    let words = format!("sink {name} cannot be reached: ");
    let why = finding.found.strip_prefix(&words).unwrap_or_else(|| panic!("{finding:?}"));
    assert!(!why.is_empty() && !why.contains("s3cr3t"), "{finding:?}");
    assert!(
        finding.advice.as_deref().is_some_and(|advice| advice.contains("no event is lost")),
        "{finding:?}"
    );
}

#[tokio::test]
async fn op10_a_webhook_that_nobody_answers_is_named() {
    let url = format!("http://user:s3cr3t@127.0.0.1:{}/hook", closed_port());
    let sink = HttpSink::builder(url).build().unwrap();
    assert_unreachable(&doctor::sink("orders", &sink).await, "orders");
}

#[tokio::test]
async fn op10_a_broker_that_is_not_there_is_named() {
    let url = format!("nats://user:s3cr3t@127.0.0.1:{}", closed_port());
    let sink = NatsSink::builder(url).stream("ORDERS").connect_timeout(Duration::from_secs(2));
    // A relay may start before its broker does: then only the probe finds out.
    match sink.build().await {
        Ok(sink) => assert_unreachable(&doctor::sink("nats", &sink).await, "nats"),
        Err(error) => panic!("a sink of a broker that is down: {error}"),
    }
}

#[tokio::test]
async fn op10_a_destination_that_answers_is_told_with_its_round_trip() {
    let path =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.jsonl", uuid::Uuid::now_v7()));
    let sink: std::sync::Arc<dyn Sink> = std::sync::Arc::new(FileSink::open(&path).unwrap());
    let finding = doctor::sink("file", &*sink).await;
    assert_eq!(finding.verdict, Verdict::Ok);
    assert!(
        finding.found.starts_with("sink file is reachable (") && finding.found.ends_with(" ms)"),
        "{finding:?}"
    );
    std::fs::remove_file(path).ok();
}
