//! `events list` and `events show`: filters, order, and what the table may hold.
//!
//! Rows of the contract: OP1.

use serde_json::json;

use crate::support::{Answer, Db, Dir, Kind};

fn topics(dir: &Dir, filter: &[&str]) -> Vec<String> {
    let arguments = ["events", "list", "--json"].into_iter().chain(filter.iter().copied());
    let events = dir.run(arguments).exits(0).json();
    events.as_array().unwrap().iter().map(|e| e["topic"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn op1_events_are_filtered() {
    let dir = Dir::new();
    dir.run(["enqueue", "order.placed.v1", "1", "--aggregate", "order/1", "--tenant", "acme"]).exits(0);
    dir.run(["enqueue", "order.paid.v1", "1", "--aggregate", "order/2", "--namespace", "shop"]).exits(0);
    dir.run(["enqueue", "stock.moved.v1", "1", "--event-type", "moved"]).exits(0);

    assert_eq!(topics(&dir, &[]), ["stock.moved.v1", "order.paid.v1", "order.placed.v1"]);
    assert_eq!(topics(&dir, &["--oldest-first", "--limit", "2"]), ["order.placed.v1", "order.paid.v1"]);
    assert_eq!(topics(&dir, &["--topic", "order.*"]), ["order.paid.v1", "order.placed.v1"]);
    assert_eq!(topics(&dir, &["--topic", "order.paid.v1"]), ["order.paid.v1"]);
    assert_eq!(topics(&dir, &["--event-type", "moved"]), ["stock.moved.v1"]);
    assert_eq!(topics(&dir, &["--aggregate", "order/2"]), ["order.paid.v1"]);
    assert_eq!(topics(&dir, &["--tenant", "acme"]), ["order.placed.v1"]);
    assert_eq!(topics(&dir, &["--namespace", "shop"]), ["order.paid.v1"]);
    assert_eq!(topics(&dir, &["--status", "pending"]).len(), 3);
    assert_eq!(topics(&dir, &["--status", "dead"]).len(), 0);
    assert_eq!(topics(&dir, &["--since", "1h"]).len(), 3);
    assert_eq!(topics(&dir, &["--until", "1h"]).len(), 0);
    assert_eq!(
        topics(&dir, &["--since", "2000-01-01T00:00:00Z", "--until", "2999-01-01T00:00:00Z"]).len(),
        3
    );
    assert_eq!(topics(&dir, &["--since", "2999-01-01T00:00:00Z"]).len(), 0);

    let none = dir.run(["events", "list", "--status", "dead"]).exits(0);
    assert_eq!(none.out, "table outbox has no such events\n");
}

#[test]
fn op1_what_others_wrote_cannot_steer_the_terminal() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.sql("INSERT INTO outbox (topic, payload, last_error) VALUES ('a' || char(27) || '[2Jb', '1', char(27) || 'x')");
    let listed = db.run(["events", "list"]).exits(0);
    assert!(listed.out.contains("a\\u{1b}[2Jb"), "{listed:?}");
    let id = db.sql("SELECT id FROM outbox");
    let shown = db.run(["events", "show", &id]).exits(0);
    assert!(shown.out.contains("last error    \\u{1b}x") && !shown.out.contains('\x1b'), "{shown:?}");
}

#[test]
fn op1_the_events_of_a_stream_are_listed_and_shown_as_a_queues_are() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up", "--mode", "stream", "--lanes", "4"]).exits(0);
    let id = "0190a6b0-0000-7000-8000-000000000003";
    db.run(["enqueue", "order.placed.v1", "1", "--aggregate", "order/1", "--id", id]).exits(0);
    db.run(["enqueue", "order.paid.v1", "1", "--aggregate", "order/2"]).exits(0);
    let listed = db.run(["events", "list", "--status", "pending", "--json"]).exits(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    db.sql(
        "INSERT INTO outbox_parked (seq, id, lane, topic, key, blocks, attempts, outcome, last_error, settled_at) \
         SELECT seq, id, lane, topic, 'order/1', 1, 3, 'dead', 'broken', created_at FROM outbox WHERE topic = 'order.placed.v1'; \
         UPDATE outbox SET outcome = 'parked' WHERE topic = 'order.placed.v1'",
    );
    let dead = db.run(["events", "list", "--status", "dead", "--json"]).exits(0).json();
    assert_eq!((dead.as_array().unwrap().len(), &dead[0]["id"]), (1, &json!(id)));
    let shown = db.run(["events", "show", id, "--json"]).exits(0).json();
    assert_eq!((&shown["status"], &shown["attempts"]), (&json!("dead"), &json!(3)));
    assert_eq!(shown["last_error"], json!("broken"));
    assert_eq!(
        db.run(["events", "list", "--status", "pending", "--json"]).exits(0).json()[0]["topic"],
        "order.paid.v1"
    );
}

#[test]
fn op1_a_row_that_is_no_event_is_shown_with_the_reason() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.sql(r#"INSERT INTO outbox (topic, payload, headers) VALUES ('a', '1', '{"number": 1}')"#);
    let listed = db.run(["events", "list"]).exits(0);
    assert!(listed.out.contains("undecodable"), "{listed:?}");
    let id = db.sql("SELECT id FROM outbox");
    let shown = db.run(["events", "show", &id, "--json"]).exits(0).json();
    assert!(shown["unreadable"].as_str().unwrap().contains("headers"), "{shown}");
    assert_eq!(shown["topic"], json!(null));
}

#[test]
fn op1_the_same_event_looks_the_same_in_every_database() {
    let id = "0190a6b0-0000-7000-8000-000000000002";
    let arguments = ["enqueue", "a.b", r#"{"z": 1.50}"#, "--id", id, "--aggregate", "x/1", "--header", "k=v"];
    let shown = [Kind::Postgres, Kind::MySql, Kind::MariaDb, Kind::Sqlite].map(|kind| {
        let db = Db::new(kind);
        db.run(["migrate", "up"]).exits(0);
        db.run(arguments).exits(0);
        let mut event = db.run(["events", "show", id, "--json"]).exits(0).json();
        for time in ["created_at", "occurred_at", "available_at"] {
            assert!(event[time].as_str().unwrap().ends_with('Z'), "{event}");
            event[time] = json!(null);
        }
        event
    });
    shown.iter().for_each(|event| assert_eq!(*event, shown[0]));
    assert_eq!(shown[0]["sequence"], 1);
}

/// The database may allow less than the command line would.
#[test]
fn op6_a_listing_that_takes_too_long_says_what_to_do() {
    let db = Db::with_table(Kind::Postgres, "queue");
    db.enqueue("order.placed.v1", "order/1");
    let table = db.table();
    db.sql(&format!("ALTER TABLE {table} RENAME TO kept"));
    let kept = table.replace("outbox", "kept");
    db.sql(&format!(
        "CREATE VIEW {table} AS SELECT * FROM {kept} WHERE pg_sleep(5 + 0 * length(topic)) IS NOT NULL"
    ));
    let url = format!("{}?options=-c%20statement_timeout%3D300", db.url());
    let mut command = db.command(["events", "list", "--topic", "order.*"]);
    let answer: Answer = command.env("OUTBOX_DATABASE_URL", url).output().unwrap().into();
    let answer =
        answer.fails(1, &format!("looking for events of topic \"order.*\" in table {table} took too long"));
    assert!(answer.err.contains("narrow it: by status"), "{answer:?}");
}
