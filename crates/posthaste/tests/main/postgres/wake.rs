//! Notifications reach who listens on the same table, whoever writes to it.
//!
//! Rows of the contract: RE6, ST3.

use posthaste::store::{Notifications, connect};
use posthaste::{ErrorKind, Outbox};
use sqlx::postgres::PgListener;
use sqlx::{Executor, PgPool};

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, Setup, until};

fn outbox(db: &Db) -> &Outbox<sqlx::Postgres> {
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    &sql.outbox
}

fn pool(db: &Db) -> &PgPool {
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    &sql.pool
}

async fn heard(notifications: &mut Box<dyn Notifications>) {
    tokio::time::timeout(MINUTE, notifications.next()).await.expect("it is heard").unwrap();
}

async fn channel(db: &Db, table: &str) -> String {
    db.texts(format!("SELECT 'posthaste_' || '{table}'::regclass::oid")).await.remove(0)
}

/// What a channel carries up to a message sent now.
async fn carried(db: &Db, listener: &mut PgListener, channel: &str) -> usize {
    db.texts(format!("SELECT pg_notify('{channel}', 'end')::text")).await;
    let mut count = 0;
    loop {
        let message = tokio::time::timeout(MINUTE, listener.recv()).await.expect("the end is heard").unwrap();
        if message.payload() == "end" {
            return count;
        }
        assert_eq!((message.channel(), message.payload()), (channel, ""));
        count += 1;
    }
}

async fn functions(db: &Db) -> i64 {
    db.number(format!(
        "SELECT count(*) FROM pg_proc WHERE pronamespace = '{}'::regnamespace AND proname = 'outbox_notify'",
        db.place()
    ))
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re6_a_notification_is_heard_under_another_spelling_and_not_on_another_table() {
    let db = Db::new(Kind::Postgres).await;
    let spelled = connect(&db.url(), &format!("{}.outbox", db.place())).await.unwrap();
    let other = connect(&db.url(), "other_outbox").await.unwrap();
    other.migrate_up().await.unwrap();
    let mut same = spelled.listen().await.unwrap().unwrap();
    let channel = channel(&db, "other_outbox").await;
    let mut elsewhere = PgListener::connect_with(pool(&db)).await.unwrap();
    elsewhere.listen(&channel).await.unwrap();

    db.store().notify().await.unwrap();
    heard(&mut same).await;
    assert_eq!(carried(&db, &mut elsewhere, &channel).await, 0, "heard on another table");
    other.notify().await.unwrap();
    assert_eq!(carried(&db, &mut elsewhere, &channel).await, 1);

    drop((same, elsewhere));
    spelled.close().await;
    other.close().await;
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re6_an_interruption_is_an_error_and_what_comes_after_it_is_heard_by_the_next() {
    let db = Db::new(Kind::Postgres).await;
    let mut notifications = db.store().listen().await.unwrap().unwrap();
    let channel = channel(&db, "outbox").await;
    let listening = format!("FROM pg_stat_activity WHERE query = 'LISTEN \"{channel}\"'");
    let waiting = tokio::spawn(async move { notifications.next().await });
    assert_eq!(db.number(format!("SELECT count(pg_terminate_backend(pid)) {listening}")).await, 1);
    let error = tokio::time::timeout(MINUTE, waiting).await.expect("it ends").unwrap().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
    let mut next = db.store().listen().await.unwrap().unwrap();
    db.store().notify().await.unwrap();
    heard(&mut next).await;
    drop(next);
    until("its connection is closed", async || db.number(format!("SELECT count(*) {listening}")).await == 0)
        .await;
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re6_to_listen_to_a_table_that_is_not_there_is_an_error() {
    let db = Db::bare(Kind::Postgres, Setup::default()).await;
    assert_eq!(db.store().listen().await.map(drop).unwrap_err().kind(), &ErrorKind::TableMissing);
    assert_eq!(db.store().notify().await.unwrap_err().kind(), &ErrorKind::TableMissing);
    assert_eq!(outbox(&db).notify_on_insert(true).await.unwrap_err().kind(), &ErrorKind::TableMissing);
    outbox(&db).notify_on_insert(false).await.unwrap();
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re6_the_trigger_notifies_once_per_statement_and_comes_and_goes() {
    const THOUSAND: &str =
        "INSERT INTO outbox (topic, payload) SELECT 'a', to_json(n) FROM generate_series(1, 1000) n";
    let db = Db::new(Kind::Postgres).await;
    let outbox = outbox(&db);
    let channel = channel(&db, "outbox").await;
    let mut listener = PgListener::connect_with(pool(&db)).await.unwrap();
    listener.listen(&channel).await.unwrap();

    db.execute(THOUSAND).await.unwrap();
    assert_eq!(carried(&db, &mut listener, &channel).await, 0, "nothing without it");
    outbox.notify_on_insert(true).await.unwrap();
    outbox.notify_on_insert(true).await.unwrap();
    // PostgreSQL makes one of the same notifications in a transaction: that it fires once is read off the trigger.
    let by_statement =
        "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'outbox'::regclass AND tgtype & 1 = 0";
    assert_eq!(db.number(by_statement).await, 1);
    db.execute(THOUSAND).await.unwrap();
    assert_eq!(carried(&db, &mut listener, &channel).await, 1);
    db.enqueue_numbers("a", 0..3).await;
    assert_eq!(carried(&db, &mut listener, &channel).await, 1);
    let mut notifications = db.store().listen().await.unwrap().unwrap();
    db.execute(THOUSAND).await.unwrap();
    heard(&mut notifications).await;
    drop(notifications);

    assert_eq!(db.store().validate().await.unwrap(), [], "it is no difference");
    outbox.notify_on_insert(false).await.unwrap();
    outbox.notify_on_insert(false).await.unwrap();
    assert_eq!(functions(&db).await, 0);
    carried(&db, &mut listener, &channel).await;
    db.execute(THOUSAND).await.unwrap();
    assert_eq!(carried(&db, &mut listener, &channel).await, 0);
    drop(listener);
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st3_a_table_takes_its_trigger_along_and_leaves_anothers() {
    let db = Db::new(Kind::Postgres).await;
    let beside = format!("{}x", db.place());
    pool(&db).execute(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {beside}"))).await.unwrap();
    let other = Outbox::postgres(pool(&db).clone()).table(format!("{beside}.outbox")).build().unwrap();
    other.migrate().await.unwrap();
    other.notify_on_insert(true).await.unwrap();
    outbox(&db).notify_on_insert(true).await.unwrap();

    assert_eq!(functions(&db).await, 1);
    assert_eq!(db.store().migrate_down(0).await.unwrap(), [1]);
    assert_eq!(functions(&db).await, 0);
    assert_eq!(db.store().migrate_up().await.unwrap(), [1]);
    assert_eq!(db.store().migrate_down(0).await.unwrap(), [1]);
    let theirs = format!("SELECT count(*) FROM pg_trigger WHERE tgrelid = '{beside}.outbox'::regclass");
    assert_eq!(db.number(theirs).await, 1);

    // Racing starters make one.
    db.store().migrate_up().await.unwrap();
    let starters: Vec<_> = (0..6)
        .map(|_| {
            let outbox = outbox(&db).clone();
            tokio::spawn(async move { outbox.notify_on_insert(true).await.unwrap() })
        })
        .collect();
    for starter in starters {
        starter.await.unwrap();
    }
    assert_eq!(functions(&db).await, 1);
    pool(&db).execute(sqlx::AssertSqlSafe(format!("DROP SCHEMA {beside} CASCADE"))).await.unwrap();
    db.drop_everything().await;
}
