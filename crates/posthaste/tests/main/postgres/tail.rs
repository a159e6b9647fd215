//! Following a queue, whose sequences have no index, reads little more than it shows.
//!
//! Rows of the contract: OP1, OP6.

use std::sync::Arc;

use posthaste::Admin;
use posthaste::store::{Filter, PostgresStore};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE};

const OLD: i64 = 285_000;
const NEW: usize = 50_000;

/// Rows of the table that its one connection has read.
async fn rows_read(one: &PgPool) -> i64 {
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(one).await.unwrap();
    let read =
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relid = to_regclass('outbox')";
    sqlx::query_scalar(read).fetch_one(one).await.unwrap()
}

/// As the server does by itself sooner or later; the rows that it reads for it are counted before those of the test.
async fn summarize(one: &PgPool) {
    sqlx::query("SELECT brin_summarize_new_values('outbox_created')").execute(one).await.unwrap();
}

#[tokio::test]
async fn op1_following_a_queue_from_far_back_reads_little_more_than_it_shows() {
    let db = Db::new(Kind::Postgres).await;
    db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await.unwrap();
    // Written within a month, most of it in bursts, and what it begins with one by one.
    db.execute(format!(
        "INSERT INTO outbox (topic, payload, created_at)
         SELECT 'old', '1', now() - interval '30 days' + n / 95000 * interval '7 days'
                            + least(n % 95000, 80000) * interval '1 millisecond'
                            + greatest(n % 95000 - 80000, 0) * interval '30 seconds'
           FROM generate_series(0, {OLD} - 1) AS n"
    ))
    .await
    .unwrap();
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    let options = sql.pool.connect_options().as_ref().clone();
    let one = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    summarize(&one).await;
    let store = PostgresStore::new(one.clone(), "outbox".parse().unwrap());
    let admin = Admin::new(Arc::new(store));
    let since = admin.now().await.unwrap() - 31 * 24 * 60 * MINUTE;

    let before = rows_read(&one).await;
    let mut tail = admin.tail(Filter::all(), Some(since)).await.unwrap();
    let read = rows_read(&one).await - before;
    println!("the beginning: {read} rows read");
    // The 10 000 that it begins with, some of them again, and more for the index, which knows ranges of thousands.
    assert!(read < 80_000, "{read} rows were read to begin");

    let (mut seen, before) = (Vec::new(), rows_read(&one).await);
    while seen.len() < 10_000 {
        seen.extend(tail.look().await.unwrap().events.iter().map(|record| record.sequence));
    }
    assert_eq!(seen, (OLD - 9999..=OLD).collect::<Vec<_>>());
    let read = rows_read(&one).await - before;
    println!("its pages: {read} rows read");
    assert!(read < 20_000, "{read} rows were read for 10 000");

    let before = rows_read(&one).await;
    assert_eq!(tail.look().await.unwrap().events, []);
    let read = rows_read(&one).await - before;
    println!("nothing new: {read} rows read");
    assert!(read < 10_000, "{read} rows were read for none");

    // More is committed at once than is held at once.
    db.execute(format!(
        "INSERT INTO outbox (topic, payload) SELECT 'new', '1' FROM generate_series(1, {NEW})"
    ))
    .await
    .unwrap();
    summarize(&one).await;
    let (mut seen, mut more, before) = (Vec::new(), true, rows_read(&one).await);
    while more {
        let looked = tail.look().await.unwrap();
        seen.extend(looked.events.iter().map(|record| record.sequence));
        more = looked.more;
    }
    let read = rows_read(&one).await - before;
    println!("many: {read} rows read");
    seen.sort_unstable();
    assert_eq!(seen, (OLD + 1..=OLD + NEW as i64).collect::<Vec<_>>(), "each once");
    assert!(read < 12 * NEW as i64, "{read} rows were read for {NEW}");
    one.close().await;
    db.drop_everything().await;
}

/// After a burst, one comes last that was written before the others by its time: nothing passes it.
#[tokio::test]
async fn op1_what_comes_last_and_is_older_by_its_time_is_shown() {
    const BURST: usize = 10_100;
    let db = Db::new(Kind::Postgres).await;
    let admin = Admin::new(db.shared_store());
    let mut tail = admin.tail(Filter::all(), None).await.unwrap();
    db.execute(format!(
        "INSERT INTO outbox (topic, payload, created_at)
         SELECT 'burst', '1', now() - interval '5 seconds' + n * interval '1 microsecond' FROM generate_series(1, {BURST}) AS n"
    ))
    .await
    .unwrap();
    let mut shown = 0;
    while shown < BURST {
        shown += tail.look().await.unwrap().events.len();
    }
    db.execute(
        "INSERT INTO outbox (topic, payload, created_at) SELECT 'late', '1', max(created_at) - interval '3 milliseconds' FROM outbox",
    )
    .await
    .unwrap();
    let last = tail.look().await.unwrap().events;
    assert_eq!(last.iter().map(|record| record.sequence).collect::<Vec<_>>(), [BURST as i64 + 1]);
    db.drop_everything().await;
}
