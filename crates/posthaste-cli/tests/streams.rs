//! `lanes` and `blocked`, of a stream that a relay delivers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::refusing::Refusing;
use crate::support::{Db, Kind};

on_databases!(sm2_blocked_aggregates_and_lanes_are_shown);

/// A stream with four lanes and four events: three of one order, one of another.
fn stream(kind: Kind) -> Db {
    let db = Db::new(kind);
    db.run(["migrate", "up", "--mode", "stream", "--lanes", "4"]).exits(0);
    for (topic, aggregate) in
        [("order.placed.v1", "order/1"), ("order.paid.v1", "order/1"), ("order.sent.v1", "order/1")]
    {
        db.run(["enqueue", topic, "1", "--aggregate", aggregate]).exits(0);
    }
    db.run(["enqueue", "order.paid.v1", "1", "--aggregate", "order/2"]).exits(0);
    db
}

fn sum(lanes: &Value, of: &str) -> u64 {
    lanes.as_array().unwrap().iter().map(|lane| lane[of].as_u64().unwrap()).sum()
}

fn lanes(db: &Db) -> Value {
    let lanes = db.run(["lanes", "--json"]).exits(0).json();
    let numbers: Vec<_> = lanes.as_array().unwrap().iter().map(|lane| lane["lane"].clone()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    lanes
}

fn sm2_blocked_aggregates_and_lanes_are_shown(kind: Kind) {
    let db = stream(kind);
    let before = lanes(&db);
    assert_eq!((sum(&before, "waiting"), sum(&before, "parked"), sum(&before, "blocked")), (4, 0, 0));
    for lane in before.as_array().unwrap() {
        let waiting = lane["waiting"].as_u64().unwrap();
        assert!(lane["owner"].is_null() && lane["oldest_seconds"].is_null() == (waiting == 0), "{lane}");
        assert_eq!(lane["capped"], json!(false));
    }
    assert_eq!(db.run(["blocked", "--json"]).exits(0).json(), json!([]));
    let none = db.run(["blocked"]).exits(0);
    assert_eq!(none.out, format!("table {} has no blocked aggregates\n", db.table()));

    let relay = Refusing::start(&db);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    let (owned, blocked) = loop {
        let (lanes, blocked) = (lanes(&db), db.run(["blocked", "--json"]).exits(0).json());
        if sum(&lanes, "waiting") == 0 && blocked[0]["waiting"] == json!(2) {
            break (lanes, blocked);
        }
        assert!(std::time::Instant::now() < deadline, "{kind:?}: {lanes} {blocked}");
    };
    assert_eq!((sum(&owned, "parked"), sum(&owned, "blocked")), (3, 1));
    for lane in owned.as_array().unwrap() {
        assert!(lane["owner"].is_string() && lane["oldest_seconds"].is_null(), "{lane}");
    }

    let dead = db.run(["events", "list", "--status", "dead", "--json"]).exits(0).json();
    let [one] = &blocked.as_array().unwrap()[..] else { panic!("{blocked}") };
    assert_eq!((&one["event_id"], &one["topic"]), (&dead[0]["id"], &json!("order.placed.v1")));
    assert_eq!((&one["aggregate_type"], &one["aggregate_id"]), (&json!("order"), &json!("1")));
    assert_eq!((&one["namespace"], &one["capped"]), (&json!("default"), &json!(false)));
    assert_eq!(owned[one["lane"].as_u64().unwrap() as usize]["blocked"], json!(1));
    assert!(one["reason"].as_str().unwrap().contains("customer"), "{one}");
    assert_eq!(one["since"], dead[0]["settled_at"]);

    let listed = db.run(["blocked"]).exits(0);
    let lines: Vec<_> = listed.out.lines().collect();
    assert!(lines[0].starts_with("AGGREGATE") && lines[1].starts_with("order/1 "), "{listed:?}");
    assert!(lines.len() == 2 && !listed.out.contains('\x1b'), "{listed:?}");

    relay.stop();
    let shown = db.run(["lanes"]).exits(0);
    let lines: Vec<_> = shown.out.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>().join(" "),
        "LANE OWNER WAITING OLDEST PARKED BLOCKED"
    );
    let rows: Vec<_> = lines[1..].iter().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(rows.len(), 4, "{shown:?}");
    assert!(rows.iter().all(|row| row[1] == "-"), "who stops hands its lanes over: {shown:?}");
    assert!(rows.iter().any(|row| row[2..] == ["0", "-", "3", "1"]), "{shown:?}");
}

#[test]
fn sm1_a_queue_has_neither_lanes_nor_blocked_aggregates() {
    for kind in [Kind::Postgres, Kind::MySql, Kind::MariaDb, Kind::Sqlite] {
        let db = Db::new(kind);
        if kind != Kind::Sqlite {
            db.run(["lanes"]).fails(5, "does not exist");
        }
        db.run(["migrate", "up"]).exits(0);
        for command in ["lanes", "blocked"] {
            for json in [&[][..], &["--json"]] {
                let asked = [command].into_iter().chain(json.iter().copied());
                db.run(asked).fails(5, &format!("table {} is a queue", db.table()));
            }
        }
    }
    let db = Db::new(Kind::Sqlite);
    db.run(["blocked"]).fails(5, "there is no database file");
    for limit in ["0", "10001", "many"] {
        db.run(["blocked", "--limit", limit]).exits(2);
    }
}
