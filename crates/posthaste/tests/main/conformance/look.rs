//! Looking for no longer than is allowed.
//!
//! Rows of the contract: OP6.

use std::time::{Duration, Instant};

use posthaste::store::{Filter, Mode, Page, Sought};
use posthaste::{Admin, ErrorKind};
use uuid::Uuid;

use crate::harness::{Db, Kind, MINUTE, Setup, until};

conformance_sql_by_kind!(
    op6_a_listing_that_takes_too_long_is_ended_by_the_database,
    op6_a_listing_of_a_stream_that_takes_too_long_is_ended_by_the_database,
    op6_a_look_that_nobody_waits_for_leaves_nothing_behind,
    op6_a_limit_that_is_long_enough_changes_nothing,
);

/// More than can be read within [`SHORT`].
const MANY: u32 = 100_000;
const SHORT: Duration = Duration::from_millis(2);

/// A big table whose name nobody else has.
async fn big(kind: Kind, mode: Option<Mode>) -> Db {
    let table = Some(format!("big_{}", &Uuid::now_v7().simple().to_string()[16..]));
    let db = Db::with(kind, Setup { table, mode, ..Setup::default() }).await;
    let ten = "(SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 \
               UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    let many = format!("{ten} AS a, {ten} AS b, {ten} AS c, {ten} AS d, {ten} AS e");
    let rows = db
        .execute(format!("INSERT INTO {} (topic, payload) SELECT 'big', '1' FROM {many}", db.table()))
        .await
        .unwrap();
    assert_eq!(rows, u64::from(MANY));
    db
}

/// Statements on the table that its server still executes, but for this question.
async fn running(db: &Db) -> i64 {
    let table = db.table();
    match db.kind() {
        Kind::Postgres => {
            let asked = format!(
                "SELECT count(*) FROM pg_stat_activity
                  WHERE query LIKE '%{table}%' AND pid <> pg_backend_pid() AND state <> 'idle'"
            );
            db.number(asked).await
        }
        Kind::MySql | Kind::MariaDb => {
            let asked = format!(
                "SELECT COUNT(*) FROM {}
                  WHERE info LIKE '%{table}%' AND id <> CONNECTION_ID()",
                db.process_list()
            );
            db.number(asked).await
        }
        // What runs holds its connection; there is nobody else to ask.
        Kind::Sqlite | Kind::Memory => 0,
    }
}

fn nobody() -> Filter {
    Filter::all().topic("nobody")
}

async fn op6_a_listing_that_takes_too_long_is_ended_by_the_database(kind: Kind) {
    ended(kind, None).await;
}

async fn op6_a_listing_of_a_stream_that_takes_too_long_is_ended_by_the_database(kind: Kind) {
    ended(kind, Some(Mode::stream(8).unwrap())).await;
}

async fn ended(kind: Kind, mode: Option<Mode>) {
    let db = big(kind, mode).await;
    let one = db.store().with_connections(1);
    let admin = Admin::new(one.clone()).within(SHORT);
    for filter in [nobody(), Filter::status(posthaste::store::Status::Pending).topic("nobody")] {
        let began = Instant::now();
        let error = admin.list(&filter, Page::newest(10)).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::TooSlow, "{error:?}");
        let said = error.to_string();
        for words in [&db.table(), "events of topic \"nobody\" in table", " ms; narrow it: by status"] {
            assert!(said.contains(words), "not {words:?}: {said}");
        }
        assert!(began.elapsed() < Duration::from_secs(5), "it took {:?}", began.elapsed());
        until("the server has ended it", async || running(&db).await == 0).await;
        // The same connection takes its time where it may.
        let began = Instant::now();
        assert_eq!(one.list(&filter, Page::newest(10)).await.unwrap(), []);
        assert!(began.elapsed() > SHORT, "it takes no longer than the limit: {:?}", began.elapsed());
    }
    one.close().await;
    db.drop_everything().await;
}

async fn op6_a_look_that_nobody_waits_for_leaves_nothing_behind(kind: Kind) {
    let db = big(kind, None).await;
    let one = db.store().with_connections(1);
    let limited = one.within(Duration::from_millis(50));
    let nobody = nobody();
    for millis in 0..20 {
        let look = limited.list(&nobody, Page::newest(10));
        let cut = tokio::time::timeout(Duration::from_millis(millis), look).await;
        assert!(cut.is_err() || millis > 0, "nobody waits for the first");
    }
    // Neither a limit nor a transaction.
    for _ in 0..3 {
        assert_eq!(one.list(&nobody, Page::newest(10)).await.unwrap(), []);
    }
    assert_eq!(one.insert(&[crate::harness::event("a", 1).build().unwrap()]).await.unwrap().len(), 1);
    until("the server has ended all of them", async || running(&db).await == 0).await;
    one.close().await;
    db.drop_everything().await;
}

async fn op6_a_limit_that_is_long_enough_changes_nothing(kind: Kind) {
    let db = Db::new(kind).await;
    let ids = db.enqueue_numbers("a", 0..20).await;
    let (free, limited) = (db.shared_store(), db.store().within(MINUTE));
    let since = free.now().await.unwrap() - MINUTE;
    for filter in [Filter::all(), Filter::all().topic("a").since(since), Filter::dead()] {
        let page = Page::first(7);
        assert_eq!(limited.list(&filter, page).await.unwrap(), free.list(&filter, page).await.unwrap());
        assert_eq!(limited.count(&filter, 9).await.unwrap(), free.count(&filter, 9).await.unwrap());
        let fitting = limited.fitting(&filter, &ids[..3]).await.unwrap();
        assert_eq!(fitting.len(), if filter == Filter::dead() { 0 } else { 3 });
    }
    assert_eq!(limited.stats(9).await.unwrap().pending, free.stats(9).await.unwrap().pending);
    let newest = Sought::Newest { limit: 5, since };
    let newest = limited.arrivals(newest).await.unwrap();
    assert_eq!(newest.rows.iter().map(|row| row.id).collect::<Vec<_>>(), ids[15..]);
    db.drop_everything().await;
}
