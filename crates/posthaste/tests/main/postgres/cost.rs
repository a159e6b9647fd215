//! Claims are heap-only updates through the partial index, and cost the same whatever has been delivered; an insert costs no more
//! than it has to.
//!
//! Rows of the contract: RE1, RE2, EN3.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste::event::EventRules;
use posthaste::produce::HookError;
use posthaste::store::{Claim, Keep, PostgresStore, Settlement, Store};
use posthaste::{Event, EventBuilder, Hook, Outbox};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::statements::texts;
use crate::harness::{Db, Kind, MINUTE, Recorder, worker};

fn pool(db: &Db) -> &PgPool {
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    &sql.pool
}

/// Rows as if delivered long ago, and their statistics.
async fn fill_with_delivered(db: &Db, rows: u64) {
    db.execute(format!(
        "INSERT INTO outbox (topic, payload, attempts, outcome, settled_at, created_at, available_at)
         SELECT 'old', ('{{\"n\":' || n || '}}')::json, 1, 'delivered', now(), now() - interval '1 hour', now() - interval '1 hour'
           FROM generate_series(1, {rows}) n"
    ))
    .await
    .unwrap();
    db.execute("VACUUM ANALYZE outbox").await.unwrap();
}

/// Updates of the table so far, and how many of them were heap-only.
async fn updates(pool: &PgPool) -> (i64, i64) {
    // The one connection's counts reach the server's statistics now instead of some seconds later.
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(pool).await.unwrap();
    sqlx::query_as(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = to_regclass('outbox')",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn re1_claims_are_heap_only_updates() {
    let db = Db::new(Kind::Postgres).await;
    // Payloads of an ordinary size; the shorter a row, the more a lease adds to it in proportion.
    let events: Vec<_> = (0..2000).map(|_| Event::json("a", &"x".repeat(300)).unwrap()).collect();
    let mut tx = db.begin().await;
    tx.enqueue_all(&db, events).await.unwrap();
    tx.commit().await;
    let options = pool(&db).connect_options().as_ref().clone();
    let single = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let store = PostgresStore::new(single.clone(), "outbox".parse().unwrap());

    let claimed = store.claim(&Claim::by(worker()).limit(2000).lease(MINUTE)).await.unwrap().events;
    assert_eq!(claimed.len(), 2000);
    let (updated, hot) = updates(&single).await;
    println!("2000 events claimed: {updated} updates, {hot} of them heap-only");
    assert_eq!((updated, hot), (2000, 2000));

    single.close().await;
    db.drop_everything().await;
}

/// The claim's own statement, as the server sees it, put before EXPLAIN.
async fn explain_claim(db: &Db) -> String {
    // The text that sqlx really sends, from its log.
    let (_, sql) = crate::harness::statements::texts(async {
        db.store().claim(&Claim::by(worker()).limit(1).lease(Duration::from_millis(1))).await.unwrap();
    })
    .await;
    let claim = sql.into_iter().find(|sql| sql.contains("SKIP LOCKED")).expect("the claim was logged");
    let claim = claim
        .replace("$1", "'w'")
        .replace("$2", "60000000::bigint")
        .replace("$3", "500::bigint")
        .replace("$4", "25")
        .replace("$5", "'{}'")
        .replace("$6", "'spent'");
    explain(db, &claim).await
}

async fn explain(db: &Db, statement: &str) -> String {
    let explain = AssertSqlSafe(format!("EXPLAIN (COSTS OFF) {statement}"));
    let plan: Vec<String> = sqlx::query_scalar(explain).fetch_all(pool(db)).await.unwrap();
    plan.join("\n")
}

#[tokio::test]
async fn re2_orphaned_leases_are_looked_for_through_the_partial_index_and_the_locks_read_once() {
    let db = Db::new(Kind::Postgres).await;
    fill_with_delivered(&db, 50_000).await;
    db.execute(
        "INSERT INTO outbox (topic, payload, attempts, locked_by, locked_until)
         SELECT 'new', '1', 1, 'gone~#1', now() + interval '1 minute' FROM generate_series(1, 20000)",
    )
    .await
    .unwrap();
    db.execute("VACUUM ANALYZE outbox").await.unwrap();
    let (absent, look) = texts(db.store().absent_workers()).await;
    assert_eq!((absent.unwrap(), look.len()), (vec!["gone~".to_owned()], 1), "one statement");
    let (ended, end) = texts(db.store().end_leases_of(&["gone~".to_owned()])).await;
    assert_eq!((ended.unwrap(), end.len()), (10_000, 1), "one statement, and bounded");
    for sql in [&look[0], &end[0]] {
        let plan = explain(&db, &sql.replace("$1", "1").replace("$2", "'{gone~}'")).await;
        println!("{plan}");
        assert!(plan.contains("Index Scan using outbox_claim"), "{plan}");
        assert!(!plan.contains("Seq Scan on outbox") && !plan.contains("Sort Key: outbox"), "{plan}");
        assert!(plan.contains("NOT (hashed SubPlan"), "{plan}");
    }
    db.drop_everything().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re1_a_claim_scans_the_partial_index_and_costs_no_more_with_300_000_delivered_rows() {
    let empty = Db::new(Kind::Postgres).await;
    let full = Db::new(Kind::Postgres).await;
    fill_with_delivered(&full, 300_000).await;
    for db in [&empty, &full] {
        db.enqueue_numbers("new", 0..1000).await;
        db.execute("ANALYZE outbox").await.unwrap();
    }
    let plan = explain_claim(&full).await;
    println!("{plan}");
    assert!(plan.contains("Index Scan using outbox_claim"), "{plan}");
    assert!(!plan.contains("Seq Scan"), "{plan}");
    assert!(!plan.contains("Sort"), "{plan}");

    // Claims of 10 out of 1000, handed back each time; the two tables take turns, the median counts.
    let mut times: [Vec<Duration>; 2] = Default::default();
    for round in 0..60 {
        for (db, times) in [&empty, &full].into_iter().zip(&mut times) {
            let started = Instant::now();
            let claimed =
                db.store().claim(&Claim::by(worker()).limit(10).lease(MINUTE)).await.unwrap().events;
            let took = started.elapsed();
            assert_eq!(claimed.len(), 10);
            let released: Vec<_> = claimed.into_iter().map(|c| Settlement::released(c.lease)).collect();
            db.store().settle(&released, Keep::Delivered).await.unwrap();
            // The first rounds fill caches and prepare statements.
            if round >= 10 {
                times.push(took);
            }
        }
    }
    let [on_empty, on_full] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2]
    });
    let ratio = on_full.as_secs_f64() / on_empty.as_secs_f64();
    println!(
        "median claim: {on_empty:?} on an empty table, {on_full:?} beside 300 000 delivered rows: ratio {ratio:.2}"
    );
    assert!(ratio <= 2.0, "ratio {ratio:.2}");
    empty.drop_everything().await;
    full.drop_everything().await;
}

/// On a table of a few dozen rows, too, where reading all of it would be cheaper: the plan is kept when there are many.
#[tokio::test]
async fn re1_a_claim_is_one_statement_and_names_rows_by_their_places() {
    let db = Db::new(Kind::Postgres).await;
    db.enqueue_numbers("a", 0..40).await;
    db.execute("VACUUM ANALYZE outbox").await.unwrap();
    let (claimed, sql) = texts(db.store().claim(&Claim::by(worker()).limit(10).lease(MINUTE))).await;
    assert_eq!((claimed.unwrap().events.len(), sql.len()), (10, 1), "{sql:?}");
    let plan = explain_claim(&db).await;
    println!("{plan}");
    assert!(plan.contains("Tid Scan on outbox o"), "{plan}");
    db.drop_everything().await;
}

/// Who makes an event in the call that writes it has an id that nobody else can have. Any other may be there already.
#[tokio::test]
async fn en3_a_duplicate_is_looked_for_where_there_can_be_one() {
    /// Gives copies on, and keeps what it was given.
    #[derive(Clone, Default)]
    struct Keeps(Arc<Mutex<Vec<Event>>>);
    impl Hook for Keeps {
        fn before_write(&self, events: Vec<Event>, _: &EventRules) -> Result<Vec<Event>, HookError> {
            let copies = events.clone();
            self.0.lock().unwrap().extend(events);
            Ok(copies)
        }
    }
    let keeps = Keeps::default();
    let db = Db::new(Kind::Postgres).await;
    let outbox = Outbox::postgres(pool(&db).clone()).build().unwrap();
    let hooked = Outbox::postgres(pool(&db).clone()).hook(keeps.clone()).build().unwrap();
    let new = || Event::json("t", &1).unwrap();
    let looks = async |outbox: &Outbox<sqlx::Postgres>, events: Vec<EventBuilder>| {
        let mut tx = pool(&db).begin().await.unwrap();
        let (answers, sql) = texts(outbox.enqueue_all(&mut tx, events)).await;
        assert!(answers.unwrap().iter().all(|answer| !answer.duplicate && answer.sequence.is_some()));
        tx.commit().await.unwrap();
        sql.iter().any(|sql| sql.contains("ON CONFLICT"))
    };
    assert!(!looks(&outbox, vec![new()]).await);
    assert!(!looks(&outbox, vec![new(), new()]).await);
    assert!(looks(&outbox, vec![new().id(Uuid::now_v7())]).await);
    assert!(looks(&outbox, vec![new(), new().id(Uuid::now_v7())]).await);
    assert!(looks(&outbox, vec![new().dedupe_key("once")]).await);
    assert!(looks(&hooked, vec![new()]).await);
    let kept = std::mem::take(&mut *keeps.0.lock().unwrap());
    assert!(db.store().insert(&kept).await.unwrap()[0].duplicate);
    // Two that were alike when they were given are two.
    let one = new();
    assert!(!looks(&outbox, vec![one.clone(), one]).await);
    let event = new().build().unwrap();
    for duplicate in [false, true] {
        let mut tx = pool(&db).begin().await.unwrap();
        assert_eq!(outbox.enqueue(&mut tx, event.clone()).await.unwrap().duplicate, duplicate);
        tx.commit().await.unwrap();
    }
    db.drop_everything().await;
}

/// The same on the hot path.
#[tokio::test]
async fn en3_a_duplicate_of_what_goes_straight_to_a_relay_is_looked_for_where_there_can_be_one() {
    let db = Db::new(Kind::Postgres).await;
    let delivered: Arc<Mutex<Vec<(Uuid, OffsetDateTime)>>> = Arc::default();
    let seen = Arc::clone(&delivered);
    let recorder = Recorder::answering(move |delivery| {
        seen.lock().unwrap().push((delivery.event.id(), delivery.event.occurred_at().unwrap()));
        Ok(())
    });
    let outbox = Outbox::postgres(pool(&db).clone()).build().unwrap();
    let relay = outbox.relay().handler(recorder.clone()).start().await.unwrap();
    let writes = async |event: EventBuilder| {
        let mut tx = outbox.begin().await.unwrap();
        let (answer, sql) = texts(outbox.enqueue(&mut tx, event)).await;
        tx.commit().await.unwrap();
        assert!(sql.iter().any(|sql| sql.contains("locked_by")), "{sql:?}");
        (answer.unwrap().duplicate, sql.iter().any(|sql| sql.contains("ON CONFLICT")))
    };
    let several = async |events: Vec<EventBuilder>| {
        let mut tx = outbox.begin().await.unwrap();
        let (answers, sql) = texts(outbox.enqueue_all(&mut tx, events)).await;
        tx.commit().await.unwrap();
        assert!(sql.iter().any(|sql| sql.contains("locked_by")), "{sql:?}");
        let duplicates = answers.unwrap().iter().map(|answer| answer.duplicate).collect::<Vec<_>>();
        (
            duplicates,
            sql.iter().any(|sql| sql.contains("ON CONFLICT")),
            sql.iter().any(|sql| sql.contains("payload_bytes")),
        )
    };
    let id = Uuid::now_v7();
    assert_eq!(writes(Event::json("t", &1).unwrap()).await, (false, false));
    assert_eq!(writes(Event::json("t", &1).unwrap().id(id)).await, (false, true));
    assert_eq!(writes(Event::json("t", &1).unwrap().id(id)).await, (true, true));
    let new = || Event::json("t", &1).unwrap();
    assert_eq!(several(vec![new(), new()]).await, (vec![false, false], false, false));
    assert_eq!(several(vec![new(), new().id(id)]).await, (vec![false, true], true, false));
    // Whatever one of them has that most have not, all are written with every value there is.
    assert_eq!(several(vec![new(), new().dedupe_key("once")]).await, (vec![false, false], true, true));
    recorder.wait_for(7).await;
    relay.stop().await;
    assert_eq!(recorder.repeats(), 0);
    let dates = "SELECT id, occurred_at FROM outbox ORDER BY id";
    let stored: Vec<(Uuid, OffsetDateTime)> = sqlx::query_as(dates).fetch_all(pool(&db)).await.unwrap();
    let mut delivered = delivered.lock().unwrap().clone();
    delivered.sort();
    assert_eq!(delivered, stored);
    db.drop_everything().await;
}
