//! Dead events: listed, shown, replayed, discarded.
//!
//! Rows of the contract: OP1, OP4, RT6.

use serde_json::json;

use crate::refusing::Refusing;
use crate::snapshot::looks;
use crate::support::{Db, Dir, Kind};

in_both_modes!(
    op1_dead_events_are_listed_and_shown,
    rt6_a_replay_shows_what_it_would_touch_and_touches_nothing_unless_agreed,
    rt6_dead_events_are_replayed_by_id_filter_and_limit,
    rt6_what_waits_behind_a_discarded_event_goes_on,
    op1_the_beginning_of_an_id_is_enough,
);
on_servers!(op4_a_database_elsewhere_needs_the_name_to_replay_and_discard);
on_databases!(op1_an_event_that_is_not_dead_is_an_answer_of_no);

/// Two orders that were placed for nobody, which is known, and of one of them two events more.
fn with_dead(kind: Kind, mode: &str) -> Db {
    let db = Db::with_table(kind, mode);
    for (topic, order) in [
        ("order.placed.v1", "order/1"),
        ("order.placed.v1", "order/2"),
        ("order.paid.v1", "order/1"),
        ("order.sent.v1", "order/1"),
        ("order.paid.v1", "order/3"),
    ] {
        db.enqueue(topic, order);
    }
    Refusing::until_dead(&db, 2);
    db
}

fn dead(db: &Db) -> Vec<String> {
    let dead = db.run(["dead", "list", "--json", "--oldest-first"]).exits(0).json();
    dead.as_array().unwrap().iter().map(|event| event["id"].as_str().unwrap().to_owned()).collect()
}

fn op1_dead_events_are_listed_and_shown(kind: Kind, mode: &str) {
    let db = with_dead(kind, mode);
    looks(&db, &format!("dead_list_{mode}"), &db.run(["dead", "list"]).exits(0).out);

    let listed = db.run(["dead", "list", "--json", "--aggregate", "order/2"]).exits(0).json();
    let [event] = &listed.as_array().unwrap()[..] else { panic!("{listed}") };
    assert_eq!((&event["status"], &event["attempts"]), (&json!("dead"), &json!(1)));
    assert!(event["last_error"].as_str().unwrap().contains("customer"), "{event}");
    assert!(event["settled_at"].is_string() && event.get("payload").is_none(), "{event}");

    let id = &dead(&db)[0];
    looks(&db, &format!("dead_show_{mode}"), &db.run(["dead", "show", id]).exits(0).out);
    let shown = db.run(["dead", "show", id, "--json"]).exits(0).json();
    assert_eq!((&shown["id"], &shown["payload"]), (&json!(id), &json!({})));

    let none = db.run(["dead", "list", "--topic", "stock.*"]).exits(0);
    assert_eq!(none.out, format!("table {} has no such dead events\n", db.table()));
    assert_eq!(db.run(["dead", "list", "--until", "1h", "--json"]).exits(0).json(), json!([]));
    assert_eq!(
        db.run(["dead", "list", "--since", "2000-01-31", "--limit", "1"]).exits(0).out.lines().count(),
        2
    );
}

fn rt6_a_replay_shows_what_it_would_touch_and_touches_nothing_unless_agreed(kind: Kind, mode: &str) {
    let db = with_dead(kind, mode);
    let before = dead(&db);
    let dry = db.run(["dead", "replay", "--topic", "order.*", "--dry-run"]).exits(0);
    assert_eq!(dry.err, "");
    looks(&db, &format!("dead_replay_dry_run_{mode}"), &dry.out);
    let dry = db.run(["dead", "replay", "--all", "--dry-run", "--json"]).exits(0).json();
    assert_eq!((&dry["action"], &dry["dry_run"]), (&json!("replay"), &json!(true)));
    let touched = &dry["would_touch"][0];
    assert_eq!(
        (&touched["kind"], &touched["count"], &touched["capped"]),
        (&json!("dead"), &json!(2), &json!(false))
    );
    assert_eq!(touched["sample"][0]["id"], json!(before[0]));
    assert_eq!(dry["blocked_aggregates"], if mode == "stream" { json!(2) } else { json!(null) });

    let refused = db.run(["dead", "replay", "--all"]).exits(6);
    assert!(
        refused.err.starts_with("Would replay 2 dead events") && refused.err.contains("--yes"),
        "{refused:?}"
    );
    assert_eq!((refused.out.as_str(), dead(&db)), ("", before));
}

fn rt6_dead_events_are_replayed_by_id_filter_and_limit(kind: Kind, mode: &str) {
    let db = with_dead(kind, mode);
    let before = dead(&db);
    let done = db.run(["dead", "replay", "--topic", "order.placed.*", "--limit", "1", "--yes"]).exits(0);
    looks(&db, &format!("dead_replayed_{mode}"), &done.out);
    assert!(done.err.contains("Would replay 1 dead event "), "{done:?}");
    assert_eq!(dead(&db), before[1..], "oldest first");
    let first = db.run(["events", "show", &before[0], "--json"]).exits(0).json();
    assert_eq!((&first["status"], &first["attempts"]), (&json!("pending"), &json!(0)));
    assert!(
        first["last_error"].as_str().unwrap().contains("customer"),
        "kept until it is delivered: {first}"
    );

    let done = db.run(["dead", "replay", &before[1], "--yes", "--json"]).exits(0).json();
    let blocked = if mode == "stream" { json!(0) } else { json!(null) };
    assert_eq!(
        done,
        json!({ "table": db.table(), "action": "replay", "dry_run": false, "touched": 1, "blocked_aggregates": blocked })
    );
    assert_eq!(dead(&db), [""; 0]);
    let none = db.run(["dead", "replay", "--all"]).exits(0);
    assert_eq!(none.out, format!("table {} has no such dead events: nothing to replay\n", db.table()));
    // They die once more.
    Refusing::until_dead(&db, 2);
    assert_eq!(dead(&db), before);
}

fn rt6_what_waits_behind_a_discarded_event_goes_on(kind: Kind, mode: &str) {
    let db = with_dead(kind, mode);
    let before = dead(&db);
    let done = db.run(["dead", "discard", "--aggregate", "order/1", "--yes"]).exits(0);
    looks(&db, &format!("dead_discarded_{mode}"), &format!("{}\n{}", done.err, done.out));
    assert_eq!(dead(&db), before[1..]);
    db.run(["events", "show", &before[0]]).fails(1, "has no event");
    let all = db.run(["dead", "discard", "--all", "--yes"]).exits(0);
    let nobody = if mode == "stream" { "no aggregate is blocked any more\n" } else { "" };
    assert_eq!(all.out, format!("discarded 1 dead event of table {}\n{nobody}", db.table()));
    Refusing::until_dead(&db, 0);
    let left = db.run(["events", "list", "--status", "pending", "--json"]).exits(0).json();
    assert_eq!(left, json!([]), "{kind:?} {mode}");
}

fn op4_a_database_elsewhere_needs_the_name_to_replay_and_discard(kind: Kind) {
    let db = with_dead(kind, "queue");
    let before = dead(&db);
    // Leads to this machine, but does not say so.
    let url = db.url().replace("127.0.0.1", "0.0.0.0");
    for command in ["replay", "discard"] {
        let elsewhere = ["--database", &url, "dead", command, "--all", "--yes"];
        let refused = db.run(elsewhere).exits(6);
        assert!(refused.err.contains(&format!("--confirm {}", db.table())), "{refused:?}");
        let wrong = db.run(elsewhere.into_iter().chain(["--confirm", "orders"])).exits(6);
        assert!(wrong.err.contains("--confirm names \"orders\""), "{wrong:?}");
        db.run(["--database", &url, "dead", command, "--all", "--dry-run"]).exits(0);
        assert_eq!(dead(&db), before);
    }
    db.run(["--database", &url, "dead", "discard", "--all", "--yes", "--confirm", &db.table()]).exits(0);
    assert_eq!(dead(&db), [""; 0]);
}

#[test]
fn op4_on_a_terminal_a_replay_asks() {
    let db = with_dead(Kind::Sqlite, "queue");
    let replay = || ["--database", "sqlite://outbox.db", "dead", "replay", "--all"];
    for no in ["n\n", "\n", "\x04"] {
        let asked = db.dir.run_on_terminal(replay(), no).exits(6);
        assert!(
            asked.err.contains("Proceed? [y/N]") && asked.err.contains("nothing was changed"),
            "{asked:?}"
        );
        assert_eq!(dead(&db).len(), 2);
    }
    let asked = db.dir.run_on_terminal(replay(), "y\n").exits(0);
    assert!(asked.err.contains("Would replay 2 dead events"), "{asked:?}");
    assert_eq!(asked.out, "replayed 2 dead events of table outbox\n");
    assert_eq!(dead(&db).len(), 0);
}

#[test]
fn op1_which_dead_events_must_be_said() {
    let dir = Dir::new();
    let id = "0190a6b0-0000-7000-8000-000000000001";
    for command in ["replay", "discard"] {
        dir.run(["dead", command, "--yes"]).fails(2, "or --all");
        dir.run(["dead", command, "--limit", "5"]).fails(2, "no dead events are named");
        for both in [&[id, "--all"][..], &[id, "--topic", "a"], &["--all", "--tenant", "acme"]] {
            dir.run(["dead", command].into_iter().chain(both.iter().copied())).fails(2, "exclude each other");
        }
        dir.run(["dead", command, "7"]).fails(3, "neither a UUID nor a ULID");
        for usage in [&["--limit", "0"][..], &["--since", "yesterday"], &["--confirm"], &[id, id]] {
            dir.run(["dead", command].into_iter().chain(usage.iter().copied())).exits(2);
        }
        dir.run(["dead", command, "--all"]).fails(5, "`posthaste migrate up --table outbox`");
    }
    dir.run(["dead", "show", "7"]).fails(3, "neither a UUID nor a ULID");
    for command in [&["dead", "list"][..], &["dead", "show", id]] {
        dir.run(command.iter().copied()).fails(5, "`posthaste migrate up --table outbox`");
    }
    assert!(dir.is_empty(), "looking creates nothing");
}

fn op1_an_event_that_is_not_dead_is_an_answer_of_no(kind: Kind) {
    let db = Db::with_table(kind, "queue");
    let id = db.enqueue("order.paid.v1", "order/1");
    for command in ["show", "replay", "discard"] {
        let words = format!("event {id} of table {} is pending, not dead", db.table());
        db.run(["dead", command, &id]).fails(1, &words);
        let nobody = "0190a6b0-0000-7000-8000-000000000001";
        db.run(["dead", command, nobody]).fails(1, "`posthaste dead list`");
    }
    assert_eq!(db.run(["events", "show", &id, "--json"]).exits(0).json()["status"], "pending");
}

fn op1_the_beginning_of_an_id_is_enough(kind: Kind, mode: &str) {
    let db = Db::with_table(kind, mode);
    let ids = [
        "0190a6b0-0000-7000-8000-000000000001",
        "0190a6b0-0000-7000-9000-000000000002",
        "0190a6b1-0000-7000-8000-000000000003",
    ];
    for (id, topic) in ids.into_iter().zip(["order.placed.v1", "order.paid.v1", "order.paid.v1"]) {
        db.run(["enqueue", topic, "{}", "--id", id, "--aggregate", &format!("order/{id}")]).exits(0);
    }
    let shown = |text: &str| db.run(["events", "show", text, "--json"]).exits(0).json()["id"].clone();
    assert_eq!(shown("0190a6b1"), json!(ids[2]), "{kind:?} {mode}");
    assert_eq!(shown("0190A6B1-00"), json!(ids[2]), "{kind:?} {mode}");
    assert_eq!(shown("0190a6b0-0000-7000-8"), json!(ids[0]), "{kind:?} {mode}");
    let several = db.run(["events", "show", "0190a6b0"]).fails(1, "give more of it");
    assert!(
        several.err.contains(ids[0]) && several.err.contains(ids[1]) && !several.err.contains(ids[2]),
        "{several:?}"
    );
    db.run(["events", "show", "0190a6b2"]).fails(1, "has no event whose id begins with 0190a6b2");
    db.run(["events", "show", "0190a6b"]).fails(3, "at least its first 8 characters");

    Refusing::until_dead(&db, 1);
    // Two begin so, and one of them is dead.
    let dead = |text: &str| db.run(["dead", "show", text, "--json"]).exits(0).json()["id"].clone();
    assert_eq!(dead("0190a6b0"), json!(ids[0]), "{kind:?} {mode}");
    db.run(["dead", "show", "0190a6b1"]).fails(1, "not dead");
    let dry = db.run(["dead", "replay", "0190a6b0", "--dry-run", "--json"]).exits(0).json();
    assert_eq!(dry["would_touch"][0]["sample"][0]["id"], json!(ids[0]));
    db.run(["dead", "discard", "0190a6b0-0000", "--yes"]).exits(0);
    db.run(["dead", "show", ids[0]]).fails(1, "has no event");
}
