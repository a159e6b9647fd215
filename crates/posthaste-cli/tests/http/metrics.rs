//! What Prometheus reads: every name, few labels, and buckets that span what happens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::thread;

use serde_json::json;

use super::client::{Client, DATABASES, TOKEN, start_by};
use crate::daemon::wait_for;
use crate::support::{Db, Dir};

/// The names, and the labels that each may have beside the table.
const NAMES: [(&str, &str, &[&str]); 15] = [
    ("outbox_enqueue_total", "counter", &["topic"]),
    ("outbox_dispatch_total", "counter", &["result", "topic"]),
    ("outbox_dead_total", "counter", &["topic"]),
    ("outbox_lease_lost_total", "counter", &[]),
    ("outbox_hot_enqueued_total", "counter", &[]),
    ("outbox_hot_rejected_total", "counter", &[]),
    ("outbox_dispatch_latency_seconds", "histogram", &["topic"]),
    ("outbox_delivery_latency_seconds", "histogram", &["topic"]),
    ("outbox_pending", "gauge", &[]),
    ("outbox_locked", "gauge", &[]),
    ("outbox_dead", "gauge", &[]),
    ("outbox_oldest_age_seconds", "gauge", &[]),
    ("outbox_queue_depth", "gauge", &["queue"]),
    ("outbox_relay_leader", "gauge", &[]),
    ("outbox_sink_paused", "gauge", &["sink"]),
];

const BUCKETS: [&str; 20] = [
    "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5",
    "10", "30", "60", "300", "900", "3600", "+Inf",
];

/// One line: name, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

/// A sample that must be there, with at least this value.
type Expected<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

/// What was read: the type of each metric, and every sample.
fn scrape(client: &Client, path: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    let answer = client
        .with_token(None)
        .send(&format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", client.address));
    assert_eq!(answer.code, 200, "{answer:?}");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{answer:?}");
    let (mut types, mut described, mut samples) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    for line in answer.text.lines().filter(|line| !line.is_empty()) {
        if let Some(help) = line.strip_prefix("# HELP ") {
            described.insert(help.split(' ').next().unwrap().to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            types.insert(name.to_owned(), kind.to_owned());
        } else {
            samples.push(sample(line));
        }
    }
    assert_eq!(described, types.keys().cloned().collect(), "each says what it means");
    (types, samples)
}

fn sample(line: &str) -> Sample {
    let (name, value) = line.rsplit_once(' ').unwrap();
    let value = value.parse().unwrap();
    let Some((name, labels)) = name.strip_suffix('}').and_then(|name| name.split_once('{')) else {
        return (name.to_owned(), BTreeMap::new(), value);
    };
    let label = |label: &str| {
        let (name, value) = label.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    };
    (name.to_owned(), labels.split(',').map(label).collect(), value)
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let fits = |(of, own, _): &&Sample| {
        of == name && labels.iter().all(|(label, value)| own.get(*label).is_some_and(|own| own == value))
    };
    samples.iter().find(fits).map(|(_, _, value)| *value)
}

/// Answers everything with this status.
fn always(status: &'static str) -> std::net::SocketAddr {
    use std::io::{Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut bytes = [0; 16 * 1024];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn op6_metrics_have_the_names_and_few_labels() {
    for kind in DATABASES {
        let db = Db::new(kind);
        db.run(["migrate", "up"]).exits(0);
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
        let away = nobody.local_addr().unwrap();
        drop(nobody);
        let file = format!(
            r#"
            [relay]
            stats_interval = "200ms"
            [sinks.good]
            kind = "file"
            path = "good.jsonl"
            [sinks.failing]
            kind = "http"
            url = "http://{}/"
            [sinks.away]
            kind = "http"
            url = "http://{away}/"
            [[routes]]
            topics = ["good"]
            sink = "good"
            [[routes]]
            topics = ["failing"]
            sink = "failing"
            [[routes]]
            topics = ["away"]
            sink = "away"
            "#,
            always("500 No")
        );
        db.dir.write("posthaste.toml", file);
        let (daemon, client) = start_by(db.command(["relay"]).env("OUTBOX_HTTP_TOKEN", TOKEN));
        let (table, events) = (db.table(), format!("/api/v1/tables/{}/events", db.table()));
        for topic in ["good", "failing", "away", "dying"] {
            client.post(&events, &json!({ "topic": topic, "payload": 1, "tenant_id": "t" })).is(201);
        }
        client.tell(&format!("/api/v1/relays/{table}/sinks/good/pause")).is(200);
        let expected: [Expected<'_>; 12] = [
            ("outbox_enqueue_total", &[("topic", "good")], 1.0),
            ("outbox_dispatch_total", &[("topic", "good"), ("result", "delivered")], 1.0),
            ("outbox_dispatch_total", &[("topic", "failing"), ("result", "retry")], 1.0),
            ("outbox_dispatch_total", &[("topic", "away"), ("result", "unavailable")], 1.0),
            ("outbox_dead_total", &[("topic", "dying")], 1.0),
            ("outbox_dispatch_latency_seconds_count", &[("topic", "good")], 1.0),
            ("outbox_delivery_latency_seconds_count", &[("topic", "good")], 1.0),
            ("outbox_dead", &[], 1.0),
            ("outbox_relay_leader", &[], 1.0),
            ("outbox_sink_paused", &[("sink", "good")], 1.0),
            ("outbox_sink_paused", &[("sink", "failing")], 0.0),
            ("outbox_sink_paused", &[("sink", "away")], 1.0),
        ];
        // The good one may have been paused before its event arrived.
        wait_for("delivery", || {
            let status = client.get(&format!("{events}?topic=good")).is(200)["events"][0]["status"].clone();
            if status != "delivered" {
                client.tell(&format!("/api/v1/relays/{table}/sinks/good/resume")).is(200);
                return None;
            }
            client.tell(&format!("/api/v1/relays/{table}/sinks/good/pause")).is(200);
            Some(())
        });
        let (types, samples) = wait_for("metrics", || {
            let (types, samples) = scrape(&client, "/metrics");
            let there = |(name, labels, least): &Expected<'_>| {
                value(&samples, name, labels).is_some_and(|value| value >= *least)
            };
            expected.iter().all(there).then_some((types, samples))
        });
        assert_eq!(value(&samples, "outbox_sink_paused", &[("sink", "failing")]), Some(0.0));
        let expected: BTreeMap<String, String> =
            NAMES.iter().map(|(name, kind, _)| ((*name).to_owned(), (*kind).to_owned())).collect();
        assert_eq!(types, expected, "the names, and no others");
        for (name, labels, _) in &samples {
            let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            let of = part.filter(|name| types.contains_key(*name)).unwrap_or(name);
            let (_, _, own) = NAMES.iter().find(|(name, ..)| *name == of).unwrap();
            let mut allowed: BTreeSet<&str> = own.iter().copied().chain(["table"]).collect();
            if name.ends_with("_bucket") {
                allowed.insert("le");
            }
            assert_eq!(labels.keys().map(String::as_str).collect::<BTreeSet<_>>(), allowed, "{name}");
            assert_eq!(labels["table"], table);
        }
        for name in ["outbox_dispatch_latency_seconds_bucket", "outbox_delivery_latency_seconds_bucket"] {
            let of_good = |(of, labels, _): &&Sample| of == name && labels["topic"] == "good";
            let bounds: Vec<&str> =
                samples.iter().filter(of_good).map(|(_, labels, _)| labels["le"].as_str()).collect();
            assert_eq!(bounds, BUCKETS, "{name}");
        }
        let queues: BTreeSet<&str> = samples
            .iter()
            .filter(|(name, ..)| name == "outbox_queue_depth")
            .map(|(_, labels, _)| labels["queue"].as_str())
            .collect();
        assert_eq!(queues, BTreeSet::from(["hot", "claimed", "running", "settling"]));
        daemon.stop();
    }
}

#[test]
fn op5_the_metrics_are_where_the_configuration_says() {
    let dir = Dir::new();
    let mut command = dir.command(["relay"]);
    let (daemon, client) = start_by(command.env("OUTBOX_HTTP_METRICS_PATH", "/internal/metrics"));
    scrape(&client, "/internal/metrics");
    let answer = client.send("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    answer.fails(404, "not_found", "there is no /metrics");
    daemon.stop();
    for path in ["/readyz", "/api/v1/metrics", "/:a", "metrics"] {
        let mut command = dir.command(["relay"]);
        let answer: crate::support::Answer =
            command.env("OUTBOX_HTTP_METRICS_PATH", path).output().unwrap().into();
        assert!(answer.err.contains("write a path such as"), "{path}: {answer:?}");
        answer.exits(3);
    }
}
