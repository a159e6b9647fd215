//! Relays and sinks: status, pause, resume, trigger; and what only a stream has.

use serde_json::{Value, json};

use super::client::{Client, DATABASES, TOKEN, start, start_by, start_with};
use crate::daemon::{Receiver, wait_for};
use crate::support::{Db, Dir, Kind};

fn statuses(client: &Client, table: &str) -> Vec<String> {
    let page = client.get(&format!("/api/v1/tables/{table}/events?oldest_first=true")).is(200);
    page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["status"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn op5_status_shows_tables_relays_and_sinks() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start(&db);
        let status = client.get("/api/v1/status").is(200);
        assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
        let table = &status["tables"][0];
        assert_eq!((&table["table"], &table["error"]), (&json!(db.table()), &Value::Null));
        let of_table = &table["status"];
        for (name, value) in [
            ("mode", json!("queue")),
            ("lanes", Value::Null),
            ("pending", json!(0)),
            ("dead", json!(0)),
            ("capped", json!(false)),
            ("oldest_seconds", Value::Null),
        ] {
            assert_eq!(of_table[name], value, "{name}: {status:#}");
        }
        assert_eq!(of_table["schema"], of_table["newest_schema"]);
        assert!(of_table["clock_skew_seconds"].as_f64().unwrap().abs() < 5.0, "{status:#}");
        let relay = &table["relay"];
        assert_eq!((&relay["doing"], &relay["running"]), (&json!("working"), &json!(true)));
        let sink = json!({ "sink": "stdout", "kind": "stdout", "paused": false, "resting": null });
        assert_eq!(relay["sinks"], json!([sink]));
        client.get("/api/v1/status?verbose=1").fails(400, "bad_request", "there are none here");
        daemon.stop();
    }
}

#[test]
fn op5_a_relay_is_paused_resumed_and_triggered() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start(&db);
        let table = db.table();
        let events = format!("/api/v1/tables/{table}/events");
        let relay = |deed: &str| client.tell(&format!("/api/v1/relays/{table}/{deed}"));
        let paused = relay("pause").is(200);
        assert_eq!((&paused["doing"], &paused["paused"]), (&json!("paused"), &json!(true)));
        client.post(&events, &json!({ "topic": "a", "payload": 1 })).is(201);
        relay("trigger").fails(409, "conflict", "is paused and passes over nothing");
        assert_eq!(statuses(&client, &table), ["pending"]);
        assert_eq!(relay("resume").is(200)["doing"], "working");
        daemon.events(1);
        let passed = relay("trigger").is(200);
        let nothing = json!({ "finished": true, "delivered": 0, "retried": 0, "dead": 0, "handed_back": 0 });
        assert_eq!(passed, nothing);
        wait_for("delivery", || (statuses(&client, &table) == ["delivered"]).then_some(()));
        client.post(&format!("/api/v1/relays/{table}/pause"), &json!({ "for": "1h" })).fails(
            400,
            "bad_request",
            "\"for\" is not known; there are none here",
        );
        client.tell("/api/v1/relays/none/pause").fails(404, "not_found", "this daemon has no table \"none\"");
        daemon.stop();
    }
}

/// Nothing tells a relay of what another process writes to an SQLite file.
#[test]
fn op5_a_trigger_delivers_what_is_due() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.dir.write("posthaste.toml", "[sinks.lines]\nkind = \"file\"\npath = \"lines.jsonl\"\n[[routes]]\ntopics = [\"order.*\"]\nsink = \"lines\"\n");
    let mut command = db.command(["--set", "relay.poll_interval=1h", "--set", "relay.lease=1d", "relay"]);
    let (daemon, client) = start_by(command.env("OUTBOX_HTTP_TOKEN", TOKEN));
    for topic in ["order.placed", "order.paid", "mail.sent"] {
        db.run(["enqueue", topic, "1"]).exits(0);
    }
    let passed = client.tell("/api/v1/relays/outbox/trigger").is(200);
    let expected = json!({ "finished": true, "delivered": 2, "retried": 0, "dead": 1, "handed_back": 0 });
    assert_eq!(passed, expected);
    assert_eq!(statuses(&client, "outbox"), ["delivered", "delivered", "dead"]);
    daemon.stop();
}

/// A pass that takes long goes on behind the answer.
#[test]
fn op5_a_trigger_is_not_waited_for_without_end() {
    let receiver = Receiver::new(false);
    let dir = Dir::new();
    let file = format!(
        "[relay]\ntimeout = \"2m\"\nlease = \"5m\"\n[sinks.hooks]\nkind = \"http\"\nurl = \"http://{}/\"\ntimeout = \"50s\"\n",
        receiver.address
    );
    let (daemon, client) = start_with(&dir, &file);
    client.post("/api/v1/tables/outbox/events", &json!({ "topic": "a", "payload": 1 })).is(201);
    receiver.posts(1);
    let passed = client.tell("/api/v1/relays/outbox/trigger").is(202);
    assert_eq!((&passed["finished"], &passed["delivered"]), (&json!(false), &Value::Null));
    receiver.answer();
    wait_for("delivery", || (statuses(&client, "outbox") == ["delivered"]).then_some(()));
    daemon.stop();
}

#[test]
fn op5_a_sink_is_paused_while_the_others_go_on() {
    for kind in DATABASES {
        let db = Db::new(kind);
        db.run(["migrate", "up"]).exits(0);
        let file = r#"
            [sinks.mails]
            kind = "file"
            path = "mails.jsonl"
            [sinks.rest]
            kind = "file"
            path = "rest.jsonl"
            [[routes]]
            topics = ["mail.*"]
            sink = "mails"
            [[routes]]
            sink = "rest"
            "#;
        db.dir.write("posthaste.toml", file);
        let (daemon, client) = start_by(db.command(["relay"]).env("OUTBOX_HTTP_TOKEN", TOKEN));
        let table = db.table();
        let events = format!("/api/v1/tables/{table}/events");
        let sink =
            |name: &str, deed: &str| client.tell(&format!("/api/v1/relays/{table}/sinks/{name}/{deed}"));
        let relay = sink("mails", "pause").is(200);
        let paused: Vec<(&str, bool)> = relay["sinks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|sink| (sink["sink"].as_str().unwrap(), sink["paused"].as_bool().unwrap()))
            .collect();
        assert_eq!((paused, &relay["doing"]), (vec![("mails", true), ("rest", false)], &json!("working")));
        for topic in ["mail.sent", "order.placed", "order.paid"] {
            client.post(&events, &json!({ "topic": topic, "payload": 1 })).is(201);
        }
        let delivered = format!("{events}?status=delivered");
        wait_for("the others", || {
            (client.get(&delivered).is(200)["events"].as_array().unwrap().len() == 2).then_some(())
        });
        let mails = client.get(&format!("{events}?topic=mail.sent")).is(200);
        assert_ne!(mails["events"][0]["status"], "delivered");
        sink("mial", "pause").fails(404, "not_found", "has no sink \"mial\"; do you mean mails?");
        sink("zzz", "resume").fails(404, "not_found", "it has mails, rest");
        sink("mails", "resume").is(200);
        wait_for("the mail", || {
            (client.get(&delivered).is(200)["events"].as_array().unwrap().len() == 3).then_some(())
        });
        let mails = client.get(&format!("{events}?topic=mail.sent")).is(200);
        assert_eq!(mails["events"][0]["attempts"], 1, "an attempt was spent");
        daemon.stop();
    }
}

#[test]
fn op5_a_stream_has_lanes_and_blocked_aggregates() {
    for kind in DATABASES {
        let db = Db::new(kind);
        db.run(["migrate", "up", "--mode", "stream", "--lanes", "2"]).exits(0);
        let file = "[sinks.lines]\nkind = \"file\"\npath = \"lines.jsonl\"\n[[routes]]\ntopics = [\"order.*\"]\nsink = \"lines\"\n";
        db.dir.write("posthaste.toml", file);
        let (daemon, client) = start_by(db.command(["relay"]).env("OUTBOX_HTTP_TOKEN", TOKEN));
        let table = db.table();
        let at = |noun: &str| format!("/api/v1/tables/{table}/{noun}");
        wait_for("owners", || {
            let lanes = client.get(&at("lanes")).is(200);
            let lanes = lanes["lanes"].as_array().unwrap();
            assert_eq!(lanes.len(), 2);
            lanes.iter().all(|lane| lane["owner"].is_string()).then_some(())
        });
        let status = client.get("/api/v1/status").is(200);
        let of_table = &status["tables"][0]["status"];
        assert_eq!((&of_table["mode"], &of_table["lanes"]), (&json!("stream"), &json!(2)));
        for topic in ["mail.sent", "order.placed"] {
            let event =
                json!({ "topic": topic, "payload": 1, "aggregate_type": "order", "aggregate_id": "7" });
            client.post(&at("events"), &event).is(201);
        }
        let blocked = wait_for("blocked aggregate", || {
            let blocked = client.get(&at("blocked?limit=10")).is(200);
            blocked["blocked"].as_array().unwrap().first().filter(|first| first["waiting"] == 1).cloned()
        });
        assert_eq!((&blocked["aggregate_id"], &blocked["topic"]), (&json!("7"), &json!("mail.sent")));
        let one = json!({ "ids": [blocked["event_id"]] });
        assert_eq!(client.post(&at("dead/discard"), &one).is(200)["touched"], 1);
        wait_for("nothing blocked", || {
            client.get(&at("blocked")).is(200)["blocked"].as_array().unwrap().is_empty().then_some(())
        });
        wait_for("delivery", || (statuses(&client, &table) == ["delivered"]).then_some(()));
        client.get(&at("blocked?limit=0")).fails(400, "bad_request", "not a number from 1 to 1000");
        daemon.stop();
    }
}

#[test]
fn op5_a_queue_has_neither() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    for noun in ["lanes", "blocked"] {
        client.get(&format!("/api/v1/tables/outbox/{noun}")).fails(404, "not_found", "is a queue");
    }
    daemon.stop();
}

#[test]
fn op5_a_table_that_is_only_purged_has_no_relay() {
    let dir = Dir::new();
    dir.run(["--table", "old", "migrate", "up"]).exits(0);
    dir.run(["--table", "old", "enqueue", "a", "1"]).exits(0);
    let (daemon, client) =
        start_with(&dir, "relay.tables = [\"outbox\"]\ncleaner.tables = [\"outbox\", \"old\"]\n");
    let status = client.get("/api/v1/status").is(200);
    let tables: Vec<(&str, bool)> = status["tables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|table| (table["table"].as_str().unwrap(), table["relay"].is_object()))
        .collect();
    assert_eq!(tables, [("old", false), ("outbox", true)]);
    client.tell("/api/v1/relays/old/pause").fails(404, "not_found", "is not relayed by this daemon");
    assert_eq!(statuses(&client, "old"), ["pending"]);
    let report = client.get("/readyz").is(200);
    assert_eq!((&report["tables"][0]["relay"], &report["status"]), (&Value::Null, &json!("ready")));
    daemon.stop();
}

#[test]
fn op10_the_doctor_asks_a_daemon_here_what_somebody_has_paused() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let doctor = || {
        let listen = format!("http.listen={}", client.address);
        let output = db.command(["doctor", "--set", &listen]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, out) = doctor();
    assert!(code == 0 && out.contains(" works\n"), "{out}");
    client.tell("/api/v1/relays/outbox/sinks/stdout/pause").is(200);
    let (code, out) = doctor();
    assert!(code == 1 && out.contains("fault   sink stdout is paused: its events wait\n"), "{out}");
    client.tell("/api/v1/relays/outbox/pause").is(200);
    let (code, out) = doctor();
    assert!(code == 1 && out.contains(" of table outbox is paused\n"), "{out}");
    daemon.stop();
    assert_eq!(doctor().0, 0, "nobody is there to ask");
}
