//! Through the databases: events with anything in them come back as they were, and no name of a table does harm.

use posthaste::produce::OutboxBuilder;
use posthaste::store::{Claimed, Filter, Page, connect};
use posthaste::{Backend, ErrorKind, Event, Inbox, Outbox, TableName};
use posthaste_testkit::fuzz::text;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use time::macros::datetime;

use crate::harness::CORPUS;
use crate::harness::database::Handle;
use crate::harness::{Db, Kind, worker};

conformance!(
    ev2_events_with_anything_in_them_come_back_as_they_were,
    ev2_json_is_written_as_it_is_or_refused,
    ev4_times_at_the_end_of_time_are_refused_or_kept,
    rt6_a_filter_with_anything_in_it_finds_nothing,
);
conformance_sql!(st2_no_name_of_a_table_does_harm, st2_a_table_that_is_no_outbox_is_left_alone);

/// Any text that an event may have.
fn words() -> impl Strategy<Value = String> {
    let any = vec(any::<char>().prop_filter("control", |c| !c.is_control()), 1..20)
        .prop_map(|chars| chars.into_iter().collect());
    let hostile = prop::sample::select(vec![
        "'; DROP TABLE outbox; --",
        "\\' OR 1=1 #",
        "%_*[a-z]?!",
        " leading and trailing ",
        "$1 ? :name {table}",
        "\u{feff}\u{200b}\u{202e}e\u{301}",
        "NULL",
    ]);
    prop_oneof![3 => any, 1 => hostile.prop_map(str::to_owned), 1 => "[a-zA-Z]{1,12}"]
}

/// Any JSON of a few levels, as somebody may have written it.
fn document() -> impl Strategy<Value = String> {
    let quoted = || any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap());
    let odd = prop::sample::select(vec![
        "null",
        "-0",
        "0e1",
        "1E+2",
        "-1.5e-3",
        "1e400",
        "0.1e-9999",
        "123456789012345678901234567890",
        r#""\/\b\f\u0000""#,
        r#""\ud83d\ude80""#,
        r#""\u007f\u0085\u2028""#,
        r#"{"":1,"":2}"#,
        "{\"a\":1,\"a\" : 2}",
        " [ ] ",
        "\t{\r\n}",
    ]);
    let leaf = prop_oneof![
        odd.prop_map(str::to_owned),
        quoted(),
        any::<f64>().prop_map(|n| serde_json::json!(n).to_string())
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" ,\n"))),
            vec((quoted(), inner), 0..4).prop_map(|members| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("{name}\t: {value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

prop_compose! {
    fn event()(
        topic in words(), kind in option::of(words()), aggregate in option::of((words(), words())),
        namespace in words(), tenant in option::of(words()), key in option::of(words()),
        headers in btree_map(words(), words(), 0..4), version in 1..=u32::MAX >> 1,
        json in document(), bytes in option::of((words(), any::<Vec<u8>>())),
        second in option::of(-30_000_000_000_i64..250_000_000_000),
    ) -> Event {
        let mut event = Event::builder(topic).namespace(namespace).version(version);
        event = match bytes {
            Some((kind, bytes)) => event.bytes(kind, bytes),
            None => event.json_text(json).unwrap(),
        };
        if let Some(kind) = kind {
            event = event.event_type(kind);
        }
        if let Some((kind, id)) = aggregate {
            event = event.aggregate(kind, id);
        }
        if let Some(key) = key {
            event = event.dedupe_key(tenant.as_ref().map_or(key.clone(), |tenant| format!("{tenant}/{key}")));
        }
        if let Some(tenant) = tenant {
            event = event.tenant(tenant);
        }
        if let Some(second) = second {
            event = event.occurred_at(time::OffsetDateTime::from_unix_timestamp(second).unwrap());
        }
        headers.into_iter().fold(event, |event, (name, value)| event.header(name, value)).build().unwrap()
    }
}

/// `true` if a number of the document is larger than every 64-bit floating point number.
fn exceeds_doubles(json: &str) -> bool {
    let parsed: Result<serde_json::Value, _> = serde_json::from_str(json);
    parsed.is_err_and(|error| error.to_string().starts_with("number out of range"))
}

async fn ev2_events_with_anything_in_them_come_back_as_they_were(db: &Db) {
    let mut runner = TestRunner::deterministic();
    let (worker, batches) = (worker(), vec(event(), 1..12));
    for _ in 0..24 {
        let mut events = batches.new_tree(&mut runner).unwrap().current();
        if db.kind() == Kind::MySql {
            events.retain(|event| event.payload().as_json().is_none_or(|json| !exceeds_doubles(json)));
        }
        let mut tx = db.begin().await;
        let written = tx.enqueue_all(db, events.clone()).await.unwrap();
        tx.commit().await;
        let mut claimed = db.claim(&worker, 100).await;
        for (event, written) in events.iter().zip(written).filter(|(_, written)| !written.duplicate) {
            let at = claimed.iter().position(|claimed| claimed.event.id() == written.id).unwrap();
            same(&claimed.swap_remove(at), event);
        }
        assert!(claimed.is_empty(), "nobody wrote these");
    }
}

fn same(claimed: &Claimed, event: &Event) {
    let come = &claimed.event;
    assert_eq!((come.topic(), come.event_type()), (event.topic(), event.event_type()));
    assert_eq!((come.aggregate_type(), come.aggregate_id()), (event.aggregate_type(), event.aggregate_id()));
    assert_eq!((come.namespace(), come.tenant_id()), (event.namespace(), event.tenant_id()));
    assert_eq!((come.dedupe_key(), come.version()), (event.dedupe_key(), event.version()));
    assert_eq!((come.headers(), come.payload()), (event.headers(), event.payload()));
    let payload = |event: &Event| String::from_utf8_lossy(event.payload().bytes()).into_owned();
    assert_eq!(payload(come), payload(event));
    assert!(event.occurred_at().is_none_or(|at| come.occurred_at() == Some(at)));
}

/// Every seed that is JSON, and JSON that is deeper than anybody's stack.
async fn ev2_json_is_written_as_it_is_or_refused(db: &Db) {
    let mut texts: Vec<String> =
        CORPUS.seeds("json").iter().filter_map(|seed| Some(text(seed)?.to_owned())).collect();
    for depth in [30, 128, 1_000, 2_000, 100_000] {
        texts.push(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        texts.push(format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
    }
    let (worker, mut written) = (worker(), 0);
    for json in texts {
        let Ok(event) = Event::builder("a").json_text(json.as_str()) else { continue };
        let mut tx = db.begin().await;
        match tx.enqueue(db, event).await {
            Ok(_) => {
                tx.commit().await;
                let claimed = db.claim(&worker, 1).await;
                assert_eq!(claimed[0].event.payload().as_json(), Some(json.as_str()));
                written += 1;
            }
            Err(error) => {
                let beginning: String = json.chars().take(80).collect();
                assert_eq!(error.kind(), &ErrorKind::PayloadNotJson, "{beginning}: {error:?}");
                assert!(format!("{error} {error:?}").len() < 1000, "{error}");
                tx.rollback().await;
                // Only its depth may be too much, and MySQL reads numbers as doubles.
                let is_deep = json.contains("[[[[[[") || json.contains("{\"a\":{\"a\":{\"a\":");
                assert!(
                    is_deep || db.kind() == Kind::MySql && exceeds_doubles(&json),
                    "{beginning}: {error}"
                );
            }
        }
    }
    assert!(written > 15, "{written}");
    let listed = db.store().list(&Filter::all(), Page::first(100)).await.unwrap();
    assert_eq!(listed.len(), written);
}

async fn ev4_times_at_the_end_of_time_are_refused_or_kept(db: &Db) {
    let event = || Event::json("a", &1).unwrap();
    for at in [
        datetime!(9999-12-31 23:59:59 -1:00),
        datetime!(0999-12-31 23:59 UTC),
        datetime!(1000-01-01 0:30 +1:00),
    ] {
        for (event, field) in
            [(event().occurred_at(at), "occurred_at"), (event().available_at(at), "available_at")]
        {
            assert_eq!(event.build().unwrap_err().kind(), &ErrorKind::OutOfRange { field }, "{at}");
        }
    }
    let (worker, mut tx) = (worker(), db.begin().await);
    let ends = [datetime!(9999-12-31 23:59:59 UTC), datetime!(1000-01-01 0:00 UTC)];
    tx.enqueue_all(db, ends.map(|at| event().occurred_at(at))).await.unwrap();
    tx.commit().await;
    let mut kept: Vec<_> =
        db.claim(&worker, 2).await.iter().map(|claimed| claimed.event.occurred_at().unwrap()).collect();
    kept.sort();
    assert_eq!(kept, [ends[1], ends[0]]);
}

async fn rt6_a_filter_with_anything_in_it_finds_nothing(db: &Db) {
    db.enqueue_numbers("a", 0..1).await;
    let count = async |filter: Filter| db.store().count(&filter, 10).await.map(|count| count.n);
    for far in [datetime!(9999-12-31 23:59:59 -23:00), datetime!(9999-12-31 23:59:59 UTC)] {
        assert_eq!(count(Filter::all().since(far)).await.unwrap(), 0, "{far}");
        assert_eq!(count(Filter::all().until(far)).await.unwrap(), 1, "{far}");
    }
    for long_ago in
        [datetime!(-9999-01-01 0:00 UTC), datetime!(0000-01-01 0:00 +1:00), datetime!(0001-01-01 0:00 UTC)]
    {
        assert_eq!(count(Filter::all().since(long_ago)).await.unwrap(), 1, "{long_ago}");
        assert_eq!(count(Filter::all().until(long_ago)).await.unwrap(), 0, "{long_ago}");
    }
    let mut runner = TestRunner::deterministic();
    for _ in 0..50 {
        let text =
            words().prop_filter("it fits", |text| !matches!(text.as_str(), "a" | "*")).new_tree(&mut runner);
        let text = text.unwrap().current();
        let text = text.replace('*', "");
        for filter in
            [Filter::all().topic(&text), Filter::all().tenant(&text), Filter::all().namespace(&text)]
        {
            assert_eq!(count(filter).await.unwrap(), 0, "{text:?}");
        }
    }
}

/// Names that end a quotation, a statement or a comment, or lead elsewhere.
pub const HOSTILE: [&str; 27] = [
    "",
    " ",
    ".",
    "..",
    "a.",
    ".a",
    "a.b.c",
    "../outbox",
    "outbox; DROP TABLE canary",
    "outbox\"; DROP TABLE canary; --",
    "outbox`; DROP TABLE canary; -- ",
    "outbox'; DROP TABLE canary; --",
    "canary--",
    "canary/**/",
    "canary#",
    "outbox\0",
    "outbox\n",
    "outbox\u{a0}",
    "оutbox",
    "outbox\u{200b}",
    "ＯＵＴＢＯＸ",
    "outbox) AS x; DELETE FROM canary; --",
    "{table}",
    "$1",
    "?",
    "x\"\"y",
    "public.\"canary\"",
];

fn refuses<B: Backend>(builder: OutboxBuilder<B>, inbox: posthaste::Result<Inbox<B>>, name: &str) {
    let errors =
        [builder.table(name).build().err(), inbox.err()].map(|error| error.map(|error| error.kind().clone()));
    assert_eq!(errors, [Some(ErrorKind::InvalidTableName), Some(ErrorKind::InvalidTableName)], "{name:?}");
}

async fn st2_no_name_of_a_table_does_harm(db: &Db) {
    db.execute("CREATE TABLE canary (id INTEGER)").await.unwrap();
    db.execute("INSERT INTO canary VALUES (7)").await.unwrap();
    let long = ["x".repeat(41), format!("{}.outbox", "x".repeat(41)), "x".repeat(1 << 20)];
    for name in HOSTILE.into_iter().chain(long.iter().map(String::as_str)) {
        assert!(name.parse::<TableName>().is_err(), "{name:?}");
        let error = connect(&db.url(), name).await.err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::InvalidTableName, "{name:?}");
        assert!(error.to_string().len() < 1200, "{} bytes", error.to_string().len());
        match db.handle() {
            Handle::Postgres(sql) => {
                refuses(Outbox::postgres(sql.pool.clone()), Inbox::postgres(sql.pool.clone(), name), name);
            }
            Handle::MySql(sql) => {
                refuses(Outbox::mysql(sql.pool.clone()), Inbox::mysql(sql.pool.clone(), name), name)
            }
            Handle::Sqlite(sql) => {
                refuses(Outbox::sqlite(sql.pool.clone()), Inbox::sqlite(sql.pool.clone(), name), name)
            }
            Handle::Memory(_) => unreachable!(),
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM canary WHERE id = 7").await, 1);
    assert!(db.store().validate().await.unwrap().is_empty());
}

/// Names that are names, of tables that are somebody else's.
async fn st2_a_table_that_is_no_outbox_is_left_alone(db: &Db) {
    db.execute("CREATE TABLE canary (id INTEGER)").await.unwrap();
    db.execute("INSERT INTO canary VALUES (7)").await.unwrap();
    let others: &[&str] = match db.kind() {
        Kind::Postgres => &["canary", "pg_catalog.pg_class", "information_schema.tables"],
        Kind::MySql | Kind::MariaDb => &["canary", "mysql.user", "information_schema.tables"],
        _ => &["canary", "sqlite_master", "sqlite_sequence"],
    };
    for name in others {
        let store = connect(&db.url(), name).await.unwrap();
        assert!(store.migrate_up().await.is_err(), "{name} was made an outbox");
        assert!(store.stats(1).await.is_err(), "{name} was read as an outbox");
        assert!(store.insert(&[Event::json("a", &1).unwrap().build().unwrap()]).await.is_err(), "{name}");
        // Whether that is an error or nothing to do: the table stays.
        let _ = store.migrate_down(0).await;
        let _ = store.discard(&Filter::all(), 10).await;
        store.close().await;
        assert_eq!(db.number("SELECT count(*) FROM canary WHERE id = 7").await, 1, "{name}");
    }
    // And nothing was left beside them.
    let left = match db.kind() {
        Kind::Sqlite => "SELECT count(*) FROM sqlite_master WHERE name LIKE 'canary_%'".to_owned(),
        _ => format!(
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = '{}' AND table_name LIKE 'canary!_%' ESCAPE '!'",
            db.place()
        ),
    };
    assert_eq!(db.number(left).await, 0);
}
