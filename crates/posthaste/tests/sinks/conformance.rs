//! The suite: what every sink must do, asked of each.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use posthaste::sink::{Delivery, Format, Outcome, Sink};
use posthaste::store::Mode;
use posthaste::{Event, Outbox, testing};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use uuid::Uuid;

use super::anything::*;
use super::destination::*;

/// The tests of the suite for a destination.
macro_rules! conforms {
    ($destination:ty: $($test:ident),+ $(,)?) => {
        mod conformance {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    crate::conformance::$test::<$destination>().await;
                }
            )+
        }
    };
}
pub(crate) use conforms;

pub async fn si1_what_is_delivered_is_there<D: Destination>() {
    let destination = D::start().await;
    let sink = destination.sink(Format::Payload).await;
    let batch = deliveries(40);
    for part in batch.chunks(sink.batch_limit().min(16)) {
        assert_eq!(sink.publish(part).await, vec![Outcome::Delivered; part.len()]);
    }
    let arrived: BTreeSet<Vec<u8>> = destination.arrived().await.into_iter().map(|one| one.body).collect();
    let sent: BTreeSet<Vec<u8>> = batch.iter().map(|one| one.event.payload().bytes().to_vec()).collect();
    assert_eq!(arrived, sent, "the very bytes of every payload");
    assert_eq!(sink.probe().await, Ok(()));
}

pub async fn si2_a_batch_is_answered_one_by_one_and_in_order<D: Destination>() {
    let destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    assert_eq!(sink.publish(&[]).await, []);
    let batch = deliveries(sink.batch_limit().min(100));
    assert_eq!(sink.publish(&batch).await, vec![Outcome::Delivered; batch.len()]);
    let arrived = destination.arrived().await;
    let arrived: Vec<&String> = arrived.iter().map(|one| &one.id).collect();
    let sent = ids(&batch);
    if sink.keeps_order() {
        assert_eq!(arrived, sent.iter().collect::<Vec<_>>());
    } else {
        assert_eq!(BTreeSet::from_iter(arrived), sent.iter().collect());
    }
}

pub async fn si3_metadata_and_id_arrive<D: Destination>() {
    let destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let sent = delivery(42);
    assert_eq!(sink.publish(std::slice::from_ref(&sent)).await, [Outcome::Delivered]);
    let arrived = destination.arrived().await.remove(0);
    assert_eq!(arrived.id, sent.event.id().to_string());
    for (name, value) in [
        ("id", sent.event.id().to_string().as_str()),
        ("specversion", "1.0"),
        ("source", "/posthaste/outbox"),
        ("type", "placed"),
        ("subject", "42"),
        ("topic", "events.order.placed"),
        ("namespace", "default"),
        ("tenantid", "acme"),
        ("aggregatetype", "order"),
        ("sequence", "0000000000000000001"),
        ("dataversion", "1"),
    ] {
        assert_eq!(arrived.attribute(name).as_deref(), Some(value), "{name}");
    }
    assert!(arrived.attribute("time").is_some());
    let trace = sent.event.headers()["traceparent"].as_str();
    if arrived.headers.is_empty() {
        assert_eq!(arrived.attribute("traceparent").as_deref(), Some(trace));
    } else {
        assert_eq!(arrived.headers["traceparent"], trace);
        assert_eq!(arrived.headers["country"], "Österreich");
        assert_eq!(arrived.headers["content-type"], "application/json");
        assert_eq!(arrived.body, sent.event.payload().bytes());
    }
}

pub async fn si3_every_format_arrives<D: Destination>() {
    let destination = D::start().await;
    for format in Format::ALL {
        let sink = destination.sink(format).await;
        let json = delivery(7);
        let event = Event::builder("events.image.made").bytes("image/png", vec![0xff, 0, 1]).build().unwrap();
        let bytes = testing::delivery(event);
        let before = destination.arrived().await.len();
        for sent in [json, bytes] {
            assert_eq!(sink.publish(&[sent]).await, [Outcome::Delivered], "{format}");
        }
        let arrived = destination.arrived().await.split_off(before);
        let [json, bytes] = &arrived[..] else { panic!("{format}: {arrived:?}") };
        let has_headers = !json.headers.is_empty();
        match format {
            Format::Envelope => {
                assert_eq!(json.json()["messageId"], json.id.as_str());
                assert_eq!(json.json()["payload"]["number"], 7);
                assert_eq!(bytes.json()["payloadBase64"], "/wAB");
            }
            Format::CloudEventsStructured => {
                assert_eq!(json.json()["data"]["number"], 7);
                assert_eq!(bytes.json()["data_base64"], "/wAB");
                if has_headers {
                    assert_eq!(json.headers["content-type"], "application/cloudevents+json");
                }
            }
            Format::CloudEvents | Format::Payload if has_headers => {
                assert_eq!(bytes.body, [0xff, 0, 1]);
                assert_eq!(bytes.headers["content-type"], "image/png");
                assert_eq!(bytes.headers.contains_key("ce-id"), format == Format::CloudEvents);
            }
            _ => assert!(bytes.body.windows(4).any(|part| part == b"/wAB"), "{format}"),
        }
    }
}

pub async fn si3_anything_in_an_event_arrives<D: Destination>() {
    let destination = D::start().await;
    let sent = deliveries_of_anything(60);
    // Those with the attributes as headers first; where there are none, the envelope has it all.
    for format in [Format::CloudEvents, Format::Envelope] {
        let before = destination.arrived().await.len();
        let sink = destination.sink(format).await;
        // Another id, so that no destination takes it for what it has had.
        let batch: Vec<Delivery> = sent
            .iter()
            .map(|one| testing::delivery(one.event.to_builder().id(Uuid::now_v7()).build().unwrap()))
            .collect();
        for part in batch.chunks(sink.batch_limit().min(16)) {
            assert_eq!(sink.publish(part).await, vec![Outcome::Delivered; part.len()]);
        }
        let arrived = destination.arrived().await.split_off(before);
        assert_eq!(arrived.len(), batch.len());
        for one in &arrived {
            let sent = batch.iter().find(|sent| sent.event.id().to_string() == one.id).unwrap();
            match format {
                Format::Envelope => is_in_its_envelope(one, &sent.event),
                _ if one.headers.is_empty() => {}
                _ => is_in_its_headers(one, &sent.event),
            }
        }
    }
}

pub async fn si3_a_second_try_carries_the_same_id<D: Destination>() {
    let destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let first = delivery(1);
    let mut second = first.clone();
    second.attempt = 2;
    assert_eq!(sink.publish(&[first]).await, [Outcome::Delivered]);
    assert_eq!(sink.publish(&[second]).await, [Outcome::Delivered]);
    let arrived = destination.arrived().await;
    assert_eq!(arrived.len(), if D::DEDUPES { 1 } else { 2 });
    assert!(arrived.iter().all(|one| one.id == arrived[0].id && one.body == arrived[0].body));
}

pub async fn si2_one_that_is_refused_does_not_hurt_the_others<D: Refuses>() {
    let destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let batch = [delivery(1), D::refused(), delivery(2), D::oversized(), delivery(3)];
    let outcomes = sink.publish(&batch).await;
    let rejected = |outcome: &Outcome| matches!(outcome, Outcome::Reject { .. });
    let kinds: Vec<bool> = outcomes.iter().map(rejected).collect();
    assert_eq!(kinds, [false, true, false, true, false], "{outcomes:?}");
    assert_eq!([&outcomes[0], &outcomes[2], &outcomes[4]], [&Outcome::Delivered; 3]);
    let arrived: BTreeSet<String> = destination.arrived().await.into_iter().map(|one| one.id).collect();
    let good = [batch[0].clone(), batch[2].clone(), batch[4].clone()];
    assert_eq!(arrived, ids(&good).into_iter().collect());
}

pub async fn rt3_a_destination_that_is_gone_is_unavailable<D: Destination>() {
    let mut destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let batch = deliveries(6);
    assert_eq!(sink.publish(&batch[..2]).await, [Outcome::Delivered, Outcome::Delivered]);

    destination.stop().await;
    // The first batch after it may still be under way to a connection that is just being lost.
    let outcomes = sink.publish(&batch[2..4]).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    assert!(sink.probe().await.is_err(), "a probe asks the destination");

    destination.start_again().await;
    assert_eq!(publish_when_back(&*sink, &batch[2..]).await, vec![Outcome::Delivered; 4]);
    assert_eq!(sink.probe().await, Ok(()));
    let arrived: BTreeSet<String> = destination.arrived().await.into_iter().map(|one| one.id).collect();
    assert_eq!(arrived, ids(&batch).into_iter().collect(), "nothing is lost");
}

pub async fn re11_a_relay_outlives_its_destination<D: Destination>() {
    let mut destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let outbox = testing::outbox();
    let relay = outbox
        .relay()
        .sink(sink)
        .probe_interval(Duration::from_millis(20), Duration::from_millis(100))
        .start()
        .await
        .unwrap();
    let mut sent = BTreeSet::new();
    enqueue(&outbox, &mut sent, 30).await;
    until("the first are there", async || arrived_ids(&destination).await.is_superset(&sent)).await;

    destination.stop().await;
    enqueue(&outbox, &mut sent, 30).await;
    until("the route rests", async || relay.status().routes.iter().any(|route| route.resting.is_some()))
        .await;

    destination.start_again().await;
    enqueue(&outbox, &mut sent, 30).await;
    until("all are there", async || arrived_ids(&destination).await == sent).await;
    relay.stop().await;
    assert_eq!(outbox.dead().await.unwrap(), []);
}

pub async fn sm1_a_stream_keeps_its_order_through_an_outage<D: Destination>() {
    const AGGREGATES: usize = 12;
    const ROUNDS: u64 = 12;
    let mut destination = D::start().await;
    let sink = destination.sink(Format::Payload).await;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stream-{}.db", Uuid::now_v7().simple()));
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    let outbox = Outbox::sqlite(pool.clone()).table("orders").build().unwrap();
    outbox.migrate_as(Mode::stream(4).unwrap()).await.unwrap();
    let probes = (Duration::from_millis(20), Duration::from_millis(100));
    let relay = outbox.relay().sink(sink).probe_interval(probes.0, probes.1).start().await.unwrap();

    for round in 0..ROUNDS {
        let mut tx = pool.begin().await.unwrap();
        for aggregate in 0..AGGREGATES {
            let payload = serde_json::json!({"aggregate": aggregate, "round": round});
            let event = Event::json("events.order.placed", &payload).unwrap().aggregate("order", aggregate);
            outbox.enqueue(&mut tx, event).await.unwrap();
        }
        tx.commit().await.unwrap();
        outbox.wake();
        if round == ROUNDS / 3 {
            destination.stop().await;
        } else if round == 2 * ROUNDS / 3 {
            destination.start_again().await;
        }
    }
    let order = async || {
        let mut order = vec![Vec::new(); AGGREGATES];
        for document in destination.arrived().await.iter().map(Arrived::json) {
            let of = &mut order[document["aggregate"].as_u64().unwrap() as usize];
            let round = document["round"].as_u64().unwrap();
            // What comes again is no news.
            if !of.contains(&round) {
                of.push(round);
            }
        }
        order
    };
    until("all are there", async || order().await.iter().all(|of| of.len() as u64 == ROUNDS)).await;
    relay.stop().await;
    assert_eq!(order().await, vec![(0..ROUNDS).collect::<Vec<_>>(); AGGREGATES]);
    drop((outbox, relay));
    pool.close().await;
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{suffix}", path.display())).ok();
    }
}

async fn enqueue(outbox: &testing::TestOutbox, sent: &mut BTreeSet<String>, count: usize) {
    let mut tx = outbox.begin();
    for number in 0..count {
        let event = Event::clone(&delivery(number).event);
        sent.insert(event.id().to_string());
        outbox.enqueue(&mut tx, event).await.unwrap();
    }
    tx.commit();
}

async fn arrived_ids<D: Destination>(destination: &D) -> BTreeSet<String> {
    destination.arrived().await.into_iter().map(|one| one.id).collect()
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !done().await {
        assert!(begin.elapsed() < MINUTE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn rt3_a_destination_that_hangs_is_unavailable<D: Hangs>() {
    let mut destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let batch = deliveries(4);
    assert_eq!(sink.publish(&batch[..1]).await, [Outcome::Delivered]);

    destination.hang().await;
    let begin = Instant::now();
    let outcomes = sink.publish(&batch[1..]).await;
    assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
    assert!(begin.elapsed() < Duration::from_secs(20), "it waits no longer than its timeouts");
    assert!(sink.probe().await.is_err(), "a probe asks the destination");

    destination.answer_again().await;
    assert_eq!(publish_when_back(&*sink, &batch[1..]).await, vec![Outcome::Delivered; 3]);
    let arrived: BTreeSet<String> = destination.arrived().await.into_iter().map(|one| one.id).collect();
    assert_eq!(arrived, ids(&batch).into_iter().collect());
}

/// A relay drops a publish that exceeds its timeout: the sink must be as good afterwards.
pub async fn re8_a_publish_that_is_dropped_leaves_the_sink_whole<D: Destination>() {
    let destination = D::start().await;
    let sink = destination.sink(Format::CloudEvents).await;
    let (dropped, kept): (Vec<Delivery>, Vec<Delivery>) = (deliveries(10), deliveries(10));
    for _ in 0..20 {
        // Whether it ends in time or not does not matter.
        let _ = tokio::time::timeout(Duration::from_micros(200), sink.publish(&dropped)).await;
    }
    assert_eq!(sink.publish(&kept).await, vec![Outcome::Delivered; 10]);
    let arrived = arrived_ids(&destination).await;
    assert!(arrived.is_superset(&ids(&kept).into_iter().collect()));
    assert!(arrived.is_subset(&ids(&kept).into_iter().chain(ids(&dropped)).collect()), "no broken messages");
}
