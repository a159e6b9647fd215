//! `events tail`: events as they are committed, also those that are committed late.
//!
//! Rows of the contract: OP1.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{Db, Dir, Kind, answer, interrupt};

in_both_modes!(op1_events_are_printed_as_they_are_committed);
in_both_modes_on_servers!(op1_an_event_that_is_committed_late_is_printed_late);
on_databases!(op1_many_events_at_once_are_all_printed);

/// Somebody who follows a table.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    /// Begins; from here on nothing is missed.
    fn start(db: &Db, more: &[&str]) -> Self {
        let arguments = ["events", "tail", "--every", "0.1"].into_iter().chain(more.iter().copied());
        let mut child = db.spawn(arguments);
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let began = said.next().unwrap().unwrap();
        assert_eq!(began, format!("following table {}; Ctrl-C ends it", db.table()));
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let (line, lines) = channel();
        std::thread::spawn(move || out.map_while(Result::ok).try_for_each(|text| line.send(text)));
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("a line")
    }

    #[track_caller]
    fn next_topic(&self) -> String {
        let event: Value = serde_json::from_str(&self.next()).unwrap();
        event["topic"].as_str().unwrap().to_owned()
    }

    /// Ctrl-C; what it had said that nobody read.
    fn stop(self) -> Vec<String> {
        interrupt(&self.child);
        answer(self.child).exits(0);
        self.lines.iter().collect()
    }
}

fn op1_events_are_printed_as_they_are_committed(kind: Kind, mode: &str) {
    let db = Db::with_table(kind, mode);
    db.enqueue("order.placed.v1", "order/1");
    let all = Follower::start(&db, &["--json"]);
    let paid = Follower::start(&db, &["--topic", "*.paid.*"]);
    let since = Follower::start(&db, &["--since", "1h", "--json"]);
    let id = db.enqueue("order.paid.v1", "order/2");
    db.enqueue("order.sent.v1", "order/2");

    let first: Value = serde_json::from_str(&all.next()).unwrap();
    assert_eq!((&first["id"], &first["topic"]), (&json!(id), &json!("order.paid.v1")), "{kind:?} {mode}");
    assert_eq!((all.next_topic().as_str(), all.stop()), ("order.sent.v1", vec![]));
    let line = paid.next();
    assert!(line.contains(&format!("UTC  2  {id}  order.paid.v1  order/2")), "{line}");
    assert_eq!(paid.stop(), [""; 0]);
    let topics = [since.next_topic(), since.next_topic(), since.next_topic()];
    assert_eq!(topics, ["order.placed.v1", "order.paid.v1", "order.sent.v1"]);
    assert_eq!(since.stop(), [""; 0]);
}

/// A transaction that takes its time.
enum Slow {
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
}

impl Slow {
    async fn write(db: &Db, topic: &str) -> Self {
        let insert = format!("INSERT INTO {} (topic, payload) VALUES ('{topic}', '1')", db.table());
        let insert = sqlx::AssertSqlSafe(insert);
        match db.kind {
            Kind::Postgres => {
                let pool = sqlx::PgPool::connect(&db.server()).await.unwrap();
                let mut tx = pool.begin().await.unwrap();
                sqlx::query(insert).execute(&mut *tx).await.unwrap();
                Self::Postgres(tx)
            }
            Kind::MySql | Kind::MariaDb => {
                let pool = sqlx::MySqlPool::connect(&db.server()).await.unwrap();
                let mut tx = pool.begin().await.unwrap();
                sqlx::query(insert).execute(&mut *tx).await.unwrap();
                Self::MySql(tx)
            }
            Kind::Sqlite => unreachable!("one writes at a time"),
        }
    }

    async fn commit(self) {
        match self {
            Self::Postgres(tx) => tx.commit().await.unwrap(),
            Self::MySql(tx) => tx.commit().await.unwrap(),
        }
    }

    async fn roll_back(self) {
        match self {
            Self::Postgres(tx) => tx.rollback().await.unwrap(),
            Self::MySql(tx) => tx.rollback().await.unwrap(),
        }
    }
}

fn op1_an_event_that_is_committed_late_is_printed_late(kind: Kind, mode: &str) {
    let runtime = Runtime::new().unwrap();
    let db = Db::with_table(kind, mode);
    db.enqueue("before", "order/1");
    // One is open when it begins, others begin later; each has a lower sequence than what is seen before it.
    let first = runtime.block_on(Slow::write(&db, "first"));
    db.enqueue("before", "order/1");
    let follower = Follower::start(&db, &["--json"]);
    let second = runtime.block_on(Slow::write(&db, "second"));
    let never = runtime.block_on(Slow::write(&db, "never"));
    db.enqueue("soon", "order/2");
    assert_eq!(follower.next_topic(), "soon", "{kind:?} {mode}: nobody is waited for");
    runtime.block_on(never.roll_back());
    runtime.block_on(second.commit());
    assert_eq!(follower.next_topic(), "second", "{kind:?} {mode}");
    // Past the time after which what cannot come any more is forgotten: this one can.
    std::thread::sleep(Duration::from_secs(7));
    db.enqueue("soon", "order/2");
    assert_eq!(follower.next_topic(), "soon");
    runtime.block_on(first.commit());
    assert_eq!(follower.next_topic(), "first", "{kind:?} {mode}");
    assert_eq!(follower.stop(), [""; 0]);
}

#[test]
fn op1_a_queue_in_which_nothing_happened_for_minutes_is_followed() {
    let runtime = Runtime::new().unwrap();
    let db = Db::with_table(Kind::Postgres, "queue");
    let table = db.table();
    let write = |topic: &str| {
        let (columns, then) = ("topic, payload, created_at", "now() - interval '2 minutes'");
        let insert = format!("INSERT INTO {table} ({columns}) VALUES ('{topic}', '1', {then})");
        runtime.block_on(async {
            let pool = sqlx::PgPool::connect(&db.server()).await.unwrap();
            let mut tx = pool.begin().await.unwrap();
            sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut *tx).await.unwrap();
            Slow::Postgres(tx)
        })
    };
    db.enqueue("before", "order/1");
    db.sql(&format!("UPDATE {table} SET created_at = now() - interval '3 minutes'"));
    let (first, second) = (write("first"), write("second"));
    let follower = Follower::start(&db, &["--json"]);
    runtime.block_on(second.commit());
    assert_eq!(follower.next_topic(), "second");
    db.enqueue("soon", "order/2");
    assert_eq!(follower.next_topic(), "soon");
    runtime.block_on(first.commit());
    assert_eq!(follower.next_topic(), "first");
    assert_eq!(follower.stop(), [""; 0]);
}

fn op1_many_events_at_once_are_all_printed(kind: Kind) {
    let mode = if kind.is_mysql() { "stream" } else { "queue" };
    let db = Db::with_table(kind, mode);
    let follower = Follower::start(&db, &["--json"]);
    let rows = vec!["('many', '1')"; 1234].join(", ");
    db.sql(&format!("INSERT INTO {} (topic, payload) VALUES {rows}", db.table()));
    let mut sequences = Vec::new();
    for _ in 0..1234 {
        let event: Value = serde_json::from_str(&follower.next()).unwrap();
        sequences.push(event["sequence"].as_i64().unwrap());
    }
    assert!(sequences.is_sorted_by(|one, next| one < next), "{kind:?}");
    assert_eq!(follower.stop(), [""; 0]);
}

#[test]
fn op1_what_cannot_be_followed_is_refused() {
    let dir = Dir::new();
    dir.run(["events", "tail"]).fails(5, "`posthaste migrate up --table outbox`");
    for usage in [&["--every", "0"][..], &["--since", "soon"], &["--limit", "5"]] {
        dir.run(["events", "tail"].into_iter().chain(usage.iter().copied())).exits(2);
    }
    assert!(dir.is_empty());
    for kind in [Kind::Postgres, Kind::MySql, Kind::MariaDb] {
        Db::new(kind).run(["events", "tail"]).fails(5, "does not exist");
    }
}
