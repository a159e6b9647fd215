//! A consumer takes each event once.
//!
//! Rows of the contract: HK2.

use std::time::Duration;

use posthaste::ErrorKind;
use uuid::Uuid;

use crate::harness::Db;

conformance!(
    hk2_the_first_time_is_told_once_per_consumer,
    hk2_a_rollback_forgets,
    hk2_old_records_are_purged,
    hk2_consumers_need_names
);

async fn hk2_the_first_time_is_told_once_per_consumer(db: &Db) {
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    let mut tx = db.begin().await;
    assert!(tx.first(db, "billing", one).await.unwrap());
    assert!(!tx.first(db, "billing", one).await.unwrap(), "within the same transaction");
    assert!(tx.first(db, "billing", two).await.unwrap());
    assert!(tx.first(db, "shipping", one).await.unwrap());
    assert!(tx.first(db, "Billing", one).await.unwrap());
    tx.commit().await;
    let mut tx = db.begin().await;
    assert!(!tx.first(db, "billing", one).await.unwrap());
    assert!(!tx.first(db, "shipping", one).await.unwrap());
    tx.commit().await;
}

async fn hk2_a_rollback_forgets(db: &Db) {
    let id = Uuid::now_v7();
    let mut tx = db.begin().await;
    assert!(tx.first(db, "billing", id).await.unwrap());
    tx.rollback().await;
    let mut tx = db.begin().await;
    assert!(tx.first(db, "billing", id).await.unwrap());
    tx.commit().await;
}

async fn hk2_old_records_are_purged(db: &Db) {
    use crate::harness::database::Handle;
    let ids: Vec<Uuid> = (0..10).map(|_| Uuid::now_v7()).collect();
    let mut tx = db.begin().await;
    for id in &ids {
        assert!(tx.first(db, "billing", *id).await.unwrap());
    }
    tx.commit().await;
    let purge = async |age| match db.handle() {
        Handle::Postgres(sql) => sql.inbox.purge(age).await,
        Handle::MySql(sql) => sql.inbox.purge(age).await,
        Handle::Sqlite(sql) => sql.inbox.purge(age).await,
        Handle::Memory(memory) => memory.inbox.purge(age).await,
    };
    assert_eq!(purge(Duration::from_secs(3600)).await.unwrap(), 0);
    assert_eq!(purge(Duration::ZERO).await.unwrap(), 10);
    let mut tx = db.begin().await;
    assert!(tx.first(db, "billing", ids[0]).await.unwrap());
    tx.commit().await;
}

async fn hk2_consumers_need_names(db: &Db) {
    let mut tx = db.begin().await;
    let mut kind = async |name: &str| tx.first(db, name, Uuid::now_v7()).await.unwrap_err().kind().clone();
    assert_eq!(kind("").await, ErrorKind::Empty { field: "consumer" });
    assert_eq!(kind(&"x".repeat(129)).await, ErrorKind::TooLong { field: "consumer", limit: 128, size: 129 });
    assert!(matches!(kind("a\nb").await, ErrorKind::ControlCharacter { field: "consumer", at: 1, .. }));
}
