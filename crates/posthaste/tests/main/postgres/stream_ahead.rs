//! What a stream's reader reads ahead is given out in its turn, or not at all.
//!
//! Rows of the contract: RE11, SM1, SM2.

use std::task::Poll;
use std::time::Duration;

use posthaste::store::stream::{Beat, Page};
use posthaste::store::{Keep, Mode};
use sqlx::Executor;
use uuid::Uuid;

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, Owner, Setup, event, until};

async fn stream() -> Db {
    Db::with(Kind::Postgres, Setup { mode: Some(Mode::stream(1).unwrap()), ..Setup::default() }).await
}

fn ids(page: &Page) -> Vec<Uuid> {
    page.rows.iter().map(|row| row.id).collect()
}

async fn finish(owner: &mut Owner, page: &Page) {
    owner.finish(page.number, &page.rows.iter().collect::<Vec<_>>(), Keep::Delivered).await;
}

/// Between its questions a page's end is written, by the same connection.
#[tokio::test]
async fn sm1_pages_read_ahead_follow_each_other() {
    let db = stream().await;
    let written = db.enqueue_numbers("a", 0..95).await;
    let mut owner = Owner::of(&db).await;
    let mut came = Vec::new();
    for n in 1.. {
        let page = owner.read(10).await;
        if page.rows.is_empty() {
            break;
        }
        came.append(&mut ids(&page));
        if n % 3 == 0 {
            finish(&mut owner, &page).await;
        } else {
            owner.reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
        }
    }
    assert_eq!(came, written);
    owner.end().await;
    db.drop_everything().await;
}

/// It gave up the lane, or lost it, after it had read on.
#[tokio::test]
async fn sm1_what_was_read_ahead_of_a_lane_that_is_anothers_is_not_given_out() {
    let db = stream().await;
    let written = db.enqueue_numbers("a", 0..30).await;
    let mut first = Owner::of(&db).await;
    let page = first.read(10).await;
    assert_eq!(ids(&page), written[..10]);
    finish(&mut first, &page).await;

    let mut second = Owner::of(&db).await;
    let page = first.reader.read(10).await.unwrap();
    assert_eq!((page.rows.len(), page.lost), (0, vec![0]));
    let page = second.read(10).await;
    assert_eq!(ids(&page), written[10..20]);
    assert!(page.rows.iter().all(|row| !row.suspect), "nobody had begun with them");
    second.end().await;
    db.drop_everything().await;
}

/// The relay was busy with other events, and an operator has been there meanwhile.
#[tokio::test]
async fn sm1_what_was_read_ahead_long_ago_is_read_again() {
    let db = stream().await;
    let written = db.enqueue_numbers("a", 0..30).await;
    let mut owner = Owner::of(&db).await;
    let page = owner.read(10).await;
    assert_eq!(ids(&page), written[..10]);
    // This is written after the next page was read.
    finish(&mut owner, &page).await;
    db.execute(format!("DELETE FROM outbox WHERE id = '{}'", written[15])).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    let page = owner.read(9).await;
    assert_eq!(ids(&page), [&written[10..15], &written[16..20]].concat());
    db.drop_everything().await;
}

/// Who gives up its lanes keeps no connection busy, though the server is still at the page that it was asked for.
#[tokio::test]
async fn sm1_what_nobody_waits_for_any_more_is_not_read() {
    let db = stream().await;
    db.enqueue_numbers("a", 0..30).await;
    let mut owner = Owner::of(&db).await;
    assert_eq!(owner.reader.read(10).await.unwrap().rows.len(), 10);
    let Handle::Postgres(sql) = db.handle() else { panic!("PostgreSQL only") };
    let mut locks = sql.pool.begin().await.unwrap();
    locks.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let asks = tokio::spawn(owner.reader.errand().unwrap());
    // By the number of this test's own table, which nobody else could look up now.
    let table: i64 =
        sqlx::query_scalar("SELECT 'outbox'::regclass::oid::bigint").fetch_one(&mut *locks).await.unwrap();
    let waiting = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = {table}");
    until("the page waits", async || db.number(waiting.clone()).await == 1).await;
    assert!(!asks.is_finished());
    owner.reader.close(&[0]);
    tokio::time::timeout(MINUTE, asks).await.unwrap().unwrap();
    locks.rollback().await.unwrap();
    db.drop_everything().await;
}

/// Who stops waiting for a page has lost its lane with the connection, at whatever moment that was: each page is waited for once
/// more than the last time, until it comes.
#[tokio::test]
async fn re11_who_stops_waiting_for_a_page_at_any_moment_loses_nothing() {
    let db = stream().await;
    let written = db.enqueue_numbers("a", 0..300).await;
    let mut owner = Owner::of(&db).await;
    let mut came = Vec::new();
    let (mut pages, mut cut_off, mut patience) = (0, 0, 0);
    while came.len() < written.len() {
        let Some(page) = polled(patience, owner.reader.read(10)).await else {
            cut_off += 1;
            patience += 1;
            continue;
        };
        let page = page.unwrap();
        owner.carry_out_errand();
        if !page.lost.is_empty() {
            let beat = Beat { relay: &owner.worker, present: false, holds: &[], lease: MINUTE, seen: None };
            owner.holds = owner.stream.take(&beat, &page.lost, &[]).await.unwrap();
            owner.reader.open(&owner.holds).await.unwrap();
            continue;
        }
        came.extend(ids(&page).into_iter().filter(|id| !came.contains(id)).collect::<Vec<_>>());
        owner.reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
        pages += 1;
        // Of every other page it is written how far it is, as by a relay that says that it lives; or all would begin anew with each
        // connection. After the others the server is still at the next one.
        if pages % 2 == 0 {
            if let Some(coming) = owner.reader.coming() {
                coming.await;
            }
            owner.reader.catch_up().await.unwrap();
        }
        patience = 0;
    }
    assert_eq!(came, written);
    assert!(cut_off > 2 * written.len() / 10, "{cut_off}");
    db.drop_everything().await;
}

/// What comes of it if nobody asks more often than so many times.
async fn polled<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Slots come free in whatever number: what does not fit is not given out, and not lost.
#[tokio::test]
async fn sm1_of_what_was_read_ahead_no_more_is_given_out_than_there_is_room_for() {
    let db = stream().await;
    let written = db.enqueue_numbers("a", 0..57).await;
    let mut owner = Owner::of(&db).await;
    let mut came = Vec::new();
    for limit in [20, 3, 1, 7, 20, 4].into_iter().cycle() {
        let page = owner.read(limit).await;
        assert!(page.rows.len() <= limit as usize, "{} of {limit}", page.rows.len());
        if page.rows.is_empty() {
            break;
        }
        came.append(&mut ids(&page));
        finish(&mut owner, &page).await;
    }
    assert_eq!(came, written);
    db.drop_everything().await;
}

/// Of two lanes whose owner died the one is somebody else's by the time the first page is noted: the other's events are suspect
/// all the same.
#[tokio::test]
async fn sm2_what_a_dead_owner_had_under_way_is_suspect_whatever_became_of_its_other_lanes() {
    let mode = Some(Mode::stream(2).unwrap());
    let db = Db::with(Kind::Postgres, Setup { mode, ..Setup::default() }).await;
    for aggregate in ["a", "b", "c", "d", "e", "f"] {
        let event = event("t", 1).aggregate("order", aggregate).build().unwrap();
        let mut tx = db.begin().await;
        tx.enqueue_all(&db, vec![event]).await.unwrap();
        tx.commit().await;
    }
    let page = Owner::of(&db).await.read(100).await;
    let of_lane = |page: &Page, lane: u16| page.rows.iter().filter(|row| row.hold.lane == lane).count();
    assert!(of_lane(&page, 0) > 0 && of_lane(&page, 1) > 0, "each lane has some");

    let mut owner = Owner::of(&db).await;
    db.execute("UPDATE outbox_lanes SET fence = fence + 1 WHERE lane = 0").await.unwrap();
    let page = owner.reader.read(100).await.unwrap();
    assert_eq!((of_lane(&page, 0), &page.lost[..]), (0, &[0][..]));
    assert!(of_lane(&page, 1) > 0 && page.rows.iter().all(|row| row.suspect), "{:?}", page.rows);
    db.drop_everything().await;
}
