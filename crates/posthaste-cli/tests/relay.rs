//! The relay as a program: what comes out of it, and how it is stopped.
//!
//! Rows of the contract: OP1, OP2, OP3, OP7, SI1.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use async_nats::jetstream;
use futures_util::StreamExt;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{Daemon, Receiver, forward, forward_but_once, wait_for};
use crate::support::{Db, Dir, Kind, nats_url, server_url, unique};

on_databases!(
    op1_every_database_relays_to_standard_output_and_makes_its_table_only_if_asked,
    op1_two_tables_go_to_two_sinks_by_routes,
    op3_a_table_that_is_not_relayed_is_purged_all_the_same,
);
on_servers!(
    op1_a_database_that_is_away_at_the_start_is_waited_for,
    re11_a_database_that_goes_away_while_the_relay_starts_is_waited_for,
);

const KINDS: [Kind; 3] = [Kind::Postgres, Kind::MariaDb, Kind::Sqlite];

/// The lines of a file of events.
fn lines(path: &PathBuf) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn op2_with_nothing_configured_it_works_on_a_file_and_prints_events() {
    let dir = Dir::new();
    let mut daemon = Daemon::start(&mut dir.command(["relay"]));
    assert!(dir.path().join("posthaste.db").exists());
    daemon.said("table outbox (made just now): * to stdout; delivered events are kept for 7d");
    // What it says to do works as it is printed.
    let invited = daemon.said(" enqueue order.placed.v1 ");
    let (_, arguments) = invited.trim().split_once(' ').unwrap();
    assert_eq!(arguments, "enqueue order.placed.v1 '{\"order\": 42}'");
    dir.run(["enqueue", "order.placed.v1", "{\"order\": 42}"]).exits(0);
    let events = daemon.events(1);
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["type"], &events[0]["data"]), (&json!("order.placed.v1"), &json!({"order": 42})));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), 0);
    for words in ["SIGTERM: draining", " settled, 0 handed back, 0 abandoned", "stopped"] {
        daemon.said(words);
    }
    assert!(!dir.path().join("posthaste.db-wal").exists());
    let listed = dir.run(["events", "list", "--status", "delivered", "--json"]).exits(0);
    assert_eq!(listed.json().as_array().unwrap().len(), 1);
}

#[test]
fn op2_a_second_start_finds_what_was_written_meanwhile() {
    let dir = Dir::new();
    dir.run(["enqueue", "a", "1"]).exits(0);
    let daemon = Daemon::start(&mut dir.command(["relay"]));
    assert_eq!(daemon.events(1)[0]["type"], "a");
    daemon.stop();
    let daemon = Daemon::start(&mut dir.command(["relay"]));
    dir.run(["enqueue", "b", "2"]).exits(0);
    let events = daemon.events(1);
    assert_eq!(events[0]["type"], "b");
    daemon.stop();
}

fn op1_every_database_relays_to_standard_output_and_makes_its_table_only_if_asked(kind: Kind) {
    let db = Db::new(kind);
    let refused = db.run(["relay"]).exits(5);
    assert!(refused.err.contains("--migrate"), "{refused:?}");
    let daemon = Daemon::start(&mut db.command(["relay", "--migrate"]));
    for number in 0..20 {
        db.run(["enqueue", "a", &number.to_string()]).exits(0);
    }
    let mut events: Vec<i64> =
        daemon.events(20).iter().map(|event| event["data"].as_i64().unwrap()).collect();
    events.sort_unstable();
    assert_eq!(events, (0..20).collect::<Vec<_>>());
    daemon.stop();
}

fn op1_two_tables_go_to_two_sinks_by_routes(kind: Kind) {
    let db = Db::new(kind);
    let (orders, mails) = (db.table(), db.table().replace("outbox", "mail_outbox"));
    let file = format!(
        r#"
            [relay]
            tables = ["{orders}", "{mails}"]
            migrate = true
            poll_interval = "100ms"
            [tables."{mails}"]
            mode = "stream"
            lanes = 2
            [sinks.orders]
            kind = "file"
            path = "orders.jsonl"
            format = "envelope"
            [sinks.rest]
            kind = "file"
            path = "rest.jsonl"
            source = "/shop"
            [[routes]]
            topics = ["order.*", "invoice.*"]
            tables = "{orders}"
            sink = "orders"
            [[routes]]
            topics = ["*.sent", "order.*"]
            sink = "rest"
            "#
    );
    db.dir.write("posthaste.toml", file);
    let daemon =
        Daemon::start(db.command(["--set", "database.table=none", "relay"]).env_remove("OUTBOX_TABLE"));
    for (table, topic) in [
        (&orders, "order.placed"),
        (&orders, "mail.sent"),
        (&orders, "unknown"),
        (&mails, "order.placed"),
        (&mails, "mail.sent"),
    ] {
        let aggregate = ["--table", table, "enqueue", topic, "1", "--aggregate", "order/1"];
        db.run(aggregate).exits(0);
    }
    let path = |name: &str| db.dir.path().join(name);
    wait_for("line of orders", || (lines(&path("orders.jsonl")).len() == 1).then_some(()));
    wait_for("three other lines", || (lines(&path("rest.jsonl")).len() == 3).then_some(()));
    assert_eq!(lines(&path("orders.jsonl"))[0]["topic"], "order.placed");
    assert!(lines(&path("rest.jsonl")).iter().all(|event| event["source"] == "/shop"));
    // What fits no route is dead, and says so.
    let dead = wait_for("dead event", || {
        let listed = db.run(["events", "list", "--status", "dead", "--json"]).exits(0).json();
        listed.as_array().unwrap().first().cloned()
    });
    assert!(
        dead["last_error"].as_str().unwrap().contains("no handler or route for topic \"unknown\""),
        "{dead}"
    );
    daemon.stop();
    let status = db.run(["--table", &mails, "migrate", "status", "--json"]).exits(0).json();
    assert_eq!((&status["mode"], &status["lanes"]), (&json!("stream"), &json!(2)));
}

#[test]
fn si4_webhooks_get_their_headers_signature_and_destination() {
    let receiver = Receiver::new(true);
    let dir = Dir::new();
    let file = format!(
        r#"
        [sinks.hooks]
        kind = "http"
        url = "http://{}/hooks/{{destination}}"
        secret_file = "secret"
        headers.authorization = "Bearer ${{HOOK_TOKEN}}"
        [[routes]]
        sink = "hooks"
        destination = "shop.{{topic}}"
        "#,
        receiver.address
    );
    dir.write("posthaste.toml", file);
    dir.write("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n");
    let mut daemon = Daemon::start(dir.command(["relay"]).env("HOOK_TOKEN", "hunter22"));
    let id = dir.run(["enqueue", "order.placed", "{\"order\": 42}", "--json"]).exits(0).json()["id"].clone();
    let posts = receiver.posts(1);
    let post = &posts[0];
    assert_eq!((post.path.as_str(), post.body.as_str()), ("/hooks/shop.order.placed", "{\"order\": 42}"));
    assert_eq!(post.headers["authorization"], "Bearer hunter22");
    assert_eq!(json!(post.headers["webhook-id"]), id);
    assert!(post.headers["webhook-signature"].starts_with("v1,"));
    assert_eq!(post.headers["ce-type"], "order.placed");
    daemon.said("* to hooks (http)");
    assert!(!daemon.err().join("\n").contains("hunter22"));
    daemon.stop();
}

#[test]
fn si1_nats_gets_events_with_their_id() {
    let name = unique();
    for kind in KINDS {
        let db = Db::new(kind);
        let stream = format!("{name}_{kind:?}");
        let file = format!(
            r#"
            [relay]
            migrate = true
            [sinks.broker]
            kind = "nats"
            url = "${{NATS}}"
            stream = "{stream}"
            create_stream = true
            subjects = "{stream}.>"
            storage = "memory"
            [[routes]]
            topics = "order.*"
            sink = "broker"
            destination = "{stream}.{{topic}}"
            "#
        );
        db.dir.write("posthaste.toml", file);
        let mut daemon = Daemon::start(db.command(["relay"]).env("NATS", nats_url()));
        let sent = db
            .run(["enqueue", "order.placed", "{\"order\": 42}", "--header", "k=v", "--json"])
            .exits(0)
            .json();
        wait_for("delivered event", || {
            let listed = db.run(["events", "list", "--status", "delivered", "--json"]).exits(0).json();
            listed.as_array().unwrap().first().cloned()
        });
        daemon.said("order.* to broker (nats)");
        daemon.stop();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server: async_nats::ServerAddr = nats_url().parse().unwrap();
            let login = [server.username(), server.password()].map(|part| part.unwrap().to_owned());
            let [user, password] = login;
            let options = async_nats::ConnectOptions::new().user_and_password(user, password);
            let context = jetstream::new(options.connect(server).await.unwrap());
            let found = context.get_stream(&stream).await.unwrap();
            let consumer = found.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
            let mut messages = consumer.messages().await.unwrap();
            let message = messages.next().await.unwrap().unwrap();
            assert_eq!(message.subject.as_str(), format!("{stream}.order.placed"));
            assert_eq!(&message.payload[..], b"{\"order\": 42}");
            let headers = message.headers.as_ref().unwrap();
            assert_eq!(headers.get("Nats-Msg-Id").unwrap().as_str(), sent["id"].as_str().unwrap());
            assert_eq!(headers.get("ce-type").unwrap().as_str(), "order.placed");
            assert_eq!(headers.get("k").unwrap().as_str(), "v");
            context.delete_stream(&stream).await.unwrap();
        });
    }
}

/// A relay whose only event is on its way to a receiver that does not answer.
fn under_way(dir: &Dir, receiver: &Receiver) -> Daemon {
    let file = format!(
        "[relay]\ndrain_timeout = \"50s\"\n[sinks.hooks]\nkind = \"http\"\nurl = \"http://{}/\"\n",
        receiver.address
    );
    dir.write("posthaste.toml", file);
    let daemon = Daemon::start(&mut dir.command(["relay"]));
    dir.run(["enqueue", "a", "1"]).exits(0);
    receiver.posts(1);
    daemon
}

#[test]
fn op1_a_signal_drains_what_is_under_way() {
    for signal in [Signal::TERM, Signal::INT] {
        let receiver = Receiver::new(false);
        let dir = Dir::new();
        let mut daemon = under_way(&dir, &receiver);
        daemon.signal(signal);
        daemon.said("draining; Ctrl-C leaves at once");
        receiver.answer();
        assert_eq!(daemon.ends(), 0, "{:#?}", daemon.err());
        daemon.said("table outbox: while it drained, 1 settled, 0 handed back, 0 abandoned");
        let listed = dir.run(["events", "list", "--status", "delivered", "--json"]).exits(0).json();
        assert_eq!(listed.as_array().unwrap().len(), 1);
    }
}

#[test]
fn op1_a_second_ctrl_c_leaves_at_once() {
    let receiver = Receiver::new(false);
    let dir = Dir::new();
    let mut daemon = under_way(&dir, &receiver);
    daemon.signal(Signal::INT);
    daemon.said("Ctrl-C: draining");
    daemon.signal(Signal::INT);
    assert_eq!(daemon.ends(), 130);
    daemon.said("Ctrl-C again: leaving at once");
    let listed = dir.run(["events", "list", "--json"]).exits(0).json();
    assert_eq!(listed[0]["status"], "processing");
}

#[test]
fn op3_a_relay_with_mistakes_does_not_start() {
    let dir = Dir::new();
    dir.write("posthaste.toml", "[relay]\nbatchsize = 5\nlease = \"5\"\n");
    let answer = dir.run(["relay"]).exits(3);
    assert!(
        answer.err.contains("posthaste.toml:2:1: there is no key relay.batchsize; did you mean relay.batch?"),
        "{answer:?}"
    );
    assert!(answer.err.contains("posthaste.toml:3:1: relay.lease is \"5\""), "{answer:?}");
    assert!(!dir.path().join("posthaste.db").exists());
    dir.write("posthaste.toml", "[sinks.a]\nkind = \"file\"\npath = \"no/such/directory\"\n");
    let answer = dir.run(["relay"]).exits(3);
    assert!(answer.err.contains("sink a: events cannot be appended to no/such/directory"), "{answer:?}");
    dir.write("posthaste.toml", "");
    dir.run(["--database", "sqlite://missing.db", "relay"]).exits(5);
    dir.run(["--database", "sqlite://no/such/directory/a.db", "relay", "--migrate"]).exits(4);
    assert!(!dir.path().join("missing.db").exists());
}

fn op1_a_database_that_is_away_at_the_start_is_waited_for(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up"]).exits(0);
    db.run(["enqueue", "a", "1"]).exits(0);
    let url = server_url(kind);
    let real = url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let away = db.url().replace(real, &address.to_string());
    drop(listener);
    let mut daemon = Daemon::spawn(db.command(["relay"]).env("OUTBOX_DATABASE_URL", away));
    daemon.said("the database is not there yet; the relay waits for it");
    forward(TcpListener::bind(address).unwrap(), real.parse().unwrap());
    daemon.said("ready; Ctrl-C stops it");
    assert_eq!(daemon.events(1).len(), 1);
    daemon.stop();
}

fn re11_a_database_that_goes_away_while_the_relay_starts_is_waited_for(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up"]).exits(0);
    db.run(["enqueue", "a", "1"]).exits(0);
    let url = server_url(kind);
    let real = url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut front = db.url().replace(real, &listener.local_addr().unwrap().to_string());
    if kind == Kind::MySql {
        // Inside TLS, which MySQL has by itself, nothing could be told apart.
        front += "?ssl-mode=DISABLED";
    }
    // The connection is there, and ends with the first question: of which mode the table is.
    forward_but_once(listener, real.parse().unwrap(), "posthaste_migrations");
    let mut daemon = Daemon::spawn(db.command(["relay"]).env("OUTBOX_DATABASE_URL", front));
    daemon.said("the database is not there yet; the relay waits for it");
    daemon.said("ready; Ctrl-C stops it");
    assert_eq!(daemon.events(1).len(), 1);
    daemon.stop();
}

#[test]
fn op1_a_relay_that_waits_for_its_database_can_be_stopped() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = Dir::new();
    let url = format!("postgres://user:s3cret@{closed}/shop");
    let mut daemon = Daemon::spawn(&mut dir.command(["--database", &url, "relay"]));
    daemon.said("the relay waits for it");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), 0);
    daemon.said("SIGTERM: stopped before it was ready");
    assert!(!daemon.err().join("\n").contains("s3cret"));
}

fn op3_a_table_that_is_not_relayed_is_purged_all_the_same(kind: Kind) {
    let db = Db::new(kind);
    let daemon = Daemon::start(&mut db.command(["relay", "--migrate"]));
    db.run(["enqueue", "a", "1"]).exits(0);
    daemon.events(1);
    daemon.stop();
    db.run(["enqueue", "b", "2"]).exits(0);
    let count = || db.sql(&format!("SELECT count(*) FROM {}", db.table()));
    assert_eq!(count(), "2");
    let settings =
        ["--set", "relay.enabled=false", "--set", "cleaner.retention=1ms", "--set", "cleaner.interval=100ms"];
    let mut daemon = Daemon::start(&mut db.command(settings.into_iter().chain(["relay"])));
    daemon.said("no table is relayed here: it only purges");
    wait_for("purge", || (count() == "1").then_some(()));
    daemon.said("purged what was past its retention");
    daemon.stop();
    let listed = db.run(["events", "list", "--json"]).exits(0).json();
    assert_eq!((&listed[0]["topic"], &listed[0]["status"]), (&json!("b"), &json!("pending")));
}

#[test]
fn op3_retention_is_the_cleaners() {
    for (set, left) in [("cleaner.retention=0", "0"), ("cleaner.enabled=false", "1")] {
        let db = Db::new(Kind::Sqlite);
        let daemon = Daemon::start(&mut db.command([
            "--set",
            set,
            "--set",
            "cleaner.interval=50ms",
            "relay",
            "--migrate",
        ]));
        db.run(["enqueue", "a", "1"]).exits(0);
        daemon.events(1);
        daemon.stop();
        assert_eq!(db.sql("SELECT count(*) FROM outbox"), left, "{set}");
    }
}

#[test]
fn op7_the_log_can_be_json_and_has_no_payload() {
    let dir = Dir::new();
    dir.write("posthaste.toml", "[log]\nformat = \"json\"\nlevel = \"info,posthaste=debug\"\n[topics.a]\nmax_attempts = 1\n[sinks.hooks]\nkind = \"http\"\nurl = \"http://127.0.0.1:9/\"\n");
    let mut daemon = Daemon::start(dir.command(["relay"]).env("OUTBOX_RELAY_BATCHSIZE", "5"));
    daemon.said("did you mean OUTBOX_RELAY_BATCH_SIZE?");
    dir.run(["enqueue", "a", "\"hunter22\""]).exits(0);
    daemon.said("unavailable");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), 0);
    let lines = daemon.err();
    assert!(lines.len() > 5);
    for line in lines {
        let entry: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(entry["level"].is_string() && entry["timestamp"].is_string(), "{line}");
        assert!(!line.contains("hunter22"), "{line}");
    }
}

#[test]
fn op7_no_level_of_the_log_shows_a_login() {
    let dir = Dir::new();
    let file = "[log]\nlevel = \"trace\"\n[sinks.broker]\nkind = \"nats\"\nurl = \"nats://usr:hunter22@127.0.0.1:9\"\nconnect_timeout = \"1s\"\n";
    dir.write("posthaste.toml", file);
    let mut daemon = Daemon::start(&mut dir.command(["relay"]));
    dir.run(["enqueue", "a", "1"]).exits(0);
    daemon.said("unavailable");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ends(), 0);
    let said = daemon.err().join("\n");
    assert!(!said.contains("hunter22"), "{said}");
}
