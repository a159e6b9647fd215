//! Whatever is done to a table goes by its indexes, even where the planner knows nothing of it.
//!
//! Rows of the contract: RE1, OP6, SM3.

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::stream::{Beat, ParkedClaim, Wait};
use posthaste::store::{
    AttemptLimits, Claim, Ending, Filter, Keep, Mode, Page, PostgresStore, Purge, Settlement, Status, Store,
    Topics,
};
use posthaste::{Admin, Error};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::harness::database::Handle;
use crate::harness::statements::texts;
use crate::harness::{Db, Kind, MINUTE, Owner, Setup, event, until, worker};

const KEPT: u64 = 100_000;
/// A purge looks at some thousands at once.
const SLICES: i64 = 10_000;

/// A stream with many delivered rows, which was never analysed; some wait, some are dead, some are not read yet.
async fn never_analysed() -> Db {
    let db =
        Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(2).unwrap()), ..Setup::default() }).await;
    for table in ["outbox", "outbox_parked", "outbox_lanes", "outbox_places"] {
        db.execute(format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).await.unwrap();
    }
    db.execute(format!(
        "INSERT INTO outbox (topic, payload, aggregate_type, aggregate_id)
         SELECT 'kept', '1', 'order', n FROM generate_series(1, {KEPT}) AS n"
    ))
    .await
    .unwrap();
    db.deliver_all().await;
    enqueue(&db, "poison", 10).await;
    let mut owner = Owner::of(&db).await;
    let page = owner.read(1000).await;
    let wait = |n| if n == 0 { Wait::Dead { blocks: true } } else { Wait::Behind };
    let waits: Vec<_> = page.rows.iter().enumerate().map(|(n, row)| (row, wait(n))).collect();
    owner.park(&waits, 1, Some("no")).await;
    owner.finish(page.number, &[], Keep::Delivered).await;
    owner.end().await;
    enqueue(&db, "unread", 10).await;
    db
}

async fn enqueue(db: &Db, aggregate: &str, events: u64) {
    let events: Vec<_> =
        (0..events).map(|n| event("a", n).aggregate("order", aggregate).build().unwrap()).collect();
    let mut tx = db.begin().await;
    tx.enqueue_all(db, events).await.unwrap();
    tx.commit().await;
}

/// A store with one connection, which counts the rows it reads.
struct Counting {
    one: PgPool,
    store: Arc<dyn Store>,
    too_many: Vec<String>,
}

impl Counting {
    async fn new(db: &Db) -> Self {
        let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
        let options = sql.pool.connect_options().as_ref().clone();
        let one = PgPoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let store: Arc<dyn Store> = Arc::new(PostgresStore::new(one.clone(), "outbox".parse().unwrap()));
        Self { one, store, too_many: Vec::new() }
    }

    fn admin(&self) -> Admin {
        Admin::new(Arc::clone(&self.store))
    }

    /// Rows of the table, and of what is parked, that the connection has read in its transaction.
    async fn rows_read(&self) -> i64 {
        let read =
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables
                     WHERE relid IN (to_regclass('outbox'), to_regclass('outbox_parked'))";
        sqlx::query_scalar(read).fetch_one(&self.one).await.unwrap()
    }

    /// Notes what reads more rows than it should.
    async fn reads(&mut self, what: &str, most: i64, done: impl Future<Output = Result<(), Error>>) {
        // What the connection does from here on it does in one transaction, which counts.
        sqlx::query("BEGIN").execute(&self.one).await.unwrap();
        let before = self.rows_read().await;
        done.await.unwrap();
        let read = self.rows_read().await - before;
        sqlx::query("ROLLBACK").execute(&self.one).await.unwrap();
        println!("{what}: {read} rows read");
        if read > most {
            self.too_many.push(format!("{what}: {read} instead of {most}"));
        }
    }

    async fn done(self) {
        assert!(self.too_many.is_empty(), "too many rows were read: {:?}", self.too_many);
        self.one.close().await;
    }
}

#[tokio::test]
async fn op6_looking_at_a_stream_that_was_never_analysed_reads_no_more_than_it_shows() {
    let db = never_analysed().await;
    let mut counting = Counting::new(&db).await;
    let (admin, store) = (counting.admin(), Arc::clone(&counting.store));
    let pending = Filter::status(Status::Pending);
    let first = Page::first(10);
    admin.status().await.unwrap();
    counting.reads("status", 100, async { admin.status().await.map(drop) }).await;
    counting.reads("lanes", 100, async { admin.lanes().await.map(drop) }).await;
    counting.reads("blocked", 100, async { admin.blocked(10).await.map(drop) }).await;
    counting.reads("pending", 100, async { admin.list(&pending, first).await.map(drop) }).await;
    counting.reads("how many are pending", 100, async { admin.count(&pending).await.map(drop) }).await;
    counting.reads("dead", 100, async { admin.list(&Filter::dead(), first).await.map(drop) }).await;
    counting.reads("the newest", 100, async { admin.list(&Filter::default(), first).await.map(drop) }).await;
    counting.reads("a purge of nothing", SLICES, async { store.purge(old()).await.map(drop) }).await;
    // What a relay asks all the time.
    counting.reads("a survey", 100, async { store.survey(10_000, &worker()).await.map(drop) }).await;
    counting.reads("what is old", 110, async { store.has_old(&[old()]).await.map(drop) }).await;
    let (relay, stream) = (worker(), store.stream().await.unwrap().unwrap());
    let mut beat = Beat { relay: &relay, present: false, holds: &[], lease: MINUTE, seen: None };
    let holds = stream.take(&beat, &[0, 1], &[]).await.unwrap();
    let own = db.store().stream().await.unwrap().unwrap();
    let mut reader = own.reader();
    reader.open(&holds).await.unwrap();
    loop {
        let page = reader.read(1000).await.unwrap();
        reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
        if page.rows.is_empty() && !page.more {
            break;
        }
    }
    let seen = reader.seen().await.expect("it has read everything");
    (beat.holds, beat.seen) = (&holds, Some(&seen));
    counting.reads("a beat", 100, async { stream.beat(&beat).await.map(drop) }).await;
    assert_eq!(stream.beat(&beat).await.unwrap().news, Some(false));
    counting.done().await;
    db.drop_everything().await;
}

/// Its places are looked up once, not for each of its rows.
#[tokio::test]
async fn op6_the_state_of_a_backlog_that_was_never_analysed_reads_each_row_once() {
    let db = never_analysed().await;
    enqueue(&db, "more", 5000).await;
    let mut counting = Counting::new(&db).await;
    let store = Arc::clone(&counting.store);
    store.stats(10_000).await.unwrap();
    counting.reads("the state", 5200, async { store.stats(10_000).await.map(drop) }).await;
    counting.done().await;
    db.drop_everything().await;
}

#[tokio::test]
async fn op6_a_backlog_that_was_never_analysed_is_claimed_and_counted_by_the_index_until_there_are_enough() {
    let db = Db::new(Kind::Postgres).await;
    db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await.unwrap();
    db.execute(format!(
        "INSERT INTO outbox (topic, payload) SELECT 'new', '1' FROM generate_series(1, {KEPT})"
    ))
    .await
    .unwrap();
    let mut counting = Counting::new(&db).await;
    let (admin, store) = (counting.admin(), Arc::clone(&counting.store));
    let pending = Filter::status(Status::Pending);
    let claim = Claim::by(worker()).limit(500).lease(MINUTE);
    admin.status().await.unwrap();
    // Its rows are found, locked and updated.
    counting.reads("a claim", 1500, async { store.claim(&claim).await.map(drop) }).await;
    counting.reads("status", 20_010, async { admin.status().await.map(drop) }).await;
    counting.reads("how many are pending", 10_001, async { admin.count(&pending).await.map(drop) }).await;
    counting.reads("absent workers", 10_000, async { store.absent_workers().await.map(drop) }).await;
    counting.reads("a purge of nothing", 0, async { store.purge(old()).await.map(drop) }).await;
    db.execute("UPDATE outbox SET outcome = 'delivered', settled_at = now() - interval '2 hours'")
        .await
        .unwrap();
    counting.reads("a purge", 300, async { store.purge(old()).await.map(drop) }).await;
    counting.done().await;
    db.drop_everything().await;
}

#[tokio::test]
async fn op6_of_many_dead_events_no_more_are_read_than_are_shown_or_changed() {
    let db = never_analysed().await;
    db.execute(
        "INSERT INTO outbox_parked (seq, id, lane, topic, key, blocks, attempts, outcome, settled_at)
         SELECT seq, id, lane, topic, 'key-' || seq, true, 1, 'dead', now() - interval '2 hours'
           FROM outbox WHERE topic = 'kept' AND seq <= 20000",
    )
    .await
    .unwrap();
    let mut counting = Counting::new(&db).await;
    let (admin, store) = (counting.admin(), Arc::clone(&counting.store));
    let (dead, first) = (Filter::dead(), Page::first(10));
    let listed = admin.list(&dead, first).await.unwrap();
    let one = Filter::dead().id(listed[9].id);
    counting.reads("dead", 100, async { admin.list(&dead, first).await.map(drop) }).await;
    counting.reads("one that is dead", 100, async { admin.list(&one, first).await.map(drop) }).await;
    counting.reads("blocked", 100, async { admin.blocked(10).await.map(drop) }).await;
    counting.reads("a replay", 100, async { store.replay(&one, 10).await.map(drop) }).await;
    counting.reads("a discard", 100, async { store.discard(&dead, 10).await.map(drop) }).await;
    let purge = Purge { ending: Ending::Dead, limit: 10, ..old() };
    counting.reads("a purge of dead ones", 100, async { store.purge(purge).await.map(drop) }).await;
    counting.done().await;
    db.drop_everything().await;
}

#[tokio::test]
async fn sm2_what_waits_in_other_lanes_costs_a_claim_nothing() {
    let db = never_analysed().await;
    db.execute(
        "INSERT INTO outbox_parked (seq, id, lane, topic, key, blocks, attempts, due)
         SELECT seq, id, lane, topic, CASE WHEN seq % 2 = 0 THEN 'long' ELSE 'key-' || seq END, true, 1, now()
           FROM outbox WHERE topic = 'kept' AND seq <= 40000 AND lane = 1",
    )
    .await
    .unwrap();
    let mut counting = Counting::new(&db).await;
    let store = Arc::clone(&counting.store);
    let stream = store.stream().await.unwrap().unwrap();
    let relay = worker();
    let beat = Beat { relay: &relay, present: false, holds: &[], lease: MINUTE, seen: None };
    let hold = stream.take(&beat, &[0], &[]).await.unwrap();
    let attempts = AttemptLimits::default();
    let claim =
        ParkedClaim { holds: &hold, limit: 100, suspects: true, topics: &Topics::All, attempts: &attempts };
    let long = ["long".to_owned()];
    counting
        .reads("a claim of the other lane", 100, async { stream.claim_parked(&claim).await.map(drop) })
        .await;
    counting.reads("who is blocked", 100, async { stream.blocked_among(&long).await.map(drop) }).await;
    counting.reads("whether anything waits", 100, async { stream.has_parked(&[0]).await.map(drop) }).await;
    counting.reads("what is claimed", 100, async { stream.claimed(&hold).await.map(drop) }).await;
    counting.done().await;
    db.drop_everything().await;
}

fn old() -> Purge {
    Purge { ending: Ending::Delivered, older_than: Duration::from_secs(3600), limit: 100 }
}

#[tokio::test]
async fn sm3_a_page_of_a_backlog_that_was_never_analysed_is_read_by_the_index_until_it_is_full() {
    let db =
        Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(2).unwrap()), ..Setup::default() }).await;
    db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await.unwrap();
    let mut owner = Owner::of(&db).await;
    db.execute(format!(
        "INSERT INTO outbox (topic, payload) SELECT 'new', '1' FROM generate_series(1, {KEPT})"
    ))
    .await
    .unwrap();
    let (page, sql) = texts(owner.read(100)).await;
    assert_eq!(page.rows.len(), 100);
    let reading =
        sql.into_iter().find(|sql| sql.contains("ORDER BY seq LIMIT")).expect("the reading was logged");
    let values = ["'3'", "'{}'", "0", "100", "'{0,1}'", "0", "NULL", "false"];
    let reading =
        values.iter().enumerate().fold(reading, |sql, (n, value)| sql.replace(&format!("${}", n + 1), value));
    let plan = db.texts(format!("EXPLAIN (COSTS OFF) {reading}")).await.join("\n");
    println!("{plan}");
    assert!(plan.contains("Index Scan using outbox_seq"), "{plan}");
    assert!(!plan.contains("Sort") && !plan.contains("Bitmap"), "{plan}");
    db.drop_everything().await;
}

#[tokio::test]
async fn sm3_places_that_an_old_transaction_keeps_from_cleanup_cost_a_page_nothing() {
    const PAGES: i64 = 300;
    let db =
        Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(1).unwrap()), ..Setup::default() }).await;
    db.execute("ALTER TABLE outbox_places SET (autovacuum_enabled = off)").await.unwrap();
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    let mut old = sql.pool.begin().await.unwrap();
    sqlx::query("DECLARE pin CURSOR FOR SELECT 1").execute(&mut *old).await.unwrap();
    enqueue(&db, "busy", PAGES as u64).await;
    let mut owner = Owner::of(&db).await;
    for _ in 0..PAGES {
        let page = owner.read(1).await;
        owner.finish(page.number, &[], Keep::Delivered).await;
    }
    owner.end().await;
    let counted = |what: &str, of: &str| {
        format!("SELECT coalesce(sum({what}), 0)::bigint FROM {of} WHERE relid = 'outbox_places'::regclass")
    };
    let written = counted("n_tup_ins", "pg_stat_user_tables");
    until("the pages are counted", async || db.number(&written).await >= PAGES).await;
    let looked_at = db.number(counted("idx_tup_read", "pg_stat_user_indexes")).await;
    assert!(looked_at < 20 * PAGES, "{looked_at} places were looked at for {PAGES} pages");
    let scanned = db.number(counted("seq_tup_read", "pg_stat_user_tables")).await;
    assert!(scanned < 20 * PAGES, "{scanned} places were read for {PAGES} pages");
    old.rollback().await.unwrap();
    db.drop_everything().await;
}

/// The server keeps the plans of prepared statements until the table is analysed; of an empty one they read all of it.
#[tokio::test]
async fn re1_plans_of_a_table_that_was_analysed_while_it_was_empty_are_not_kept_for_a_burst() {
    const BATCH: usize = 500;
    let db = Db::new(Kind::Postgres).await;
    db.execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await.unwrap();
    db.execute("INSERT INTO outbox (topic, payload) SELECT 'kept', '1' FROM generate_series(1, 5)")
        .await
        .unwrap();
    let mut counting = Counting::new(&db).await;
    let store = Arc::clone(&counting.store);
    let claim = Claim::by(worker()).limit(BATCH as u32);
    let settle = async || {
        let claimed = store.claim(&claim).await?.events;
        let delivered: Vec<_> = claimed.into_iter().map(|c| Settlement::delivered(c.lease)).collect();
        store.settle(&delivered, Keep::Delivered).await.map(|settled| settled.written)
    };
    assert_eq!(settle().await.unwrap(), 5);
    db.execute("VACUUM ANALYZE outbox").await.unwrap();
    for _ in 0..8 {
        db.execute("INSERT INTO outbox (topic, payload) VALUES ('few', '1')").await.unwrap();
        assert_eq!(settle().await.unwrap(), 1);
    }
    db.execute(format!(
        "INSERT INTO outbox (topic, payload) SELECT 'burst', '1' FROM generate_series(1, {KEPT})"
    ))
    .await
    .unwrap();
    // The first ones find out.
    assert_eq!(settle().await.unwrap(), BATCH);
    assert_eq!(settle().await.unwrap(), BATCH);
    let most = 10 * BATCH as i64;
    counting.reads("a claim and its settlement", most, async { settle().await.map(drop) }).await;
    counting.done().await;
    db.drop_everything().await;
}

/// As a rule nothing is parked; then relays are killed, and much is. A claim looks each row up, and each of their events.
#[tokio::test]
async fn sm2_plans_of_a_time_when_nothing_was_parked_are_not_kept_for_a_burst() {
    const BATCH: u32 = 500;
    const PARKED: u64 = 4000;
    let db =
        Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(1).unwrap()), ..Setup::default() }).await;
    for table in ["outbox", "outbox_parked"] {
        db.execute(format!("ALTER TABLE {table} SET (autovacuum_enabled = off)")).await.unwrap();
        db.execute(format!("VACUUM ANALYZE {table}")).await.unwrap();
    }
    let mut counting = Counting::new(&db).await;
    let stream = counting.store.stream().await.unwrap().unwrap();
    let relay = worker();
    let beat = Beat { relay: &relay, present: false, holds: &[], lease: MINUTE, seen: None };
    let holds = stream.take(&beat, &[0], &[]).await.unwrap();
    let attempts = AttemptLimits::default();
    let claim = async || {
        let (holds, topics, attempts) = (&holds, &Topics::All, &attempts);
        stream.claim_parked(&ParkedClaim { holds, limit: BATCH, suspects: true, topics, attempts }).await
    };
    for _ in 0..20 {
        assert!(claim().await.unwrap().is_empty());
    }
    db.execute(format!(
        "INSERT INTO outbox (topic, payload, aggregate_type, aggregate_id)
         SELECT 'burst', '1', 'order', n FROM generate_series(1, {PARKED}) AS n"
    ))
    .await
    .unwrap();
    db.execute(
        "INSERT INTO outbox_parked (seq, id, lane, topic, key, blocks, attempts, due)
         SELECT seq, id, lane, topic, aggregate_id, true, 1, now() FROM outbox",
    )
    .await
    .unwrap();
    // The first one finds out.
    assert_eq!(claim().await.unwrap().len(), BATCH as usize);
    let most = 20 * i64::from(BATCH);
    counting.reads("a claim of what is parked", most, async { claim().await.map(drop) }).await;
    counting.done().await;
    db.drop_everything().await;
}
