//! Parked events: they stand in line, and others with them.
//!
//! Rows of the contract: SM2.

use std::collections::HashSet;
use std::time::Duration;

use posthaste::store::stream::{Hold, Park, Parked, ParkedEnd, ParkedVerdict, Row, Wait};
use posthaste::store::{AttemptLimits, Keep, Topics};

use super::rig::{
    NOBODY, NONE, Rig, dead, dead_park, delivered, end, failed, number, park, parked_numbers, retry,
};
use crate::harness::{Kind, MINUTE, event, until};

conformance_sql_by_kind!(
    sm2_parked_events_stand_in_line,
    sm2_an_event_is_parked_once,
    sm2_a_run_ends_where_the_limit_does,
    sm2_a_run_ends_where_one_must_not_be_tried,
    sm2_delayed_events_hold_up_nobody,
    sm2_dead_events_block_their_aggregate_or_not,
    sm2_an_event_out_of_attempts_dies_with_as_many_as_it_had,
    sm2_released_events_keep_their_place,
    sm2_only_the_topics_asked_for_come_up,
    sm2_events_that_take_long_are_parked_while_they_run,
    sm2_a_parked_event_whose_row_is_gone_lets_the_next_come_up,
    sm2_what_waits_for_nobody_comes_up_with_a_repair,
    sm2_thousands_behind_one_aggregate_come_in_order,
    sm2_blocked_aggregates_and_lag_are_shown,
);

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
    // What became due in the same moment, as a database counts them, comes up in the order of the rows.
    rig.clock_moves_on().await;
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

/// Its last attempt was claimed, and whoever claimed it is gone.
async fn sm2_an_event_out_of_attempts_dies_with_as_many_as_it_had(kind: Kind) {
    let rig = Rig::new(kind, 1).await;
    rig.enqueue(["a", "a", "b", "c"]).await;
    let holds = rig.own().await;
    let page = rig.page(&holds).await;
    let rows = &page.rows;
    let tried = |row: &Row, attempts| Park { attempts, ..failed(row, Duration::ZERO) };
    rig.park(vec![
        tried(&rows[0], 2),
        park(&rows[1], Wait::Behind),
        tried(&rows[2], 5),
        park(&rows[3], Wait::Suspect),
    ])
    .await;
    let limits = AttemptLimits::new(3);
    let last = rig.claim_limited(&holds, &limits).await;
    let spent =
        |parked: &Parked| end(parked, ParkedVerdict::Spent { error: "spent".to_owned(), blocks: false });
    let said = |parked: &[Parked]| -> Vec<(u64, u32, bool)> {
        parked.iter().map(|parked| (number(&parked.event), parked.attempt, parked.spent)).collect()
    };
    assert_eq!(said(&last), [(0, 3, false), (2, 5, true), (3, 1, false)]);
    assert_eq!(rig.count("outbox_parked WHERE claimed IS NOT NULL").await, 2, "one has no attempt left");

    // The next owner finds what was claimed, one suspect at a time.
    let holds = rig.own().await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let due = rig.claim_limited(&holds, &limits).await;
        let ends: Vec<ParkedEnd> = due.iter().filter(|parked| parked.spent).map(spent).collect();
        rig.settle(&ends).await;
        rig.settle(&ends).await;
        seen.extend(due);
    }
    seen.sort_by_key(|parked| number(&parked.event));
    assert_eq!(said(&seen), [(0, 3, true), (1, 1, false), (2, 5, true), (3, 2, false)]);
    assert_eq!(rig.count("outbox_parked WHERE outcome = 'dead' AND due IS NULL AND attempts = 3").await, 1);
    assert_eq!(rig.count("outbox_parked WHERE outcome = 'dead' AND due IS NULL AND attempts = 5").await, 1);
    // That word is of what nobody has claimed alone.
    rig.settle(&[spent(&seen[3])]).await;
    assert_eq!(rig.count("outbox_parked WHERE outcome = 'dead'").await, 2);
    rig.settle(&[dead(&seen[3], false)]).await;
    assert_eq!(rig.count("outbox_parked WHERE outcome = 'dead'").await, 3);
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

async fn sm2_what_waits_for_nobody_comes_up_with_a_repair(kind: Kind) {
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
    let late: Vec<Hold> = holds.iter().map(|hold| Hold { fence: hold.fence - 1, ..*hold }).collect();
    rig.stream.repair(&late).await.unwrap();
    assert!(rig.claim(&holds, 10).await.is_empty(), "it was not theirs to repair");
    rig.stream.repair(&holds).await.unwrap();
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
