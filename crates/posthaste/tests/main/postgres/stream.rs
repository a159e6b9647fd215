//! The one connection by which a stream's reader knows its lanes: what becomes of them when it is gone.
//!
//! When the server crashes, what has not reached the disk is lost: commits that did not wait for it, and with them the
//! numbers of their transactions, which are given out again. None of it is believed to be done.
//!
//! Rows of the contract: RE11, SM3.

use std::time::Duration;

use posthaste::ErrorKind;
use posthaste::store::stream::{Beat, Row, Wait};
use posthaste::store::{Keep, Mode, PostgresStore, Store};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::Instant;
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, Owner, PrivateServer, Setup, event, until, worker};

/// How often to try to lose something: the server may write it to the disk just before it crashes.
const TRIES: usize = 10;

/// A server that writes what nobody waits for late, and a stream on it.
async fn forgetful() -> (PrivateServer, Db) {
    let server = PrivateServer::start(Kind::Postgres).await;
    let db = Db::on_with(&server, Setup { mode: Some(Mode::stream(2).unwrap()), ..Setup::default() }).await;
    db.execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await.unwrap();
    db.execute("SELECT pg_reload_conf()").await.unwrap();
    db.execute("CREATE TABLE durable (n int)").await.unwrap();
    (server, db)
}

async fn crash(server: &mut PrivateServer) {
    server.crash();
    server.start_again().await;
}

/// A commit that waits for the disk: whatever was committed before it has reached it, too.
async fn make_durable(db: &Db) {
    db.execute("INSERT INTO durable VALUES (1)").await.unwrap();
}

async fn enqueue(db: &Db, aggregate: &str) -> Uuid {
    let event = event("a", 1).aggregate("order", aggregate).build().unwrap();
    let id = event.id();
    let mut tx = db.begin().await;
    tx.enqueue_all(db, vec![event]).await.unwrap();
    tx.commit().await;
    id
}

/// From which number on no transaction has ended.
async fn next_transaction(db: &Db) -> i64 {
    db.number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").await
}

/// The next rows of the same reader: as by a relay, lanes that are lost are taken again, and what fails is tried again.
async fn next_rows(owner: &mut Owner) -> Vec<Row> {
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(15) {
        match owner.reader.read(100).await {
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Ok(page) if page.rows.is_empty() => {
                take_again(owner, &page.lost).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(page) => {
                let delivered: Vec<_> = page.rows.iter().map(|row| (row.hold, row.sequence)).collect();
                let lost = owner.reader.settle(&delivered, &[page.number], Keep::Delivered).await.unwrap();
                assert!(page.lost.is_empty() && lost.is_empty());
                return page.rows;
            }
        }
    }
    Vec::new()
}

async fn take_again(owner: &mut Owner, lost: &[u16]) {
    if lost.is_empty() {
        return;
    }
    let beat = Beat { relay: &owner.worker, present: false, holds: &owner.holds, lease: MINUTE, seen: None };
    let taken = owner.stream.take(&beat, lost, &[]).await.unwrap();
    assert_eq!(taken.len(), lost.len());
    owner.holds.retain(|hold| !lost.contains(&hold.lane));
    owner.holds.extend(&taken);
    owner.reader.open(&taken).await.unwrap();
}

fn ids(rows: &[Row]) -> Vec<Uuid> {
    rows.iter().map(|row| row.id).collect()
}

/// An owner that looks on while others commit without waiting for the disk has seen transactions that the server, once it
/// has crashed, has never heard of: the next ones get their numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_transactions_that_get_the_numbers_of_lost_ones_are_read() {
    let (mut server, db) = forgetful().await;
    let mut owner = Owner::of(&db).await;
    for attempt in 1..=TRIES {
        let first = enqueue(&db, "a").await;
        assert_eq!(ids(&next_rows(&mut owner).await), [first]);
        make_durable(&db).await;
        let burn = "DO $$ BEGIN FOR i IN 1..1000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
        db.execute(burn).await.unwrap();
        assert!(owner.reader.read(100).await.unwrap().rows.is_empty());
        let seen = next_transaction(&db).await;
        crash(&mut server).await;
        let known = next_transaction(&db).await;
        let reused = enqueue(&db, "b").await;
        let came = ids(&next_rows(&mut owner).await);
        assert_eq!(came, [reused], "the reader had seen {seen}, the server knew of {known}");
        if known + 2 < seen {
            println!("{} transactions were lost at attempt {attempt}", seen - known);
            return;
        }
    }
    panic!("the server lost nothing");
}

/// A parked event is behind the reader: it is not to go on past it where the parking was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_an_event_whose_parking_was_lost_is_read_again() {
    let (mut server, db) = forgetful().await;
    let mut owner = Owner::of(&db).await;
    for attempt in 1..=TRIES {
        let id = enqueue(&db, "a").await;
        let page = owner.read(100).await;
        assert_eq!(ids(&page.rows), [id]);
        make_durable(&db).await;
        owner.park(&[(&page.rows[0], Wait::After(MINUTE))], 1, None).await;
        crash(&mut server).await;
        let lost = db.number("SELECT count(*) FROM outbox_parked").await == 0;
        // Its parking was answered: as far as its owner knows, the page is done.
        if let Ok(lost) = owner.reader.settle(&[], &[page.number], Keep::Delivered).await {
            take_again(&mut owner, &lost).await;
        }
        let came = next_rows(&mut owner).await;
        assert!(came.iter().all(|row| row.id == id));
        if lost {
            assert_eq!(ids(&came), [id]);
            assert!(!came[0].suspect, "its owner lives");
            println!("the parking was lost at attempt {attempt}");
            return;
        }
        db.execute("DELETE FROM outbox_parked").await.unwrap();
    }
    panic!("the server lost nothing");
}

/// A stream on the shared server, through a pool of so many connections which the server knows by their name.
struct Pooled {
    db: Db,
    pool: PgPool,
    name: String,
}

impl Pooled {
    async fn new(connections: u32) -> Self {
        Self::with(connections, "").await
    }

    /// The same, with more places to look for names in behind its own.
    async fn with(connections: u32, path: &str) -> Self {
        let db = Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(2).unwrap()), ..Setup::default() })
            .await;
        let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
        let name = format!("reader-{}", Uuid::now_v7().simple());
        let path = format!("{}{path}", db.place());
        let options = sql.pool.connect_options().as_ref().clone();
        let options = options.application_name(&name).options([("search_path", path)]);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_with(options)
            .await
            .unwrap();
        Self { db, pool, name }
    }

    async fn owner(&self) -> Owner {
        let store = PostgresStore::new(self.pool.clone(), "outbox".parse().unwrap());
        let stream = store.stream().await.unwrap().unwrap();
        let (worker, mut reader) = (worker(), stream.reader());
        let beat = Beat { relay: &worker, present: false, holds: &[], lease: MINUTE, seen: None };
        let holds = stream.take(&beat, &[0, 1], &[]).await.unwrap();
        reader.open(&holds).await.unwrap();
        Owner { stream, worker, holds, reader }
    }

    /// Ends, and the server has no connection of it any more.
    async fn end(self, owner: Owner) {
        self.pool.close().await;
        drop(owner);
        until("every connection has ended", async || self.connections().await == 0).await;
        self.db.drop_everything().await;
    }

    /// How many connections the server has of it.
    async fn connections(&self) -> i64 {
        let of = format!("FROM pg_stat_activity WHERE application_name = '{}'", self.name);
        self.db.number(format!("SELECT count(*) {of}")).await
    }

    /// Ends them all.
    async fn kill(&self) {
        let all = format!("FROM pg_stat_activity WHERE application_name = '{}'", self.name);
        assert!(self.db.number(format!("SELECT count(pg_terminate_backend(pid)) {all}")).await > 0);
        until("they have ended", async || self.connections().await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_an_owner_whose_connection_is_ended_takes_its_lanes_again() {
    let pooled = Pooled::new(2).await;
    let mut owner = pooled.owner().await;
    let first = enqueue(&pooled.db, "a").await;
    assert_eq!(ids(&owner.read(100).await.rows), [first]);
    pooled.kill().await;
    let rows = next_rows(&mut owner).await;
    assert_eq!(ids(&rows), [first], "it was under way");
    assert!(!rows[0].suspect, "its owner lives");
    for _ in 0..3 {
        pooled.kill().await;
        let next = enqueue(&pooled.db, "a").await;
        assert_eq!(ids(&next_rows(&mut owner).await), [next], "what is done stays done");
    }
    pooled.end(owner).await;
}

/// What it remembers of the lanes before is not trusted because others are opened by a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_lanes_of_an_ended_connection_are_lost_though_others_are_opened() {
    let pooled = Pooled::new(2).await;
    let mut owner = pooled.owner().await;
    owner.reader.close(&[1]);
    pooled.kill().await;
    let [_, other] = owner.holds[..] else { panic!("two lanes") };
    owner.reader.open(&[other]).await.unwrap_err();
    owner.reader.open(&[other]).await.unwrap();
    assert_eq!(owner.reader.flush().await.unwrap(), [0]);
    let page = owner.reader.read(100).await.unwrap();
    assert_eq!(page.lost, [0; 0], "it is said once");
    pooled.end(owner).await;
}

/// As by a relay that waits for no more than so long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_a_read_that_nobody_waits_for_any_more_loses_nothing() {
    let pooled = Pooled::new(2).await;
    let mut owner = pooled.owner().await;
    let first = enqueue(&pooled.db, "a").await;
    let Handle::Postgres(sql) = pooled.db.handle() else { panic!("PostgreSQL only") };
    for place in ["outbox", "outbox_places"] {
        let mut locks = sql.pool.begin().await.unwrap();
        locks.execute(AssertSqlSafe(format!("LOCK TABLE {place} IN ACCESS EXCLUSIVE MODE"))).await.unwrap();
        let read = tokio::time::timeout(Duration::from_millis(200), owner.reader.read(100)).await;
        assert!(read.is_err(), "{place}: it waits");
        locks.rollback().await.unwrap();
        let page = owner.reader.read(100).await.unwrap();
        assert_eq!((ids(&page.rows), &page.lost), (vec![], &vec![0, 1]), "{place}");
        take_again(&mut owner, &page.lost).await;
    }
    let rows = next_rows(&mut owner).await;
    assert_eq!((ids(&rows), rows[0].suspect), (vec![first], false));
    until("what was waited for has ended", async || pooled.connections().await <= 2).await;
    pooled.end(owner).await;
}

/// An error that the server answers with is no reason to read everything again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_a_statement_that_the_server_ends_costs_no_lane() {
    let pooled = Pooled::new(2).await;
    let mut owner = pooled.owner().await;
    let first = enqueue(&pooled.db, "a").await;
    let page = owner.read(100).await;
    let cancel = async {
        let waiting = format!(
            "FROM pg_stat_activity WHERE application_name = '{}' AND wait_event_type = 'Lock'",
            pooled.name
        );
        until("it waits", async || pooled.db.number(format!("SELECT count(*) {waiting}")).await == 1).await;
        pooled.db.number(format!("SELECT count(pg_cancel_backend(pid)) {waiting}")).await
    };
    let Handle::Postgres(sql) = pooled.db.handle() else { panic!("PostgreSQL only") };
    let mut locks = sql.pool.begin().await.unwrap();
    locks.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let (read, _) = tokio::join!(owner.reader.read(100), cancel);
    assert_eq!(*read.unwrap_err().kind(), ErrorKind::Database);
    locks.rollback().await.unwrap();
    let second = enqueue(&pooled.db, "b").await;
    let next = owner.reader.read(100).await.unwrap();
    assert_eq!((ids(&next.rows), next.lost), (vec![second], vec![]), "{first} is still under way");
    let numbers = [page.number, next.number];
    assert_eq!(owner.reader.settle(&[], &numbers, Keep::Delivered).await.unwrap(), [0; 0]);
    pooled.end(owner).await;
}

/// The reader's connection is none of the pool's: neither what the pool is for nor its end waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_a_pool_of_one_connection_is_enough_and_may_be_closed() {
    let pooled = Pooled::new(1).await;
    let mut owner = pooled.owner().await;
    let busy = pooled.pool.acquire().await.unwrap();
    let first = enqueue(&pooled.db, "a").await;
    let page = owner.read(100).await;
    assert_eq!(ids(&page.rows), [first]);
    drop(busy);
    owner.park(&[(&page.rows[0], Wait::After(MINUTE))], 1, None).await;
    owner.finish(page.number, &[], Keep::Delivered).await;
    assert_eq!(pooled.connections().await, 2, "the pool's, and its own");
    tokio::time::timeout(MINUTE, pooled.pool.close()).await.unwrap();
    until("the pool's has ended", async || pooled.connections().await == 1).await;
    assert!(owner.read(100).await.rows.is_empty(), "it goes on");
    owner.reader.close(&[0, 1]);
    until("who reads nothing has none", async || pooled.connections().await == 0).await;
    let closed = owner.reader.open(&owner.holds).await.unwrap_err();
    assert_eq!(*closed.kind(), ErrorKind::Unreachable);
    pooled.end(owner).await;
}

/// Behind a pooler the server may have been started again, or be another one, and the connection be there still: here, a
/// server that says when it was started as it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re11_what_is_known_of_another_run_of_the_server_is_not_written() {
    let pooled = Pooled::with(2, ",pg_catalog").await;
    let db = &pooled.db;
    db.execute("CREATE TABLE runs (started timestamptz)").await.unwrap();
    db.execute("INSERT INTO runs VALUES (now())").await.unwrap();
    let lies = "CREATE FUNCTION pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql
                AS 'SELECT started FROM runs'";
    db.execute(lies).await.unwrap();
    let mut owner = pooled.owner().await;
    let first = enqueue(db, "a").await;
    let page = owner.read(100).await;
    assert_eq!(ids(&page.rows), [first]);
    let lane = page.rows[0].hold.lane;
    let restart =
        async || db.execute("UPDATE runs SET started = started + interval '1 minute'").await.unwrap();

    restart().await;
    assert_eq!(owner.reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap(), [lane]);
    take_again(&mut owner, &[lane]).await;
    assert_eq!(ids(&next_rows(&mut owner).await), [first], "nothing of it was done");

    restart().await;
    let second = enqueue(db, "a").await;
    let page = owner.reader.read(100).await.unwrap();
    assert_eq!((ids(&page.rows), &page.lost), (vec![], &vec![lane]));
    take_again(&mut owner, &page.lost).await;
    assert_eq!(ids(&next_rows(&mut owner).await), [second]);
    pooled.end(owner).await;
}
