//! Times of the database's clock, shown where that clock is wrong: MySQL and MariaDB let a session set its own.
//!
//! Rows of the contract: ST6.

use std::time::Duration;

use posthaste::Outbox;
use posthaste::store::{Claim, Filter, Page, Store};
use sqlx::Executor;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use time::OffsetDateTime;

use crate::harness::{Db, Kind, MINUTE, event, worker};

databases!(st6_times_are_the_databases_however_wrong_its_clock, by_kind: mysql MySql, mariadb MariaDb);

/// How far the clock of the sessions is behind this machine's.
const BEHIND: Duration = Duration::from_secs(7200);

async fn st6_times_are_the_databases_however_wrong_its_clock(kind: Kind) {
    let db = Db::new(kind).await;
    let options: MySqlConnectOptions = db.url().parse().unwrap();
    let pool = MySqlPoolOptions::new()
        .after_connect(|connection, _| {
            Box::pin(async { connection.execute("SET timestamp = UNIX_TIMESTAMP() - 7200").await.map(drop) })
        })
        .connect_with(options)
        .await
        .unwrap();
    let behind = Outbox::mysql(pool.clone()).build().unwrap();
    let now = OffsetDateTime::now_utc();
    let mut tx = pool.begin().await.unwrap();
    behind.enqueue(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    let record = behind.store().list(&Filter::all(), Page::first(1)).await.unwrap().remove(0);
    let occurred_at = record.event.unwrap().occurred_at().unwrap();
    for at in [record.created_at, record.available_at, occurred_at] {
        assert!((now - BEHIND - at).abs() < MINUTE, "{at} is not of the sessions' clock at {now}");
    }
    let claim = || Claim::by(worker()).limit(1).lease(MINUTE);
    assert_eq!(behind.store().claim(&claim()).await.unwrap().events.len(), 1);
    let again = behind.store().claim(&claim()).await.unwrap();
    assert!(again.events.is_empty(), "the lease lasts by the clock that it was made by");
    assert_eq!(db.claim(&worker(), 1).await.len(), 1, "it has ended by a clock that is two hours ahead");
    pool.close().await;
    db.drop_everything().await;
}
