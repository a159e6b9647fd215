//! Metrics and logs: every metric is there with few labels, and no payload is anywhere.
//!
//! Rows of the contract: OP6, OP7.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use posthaste::sink::Delivery;
use posthaste::store::{Claim, Filter, Mode, Settlement};
use posthaste::{Admin, Event, Failure, Handler, Relay, Router};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, Recorder, Setup, event, log, until, worker};

const SECOND: Duration = Duration::from_secs(1);

/// A metric's name, its labels other than the table, and its least value.
type Expected<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

fn snapshotter() -> &'static Snapshotter {
    static SNAPSHOTTER: OnceLock<Snapshotter> = OnceLock::new();
    SNAPSHOTTER.get_or_init(|| {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install().unwrap();
        posthaste::telemetry::describe();
        snapshotter
    })
}

/// The metrics of one table: name and labels other than the table, and the value.
fn metrics_of(table: &str) -> BTreeMap<(String, BTreeMap<String, String>), f64> {
    let mut found = BTreeMap::new();
    for (key, _, _, value) in snapshotter().snapshot().into_vec() {
        let mut labels: BTreeMap<String, String> =
            key.key().labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        if labels.remove("table").as_deref() == Some(table) {
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(gauge) => gauge.into_inner(),
                DebugValue::Histogram(values) => values.len() as f64,
            };
            found.insert((key.key().name().to_owned(), labels), value);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op6_every_metric_is_emitted_with_few_labels() {
    snapshotter();
    let table = format!("seen_{}", &Uuid::now_v7().simple().to_string()[..24]);
    let db = Db::with(Kind::Sqlite, Setup { table: Some(table.clone()), ..Setup::default() }).await;
    let Handle::Sqlite(sql) = db.handle() else { unreachable!() };
    let fine = Recorder::default();
    let fail = |failure: fn() -> Failure| move |_: Delivery| async move { Err::<(), _>(failure()) };
    let router = Router::new()
        .topic("fine", fine.clone())
        .topic("retry", fail(|| Failure::retry("a")))
        .topic("reject", fail(|| Failure::reject("b")))
        .topic("down", fail(|| Failure::unavailable("c")));
    let relay = db
        .relay()
        .handler(router)
        .hot_queue(2)
        .stats_interval(SECOND / 20)
        .single_active()
        .start()
        .await
        .unwrap();
    while !relay.status().leading {
        tokio::task::yield_now().await;
    }
    // Three events of one transaction for two slots.
    let three_for_two = async || {
        let mut tx = sql.outbox.begin().await.unwrap();
        let events = [1, 2, 3].map(|n| Event::json("fine", &n).unwrap());
        sql.outbox.enqueue_all(&mut tx, events).await.unwrap();
        tx.commit().await.unwrap();
    };
    three_for_two().await;
    for topic in ["retry", "reject", "down"] {
        db.enqueue_numbers(topic, 0..1).await;
    }
    fine.wait_for(3).await;
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let expected: [Expected<'_>; 16] = [
        ("outbox_enqueue_total", &[("topic", "fine")], 3.0),
        ("outbox_dispatch_total", &[("topic", "fine"), ("result", "delivered")], 3.0),
        ("outbox_dispatch_total", &[("topic", "retry"), ("result", "retry")], 1.0),
        ("outbox_dispatch_total", &[("topic", "reject"), ("result", "dead")], 1.0),
        ("outbox_dispatch_total", &[("topic", "down"), ("result", "unavailable")], 1.0),
        ("outbox_dead_total", &[("topic", "reject")], 1.0),
        ("outbox_hot_enqueued_total", &[], 2.0),
        ("outbox_hot_rejected_total", &[], 1.0),
        ("outbox_dispatch_latency_seconds", &[("topic", "fine")], 1.0),
        ("outbox_delivery_latency_seconds", &[("topic", "fine")], 1.0),
        ("outbox_pending", &[], 1.0),
        ("outbox_locked", &[], 0.0),
        ("outbox_dead", &[], 1.0),
        ("outbox_oldest_age_seconds", &[], 0.0),
        ("outbox_queue_depth", &[("queue", "running")], 0.0),
        ("outbox_relay_leader", &[], 1.0),
    ];
    let mut seen: BTreeMap<(String, BTreeMap<String, String>), f64> = BTreeMap::new();
    // A snapshot takes counters and histograms back to zero, and a gauge comes and goes.
    let mut highest = |metrics: BTreeMap<(String, BTreeMap<String, String>), f64>| {
        for (key, value) in metrics {
            let adds_up = key.0.ends_with("_total") || key.0.ends_with("_latency_seconds");
            let kept = seen.entry(key).or_insert(0.0);
            *kept = if adds_up { *kept + value } else { kept.max(value) };
        }
        seen.clone()
    };
    let missing = |seen: &BTreeMap<(String, BTreeMap<String, String>), f64>| -> Vec<String> {
        let there = |name: &str, pairs: &[(&str, &str)], least: f64| {
            seen.get(&(name.to_owned(), labels(pairs))).is_some_and(|value| *value >= least)
        };
        let missing = expected.iter().filter(|(name, pairs, least)| !there(name, pairs, *least));
        let mut missing: Vec<String> = missing.map(|(name, pairs, _)| format!("{name} {pairs:?}")).collect();
        if !there("outbox_sink_paused", &[("sink", "down")], 1.0) {
            missing.push("outbox_sink_paused".to_owned());
        }
        missing
    };
    let began = std::time::Instant::now();
    let seen = loop {
        let seen = highest(metrics_of(&table));
        if missing(&seen).is_empty() {
            break seen;
        }
        assert!(began.elapsed() < 60 * SECOND, "missing: {:?} of {seen:?}", missing(&seen));
        if missing(&seen).iter().any(|name| name.starts_with("outbox_hot")) {
            // It leads a moment before it takes events from their commit.
            three_for_two().await;
        }
        tokio::time::sleep(SECOND / 20).await;
    };
    relay.stop().await;
    let allowed: BTreeSet<&str> = ["topic", "result", "sink", "queue"].into();
    for (name, labels) in seen.keys() {
        assert!(labels.keys().all(|label| allowed.contains(&**label)), "{name} has labels {labels:?}");
    }
    db.drop_everything().await;
}

/// Whoever waits for an event has it from the sink's answer on; when that was written is the relay's own affair.
#[tokio::test(start_paused = true)]
async fn op6_a_delivery_takes_until_the_sinks_answer_however_long_it_takes_to_write_that() {
    const AWAY: Duration = Duration::from_secs(3600);
    let recorder = DebuggingRecorder::new();
    let _here = metrics::set_default_local_recorder(&recorder);
    let db = Db::new(Kind::Memory).await;
    db.enqueue_numbers("a", 0..1).await;
    let spy = Spy::on(db.shared_store());
    let handler = {
        let spy = Arc::clone(&spy);
        move |_: Delivery| {
            spy.gone.store(true, Ordering::SeqCst);
            async { Ok::<(), Failure>(()) }
        }
    };
    let relay = Relay::on(spy.clone()).handler(handler).start().await.unwrap();
    tokio::time::sleep(AWAY).await;
    assert_eq!(relay.status().settling, 1, "it is not written yet");
    spy.gone.store(false, Ordering::SeqCst);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(relay.status().settling, 0, "it is written now");
    let metrics = recorder.snapshotter().snapshot().into_vec();
    let latency = metrics.iter().find(|(key, ..)| key.key().name() == "outbox_delivery_latency_seconds");
    let Some((.., DebugValue::Histogram(latency))) = latency else { panic!("{metrics:?}") };
    assert!(latency.len() == 1 && latency[0].into_inner() < AWAY.as_secs_f64() / 2.0, "{latency:?}");
    relay.stop().await;
    db.drop_everything().await;
}

conformance_sql_by_kind!(op6_a_stream_says_how_far_it_is_and_who_waits);

/// Gauges of a stream: which lanes are owned, how far they are behind, what is parked and what is blocked.
async fn op6_a_stream_says_how_far_it_is_and_who_waits(kind: Kind) {
    snapshotter();
    let table = format!("lane_{}", &Uuid::now_v7().simple().to_string()[..24]);
    let mode = Some(Mode::stream(4).unwrap());
    let db = Db::with(kind, Setup { table: Some(table.clone()), mode, ..Setup::default() }).await;
    let recorder = Recorder::answering(|delivery| match delivery.event.topic() {
        "poison" => Err(Failure::reject("no")),
        _ => Ok(()),
    });
    let go = Arc::new(Semaphore::new(0));
    let handler = {
        let (go, recorder) = (Arc::clone(&go), recorder.clone());
        move |delivery: Delivery| {
            let (go, recorder) = (Arc::clone(&go), recorder.clone());
            async move {
                if delivery.event.topic() == "slow" {
                    go.acquire().await.unwrap().forget();
                }
                recorder.handle(&delivery).await
            }
        }
    };
    let relay = db.relay().handler(handler).stats_interval(SECOND / 20).start().await.unwrap();
    // One look at all of them, because a look takes them back to zero until the relay has looked at the table again.
    let gauges = || {
        let (mut lanes, mut others) = ([Vec::new(), Vec::new()], BTreeMap::new());
        for ((name, labels), value) in metrics_of(&table) {
            match (name.as_str(), labels.len()) {
                ("outbox_lane_lag", 1) => lanes[0].push(value),
                ("outbox_lane_lag_seconds", 1) => lanes[1].push(value),
                _ => drop(others.insert(name, value)),
            }
        }
        let other = move |name: &str| others.get(name).copied().unwrap_or_default();
        (lanes, other)
    };
    until("it owns all lanes", async || gauges().1("outbox_lanes_owned") == 4.0).await;
    let enqueue = async |aggregate: &str, topics: &[&str]| {
        let mut tx = db.begin().await;
        for topic in topics {
            tx.enqueue(&db, event(topic, 1).aggregate("order", aggregate)).await.unwrap();
        }
        tx.commit().await;
    };
    enqueue("a", &["fine", "poison", "fine", "fine"]).await;
    enqueue("b", &["fine"]).await;
    recorder.wait_for(2).await;
    let poisoned = async || {
        until("the dead one and two behind it are parked, and nothing else is behind", async || {
            let (lanes, other) = gauges();
            other("outbox_parked") == 3.0
                && other("outbox_blocked_aggregates") == 1.0
                && lanes == [[0.0; 4], [0.0; 4]]
        })
        .await;
    };
    poisoned().await;
    enqueue("c", &["slow", "fine", "fine"]).await;
    until("three are behind, for a moment", async || {
        let ([events, seconds], other) = gauges();
        events.iter().sum::<f64>() == 3.0
            && seconds.iter().sum::<f64>() > 0.0
            && other("outbox_parked") == 3.0
    })
    .await;
    go.add_permits(1);
    recorder.wait_for(5).await;
    poisoned().await;

    assert_eq!(Admin::new(db.shared_store()).discard(Filter::dead()).run().await.unwrap(), 1);
    recorder.wait_for(7).await;
    enqueue("d", &["slow"]).await;
    until("one is behind, and nobody waits any more", async || {
        let ([events, _], other) = gauges();
        events.iter().sum::<f64>() == 1.0
            && other("outbox_parked") == 0.0
            && other("outbox_blocked_aggregates") == 0.0
    })
    .await;
    go.add_permits(1);
    recorder.wait_for(8).await;
    relay.stop().await;
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op6_a_lost_lease_is_counted() {
    snapshotter();
    let table = format!("lost_{}", &Uuid::now_v7().simple().to_string()[..24]);
    let db = Db::with(Kind::Sqlite, Setup { table: Some(table.clone()), ..Setup::default() }).await;
    db.enqueue_numbers("a", 0..1).await;
    let (entered, mut entering) = tokio::sync::mpsc::unbounded_channel();
    let go = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let may_go = std::sync::Arc::clone(&go);
    let stalls = move |_: Delivery| {
        let (entered, may_go) = (entered.clone(), std::sync::Arc::clone(&may_go));
        async move {
            entered.send(()).unwrap();
            may_go.acquire().await.unwrap().forget();
            Ok::<_, Failure>(())
        }
    };
    let relay = db.relay().handler(stalls).start().await.unwrap();
    entering.recv().await.unwrap();
    db.shift(120 * SECOND).await;
    let claimed = db.store().claim(&Claim::by(worker())).await.unwrap().events.remove(0);
    db.store().settle(&[Settlement::delivered(claimed.lease)], Default::default()).await.unwrap();
    go.add_permits(1);
    relay.stop().await;
    let lost = metrics_of(&table)[&("outbox_lease_lost_total".to_owned(), BTreeMap::new())];
    assert_eq!(lost, 1.0);
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op7_logs_name_the_event_and_never_its_payload() {
    for masked in [false, true] {
        let db = Db::new(Kind::Sqlite).await;
        let mut tx = db.begin().await;
        let payload = serde_json::json!({"secret": "the payload of it"});
        let event = Event::json("order.placed.v1", &payload).unwrap().tenant("acme").build().unwrap();
        let id = event.id();
        let log = log::watch(id.to_string());
        let everything = log::watch("the payload of it");
        tx.enqueue(&db, event).await.unwrap();
        tx.commit().await;
        let echo = |delivery: Delivery| async move {
            let payload = String::from_utf8_lossy(delivery.event.payload().bytes()).into_owned();
            Err::<(), _>(Failure::reject(format!("cannot take {payload}")))
        };
        let mut relay = db.relay().handler(echo);
        if masked {
            relay = relay.mask_tenants();
        }
        relay.build().unwrap().run_once().await.unwrap();
        let dead: Vec<String> =
            log.lines().into_iter().filter(|line| line.contains("an event is dead")).collect();
        assert_eq!(dead.len(), 1, "{:?}", log.lines());
        let tenant = if masked { "tenant=\"***\"" } else { "tenant=\"acme\"" };
        for part in ["ERROR", "table=outbox", "topic=\"order.placed.v1\"", "sequence=1", "attempt=1", tenant]
        {
            assert!(dead[0].contains(part), "{part} is not in {}", dead[0]);
        }
        let leaks: Vec<String> =
            everything.lines().into_iter().filter(|line| !line.contains("INSERT")).collect();
        assert!(leaks.is_empty(), "{leaks:?}");
        db.drop_everything().await;
    }
}
