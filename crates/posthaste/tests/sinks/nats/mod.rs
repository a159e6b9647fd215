//! NATS JetStream, each test with a server of its own.

pub mod server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_trait::async_trait;
use posthaste::sink::nats::{NatsSinkBuilder, NatsStream};
use posthaste::sink::{Delivery, Format, NatsSink, Outcome, Sink};
use posthaste::{Event, testing};

use super::conformance::conforms;
use super::destination::*;
use server::Server;

/// The stream of these tests.
const STREAM: &str = "EVENTS";

/// A server with JetStream whose stream the sink makes.
pub struct Broker(Server);

impl Broker {
    fn builder(&self) -> NatsSinkBuilder {
        builder(&self.0).create_stream(NatsStream::new(STREAM).subject("events.>"))
    }
}

fn builder(server: &Server) -> NatsSinkBuilder {
    NatsSink::builder(server.url())
        .ack_timeout(Duration::from_secs(3))
        .connect_timeout(Duration::from_secs(2))
}

/// A stream that the test makes itself.
async fn stream(server: &Server, config: Config) {
    server.jetstream().await.create_stream(config).await.unwrap();
}

fn config(name: &str, subject: &str) -> Config {
    Config { name: name.to_owned(), subjects: vec![subject.to_owned()], ..Config::default() }
}

#[async_trait]
impl Destination for Broker {
    const DEDUPES: bool = true;

    async fn start() -> Self {
        Self(Server::start().await)
    }

    async fn sink(&self, format: Format) -> Arc<dyn Sink> {
        Arc::new(self.builder().envelope(format).build().await.unwrap())
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let Some(stream) = self.0.stream(STREAM).await else { return Vec::new() };
        let state = &stream.cached_info().state;
        let mut arrived = Vec::new();
        for sequence in 1..=state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let headers: BTreeMap<String, String> = message
                .headers
                .iter()
                .map(|(name, values)| (name.to_string().to_lowercase(), values[0].to_string()))
                .collect();
            arrived.push(Arrived {
                id: headers["nats-msg-id"].clone(),
                place: message.subject.to_string(),
                headers,
                body: message.payload.to_vec(),
            });
        }
        arrived
    }

    async fn stop(&mut self) {
        self.0.stop();
    }

    async fn start_again(&mut self) {
        self.0.start_again().await;
    }
}

impl Refuses for Broker {
    fn refused() -> Delivery {
        delivery(0).with_destination("events.* for all")
    }

    /// A mebibyte, headers included, is what a server takes.
    fn oversized() -> Delivery {
        let event = Event::builder("events.large").bytes("text/plain", vec![b'x'; 1024 * 1024 - 100]);
        testing::delivery(event.build().unwrap())
    }
}

#[async_trait]
impl Hangs for Broker {
    async fn hang(&mut self) {
        self.0.freeze().await;
    }

    async fn answer_again(&mut self) {
        self.0.thaw();
    }
}

conforms!(crate::nats::Broker:
    si1_what_is_delivered_is_there,
    si2_a_batch_is_answered_one_by_one_and_in_order,
    si3_metadata_and_id_arrive,
    si3_every_format_arrives,
    si3_anything_in_an_event_arrives,
    si3_a_second_try_carries_the_same_id,
    si2_one_that_is_refused_does_not_hurt_the_others,
    rt3_a_destination_that_is_gone_is_unavailable,
    re11_a_relay_outlives_its_destination,
    sm1_a_stream_keeps_its_order_through_an_outage,
    rt3_a_destination_that_hangs_is_unavailable,
    re8_a_publish_that_is_dropped_leaves_the_sink_whole,
);

#[tokio::test(flavor = "multi_thread")]
async fn si2_the_subject_is_the_destination() {
    let broker = Broker::start().await;
    let sink = broker.sink(Format::CloudEvents).await;
    let batch = [delivery(1), delivery(2).with_destination("events.größe.42")];
    assert_eq!(sink.publish(&batch).await, [Outcome::Delivered, Outcome::Delivered]);
    let places: Vec<String> = broker.arrived().await.into_iter().map(|one| one.place).collect();
    assert_eq!(places, ["events.order.placed", "events.größe.42"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn si1_the_stream_is_made_on_request_and_again_when_it_is_gone() {
    let server = Server::start().await;
    let wanted = NatsStream::new("MADE")
        .subject("events.>")
        .subject("more.*")
        .duplicate_window(Duration::from_secs(30))
        .max_age(Duration::from_secs(3600))
        .max_bytes(1 << 20);
    let sink = builder(&server).create_stream(wanted).build().await.unwrap();
    assert_eq!(sink.publish(&deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);
    let made = server.stream("MADE").await.unwrap().cached_info().config.clone();
    assert_eq!(made.subjects, ["events.>", "more.*"]);
    assert_eq!((made.duplicate_window, made.max_age), (Duration::from_secs(30), Duration::from_secs(3600)));
    assert_eq!((made.max_bytes, made.num_replicas), (1 << 20, 1));

    // Another sink leaves it as it is.
    let other =
        builder(&server).create_stream(NatsStream::new("MADE").subject("other")).build().await.unwrap();
    assert_eq!(other.publish(&deliveries(1)).await, [Outcome::Delivered]);
    assert_eq!(server.stream("MADE").await.unwrap().cached_info().config, made);

    server.jetstream().await.delete_stream("MADE").await.unwrap();
    let outcomes = sink.publish(&deliveries(2)).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    assert_eq!(sink.publish(&deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rt3_a_missing_stream_is_the_operators_matter() {
    let server = Server::start().await;
    let said = |outcomes: &[Outcome], what: &str| match &outcomes[0] {
        Outcome::Unavailable { error } => assert!(error.contains(what), "{error}"),
        other => panic!("{other:?}"),
    };
    // No stream at all.
    let any = builder(&server).build().await.unwrap();
    said(&any.publish(&deliveries(2)).await, "no stream at all: create one");
    assert!(any.probe().await.unwrap_err().contains("nats stream add"));
    // Streams, but not for this subject: the event's matter.
    stream(&server, config("OTHER", "other.>")).await;
    let outcomes = any.publish(&deliveries(2)).await;
    assert!(outcomes.iter().all(|one| matches!(one, Outcome::Retry { .. })), "{outcomes:?}");
    assert_eq!(any.probe().await, Ok(()));
    let both = [delivery(1).with_destination("other.x"), delivery(2)];
    let outcomes = any.publish(&both).await;
    assert!(matches!(outcomes[..], [Outcome::Delivered, Outcome::Retry { .. }]), "{outcomes:?}");

    // The sink's own stream is missing.
    let own = builder(&server).stream(STREAM).build().await.unwrap();
    said(&own.publish(&deliveries(2)).await, "there is no stream \"EVENTS\": create it");
    assert!(own.probe().await.is_err());
    // Another stream's subject.
    let outcomes = own.publish(&[delivery(1).with_destination("other.x")]).await;
    assert!(matches!(outcomes[..], [Outcome::Retry { .. }]), "{outcomes:?}");
    // It is made at last.
    stream(&server, config(STREAM, "events.>")).await;
    assert_eq!(own.publish(&deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);
    assert_eq!(own.probe().await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn rt3_what_the_stream_refuses() {
    let server = Server::start().await;
    let small = Config { max_message_size: 1000, ..config("SMALL", "small") };
    stream(&server, small).await;
    let full = Config { max_messages: 2, discard: DiscardPolicy::New, ..config("FULL", "full") };
    stream(&server, full).await;

    let any = builder(&server).build().await.unwrap();
    let large = Event::builder("small").bytes("text/plain", vec![b'x'; 1000]).build().unwrap();
    let batch = [testing::delivery(large), delivery(1).with_destination("small")];
    let outcomes = any.publish(&batch).await;
    assert!(matches!(outcomes[..], [Outcome::Reject { .. }, Outcome::Delivered]), "{outcomes:?}");

    // A full stream among several is its events' trouble; the sink's only one is the sink's.
    let batch: Vec<Delivery> = deliveries(3).into_iter().map(|one| one.with_destination("full")).collect();
    let outcomes = any.publish(&batch).await;
    assert!(
        matches!(outcomes[..], [Outcome::Delivered, Outcome::Delivered, Outcome::Retry { .. }]),
        "{outcomes:?}"
    );
    let own = builder(&server).stream("FULL").build().await.unwrap();
    let outcomes = own.publish(&[delivery(9).with_destination("full")]).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rt3_a_server_without_jetstream_is_unavailable() {
    let server = Server::configured("").await;
    let sink = builder(&server).build().await.unwrap();
    let outcomes = sink.publish(&deliveries(2)).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    assert!(sink.probe().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn re11_a_server_that_is_not_there_yet_is_waited_for() {
    let mut server = Server::start().await;
    server.stop();
    let begin = Instant::now();
    let sink =
        builder(&server).create_stream(NatsStream::new(STREAM).subject("events.>")).build().await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(20));
    let outcomes = sink.publish(&deliveries(2)).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    server.start_again().await;
    assert_eq!(publish_when_back(&sink, &deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);
}

#[tokio::test(flavor = "multi_thread")]
async fn si1_a_user_who_may_only_publish_can() {
    let server = Server::configured(
        r#"
        jetstream { store_dir: "HOME" }
        authorization { users = [
            { user: admin, password: admin }
            { user: narrow, password: hunter22,
              permissions: { publish: ["events.>", "nowhere"], subscribe: ["_INBOX.>"] } }
        ] }
        no_auth_user: admin
        "#,
    )
    .await;
    stream(&server, config(STREAM, "events.>")).await;
    let sink = builder(&server).user("narrow", "hunter22").stream(STREAM).build().await.unwrap();
    assert_eq!(sink.publish(&deliveries(2)).await, [Outcome::Delivered, Outcome::Delivered]);
    // What it may not publish is no outage, and neither is a question that it may not ask.
    let outcomes = sink.publish(&[delivery(1).with_destination("forbidden")]).await;
    let [Outcome::Retry { error, .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.to_lowercase().contains("permissions violation"), "{error}");
    assert_eq!(sink.probe().await, Ok(()));

    let stranger = builder(&server).user("narrow", "wrong").build().await.unwrap();
    let outcomes = stranger.publish(&deliveries(1)).await;
    let [Outcome::Unavailable { error }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert!(error.contains("authorization violation") && !error.contains("wrong"), "{error}");
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    for url in ["nats://user:hunter22@host:port", "http://hunter22@host"] {
        let error = NatsSink::builder(url).build().await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter22"), "{error}");
    }
    let zero = NatsSink::builder("nats://127.0.0.1:1").ack_timeout(Duration::ZERO);
    assert!(zero.build().await.is_err());
    for name in ["", "a b", "a.b", "a*", "a>", "a/b"] {
        assert!(NatsSink::builder("nats://127.0.0.1:1").stream(name).build().await.is_err(), "{name}");
    }
    assert!(NatsSink::builder("nats://127.0.0.1:1").credentials_file("/nowhere").build().await.is_err());
}
