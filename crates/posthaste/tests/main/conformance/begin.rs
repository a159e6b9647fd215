//! Transactions that know their commit.
//!
//! Rows of the contract: EN2, EN5, EN6, RE5, RE6.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste::produce::HookError;
use posthaste::store::{Filter, Status, Store};
use posthaste::{Backoff, ErrorKind, Event, Hook, Outbox};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection};

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, Recorder, Setup, event, statements, until, worker};

conformance_sql!(
    en2_a_begun_transaction_commits_both_or_neither,
    en2_a_begun_transaction_that_is_dropped_leaves_nothing,
    en2_a_nested_transaction_rolls_back_alone,
    en2_a_cancelled_nested_transaction_is_no_silent_rollback,
    en6_one_transaction_writes_to_several_outboxes,
    en6_the_inbox_takes_a_begun_transaction,
    re5_without_a_relay_every_row_is_pending,
    re5_a_transaction_longer_than_its_lease_counts_no_attempt,
    re6_waking_without_a_relay_is_nothing,
);

conformance_sql_by_kind!(en5_hooks_see_how_a_begun_transaction_ends);

streams!(
    en2_a_begun_transaction_that_is_dropped_leaves_nothing,
    en6_one_transaction_writes_to_several_outboxes,
    en6_the_inbox_takes_a_begun_transaction,
    re5_without_a_relay_every_row_is_pending,
    re6_waking_without_a_relay_is_nothing;
    by_kind: en5_hooks_see_how_a_begun_transaction_ends;
    servers: en6_a_begun_transaction_costs_no_more_statements,
    en2_a_cancelled_begin_leaves_no_transaction_open,
);

// SQLite is called, not sent to: there is no round trip to count.
databases!(en6_a_begun_transaction_costs_no_more_statements, with_db: postgres Postgres, mysql MySql, mariadb MariaDb);

databases!(en2_a_cancelled_begin_leaves_no_transaction_open, with_db: postgres Postgres, mysql MySql, mariadb MariaDb);

databases!(en2_an_aborted_transaction_does_not_commit, by_kind: postgres Postgres);

/// Runs the same on whichever database it is; `$sql` has its pool and its outbox.
macro_rules! on {
    ($db:expr, |$sql:ident| $body:expr) => {
        match $db.handle() {
            Handle::Postgres($sql) => $body,
            Handle::MySql($sql) => $body,
            Handle::Sqlite($sql) => $body,
            Handle::Memory(_) => panic!("memory speaks no SQL"),
        }
    };
}

async fn business(db: &Db) {
    db.execute("CREATE TABLE business (n INTEGER NOT NULL PRIMARY KEY)").await.unwrap();
}

/// How many business rows and events there are.
async fn counts(db: &Db) -> (i64, u64) {
    let events = db.store().count(&Filter::all(), 100).await.unwrap().n;
    (db.number("SELECT count(*) FROM business").await, events)
}

async fn en2_a_begun_transaction_commits_both_or_neither(db: &Db) {
    business(db).await;
    on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (1)").execute(&mut *tx).await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        sql.outbox.enqueue_all(&mut tx, [event("a", 2), event("a", 3)]).await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (2)").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    });
    assert_eq!(counts(db).await, (2, 3));
    on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (3)").execute(&mut *tx).await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 4)).await.unwrap();
        tx.rollback().await.unwrap();
    });
    assert_eq!(counts(db).await, (2, 3));
    let claimed = db.claim(&worker(), 10).await;
    let numbers: Vec<&[u8]> = claimed.iter().map(|c| c.event.payload().bytes()).collect();
    assert_eq!(numbers, [b"1", b"2", b"3"]);
}

async fn en2_a_begun_transaction_that_is_dropped_leaves_nothing(db: &Db) {
    business(db).await;
    on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (1)").execute(&mut *tx).await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        drop(tx);
    });
    assert_eq!(counts(db).await, (0, 0));
}

async fn en2_a_nested_transaction_rolls_back_alone(db: &Db) {
    business(db).await;
    on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        sql.outbox.enqueue(&mut tx, event("outer", 1)).await.unwrap();
        let mut nested = Connection::begin(&mut *tx).await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (1)").execute(&mut *nested).await.unwrap();
        sql.outbox.enqueue(&mut nested, event("undone", 2)).await.unwrap();
        nested.rollback().await.unwrap();
        let mut nested = Connection::begin(&mut *tx).await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (2)").execute(&mut *nested).await.unwrap();
        sql.outbox.enqueue(&mut nested, event("kept", 3)).await.unwrap();
        nested.commit().await.unwrap();
        let dropped = Connection::begin(&mut *tx).await.unwrap();
        drop(dropped);
        tx.commit().await.unwrap();
    });
    assert_eq!(counts(db).await, (1, 2));
    let claimed = db.claim(&worker(), 10).await;
    let topics: Vec<&str> = claimed.iter().map(|c| c.event.topic()).collect();
    assert_eq!(topics, ["outer", "kept"]);
}

/// Whatever becomes of the outer transaction, its commit tells the truth.
async fn en2_a_cancelled_nested_transaction_is_no_silent_rollback(db: &Db) {
    business(db).await;
    let committed = on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        tokio::time::timeout(Duration::ZERO, Connection::begin(&mut *tx)).await.ok();
        tx.commit().await
    });
    assert_eq!(counts(db).await, (0, u64::from(committed.is_ok())), "{committed:?}");
}

/// A caller that is gone leaves the pool as it was: what others write through it stays written.
async fn en2_a_cancelled_begin_leaves_no_transaction_open(db: &Db) {
    const WRITTEN: i64 = 50;
    business(db).await;
    macro_rules! cancel {
        ($pool:ident, $database:ident) => {{
            let outbox = Outbox::$database($pool.clone()).build().unwrap();
            for n in 0..300 {
                tokio::time::timeout(Duration::from_micros(n), outbox.begin()).await.ok();
            }
            for n in 0..WRITTEN {
                let insert = AssertSqlSafe(format!("INSERT INTO business (n) VALUES ({n})"));
                sqlx::query(insert).execute(&$pool).await.unwrap();
            }
        }};
    }
    let open = match db.handle() {
        Handle::Postgres(sql) => {
            let options = sql.pool.connect_options().as_ref().clone().application_name(db.place());
            let pool = PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
            cancel!(pool, postgres);
            format!(
                "SELECT count(*) FROM pg_stat_activity
                  WHERE application_name = '{}' AND state LIKE 'idle in transaction%'",
                db.place()
            )
        }
        Handle::MySql(sql) => {
            let options = sql.pool.connect_options().as_ref().clone();
            let pool = MySqlPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
            cancel!(pool, mysql);
            format!(
                "SELECT count(*) FROM information_schema.innodb_trx AS t
                   JOIN information_schema.processlist AS p ON p.id = t.trx_mysql_thread_id
                  WHERE p.db = '{}'",
                db.place()
            )
        }
        _ => panic!("servers only"),
    };
    assert_eq!(counts(db).await.0, WRITTEN, "all are there for others to see");
    until("no transaction is open", async || db.number(open.clone()).await == 0).await;
}

async fn en2_an_aborted_transaction_does_not_commit(kind: Kind) {
    let witness = Arc::new(Ends::default());
    let db = Db::with(kind, Setup { hooks: vec![witness.clone()], ..Setup::default() }).await;
    business(&db).await;
    on!(&db, |sql| {
        let insert = "INSERT INTO business (n) VALUES (1)";
        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query(insert).execute(&mut *tx).await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        sqlx::query(insert).execute(&mut *tx).await.unwrap_err();
        let error = tx.commit().await.unwrap_err();
        assert!(error.to_string().contains("aborted"), "{error}");

        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query("nonsense").execute(&mut *tx).await.unwrap_err();
        assert_eq!(
            sql.outbox.enqueue(&mut tx, event("a", 2)).await.unwrap_err().kind(),
            &ErrorKind::Database
        );
        tx.commit().await.unwrap_err();

        // What a savepoint has mended is whole again.
        let mut tx = sql.outbox.begin().await.unwrap();
        let mut nested = Connection::begin(&mut *tx).await.unwrap();
        sqlx::query("nonsense").execute(&mut *nested).await.unwrap_err();
        nested.rollback().await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 3)).await.unwrap();
        tx.commit().await.unwrap();
    });
    assert_eq!(counts(&db).await, (0, 1));
    assert_eq!(*witness.0.lock().unwrap(), ["rolled back a", "committed a"]);
    db.drop_everything().await;
}

/// Writes down how transactions end.
#[derive(Default)]
struct Ends(Mutex<Vec<String>>);

impl Ends {
    fn see(&self, end: &str, events: &[Event]) {
        let topics: Vec<&str> = events.iter().map(Event::topic).collect();
        self.0.lock().unwrap().push(format!("{end} {}", topics.join("+")));
    }
}

impl Hook for Ends {
    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        self.see("committed", events);
        Ok(())
    }
    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        self.see("rolled back", events);
        Ok(())
    }
}

async fn en5_hooks_see_how_a_begun_transaction_ends(kind: Kind) {
    let witness = Arc::new(Ends::default());
    let db = Db::with(kind, Setup { hooks: vec![witness.clone()], ..Setup::default() }).await;
    let seen = || witness.0.lock().unwrap().clone();
    on!(&db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        let first = sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        sql.outbox.enqueue(&mut tx, event("again", 1).id(first.id)).await.unwrap();
        sql.outbox.enqueue_all(&mut tx, [event("b", 2), event("c", 3)]).await.unwrap();
        assert!(seen().is_empty(), "before its end");
        tx.commit().await.unwrap();
        assert_eq!(seen(), ["committed a", "committed b+c"]);

        let mut tx = sql.outbox.begin().await.unwrap();
        sql.outbox.enqueue(&mut tx, event("back", 4)).await.unwrap();
        tx.rollback().await.unwrap();
        let mut tx = sql.outbox.begin().await.unwrap();
        sql.outbox.enqueue(&mut tx, event("dropped", 5)).await.unwrap();
        drop(tx);
        assert_eq!(seen()[2..], ["rolled back back", "rolled back dropped"]);
    });
    db.drop_everything().await;
}

async fn en6_one_transaction_writes_to_several_outboxes(db: &Db) {
    macro_rules! second {
        ($sql:ident, $database:ident) => {{
            let other = Outbox::$database($sql.pool.clone()).table("other_outbox").build().unwrap();
            other.migrate().await.unwrap();
            for end in ["commit", "rollback"] {
                let mut tx = $sql.outbox.begin().await.unwrap();
                $sql.outbox.enqueue(&mut tx, event("mine", 1)).await.unwrap();
                other.enqueue_all(&mut tx, [event("its", 2), event("its", 3)]).await.unwrap();
                if end == "commit" {
                    tx.commit().await.unwrap()
                } else {
                    tx.rollback().await.unwrap()
                }
                let count = other.store().count(&Filter::all(), 10).await.unwrap().n;
                assert_eq!((db.store().count(&Filter::all(), 10).await.unwrap().n, count), (1, 2), "{end}");
            }
        }};
    }
    match db.handle() {
        Handle::Postgres(sql) => second!(sql, postgres),
        Handle::MySql(sql) => second!(sql, mysql),
        Handle::Sqlite(sql) => second!(sql, sqlite),
        Handle::Memory(_) => panic!("memory speaks no SQL"),
    }
}

async fn en6_the_inbox_takes_a_begun_transaction(db: &Db) {
    let id = uuid::Uuid::now_v7();
    on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        assert!(sql.inbox.first(&mut tx, "billing", id).await.unwrap());
        tx.rollback().await.unwrap();
        let mut tx = sql.outbox.begin().await.unwrap();
        assert!(sql.inbox.first(&mut tx, "billing", id).await.unwrap());
        assert!(!sql.inbox.first(&mut tx, "billing", id).await.unwrap());
        sql.outbox.enqueue(&mut tx, event("billed", 1)).await.unwrap();
        tx.commit().await.unwrap();
    });
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 1);
}

async fn re5_without_a_relay_every_row_is_pending(db: &Db) {
    let ids = on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        let one = sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        let two = sql.outbox.enqueue_all(&mut tx, [event("a", 2), event("a", 3)]).await.unwrap();
        tx.commit().await.unwrap();
        [one.id, two[0].id, two[1].id]
    });
    for id in ids {
        let record = db.store().get(id).await.unwrap().unwrap();
        assert_eq!((record.status, record.attempts), (Status::Pending, 0));
        assert_eq!((record.locked_by, record.locked_until), (None, None));
    }
}

/// Else the only attempt would have been counted before anybody had tried, and the event would be dead.
async fn re5_a_transaction_longer_than_its_lease_counts_no_attempt(db: &Db) {
    const LEASE: Duration = Duration::from_millis(300);
    let recorder = Recorder::default();
    let relay = db
        .relay()
        .handler(recorder.clone())
        .lease(LEASE)
        .timeout(LEASE / 3)
        .poll_interval(LEASE / 3)
        .retry(Backoff::default().max_attempts(1))
        .start()
        .await
        .unwrap();
    let id = on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        let id = sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap().id;
        let leased = "SELECT count(*) FROM outbox WHERE locked_by IS NOT NULL";
        let leased: i64 = sqlx::query_scalar(leased).fetch_one(&mut *tx).await.unwrap();
        assert_eq!(leased, 1, "born leased");
        tokio::time::sleep(LEASE).await;
        tx.commit().await.unwrap();
        id
    });
    recorder.wait_for(1).await;
    relay.stop().await;
    assert_eq!(recorder.begun(), [(id, 1)]);
    let record = db.store().get(id).await.unwrap().unwrap();
    assert_eq!((record.status, record.attempts), (Status::Delivered, 1));
}

async fn re6_waking_without_a_relay_is_nothing(db: &Db) {
    on!(db, |sql| (0..10).for_each(|_| sql.outbox.wake()));
    tokio::time::sleep(Duration::from_millis(20)).await;
    db.enqueue_numbers("a", 0..1).await;
}

async fn en6_a_begun_transaction_costs_no_more_statements(db: &Db) {
    business(db).await;
    on!(db, |sql| {
        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (1)").execute(&mut *tx).await.unwrap();
        let (_, count) = statements::count(sql.outbox.enqueue(&mut tx, event("a", 1))).await;
        assert_eq!(count, 1);
        let many: Vec<_> = (0..100).map(|n| event("a", n)).collect();
        let (_, count) = statements::count(sql.outbox.enqueue_all(&mut tx, many)).await;
        assert_eq!(count, 1);
        let (committed, texts) = statements::texts(tx.commit()).await;
        committed.unwrap();
        assert_eq!(texts, ["COMMIT"]);

        // After a statement of the caller's own, PostgreSQL is asked whether there is anything to commit.
        let mut tx = sql.outbox.begin().await.unwrap();
        sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (2)").execute(&mut *tx).await.unwrap();
        let (committed, texts) = statements::texts(tx.commit()).await;
        committed.unwrap();
        assert_eq!(texts.len(), if db.kind() == Kind::Postgres { 2 } else { 1 }, "{texts:?}");

        // But not where nothing was enqueued.
        let mut tx = sql.outbox.begin().await.unwrap();
        sqlx::query("INSERT INTO business (n) VALUES (3)").execute(&mut *tx).await.unwrap();
        let (committed, texts) = statements::texts(tx.commit()).await;
        committed.unwrap();
        assert_eq!(texts, ["COMMIT"]);
    });
}
