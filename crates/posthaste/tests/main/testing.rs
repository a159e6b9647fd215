//! The test kit: it sees what was committed, and its assertions can fail.
//!
//! Rows of the contract: EN7.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use posthaste::sink::{MemorySink, Outcome};
use posthaste::testing::{self, TestOutbox};
use posthaste::{Event, Inbox};
use serde_json::json;

async fn place(outbox: &TestOutbox, total: &str) {
    let mut tx = outbox.begin();
    let event = Event::json("order.placed.v1", &json!({"total": total})).unwrap();
    outbox.enqueue(&mut tx, event.aggregate("order", 1).tenant("t").header("h", "v")).await.unwrap();
    tx.commit();
}

/// The message an assertion fails with.
fn failure<T>(assertion: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(assertion)).err().expect("the assertion should have failed");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[tokio::test]
async fn en7_assertions_see_what_was_committed() {
    let outbox = testing::outbox();
    outbox.assert_nothing_enqueued();
    place(&outbox, "9.90").await;
    place(&outbox, "1.00").await;
    let found = outbox
        .assert_enqueued("order.placed.v1")
        .with_aggregate("order", 1)
        .with_tenant("t")
        .with_header("h", "v");
    let event = found.with_json(json!({"total": "9.90"})).once();
    assert_eq!(event.payload().bytes(), br#"{"total":"9.90"}"#);
    assert_eq!(outbox.assert_enqueued("order.placed.v1").times(2).len(), 2);
    outbox.assert_not_enqueued("order.paid.v1");

    let mut tx = outbox.begin();
    outbox.enqueue(&mut tx, Event::json("order.paid.v1", &1).unwrap()).await.unwrap();
    tx.rollback();
    outbox.assert_not_enqueued("order.paid.v1");
}

#[tokio::test]
async fn en7_assertions_fail_with_what_was_there_instead() {
    let outbox = testing::outbox();
    place(&outbox, "9.90").await;
    for (message, part) in [
        (failure(|| outbox.assert_enqueued("order.paid.v1")), "order.placed.v1"),
        (failure(|| outbox.assert_enqueued("order.placed.v1").with_json(json!({"total": 1}))), "9.90"),
        (failure(|| outbox.assert_enqueued("order.placed.v1").with_aggregate("order", 2)), "Some(\"1\")"),
        (failure(|| outbox.assert_enqueued("order.placed.v1").with_header("h", "w")), "\"v\""),
        (failure(|| outbox.assert_enqueued("order.placed.v1").with_tenant("u")), "\"t\""),
        (failure(|| outbox.assert_enqueued("order.placed.v1").with_bytes(b"x")), "[16]"),
        (failure(|| outbox.assert_enqueued("order.placed.v1").times(2)), "expected 2"),
        (failure(|| outbox.assert_not_enqueued("order.placed.v1")), "1 events"),
        (failure(|| outbox.assert_nothing_enqueued()), "order.placed.v1"),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn en7_events_are_delivered_retried_and_buried() {
    let outbox = testing::outbox();
    place(&outbox, "9.90").await;
    let sink = MemorySink::answering(|delivery| match delivery.attempt {
        1 => Outcome::Retry { after: Some(Duration::from_secs(60)), error: "not yet".into() },
        2 => Outcome::Unavailable { error: "down".into() },
        _ => Outcome::Delivered,
    });
    assert_eq!(outbox.deliver(&sink).await.unwrap(), 1);
    assert_eq!(outbox.deliver(&sink).await.unwrap(), 0, "it waits");
    outbox.advance(Duration::from_secs(61));
    assert_eq!(outbox.deliver(&sink).await.unwrap(), 1);
    assert_eq!(sink.refused().iter().map(|d| d.attempt).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(outbox.deliver(&sink).await.unwrap(), 1);
    assert_eq!(sink.refused().last().map(|d| d.attempt), Some(2), "an outage spends no attempt");

    let accepting = testing::sink();
    outbox.deliver(&accepting).await.unwrap();
    assert_eq!(accepting.delivered().len(), 1);
    assert_eq!(accepting.delivered()[0].event.topic(), "order.placed.v1");
    assert_eq!(outbox.deliver(&accepting).await.unwrap(), 0);

    place(&outbox, "1.00").await;
    let rejecting = MemorySink::answering(|_| Outcome::Reject { error: "no such customer".into() });
    outbox.deliver(&rejecting).await.unwrap();
    assert_eq!(outbox.dead().await.unwrap(), [("order.placed.v1".to_owned(), "no such customer".to_owned())]);
}

#[tokio::test]
async fn en7_the_inbox_works_in_memory() {
    let (outbox, inbox) = (testing::outbox(), Inbox::memory());
    let id = uuid::Uuid::now_v7();
    let mut tx = outbox.begin();
    assert!(inbox.first(&mut tx, "billing", id).await.unwrap());
    tx.commit();
    let mut tx = outbox.begin();
    assert!(!inbox.first(&mut tx, "billing", id).await.unwrap());
}

#[tokio::test]
async fn en7_one_transaction_writes_to_any_number_of_outboxes() {
    let (orders, billing) = (testing::outbox(), testing::outbox());
    let mut tx = orders.begin();
    orders.enqueue(&mut tx, Event::json("order.placed.v1", &1).unwrap().dedupe_key("k")).await.unwrap();
    let answer =
        billing.enqueue(&mut tx, Event::json("order.placed.v1", &1).unwrap().dedupe_key("k")).await.unwrap();
    assert!(!answer.duplicate, "another outbox");
    billing.enqueue(&mut tx, Event::json("bill.sent.v1", &1).unwrap()).await.unwrap();
    tx.commit();
    orders.assert_enqueued("order.placed.v1").once();
    orders.assert_not_enqueued("bill.sent.v1");
    billing.assert_enqueued("bill.sent.v1").once();
}
