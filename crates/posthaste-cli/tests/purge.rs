//! `purge`: what ended is deleted, what has not is never touched.
//!
//! Rows of the contract: OP1, OP4.

use serde_json::json;

use crate::refusing::Refusing;
use crate::snapshot::looks;
use crate::support::{Db, Dir, Kind};

in_both_modes!(op1_what_ended_is_purged_and_nothing_else);

/// Three delivered events, a dead one, and one that is not due for a long time.
fn with_ended(kind: Kind, mode: &str) -> Db {
    let db = Db::with_table(kind, mode);
    for order in ["order/1", "order/2", "order/3"] {
        db.enqueue("order.paid.v1", order);
    }
    db.enqueue("order.placed.v1", "order/4");
    Refusing::until_dead(&db, 1);
    db.run(["enqueue", "order.paid.v1", "{}", "--aggregate", "order/5", "--delay", "7d"]).exits(0);
    db
}

fn left(db: &Db, status: &str) -> usize {
    db.run(["events", "list", "--status", status, "--json"]).exits(0).json().as_array().unwrap().len()
}

fn op1_what_ended_is_purged_and_nothing_else(kind: Kind, mode: &str) {
    let db = with_ended(kind, mode);
    assert_eq!((left(&db, "delivered"), left(&db, "dead"), left(&db, "pending")), (3, 1, 1));

    let young = db.run(["purge", "--delivered", "--dead", "--older-than", "1h", "--yes"]).exits(0);
    let table = db.table();
    assert_eq!(young.out, format!("table {table} has no such delivered or dead events: nothing to purge\n"));

    let none = db.run(["purge", "--dead", "--older-than", "1h", "--dry-run", "--json"]).exits(0).json();
    assert_eq!((&none["dry_run"], &none["would_touch"][0]["count"]), (&json!(true), &json!(0)));

    let both = ["purge", "--delivered", "--dead", "--older-than", "0s"];
    let dry = db.run(both.into_iter().chain(["--dry-run"])).exits(0);
    assert_eq!(dry.err, "");
    looks(&db, &format!("purge_dry_run_{mode}"), &dry.out);
    let dry = db.run(both.into_iter().chain(["--dry-run", "--json"])).exits(0).json();
    let counts: Vec<_> = dry["would_touch"].as_array().unwrap().iter().map(|of| &of["count"]).collect();
    assert_eq!(counts, [&json!(3), &json!(1)]);
    db.run(both).exits(6);
    assert_eq!((left(&db, "delivered"), left(&db, "dead"), left(&db, "pending")), (3, 1, 1));

    let some = db.run(["purge", "--delivered", "--older-than", "0s", "--limit", "2", "--yes"]).exits(0);
    assert!(some.out.starts_with(&format!("purged 2 delivered events of table {table}\n")), "{some:?}");
    assert_eq!((left(&db, "delivered"), left(&db, "dead"), left(&db, "pending")), (1, 1, 1));
    let rest = db.run(both.into_iter().chain(["--yes"])).exits(0);
    let purged = format!("purged 1 delivered event of table {table}\npurged 1 dead event of table {table}\n");
    assert!(rest.out.starts_with(&purged), "{rest:?}");
    assert_eq!((left(&db, "delivered"), left(&db, "dead"), left(&db, "pending")), (0, 0, 1));
}

#[test]
fn op1_many_are_purged_in_batches() {
    let db = Db::with_table(Kind::Sqlite, "queue");
    db.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) \
         INSERT INTO outbox (topic, payload, outcome, settled_at) SELECT 'a', '1', 'delivered', 1 FROM n",
    );
    let purge = ["--database", "sqlite://outbox.db", "purge", "--delivered", "--older-than", "1d"];
    let piped = db.run(purge.into_iter().chain(["--limit", "1500", "--yes"])).exits(0);
    assert_eq!(piped.out, "purged 1500 delivered events of table outbox\n");
    assert!(!piped.err.contains("purging"), "no bar where nobody sees it: {piped:?}");
    let seen = db.dir.run_on_terminal(purge, "y\n").exits(0);
    assert_eq!(seen.out, "purged 1000 delivered events of table outbox\n");
    assert!(seen.err.contains("purging ["), "{seen:?}");
    assert_eq!(db.sql("SELECT count(*) FROM outbox"), "0");
}

#[test]
fn op4_a_database_elsewhere_needs_the_name_to_purge() {
    let db = with_ended(Kind::Postgres, "queue");
    let url = db.url().replace("127.0.0.1", "0.0.0.0");
    let purge = ["--database", &url, "purge", "--dead", "--older-than", "0s", "--yes"];
    let refused = db.run(purge).exits(6);
    assert!(refused.err.contains(&format!("--confirm {}", db.table())), "{refused:?}");
    assert_eq!(left(&db, "dead"), 1);
    db.run(purge.into_iter().chain(["--confirm", &db.table()])).exits(0);
    assert_eq!(left(&db, "dead"), 0);
}

#[test]
fn op1_what_is_to_be_purged_must_be_said() {
    let dir = Dir::new();
    for usage in [
        &["--older-than", "1d"][..],
        &["--delivered"],
        &["--delivered", "--older-than", "soon"],
        &["--dead", "--older-than", "1d", "--limit", "0"],
        &["--pending", "--older-than", "1d"],
    ] {
        let refused = dir.run(["purge"].into_iter().chain(usage.iter().copied())).exits(2);
        assert!(refused.err.contains("--help"), "{refused:?}");
    }
    dir.run(["purge", "--dead", "--older-than", "1d", "--yes"])
        .fails(5, "`posthaste migrate up --table outbox`");
    assert!(dir.is_empty());
}
