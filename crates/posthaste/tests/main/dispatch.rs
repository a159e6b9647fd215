//! From a delivery to the code that handles it: handlers, router, broadcast, interceptors, topic map.
//!
//! Rows of the contract: DI1, DI2, DI3, DI4, RT3, RT4.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::dispatch::{HandlerSink, Intercepted, Routed, Routes, Typed};
use posthaste::sink::{Delivery, MemorySink, Outcome, Sink};
use posthaste::testing::{self, TestOutbox};
use posthaste::{
    Broadcast, ErrorKind, Event, EventBuilder, Failure, Handler, Interceptor, Meta, Router, TopicMap,
    TypedEvent,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Barrier;

use crate::harness::log;

#[derive(Debug, Serialize, Deserialize)]
struct OrderPlaced {
    id: u32,
    total: String,
}

impl TypedEvent for OrderPlaced {
    const TOPIC: &'static str = "order.placed.v1";
    const AGGREGATE: &'static str = "order";
    const EVENT_TYPE: &'static str = "placed";

    fn aggregate_id(&self) -> String {
        self.id.to_string()
    }
}

fn event(topic: &str) -> EventBuilder {
    Event::json(topic, &1).unwrap()
}

async fn fill(events: impl IntoIterator<Item = EventBuilder>) -> TestOutbox {
    let outbox = testing::outbox();
    let mut tx = outbox.begin();
    outbox.enqueue_all(&mut tx, events).await.unwrap();
    tx.commit();
    outbox
}

/// Keeps what the sink within answers.
struct Answers<S>(S, Mutex<Vec<Outcome>>);

#[async_trait]
impl<S: Sink> Sink for Answers<S> {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let outcomes = self.0.publish(batch).await;
        self.1.lock().unwrap().extend(outcomes.clone());
        outcomes
    }
}

/// What a sink answers for these events, delivered in one batch.
async fn answers(sink: impl Sink, events: impl IntoIterator<Item = EventBuilder>) -> Vec<Outcome> {
    let answers = Answers(sink, Mutex::default());
    fill(events).await.deliver(&answers).await.unwrap();
    answers.1.into_inner().unwrap()
}

/// What a handler answers for one event.
async fn answer(handler: impl Handler) -> Outcome {
    answers(HandlerSink(handler), [event("t")]).await.remove(0)
}

fn retry(error: &str) -> Outcome {
    Outcome::Retry { after: None, error: error.to_owned() }
}

fn reject(error: &str) -> Outcome {
    Outcome::Reject { error: error.to_owned() }
}

/// A handler that notes its name.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn handler(&self, name: &'static str) -> impl Handler + use<> {
        let notes = self.clone();
        move |delivery: Delivery| {
            notes.add(format!("{name} {}", delivery.event.topic()));
            async { Ok::<_, Failure>(()) }
        }
    }
}

async fn accept(_: Delivery) -> Result<(), Failure> {
    Ok(())
}

fn setting_error(routes: &impl Routes) -> String {
    let error = routes.check().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidSetting);
    error.message().to_owned()
}

#[tokio::test]
async fn di1_a_handler_gets_the_event_and_its_metadata() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let placed = OrderPlaced { id: 7, total: "9.90".into() };
    let builder = placed.to_event().unwrap().tenant("acme").header("traceparent", trace);
    let outbox = fill([builder]).await;
    let stored = outbox.enqueued().remove(0);

    let seen: Arc<Mutex<Vec<(OrderPlaced, Meta)>>> = Arc::default();
    let witness = Arc::clone(&seen);
    let router = Router::new().on(move |order: OrderPlaced, meta: Meta| {
        let attempt = meta.attempt;
        witness.lock().unwrap().push((order, meta));
        async move { if attempt == 1 { Err("not yet") } else { Ok(()) } }
    });
    let sink = Routed(router);
    outbox.deliver(&sink).await.unwrap();
    outbox.advance(Duration::from_secs(2));
    outbox.deliver(&sink).await.unwrap();

    let seen = seen.lock().unwrap();
    let (order, meta) = &seen[1];
    assert_eq!((order.id, order.total.as_str()), (7, "9.90"));
    assert_eq!((meta.id, meta.topic.as_str()), (stored.id(), "order.placed.v1"));
    assert_eq!(meta.event_type, "placed");
    assert_eq!((meta.aggregate_type.as_deref(), meta.aggregate_id.as_deref()), (Some("order"), Some("7")));
    assert_eq!((meta.tenant_id.as_deref(), meta.namespace.as_str()), (Some("acme"), "default"));
    assert_eq!(&*meta.table, outbox.table().to_string());
    assert_eq!((seen[0].1.attempt, meta.attempt, meta.sequence), (1, 2, seen[0].1.sequence));
    assert_eq!((meta.traceparent(), meta.version), (Some(trace), 1));
}

#[tokio::test]
async fn di1_functions_closures_structs_and_shared_ones_are_handlers() {
    struct Own;

    #[async_trait]
    impl Handler for Own {
        async fn handle(&self, _: &Delivery) -> Result<(), Failure> {
            Ok(())
        }
    }

    assert_eq!(answer(accept).await, Outcome::Delivered);
    assert_eq!(answer(|_: Delivery| async { Ok::<_, String>(()) }).await, Outcome::Delivered);
    assert_eq!(answer(Own).await, Outcome::Delivered);
    let shared: Arc<dyn Handler> = Arc::new(Own);
    assert_eq!(answer(shared).await, Outcome::Delivered);
}

#[tokio::test]
async fn rt3_a_handler_says_which_failure_it_was() {
    async fn io(_: Delivery) -> Result<(), Failure> {
        Err(std::io::Error::other("disk full"))?;
        Ok(())
    }
    let after = Duration::from_secs(30);
    assert_eq!(answer(|_: Delivery| async { Err("no") }).await, retry("no"));
    assert_eq!(answer(io).await, retry("disk full"));
    assert_eq!(answer(|_: Delivery| async { Err(anyhow::anyhow!("b").context("a")) }).await, retry("a: b"));
    assert_eq!(
        answer(move |_: Delivery| async move { Err(Failure::retry_after(after, "limited")) }).await,
        Outcome::Retry { after: Some(after), error: "limited".into() }
    );
    assert_eq!(answer(|_: Delivery| async { Err(Failure::reject("never")) }).await, reject("never"));
    assert_eq!(
        answer(|_: Delivery| async { Err(Failure::unavailable("down")) }).await,
        Outcome::Unavailable { error: "down".into() }
    );
}

#[tokio::test]
async fn di2_the_topic_wins_over_aggregate_and_type_and_both_over_the_fallback() {
    let notes = Notes::default();
    let router = Router::new()
        .aggregate("order", "placed", notes.handler("aggregate"))
        .fallback(notes.handler("fallback"))
        .topic("a", notes.handler("topic"));
    let events = [
        event("a").event_type("placed").aggregate("order", 1),
        event("b").event_type("placed").aggregate("order", 1),
        event("c").event_type("placed").aggregate("customer", 1),
        event("d").event_type("paid").aggregate("order", 1),
        event("e"),
    ];
    let names: Vec<String> = router.routes().iter().map(|route| route.name.to_string()).collect();
    assert_eq!(names, ["order/placed", "*", "a"]);
    assert!(router.routes().iter().all(|route| route.sink.batch_limit() == 1), "each a handler");
    assert_eq!(answers(Routed(router), events).await, vec![Outcome::Delivered; 5]);
    let mut notes = notes.take();
    notes.sort();
    assert_eq!(notes, ["aggregate b", "fallback c", "fallback d", "fallback e", "topic a"]);
}

#[tokio::test]
async fn di2_events_that_share_a_topic_are_typed_by_aggregate() {
    let router = Router::new().on_aggregate(|order: OrderPlaced, _: Meta| async move {
        if order.id == 7 { Ok(()) } else { Err("another") }
    });
    let events = [OrderPlaced { id: 7, total: String::new() }.to_event().unwrap().topic("orders")];
    assert_eq!(answers(Routed(router), events).await, [Outcome::Delivered]);
}

#[tokio::test]
async fn di2_a_payload_that_does_not_decode_is_rejected_without_a_word_of_it() {
    let router = Router::new().on(|_: OrderPlaced, _: Meta| async { Ok::<_, Failure>(()) });
    let events = [
        Event::json(OrderPlaced::TOPIC, &json!({"id": "s3cr3t"})).unwrap(),
        Event::json(OrderPlaced::TOPIC, &json!({"id": 1})).unwrap(),
        Event::builder(OrderPlaced::TOPIC).bytes("image/png", "s3cr3t"),
    ];
    let errors: Vec<String> = answers(Routed(router), events)
        .await
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Reject { error } => error,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(
        errors.iter().all(|error| error.contains("OrderPlaced") && !error.contains("s3cr3t")),
        "{errors:?}"
    );
    assert!(errors[0].contains("at line 1 column 14"), "{errors:?}");
    assert!(errors[2].contains("image/png"), "{errors:?}");
}

#[test]
fn di2_registering_twice_is_an_error_that_names_it() {
    let twice = Router::new().topic("a", accept).topic("b", accept).topic("a", accept).topic("b", accept);
    assert_eq!(setting_error(&twice), r#"two handlers are registered for "a""#);
    let typed = || |_: OrderPlaced, _: Meta| async { Ok::<_, Failure>(()) };
    assert!(setting_error(&Router::new().on(typed()).on(typed())).contains("order.placed.v1"));
    assert!(
        setting_error(&Router::new().on(typed()).topic(OrderPlaced::TOPIC, accept))
            .contains("order.placed.v1")
    );
    let aggregate = Router::new().aggregate("order", "placed", accept).on_aggregate(typed());
    assert!(setting_error(&aggregate).contains("order/placed"));
    assert!(setting_error(&Router::new().fallback(accept).fallback(accept)).contains("\"*\""));
    // Two routes of one name could not be told apart.
    let same_name = Router::new().topic("a/b", accept).aggregate("a", "b", accept);
    assert!(setting_error(&same_name).contains("a/b"));
    assert!(setting_error(&Router::new()).contains("no handler"));
    assert!(Router::new().topic("a", accept).topic("b", accept).check().is_ok());
}

#[tokio::test]
async fn rt4_no_handler_makes_an_event_dead_with_the_reason() {
    let outbox = fill([event("lost").aggregate("order", 1), event("found")]).await;
    let sink = Routed(Router::new().topic("found", accept));
    outbox.deliver(&sink).await.unwrap();
    let [(topic, reason)] = outbox.dead().await.unwrap().try_into().unwrap();
    assert_eq!(topic, "lost");
    assert_eq!(reason, r#"no handler or route for topic "lost", nor for "lost" of aggregate "order""#);
}

#[tokio::test]
async fn di2_a_broadcast_runs_its_subscribers_at_the_same_time() {
    let barrier = Arc::new(Barrier::new(2));
    let wait = |barrier: Arc<Barrier>| {
        move |_: Delivery| {
            let barrier = Arc::clone(&barrier);
            async move {
                barrier.wait().await;
                Ok::<_, Failure>(())
            }
        }
    };
    let both = Broadcast::new().subscribe("a", wait(Arc::clone(&barrier))).subscribe("b", wait(barrier));
    assert_eq!(
        tokio::time::timeout(Duration::from_secs(10), answer(both)).await.unwrap(),
        Outcome::Delivered
    );
}

#[tokio::test]
async fn di2_a_broadcast_joins_the_errors_of_its_subscribers() {
    fn fails(failure: Failure) -> impl Handler {
        move |_: Delivery| std::future::ready(Err::<(), _>(failure.clone()))
    }
    let secs = Duration::from_secs;
    let joined = |a: Failure, b: Failure| {
        answer(
            Broadcast::new().subscribe("mail", fails(a)).subscribe("ok", accept).subscribe("stock", fails(b)),
        )
    };
    let text = "mail: x; stock: y".to_owned();

    assert_eq!(joined(Failure::retry("x"), Failure::retry("y")).await, retry(&text));
    assert_eq!(joined(Failure::reject("x"), Failure::reject("y")).await, reject(&text));
    let unavailable = joined(Failure::unavailable("x"), Failure::unavailable("y")).await;
    assert_eq!(unavailable, Outcome::Unavailable { error: text.clone() });
    assert_eq!(joined(Failure::reject("x"), Failure::unavailable("y")).await, retry(&text));
    let longest = joined(Failure::retry_after(secs(3), "x"), Failure::retry_after(secs(9), "y")).await;
    assert_eq!(longest, Outcome::Retry { after: Some(secs(9)), error: text.clone() });
    let mixed = joined(Failure::reject("x"), Failure::retry_after(secs(9), "y")).await;
    assert_eq!(mixed, Outcome::Retry { after: Some(secs(9)), error: text });
}

#[tokio::test]
async fn di2_a_subscriber_that_panics_takes_no_other_with_it() {
    async fn panics(delivery: Delivery) -> Result<(), Failure> {
        panic!("attempt {}", delivery.attempt)
    }
    let notes = Notes::default();
    let broadcast = Broadcast::new().subscribe("bad", panics).subscribe("good", notes.handler("good"));
    assert_eq!(answer(broadcast).await, retry("bad: panicked: attempt 1"));
    assert_eq!(notes.take(), ["good t"]);
}

#[tokio::test]
async fn di2_a_retry_calls_every_subscriber_again() {
    let notes = Notes::default();
    let second_time =
        |delivery: Delivery| async move { if delivery.attempt > 1 { Ok(()) } else { Err("no") } };
    let broadcast = Broadcast::new().subscribe("a", notes.handler("a")).subscribe("b", second_time);
    let sink = HandlerSink(broadcast);
    let outbox = fill([event("t")]).await;
    outbox.deliver(&sink).await.unwrap();
    outbox.advance(Duration::from_secs(2));
    outbox.deliver(&sink).await.unwrap();
    assert_eq!(notes.take(), ["a t", "a t"]);
    assert_eq!(outbox.deliver(&sink).await.unwrap(), 0);
}

#[tokio::test]
async fn di2_none_subscribed_and_a_name_taken_twice_are_errors() {
    assert_eq!(answer(Broadcast::new()).await, reject("the broadcast has no subscriber"));
    let nobody = setting_error(&Router::new().topic("a", Broadcast::new()));
    assert_eq!(nobody, r#"the handler for "a" cannot work: the broadcast has no subscriber"#);
    let twice = Broadcast::new().subscribe("mail", accept).subscribe("mail", accept);
    assert!(setting_error(&Router::new().topic("a", Arc::new(twice))).contains("\"mail\""));
    let nested = Broadcast::new().subscribe("inner", Broadcast::new());
    assert!(nested.check().unwrap_err().message().contains("\"inner\""));

    let typed = Typed::new(|_: u32, _: Meta| async { Ok::<_, Failure>(()) });
    let broadcast = Broadcast::new().subscribe("typed", typed).subscribe("plain", accept);
    assert!(broadcast.check().is_ok());
    assert_eq!(answer(broadcast).await, Outcome::Delivered);
}

/// Notes both calls; fails, or panics, where its field says so of the event's topic.
struct Noting {
    name: &'static str,
    notes: Notes,
    fails: &'static str,
    panics: &'static str,
}

impl Noting {
    fn call(&self, stage: &str, topic: &str) -> Result<(), Failure> {
        self.notes.add(format!("{stage} {} {topic}", self.name));
        let call = format!("{stage} {topic}");
        assert!(self.panics != call, "panic of {}", self.name);
        if self.fails == call {
            Err(Failure::reject(format!("failure of {} with s3cr3t!", self.name)))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Interceptor for Noting {
    async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
        self.call("before", delivery.event.topic())
    }

    async fn after(&self, delivery: &Delivery, outcome: &Outcome) -> Result<(), Failure> {
        let answer = self.call("after", delivery.event.topic());
        self.notes.add(match outcome {
            Outcome::Delivered => "delivered",
            _ => "failed",
        });
        answer
    }
}

/// Two interceptors around a sink that notes its batches; the second one fails or panics as said.
fn intercepted(notes: &Notes, fails: &'static str, panics: &'static str) -> Intercepted {
    struct Batches(Notes);

    #[async_trait]
    impl Sink for Batches {
        async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
            let topics: Vec<&str> = batch.iter().map(|delivery| delivery.event.topic()).collect();
            self.0.add(format!("publish {}", topics.join("+")));
            vec![Outcome::Delivered; batch.len()]
        }

        fn batch_limit(&self) -> usize {
            7
        }

        async fn probe(&self) -> Result<(), String> {
            Err("probed".to_owned())
        }
    }

    let noting = |name, fails, panics| -> Arc<dyn Interceptor> {
        Arc::new(Noting { name, notes: notes.clone(), fails, panics })
    };
    Intercepted {
        interceptors: vec![noting("1", "", ""), noting("2", fails, panics), noting("3", "", "")],
        sink: Arc::new(Batches(notes.clone())),
    }
}

#[tokio::test]
async fn di3_interceptors_run_in_order_before_and_in_reverse_after() {
    let notes = Notes::default();
    assert_eq!(answers(intercepted(&notes, "", ""), [event("a")]).await, [Outcome::Delivered]);
    let after = ["after 3 a", "delivered", "after 2 a", "delivered", "after 1 a", "delivered"];
    let expected = [&["before 1 a", "before 2 a", "before 3 a", "publish a"][..], &after].concat();
    assert_eq!(notes.take(), expected);
}

#[tokio::test]
async fn di3_a_failing_before_is_that_events_outcome_and_the_rest_go_out_together() {
    for (fails, panics, expected) in [
        ("before b", "", reject("failure of 2 with s3cr3t!")),
        ("", "before b", retry("an interceptor panicked: panic of 2")),
    ] {
        let notes = Notes::default();
        let sink = intercepted(&notes, fails, panics);
        let outcomes = answers(sink, [event("a"), event("b"), event("c")]).await;
        assert_eq!(outcomes, [Outcome::Delivered, expected, Outcome::Delivered]);
        let notes = notes.take();
        assert!(notes.contains(&"publish a+c".to_owned()), "{notes:?}");
        let of_b: Vec<&str> = notes.iter().filter(|note| note.ends_with(" b")).map(|note| &**note).collect();
        assert_eq!(of_b, ["before 1 b", "before 2 b", "after 1 b"]);
        assert_eq!(notes.iter().filter(|note| *note == "failed").count(), 1);
    }
    // Nobody left to publish.
    let notes = Notes::default();
    answers(intercepted(&notes, "before a", ""), [event("a")]).await;
    assert!(!notes.take().iter().any(|note| note.starts_with("publish")));
}

#[tokio::test]
async fn di3_a_failing_after_is_logged_without_the_payload_and_changes_nothing() {
    for (fails, panics) in [("after a", ""), ("", "after a")] {
        let notes = Notes::default();
        let events = [Event::json("a", &json!("s3cr3t!")).unwrap()];
        let (outcomes, lines) = log::lines(answers(intercepted(&notes, fails, panics), events)).await;
        assert_eq!(outcomes, [Outcome::Delivered]);
        assert!(notes.take().contains(&"after 1 a".to_owned()), "those before it still run");
        let [line] = lines.iter().filter(|line| line.contains("interceptor")).collect::<Vec<_>>()[..] else {
            panic!("{lines:?}")
        };
        assert!(line.contains("event_id=") && line.contains(" of 2") && !line.contains("s3cr3t!"), "{line}");
    }
}

#[tokio::test]
async fn di3_a_sink_that_panics_is_seen_after_and_its_panic_goes_on() {
    let notes = Notes::default();
    let sink = Intercepted {
        sink: Arc::new(MemorySink::answering(|_| panic!("boom"))),
        ..intercepted(&notes, "", "")
    };
    let outbox = fill([event("a")]).await;
    let panic = tokio::spawn(async move { outbox.deliver(&sink).await.map(|_| ()) }).await.unwrap_err();
    assert_eq!(panic.into_panic().downcast_ref::<&str>(), Some(&"boom"));
    assert_eq!(notes.take()[3..], ["after 3 a", "failed", "after 2 a", "failed", "after 1 a", "failed"]);
}

#[tokio::test]
async fn di3_limit_and_probe_are_the_sinks_own() {
    let mut sink = intercepted(&Notes::default(), "", "");
    assert_eq!((sink.batch_limit(), sink.probe().await), (7, Err("probed".to_owned())));
    sink.interceptors.clear();
    assert_eq!(answers(sink, [event("a")]).await, [Outcome::Delivered]);
    assert_eq!(answers(intercepted(&Notes::default(), "", ""), []).await, []);

    struct Idle;
    impl Interceptor for Idle {}
    let calls = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&calls);
    let sink = MemorySink::answering(move |_| {
        counting.fetch_add(1, Ordering::SeqCst);
        Outcome::Delivered
    });
    let sink = Intercepted { interceptors: vec![Arc::new(Arc::new(Idle))], sink: Arc::new(sink) };
    assert_eq!(answers(sink, [event("a"), event("b")]).await.len(), 2);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[test]
fn di4_a_destination_is_the_topic_the_aggregate_or_a_template() {
    let full = event("order.placed.v1")
        .event_type("placed")
        .aggregate("order", "42+1")
        .namespace("shop")
        .tenant("acme")
        .version(3)
        .build()
        .unwrap();
    let to = |map: TopicMap| map.map(&full).unwrap().to_string();
    assert_eq!(to(TopicMap::default()), "order.placed.v1");
    assert!(TopicMap::default().is_topic() && !TopicMap::aggregate_type().is_topic());
    assert_eq!(to(TopicMap::aggregate_type()), "order");
    for (template, expected) in [
        ("events.{aggregate_type}.{event_type}", "events.order.placed"),
        ("{namespace}/{tenant_id}/{aggregate_id}/v{version}", "shop/acme/42+1/v3"),
        ("{{{topic}}}é", "{order.placed.v1}é"),
        ("all", "all"),
    ] {
        assert_eq!(to(TopicMap::template(template).unwrap()), expected);
    }
    assert_eq!(to(TopicMap::from_fn(|event| Ok(event.topic().replace('.', "/")))), "order/placed/v1");
}

#[test]
fn di4_an_event_without_a_destination_says_why() {
    let bare = event("a").build().unwrap();
    let starred = event("a").aggregate("*", "x").build().unwrap();
    let template = |text| TopicMap::template(text).unwrap();
    for (map, event, part) in [
        (TopicMap::aggregate_type(), &bare, "no aggregate_type"),
        (template("x.{tenant_id}"), &bare, "no tenant_id"),
        (template("{aggregate_id}"), &bare, "no aggregate_id"),
        (template("x.{aggregate_type}.y"), &starred, "wildcard \"*\""),
        (TopicMap::from_fn(|_| Ok(String::new())), &bare, "empty"),
        (TopicMap::from_fn(|_| Ok("a\nb".to_owned())), &bare, "control character at byte 1"),
        (TopicMap::from_fn(|_| Err("not today".to_owned())), &bare, "not today"),
        (TopicMap::from_fn(|_| panic!("oh")), &bare, "panicked: oh"),
    ] {
        let error = map.map(event).unwrap_err();
        assert!(error.contains(part), "{map:?}: {error}");
    }
}

#[test]
fn di4_a_template_that_cannot_work_says_where() {
    for (template, parts) in [
        ("events.{agregate_type}", &["\"agregate_type\"", "byte 7", "aggregate_type, aggregate_id"][..]),
        ("é.{topic", &["byte 3", "not closed"]),
        ("a}", &["byte 1", "closes nothing"]),
        ("a.{}", &["\"\"", "byte 2"]),
        ("a\tb", &["control character", "byte 1"]),
        ("", &["empty"]),
    ] {
        let error = TopicMap::template(template).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidSetting);
        assert!(parts.iter().all(|part| error.message().contains(part)), "{error}");
    }
}
