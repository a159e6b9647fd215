//! Streams as a store has them: lanes and their owners, pages and what is under way, parked events.
//!
//! Rows of the contract: SM1, SM2.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use posthaste::Event;
use posthaste::store::stream::{
    Beat, Council, Hold, Page, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Row, Wait,
};
use posthaste::store::{Keep, Mode, Stream, Topics, WorkerId};

use crate::harness::{Db, Kind, MINUTE, Setup, event, until, worker};

conformance_sql_by_kind!(
    sm1_a_queue_has_no_lanes,
    sm1_nothing_asked_for_is_nothing_done,
    sm1_lanes_are_taken_when_they_are_free,
    sm1_of_those_who_take_at_once_each_gets_others,
    sm1_relays_are_listed_in_the_order_they_came,
    sm1_a_beat_keeps_what_is_still_held,
    sm1_every_lane_is_read_and_only_by_its_owner,
    sm1_late_writes_are_refused,
    sm1_what_was_under_way_is_suspect_after_an_unclean_end,
    sm1_a_clean_release_leaves_no_suspects,
    sm1_pages_come_in_order_without_loss,
    sm1_delivered_rows_are_kept_or_not,
    sm1_late_commits_come_beside_busy_producers,
    sm1_256_lanes_are_no_matter,
    sm1_rows_that_cannot_be_read_come_as_such,
    sm2_parked_events_stand_in_line,
    sm2_an_event_is_parked_once,
    sm2_a_run_ends_where_the_limit_does,
    sm2_a_run_ends_where_one_must_not_be_tried,
    sm2_delayed_events_hold_up_nobody,
    sm2_dead_events_block_their_aggregate_or_not,
    sm2_released_events_keep_their_place,
    sm2_of_suspects_one_is_tried_at_a_time,
    sm2_only_the_topics_asked_for_come_up,
    sm2_events_that_take_long_are_parked_while_they_run,
    sm2_a_parked_event_whose_row_is_gone_lets_the_next_come_up,
    sm2_what_waits_for_nobody_comes_up_with_the_next_owner,
    sm2_thousands_behind_one_aggregate_come_in_order,
    sm2_blocked_aggregates_and_lag_are_shown,
);

// Where one transaction at a time writes, nobody commits late; and a file cannot tell who is gone.
databases!(sm1_late_commits_are_found, by_kind: postgres Postgres, mysql MySql);
databases!(sm1_absent_owners_are_known_by_their_session, by_kind: postgres Postgres, mysql MySql);
// Elsewhere nobody writes to a row that somebody may hold.
databases!(sm1_a_producer_of_duplicates_holds_up_nobody, by_kind: mysql MySql);

/// A stream under test.
struct Rig {
    db: Db,
    stream: Arc<dyn Stream>,
}

const NOBODY: [u16; 0] = [];

impl Rig {
    async fn new(kind: Kind, lanes: u16) -> Self {
        let mode = Some(Mode::stream(lanes).unwrap());
        let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
        let stream = db.store().stream().await.unwrap().unwrap();
        assert_eq!(stream.lanes().count(), lanes);
        Self { db, stream }
    }

    fn lanes(&self) -> Vec<u16> {
        (0..self.stream.lanes().count()).collect()
    }

    /// Commits events of aggregates; the numbers are their payloads, counted from the first.
    async fn enqueue(&self, aggregates: impl IntoIterator<Item = &str>) {
        let numbered = aggregates.into_iter().enumerate();
        let event = |(n, id): (usize, &str)| event("a", n as u64).aggregate("order", id).build().unwrap();
        self.enqueue_events(numbered.map(event).collect()).await;
    }

    async fn enqueue_events(&self, events: Vec<Event>) {
        let mut tx = self.db.begin().await;
        tx.enqueue_all(&self.db, events).await.unwrap();
        tx.commit().await;
    }

    async fn beat(&self, relay: &WorkerId, holds: &[Hold]) -> Council {
        self.stream.beat(&Beat { relay, present: false, holds, lease: MINUTE }).await.unwrap()
    }

    async fn take(&self, relay: &WorkerId, lanes: &[u16]) -> Vec<Hold> {
        self.take_from(relay, lanes, &[]).await
    }

    async fn take_from(&self, relay: &WorkerId, lanes: &[u16], absent: &[String]) -> Vec<Hold> {
        let beat = Beat { relay, present: false, holds: &[], lease: MINUTE };
        self.stream.take(&beat, lanes, absent).await.unwrap()
    }

    /// Takes every lane for a relay of its own.
    async fn own(&self) -> Vec<Hold> {
        self.end_leases().await;
        let holds = self.take(&worker(), &self.lanes()).await;
        assert_eq!(holds.len(), self.lanes().len());
        holds
    }

    /// Lets the leases of all lanes end.
    async fn end_leases(&self) {
        self.execute("UPDATE outbox_lanes SET leased_until = NULL").await;
    }

    /// Lets everything that is to come up later come up.
    async fn make_due(&self) {
        self.execute("UPDATE outbox_parked SET due = parked_at WHERE due IS NOT NULL").await;
    }

    async fn execute(&self, sql: &str) {
        self.db.execute(sql).await.unwrap();
    }

    async fn count(&self, what: &str) -> i64 {
        self.db.number(format!("SELECT COUNT(*) FROM {what}")).await
    }

    /// Reads one page that has everything.
    async fn page(&self, holds: &[Hold]) -> Page {
        let mut reader = self.stream.reader();
        reader.open(holds).await.unwrap();
        reader.read(10_000).await.unwrap()
    }

    /// Parks these rows, and nobody is refused.
    async fn park(&self, parks: Vec<Park>) {
        assert_eq!(self.stream.park(&parks).await.unwrap(), NOBODY);
    }

    async fn claim(&self, holds: &[Hold], limit: u32) -> Vec<Parked> {
        self.claim_with(holds, limit, false, &Topics::All).await
    }

    async fn claim_with(&self, holds: &[Hold], limit: u32, suspects: bool, topics: &Topics) -> Vec<Parked> {
        let claim = ParkedClaim { holds, limit, suspects, topics };
        self.stream.claim_parked(&claim).await.unwrap()
    }

    async fn settle(&self, ends: &[ParkedEnd]) {
        assert_eq!(self.stream.settle_parked(ends, Keep::Delivered).await.unwrap(), NOBODY);
    }
}

/// The number an event was made with.
fn number(event: &Result<Event, String>) -> u64 {
    serde_json::from_str(event.as_ref().unwrap().payload().as_json().unwrap()).unwrap()
}

fn numbers(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| number(&row.event)).collect()
}

fn parked_numbers(parked: &[Parked]) -> Vec<u64> {
    parked.iter().map(|parked| number(&parked.event)).collect()
}

fn key(row: &Row) -> String {
    row.event.as_ref().unwrap().aggregate_id().unwrap().to_owned()
}

fn park(row: &Row, wait: Wait) -> Park {
    Park {
        hold: row.hold,
        sequence: row.sequence,
        id: row.id,
        topic: row.topic.clone(),
        key: key(row),
        attempts: 0,
        error: None,
        wait,
    }
}

fn failed(row: &Row, after: Duration) -> Park {
    Park { attempts: 1, error: Some("no".to_owned()), ..park(row, Wait::After(after)) }
}

fn end(parked: &Parked, verdict: ParkedVerdict) -> ParkedEnd {
    ParkedEnd { hold: parked.hold, sequence: parked.sequence, verdict }
}

fn delivered(parked: &[Parked]) -> Vec<ParkedEnd> {
    parked.iter().map(|parked| end(parked, ParkedVerdict::Delivered)).collect()
}

fn retry(parked: &Parked, after: Duration) -> ParkedEnd {
    end(parked, ParkedVerdict::Retry { after, error: "again".to_owned() })
}

fn dead(parked: &Parked, blocks: bool) -> ParkedEnd {
    end(parked, ParkedVerdict::Dead { error: "never".to_owned(), blocks })
}

fn lanes_of(holds: &[Hold]) -> Vec<u16> {
    holds.iter().map(|hold| hold.lane).collect()
}

fn said(page: &Page) -> Vec<(Hold, i64)> {
    page.rows.iter().map(|row| (row.hold, row.sequence)).collect()
}

const NONE: [u64; 0] = [];

async fn sm1_a_queue_has_no_lanes(kind: Kind) {
    let db = Db::new(kind).await;
    assert!(db.store().stream().await.unwrap().is_none());
    db.drop_everything().await;
    let bare = Db::bare(kind, Setup::default()).await;
    assert!(bare.store().stream().await.unwrap().is_none());
    bare.drop_everything().await;
}

async fn sm1_nothing_asked_for_is_nothing_done(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let holds = rig.own().await;
    assert!(rig.take(&worker(), &[]).await.is_empty());
    rig.stream.release(&[]).await.unwrap();
    rig.stream.leave(&worker()).await.unwrap();
    assert!(rig.stream.blocked_among(&[]).await.unwrap().is_empty());
    rig.park(Vec::new()).await;
    assert!(rig.claim(&[], 10).await.is_empty());
    assert!(rig.claim(&holds, 0).await.is_empty());
    assert!(rig.claim_with(&holds, 10, true, &Topics::Only(Vec::new())).await.is_empty());
    rig.settle(&[]).await;
    assert!(!rig.stream.has_parked(&[]).await.unwrap());
    assert!(!rig.stream.has_parked(&[0, 1]).await.unwrap());
    assert!(rig.stream.blocked(10).await.unwrap().is_empty());
    let mut reader = rig.stream.reader();
    reader.open(&[]).await.unwrap();
    assert!(reader.read(10).await.unwrap().rows.is_empty());
    reader.open(&holds).await.unwrap();
    assert!(reader.read(0).await.unwrap().rows.is_empty());
    assert!(reader.read(10).await.unwrap().rows.is_empty());
    assert_eq!(reader.settle(&[], &[], Keep::Nothing).await.unwrap(), NOBODY);
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    reader.close(&[]);
    rig.db.drop_everything().await;
}

async fn sm1_lanes_are_taken_when_they_are_free(kind: Kind) {
    let rig = Rig::new(kind, 4).await;
    let (one, other) = (worker(), worker());
    let council = rig.beat(&one, &[]).await;
    assert_eq!(council.lanes.len(), 4);
    assert!(council.lanes.iter().all(|lane| lane.free && !lane.absent && lane.owner.is_none()));
    let holds = rig.take(&one, &[0, 1, 2]).await;
    assert_eq!(lanes_of(&holds), [0, 1, 2]);
    assert_eq!(lanes_of(&rig.take(&other, &[1, 2, 3]).await), [3], "the others are somebody's");
    let council = rig.beat(&other, &[]).await;
    assert!(council.lanes.iter().all(|lane| !lane.free && !lane.absent));
    assert_eq!(council.lanes[0].owner.as_deref(), Some(one.as_str()));
    assert_eq!(council.lanes[3].owner.as_deref(), Some(other.as_str()));

    rig.stream.release(&holds[..1]).await.unwrap();
    rig.stream.release(&holds[..1]).await.unwrap();
    let taken = rig.take(&other, &[0, 1, 2]).await;
    assert_eq!(lanes_of(&taken), [0]);
    assert!(taken[0].fence > holds[0].fence);
    rig.stream.release(&holds[..1]).await.unwrap();
    assert_eq!(rig.take(&one, &[0]).await, [], "it was no longer the first one's to give up");

    let taken = rig.take_from(&other, &[0, 1, 2], &[one.as_str().to_owned()]).await;
    assert_eq!(lanes_of(&taken), [0, 1, 2], "one's own, and the absent one's");
    rig.end_leases().await;
    let council = rig.beat(&one, &[]).await;
    assert!(council.lanes.iter().all(|lane| lane.free && lane.owner.is_some()));
    assert_eq!(lanes_of(&rig.take(&one, &rig.lanes()).await), [0, 1, 2, 3]);
    rig.db.drop_everything().await;
}

async fn sm1_of_those_who_take_at_once_each_gets_others(kind: Kind) {
    let rig = Arc::new(Rig::new(kind, 16).await);
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let rig = Arc::clone(&rig);
        tries.spawn(async move { rig.take(&worker(), &rig.lanes()).await });
    }
    let mut taken: Vec<u16> = tries.join_all().await.iter().flat_map(|holds| lanes_of(holds)).collect();
    taken.sort_unstable();
    let each_once: HashSet<u16> = taken.iter().copied().collect();
    assert_eq!(each_once.len(), taken.len(), "{taken:?}");
    assert!(!taken.is_empty());
    Arc::into_inner(rig).unwrap().db.drop_everything().await;
}

async fn sm1_relays_are_listed_in_the_order_they_came(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let relays = [worker(), worker(), worker()];
    for (n, relay) in relays.iter().enumerate() {
        rig.beat(relay, &[]).await;
        // SQLite's clock counts milliseconds.
        let joined = match kind {
            Kind::Sqlite => format!("{n}"),
            _ => format!("'2020-01-01 00:00:0{n}'"),
        };
        rig.execute(&format!("UPDATE outbox_relays SET joined_at = {joined} WHERE relay = '{relay}'")).await;
    }
    let names = |relays: &[&WorkerId]| relays.iter().map(|relay| relay.to_string()).collect::<Vec<_>>();
    let [one, two, three] = &relays;
    assert_eq!(rig.beat(three, &[]).await.relays, names(&[one, two, three]));
    assert_eq!(
        rig.beat(one, &[]).await.relays,
        names(&[one, two, three]),
        "a beat does not make it a newcomer"
    );
    rig.stream.leave(two).await.unwrap();
    rig.stream.leave(two).await.unwrap();
    assert_eq!(rig.beat(one, &[]).await.relays, names(&[one, three]));
    rig.execute(&format!(
        "UPDATE outbox_relays SET {} = joined_at WHERE relay = '{one}'",
        quoted_until(kind)
    ))
    .await;
    assert_eq!(rig.beat(three, &[]).await.relays, names(&[three]), "it was not heard of");
    assert_eq!(rig.count("outbox_relays").await, 1, "for long");
    rig.db.drop_everything().await;
}

fn quoted_until(kind: Kind) -> &'static str {
    if kind == Kind::MySql { "`until`" } else { "until" }
}

async fn sm1_a_beat_keeps_what_is_still_held(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let (one, other) = (worker(), worker());
    let holds = rig.take(&one, &[0, 1]).await;
    rig.end_leases().await;
    let taken = rig.take(&other, &[1]).await;
    rig.execute("UPDATE outbox_lanes SET leased_until = NULL").await;
    let council = rig.beat(&one, &holds).await;
    assert!(!council.lanes[0].free, "its lease lasts again");
    assert!(council.lanes[1].free, "that is not its own to keep");
    assert_eq!(council.lanes[1].fence, taken[0].fence);
    assert!(!rig.beat(&other, &taken).await.lanes[1].free);
    rig.stream.release(&holds[..1]).await.unwrap();
    assert!(rig.beat(&one, &holds).await.lanes[0].free, "what was given up is not taken by a beat");
    rig.db.drop_everything().await;
}

async fn sm1_absent_owners_are_known_by_their_session(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let name = worker();
    let session = rig.db.store().session(&name).await.unwrap();
    let beat = Beat { relay: &name, present: true, holds: &[], lease: MINUTE };
    let holds = rig.stream.take(&beat, &[0], &[]).await.unwrap();
    let beat = Beat { holds: &holds, ..beat };
    assert!(!rig.stream.beat(&beat).await.unwrap().lanes[0].absent);
    session.close().await;
    let other = worker();
    until("it is absent", async || rig.beat(&other, &[]).await.lanes[0].absent).await;
    assert!(!rig.beat(&other, &[]).await.lanes[0].free, "its lease lasts");
    assert_eq!(rig.take(&other, &[0]).await, []);
    assert_eq!(rig.take_from(&other, &[0], &[name.to_string()]).await.len(), 1);
    assert!(!rig.beat(&other, &[]).await.lanes[0].absent, "of that one nobody can tell");
    rig.db.drop_everything().await;
}

async fn sm1_every_lane_is_read_and_only_by_its_owner(kind: Kind) {
    let rig = Rig::new(kind, 8).await;
    let ids: Vec<String> = (0..200).map(|n| format!("order-{n}")).collect();
    rig.enqueue(ids.iter().map(String::as_str)).await;
    let (one, other) = (worker(), worker());
    let low = rig.take(&one, &[0, 1, 2, 3]).await;
    let high = rig.take(&other, &[4, 5, 6, 7]).await;
    let (low_page, high_page) = (rig.page(&low).await, rig.page(&high).await);
    for (page, holds) in [(&low_page, &low), (&high_page, &high)] {
        assert!(page.rows.iter().all(|row| holds.contains(&row.hold) && !row.suspect && !row.delayed));
        let order = numbers(&page.rows);
        assert!(order.is_sorted() && !order.is_empty(), "{order:?}");
    }
    let mut all = numbers(&low_page.rows);
    all.extend(numbers(&high_page.rows));
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    rig.db.drop_everything().await;
}

async fn sm1_late_writes_are_refused(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b", "c", "d"]).await;
    let old = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&old).await.unwrap();
    let page = reader.read(3).await.unwrap();
    let mut settling = rig.stream.reader();
    settling.open(&old).await.unwrap();
    let slow = settling.read(10).await.unwrap();
    rig.park(vec![failed(&page.rows[0], Duration::ZERO)]).await;
    let claimed = rig.claim(&old, 10).await;
    assert_eq!(parked_numbers(&claimed), [0]);

    let new = rig.own().await;
    assert_eq!(rig.stream.park(&[failed(&page.rows[1], MINUTE)]).await.unwrap(), [0]);
    assert_eq!(rig.count("outbox_parked").await, 1);
    assert_eq!(rig.stream.settle_parked(&delivered(&claimed), Keep::Delivered).await.unwrap(), [0]);
    assert_eq!(rig.count("outbox_parked").await, 1);
    assert!(rig.claim_with(&old, 10, true, &Topics::All).await.is_empty());
    let late = reader.read(10).await.unwrap();
    assert_eq!((numbers(&late.rows), late.lost), (vec![], vec![0]));
    assert_eq!(settling.settle(&said(&slow), &[slow.number], Keep::Delivered).await.unwrap(), [0]);
    rig.stream.release(&old).await.unwrap();
    assert_eq!(rig.take(&worker(), &[0]).await, [], "it is the new owner's still");

    let again = rig.page(&new).await;
    assert!(numbers(&again.rows).ends_with(&[1, 2, 3]), "nothing of it was written");
    let tried = rig.claim_with(&new, 10, true, &Topics::All).await;
    assert_eq!(parked_numbers(&tried), [0]);
    assert!(tried[0].suspect);
    rig.db.drop_everything().await;
}

async fn sm1_what_was_under_way_is_suspect_after_an_unclean_end(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    rig.enqueue(["a", "b", "c", "d", "e"]).await;
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(4).await.unwrap();
    reader.settle(&said(&page)[..1], &[], Keep::Delivered).await.unwrap();
    rig.park(vec![failed(&page.rows[1], Duration::ZERO), failed(&page.rows[2], MINUTE)]).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [1]);

    let holds = rig.own().await;
    rig.enqueue(["f"]).await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let mut rows = reader.read(100).await.unwrap().rows;
    rows.append(&mut reader.read(100).await.unwrap().rows);
    // PostgreSQL writes nothing of a row that was delivered or parked: until its page is done it is read again.
    let found: HashMap<String, bool> = rows.iter().map(|row| (key(row), row.suspect)).collect();
    assert_eq!(
        (found["d"], found["e"], found["f"]),
        (true, false, false),
        "it was under way, those were not"
    );
    assert!(kind == Kind::Postgres || found.len() == 3, "{found:?}");
    rig.make_due().await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [2], "that waited and was not tried");
    let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    assert_eq!(parked_numbers(&tried), [1]);
    assert_eq!((tried[0].suspect, tried[0].attempt), (true, 3));
    rig.db.drop_everything().await;
}

async fn sm1_a_clean_release_leaves_no_suspects(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    for clean in ["flush", "release"] {
        rig.enqueue(["a", "b", "c", "d", "e", "f"]).await;
        let holds = rig.own().await;
        let mut reader = rig.stream.reader();
        reader.open(&holds).await.unwrap();
        let page = reader.read(4).await.unwrap();
        assert!(page.rows.iter().all(|row| !row.suspect), "{clean}");
        rig.park(vec![park(&page.rows[3], Wait::After(MINUTE))]).await;
        assert_eq!(reader.settle(&said(&page)[..3], &[page.number], Keep::Nothing).await.unwrap(), NOBODY);
        match clean {
            "flush" => assert_eq!(reader.flush().await.unwrap(), NOBODY),
            _ => rig.stream.release(&holds).await.unwrap(),
        }
        let holds = rig.own().await;
        let mut reader = rig.stream.reader();
        reader.open(&holds).await.unwrap();
        let page = reader.read(10).await.unwrap();
        assert!(page.rows.len() == 2 && page.rows.iter().all(|row| !row.suspect), "{clean}");
        rig.make_due().await;
        let parked = rig.claim(&holds, 10).await;
        assert_eq!(parked_numbers(&parked), [3], "{clean}");
        rig.settle(&delivered(&parked)).await;
        reader.settle(&said(&page), &[page.number], Keep::Nothing).await.unwrap();
    }
    rig.db.drop_everything().await;
}

async fn sm1_pages_come_in_order_without_loss(kind: Kind) {
    let rig = Rig::new(kind, 4).await;
    let ids: Vec<String> = (0..10_000).map(|n| format!("{}", n % 97)).collect();
    for ids in ids.chunks(1000) {
        rig.enqueue(ids.iter().map(String::as_str)).await;
    }
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let mut read = Vec::new();
    let mut pages: Vec<Page> = Vec::new();
    while read.len() < 10_000 {
        let page = reader.read(700).await.unwrap();
        assert!(page.rows.len() == 700 && page.more || page.rows.len() == 10_000 - read.len());
        read.extend(page.rows.iter().map(|row| row.sequence));
        pages.push(page);
        // Several are under way at any time, and they end in any order.
        if pages.len() == 4 {
            let page = pages.remove(2);
            reader.settle(&said(&page), &[page.number], Keep::Delivered).await.unwrap();
        }
    }
    assert!(read.is_sorted_by(|a, b| a < b), "each once, in order");
    for page in &pages {
        reader.settle(&said(page), &[page.number], Keep::Delivered).await.unwrap();
        reader.settle(&said(page), &[page.number], Keep::Delivered).await.unwrap();
    }
    let nothing = reader.read(700).await.unwrap();
    assert!(nothing.rows.is_empty() && !nothing.more);
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    assert!(rig.page(&rig.own().await).await.rows.is_empty());
    rig.db.drop_everything().await;
}

async fn sm1_delivered_rows_are_kept_or_not(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    for (keep, left) in [(Keep::Delivered, 4), (Keep::Nothing, 0)] {
        rig.enqueue(["a", "a", "b", "c"]).await;
        let holds = rig.own().await;
        let mut reader = rig.stream.reader();
        reader.open(&holds).await.unwrap();
        let page = reader.read(10).await.unwrap();
        rig.park(vec![failed(&page.rows[0], Duration::ZERO), park(&page.rows[1], Wait::Behind)]).await;
        reader.settle(&said(&page)[2..], &[page.number], keep).await.unwrap();
        for n in [0, 1] {
            let parked = rig.claim(&holds, 1).await;
            assert_eq!(parked_numbers(&parked), [n]);
            assert_eq!(rig.stream.settle_parked(&delivered(&parked), keep).await.unwrap(), NOBODY);
        }
        assert_eq!(rig.count("outbox_parked").await, 0);
        if kind != Kind::Postgres {
            assert_eq!(rig.count("outbox").await, left);
            assert_eq!(
                rig.count("outbox WHERE outcome = 'delivered' AND settled_at IS NOT NULL").await,
                left
            );
        }
        assert_eq!(rig.count("outbox_status WHERE status <> 'delivered'").await, 0);
        rig.execute("DELETE FROM outbox").await;
    }
    rig.db.drop_everything().await;
}

async fn sm1_late_commits_are_found(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    rig.enqueue(["a"]).await;
    assert_eq!(reader.read(100).await.unwrap().rows.len(), 1);
    for late in ["soon", "later"] {
        let mut tx = rig.db.begin().await;
        tx.enqueue(&rig.db, event("late", 7).aggregate("order", "x")).await.unwrap();
        rig.enqueue(["b", "c", "d"]).await;
        let mut read = reader.read(100).await.unwrap();
        assert_eq!(numbers(&read.rows), [0, 1, 2], "{late}: of an open transaction nothing is seen");
        if late == "later" {
            tokio::time::sleep(Duration::from_millis(2500)).await;
            assert!(reader.read(100).await.unwrap().rows.is_empty());
        }
        tx.commit().await;
        if late == "soon" {
            read = reader.read(100).await.unwrap();
        } else {
            until("a sweep finds it", async || {
                read = reader.read(100).await.unwrap();
                !read.rows.is_empty()
            })
            .await;
        }
        assert_eq!(numbers(&read.rows), [7], "{late}");
        assert!(reader.read(100).await.unwrap().rows.is_empty());
    }
    rig.db.drop_everything().await;
}

/// Producers commit in any order beside an owner that delivers and parks: nothing is lost, nothing comes twice, and of
/// each aggregate, which has one producer, everything comes in order.
async fn sm1_late_commits_come_beside_busy_producers(kind: Kind) {
    const PRODUCERS: u64 = 4;
    const EACH: u64 = 300;
    let rig = Arc::new(Rig::new(kind, 4).await);
    let holds = rig.own().await;
    let mut producers = tokio::task::JoinSet::new();
    for producer in 0..PRODUCERS {
        let rig = Arc::clone(&rig);
        producers.spawn(async move {
            let mut n = 0;
            while n < EACH {
                let mut tx = rig.db.begin().await;
                for _ in 0..=(n + producer) % 5 {
                    let id = format!("{producer}");
                    tx.enqueue(&rig.db, event("a", n).aggregate("order", id)).await.unwrap();
                    n += 1;
                }
                tokio::task::yield_now().await;
                tx.commit().await;
            }
            n
        });
    }
    let delivering = {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move {
            let mut reader = rig.stream.reader();
            reader.open(&holds).await.unwrap();
            let mut came: Vec<Vec<u64>> = vec![Vec::new(); PRODUCERS as usize];
            let mut idle = 0;
            // Until nothing has come for longer than a sweep takes.
            while idle < 200 {
                let page = reader.read(50).await.unwrap();
                assert!(page.lost.is_empty());
                let mut parks = Vec::new();
                let mut done = Vec::new();
                let keys: Vec<String> = page.rows.iter().map(key).collect();
                let mut blocked = rig.stream.blocked_among(&keys).await.unwrap();
                for row in &page.rows {
                    if blocked.contains(&key(row)) {
                        parks.push(park(row, Wait::Behind));
                    } else if number(&row.event) % 10 == 3 {
                        parks.push(failed(row, Duration::ZERO));
                        blocked.insert(key(row));
                    } else {
                        came[key(row).parse::<usize>().unwrap()].push(number(&row.event));
                        done.push((row.hold, row.sequence));
                    }
                }
                rig.park(parks).await;
                let keep = if page.number % 2 == 0 { Keep::Delivered } else { Keep::Nothing };
                assert_eq!(reader.settle(&done, &[page.number], keep).await.unwrap(), NOBODY);
                let parked = rig.claim(&holds, 50).await;
                for parked in &parked {
                    let event = parked.event.as_ref().unwrap();
                    came[event.aggregate_id().unwrap().parse::<usize>().unwrap()].push(number(&parked.event));
                }
                rig.settle(&delivered(&parked)).await;
                if page.rows.is_empty() && parked.is_empty() {
                    idle += 1;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                } else {
                    idle = 0;
                }
            }
            came
        })
    };
    let written = producers.join_all().await;
    let came = delivering.await.unwrap();
    let mut counts: Vec<u64> = came.iter().map(|numbers| numbers.len() as u64).collect();
    for numbers in &came {
        assert_eq!(*numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    }
    let mut written = written;
    counts.sort_unstable();
    written.sort_unstable();
    assert_eq!(counts, written);
    assert_eq!(rig.count("outbox_status WHERE status <> 'delivered'").await, 0);
    Arc::into_inner(rig).unwrap().db.drop_everything().await;
}

/// Who met a duplicate of an event holds its row until it commits: nobody waits for that.
async fn sm1_a_producer_of_duplicates_holds_up_nobody(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let made = |n| event("a", n).aggregate("order", n).dedupe_key(format!("k{n}")).build().unwrap();
    let (by_id, by_key) = (made(0), made(1));
    rig.enqueue_events(vec![by_id.clone(), by_key, made(2), made(3), made(4)]).await;
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(10).await.unwrap();
    rig.park(vec![failed(&page.rows[3], Duration::ZERO)]).await;
    let parked = rig.claim(&holds, 10).await;
    let mut tx = rig.db.begin().await;
    for duplicate in [by_id, made(1), made(3), made(4)] {
        assert!(tx.enqueue(&rig.db, duplicate).await.unwrap().duplicate);
    }
    let settling = async {
        rig.park(vec![failed(&page.rows[4], Duration::ZERO)]).await;
        assert_eq!(reader.settle(&said(&page)[..3], &[page.number], Keep::Nothing).await.unwrap(), NOBODY);
        rig.stream.settle_parked(&delivered(&parked), Keep::Nothing).await.unwrap();
        let parked = rig.claim(&holds, 10).await;
        assert_eq!(parked_numbers(&parked), [4]);
        rig.settle(&delivered(&parked)).await;
        rig.beat(&worker(), &holds).await;
    };
    tokio::time::timeout(Duration::from_secs(5), settling).await.unwrap();
    assert_eq!(rig.count("outbox_status WHERE status = 'delivered'").await, 4, "some are written to later");
    assert!(reader.read(10).await.unwrap().rows.is_empty());
    assert!(rig.claim(&holds, 10).await.is_empty());
    tx.commit().await;
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    assert!(rig.claim(&holds, 10).await.is_empty());
    assert_eq!(rig.count("outbox").await, rig.count("outbox WHERE outcome = 'delivered'").await);
    assert_eq!(rig.count("outbox_parked").await, 0);
    assert!(rig.page(&rig.own().await).await.rows.is_empty());
    rig.db.drop_everything().await;
}

async fn sm1_256_lanes_are_no_matter(kind: Kind) {
    let rig = Rig::new(kind, 256).await;
    let ids: Vec<String> = (0..1000).map(|n| format!("order-{n}")).collect();
    rig.enqueue(ids.iter().map(String::as_str)).await;
    let holds = rig.own().await;
    assert_eq!(rig.beat(&worker(), &holds).await.lanes.len(), 256);
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let page = reader.read(1000).await.unwrap();
    assert_eq!(numbers(&page.rows), (0..1000).collect::<Vec<_>>());
    rig.park(page.rows[..500].iter().map(|row| failed(row, Duration::ZERO)).collect()).await;
    assert_eq!(reader.settle(&said(&page)[500..], &[page.number], Keep::Delivered).await.unwrap(), NOBODY);
    let parked = rig.claim(&holds, 1000).await;
    assert_eq!(parked_numbers(&parked), (0..500).collect::<Vec<_>>());
    rig.settle(&delivered(&parked)).await;
    assert_eq!(reader.flush().await.unwrap(), NOBODY);
    assert!(!rig.stream.has_parked(&rig.lanes()).await.unwrap());
    let lag = rig.stream.lag(10_000).await.unwrap();
    assert_eq!(lag.len(), 256);
    assert!(
        lag.iter().all(|lane| lane.events.n == 0 && !lane.events.capped && lane.age.is_none()),
        "{lag:?}"
    );
    rig.stream.release(&holds).await.unwrap();
    rig.db.drop_everything().await;
}

async fn sm1_rows_that_cannot_be_read_come_as_such(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b"]).await;
    rig.execute("INSERT INTO outbox (topic, payload, headers) VALUES ('bad', '1', '{\"a\": 1}')").await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    assert_eq!(page.rows.len(), 3);
    let bad = &page.rows[2];
    assert_eq!((bad.topic.as_str(), bad.event.is_err()), ("bad", true));
    let dead = Park { key: bad.id.to_string(), ..dead_park(bad, false, "bad") };
    rig.park(vec![dead]).await;
    assert!(rig.claim(&holds, 10).await.is_empty());
    assert_eq!(rig.count("outbox_status WHERE status = 'dead' AND last_error = 'bad'").await, 1);
    rig.db.drop_everything().await;
}

fn dead_park(row: &Row, blocks: bool, error: &str) -> Park {
    let key = row.event.as_ref().ok().and_then(|event| event.aggregate_id()).unwrap_or_default().to_owned();
    Park {
        hold: row.hold,
        sequence: row.sequence,
        id: row.id,
        topic: row.topic.clone(),
        key,
        attempts: 1,
        error: Some(error.to_owned()),
        wait: Wait::Dead { blocks },
    }
}

async fn sm2_parked_events_stand_in_line(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "b", "a", "b", "a"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    rig.park(vec![
        failed(&rows[0], MINUTE),
        failed(&rows[1], Duration::ZERO),
        park(&rows[2], Wait::Behind),
        park(&rows[3], Wait::Behind),
    ])
    .await;
    let keys = ["a", "b", "c"].map(str::to_owned);
    let blocked = rig.stream.blocked_among(&keys).await.unwrap();
    assert_eq!(blocked, HashSet::from(["a".to_owned(), "b".to_owned()]));
    assert!(rig.stream.has_parked(&[0]).await.unwrap());

    let first = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&first), [1], "the other is not due, and what was tried is tried alone");
    assert_eq!((first[0].attempt, first[0].last_error.as_deref()), (2, Some("no")));
    assert_eq!((first[0].topic.as_str(), first[0].id, first[0].hold), ("a", rows[1].id, holds[0]));
    assert!(rig.claim(&holds, 10).await.is_empty(), "it is being tried");
    rig.settle(&[retry(&first[0], MINUTE)]).await;
    assert!(rig.claim(&holds, 10).await.is_empty(), "it is not due");
    rig.make_due().await;
    let both = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&both), [0, 1]);
    assert_eq!(both[1].last_error.as_deref(), Some("again"));
    rig.settle(&delivered(&both[..1])).await;
    rig.settle(&delivered(&both[..1])).await;
    let next = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&next), [2], "the next of its aggregate");
    assert_eq!((next[0].attempt, next[0].last_error.as_deref()), (1, None));
    rig.park(vec![park(&rows[4], Wait::Behind)]).await;
    rig.settle(&delivered(&next)).await;
    rig.settle(&delivered(&both[1..])).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [4, 3], "as they came up");
    assert_eq!(rig.count("outbox_parked").await, 2);
    rig.db.drop_everything().await;
}

async fn sm2_an_event_is_parked_once(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "b"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let parks = vec![
        failed(&page.rows[0], Duration::ZERO),
        park(&page.rows[1], Wait::Behind),
        failed(&page.rows[0], MINUTE),
    ];
    for _ in 0..2 {
        rig.park(parks.clone()).await;
        assert_eq!(rig.count("outbox_parked").await, 2);
    }
    let parked = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&parked), [0]);
    rig.park(parks.clone()).await;
    assert!(rig.claim(&holds, 10).await.is_empty(), "it is being tried still");
    rig.settle(&delivered(&parked)).await;
    if kind != Kind::Postgres {
        rig.park(parks.clone()).await;
        assert_eq!(rig.count("outbox_parked").await, 1, "it was delivered in the meantime");
    }
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [1]);
    // What waits behind nobody is due at once, also where one that was to be parked before it is not.
    rig.park(vec![park(&page.rows[2], Wait::Behind)]).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [2]);
    rig.db.drop_everything().await;
}

async fn sm2_a_run_ends_where_the_limit_does(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "a", "b", "a", "b", "a"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    rig.park(page.rows.iter().map(|row| park(row, Wait::Behind)).collect()).await;
    let run = rig.claim(&holds, 4).await;
    let came = parked_numbers(&run);
    assert!(
        came.len() == 4 && came.starts_with(&[0, 1, 2]),
        "{came:?}: those behind the first as far as there is room"
    );
    assert!(run.iter().all(|parked| parked.attempt == 1));
    rig.settle(
        &run.iter().map(|p| end(p, ParkedVerdict::Released { after: Duration::ZERO })).collect::<Vec<_>>(),
    )
    .await;
    let run = rig.claim(&holds, 10).await;
    let of = |run: &[Parked], id: &str| {
        let of = run.iter().filter(|p| p.event.as_ref().unwrap().aggregate_id() == Some(id)).cloned();
        of.collect::<Vec<_>>()
    };
    assert_eq!(parked_numbers(&of(&run, "a")), [0, 1, 2, 4, 6]);
    assert_eq!(parked_numbers(&of(&run, "b")), [3, 5]);
    rig.settle(&delivered(&of(&run, "a")[..3])).await;
    rig.settle(&delivered(&of(&run, "b")[..1])).await;
    let run = [of(&run, "a")[3..].to_vec(), of(&run, "b")[1..].to_vec()].concat();
    // The first fails: those behind it were not tried, and wait.
    rig.settle(&[
        retry(&run[0], Duration::ZERO),
        end(&run[1], ParkedVerdict::Behind),
        end(&run[2], ParkedVerdict::Behind),
    ])
    .await;
    let run = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&run).into_iter().collect::<HashSet<_>>(), HashSet::from([4, 5]));
    let attempts: Vec<(u64, u32)> =
        run.iter().map(|parked| (number(&parked.event), parked.attempt)).collect();
    assert!(attempts.contains(&(4, 2)) && attempts.contains(&(5, 1)), "{attempts:?}");
    rig.settle(&delivered(&run)).await;
    let last = rig.claim(&holds, 10).await;
    assert_eq!((parked_numbers(&last), last[0].attempt), (vec![6], 1));
    rig.db.drop_everything().await;
}

async fn sm2_a_run_ends_where_one_must_not_be_tried(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "a", "a", "a"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    rig.park(vec![
        park(&rows[0], Wait::Behind),
        dead_park(&rows[1], false, "gone"),
        park(&rows[2], Wait::Behind),
        dead_park(&rows[3], true, "gone"),
        park(&rows[4], Wait::Behind),
    ])
    .await;
    let run = rig.claim(&holds, 10).await;
    assert_eq!(
        parked_numbers(&run),
        [0, 2],
        "past the dead that nobody waits for, up to the dead that blocks"
    );
    rig.settle(&delivered(&run)).await;
    assert!(rig.claim(&holds, 10).await.is_empty());
    rig.db.drop_everything().await;
}

async fn sm2_delayed_events_hold_up_nobody(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let delayed = event("a", 0).aggregate("order", "a").delay(MINUTE).build().unwrap();
    let prompt = event("a", 1).aggregate("order", "a").build().unwrap();
    rig.enqueue_events(vec![delayed, prompt]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    assert_eq!(page.rows.iter().map(|row| row.delayed).collect::<Vec<_>>(), [true, false]);
    rig.park(vec![park(&page.rows[0], Wait::Delay)]).await;
    assert!(rig.stream.blocked_among(&["a".to_owned()]).await.unwrap().is_empty());
    assert!(rig.claim(&holds, 10).await.is_empty());
    rig.park(vec![failed(&page.rows[1], MINUTE)]).await;
    rig.execute("UPDATE outbox_parked SET due = parked_at WHERE attempts = 0").await;
    let due = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&due), [0]);
    rig.settle(&[end(&due[0], ParkedVerdict::Released { after: Duration::ZERO })]).await;
    let due = rig.claim(&holds, 10).await;
    assert_eq!((parked_numbers(&due), due[0].attempt), (vec![0], 1), "it waits for nobody");
    rig.settle(&[retry(&due[0], MINUTE)]).await;
    assert_eq!(rig.stream.blocked_among(&["a".to_owned()]).await.unwrap().len(), 1);
    rig.make_due().await;
    let due = rig.claim(&holds, 1).await;
    assert_eq!(parked_numbers(&due), [0]);
    rig.settle(&delivered(&due)).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [1]);
    rig.db.drop_everything().await;
}

async fn sm2_dead_events_block_their_aggregate_or_not(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "b", "b", "c", "c"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    rig.park(vec![
        failed(&rows[0], Duration::ZERO),
        park(&rows[1], Wait::Behind),
        failed(&rows[2], Duration::ZERO),
        park(&rows[3], Wait::Behind),
        dead_park(&rows[4], true, "at once"),
        park(&rows[5], Wait::Behind),
    ])
    .await;
    let tried = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&tried), [0, 2]);
    rig.settle(&[dead(&tried[0], true), dead(&tried[1], false)]).await;
    let next = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&next), [3], "the others wait for an operator");
    rig.settle(&delivered(&next)).await;
    assert!(rig.claim(&holds, 10).await.is_empty());
    let blocked = rig.stream.blocked_among(&["a", "b", "c"].map(str::to_owned)).await.unwrap();
    assert_eq!(blocked, HashSet::from(["a".to_owned(), "c".to_owned()]));
    assert_eq!(rig.count("outbox_status WHERE status = 'dead'").await, 3);
    // The next owner changes nothing of it.
    let holds = rig.own().await;
    assert!(rig.claim_with(&holds, 10, true, &Topics::All).await.is_empty());
    rig.db.drop_everything().await;
}

async fn sm2_released_events_keep_their_place(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "a"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    rig.park(page.rows.iter().map(|row| park(row, Wait::Behind)).collect()).await;
    let run = rig.claim(&holds, 10).await;
    assert_eq!(parked_numbers(&run), [0, 1, 2]);
    let released = |after| run.iter().map(|p| end(p, ParkedVerdict::Released { after })).collect::<Vec<_>>();
    rig.settle(&released(MINUTE)).await;
    rig.settle(&released(Duration::ZERO)).await;
    assert!(rig.claim(&holds, 10).await.is_empty(), "the first word counts");
    rig.make_due().await;
    let again = rig.claim(&holds, 1).await;
    assert_eq!((parked_numbers(&again), again[0].attempt), (vec![0], 1), "the attempt did not count");
    assert!(rig.claim(&holds, 10).await.is_empty(), "the others wait behind it");
    rig.settle(&delivered(&again)).await;
    rig.make_due().await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 1).await), [1]);
    rig.db.drop_everything().await;
}

async fn sm2_of_suspects_one_is_tried_at_a_time(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "b", "b", "c"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    rig.park(vec![
        park(&rows[0], Wait::Suspect),
        park(&rows[1], Wait::Suspect),
        park(&rows[2], Wait::Suspect),
        park(&rows[3], Wait::Behind),
        park(&rows[4], Wait::Behind),
    ])
    .await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [4], "no suspect unless one is asked for");
    let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    assert_eq!((parked_numbers(&tried), tried[0].suspect), (vec![0], true));
    rig.settle(&[retry(&tried[0], MINUTE)]).await;
    let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    assert_eq!(parked_numbers(&tried), [2], "never one behind another of its aggregate");
    rig.settle(&delivered(&tried)).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [3]);
    assert!(rig.claim_with(&holds, 10, true, &Topics::All).await.is_empty());
    rig.make_due().await;
    for n in [0, 1] {
        let tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
        assert_eq!((parked_numbers(&tried), tried[0].suspect), (vec![n], true), "once a suspect, always one");
        rig.settle(&delivered(&tried)).await;
    }
    rig.db.drop_everything().await;
}

async fn sm2_only_the_topics_asked_for_come_up(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    let topics = ["x", "y", "x", "y", "z"];
    let made = topics.iter().enumerate().map(|(n, topic)| {
        event(topic, n as u64).aggregate("order", if n < 4 { "a" } else { "b" }).build().unwrap()
    });
    rig.enqueue_events(made.collect()).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    rig.park(page.rows.iter().map(|row| park(row, Wait::Behind)).collect()).await;
    let only = |topics: &[&str]| Topics::Only(topics.iter().map(|topic| (*topic).to_owned()).collect());
    assert!(rig.claim_with(&holds, 10, true, &only(&["y"])).await.is_empty(), "the first is another's");
    let first = rig.claim_with(&holds, 10, true, &only(&["x"])).await;
    assert_eq!(parked_numbers(&first), [0], "those behind it are another's");
    rig.settle(&delivered(&first)).await;
    let except = Topics::Except(vec!["z".to_owned()]);
    assert_eq!(parked_numbers(&rig.claim_with(&holds, 10, true, &except).await), [1, 2, 3]);
    assert_eq!(parked_numbers(&rig.claim_with(&holds, 10, true, &only(&["z", "x"])).await), [4]);
    rig.db.drop_everything().await;
}

async fn sm2_events_that_take_long_are_parked_while_they_run(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "b"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let running = |row: &Row| Park { attempts: 1, ..park(row, Wait::Running) };
    rig.park(vec![running(&page.rows[0]), park(&page.rows[1], Wait::Behind), running(&page.rows[2])]).await;
    assert!(rig.claim(&holds, 10).await.is_empty(), "it runs already");
    assert_eq!(rig.count("outbox_status WHERE status = 'processing'").await, 2);
    let ends: Vec<ParkedEnd> = [0, 2]
        .map(|n: usize| ParkedEnd {
            hold: page.rows[n].hold,
            sequence: page.rows[n].sequence,
            verdict: ParkedVerdict::Delivered,
        })
        .into();
    rig.settle(&ends[..1]).await;
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), [1]);
    // Its owner ends uncleanly: what ran is suspect, what waited behind it waits on.
    let holds = rig.own().await;
    assert!(rig.claim(&holds, 10).await.is_empty());
    let mut tried = rig.claim_with(&holds, 10, true, &Topics::All).await;
    tried.extend(rig.claim_with(&holds, 10, true, &Topics::All).await);
    assert_eq!(parked_numbers(&tried), [1, 2]);
    assert!(tried.iter().all(|parked| parked.suspect && parked.attempt == 2), "{tried:?}");
    rig.db.drop_everything().await;
}

async fn sm2_a_parked_event_whose_row_is_gone_lets_the_next_come_up(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    rig.park(vec![failed(&page.rows[0], Duration::ZERO), park(&page.rows[1], Wait::Behind)]).await;
    rig.execute(&format!("DELETE FROM outbox WHERE seq = {}", page.rows[0].sequence)).await;
    let mut came = Vec::new();
    until("the next comes up", async || {
        came = rig.claim(&holds, 10).await;
        !came.is_empty()
    })
    .await;
    assert_eq!(parked_numbers(&came), [1]);
    assert_eq!(rig.count("outbox_parked").await, 1);
    rig.db.drop_everything().await;
}

async fn sm2_what_waits_for_nobody_comes_up_with_the_next_owner(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    rig.enqueue(["a", "a", "b", "b", "c"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    rig.park(vec![
        failed(&rows[0], MINUTE),
        park(&rows[1], Wait::Behind),
        dead_park(&rows[2], true, "no"),
        park(&rows[3], Wait::Behind),
        park(&rows[4], Wait::Behind),
    ])
    .await;
    rig.execute(&format!("DELETE FROM outbox_parked WHERE seq = {}", rows[0].sequence)).await;
    rig.execute(&format!("UPDATE outbox_parked SET due = NULL WHERE seq = {}", rows[4].sequence)).await;
    assert!(rig.claim(&holds, 10).await.is_empty(), "somebody has meddled");
    let holds = rig.own().await;
    let came: HashSet<u64> = parked_numbers(&rig.claim(&holds, 10).await).into_iter().collect();
    assert_eq!(came, HashSet::from([1, 4]));
    rig.db.drop_everything().await;
}

async fn sm2_thousands_behind_one_aggregate_come_in_order(kind: Kind) {
    const MANY: u64 = 6000;
    let rig = Rig::new(kind, 1).await;
    for _ in 0..MANY / 1000 {
        rig.enqueue(std::iter::repeat_n("a", 1000)).await;
    }
    let holds = rig.own().await;
    let mut reader = rig.stream.reader();
    reader.open(&holds).await.unwrap();
    let began = std::time::Instant::now();
    loop {
        let page = reader.read(1000).await.unwrap();
        if page.rows.is_empty() {
            break;
        }
        rig.park(page.rows.iter().map(|row| park(row, Wait::Behind)).collect()).await;
        assert_eq!(reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap(), NOBODY);
    }
    let mut came = Vec::new();
    while came.len() < MANY as usize {
        let run = rig.claim(&holds, 500).await;
        assert_eq!(run.len(), 500);
        came.extend(run.iter().map(|parked| parked.sequence));
        rig.settle(&delivered(&run)).await;
    }
    assert!(came.is_sorted_by(|a, b| a < b));
    println!("{MANY} events parked and delivered in {:?}", began.elapsed());
    assert_eq!(rig.count("outbox_parked").await, 0);
    rig.db.drop_everything().await;
}

async fn sm2_blocked_aggregates_and_lag_are_shown(kind: Kind) {
    let rig = Rig::new(kind, 2).await;
    rig.enqueue(["a", "a", "a", "b", "c", "c"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let row = |n: usize| page.rows.iter().find(|row| number(&row.event) == n as u64).unwrap();
    rig.park(vec![
        dead_park(row(0), true, "first"),
        park(row(1), Wait::Behind),
        park(row(2), Wait::Behind),
        dead_park(row(3), false, "second"),
    ])
    .await;
    let blocked = rig.stream.blocked(10).await.unwrap();
    assert_eq!(blocked.len(), 1, "{blocked:?}");
    let a = &blocked[0];
    assert_eq!((a.namespace.as_str(), a.aggregate_type.as_deref()), ("default", Some("order")));
    assert_eq!((a.aggregate_id.as_str(), a.topic.as_str(), a.reason.as_str()), ("a", "a", "first"));
    assert_eq!((a.event_id, a.lane, a.waiting.n), (row(0).id, row(0).hold.lane, 2));
    assert!(rig.stream.blocked(0).await.unwrap().is_empty());

    let lag = rig.stream.lag(100).await.unwrap();
    assert_eq!(lag.iter().map(|lane| lane.lane).collect::<Vec<_>>(), [0, 1]);
    assert!(lag.iter().all(|lane| lane.owner.is_some()));
    assert_eq!(lag.iter().map(|lane| lane.events.n).sum::<u64>(), 2, "those of c");
    assert_eq!(lag.iter().map(|lane| lane.parked.n).sum::<u64>(), 4);
    assert_eq!(lag.iter().map(|lane| lane.blocked.n).sum::<u64>(), 1);
    let of_c = &lag[usize::from(row(4).hold.lane)];
    assert!(of_c.events.n == 2 && !of_c.events.capped && of_c.age.is_some(), "{of_c:?}");
    assert!(rig.stream.lag(1).await.unwrap().iter().any(|lane| lane.events.capped));
    assert_eq!(parked_numbers(&rig.claim(&holds, 10).await), NONE);
    rig.db.drop_everything().await;
}
