//! A test kit: an outbox and a sink in memory, with assertions. No server is needed.
//!
//! ```
//! use posthaste::{Backend, Enqueue, Event, Outbox, testing};
//! use serde_json::json;
//!
//! // The service's own code takes any outbox and its transaction …
//! async fn place_order<B: Backend>(outbox: &Outbox<B>, tx: &mut impl Enqueue<B>) -> posthaste::Result<()> {
//!     outbox.enqueue(tx, Event::json("order.placed.v1", &json!({"total": "9.90"}))?.aggregate("order", 42)).await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
//! // … and its test gives it this one.
//! let outbox = testing::outbox();
//! let mut tx = outbox.begin();
//! place_order(&outbox, &mut tx).await?;
//! tx.commit();
//!
//! outbox.assert_enqueued("order.placed.v1").with_aggregate("order", 42).with_json(json!({"total": "9.90"})).once();
//!
//! // What its handlers or brokers would see:
//! let sink = testing::sink();
//! outbox.deliver(&sink).await?;
//! assert_eq!(sink.delivered().len(), 1);
//! # Ok(()) }
//! ```

#![allow(clippy::panic, reason = "assertions panic: that is how a test fails")]

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::error::Result;
use crate::event::Event;
use crate::produce::{Memory, Outbox};
use crate::sink::{Delivery, MemorySink, Outcome, Sink};
use crate::store::{Claim, Filter, Keep, Page, Settlement, Store, Verdict, WorkerId};

/// How long a failed delivery waits where the sink does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A new outbox in memory.
pub fn outbox() -> TestOutbox {
    // An outbox in memory has nothing that could fail to build.
    match Outbox::memory().build() {
        Ok(outbox) => TestOutbox { outbox },
        Err(error) => panic!("an outbox in memory: {error}"),
    }
}

/// The first attempt at delivering this event, for tests of a sink: from the table `outbox`, with sequence 1.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
/// use posthaste::sink::{Outcome, Sink};
/// use posthaste::{Event, testing};
///
/// let delivery = testing::delivery(Event::json("order.placed.v1", &1)?.build()?);
/// assert_eq!(testing::sink().publish(&[delivery]).await, [Outcome::Delivered]);
/// # Ok(()) }
/// ```
pub fn delivery(event: Event) -> Delivery {
    Delivery {
        event: Arc::new(event),
        table: "outbox".into(),
        sequence: 1,
        attempt: 1,
        created_at: time::OffsetDateTime::now_utc(),
        destination: None,
    }
}

/// A new sink in memory that accepts everything.
pub fn sink() -> MemorySink {
    MemorySink::new()
}

/// An [`Outbox`] in memory that can be asked what was enqueued. Only what was committed counts.
#[derive(Debug, Clone)]
pub struct TestOutbox {
    outbox: Outbox<Memory>,
}

impl Deref for TestOutbox {
    type Target = Outbox<Memory>;

    fn deref(&self) -> &Outbox<Memory> {
        &self.outbox
    }
}

impl From<Outbox<Memory>> for TestOutbox {
    fn from(outbox: Outbox<Memory>) -> Self {
        Self { outbox }
    }
}

impl TestOutbox {
    /// Every committed event, in the order of their writing.
    pub fn enqueued(&self) -> Vec<Event> {
        self.store().events()
    }

    /// That an event of this topic was enqueued; what it answers with can be narrowed down further.
    #[track_caller]
    pub fn assert_enqueued(&self, topic: &str) -> Enqueuings {
        let (fitting, others): (Vec<Event>, Vec<Event>) =
            self.enqueued().into_iter().partition(|event| event.topic() == topic);
        if fitting.is_empty() {
            let topics: Vec<&str> = others.iter().map(Event::topic).collect();
            panic!("no event of topic {topic:?} was enqueued; enqueued were {topics:?}");
        }
        Enqueuings { wanted: format!("topic {topic:?}"), fitting }
    }

    /// That no event of this topic was enqueued.
    #[track_caller]
    pub fn assert_not_enqueued(&self, topic: &str) {
        let count = self.enqueued().iter().filter(|event| event.topic() == topic).count();
        assert!(count == 0, "{count} events of topic {topic:?} were enqueued");
    }

    /// That no event at all was enqueued.
    #[track_caller]
    pub fn assert_nothing_enqueued(&self) {
        let topics: Vec<String> = self.enqueued().iter().map(|event| event.topic().to_owned()).collect();
        assert!(topics.is_empty(), "enqueued were {topics:?}");
    }

    /// Moves the clock forward, so that delays and retries come due without waiting.
    pub fn advance(&self, by: Duration) {
        self.store().advance(by);
    }

    /// Delivers every event that is due to a sink, once, and settles what it answers. Answers with how many
    /// deliveries were attempted; failed ones come due again after a while: see [`advance`](Self::advance).
    pub async fn deliver(&self, sink: &impl Sink) -> Result<usize> {
        let table: Arc<str> = self.table().to_string().into();
        let claim = Claim::by(WorkerId::unique()).limit(u32::MAX);
        let claimed = self.store().claim(&claim).await?.events;
        let (batch, leases): (Vec<Delivery>, Vec<_>) = claimed
            .into_iter()
            .map(|claimed| {
                let (sequence, attempt) = (claimed.lease.sequence(), claimed.lease.attempt());
                let table = Arc::clone(&table);
                let delivery = Delivery {
                    event: claimed.event,
                    table,
                    sequence,
                    attempt,
                    created_at: claimed.created_at,
                    destination: None,
                };
                (delivery, claimed.lease)
            })
            .unzip();
        let outcomes = sink.publish(&batch).await;
        assert!(
            outcomes.len() == batch.len(),
            "the sink answered {} of {} deliveries",
            outcomes.len(),
            batch.len()
        );
        let settlements: Vec<Settlement> = leases
            .into_iter()
            .zip(outcomes)
            .map(|(lease, outcome)| Settlement { lease, verdict: verdict(outcome) })
            .collect();
        self.store().settle(&settlements, Keep::Delivered).await?;
        Ok(batch.len())
    }

    /// The dead letters, oldest first: topic and reason.
    pub async fn dead(&self) -> Result<Vec<(String, String)>> {
        let records = self.store().list(&Filter::dead(), Page::first(u32::MAX)).await?;
        let read = |record: crate::store::Record| {
            let topic = record.event.map(|event| event.topic().to_owned()).unwrap_or_default();
            (topic, record.last_error.unwrap_or_default())
        };
        Ok(records.into_iter().map(read).collect())
    }
}

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Delivered => Verdict::Delivered,
        Outcome::Retry { after, error } => Verdict::Retry { after: after.unwrap_or(RETRY_AFTER), error },
        Outcome::Reject { error } => Verdict::Dead { error },
        Outcome::Unavailable { .. } => Verdict::Released { after: Duration::ZERO },
    }
}

/// Enqueued events that fit what has been asked for so far; each further question must leave at least one.
#[derive(Debug)]
pub struct Enqueuings {
    wanted: String,
    fitting: Vec<Event>,
}

impl Enqueuings {
    /// With this JSON payload; formatting and the order of keys do not matter.
    #[track_caller]
    pub fn with_json(self, expected: Value) -> Self {
        let found: Vec<Option<Value>> = self.fitting.iter().map(json_of).collect();
        let seen = found.iter().map(|value| value.as_ref().map_or("(not JSON)".to_owned(), Value::to_string));
        let seen = seen.collect::<Vec<_>>().join(", ");
        self.narrow(&format!("payload {expected}"), &seen, |event| json_of(event).as_ref() == Some(&expected))
    }

    /// With these bytes as payload.
    #[track_caller]
    pub fn with_bytes(self, expected: &[u8]) -> Self {
        let seen = format!(
            "payloads of {:?} bytes",
            self.fitting.iter().map(|e| e.payload().bytes().len()).collect::<Vec<_>>()
        );
        self.narrow("these bytes as payload", &seen, |event| event.payload().bytes() == expected)
    }

    /// Of this aggregate.
    #[track_caller]
    pub fn with_aggregate(self, aggregate_type: &str, aggregate_id: impl ToString) -> Self {
        let id = aggregate_id.to_string();
        let seen = format!(
            "{:?}",
            self.fitting.iter().map(|e| (e.aggregate_type(), e.aggregate_id())).collect::<Vec<_>>()
        );
        self.narrow(&format!("aggregate {aggregate_type:?} {id:?}"), &seen, |event| {
            (event.aggregate_type(), event.aggregate_id()) == (Some(aggregate_type), Some(&id))
        })
    }

    /// With this header.
    #[track_caller]
    pub fn with_header(self, name: &str, value: &str) -> Self {
        let seen = format!("{:?}", self.fitting.iter().map(Event::headers).collect::<Vec<_>>());
        self.narrow(&format!("header {name}: {value}"), &seen, |event| {
            event.headers().get(name).is_some_and(|found| found == value)
        })
    }

    /// Of this tenant.
    #[track_caller]
    pub fn with_tenant(self, tenant: &str) -> Self {
        let seen = format!("{:?}", self.fitting.iter().map(Event::tenant_id).collect::<Vec<_>>());
        self.narrow(&format!("tenant {tenant:?}"), &seen, |event| event.tenant_id() == Some(tenant))
    }

    /// That it was exactly one.
    #[track_caller]
    pub fn once(self) -> Event {
        let mut events = self.times(1);
        events.remove(0)
    }

    /// That it was exactly this many.
    #[track_caller]
    pub fn times(self, expected: usize) -> Vec<Event> {
        let found = self.fitting.len();
        assert!(found == expected, "{found} events with {} were enqueued, expected {expected}", self.wanted);
        self.fitting
    }

    /// The events, for assertions of one's own.
    pub fn events(self) -> Vec<Event> {
        self.fitting
    }

    #[track_caller]
    fn narrow(mut self, wanted: &str, seen: &str, fits: impl Fn(&Event) -> bool) -> Self {
        self.fitting.retain(fits);
        assert!(!self.fitting.is_empty(), "no event with {} has {wanted}; seen: {seen}", self.wanted);
        self.wanted = format!("{}, {wanted}", self.wanted);
        self
    }
}

fn json_of(event: &Event) -> Option<Value> {
    serde_json::from_str(event.payload().as_json()?).ok()
}
