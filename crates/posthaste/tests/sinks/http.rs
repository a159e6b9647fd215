//! Webhooks, received by a real server.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use posthaste::sink::http::HttpSinkBuilder;
use posthaste::sink::{Delivery, Format, HttpSink, Outcome, Sink};
use posthaste::{Event, testing};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::conformance::conforms;
use super::destination::*;

/// Bytes of a request that the server takes.
const LIMIT: usize = 64 * 1024;

/// A server that keeps what it is sent, and answers as the event's headers ask.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Of its own, so that it can end with every connection it has.
    runtime: Option<Runtime>,
}

struct Shared {
    arrived: Mutex<Vec<Arrived>>,
    hangs: watch::Sender<bool>,
    /// What `HEAD` is answered with.
    head: AtomicU16,
    heads: AtomicUsize,
}

impl Receiver {
    async fn new() -> Self {
        let shared = Shared {
            arrived: Mutex::default(),
            hangs: watch::Sender::new(false),
            head: AtomicU16::new(405),
            heads: AtomicUsize::new(0),
        };
        let mut receiver = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            shared: Arc::new(shared),
            runtime: None,
        };
        receiver.serve().await;
        receiver
    }

    async fn serve(&mut self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let app = Router::new()
            .fallback(receive)
            .layer(DefaultBodyLimit::max(LIMIT))
            .with_state(Arc::clone(&self.shared));
        let address = self.address;
        let listener = runtime.spawn(async move {
            loop {
                // Until the one before it has let go of the port.
                match TcpListener::bind(address).await {
                    Ok(listener) => return listener,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        });
        let listener = listener.await.unwrap();
        self.address = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, app).await });
        self.runtime = Some(runtime);
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    fn builder(&self, path: &str) -> HttpSinkBuilder {
        HttpSink::builder(format!("http://{}{path}", self.address)).timeout(Duration::from_secs(3))
    }

    /// What it answers to one event that asks for it.
    async fn answer_to(&self, headers: &[(&str, &str)]) -> Outcome {
        let sink = self.builder("/hook").build().unwrap();
        sink.publish(&[asking(headers)]).await.remove(0)
    }
}

/// An event whose headers say what is to be answered.
fn asking(headers: &[(&str, &str)]) -> Delivery {
    let event = Event::json("events.order.placed", &"a secret of the payload").unwrap();
    let event = headers.iter().fold(event, |event, (name, value)| event.header(*name, *value));
    testing::delivery(event.build().unwrap())
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.end();
    }
}

async fn receive(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut hangs = shared.hangs.subscribe();
    hangs.wait_for(|hangs| !hangs).await.unwrap();
    if method == Method::HEAD {
        shared.heads.fetch_add(1, Ordering::SeqCst);
        return StatusCode::from_u16(shared.head.load(Ordering::SeqCst)).unwrap().into_response();
    }
    assert_eq!(method, Method::POST);
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    let headers: BTreeMap<String, String> =
        headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect();
    let asked = |name: &str| headers.get(name).cloned();
    if let Some(milliseconds) = asked("x-delay") {
        tokio::time::sleep(Duration::from_millis(milliseconds.parse().unwrap())).await;
    }
    if let Some(status) = asked("x-answer") {
        let mut answer = Response::builder().status(status.parse::<u16>().unwrap());
        for (asked_for, name) in [("x-retry-after", "retry-after"), ("x-location", "location")] {
            if let Some(value) = asked(asked_for) {
                answer = answer.header(name, value);
            }
        }
        let body =
            asked("x-body").map_or(Body::empty(), |times| Body::from("no! ".repeat(times.parse().unwrap())));
        return answer.body(body).unwrap();
    }
    let id = headers["webhook-id"].clone();
    let arrived = Arrived { id, place: uri.to_string(), headers, body: body.to_vec() };
    shared.arrived.lock().unwrap().push(arrived);
    StatusCode::NO_CONTENT.into_response()
}

#[async_trait]
impl Destination for Receiver {
    const DEDUPES: bool = false;

    async fn start() -> Self {
        Self::new().await
    }

    async fn sink(&self, format: Format) -> Arc<dyn Sink> {
        Arc::new(self.builder("/hook").envelope(format).build().unwrap())
    }

    async fn arrived(&self) -> Vec<Arrived> {
        self.shared.arrived.lock().unwrap().clone()
    }

    async fn stop(&mut self) {
        self.end();
        // The port is free once everything of it has ended.
        while tokio::net::TcpStream::connect(self.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn start_again(&mut self) {
        self.serve().await;
    }
}

impl Refuses for Receiver {
    fn refused() -> Delivery {
        asking(&[("x-answer", "410")])
    }

    fn oversized() -> Delivery {
        let event =
            Event::builder("events.large").bytes("text/plain", vec![b'x'; LIMIT + 1]).build().unwrap();
        testing::delivery(event)
    }
}

#[async_trait]
impl Hangs for Receiver {
    async fn hang(&mut self) {
        self.shared.hangs.send_replace(true);
    }

    async fn answer_again(&mut self) {
        self.shared.hangs.send_replace(false);
    }
}

conforms!(crate::http::Receiver:
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

/// The check of the specification, as a receiver makes it.
fn is_signed(arrived: &Arrived, key: &[u8]) -> bool {
    let headers = &arrived.headers;
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(format!("{}.{}.", headers["webhook-id"], headers["webhook-timestamp"]).as_bytes());
    mac.update(&arrived.body);
    let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
    headers["webhook-signature"].split(' ').any(|signature| signature == expected)
}

#[tokio::test]
async fn si4_every_request_is_signed_with_every_secret() {
    let receiver = Receiver::new().await;
    let (old, new, other) = ([1; 24], [2; 64], [3; 24]);
    let secret = |key: &[u8]| format!("whsec_{}", STANDARD.encode(key));
    for format in Format::ALL {
        let sink = receiver.builder("/hook").secret(secret(&new)).secret(secret(&old)).envelope(format);
        assert_eq!(sink.build().unwrap().publish(&deliveries(1)).await, [Outcome::Delivered]);
    }
    let arrived = receiver.arrived().await;
    assert_eq!(arrived.len(), 4);
    for one in &arrived {
        assert!(is_signed(one, &new) && is_signed(one, &old) && !is_signed(one, &other));
        let sent: u64 = one.headers["webhook-timestamp"].parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(now.abs_diff(sent) < 60);
    }
    let sink = receiver.builder("/hook").build().unwrap();
    assert_eq!(sink.publish(&deliveries(1)).await, [Outcome::Delivered]);
    assert!(!receiver.arrived().await[4].headers.contains_key("webhook-signature"));
}

#[tokio::test]
async fn si4_answers_mean_what_they_say() {
    let receiver = Receiver::new().await;
    for status in ["400", "401", "404", "409", "410", "413", "422"] {
        let outcome = receiver.answer_to(&[("x-answer", status)]).await;
        assert!(matches!(&outcome, Outcome::Reject { error } if error.contains(status)), "{outcome:?}");
    }
    for status in ["408", "425", "429", "500", "503"] {
        let outcome = receiver.answer_to(&[("x-answer", status), ("x-retry-after", "7")]).await;
        let wait = Some(Duration::from_secs(7));
        assert!(matches!(&outcome, Outcome::Retry { after, .. } if *after == wait), "{status}: {outcome:?}");
        let outcome = receiver.answer_to(&[("x-answer", status)]).await;
        assert!(matches!(&outcome, Outcome::Retry { after: None, .. }), "{status}: {outcome:?}");
    }
    let in_a_minute = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
    let outcome = receiver.answer_to(&[("x-answer", "429"), ("x-retry-after", &in_a_minute)]).await;
    let Outcome::Retry { after: Some(after), .. } = outcome else { panic!("{outcome:?}") };
    assert!((50..=60).contains(&after.as_secs()), "{after:?}");
}

#[tokio::test]
async fn si4_redirects_are_not_followed() {
    let receiver = Receiver::new().await;
    for status in ["301", "302", "303", "307", "308"] {
        let outcome = receiver.answer_to(&[("x-answer", status), ("x-location", "/elsewhere")]).await;
        assert!(matches!(&outcome, Outcome::Retry { after: None, .. }), "{status}: {outcome:?}");
    }
    assert!(receiver.arrived().await.is_empty());
}

/// One event that crashes its receiver is not an outage; a proxy with nobody behind it is.
#[tokio::test]
async fn rt3_who_is_in_doubt_asks() {
    let receiver = Receiver::new().await;
    let sink = receiver.builder("/hook").build().unwrap();
    let bad = || asking(&[("x-answer", "503")]);

    let outcomes = sink.publish(&[bad(), bad()]).await;
    assert!(outcomes.iter().all(|one| matches!(one, Outcome::Retry { .. })), "{outcomes:?}");
    assert_eq!(receiver.shared.heads.load(Ordering::SeqCst), 1, "asked once for a batch");
    assert_eq!(sink.probe().await, Ok(()), "405 is an answer");

    receiver.shared.head.store(503, Ordering::SeqCst);
    let outcomes = sink.publish(&[bad(), bad()]).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    assert!(sink.probe().await.is_err());

    // Something was answered in earnest: no need to ask.
    let asked = receiver.shared.heads.load(Ordering::SeqCst);
    let outcomes = sink.publish(&[bad(), delivery(1)]).await;
    assert!(matches!(outcomes[..], [Outcome::Retry { .. }, Outcome::Delivered]), "{outcomes:?}");
    assert_eq!(receiver.shared.heads.load(Ordering::SeqCst), asked);
}

/// A server that hangs up on every event and answers every question.
async fn hangs_up() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut begin = [0; 4];
            if stream.read_exact(&mut begin).await.is_ok() && begin == *b"HEAD" {
                stream.write_all(b"HTTP/1.1 405 Method Not Allowed\r\nconnection: close\r\n\r\n").await.ok();
            }
        }
    });
    address
}

#[tokio::test]
async fn rt3_an_event_that_breaks_its_connection_is_tried_again() {
    let sink = HttpSink::builder(format!("http://{}/", hangs_up().await)).build().unwrap();
    let outcomes = sink.publish(&deliveries(2)).await;
    assert!(outcomes.iter().all(|one| matches!(one, Outcome::Retry { .. })), "{outcomes:?}");
}

#[tokio::test]
async fn re9_a_slow_request_delays_only_itself() {
    let receiver = Receiver::new().await;
    let sink = receiver.builder("/hook").timeout(Duration::from_millis(500)).build().unwrap();
    let outcomes = sink.publish(&[delivery(1), asking(&[("x-delay", "60000")]), delivery(2)]).await;
    assert!(
        matches!(outcomes[..], [Outcome::Delivered, Outcome::Retry { .. }, Outcome::Delivered]),
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn rt3_no_connection_is_unavailable_and_says_no_secret() {
    let sink = |url: &str| HttpSink::builder(url).connect_timeout(Duration::from_secs(2)).build().unwrap();
    // Nobody listens on port 1, and no name ends so.
    for url in ["http://user:hunter22@127.0.0.1:1/?token=hunter22", "http://nobody.invalid/hunter22"] {
        let outcome = sink(url).publish(&deliveries(1)).await.remove(0);
        let Outcome::Unavailable { error } = outcome else { panic!("{outcome:?}") };
        assert!(!error.contains("hunter22"), "{error}");
    }
    let receiver = Receiver::new().await;
    let outcomes = sink(&format!("https://{}/", receiver.address)).publish(&deliveries(1)).await;
    assert!(outcomes.iter().all(is_unavailable), "no TLS there: {outcomes:?}");
}

#[tokio::test]
async fn rt5_an_answer_is_read_and_kept_only_so_far() {
    let receiver = Receiver::new().await;
    let outcome = receiver.answer_to(&[("x-answer", "422"), ("x-body", "10000000")]).await;
    let Outcome::Reject { error } = outcome else { panic!("{outcome:?}") };
    assert!(error.contains("no! no!") && error.len() < 300, "{error}");
    // A success with more than anybody wants to read is a success.
    assert_eq!(receiver.answer_to(&[("x-answer", "200"), ("x-body", "10000000")]).await, Outcome::Delivered);
}

#[tokio::test]
async fn di4_the_destination_fills_the_url() {
    let receiver = Receiver::new().await;
    let sink = receiver.builder("/hooks/{destination}?v=1").build().unwrap();
    assert_eq!(sink.probe().await, Ok(()));
    let batch = [delivery(1), delivery(2).with_destination("a/b c"), delivery(3).with_destination("..")];
    let outcomes = sink.publish(&batch).await;
    assert!(
        matches!(outcomes[..], [Outcome::Delivered, Outcome::Delivered, Outcome::Reject { .. }]),
        "{outcomes:?}"
    );
    let mut places: Vec<String> = receiver.arrived().await.into_iter().map(|one| one.place).collect();
    places.sort();
    assert_eq!(places, ["/hooks/a%2Fb%20c?v=1", "/hooks/events.order.placed?v=1"]);
}

#[tokio::test]
async fn si3_the_operators_headers_win() {
    let receiver = Receiver::new().await;
    let sink = receiver.builder("/hook").header("Authorization", "Bearer right").header("x-static", "1");
    let sink = sink.build().unwrap();
    let sent = asking(&[
        ("authorization", "Bearer forged"),
        ("webhook-id", "forged"),
        ("host", "forged"),
        ("x-own", "2"),
    ]);
    assert_eq!(sink.publish(std::slice::from_ref(&sent)).await, [Outcome::Delivered]);
    let arrived = receiver.arrived().await.remove(0);
    assert_eq!(arrived.headers["authorization"], "Bearer right");
    assert_eq!((arrived.headers["x-static"].as_str(), arrived.headers["x-own"].as_str()), ("1", "2"));
    assert_eq!(arrived.id, sent.event.id().to_string());
    assert_eq!(arrived.headers["host"], receiver.address.to_string());
}
