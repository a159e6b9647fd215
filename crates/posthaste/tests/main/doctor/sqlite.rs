//! What only SQLite has: one writer, a journal, a file.

use std::sync::Arc;

use posthaste::admin::doctor::{Check, Verdict};
use posthaste::store::SqliteStore;
use posthaste::{Admin, ErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use super::{examine, examine_with, one};
use crate::harness::{Db, Kind};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_a_writer_that_does_not_end_is_named() {
    let db = Db::new(Kind::Sqlite).await;
    let writer = db.begin().await;
    let report = examine(&db).await;
    let finding = one(&report, Check::Lock);
    assert_eq!(finding.verdict, Verdict::Fault);
    let words = "the table outbox is locked as a whole: another connection, \"writing\" for 2s";
    assert_eq!(finding.found, words);
    assert!(finding.advice.unwrap().contains("`lsof`"));
    writer.commit().await;
    assert_eq!(examine(&db).await.of(&Check::Lock).count(), 0);
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_a_journal_that_hinders_is_named() {
    let db = Db::new(Kind::Sqlite).await;
    db.enqueue_numbers("order.placed.v1", 0..10).await;
    assert_eq!(one(&examine(&db).await, Check::Cleanup).verdict, Verdict::Ok);
    let finding = one(&examine_with(&db, |limits| limits.log_bytes = 1).await, Check::Cleanup);
    assert_eq!(finding.verdict, Verdict::Warning);
    assert!(finding.found.starts_with("the write-ahead log has "), "{finding:?}");
    assert!(finding.advice.unwrap().contains("PRAGMA wal_checkpoint(TRUNCATE);"));

    let file = db.url().replace("sqlite://", "") + "-other";
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Delete);
    let pool = SqlitePoolOptions::new().connect_with(options).await.unwrap();
    let store: Arc<dyn posthaste::store::Store> =
        Arc::new(SqliteStore::new(pool, "outbox".parse().unwrap()).unwrap());
    store.migrate_up().await.unwrap();
    let finding = one(&Admin::new(Arc::clone(&store)).doctor().await, Check::Cleanup);
    assert_eq!((finding.verdict, finding.page), (Verdict::Warning, Some("operate/tables")));
    assert!(finding.found.starts_with("the journal mode is delete"), "{finding:?}");
    store.close().await;
    std::fs::remove_file(file).unwrap();
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn op10_a_file_that_may_only_be_read_is_named() {
    let db = Db::new(Kind::Sqlite).await;
    let options: SqliteConnectOptions = db.url().parse().unwrap();
    let pool = SqlitePoolOptions::new().connect_with(options.read_only(true)).await.unwrap();
    let store = SqliteStore::new(pool.clone(), "outbox".parse().unwrap()).unwrap();
    let report = Admin::new(Arc::new(store)).doctor().await;
    let finding = one(&report, Check::Database);
    assert_eq!((finding.verdict, finding.error), (Verdict::Fault, Some(ErrorKind::ReadOnly)));
    assert!(finding.found.contains("may only be read"), "{}", finding.found);
    pool.close().await;
    db.drop_everything().await;
}
