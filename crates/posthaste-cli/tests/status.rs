//! `status`: what the database knows, once and watched.
//!
//! Rows of the contract: OP1.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::refusing::Refusing;
use crate::snapshot::looks;
use crate::support::{Db, Dir, Kind, answer, interrupt, screen};

in_both_modes!(op1_the_status_says_what_the_database_knows);
on_databases!(op1_the_relays_of_a_stream_are_counted, op1_the_relays_of_a_queue_are_those_that_hold_an_event,);

fn op1_the_status_says_what_the_database_knows(kind: Kind, mode: &str) {
    let db = Db::with_table(kind, mode);
    let empty = db.run(["status", "--json"]).exits(0).json();
    let [relays, blocked, lanes] = match mode {
        "stream" => [json!([]), json!(0), json!(1)],
        _ => [json!(null), json!(null), json!(null)],
    };
    for (field, value) in [
        ("table", json!(db.table())),
        ("mode", json!(mode)),
        ("lanes", lanes),
        ("pending", json!(0)),
        ("processing", json!(0)),
        ("dead", json!(0)),
        ("capped", json!(false)),
        ("oldest_seconds", json!(null)),
        ("delivered_per_second", json!(null)),
        ("relays", relays),
        ("blocked_aggregates", blocked),
        ("schema", json!(1)),
        ("newest_schema", json!(1)),
    ] {
        assert_eq!(empty[field], value, "{kind:?} {mode}: {field}");
    }
    assert!(
        empty["clock_skew_seconds"].as_f64().unwrap().abs() < 10.0 && empty["now"].is_string(),
        "{empty}"
    );

    db.enqueue("order.placed.v1", "order/1");
    db.enqueue("order.paid.v1", "order/2");
    Refusing::until_dead(&db, 1);
    db.enqueue("order.sent.v1", "order/3");
    let name = match (kind, mode) {
        // Delivering an event writes nothing to its row.
        (Kind::Postgres, "stream") => "status_stream_postgres",
        (_, "stream") => "status_stream",
        _ => "status_queue",
    };
    looks(&db, name, &db.run(["status"]).exits(0).out);
    let status = db.run(["status", "--json"]).exits(0).json();
    assert!(status["oldest_seconds"].as_f64().unwrap() < 60.0, "{status}");
    match name {
        "status_stream_postgres" => assert_eq!(status["delivered_per_second"], json!(null)),
        _ => assert!(status["delivered_per_second"].as_f64().unwrap() <= 0.1, "{status}"),
    }
}

fn op1_the_relays_of_a_stream_are_counted(kind: Kind) {
    let db = Db::with_table(kind, "stream");
    let relay = Refusing::start(&db);
    let deadline = Instant::now() + Duration::from_secs(30);
    let relays = |db: &Db| db.run(["status", "--json"]).exits(0).json()["relays"].as_array().unwrap().len();
    while relays(&db) != 1 {
        assert!(Instant::now() < deadline, "{kind:?}");
    }
    relay.stop();
    assert_eq!(relays(&db), 0, "{kind:?}: who stops says so");
}

fn op1_the_relays_of_a_queue_are_those_that_hold_an_event(kind: Kind) {
    let db = Db::with_table(kind, "queue");
    let relay = Refusing::start(&db);
    assert_eq!(
        db.run(["status", "--json"]).exits(0).json()["relays"],
        json!(null),
        "nobody has anything to do"
    );
    let id = db.enqueue("order.slow.v1", "order/1");
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        let status = db.run(["status", "--json"]).exits(0).json();
        if status["processing"] == 1 {
            break status;
        }
        assert!(Instant::now() < deadline, "{kind:?}: {status}");
    };
    let event = db.run(["events", "show", &id, "--json"]).exits(0).json();
    let [relay_named] = &status["relays"].as_array().unwrap()[..] else { panic!("{status}") };
    let (relay_named, holder) = (relay_named.as_str().unwrap(), event["locked_by"].as_str().unwrap());
    assert!(holder.starts_with(relay_named) && !relay_named.contains(['~', '#']), "{relay_named} {holder}");
    relay.abandon();
}

#[test]
fn op1_a_missing_table_has_no_status() {
    for kind in [Kind::Postgres, Kind::MySql, Kind::MariaDb, Kind::Sqlite] {
        let db = Db::new(kind);
        for watch in [&[][..], &["--watch"], &["--json"]] {
            db.run(["status"].into_iter().chain(watch.iter().copied()))
                .fails(5, "`posthaste migrate up --table ");
        }
    }
    let dir = Dir::new();
    for seconds in ["0", "soon", "NaN", "1e9"] {
        let refused = dir.run(["status", "--watch", seconds]).exits(2);
        assert!(refused.err.contains("--watch"), "{refused:?}");
    }
    assert!(dir.is_empty());
}

#[test]
fn op1_a_watched_status_is_a_line_for_each_look() {
    let db = Db::with_table(Kind::Sqlite, "queue");
    db.enqueue("order.paid.v1", "order/1");
    let mut child = db.spawn(["status", "--watch", "0.1", "--json"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let look: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!((&look["pending"], &look["mode"]), (&json!(1), &json!("queue")));
    }
    interrupt(&child);
    assert_eq!(answer(child).exits(0).err, "");

    let mut child = db.spawn(["status", "--watch", "0.1"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let look = lines.next().unwrap().unwrap();
        assert!(
            look.contains("outbox: 1 pending, oldest ") && look.ends_with("0 dead, - delivered/s, - relays"),
            "{look}"
        );
    }
    interrupt(&child);
    answer(child).exits(0);
}

#[test]
fn op1_a_watched_status_ends_with_ctrl_c_from_its_first_line_on() {
    let db = Db::with_table(Kind::Sqlite, "queue");
    for _ in 0..10 {
        // As a shell starts what runs in the background: Ctrl-C is ignored by whoever does not ask for it.
        let watch = db.command(["status", "--watch", "60", "--json"]);
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' INT; exec \"$@\"", "sh"])
            .arg(watch.get_program())
            .args(watch.get_args());
        command.current_dir(watch.get_current_dir().unwrap());
        for (name, value) in watch.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        interrupt(&child);
        assert!(lines.next().is_none(), "it looks again in a minute");
        answer(child).exits(0);
    }
}

#[test]
fn op1_a_watched_status_is_drawn_in_place() {
    let db = Db::with_table(Kind::Sqlite, "queue");
    let (mut master, terminal) = screen(120);
    let mut command = db.command(["status", "--watch", "0.1"]);
    let child = command.stdout(terminal).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let mut shown = String::new();
    let mut bytes = [0; 1024];
    // The second time it goes up by as many lines as it drew.
    while shown.matches("\x1b[3A\r\x1b[J").count() < 2 {
        let read = master.read(&mut bytes).unwrap();
        shown += std::str::from_utf8(&bytes[..read]).unwrap();
        assert!(shown.len() < 10_000, "{shown:?}");
    }
    assert!(shown.contains("PENDING"), "{shown:?}");
    interrupt(&child);
    answer(child).exits(0);
}
