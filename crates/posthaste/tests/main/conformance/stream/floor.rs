//! Streams where each delivered row is marked: what happens between owners, after a failover, and where somebody has a row
//! locked.
//!
//! Rows of the contract: SM1, SM2, HK1.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use posthaste::Event;
use posthaste::store::stream::{
    Beat, Hold, Page, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Reader, Row, Wait,
};
use posthaste::store::{AttemptLimits, Ending, Filter, Keep, Mode, Purge, Stream, Topics, WorkerId};
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, Setup, event, until, worker};

databases!(sm1_who_continues_its_lane_suspects_nothing, by_kind: mysql MySql, mariadb MariaDb, sqlite Sqlite);
databases!(sm1_fences_do_not_repeat_after_a_failover, by_kind: mysql MySql, mariadb MariaDb, sqlite Sqlite);
databases!(sm1_a_place_that_is_another_events_by_now_is_left_alone, by_kind: mysql MySql, mariadb MariaDb, sqlite Sqlite);
// Where one transaction at a time writes, nobody has a row locked.
databases!(sm1_what_was_delivered_under_a_lock_is_not_delivered_again, by_kind: mysql MySql, mariadb MariaDb);
databases!(hk1_nobody_is_waited_for_to_discard_or_purge, by_kind: mysql MySql, mariadb MariaDb);
databases!(sm1_a_call_that_is_cut_off_leaves_no_hurried_connection, by_kind: mysql MySql, mariadb MariaDb);
databases!(sm2_thousands_of_suspects_are_no_matter, by_kind: mysql MySql, mariadb MariaDb, sqlite Sqlite);

const NOBODY: [u16; 0] = [];

/// A stream of one lane.
struct Rig {
    db: Db,
    stream: Arc<dyn Stream>,
}

impl Rig {
    async fn new(kind: Kind) -> Self {
        let mode = Some(Mode::stream(1).unwrap());
        let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
        let stream = db.store().stream().await.unwrap().unwrap();
        Self { db, stream }
    }

    /// Commits an event of each of these aggregates; the numbers are their payloads, counted from the first.
    async fn enqueue(&self, aggregates: &[&str]) {
        let numbered = aggregates.iter().enumerate();
        let event = |(n, id): (usize, &&str)| event("a", n as u64).aggregate("order", *id).build().unwrap();
        self.enqueue_events(numbered.map(event).collect()).await;
    }

    async fn enqueue_events(&self, events: Vec<Event>) {
        let mut tx = self.db.begin().await;
        tx.enqueue_all(&self.db, events).await.unwrap();
        tx.commit().await;
    }

    /// Takes the lane, whoever has it, for a relay that held it like this before.
    async fn take(&self, relay: &WorkerId, held: &[Hold]) -> Vec<Hold> {
        self.execute("UPDATE outbox_lanes SET leased_until = NULL").await;
        let beat = Beat { relay, present: false, holds: held, lease: MINUTE, seen: None };
        let holds = self.stream.take(&beat, &[0], &[]).await.unwrap();
        assert_eq!(holds.len(), 1);
        holds
    }

    async fn reader(&self, holds: &[Hold]) -> Box<dyn Reader> {
        let mut reader = self.stream.reader();
        reader.open(holds).await.unwrap();
        reader
    }

    async fn park(&self, parks: Vec<Park>) {
        assert_eq!(self.stream.park(&parks).await.unwrap(), NOBODY);
    }

    async fn claim(&self, holds: &[Hold], suspects: bool) -> Vec<Parked> {
        let attempts = AttemptLimits::default();
        let claim = ParkedClaim { holds, limit: 100, suspects, topics: &Topics::All, attempts: &attempts };
        self.stream.claim_parked(&claim).await.unwrap()
    }

    async fn execute(&self, sql: &str) {
        self.db.execute(sql).await.unwrap();
    }

    async fn count(&self, what: &str) -> i64 {
        self.db.number(format!("SELECT COUNT(*) FROM {what}")).await
    }
}

/// The number an event was made with.
fn number(event: &Result<impl Borrow<Event>, impl std::fmt::Debug>) -> u64 {
    serde_json::from_str(event.as_ref().unwrap().borrow().payload().as_json().unwrap()).unwrap()
}

fn numbers(page: &Page) -> Vec<u64> {
    page.rows.iter().map(|row| number(&row.event)).collect()
}

fn parked_numbers(parked: &[Parked]) -> Vec<u64> {
    parked.iter().map(|parked| number(&parked.event)).collect()
}

fn park(row: &Row, wait: Wait) -> Park {
    Park {
        hold: row.hold,
        sequence: row.sequence,
        id: row.id,
        topic: row.topic().to_owned(),
        key: row.event.as_ref().unwrap().aggregate_id().unwrap().to_owned(),
        attempts: 1,
        error: None,
        wait,
    }
}

fn said(page: &Page) -> Vec<(Hold, i64)> {
    page.rows.iter().map(|row| (row.hold, row.sequence)).collect()
}

/// A relay whose lease ended while it lived, and that takes its lane again before anybody else did, knows that what it had
/// under way ended no process.
async fn sm1_who_continues_its_lane_suspects_nothing(kind: Kind) {
    let rig = Rig::new(kind).await;
    let relay = worker();
    for continued in [true, false] {
        rig.enqueue(&["a", "b", "b", "c", "d", "e"]).await;
        let held = rig.take(&relay, &[]).await;
        let mut reader = rig.reader(&held).await;
        let page = reader.read(5).await.unwrap();
        let rows = &page.rows;
        rig.park(vec![
            park(&rows[0], Wait::Suspect),
            park(&rows[1], Wait::Running),
            park(&rows[2], Wait::Behind),
            park(&rows[3], Wait::Suspect),
        ])
        .await;
        assert_eq!(parked_numbers(&rig.claim(&held, true).await), [0], "a suspect is being tried");

        let last = if continued { held[0] } else { Hold { fence: held[0].fence - 1, ..held[0] } };
        let holds = rig.take(&relay, &[last]).await;
        assert!(holds[0].fence > held[0].fence);
        let mut reader = rig.reader(&holds).await;
        let page = reader.read(10).await.unwrap();
        assert_eq!(numbers(&page), [4, 5], "what was parked is not read again");
        assert_eq!(page.rows[0].suspect, !continued, "it was under way");
        assert!(!page.rows[1].suspect);
        let unsuspected = rig.claim(&holds, false).await;
        let mut suspects = Vec::new();
        while let [suspect] = &rig.claim(&holds, true).await[..] {
            assert!(suspect.suspect);
            suspects.push(number(&suspect.event));
        }
        suspects.sort_unstable();
        if continued {
            assert_eq!(parked_numbers(&unsuspected), [1], "what ran comes first of its aggregate");
            assert_eq!(unsuspected[0].attempt, 2);
            assert_eq!(suspects, [0, 3], "who was one before is one still");
        } else {
            assert!(unsuspected.is_empty());
            assert_eq!(suspects, [0, 1, 3]);
        }
        rig.execute("DELETE FROM outbox_parked").await;
        rig.execute("DELETE FROM outbox").await;
    }
    rig.db.drop_everything().await;
}

/// A server that takes over knows less than the one before it: it may have lost the last change of owner.
async fn sm1_fences_do_not_repeat_after_a_failover(kind: Kind) {
    let rig = Rig::new(kind).await;
    let mut fences = Vec::new();
    for _ in 0..5 {
        let before = rig.db.number("SELECT fence FROM outbox_lanes").await;
        let holds = rig.take(&worker(), &[]).await;
        assert!(holds[0].fence > before && !fences.contains(&holds[0].fence), "{fences:?}");
        fences.push(holds[0].fence);
        // SQLite's clock counts milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
        rig.execute(&format!("UPDATE outbox_lanes SET fence = {before}")).await;
    }
    let ahead = fences[4] + 3_600_000_000;
    rig.execute(&format!("UPDATE outbox_lanes SET fence = {ahead}")).await;
    assert_eq!(rig.take(&worker(), &[]).await[0].fence, ahead + 1, "whatever the clock says, it grows");
    rig.db.drop_everything().await;
}

/// Gives the place of an event to another, as a server does that took over and did not know of the event.
async fn give_away(rig: &Rig, row: &Row) -> Uuid {
    let other = Uuid::now_v7();
    let id = match rig.db.kind() {
        Kind::Sqlite => format!("'{other}'"),
        _ => format!("UNHEX('{}')", other.simple()),
    };
    rig.execute(&format!("UPDATE outbox SET id = {id} WHERE seq = {}", row.sequence)).await;
    other
}

async fn sm1_a_place_that_is_another_events_by_now_is_left_alone(kind: Kind) {
    let rig = Rig::new(kind).await;
    for keep in [Keep::Delivered, Keep::Nothing] {
        rig.enqueue(&["a", "b", "c", "d"]).await;
        let holds = rig.take(&worker(), &[]).await;
        let mut reader = rig.reader(&holds).await;
        let page = reader.read(10).await.unwrap();
        let rows = &page.rows;
        rig.park(vec![park(&rows[0], Wait::Running), park(&rows[1], Wait::After(Duration::ZERO))]).await;
        let mut others = Vec::new();
        for row in rows {
            others.push(give_away(&rig, row).await);
        }
        rig.park(vec![park(&rows[2], Wait::Running)]).await;
        assert_eq!(rig.count("outbox_parked").await, 2, "that event is not there");
        assert_eq!(reader.settle(&said(&page)[3..], &[page.number], keep).await.unwrap(), NOBODY);
        let end =
            ParkedEnd { hold: rows[0].hold, sequence: rows[0].sequence, verdict: ParkedVerdict::Delivered };
        assert_eq!(rig.stream.settle_parked(&[end], keep).await.unwrap(), NOBODY);
        assert!(rig.claim(&holds, false).await.is_empty(), "what was parked is gone");
        assert_eq!(rig.count("outbox_parked").await, 0);
        assert_eq!(rig.count("outbox WHERE outcome = 'delivered'").await, 0);
        // Those that were parked had been marked.
        rig.execute("UPDATE outbox SET outcome = NULL").await;
        let page = reader.read(10).await.unwrap();
        assert_eq!(page.rows.iter().map(|row| row.id).collect::<Vec<_>>(), others);
        assert_eq!(reader.settle(&said(&page), &[page.number], keep).await.unwrap(), NOBODY);
        rig.execute("DELETE FROM outbox WHERE outcome = 'delivered'").await;
        assert_eq!(rig.count("outbox").await, 0);
    }
    rig.db.drop_everything().await;
}

/// A row that somebody has locked when its event was delivered cannot be marked. It is not delivered again for that, whoever
/// owns the lane next.
async fn sm1_what_was_delivered_under_a_lock_is_not_delivered_again(kind: Kind) {
    let rig = Rig::new(kind).await;
    for keep in [Keep::Delivered, Keep::Nothing] {
        rig.enqueue(&["a", "b", "c", "d"]).await;
        let holds = rig.take(&worker(), &[]).await;
        let mut reader = rig.reader(&holds).await;
        let page = reader.read(10).await.unwrap();
        rig.park(vec![park(&page.rows[1], Wait::After(Duration::ZERO))]).await;
        let parked = rig.claim(&holds, false).await;
        assert_eq!(parked_numbers(&parked), [1]);
        let mut somebody = rig.db.begin().await;
        somebody.execute("UPDATE outbox SET tenant_id = 'mine'").await.unwrap();

        let handover = async {
            let ends = [ParkedEnd {
                hold: parked[0].hold,
                sequence: parked[0].sequence,
                verdict: ParkedVerdict::Delivered,
            }];
            assert_eq!(rig.stream.settle_parked(&ends, keep).await.unwrap(), NOBODY);
            let rows = [said(&page)[0], said(&page)[2], said(&page)[3]];
            assert_eq!(reader.settle(&rows, &[page.number], keep).await.unwrap(), NOBODY);
            assert!(reader.read(10).await.unwrap().rows.is_empty());
            assert_eq!(reader.flush().await.unwrap(), NOBODY);
            rig.stream.release(&holds).await.unwrap();
            let holds = rig.take(&worker(), &[]).await;
            rig.stream.repair(&holds).await.unwrap();
            holds
        };
        let holds = tokio::time::timeout(Duration::from_secs(10), handover).await.unwrap();
        let mut next = rig.reader(&holds).await;
        assert!(next.read(10).await.unwrap().rows.is_empty(), "{keep:?}: they were delivered");
        assert!(rig.claim(&holds, true).await.is_empty(), "{keep:?}");
        assert_eq!(rig.count("outbox_status WHERE status = 'delivered' AND NOT parked").await, 4);
        assert_eq!(rig.db.store().stats(100).await.unwrap().pending.n, 0);
        assert!(rig.stream.lag(100).await.unwrap().iter().all(|lane| lane.events.n + lane.parked.n == 0));

        somebody.commit().await;
        rig.stream.repair(&holds).await.unwrap();
        assert_eq!(rig.count("outbox_parked").await, 0);
        assert_eq!(rig.count("outbox WHERE outcome = 'delivered'").await, 4);
        assert!(next.read(10).await.unwrap().rows.is_empty());
        rig.execute("DELETE FROM outbox").await;
    }
    rig.db.drop_everything().await;
}

/// A producer that met a duplicate of an event holds it until it commits. An operator, who has the lane locked, does not wait
/// for that, and does nothing to the event.
async fn hk1_nobody_is_waited_for_to_discard_or_purge(kind: Kind) {
    let rig = Rig::new(kind).await;
    let made = |n: u64| event("a", n).aggregate("order", n / 2).dedupe_key(format!("k{n}")).build().unwrap();
    let events: Vec<Event> = (0..8).map(made).collect();
    rig.enqueue_events(events.clone()).await;
    let holds = rig.take(&worker(), &[]).await;
    let mut reader = rig.reader(&holds).await;
    let page = reader.read(10).await.unwrap();
    let dead = |n: usize| park(&page.rows[n], Wait::Dead { blocks: true });
    let behind = |n: usize| park(&page.rows[n], Wait::Behind);
    rig.park(vec![dead(0), behind(1), dead(2), behind(3), dead(4), behind(5)]).await;
    reader.settle(&said(&page)[6..], &[page.number], Keep::Delivered).await.unwrap();
    rig.execute("UPDATE outbox SET settled_at = '2020-01-01' WHERE outcome = 'delivered'").await;
    let mut producer = rig.db.begin().await;
    // By their ids, and by their dedupe keys.
    for duplicate in [events[0].clone(), made(2), events[6].clone(), made(7)] {
        assert!(producer.enqueue(&rig.db, duplicate).await.unwrap().duplicate);
    }

    let store = rig.db.store();
    let purge = |ending| store.purge(Purge { ending, older_than: Duration::ZERO, limit: 10 });
    let operate = async {
        assert_eq!(store.discard(&Filter::dead(), 10).await.unwrap(), 1);
        assert_eq!(purge(Ending::Dead).await.unwrap(), 0);
        assert_eq!(purge(Ending::Delivered).await.unwrap(), 0);
    };
    tokio::time::timeout(Duration::from_secs(10), operate).await.unwrap();
    assert_eq!(rig.count("outbox_status WHERE status = 'dead'").await, 2, "they are dead still");
    assert_eq!(rig.count("outbox WHERE settled_at = '2020-01-01'").await, 2, "and those past their time");
    assert_eq!(parked_numbers(&rig.claim(&holds, false).await), [5], "who waited for the one that went");
    producer.commit().await;
    assert_eq!(store.discard(&Filter::dead(), 1).await.unwrap(), 1);
    assert_eq!(purge(Ending::Dead).await.unwrap(), 1);
    assert_eq!(purge(Ending::Delivered).await.unwrap(), 2);
    assert_eq!(parked_numbers(&rig.claim(&holds, false).await), [1, 3]);
    assert_eq!(rig.count("outbox").await, 3);
    rig.db.drop_everything().await;
}

/// While lanes are locked the server is told to wait for the connection five seconds at most. Whoever is cut off meanwhile
/// leaves the pool no connection of that kind.
async fn sm1_a_call_that_is_cut_off_leaves_no_hurried_connection(kind: Kind) {
    let rig = Rig::new(kind).await;
    let Handle::MySql(sql) = rig.db.handle() else { panic!("of MySQL alone") };
    rig.enqueue(&["a"]).await;
    let holds = rig.take(&worker(), &[]).await;
    let page = rig.reader(&holds).await.read(10).await.unwrap();
    let mut somebody = rig.db.begin().await;
    somebody.execute("UPDATE outbox_lanes SET present = NOT present").await.unwrap();
    let waiting = tokio::spawn({
        let stream = Arc::clone(&rig.stream);
        let parks = vec![park(&page.rows[0], Wait::After(MINUTE))];
        async move { stream.park(&parks).await }
    });
    let waits = format!(
        "{} WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%FOR UPDATE%'",
        rig.db.process_list()
    );
    until("it waits for the lane", async || rig.count(&waits).await == 1).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    somebody.rollback().await;
    let connections = (0..sql.pool.options().get_max_connections()).map(|_| sql.pool.acquire());
    let mut connections = try_join_all(connections).await.unwrap();
    for connection in &mut connections {
        let timeout = sqlx::query_scalar::<_, i64>("SELECT CAST(@@SESSION.wait_timeout AS SIGNED)");
        assert!(timeout.fetch_one(&mut **connection).await.unwrap() > 5);
    }
    drop(connections);
    rig.park(vec![park(&page.rows[0], Wait::After(MINUTE))]).await;
    rig.db.drop_everything().await;
}

/// One at a time is tried of them: that must not cost more where there are many.
async fn sm2_thousands_of_suspects_are_no_matter(kind: Kind) {
    let (few, many) = (claiming_a_suspect_of(kind, 60).await, claiming_a_suspect_of(kind, 5000).await);
    println!("a suspect is claimed in {few:?} where there are 60, in {many:?} where there are 5000");
    assert!(many < 5 * few + Duration::from_millis(10), "{few:?}, then {many:?}");
}

/// How long it takes at the median.
async fn claiming_a_suspect_of(kind: Kind, suspects: u64) -> Duration {
    let rig = Rig::new(kind).await;
    rig.enqueue_events((0..suspects).map(|n| event("a", n).aggregate("order", n).build().unwrap()).collect())
        .await;
    let holds = rig.take(&worker(), &[]).await;
    let page = rig.reader(&holds).await.read(10_000).await.unwrap();
    rig.park(page.rows.iter().map(|row| park(row, Wait::Suspect)).collect()).await;
    let mut took = Vec::new();
    for n in 0..50 {
        let began = std::time::Instant::now();
        let claimed = rig.claim(&holds, true).await;
        took.push(began.elapsed());
        assert_eq!(parked_numbers(&claimed), [n], "in their order");
    }
    // They may have ended their owner's process: nobody waits for them to be tried again.
    let holds = rig.take(&worker(), &[]).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, true).await), [50], "those that were tried come last");
    rig.db.drop_everything().await;
    took.sort_unstable();
    took[25]
}
