//! What must hold of every client library on every database.
//!
//! Rows of the contract: EN2, EN3, EN4, HK2, ST6.

use posthaste::store::{Filter, Page, Record, Store};
use posthaste::{Enqueue, Enqueued, ErrorKind, Event, EventBuilder};
use sqlx::Postgres;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::sites::{Place, Site, disconnect};

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    Commit,
    Rollback,
    /// It is dropped, its connection being gone.
    Lost,
}

/// A connection of the library under test.
pub trait Client {
    type Database: Place;
    /// What `enqueue` is given.
    type Transaction<'c>: Enqueue<Self::Database>;

    async fn connect(site: &Site<Self::Database>) -> Self;

    /// Does something in a transaction, which then ends this way.
    async fn transaction<R>(
        &mut self,
        end: End,
        work: impl AsyncFnOnce(&mut Self::Transaction<'_>) -> R,
    ) -> R;
}

/// Makes the tests of the suite tests of this client.
macro_rules! suite {
    ($client:ty) => {
        suite!(
            $client:
            en2_rollback_leaves_nothing
            en2_commit_leaves_one_with_every_field_intact
            st6_what_is_left_out_is_the_databases_to_say
            en3_the_same_id_again_answers_with_the_first
            en3_the_same_dedupe_key_again_answers_with_the_first
            en3_a_race_that_the_other_wins
            en3_a_race_that_the_other_gives_up
            en4_many_at_once_with_duplicates_among_them
            en4_more_than_one_statement_holds
            hk2_the_inbox_knows_the_first_from_the_second
            a_missing_table_is_said_to_be_missing
            a_table_of_another_shape_is_said_to_be_so
        );
    };
    ($client:ty: $($test:ident)+) => {
        $(#[tokio::test]
        async fn $test() {
            in_site(async |site| $crate::suite::$test::<$client>(site).await).await;
        })+
    };
}

pub async fn en2_rollback_leaves_nothing<C: Client>(site: &Site<C::Database>) {
    let event = order(1).build().unwrap();
    let id = event.id();
    let mut client = C::connect(site).await;
    let enqueued = client.transaction(End::Rollback, async |tx| site.outbox.enqueue(tx, event).await).await;
    assert!(!enqueued.unwrap().duplicate);
    assert_eq!(get(site, id).await, None);
    assert_eq!(count(site).await, 0);
}

pub async fn en2_commit_leaves_one_with_every_field_intact<C: Client>(site: &Site<C::Database>) {
    let mut client = C::connect(site).await;
    let events = intact();
    for event in &events {
        let one = event.clone();
        let enqueued = client.transaction(End::Commit, async |tx| site.outbox.enqueue(tx, one).await).await;
        let record = get(site, event.id()).await.unwrap();
        assert_eq!(record.event.as_ref(), Ok(event));
        assert_eq!(record.event.unwrap().payload().bytes(), event.payload().bytes());
        let enqueued = enqueued.unwrap();
        assert!(!enqueued.duplicate && !enqueued.suppressed);
        assert!(enqueued.id == event.id() && enqueued.sequence.is_none_or(|at| at == record.sequence));
    }
    assert_eq!(count(site).await, events.len());
}

pub async fn st6_what_is_left_out_is_the_databases_to_say<C: Client>(site: &Site<C::Database>) {
    let hour = std::time::Duration::from_secs(3600);
    let events = || [order(1), order(2).delay(hour)];
    let mut client = C::connect(site).await;
    let one = client
        .transaction(End::Commit, async |tx| {
            for event in events() {
                site.outbox.enqueue(tx, event).await?;
            }
            site.outbox.enqueue_all(tx, events()).await
        })
        .await;
    assert_eq!(one.unwrap().len(), 2);
    let records = site.outbox.store().list(&Filter::all(), Page::first(9)).await.unwrap();
    assert_eq!(records.len(), 4);
    for (record, delay) in records.into_iter().zip([time::Duration::ZERO, hour.try_into().unwrap()].repeat(2))
    {
        let near = |at: OffsetDateTime| (at - record.created_at).abs() < time::Duration::seconds(10);
        let event = record.event.as_ref().unwrap();
        assert!(near(event.occurred_at().unwrap()), "{record:?}");
        assert!(near(record.available_at - delay), "{record:?}");
        assert_eq!((event.event_type(), event.namespace()), ("order.placed.v1", "default"));
        assert!(event.headers().is_empty() && event.tenant_id().is_none() && event.dedupe_key().is_none());
    }
}

pub async fn en3_the_same_id_again_answers_with_the_first<C: Client>(site: &Site<C::Database>) {
    let id = Uuid::now_v7();
    let mut client = C::connect(site).await;
    let within = client
        .transaction(End::Commit, async |tx| {
            site.outbox.enqueue(tx, order(1).id(id)).await.unwrap();
            site.outbox.enqueue(tx, order(2).id(id)).await
        })
        .await;
    let later =
        client.transaction(End::Commit, async |tx| site.outbox.enqueue(tx, order(3).id(id)).await).await;
    let first = get(site, id).await.unwrap();
    for again in [within.unwrap(), later.unwrap()] {
        assert_eq!((again.id, again.sequence, again.duplicate), (id, Some(first.sequence), true));
    }
    assert_eq!(first.event.unwrap().payload().bytes(), br#"{"order":1}"#);
    assert_eq!(count(site).await, 1);
}

pub async fn en3_the_same_dedupe_key_again_answers_with_the_first<C: Client>(site: &Site<C::Database>) {
    let id = Uuid::now_v7();
    let mut client = C::connect(site).await;
    let within = client
        .transaction(End::Commit, async |tx| {
            site.outbox.enqueue(tx, order(1).id(id).dedupe_key("key")).await.unwrap();
            site.outbox.enqueue(tx, order(2).dedupe_key("key")).await
        })
        .await;
    let later = client
        .transaction(End::Commit, async |tx| site.outbox.enqueue(tx, order(3).dedupe_key("key")).await)
        .await;
    let others = client
        .transaction(End::Commit, async |tx| {
            site.outbox.enqueue(tx, order(4).dedupe_key("Key")).await?;
            site.outbox.enqueue(tx, order(5).dedupe_key("key").topic("order.gone.v1")).await?;
            site.outbox.enqueue(tx, order(6).dedupe_key("key").namespace("other")).await
        })
        .await;
    let first = get(site, id).await.unwrap();
    for again in [within.unwrap(), later.unwrap()] {
        assert_eq!((again.id, again.sequence, again.duplicate), (id, Some(first.sequence), true));
    }
    assert!(!others.unwrap().duplicate);
    assert_eq!(count(site).await, 4);
}

pub async fn en3_a_race_that_the_other_wins<C: Client>(site: &Site<C::Database>) {
    for key in ["id", "dedupe key"] {
        let (first, second) = race::<C>(site, key, End::Commit).await;
        let winner = get(site, first.id()).await.unwrap();
        assert_eq!((second.id, second.sequence, second.duplicate), (first.id(), Some(winner.sequence), true));
        assert_eq!(winner.event.unwrap().payload().bytes(), first.payload().bytes());
    }
    assert_eq!(count(site).await, 2);
}

pub async fn en3_a_race_that_the_other_gives_up<C: Client>(site: &Site<C::Database>) {
    for key in ["id", "dedupe key"] {
        let (_, second) = race::<C>(site, key, End::Rollback).await;
        assert!(!second.duplicate);
        let record = get(site, second.id).await.unwrap();
        assert!(second.sequence.is_none_or(|at| at == record.sequence));
        assert_eq!(record.event.unwrap().payload().bytes(), br#"{"order":2}"#);
    }
    assert_eq!(count(site).await, 2);
}

/// Two transactions with the same key: the second waits for the first, which then ends this way.
async fn race<C: Client>(site: &Site<C::Database>, key: &str, end: End) -> (Event, Enqueued) {
    let (first, second) = match key {
        "id" => (order(1), order(2)),
        key => (order(1).dedupe_key(key), order(2).dedupe_key(key)),
    };
    let first = first.build().unwrap();
    let second = if key == "id" { second.id(first.id()) } else { second };
    let (written, is_written) = oneshot::channel();
    let (mut one, mut other) = (C::connect(site).await, C::connect(site).await);
    let event = first.clone();
    let winner = one.transaction(end, async |tx| {
        let enqueued = site.outbox.enqueue(tx, event).await.unwrap();
        assert!(!enqueued.duplicate);
        written.send(()).unwrap();
        C::Database::someone_waits(site).await;
    });
    let loser = async {
        is_written.await.unwrap();
        other.transaction(End::Commit, async |tx| site.outbox.enqueue(tx, second).await.unwrap()).await
    };
    let ((), second) = tokio::join!(winner, loser);
    (first, second)
}

pub async fn en4_many_at_once_with_duplicates_among_them<C: Client>(site: &Site<C::Database>) {
    let mut client = C::connect(site).await;
    let there = order(0).dedupe_key("there").build().unwrap();
    let written = there.clone();
    let before =
        client.transaction(End::Commit, async |tx| site.outbox.enqueue(tx, written).await).await.unwrap();
    assert!(!before.duplicate);

    let [full, binary] = intact();
    let twice = order(3).dedupe_key("twice").build().unwrap();
    let events = vec![
        full.clone(),
        order(1).id(full.id()).build().unwrap(),
        binary.clone(),
        order(2).dedupe_key("there").build().unwrap(),
        twice.clone(),
        order(4).dedupe_key("twice").build().unwrap(),
        order(5).id(there.id()).build().unwrap(),
        order(6).build().unwrap(),
    ];
    let last = events[7].id();
    let enqueued =
        client.transaction(End::Commit, async |tx| site.outbox.enqueue_all(tx, events).await).await.unwrap();

    let answers: Vec<_> = enqueued.iter().map(|one| (one.id, one.duplicate)).collect();
    let expected = [
        (full.id(), false),
        (full.id(), true),
        (binary.id(), false),
        (there.id(), true),
        (twice.id(), false),
        (twice.id(), true),
        (there.id(), true),
        (last, false),
    ];
    assert_eq!(answers, expected);
    for one in &enqueued {
        let record = get(site, one.id).await.unwrap();
        assert!(one.sequence.is_none_or(|at| at == record.sequence));
        assert!(one.sequence.is_some() || !one.duplicate);
    }
    for event in [full, binary] {
        assert_eq!(get(site, event.id()).await.unwrap().event, Ok(event));
    }
    let stored = get(site, twice.id()).await.unwrap().event.unwrap();
    assert_eq!(stored.payload().bytes(), twice.payload().bytes());
    assert_eq!(count(site).await, 5);
}

pub async fn en4_more_than_one_statement_holds<C: Client>(site: &Site<C::Database>) {
    let mut client = C::connect(site).await;
    let events: Vec<_> = (0..1200).map(order).collect();
    let enqueued =
        client.transaction(End::Commit, async |tx| site.outbox.enqueue_all(tx, events).await).await;
    let enqueued = enqueued.unwrap();
    assert!(enqueued.len() == 1200 && enqueued.iter().all(|one| !one.duplicate));
    assert_eq!(count(site).await, 1200);
}

pub async fn hk2_the_inbox_knows_the_first_from_the_second<C: Client>(site: &Site<C::Database>) {
    let id = Uuid::now_v7();
    let mut client = C::connect(site).await;
    let mut first = async |end, consumer| {
        client.transaction(end, async |tx| site.inbox.first(tx, consumer, id).await).await.unwrap()
    };
    assert!(first(End::Rollback, "billing").await);
    assert!(first(End::Commit, "billing").await, "the first time was rolled back");
    assert!(!first(End::Commit, "billing").await);
    assert!(first(End::Commit, "mail").await);
    let again = client
        .transaction(End::Commit, async |tx| {
            // Being told so does not spoil the transaction.
            let again = site.inbox.first(tx, "mail", id).await?;
            site.outbox.enqueue(tx, order(1)).await.map(|_| again)
        })
        .await;
    assert!(!again.unwrap());
    assert_eq!(count(site).await, 1);
}

pub async fn a_missing_table_is_said_to_be_missing<C: Client>(site: &Site<C::Database>) {
    let mut client = C::connect(site).await;
    for (outbox, inbox) in C::Database::missing(site) {
        let one = client.transaction(End::Rollback, async |tx| outbox.enqueue(tx, order(1)).await).await;
        let events = [order(1), order(2)];
        let many = client.transaction(End::Rollback, async |tx| outbox.enqueue_all(tx, events).await).await;
        let receipt = client
            .transaction(End::Rollback, async |tx| inbox.first(tx, "billing", Uuid::now_v7()).await)
            .await;
        for error in [one.unwrap_err(), many.unwrap_err(), receipt.unwrap_err()] {
            assert_eq!(error.kind(), &ErrorKind::TableMissing, "{error:?}");
            assert_eq!(error.message(), format!("table {} does not exist", outbox.table()));
            assert!(std::error::Error::source(&error).is_some());
        }
    }
}

pub async fn a_table_of_another_shape_is_said_to_be_so<C: Client>(site: &Site<C::Database>) {
    let mut client = C::connect(site).await;
    C::Database::spoil(site).await;
    let one = client.transaction(End::Rollback, async |tx| site.outbox.enqueue(tx, order(1)).await).await;
    let events = [order(1), order(2)];
    let many = client.transaction(End::Rollback, async |tx| site.outbox.enqueue_all(tx, events).await).await;
    for error in [one.unwrap_err(), many.unwrap_err()] {
        assert_eq!(error.kind(), &ErrorKind::SchemaMismatch, "{error:?}");
    }
}

pub async fn a_lost_connection_is_said_to_be_lost<C: Client<Database = Postgres>>(site: &Site<Postgres>) {
    let mut client = C::connect(site).await;
    let lost = client.transaction(End::Lost, async |tx| {
        site.outbox.enqueue(tx, order(1)).await.unwrap();
        disconnect(site).await;
        site.outbox.enqueue(tx, order(2)).await
    });
    let error = lost.await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error:?}");
    assert_eq!(count(site).await, 0);
}

/// An event with no more than it needs.
pub fn order(number: u32) -> EventBuilder {
    Event::json("order.placed.v1", &serde_json::json!({ "order": number })).unwrap()
}

/// Events with all they can have: text that needs quoting, every byte, times to the microsecond.
fn intact() -> [Event; 2] {
    let json =
        "{ \"name\" : \"Zoë \\\"Z\\\" \\\\ \u{1F98A}\\n\\u0041\" ,\n\t\"n\":1.50, \"a\":[null,{},\"'}{,\"] }";
    let full = Event::builder("order.placed.v1")
        .event_type("placed")
        .aggregate("order", "Nr. 1 \"a\\b\" {x,y}")
        .namespace("shop")
        .tenant("acme")
        .dedupe_key("acme/1'2")
        .header("note", "\"quoted\" \\ {a,b} NULL ü")
        .header("empty", "")
        .version(7)
        .occurred_at(datetime!(2021-03-04 05:06:07.000_008 +02:00))
        .available_at(datetime!(2031-12-31 23:59:59.999_999 UTC));
    let bytes: Vec<u8> = (0..=255).chain([0, b'"', b'\\', b'x']).collect();
    let binary = full
        .clone()
        .id(Uuid::now_v7())
        .topic("order.label.v1")
        .bytes("image/png; name=\"a\"", bytes)
        .dedupe_key("acme/NULL");
    [full.json_text(json).unwrap().build().unwrap(), binary.build().unwrap()]
}

async fn get<B: Place>(site: &Site<B>, id: Uuid) -> Option<Record> {
    site.outbox.store().get(id).await.unwrap()
}

pub async fn count<B: Place>(site: &Site<B>) -> usize {
    let count = site.outbox.store().count(&Filter::all(), 100_000).await.unwrap();
    count.n.try_into().unwrap()
}
