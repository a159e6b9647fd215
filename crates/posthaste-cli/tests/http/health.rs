//! Alive, ready, degraded, not ready.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::client::{Client, DATABASES, TOKEN, start, start_with};
use crate::daemon::{Daemon, Receiver, forward, wait_for};
use crate::support::{Db, Dir, Kind};

on_databases!(op6_readiness_is_answered_while_all_who_list_wait);

/// Waits until it is in this condition.
#[track_caller]
fn becomes(client: &Client, condition: &str) -> Value {
    wait_for(condition, || {
        let answer = client.get("/readyz");
        let report = answer.json();
        assert_eq!(answer.code, if report["status"] == "not_ready" { 503 } else { 200 }, "{report}");
        (report["status"] == condition).then_some(report)
    })
}

fn reasons(report: &Value) -> String {
    report["reasons"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap()).collect()
}

#[test]
fn op5_a_daemon_is_alive_and_ready() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start(&db);
        assert_eq!(client.get("/healthz").is(200), json!({ "status": "alive" }));
        let ready = client.get("/readyz").is(200);
        let table = json!({ "table": db.table(), "status": "ready", "relay": "working", "reasons": [] });
        assert_eq!(ready, json!({ "status": "ready", "reasons": [], "tables": [table] }));
        daemon.stop();
    }
}

#[test]
fn op5_a_table_that_is_gone_is_not_ready_until_it_is_back() {
    for kind in DATABASES {
        let db = Db::new(kind);
        let (daemon, client) = start(&db);
        let name = db.table();
        let (away, back) = match kind {
            Kind::Postgres => (
                format!("ALTER TABLE {name} RENAME TO gone"),
                format!("ALTER TABLE {} RENAME TO outbox", name.replace("outbox", "gone")),
            ),
            _ => ("ALTER TABLE outbox RENAME TO gone".into(), "ALTER TABLE gone RENAME TO outbox".into()),
        };
        db.sql(&away);
        let report = becomes(&client, "not_ready");
        assert!(reasons(&report).contains("migrate up"), "{report}");
        let path = format!("/api/v1/tables/{name}/events");
        client.get(&path).fails(503, "unavailable", "migrate up");
        let status = client.get("/api/v1/status").is(200);
        assert!(status["tables"][0]["error"].as_str().unwrap().contains("migrate up"), "{status}");
        assert_eq!(client.get("/healthz").code, 200);
        db.sql(&back);
        becomes(&client, "ready");
        client.get(&path).is(200);
        daemon.stop();
    }
}

/// However many ask while the database hangs, each is answered soon, and one of them asks the database.
#[test]
fn op5_readiness_takes_a_bounded_time() {
    let db = Db::new(Kind::Postgres);
    let (daemon, client) = start(&db);
    let table = db.table();
    thread::scope(|scope| {
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(8); COMMIT");
        let db = &db;
        scope.spawn(move || db.sql(&lock));
        let held = format!(
            "SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND mode = 'AccessExclusiveLock' AND granted"
        );
        wait_for("lock", || (db.sql(&held) == "1").then_some(()));
        let began = Instant::now();
        let report = becomes(&client, "not_ready");
        assert!(reasons(&report).contains("did not answer within 2s"), "{report}");
        let probes: Vec<_> = (0..30).map(|_| scope.spawn(|| client.get("/readyz").code)).collect();
        assert!(probes.into_iter().all(|probe| probe.join().unwrap() == 503));
        assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
        let waiting =
            format!("SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND NOT granted");
        // Of the relay a few, of the probes one at a time.
        assert!(db.sql(&waiting).parse::<u32>().unwrap() < 10, "{}", db.sql(&waiting));
    });
    becomes(&client, "ready");
    daemon.stop();
}

/// Looking at events takes longer than anybody may look, while to know how many wait takes no time at all.
fn slow_to_list(db: &Db) {
    let (table, rows) = (db.table(), db.table().replace("outbox", "kept"));
    let (sleep, delivered) = match db.kind {
        Kind::Postgres => ("pg_sleep(0.05 + 0 * length(topic)) IS NOT NULL", "now()"),
        Kind::MySql | Kind::MariaDb => ("SLEEP(0.05) = 0", "UTC_TIMESTAMP(6)"),
        Kind::Sqlite => (
            "(WITH RECURSIVE c(n) AS (SELECT kept.seq UNION ALL SELECT n + 1 FROM c WHERE n < 300000) SELECT max(n) FROM c) > 0",
            "1",
        ),
    };
    let ten = (0..10).map(|n| format!("SELECT {n} AS n")).collect::<Vec<_>>().join(" UNION ALL ");
    db.sql(&format!(
        "INSERT INTO {table} (topic, payload, outcome, settled_at)
         SELECT 'old', '1', 'delivered', {delivered} FROM ({ten}) AS a, ({ten}) AS b, ({ten}) AS c"
    ));
    db.sql(&format!("ALTER TABLE {table} RENAME TO kept"));
    db.sql(&format!("CREATE VIEW {table} AS SELECT * FROM {rows} AS kept WHERE outcome IS NULL OR {sleep}"));
}

/// As many look as there are connections, and more; each is told to ask for less.
fn op6_readiness_is_answered_while_all_who_list_wait(kind: Kind) {
    let db = Db::new(kind);
    let (daemon, client) = start(&db);
    let table = db.table();
    // The relay has nothing to do with this.
    client.tell(&format!("/api/v1/relays/{table}/pause")).is(200);
    slow_to_list(&db);
    let listings = if kind == Kind::Sqlite { 3 } else { 10 };
    let path = format!("/api/v1/tables/{table}/events?limit=1000");
    let (client, path, table) = (&client, &path, &table);
    thread::scope(|scope| {
        let began = Instant::now();
        let list = move || {
            let answer = client.get(path);
            answer.fails(422, "too_slow", &format!("looking for events in table {table} took too long"));
            answer.fails(422, "too_slow", " s; narrow it");
        };
        let listings: Vec<_> = (0..listings).map(|_| scope.spawn(list)).collect();
        let mut answers = 0;
        while !listings.iter().all(|listing| listing.is_finished()) {
            let answer = client.get("/readyz");
            assert_eq!(answer.code, 200, "{kind:?} after {:?}: {answer:?}", began.elapsed());
            answers += 1;
            // Another one is asked for when this one is too old.
            thread::sleep(Duration::from_millis(200));
        }
        listings.into_iter().for_each(|listing| listing.join().unwrap());
        let took = began.elapsed();
        assert!((Duration::from_secs(5)..Duration::from_secs(25)).contains(&took), "{kind:?}: {took:?}");
        assert!(answers > 5, "{kind:?}");
    });
    // What is found by an index is found as ever.
    client.get(&format!("/api/v1/tables/{table}/dead")).is(200);
    daemon.stop();
}

#[test]
fn op5_a_sink_that_rests_or_is_paused_is_degraded() {
    let dir = Dir::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let file = format!("[sinks.hooks]\nkind = \"http\"\nurl = \"http://{address}/hunter22\"\n");
    let (daemon, client) = start_with(&dir, &file);
    client.get("/readyz").is(200);
    client.post("/api/v1/tables/outbox/events", &json!({ "topic": "a", "payload": 1 })).is(201);
    let report = becomes(&client, "degraded");
    assert!(reasons(&report).contains("sink hooks has been unavailable for "), "{report}");
    assert_eq!(report["tables"][0]["relay"], "working");
    assert!(!report.to_string().contains("hunter22"), "{report}");
    // Somebody listens there again.
    let receiver = Receiver::new(true);
    forward(TcpListener::bind(address).unwrap(), receiver.address);
    receiver.posts(1);
    becomes(&client, "ready");

    client.tell("/api/v1/relays/outbox/sinks/hooks/pause").is(200);
    let report = becomes(&client, "degraded");
    assert_eq!(report["reasons"], json!(["sink hooks is paused; resume it"]));
    client.tell("/api/v1/relays/outbox/sinks/hooks/resume").is(200);
    becomes(&client, "ready");
    client.tell("/api/v1/relays/outbox/pause").is(200);
    let report = becomes(&client, "degraded");
    assert_eq!(report["tables"][0]["relay"], "paused");
    daemon.stop();
}

#[test]
fn op5_before_the_database_is_reached_it_says_what_it_waits_for() {
    let db = Db::new(Kind::Postgres);
    db.run(["migrate", "up"]).exits(0);
    let url = db.url();
    let (_, rest) = url.split_once('@').unwrap();
    let (server, _) = rest.split_once('/').unwrap();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let away = url.replace(server, &address.to_string());
    let mut command = db.command(["relay"]);
    let mut daemon = Daemon::spawn(command.env("OUTBOX_DATABASE_URL", away).env("OUTBOX_HTTP_TOKEN", TOKEN));
    let client = Client::of(&mut daemon);
    let report = becomes(&client, "not_ready");
    assert_eq!(report["tables"][0]["relay"], "starting");
    assert_eq!(client.get("/healthz").code, 200);
    let table = db.table();
    client.get(&format!("/api/v1/tables/{table}/events")).fails(503, "unavailable", "not been reached yet");
    client.tell(&format!("/api/v1/relays/{table}/pause")).fails(503, "unavailable", "not started yet");
    let status = client.get("/api/v1/status").is(200);
    assert_eq!((&status["tables"][0]["status"], &status["tables"][0]["relay"]), (&Value::Null, &Value::Null));
    forward(TcpListener::bind(address).unwrap(), server.parse().unwrap());
    becomes(&client, "ready");
    daemon.stop();
}

#[test]
fn op5_a_daemon_that_drains_is_not_ready() {
    let receiver = Receiver::new(false);
    let dir = Dir::new();
    let file = format!("[sinks.hooks]\nkind = \"http\"\nurl = \"http://{}/\"\n", receiver.address);
    let (mut daemon, client) = start_with(&dir, &file);
    client.post("/api/v1/tables/outbox/events", &json!({ "topic": "a", "payload": 1 })).is(201);
    receiver.posts(1);
    daemon.signal(Signal::TERM);
    let report = becomes(&client, "not_ready");
    assert!(reasons(&report).contains("drains"), "{report}");
    receiver.answer();
    assert_eq!(daemon.ends(), 0);
    assert!(std::net::TcpStream::connect(client.address).is_err(), "it still listens");
}
