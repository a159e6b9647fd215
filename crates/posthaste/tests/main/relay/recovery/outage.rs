//! Losing the database in the middle of the work: the relay comes back by itself and nothing is lost.
//!
//! Rows of the contract: RE11, PR2.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use posthaste::store::Status;
use posthaste::{Event, Relay};
use sqlx::{Connection, Executor, SqliteConnection};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::spy::Spy;
use crate::harness::{Db, Kind, MINUTE, PrivateServer, Recorder, Setup, event, until};

databases!(re11_nothing_is_lost_with_the_server, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);
databases!(re11_nothing_is_lost_with_the_server_on_the_hot_path, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);
databases!(re11_a_locked_file_is_waited_for, by_kind: sqlite Sqlite);

/// As on a queue.
mod stream {
    databases!(re11_nothing_is_lost_with_the_server, stream_by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);
    databases!(re11_nothing_is_lost_with_the_server_on_the_hot_path, stream_by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);
    databases!(re11_a_locked_file_is_waited_for, stream_by_kind: sqlite Sqlite);
}

const EVENTS: usize = 5000;
const PRODUCERS: usize = 4;
/// Events of one transaction.
const TOGETHER: usize = 5;

#[derive(Clone, Copy)]
enum Fault {
    /// All connections are cut.
    Cut,
    /// The server dies.
    Crash,
    /// The server is shut down.
    ShutDown,
}

/// One in each eighth of the run.
const FAULTS: [Fault; 8] =
    [Fault::Cut, Fault::Crash, Fault::Cut, Fault::Cut, Fault::ShutDown, Fault::Cut, Fault::Crash, Fault::Cut];

#[derive(Clone, Copy)]
enum Path {
    /// A transaction of the pool.
    Plain,
    /// One that knows its commit.
    Hot,
}

/// What a producer knows of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Committed,
    /// Rolled back, or never asked to commit.
    Undone,
    /// The answer to its commit was lost.
    Unknown,
}

async fn re11_nothing_is_lost_with_the_server(kind: Kind) {
    everything_is_delivered_whatever_happens_to_the_server(kind, Path::Plain).await;
}

async fn re11_nothing_is_lost_with_the_server_on_the_hot_path(kind: Kind) {
    everything_is_delivered_whatever_happens_to_the_server(kind, Path::Hot).await;
}

async fn everything_is_delivered_whatever_happens_to_the_server(kind: Kind, path: Path) {
    let mut server = PrivateServer::start(kind).await;
    let db = Arc::new(Db::on(&server).await);
    let recorder = Recorder::default();
    let relay = relay(&db, &recorder).await;
    let (turns, mut ends, _producers) = produce(&db, path);
    let mut last_fault = Instant::now();
    for (at, fault) in FAULTS.into_iter().enumerate() {
        let part = EVENTS / FAULTS.len();
        turns.add_permits(part / TOGETHER);
        recorder.wait_for(at * part + part / 3).await;
        match fault {
            Fault::Cut => drop(server.kill_connections().await),
            Fault::Crash => server.crash(),
            Fault::ShutDown => server.shut_down(),
        }
        if !matches!(fault, Fault::Cut) {
            until("the relay finds the server gone", async || relay.status().database.is_some()).await;
            server.start_again().await;
        }
        last_fault = Instant::now();
    }
    let (mut ended, mut left) = (Vec::new(), EVENTS);
    while left > 0 {
        let (id, end) = ends.recv().await.unwrap();
        left -= usize::from(end != End::Undone);
        ended.push((id, end));
    }
    let with = |end| ended.iter().filter(move |(_, e)| *e == end).map(|(id, _)| *id);
    let written = ids(&db).await;
    let lost: Vec<Uuid> = with(End::Committed).filter(|id| !written.contains(id)).collect();
    assert!(lost.is_empty(), "committed and not there: {lost:?}");
    let undead: Vec<Uuid> = with(End::Undone).filter(|id| written.contains(id)).collect();
    assert!(undead.is_empty(), "rolled back and there: {undead:?}");

    recorder.wait_for(written.len()).await;
    until("all is settled", async || db.count(Status::Delivered).await == written.len() as u64).await;
    let took = last_fault.elapsed();
    assert!(took < MINUTE, "{took:?}");
    until("the relay is content", async || relay.status().database.is_none()).await;
    let delivered: HashSet<Uuid> = recorder.begun().into_iter().map(|(id, _)| id).collect();
    assert_eq!(delivered, written);
    assert_eq!(db.count(Status::Dead).await, 0);
    println!(
        "{} events, {} of unknown commits, {} rolled back, {} delivered again; settled {took:.1?} after the last fault",
        written.len(),
        with(End::Unknown).count(),
        with(End::Undone).count(),
        recorder.repeats()
    );
    assert_eq!(relay.stop().await.unsettled, 0);
}

/// A relay whose leases end soon: a claim or a commit whose answer was lost leaves rows to theirs.
async fn relay(db: &Db, recorder: &Recorder) -> Relay {
    let second = Duration::from_secs(1);
    db.relay().handler(recorder.clone()).lease(6 * second).timeout(3 * second).start().await.unwrap()
}

/// Producers that bring a transaction to its commit for each permit, however often they have to try, and say how
/// each try ended.
fn produce(db: &Arc<Db>, path: Path) -> (Arc<Semaphore>, mpsc::UnboundedReceiver<(Uuid, End)>, JoinSet<()>) {
    let turns = Arc::new(Semaphore::new(0));
    let (tell, ends) = mpsc::unbounded_channel();
    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        let (db, turns, tell) = (Arc::clone(db), Arc::clone(&turns), tell.clone());
        producers.spawn(async move {
            let mut tries = producer;
            loop {
                turns.acquire().await.unwrap().forget();
                let mut end = End::Undone;
                while end == End::Undone {
                    tries += 1;
                    let events: Vec<Event> =
                        (0..TOGETHER as u64).map(|n| event("a", n).build().unwrap()).collect();
                    let ids: Vec<Uuid> = events.iter().map(Event::id).collect();
                    end = write(&db, path, events, tries % 10 == 0).await;
                    ids.into_iter().for_each(|id| tell.send((id, end)).unwrap());
                }
            }
        });
    }
    (turns, ends, producers)
}

/// One transaction.
async fn write(db: &Db, path: Path, events: Vec<Event>, rolls_back: bool) -> End {
    macro_rules! run {
        ($outbox:expr, $begin:expr) => {{
            let Ok(mut tx) = $begin.await else { return End::Undone };
            let enqueued = $outbox.enqueue_all(&mut tx, events).await;
            if rolls_back || enqueued.is_err() {
                tx.rollback().await.ok();
                return End::Undone;
            }
            match tx.commit().await {
                Ok(()) => End::Committed,
                Err(_) => End::Unknown,
            }
        }};
    }
    match (db.handle(), path) {
        (Handle::Postgres(sql), Path::Plain) => run!(sql.outbox, sql.pool.begin()),
        (Handle::Postgres(sql), Path::Hot) => run!(sql.outbox, sql.outbox.begin()),
        (Handle::MySql(sql), Path::Plain) => run!(sql.outbox, sql.pool.begin()),
        (Handle::MySql(sql), Path::Hot) => run!(sql.outbox, sql.outbox.begin()),
        _ => panic!("no server"),
    }
}

/// Every event of the table.
async fn ids(db: &Db) -> HashSet<Uuid> {
    let id = match db.kind() {
        Kind::Postgres => "id::text",
        _ => "LOWER(HEX(id))",
    };
    let ids = db.texts(format!("SELECT {id} FROM outbox")).await;
    ids.iter().map(|id| Uuid::parse_str(id).unwrap()).collect()
}

/// A writer that does not let go: every statement fails until it does.
async fn re11_a_locked_file_is_waited_for(kind: Kind) {
    let busy_timeout = Some(Duration::from_millis(20));
    let db = Db::with(kind, Setup { busy_timeout, ..Setup::default() }).await;
    for part in 0..5 {
        let from = part * EVENTS as u64 / 5;
        db.enqueue_numbers("a", from..from + EVENTS as u64 / 5).await;
    }
    let mut other = SqliteConnection::connect(&db.url()).await.unwrap();
    let recorder = Recorder::default();
    let relay = relay(&db, &recorder).await;
    for part in 0..4 {
        recorder.wait_for(part * EVENTS / 5 + 100).await;
        other.execute("BEGIN EXCLUSIVE").await.unwrap();
        until("the relay finds the file locked", async || relay.status().database.is_some()).await;
        assert!(relay.is_running());
        other.execute("ROLLBACK").await.unwrap();
        until("the relay is content", async || relay.status().database.is_none()).await;
    }
    recorder.wait_for(EVENTS).await;
    until("all is settled", async || db.count(Status::Delivered).await == EVENTS as u64).await;
    assert_eq!((recorder.events(), recorder.repeats()), (EVENTS, 0), "delivered once");
    relay.stop().await;
    db.drop_everything().await;
}

/// Its last claim failed, and it makes no other.
#[tokio::test(start_paused = true)]
async fn re11_a_relay_that_claims_nothing_does_not_complain_of_its_last_claim() {
    let db = Db::new(Kind::Memory).await;
    let spy = Spy::on(db.shared_store());
    let relay = Relay::on(spy.clone()).handler(Recorder::default()).start().await.unwrap();
    spy.gone.store(true, Ordering::SeqCst);
    until("a claim fails", async || relay.status().database.is_some()).await;
    relay.pause();
    spy.gone.store(false, Ordering::SeqCst);
    until("it does not complain", async || relay.status().database.is_none()).await;
    relay.stop().await;
}
