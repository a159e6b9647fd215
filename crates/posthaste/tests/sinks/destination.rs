//! What the suite must know of a destination.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use posthaste::sink::{Delivery, Format, Outcome, Sink};
use posthaste::{Event, testing};
use serde_json::Value;

/// How long anything that must happen may take on a busy machine.
pub const MINUTE: Duration = Duration::from_secs(60);

/// A real destination that a test has for itself.
#[async_trait]
pub trait Destination: Send + Sync + Sized {
    /// Whether it drops a message whose id it has had.
    const DEDUPES: bool;

    /// One that runs.
    async fn start() -> Self;

    /// A sink for it, with short timeouts.
    async fn sink(&self, format: Format) -> Arc<dyn Sink>;

    /// What it has, in the order of its arrival.
    async fn arrived(&self) -> Vec<Arrived>;

    /// It is gone: nothing can be delivered.
    async fn stop(&mut self);

    /// It is back, with what it had.
    async fn start_again(&mut self);
}

/// A destination that can refuse a message.
pub trait Refuses: Destination {
    /// An event that it will never take.
    fn refused() -> Delivery;
    /// An event that is larger than it takes.
    fn oversized() -> Delivery;
}

/// A destination that can be made to accept without answering.
#[async_trait]
pub trait Hangs: Destination {
    /// It no longer answers.
    async fn hang(&mut self);
    /// It answers again.
    async fn answer_again(&mut self);
}

/// A message as the destination has it.
#[derive(Debug, Clone)]
pub struct Arrived {
    /// The id by which it, or its consumers, dedupe.
    pub id: String,
    /// Where in the destination it went; empty where there is but one place.
    pub place: String,
    /// Its headers, names in lower case; none where it has only a body.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Arrived {
    /// A line of JSON, in whichever format.
    pub fn line(line: &str) -> Self {
        let document: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let id = document["id"].as_str().or(document["messageId"].as_str()).unwrap_or_default().to_owned();
        Self { id, place: String::new(), headers: BTreeMap::new(), body: line.as_bytes().to_vec() }
    }

    /// The body as a JSON document.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// A CloudEvents attribute, of either mode.
    pub fn attribute(&self, name: &str) -> Option<String> {
        if let Some(value) = self.headers.get(&format!("ce-{name}")) {
            return Some(value.clone());
        }
        let document: Value = serde_json::from_slice(&self.body).ok()?;
        match document.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

/// An event that every destination takes.
pub fn delivery(number: usize) -> Delivery {
    let event = Event::builder("events.order.placed")
        .json_text(format!(r#"{{ "number":{number}, "total": 9.900 }}"#))
        .unwrap()
        .event_type("placed")
        .aggregate("order", number)
        .tenant("acme")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .header("country", "Österreich");
    testing::delivery(event.build().unwrap())
}

pub fn deliveries(count: usize) -> Vec<Delivery> {
    (0..count).map(delivery).collect()
}

pub fn ids(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| delivery.event.id().to_string()).collect()
}

pub fn is_unavailable(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unavailable { .. })
}

/// Publishes again and again while the destination is unavailable, as a relay does; the first other answer.
pub async fn publish_when_back(sink: &dyn Sink, batch: &[Delivery]) -> Vec<Outcome> {
    let trying = async {
        loop {
            let outcomes = sink.publish(batch).await;
            if !outcomes.iter().any(is_unavailable) {
                return outcomes;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MINUTE, trying).await.expect("it does not come back")
}
