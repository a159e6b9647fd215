//! What a stream's reader reads ahead is given out in its turn, or not at all.
//!
//! Rows of the contract: RE11, SM1.

use std::time::Duration;

use posthaste::store::stream::{Beat, Page};
use posthaste::store::{Keep, Mode};
use uuid::Uuid;

use crate::harness::{Db, Kind, MINUTE, Owner, Setup};

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
    assert_eq!(ids(&owner.read(10).await), written[..10]);
    db.execute(format!("DELETE FROM outbox WHERE id = '{}'", written[15])).await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(2)).await;
    tokio::time::resume();
    let page = owner.read(9).await;
    assert_eq!(ids(&page), [&written[10..15], &written[16..20]].concat());
    db.drop_everything().await;
}

/// Who stops waiting for a page has lost its lane with the connection, at whatever moment that was.
#[tokio::test]
async fn re11_who_stops_waiting_for_a_page_at_any_moment_loses_nothing() {
    let db = stream().await;
    let written = db.enqueue_numbers("a", 0..400).await;
    let mut owner = Owner::of(&db).await;
    let mut came = Vec::new();
    let (mut cut_off, mut patience) = (0, Duration::ZERO);
    while came.len() < written.len() {
        let read = async { tokio::time::timeout(patience, owner.reader.read(10)).await };
        let Ok(page) = read.await else {
            cut_off += 1;
            patience += Duration::from_micros(40);
            continue;
        };
        let page = page.unwrap();
        if !page.lost.is_empty() {
            let beat = Beat { relay: &owner.worker, present: false, holds: &[], lease: MINUTE };
            owner.holds = owner.stream.take(&beat, &page.lost, &[]).await.unwrap();
            owner.reader.open(&owner.holds).await.unwrap();
        }
        came.extend(ids(&page).into_iter().filter(|id| !came.contains(id)).collect::<Vec<_>>());
        owner.reader.settle(&[], &[page.number], Keep::Delivered).await.unwrap();
        if !page.rows.is_empty() {
            patience = patience.saturating_sub(Duration::from_micros(60));
        }
    }
    assert_eq!(came, written);
    assert!(cut_off > 20, "{cut_off}");
    db.drop_everything().await;
}
