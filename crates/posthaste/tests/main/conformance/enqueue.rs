//! Events into the table.
//!
//! Rows of the contract: EN2, EN3, EN4, EV1, EV2, EV3.

use std::time::Duration;

use posthaste::event::Available;
use posthaste::store::{Ending, Extended, Filter, Keep, Page, Purge, Record, Settlement, Status};
use posthaste::{Event, TypedEvent};
use serde_json::json;
use time::OffsetDateTime;
use time::macros::datetime;
use uuid::Uuid;

use crate::harness::{Db, Kind, MINUTE, event, statements, worker};

conformance!(
    en2_commit_leaves_each_event_once,
    en2_rollback_leaves_no_event,
    ev1_every_field_survives,
    ev1_defaults_are_filled_in,
    ev2_json_is_delivered_byte_for_byte,
    ev2_bytes_are_delivered_with_their_content_type,
    ev3_a_typed_event_is_enqueued,
    en3_the_same_id_is_written_once,
    en3_the_same_dedupe_key_is_written_once,
    en3_a_dedupe_key_is_unique_within_namespace_and_topic_only,
    en3_keys_are_compared_exactly,
    en3_a_duplicate_of_a_settled_event_is_one_until_that_is_gone,
    en4_many_are_written_in_order_with_duplicates_told,
    en4_a_large_batch_is_written_whole,
    en4_none_is_written_if_one_is_invalid,
    ev1_delayed_events_wait,
    empty_batches_are_nothing,
);

// SQLite is called, not sent to: there is no round trip to count.
databases!(en4_one_statement_writes_one_or_many, with_db: postgres Postgres, mysql MySql, mariadb MariaDb);

streams!(
    en2_commit_leaves_each_event_once,
    en2_rollback_leaves_no_event,
    en3_the_same_id_is_written_once,
    en3_the_same_dedupe_key_is_written_once,
    en3_a_dedupe_key_is_unique_within_namespace_and_topic_only,
    en3_keys_are_compared_exactly,
    en4_many_are_written_in_order_with_duplicates_told,
    en4_a_large_batch_is_written_whole,
    en4_none_is_written_if_one_is_invalid;
    servers: en4_one_statement_writes_one_or_many,
);

/// A row as it was written.
struct Written {
    sequence: i64,
    topic: String,
    payload: String,
}

/// Every row with a JSON payload in the order of their writing, of a queue or a stream.
async fn written(db: &Db) -> Vec<Written> {
    let rows = match db.kind() {
        Kind::Memory => return remembered(db).await,
        Kind::MySql | Kind::MariaDb => "SELECT CONCAT_WS('|', seq, topic, payload) FROM outbox ORDER BY seq",
        _ => {
            "SELECT CAST(seq AS text) || '|' || topic || '|' || CAST(payload AS text) FROM outbox ORDER BY seq"
        }
    };
    let split = |row: String| {
        let [sequence, topic, payload] = row.splitn(3, '|').collect::<Vec<_>>().try_into().unwrap();
        Written { sequence: sequence.parse().unwrap(), topic: topic.to_owned(), payload: payload.to_owned() }
    };
    db.texts(rows).await.into_iter().map(split).collect()
}

async fn remembered(db: &Db) -> Vec<Written> {
    let mut rows = db.store().list(&Filter::all(), Page::first(5000)).await.unwrap();
    rows.sort_unstable_by_key(|row| row.sequence);
    let read = |row: Record| {
        let event = row.event.unwrap();
        let payload = String::from_utf8(event.payload().bytes().to_vec()).unwrap();
        Written { sequence: row.sequence, topic: event.topic().to_owned(), payload }
    };
    rows.into_iter().map(read).collect()
}

async fn en2_commit_leaves_each_event_once(db: &Db) {
    let mut tx = db.begin().await;
    let one = tx.enqueue(db, event("a", 1)).await.unwrap();
    let two = tx.enqueue(db, event("a", 2)).await.unwrap();
    assert!(!one.duplicate && !two.duplicate && one.id != two.id);
    tx.commit().await;
    let written = written(db).await;
    assert_eq!(written.iter().map(|row| row.payload.as_str()).collect::<Vec<_>>(), ["1", "2"]);
}

async fn en2_rollback_leaves_no_event(db: &Db) {
    let mut tx = db.begin().await;
    tx.enqueue(db, event("a", 1)).await.unwrap();
    tx.enqueue_all(db, [event("a", 2), event("a", 3)]).await.unwrap();
    tx.rollback().await;
    let mut dropped = db.begin().await;
    dropped.enqueue(db, event("a", 4)).await.unwrap();
    drop(dropped);
    assert_eq!(written(db).await.len(), 0);
}

async fn ev1_every_field_survives(db: &Db) {
    let id = Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_002a);
    let sent = Event::json("order.placed.v1", &json!({"name": "Zoë 東京 🚀", "quote": "'\"\\"}))
        .unwrap()
        .id(id)
        .event_type("OrderPlaced")
        .aggregate("order", "4'2\"`;--")
        .namespace("shop")
        .tenant("tenant-東")
        .dedupe_key("tenant-東/key")
        .header("x-source", "web \"shop\" ü")
        .header("empty", "")
        .version(7)
        .occurred_at(datetime!(2020-02-29 23:59:59.123456 +02:00))
        .available_at(datetime!(2021-06-01 00:00:00.000001 UTC))
        .build()
        .unwrap();
    let mut tx = db.begin().await;
    assert_eq!(tx.enqueue(db, sent.clone()).await.unwrap().id, id);
    tx.commit().await;

    let claimed = db.claim(&worker(), 1).await.remove(0);
    let got = &claimed.event;
    assert_eq!(got.id(), id);
    assert_eq!(got.topic(), "order.placed.v1");
    assert_eq!(got.event_type(), "OrderPlaced");
    assert_eq!(got.aggregate_type(), Some("order"));
    assert_eq!(got.aggregate_id(), Some("4'2\"`;--"));
    assert_eq!(got.namespace(), "shop");
    assert_eq!(got.tenant_id(), Some("tenant-東"));
    assert_eq!(got.dedupe_key(), Some("tenant-東/key"));
    assert_eq!(got.payload(), sent.payload());
    assert_eq!(got.headers(), sent.headers());
    assert_eq!(got.version(), 7);
    assert_eq!(got.occurred_at(), sent.occurred_at());
    assert_eq!(got.available(), Available::At(datetime!(2021-06-01 00:00:00.000001 UTC)));
    let record = db.store().get(id).await.unwrap().unwrap();
    assert_eq!(record.event.as_ref().unwrap(), &**got);
    assert_eq!(record.sequence, claimed.lease.sequence());
}

async fn ev1_defaults_are_filled_in(db: &Db) {
    let before = db.store().now().await.unwrap();
    let id = db.enqueue_numbers("stock.moved", 5..6).await[0];
    let after = db.store().now().await.unwrap();
    let record = db.store().get(id).await.unwrap().unwrap();
    let got = record.event.unwrap();
    assert_eq!(id.get_version_num(), 7);
    assert_eq!(got.event_type(), "stock.moved");
    assert_eq!((got.namespace(), got.version()), ("default", 1));
    assert_eq!(
        (got.aggregate_type(), got.aggregate_id(), got.tenant_id(), got.dedupe_key()),
        (None, None, None, None)
    );
    assert!(got.headers().is_empty());
    // ST6: the database's clock, which on SQLite counts milliseconds.
    let written = before - Duration::from_millis(1)..=after + Duration::from_millis(1);
    for at in [got.occurred_at().unwrap(), record.created_at, record.available_at] {
        assert!(written.contains(&at), "{at} is not within {written:?}");
    }
    assert_eq!((record.status, record.attempts), (Status::Pending, 0));
}

async fn ev2_json_is_delivered_byte_for_byte(db: &Db) {
    let texts = [
        "{\"b\": 1,  \"a\":\t1.0e2, \"a\": 2,\n \"big\": 123456789012345678901234567890.10}",
        "\"\\u0000 \\ud83d\\ude80 \\/\"",
        "null",
        "[]",
        " [1 ,2 ] ",
        "{\"deep\":[[[[[[[[[[[[[[[[[[[[{}]]]]]]]]]]]]]]]]]]]]}",
    ];
    let mut tx = db.begin().await;
    for text in texts {
        tx.enqueue(db, Event::builder("json").json_text(text).unwrap()).await.unwrap();
    }
    let many = texts.map(|text| Event::builder("json").json_text(text).unwrap());
    tx.enqueue_all(db, many).await.unwrap();
    tx.commit().await;
    let claimed = db.claim(&worker(), 100).await;
    let got: Vec<&str> = claimed.iter().map(|c| c.event.payload().as_json().unwrap()).collect();
    assert_eq!(got, [texts, texts].concat());
}

async fn ev2_bytes_are_delivered_with_their_content_type(db: &Db) {
    let all_bytes: Vec<u8> = (0..=255).collect();
    let mut tx = db.begin().await;
    tx.enqueue(db, Event::builder("bytes").bytes("application/x-protobuf", all_bytes.clone())).await.unwrap();
    let empty = Event::builder("bytes").bytes("text/plain", Vec::new());
    tx.enqueue_all(db, [Event::builder("bytes").bytes("image/png", all_bytes.clone()), empty]).await.unwrap();
    tx.commit().await;
    let claimed = db.claim(&worker(), 10).await;
    let got: Vec<_> =
        claimed.iter().map(|c| (c.event.payload().content_type(), c.event.payload().bytes())).collect();
    assert_eq!(
        got,
        [("application/x-protobuf", &all_bytes[..]), ("image/png", &all_bytes), ("text/plain", b"")]
    );
    assert!(claimed.iter().all(|c| !c.event.payload().is_json()));
}

async fn ev3_a_typed_event_is_enqueued(db: &Db) {
    #[derive(serde::Serialize)]
    struct OrderPlaced {
        id: u64,
    }
    impl TypedEvent for OrderPlaced {
        const TOPIC: &'static str = "order.placed.v1";
        const AGGREGATE: &'static str = "order";
        const VERSION: u32 = 3;
        fn aggregate_id(&self) -> String {
            self.id.to_string()
        }
    }
    let mut tx = db.begin().await;
    tx.enqueue(db, OrderPlaced { id: 9 }).await.unwrap();
    tx.commit().await;
    let got = db.claim(&worker(), 1).await.remove(0).event;
    assert_eq!(
        (got.topic(), got.aggregate_type(), got.aggregate_id()),
        ("order.placed.v1", Some("order"), Some("9"))
    );
    assert_eq!((got.version(), got.payload().bytes()), (3, &b"{\"id\":9}"[..]));
}

async fn en3_the_same_id_is_written_once(db: &Db) {
    let first = event("a", 1).build().unwrap();
    let mut tx = db.begin().await;
    let answer = tx.enqueue(db, first.clone()).await.unwrap();
    assert!(!answer.duplicate);
    // Also within the same transaction, and whatever else differs.
    let again = tx.enqueue(db, event("b", 2).id(first.id())).await.unwrap();
    assert!(again.duplicate && again.id == first.id());
    tx.commit().await;
    let mut tx = db.begin().await;
    let later = tx.enqueue(db, first.clone()).await.unwrap();
    assert!(later.duplicate && later.id == first.id());
    tx.commit().await;
    let written = written(db).await;
    assert_eq!(written.len(), 1);
    assert_eq!(later.sequence, Some(written[0].sequence));
    assert_eq!(written[0].topic, "a");
}

async fn en3_the_same_dedupe_key_is_written_once(db: &Db) {
    let mut tx = db.begin().await;
    let first = tx.enqueue(db, event("a", 1).dedupe_key("k")).await.unwrap();
    tx.commit().await;
    let mut tx = db.begin().await;
    let again = tx.enqueue(db, event("a", 2).dedupe_key("k")).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(again.id, first.id);
    tx.commit().await;
    let written = written(db).await;
    assert_eq!(written.len(), 1);
    assert_eq!(again.sequence, Some(written[0].sequence));
    assert_eq!(written[0].payload, "1");
}

async fn en3_a_dedupe_key_is_unique_within_namespace_and_topic_only(db: &Db) {
    let mut tx = db.begin().await;
    let key = |topic| event(topic, 1).dedupe_key("k");
    assert!(!tx.enqueue(db, key("a")).await.unwrap().duplicate);
    assert!(!tx.enqueue(db, key("b")).await.unwrap().duplicate);
    assert!(!tx.enqueue(db, key("a").namespace("other")).await.unwrap().duplicate);
    assert!(tx.enqueue(db, key("a")).await.unwrap().duplicate);
    tx.commit().await;
    assert_eq!(written(db).await.len(), 3);
}

/// A key that only looks alike must never swallow an event: no case folding, no padding, no accents lost.
async fn en3_keys_are_compared_exactly(db: &Db) {
    let keys = ["key", "Key", "KEY", "key ", " key", "kéy", "ke\u{301}y", "k\u{e9}y\u{200b}"];
    let mut tx = db.begin().await;
    for key in keys {
        assert!(!tx.enqueue(db, event("a", 1).dedupe_key(key)).await.unwrap().duplicate, "{key:?}");
    }
    for topic in ["A", "a ", "á"] {
        assert!(!tx.enqueue(db, event(topic, 1).dedupe_key("key")).await.unwrap().duplicate, "{topic:?}");
    }
    tx.commit().await;
    assert_eq!(written(db).await.len(), 11);
}

async fn en3_a_duplicate_of_a_settled_event_is_one_until_that_is_gone(db: &Db) {
    let mut tx = db.begin().await;
    let first = tx.enqueue(db, event("a", 1).dedupe_key("k")).await.unwrap();
    tx.commit().await;
    let claimed = db.claim(&worker(), 1).await.remove(0);
    db.store().settle(&[Settlement::delivered(claimed.lease)], Keep::Delivered).await.unwrap();
    let mut tx = db.begin().await;
    assert_eq!(tx.enqueue(db, event("a", 2).dedupe_key("k")).await.unwrap().id, first.id);
    tx.rollback().await;
    db.shift(MINUTE).await;
    let purge = Purge { ending: Ending::Delivered, older_than: Duration::from_secs(30), limit: 10 };
    assert_eq!(db.store().purge(purge).await.unwrap(), 1);
    let mut tx = db.begin().await;
    assert!(!tx.enqueue(db, event("a", 3).dedupe_key("k")).await.unwrap().duplicate);
    tx.commit().await;
}

async fn en4_many_are_written_in_order_with_duplicates_told(db: &Db) {
    let before = db.enqueue_numbers("a", 0..1).await[0];
    let twice = event("a", 3).build().unwrap();
    let events = vec![
        event("a", 1).dedupe_key("k").build().unwrap(),
        event("a", 2).id(before).build().unwrap(),
        twice.clone(),
        event("a", 4).dedupe_key("k").build().unwrap(),
        twice.clone(),
        event("a", 5).build().unwrap(),
    ];
    let ids: Vec<Uuid> = events.iter().map(Event::id).collect();
    let mut tx = db.begin().await;
    let answers = tx.enqueue_all(db, events).await.unwrap();
    tx.commit().await;
    let told: Vec<(Uuid, bool)> = answers.iter().map(|a| (a.id, a.duplicate)).collect();
    assert_eq!(
        told,
        [(ids[0], false), (before, true), (ids[2], false), (ids[0], true), (ids[2], true), (ids[5], false)]
    );
    let written = written(db).await;
    assert_eq!(written.iter().map(|row| row.payload.as_str()).collect::<Vec<_>>(), ["0", "1", "3", "5"]);
}

async fn en4_a_large_batch_is_written_whole(db: &Db) {
    let ids = db.enqueue_numbers("bulk", 0..2500).await;
    assert_eq!(ids.len(), 2500);
    // Beyond one statement's bytes, too.
    let wide = (0..12).map(|_| Event::json("wide", &"x".repeat(1_000_000)).unwrap());
    let mut tx = db.begin().await;
    assert_eq!(tx.enqueue_all(db, wide).await.unwrap().len(), 12);
    tx.commit().await;
    let written = written(db).await;
    assert_eq!(written.len(), 2512);
    let numbers = written.iter().map_while(|row| row.payload.parse::<u64>().ok());
    assert!(numbers.eq(0..2500));
}

async fn en4_none_is_written_if_one_is_invalid(db: &Db) {
    let mut tx = db.begin().await;
    tx.enqueue_all(db, [event("a", 1), event("", 2)]).await.unwrap_err();
    tx.enqueue(db, event("a", 3).tenant("t").dedupe_key("u/1")).await.unwrap_err();
    tx.commit().await;
    assert_eq!(written(db).await.len(), 0);
}

async fn ev1_delayed_events_wait(db: &Db) {
    let mut tx = db.begin().await;
    let delayed = tx.enqueue(db, event("a", 1).delay(Duration::from_secs(90))).await.unwrap();
    let later = OffsetDateTime::now_utc() + Duration::from_secs(3600);
    tx.enqueue(db, event("a", 2).available_at(later)).await.unwrap();
    tx.commit().await;
    assert!(db.claim(&worker(), 10).await.is_empty());
    db.shift(MINUTE).await;
    assert!(db.claim(&worker(), 10).await.is_empty());
    db.shift(MINUTE).await;
    let claimed = db.claim(&worker(), 10).await;
    assert_eq!(claimed.iter().map(|c| c.event.id()).collect::<Vec<_>>(), [delayed.id]);
}

async fn empty_batches_are_nothing(db: &Db) {
    let mut tx = db.begin().await;
    assert!(tx.enqueue_all(db, Vec::<Event>::new()).await.unwrap().is_empty());
    tx.commit().await;
    let store = db.store();
    assert!(store.insert(&[]).await.unwrap().is_empty());
    assert_eq!(store.settle(&[], Keep::Delivered).await.unwrap().written, 0);
    assert_eq!(store.extend(&[], MINUTE).await.unwrap(), Extended::default());
    assert!(db.claim(&worker(), 0).await.is_empty());
}

async fn en4_one_statement_writes_one_or_many(db: &Db) {
    let mut tx = db.begin().await;
    let (_, statements) = statements::count(tx.enqueue(db, event("a", 1).dedupe_key("k"))).await;
    assert_eq!(statements, 1);
    let many: Vec<_> = (0..100).map(|n| event("a", n)).collect();
    let (_, statements) = statements::count(tx.enqueue_all(db, many)).await;
    assert_eq!(statements, 1);
    tx.commit().await;
}
