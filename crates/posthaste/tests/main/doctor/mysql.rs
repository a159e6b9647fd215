//! What only MySQL and MariaDB have: open transactions by their connections, and a purge with a history.

use std::time::Duration;

use posthaste::admin::doctor::{Check, Verdict};
use posthaste::store::MySqlStore;
use posthaste::{Admin, ErrorKind};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{Connection, Executor, MySqlConnection};

use super::{examine, examine_with, one};
use crate::harness::{Db, Kind, PrivateServer, until};

databases!(op10_a_transaction_that_nobody_ends_is_named, by_kind: mysql MySql, mariadb MariaDb);
databases!(op10_a_server_that_is_read_only_is_named, by_kind: mysql MySql, mariadb MariaDb);
databases!(op10_a_server_whose_clock_is_wrong_is_named, by_kind: mysql MySql, mariadb MariaDb);

async fn op10_a_transaction_that_nobody_ends_is_named(kind: Kind) {
    // Others' old transactions are not to be told of before this one.
    let server = PrivateServer::start(kind).await;
    let db = Db::on(&server).await;
    let mut report = MySqlConnection::connect(&db.url()).await.unwrap();
    let id: u64 =
        sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS UNSIGNED)").fetch_one(&mut report).await.unwrap();
    report.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT").await.unwrap();
    report.execute("SELECT 'the secret of a customer', count(*) FROM outbox").await.unwrap();
    let name = format!("connection {id}, ");
    let names = |report: &posthaste::admin::doctor::Report| {
        report.of(&Check::OldTransactions).find(|finding| finding.found.contains(&name)).cloned()
    };
    assert_eq!(names(&examine(&db).await), None, "it is not old yet");
    // The server shows a copy that is made anew only when nobody has looked at it for a tenth of a second.
    let moment = Duration::from_millis(200);
    let mut found = None;
    until("it is named", async || {
        tokio::time::sleep(moment).await;
        let report = examine_with(&db, |limits| limits.old_transaction = Duration::ZERO).await;
        assert!(!format!("{report:?}").contains("secret"), "nobody's statement is repeated: {report:?}");
        found = names(&report);
        found.is_some()
    })
    .await;
    let finding = found.unwrap();
    assert_eq!(finding.verdict, Verdict::Fault);
    assert!(finding.found.contains("\"idle in transaction\" for "), "{finding:?}");
    assert!(finding.advice.unwrap().ends_with(&format!("KILL {id};")));

    // What is overwritten meanwhile cannot be purged.
    db.enqueue_numbers("order.placed.v1", 0..1).await;
    until("it holds back the purge", async || {
        db.execute("UPDATE outbox SET attempts = attempts + 1").await.unwrap();
        let report = examine_with(&db, |limits| limits.history = 1).await;
        report.of(&Check::Cleanup).any(|finding| {
            finding.verdict == Verdict::Warning
                && finding.found.contains("InnoDB's purge: old row versions pile up")
        })
    })
    .await;
    report.execute("ROLLBACK").await.unwrap();
    until("it is over", async || {
        tokio::time::sleep(moment).await;
        names(&examine_with(&db, |limits| limits.old_transaction = Duration::ZERO).await).is_none()
    })
    .await;
    db.drop_everything().await;
}

async fn op10_a_server_that_is_read_only_is_named(kind: Kind) {
    let server = PrivateServer::start(kind).await;
    let db = Db::on(&server).await;
    let ok = one(&examine(&db).await, Check::Database);
    let product = if kind == Kind::MariaDb { "MariaDB 1" } else { "MySQL " };
    assert!(ok.verdict == Verdict::Ok && ok.found.starts_with(product), "{ok:?}");
    db.execute("SET GLOBAL read_only = 1").await.unwrap();
    let finding = one(&examine(&db).await, Check::Database);
    assert_eq!((finding.verdict, finding.error), (Verdict::Fault, Some(ErrorKind::ReadOnly)));
    assert!(finding.found.ends_with("read_only is on, as on a replica"), "{}", finding.found);
}

/// These sessions' clock is set, so that the database's times are really other ones.
async fn op10_a_server_whose_clock_is_wrong_is_named(kind: Kind) {
    let db = Db::new(kind).await;
    let options: MySqlConnectOptions = db.url().parse().unwrap();
    let pool = MySqlPoolOptions::new()
        .after_connect(|connection, _| {
            Box::pin(async { connection.execute("SET timestamp = UNIX_TIMESTAMP() - 7500").await.map(drop) })
        })
        .connect_with(options)
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone(), "outbox".parse().unwrap());
    let finding = one(&Admin::new(std::sync::Arc::new(store)).doctor().await, Check::Clock);
    assert_eq!(finding.verdict, Verdict::Fault);
    assert!(finding.found.starts_with("the database's clock is 2h 5m behind this machine's"), "{finding:?}");
    pool.close().await;
    db.drop_everything().await;
}
