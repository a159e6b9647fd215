//! What stands between an event and its handler, in a relay: interceptors and destinations.
//!
//! Rows of the contract: DI1, DI3, DI4, EV6.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use posthaste::sink::{Delivery, MemorySink, Outcome};
use posthaste::store::{Filter, Page, Status};
use posthaste::{Event, Failure, Interceptor, Meta, Router, TopicMap};

use crate::harness::Db;

conformance!(
    di1_a_handler_gets_the_event_and_what_is_known_of_it,
    di3_interceptors_run_around_every_dispatch,
    di4_events_go_where_the_topic_map_says,
);

streams!(
    di1_a_handler_gets_the_event_and_what_is_known_of_it,
    di3_interceptors_run_around_every_dispatch,
    di4_events_go_where_the_topic_map_says,
);

async fn di1_a_handler_gets_the_event_and_what_is_known_of_it(db: &Db) {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut tx = db.begin().await;
    let event = Event::json("order.placed.v1", &serde_json::json!({"total": 9}))
        .unwrap()
        .aggregate("order", 42)
        .tenant("acme")
        .header("traceparent", traceparent)
        .build()
        .unwrap();
    let id = event.id();
    tx.enqueue(db, event).await.unwrap();
    tx.commit().await;
    let row = db.store().get(id).await.unwrap().unwrap();
    let seen = Arc::new(Mutex::new(Vec::<(Meta, Vec<u8>)>::new()));
    let seen_by_handler = Arc::clone(&seen);
    let handler = move |delivery: Delivery| {
        let payload = delivery.event.payload().bytes().to_vec();
        seen_by_handler.lock().unwrap().push((Meta::from(&delivery), payload));
        async { Ok::<_, Failure>(()) }
    };
    let router = Router::new().topic("order.placed.v1", handler);
    db.relay().handler(router).build().unwrap().run_once().await.unwrap();
    let seen = seen.lock().unwrap();
    let (meta, payload) = &seen[0];
    assert_eq!(payload, br#"{"total":9}"#);
    assert_eq!((meta.id, &*meta.topic, meta.attempt, &*meta.table), (id, "order.placed.v1", 1, "outbox"));
    assert_eq!((meta.sequence, meta.created_at), (row.sequence, row.created_at));
    assert_eq!((meta.tenant_id.as_deref(), meta.traceparent()), (Some("acme"), Some(traceparent)));
    assert_eq!((meta.aggregate_type.as_deref(), meta.aggregate_id.as_deref()), (Some("order"), Some("42")));
}

/// Writes down when it is called; fails before topics it does not like.
struct Gatekeeper {
    name: &'static str,
    dislikes: &'static str,
    calls: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Interceptor for Gatekeeper {
    async fn before(&self, delivery: &Delivery) -> Result<(), Failure> {
        self.calls.lock().unwrap().push(format!("{} before {}", self.name, delivery.event.topic()));
        if delivery.event.topic() == self.dislikes {
            Err(Failure::reject("not through here"))
        } else {
            Ok(())
        }
    }

    async fn after(&self, delivery: &Delivery, outcome: &Outcome) -> Result<(), Failure> {
        let ended = if *outcome == Outcome::Delivered { "delivered" } else { "failed" };
        self.calls.lock().unwrap().push(format!("{} after {} {ended}", self.name, delivery.event.topic()));
        Err(Failure::retry("an interceptor's after is only logged"))
    }
}

async fn di3_interceptors_run_around_every_dispatch(db: &Db) {
    db.enqueue_numbers("good", 0..1).await;
    let calls: Arc<Mutex<Vec<String>>> = Arc::default();
    let gatekeeper = |name, dislikes| Gatekeeper { name, dislikes, calls: Arc::clone(&calls) };
    let sink = MemorySink::new();
    let relay = db
        .relay()
        .sink(sink.clone())
        .interceptor(gatekeeper("outer", "nothing"))
        .interceptor(gatekeeper("inner", "bad"))
        .build()
        .unwrap();
    assert_eq!(relay.run_once().await.unwrap().delivered, 1);
    db.enqueue_numbers("bad", 0..1).await;
    assert_eq!(relay.run_once().await.unwrap().dead, 1);
    assert_eq!(
        *calls.lock().unwrap(),
        [
            "outer before good",
            "inner before good",
            "inner after good delivered",
            "outer after good delivered",
            "outer before bad",
            "inner before bad",
            "outer after bad failed",
        ]
    );
    assert_eq!(sink.delivered().len(), 1);
}

async fn di4_events_go_where_the_topic_map_says(db: &Db) {
    let mut tx = db.begin().await;
    tx.enqueue(db, Event::json("placed", &1).unwrap().aggregate("order", 1)).await.unwrap();
    tx.enqueue(db, Event::json("placed", &2).unwrap()).await.unwrap();
    tx.commit().await;
    let sink = MemorySink::new();
    let map = TopicMap::template("events.{aggregate_type}.{event_type}").unwrap();
    let passed = db.relay().sink(sink.clone()).topics(map).build().unwrap().run_once().await.unwrap();
    assert_eq!((passed.delivered, passed.dead), (1, 1));
    assert_eq!(sink.delivered()[0].destination(), "events.order.placed");
    let dead = db.store().list(&Filter::dead(), Page::first(10)).await.unwrap();
    assert!(dead[0].last_error.as_deref().unwrap().contains("aggregate_type"), "{:?}", dead[0].last_error);
    // Without a map it is the topic.
    db.enqueue_numbers("plain", 0..1).await;
    let sink = MemorySink::new();
    db.relay().sink(sink.clone()).build().unwrap().run_once().await.unwrap();
    assert_eq!(sink.delivered()[0].destination(), "plain");
    assert_eq!(db.count(Status::Delivered).await, 2);
}
