//! What only PostgreSQL has: a pinned xmin, autovacuum, locks of a whole table.

use std::time::Duration;

use posthaste::admin::doctor::{Check, Report, Verdict};
use posthaste::store::Mode;
use posthaste::{Admin, ErrorKind};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection};

use super::{examine, examine_with, one, saying};
use crate::harness::{Db, Kind, PrivateServer, Setup, until};

/// A connection that calls itself so, and its number.
async fn connect(db: &Db, name: &str) -> (PgConnection, i32) {
    let options: PgConnectOptions = db.url().parse().unwrap();
    let mut connection = options.application_name(name).connect().await.unwrap();
    let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.unwrap();
    (connection, pid)
}

/// Whether somebody is named among the old transactions.
fn names(report: &Report, who: &str) -> bool {
    report.of(&Check::OldTransactions).any(|finding| finding.found.contains(who))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_a_pinned_xmin_is_named() {
    // Others' old transactions are not to be told of before this one.
    let server = PrivateServer::start(Kind::Postgres).await;
    let db = Db::on(&server).await;
    let name = format!("report-{}", db.place());
    let (mut report, pid) = connect(&db, &name).await;
    report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    report.execute("SELECT 'the secret of a customer', count(*) FROM outbox").await.unwrap();
    // Others begin and end meanwhile.
    for n in 0..10 {
        db.enqueue_numbers("order.placed.v1", n..n + 1).await;
    }
    // It is not old yet.
    assert!(!names(&examine(&db).await, &name));

    // Of many, only the oldest are told, and others have transactions here, too. Theirs end.
    let mut found = None;
    until("it is named", async || {
        let pinned = examine_with(&db, |limits| limits.old_transaction = Duration::ZERO).await;
        assert!(!format!("{pinned:?}").contains("secret"), "nobody's statement is repeated: {pinned:?}");
        found = pinned.of(&Check::OldTransactions).find(|finding| finding.found.contains(&name)).cloned();
        found.is_some()
    })
    .await;
    let finding = found.unwrap();
    assert_eq!((finding.verdict, finding.page), (Verdict::Fault, Some("operate/pinned-xmin")));
    let words = format!("an old transaction holds back cleanup: pid {pid}, \"idle in transaction\" for ");
    assert!(finding.found.starts_with(&words), "{finding:?}");
    let held = finding.found.split(", ").last().unwrap().split(' ').next().unwrap();
    assert!(held.parse::<u64>().unwrap() >= 10, "{finding:?}");
    let advice = finding.advice.as_deref().unwrap();
    assert!(advice.contains(&format!("SELECT pg_terminate_backend({pid});")), "{advice}");

    report.execute("ROLLBACK").await.unwrap();
    let after = examine_with(&db, |limits| limits.old_transaction = Duration::ZERO).await;
    assert!(!names(&after, &name), "{after:#?}");
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_autovacuum_that_is_off_for_a_table_is_named() {
    let db = Db::new(Kind::Postgres).await;
    assert_eq!(one(&examine(&db).await, Check::Cleanup).verdict, Verdict::Ok);
    db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await.unwrap();
    let finding = one(&examine(&db).await, Check::Cleanup);
    assert_eq!(finding.verdict, Verdict::Fault);
    assert_eq!(finding.found, "autovacuum does not clean up: table outbox has autovacuum_enabled = off");
    assert_eq!(
        finding.advice.as_deref(),
        Some("Switch it on: ALTER TABLE outbox RESET (autovacuum_enabled);")
    );
    // What it says is what helps.
    db.execute("ALTER TABLE outbox RESET (autovacuum_enabled)").await.unwrap();
    assert_eq!(one(&examine(&db).await, Check::Cleanup).verdict, Verdict::Ok);
    db.drop_everything().await;

    let mode = Some(Mode::stream(1).unwrap());
    let db = Db::with(Kind::Postgres, Setup { mode, ..Setup::default() }).await;
    db.execute("ALTER TABLE outbox_places SET (autovacuum_enabled = false)").await.unwrap();
    saying(&examine(&db).await, Check::Cleanup, "table outbox_places has autovacuum_enabled = off");
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_dead_rows_that_pile_up_are_named() {
    let db = Db::new(Kind::Postgres).await;
    db.execute("ALTER TABLE outbox SET (autovacuum_vacuum_threshold = 5)").await.unwrap();
    // Autovacuum passes over what somebody has locked.
    let (mut busy, _) = connect(&db, "busy").await;
    busy.execute("BEGIN; LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE").await.unwrap();
    db.enqueue_numbers("order.placed.v1", 0..200).await;
    assert_eq!(db.execute("DELETE FROM outbox WHERE seq % 2 = 0").await.unwrap(), 100);
    until("they are counted", async || {
        let report = examine_with(&db, |limits| limits.dead_rows = 50).await;
        report.of(&Check::Cleanup).any(|finding| {
            finding.verdict == Verdict::Warning
                && finding.found.starts_with("table outbox has 100 dead row versions beside ")
                && finding.found.ends_with(" rows, and was never vacuumed")
                && finding.advice.as_deref().is_some_and(|advice| advice.contains("VACUUM outbox"))
        })
    })
    .await;
    assert_eq!(one(&examine(&db).await, Check::Cleanup).verdict, Verdict::Ok, "a hundred are not many");
    busy.execute("ROLLBACK").await.unwrap();
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_an_index_that_is_not_valid_is_named() {
    let db = Db::new(Kind::Postgres).await;
    // As a CREATE INDEX CONCURRENTLY leaves it that was interrupted.
    let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_claim'::regclass";
    db.execute(invalid).await.unwrap();
    let finding = one(&examine(&db).await, Check::Migrations);
    assert!(finding.found.contains("index outbox_claim is invalid btree"), "{finding:?}");
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_a_lock_on_the_whole_table_is_named_and_not_waited_for() {
    let db = Db::new(Kind::Postgres).await;
    let (mut alter, pid) = connect(&db, "alter").await;
    alter.execute("BEGIN; LOCK TABLE outbox").await.unwrap();
    let report = examine_with(&db, |limits| limits.locked = Duration::ZERO).await;
    let finding = one(&report, Check::Lock);
    assert_eq!(finding.verdict, Verdict::Fault);
    let words = format!("the table outbox is locked as a whole: pid {pid}, \"idle in transaction\" for ");
    assert!(finding.found.starts_with(&words) && finding.found.ends_with("(app=alter)"), "{finding:?}");
    alter.execute("ROLLBACK").await.unwrap();

    // One that waits holds up whoever comes after it; the one in its way is to be ended.
    let (mut reader, reading) = connect(&db, "reader").await;
    reader.execute("BEGIN; SELECT 1 FROM outbox").await.unwrap();
    let waiting =
        tokio::spawn(async move { alter.execute("BEGIN; LOCK TABLE outbox; COMMIT").await.map(drop) });
    let mut finding = None;
    until("it waits", async || {
        let report = examine_with(&db, |limits| limits.locked = Duration::ZERO).await;
        finding = report.of(&Check::Lock).next().cloned();
        finding.is_some()
    })
    .await;
    let finding = finding.unwrap();
    assert!(finding.found.contains(&format!("pid {pid}, ")), "{finding:?}");
    assert!(finding.found.ends_with(&format!("it waits for pid {reading}")), "{finding:?}");
    assert!(finding.advice.unwrap().ends_with(&format!("SELECT pg_terminate_backend({reading});")));
    reader.execute("ROLLBACK").await.unwrap();
    waiting.await.unwrap().unwrap();
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_what_only_a_server_of_its_own_allows_is_named() {
    let settings = ["-cwal_level=logical", "-cmax_prepared_transactions=2", "-cautovacuum=off"];
    let mut server = PrivateServer::start_with(Kind::Postgres, &settings).await;
    let db = Db::on(&server).await;

    // Nobody is in anybody's way here.
    let before = examine(&db).await;
    assert_eq!(one(&before, Check::OldTransactions).verdict, Verdict::Ok, "{before:#?}");
    assert_eq!(one(&before, Check::Relay).verdict, Verdict::Note);
    assert!(one(&before, Check::Relay).found.starts_with("no relay is connected to this database"));
    let off = one(&before, Check::Cleanup);
    assert_eq!(off.found, "autovacuum does not clean up: autovacuum is off on the server");

    db.execute("SELECT pg_create_logical_replication_slot('nightly', 'test_decoding')").await.unwrap();
    let slot = one(&examine(&db).await, Check::OldTransactions);
    assert_eq!(slot.verdict, Verdict::Warning);
    assert!(slot.found.contains("replication slot nightly, \"inactive\""), "{slot:?}");
    assert!(slot.advice.unwrap().contains("pg_drop_replication_slot('nightly')"));
    db.execute("SELECT pg_drop_replication_slot('nightly')").await.unwrap();

    let (mut forgotten, _) = connect(&db, "coordinator").await;
    forgotten
        .execute("BEGIN; UPDATE outbox SET attempts = 1; PREPARE TRANSACTION 'it''s gone'")
        .await
        .unwrap();
    let prepared = examine_with(&db, |limits| limits.old_transaction = Duration::ZERO).await;
    let finding = one(&prepared, Check::OldTransactions);
    assert_eq!(finding.verdict, Verdict::Fault);
    assert!(finding.found.contains("prepared transaction it's gone, \"prepared\" for "), "{finding:?}");
    let remedy = "ROLLBACK PREPARED 'it''s gone'";
    assert!(finding.advice.unwrap().ends_with(&format!("{remedy};")));
    db.execute(remedy).await.unwrap();
    assert_eq!(one(&examine(&db).await, Check::OldTransactions).verdict, Verdict::Ok);

    db.execute("ALTER ROLE posthaste IN DATABASE postgres SET default_transaction_read_only = on")
        .await
        .unwrap();
    let url = format!("{}?options=-csearch_path%3D{}", server.url(), db.place());
    let fresh = posthaste::store::connect(&url, "outbox").await.unwrap();
    let read_only = one(&Admin::new(fresh.clone()).doctor().await, Check::Database);
    assert_eq!((read_only.verdict, read_only.error), (Verdict::Fault, Some(ErrorKind::ReadOnly)));
    assert!(read_only.found.contains("default_transaction_read_only"), "{}", read_only.found);
    fresh.close().await;

    server.crash();
    let gone = examine_with(&db, |limits| limits.patience = Duration::from_secs(3)).await;
    let finding = one(&gone, Check::Database);
    assert_eq!((finding.verdict, finding.error), (Verdict::Fault, Some(ErrorKind::Unreachable)));
    assert_eq!(gone.findings.len(), 1, "nothing else can be known: {gone:#?}");
}

/// A role that may only read is told what a relay would lack, and is shown what it may see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_what_a_role_may_not_do_is_named() {
    let db = Db::new(Kind::Postgres).await;
    let (place, role) = (db.place(), format!("r_{}", db.place()));
    let sql = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {place} TO {role};
         GRANT SELECT ON ALL TABLES IN SCHEMA {place} TO {role}"
    );
    let (mut admin, _) = connect(&db, "admin").await;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
    let options: PgConnectOptions = db.url().parse().unwrap();
    let options = options.username(&role).password("x");
    let pool = sqlx::postgres::PgPoolOptions::new().connect_with(options).await.unwrap();
    let store = posthaste::store::PostgresStore::new(pool.clone(), "outbox".parse().unwrap());
    let report = Admin::new(std::sync::Arc::new(store)).doctor().await;
    let finding = saying(&report, Check::Database, "this role may not UPDATE, DELETE on table outbox");
    assert_eq!(finding.verdict, Verdict::Warning);
    let grant = format!("GRANT UPDATE, DELETE ON \"outbox\" TO \"{role}\".");
    assert!(finding.advice.as_ref().is_some_and(|advice| advice.ends_with(&grant)), "{finding:#?}");
    assert_eq!(one(&report, Check::Migrations).verdict, Verdict::Ok, "{report:#?}");
    pool.close().await;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP OWNED BY {role}; DROP ROLE {role}")))
        .execute(&mut admin)
        .await
        .unwrap();
    db.drop_everything().await;
}
