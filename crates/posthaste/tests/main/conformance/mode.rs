//! A table is a queue or a stream, from its making to its end; who writes to it need not know which.
//!
//! Rows of the contract: SM1, ST2, ST3, EN2, EN3, EN4.

use std::collections::BTreeMap;

use posthaste::ErrorKind;
use posthaste::store::{Claim, Dialect, Difference, Mode, Settlement, TableName, connect, migration_sql_as};

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, MINUTE, Setup, event, worker};

const NONE: [u32; 0] = [];

conformance_sql_by_kind!(
    sm1_a_stream_comes_and_goes_by_migrations,
    sm1_a_tables_mode_is_fixed_when_it_is_made,
    sm1_of_racing_starters_one_chooses_the_mode,
    sm1_validate_finds_what_differs_beside_a_stream,
    sm1_a_stream_that_lost_its_lanes_is_said_to_have,
    sm1_printed_sql_makes_the_same_stream,
    sm1_streams_of_any_names_live_side_by_side,
    sm1_a_stream_is_no_inbox,
    sm1_one_plain_insert_is_a_complete_event_of_a_stream,
    sm1_the_view_of_a_stream_shows_each_state,
    sm1_an_aggregate_has_one_lane_and_many_have_all,
    sm1_a_stream_is_not_claimed_row_by_row,
);

// Elsewhere a migration is one transaction.
databases!(sm1_a_stream_that_was_begun_stays_one_and_keeps_its_lanes, by_kind: mysql MySql, mariadb MariaDb);
databases!(sm1_a_stream_that_was_begun_without_lanes_is_no_queue, by_kind: mysql MySql, mariadb MariaDb);
databases!(sm1_a_queue_that_was_begun_stays_one, by_kind: mysql MySql, mariadb MariaDb);
databases!(sm1_somebody_elses_table_of_lanes_is_no_stream, by_kind: mysql MySql, mariadb MariaDb);

// Elsewhere what somebody may not read is as if it were not there.
databases!(sm1_the_mode_is_known_without_the_ledger, by_kind: postgres Postgres);

databases!(sm1_memory_has_no_streams, by_kind: memory Memory);

fn stream(lanes: u16) -> Mode {
    Mode::stream(lanes).unwrap()
}

async fn a_stream(kind: Kind, lanes: u16) -> Db {
    Db::with(kind, Setup { mode: Some(stream(lanes)), ..Setup::default() }).await
}

/// Tables and views of the database, but for the ledger's.
async fn relations(db: &Db) -> Vec<String> {
    db.texts(match db.kind() {
        Kind::Postgres => {
            "SELECT table_name::text FROM information_schema.tables
              WHERE table_schema = current_schema() AND table_name <> 'posthaste_migrations' ORDER BY 1"
        }
        Kind::MySql | Kind::MariaDb => {
            "SELECT CAST(TABLE_NAME AS CHAR) FROM information_schema.TABLES
              WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME <> 'posthaste_migrations' ORDER BY 1"
        }
        _ => {
            "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')
                AND name NOT IN ('posthaste_migrations', 'sqlite_sequence') ORDER BY 1"
        }
    })
    .await
}

async fn sm1_a_stream_comes_and_goes_by_migrations(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let store = db.store();
    assert_eq!(store.mode().await.unwrap(), None);
    assert_eq!(store.migrate_up_as(stream(8)).await.unwrap(), [1]);
    assert_eq!(store.mode().await.unwrap(), Some(stream(8)));
    assert_eq!(store.migrate_up_as(stream(8)).await.unwrap(), NONE);
    assert_eq!(store.migrate_up().await.unwrap(), NONE, "it has a mode already");
    assert_eq!(store.validate().await.unwrap(), []);
    let states = store.migrations().await.unwrap();
    assert_eq!((states.len(), states[0].version, states[0].name.as_str()), (1, 1, "stream"));
    assert!(states[0].applied_at.is_some());
    let mut beside = vec!["outbox", "outbox_lanes", "outbox_parked", "outbox_relays", "outbox_status"];
    if kind == Kind::Postgres {
        beside.insert(3, "outbox_places");
    }
    assert_eq!(relations(&db).await, beside);
    assert_eq!(db.number("SELECT count(*) FROM outbox_lanes WHERE lane BETWEEN 0 AND 7").await, 8);

    assert_eq!(store.migrate_down(0).await.unwrap(), [1]);
    assert_eq!(store.migrate_down(0).await.unwrap(), NONE);
    assert_eq!(store.mode().await.unwrap(), None);
    assert_eq!(relations(&db).await, [""; 0]);
    assert_eq!(store.migrate_up().await.unwrap(), [1]);
    assert_eq!(store.mode().await.unwrap(), Some(Mode::Queue), "what it was before is forgotten");
    db.drop_everything().await;
}

async fn sm1_a_tables_mode_is_fixed_when_it_is_made(kind: Kind) {
    let db = a_stream(kind, 4).await;
    for (asked, message) in [
        (Mode::Queue, "table outbox is a stream with 4 lanes, not a queue: the mode of a table is fixed"),
        (stream(1), "table outbox is a stream with 4 lanes, not a stream with 1 lane"),
        (stream(8), "table outbox is a stream with 4 lanes, not a stream with 8 lanes"),
    ] {
        let error = db.store().migrate_up_as(asked).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
        assert!(error.to_string().contains(message), "{error}");
    }
    assert_eq!(db.store().mode().await.unwrap(), Some(stream(4)));
    assert_eq!(db.store().validate().await.unwrap(), []);
    db.drop_everything().await;

    let db = Db::new(kind).await;
    assert_eq!(db.store().mode().await.unwrap(), Some(Mode::Queue));
    assert_eq!(db.store().migrate_up_as(Mode::Queue).await.unwrap(), NONE);
    let error = db.store().migrate_up_as(stream(8)).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("table outbox is a queue, not a stream with 8 lanes"), "{error}");
    assert_eq!(db.store().validate().await.unwrap(), []);
    db.drop_everything().await;
}

async fn sm1_of_racing_starters_one_chooses_the_mode(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let modes = [Mode::Queue, stream(1), stream(8), stream(256)];
    let starters: Vec<_> = modes
        .into_iter()
        .cycle()
        .take(8)
        .map(|mode| {
            let store = db.shared_store();
            tokio::spawn(async move { (mode, store.migrate_up_as(mode).await) })
        })
        .collect();
    let mut answers = Vec::new();
    for starter in starters {
        answers.push(starter.await.unwrap());
    }
    let made = db.store().mode().await.unwrap().unwrap();
    assert_eq!(
        answers.iter().filter(|(_, answer)| answer.as_ref().is_ok_and(|done| done == &[1])).count(),
        1
    );
    for (mode, answer) in answers {
        match answer {
            Ok(_) => assert_eq!(mode, made),
            Err(error) => {
                assert_ne!(mode, made);
                assert_eq!(error.kind(), &ErrorKind::SchemaMismatch, "{error}");
            }
        }
    }
    assert_eq!(db.store().validate().await.unwrap(), []);
    db.drop_everything().await;
}

async fn sm1_validate_finds_what_differs_beside_a_stream(kind: Kind) {
    let db = a_stream(kind, 2).await;
    let drop_index = |name: &str, table: &str| match kind {
        Kind::MySql | Kind::MariaDb => format!("DROP INDEX {name} ON {table}"),
        _ => format!("DROP INDEX {name}"),
    };
    db.execute("ALTER TABLE outbox_lanes ADD COLUMN mine INTEGER").await.unwrap();
    assert_eq!(db.store().validate().await.unwrap(), [], "the user's own columns are the user's");
    db.execute("DROP VIEW outbox_status").await.unwrap();
    db.execute("ALTER TABLE outbox DROP COLUMN content_type").await.unwrap();
    db.execute("ALTER TABLE outbox_parked DROP COLUMN last_error").await.unwrap();
    db.execute(drop_index("outbox_dedupe", "outbox")).await.unwrap();
    db.execute(drop_index("outbox_parked_key", "outbox_parked")).await.unwrap();
    db.execute("DROP TABLE outbox_relays").await.unwrap();
    let found: Vec<String> = db.store().validate().await.unwrap().iter().map(Difference::to_string).collect();
    assert_eq!(
        found,
        [
            "column content_type is missing",
            "index outbox_dedupe is missing",
            "table outbox_relays is missing",
            "column outbox_parked.last_error is missing",
            "index outbox_parked_key is missing",
            "view outbox_status is missing"
        ]
    );
    db.drop_everything().await;
}

async fn sm1_a_stream_that_lost_its_lanes_is_said_to_have(kind: Kind) {
    let db = a_stream(kind, 4).await;
    db.execute("DELETE FROM outbox_lanes WHERE lane = 0").await.unwrap();
    let error = db.store().mode().await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("outbox_lanes has 3 rows"), "{error}");
    db.execute("DROP VIEW outbox_status").await.unwrap();
    db.execute("DROP TABLE outbox_lanes").await.unwrap();
    for error in [
        db.store().mode().await.unwrap_err(),
        db.store().migrate_up_as(stream(4)).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
        assert!(error.to_string().contains("its table outbox_lanes is missing"), "{error}");
    }
    assert_eq!(db.store().migrate_down(0).await.unwrap(), [1], "it can go nevertheless");
    assert_eq!(relations(&db).await.iter().filter(|name| name.starts_with("outbox")).count(), 0);
    db.drop_everything().await;
}

async fn sm1_printed_sql_makes_the_same_stream(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let dialect = match kind {
        Kind::Postgres => Dialect::Postgres,
        Kind::MySql => Dialect::MySql,
        Kind::MariaDb => Dialect::MariaDb,
        _ => Dialect::Sqlite,
    };
    db.execute(migration_sql_as(dialect, &TableName::default(), stream(16), 0)).await.unwrap();
    assert_eq!(db.store().validate().await.unwrap(), []);
    assert_eq!(db.store().mode().await.unwrap(), Some(stream(16)));
    assert_eq!(db.store().migrate_up_as(stream(16)).await.unwrap(), NONE, "it has recorded itself");
    db.drop_everything().await;
}

async fn sm1_streams_of_any_names_live_side_by_side(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let mut names =
        vec!["org_outbox".to_owned(), "HRM_Outbox".to_owned(), "select".to_owned(), "a".repeat(40)];
    if kind != Kind::Sqlite {
        names.push(format!("{}.qualified", db.place()));
    }
    for (lanes, name) in [1, 2, 4, 8, 16].into_iter().zip(&names) {
        let store = connect(&db.url(), name).await.unwrap();
        assert_eq!(store.migrate_up_as(stream(lanes)).await.unwrap(), [1], "{name}");
    }
    for (lanes, name) in [1, 2, 4, 8, 16].into_iter().zip(&names) {
        let store = connect(&db.url(), name).await.unwrap();
        assert_eq!(store.mode().await.unwrap(), Some(stream(lanes)), "{name}");
        assert_eq!(store.validate().await.unwrap(), [], "{name}");
        let enqueued = store.insert(&[event("a", 1).build().unwrap()]).await.unwrap();
        assert!(!enqueued[0].duplicate, "{name}");
        assert_eq!(store.migrate_down(0).await.unwrap(), [1], "{name}");
    }
    assert_eq!(relations(&db).await, [""; 0]);
    db.drop_everything().await;
}

async fn sm1_a_stream_is_no_inbox(kind: Kind) {
    let db = Db::bare(kind, Setup { table: Some("inbox".to_owned()), ..Setup::default() }).await;
    assert_eq!(db.store().migrate_up_as(stream(2)).await.unwrap(), [1]);
    let error = match db.handle() {
        Handle::Postgres(sql) => sql.inbox.migrate().await,
        Handle::MySql(sql) => sql.inbox.migrate().await,
        Handle::Sqlite(sql) => sql.inbox.migrate().await,
        Handle::Memory(_) => panic!("memory has no migrations"),
    }
    .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("is recorded as an outbox, not as an inbox"), "{error}");
    assert_eq!(db.store().validate().await.unwrap(), []);
    db.drop_everything().await;
}

async fn sm1_one_plain_insert_is_a_complete_event_of_a_stream(kind: Kind) {
    let db = a_stream(kind, 4).await;
    for n in 0..50 {
        db.execute(format!("INSERT INTO outbox (topic, payload) VALUES ('a', '{n}')")).await.unwrap();
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox WHERE lane BETWEEN 0 AND 3").await, 50);
    assert_eq!(db.number("SELECT count(DISTINCT lane) FROM outbox").await, 4, "by their ids");
    assert_eq!(db.number("SELECT count(DISTINCT seq) FROM outbox").await, 50);
    assert_eq!(db.number("SELECT count(DISTINCT id) FROM outbox").await, 50);
    let shown =
        "SELECT count(*) FROM outbox_status WHERE status = 'pending' AND event_type = 'a' AND attempts = 0
                    AND parked_until IS NULL AND owner IS NULL AND settled_at IS NULL AND last_error IS NULL";
    assert_eq!(db.number(shown).await, 50);
    for refused in [
        "INSERT INTO outbox (topic, payload) VALUES ('', '1')",
        "INSERT INTO outbox (topic) VALUES ('a')",
        "INSERT INTO outbox (topic, payload) VALUES ('a', 'no json')",
        "INSERT INTO outbox (topic, payload, headers) VALUES ('a', '1', '[]')",
        "INSERT INTO outbox (topic, payload, lane) VALUES ('a', '1', 1)",
    ] {
        assert!(db.execute(refused).await.is_err(), "{refused}");
    }
    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 50);
    db.drop_everything().await;
}

async fn sm1_the_view_of_a_stream_shows_each_state(kind: Kind) {
    let db = a_stream(kind, 1).await;
    let (key, soon, delivered, noted) = match kind {
        Kind::Postgres => (
            "key",
            "now() + interval '1 hour'",
            "UPDATE outbox_places SET base = pg_current_snapshot()",
            "UPDATE outbox_places SET noted = pg_current_snapshot(), noted_seq",
        ),
        Kind::MySql | Kind::MariaDb => (
            "`key`",
            "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR",
            "UPDATE outbox SET outcome = 'delivered', settled_at = UTC_TIMESTAMP(6)",
            "UPDATE outbox_lanes SET noted_seq",
        ),
        _ => (
            "key",
            "9000000000000000",
            "UPDATE outbox SET outcome = 'delivered', settled_at = 1",
            "UPDATE outbox_lanes SET noted_seq",
        ),
    };
    let insert = async |topics: &[&str]| {
        for topic in topics {
            let sql = format!("INSERT INTO outbox (topic, payload) VALUES ('{topic}', '1')");
            db.execute(sql).await.unwrap();
        }
    };
    insert(&["delivered"]).await;
    db.execute(delivered).await.unwrap();
    insert(&["dead", "waits", "tried", "under way"]).await;
    for (topic, claimed, outcome) in
        [("dead", "NULL", "'dead'"), ("waits", "NULL", "NULL"), ("tried", "1", "NULL")]
    {
        db.execute(format!(
            "INSERT INTO outbox_parked (seq, id, lane, topic, {key}, blocks, attempts, claimed, outcome, last_error)
             SELECT seq, id, lane, topic, 'key', TRUE, 3, {claimed}, {outcome}, 'why' FROM outbox WHERE topic = '{topic}'"
        ))
        .await
        .unwrap();
    }
    let seq = db.number("SELECT max(seq) FROM outbox").await;
    db.execute(format!("UPDATE outbox_lanes SET fence = 1, owner = 'me', leased_until = {soon}"))
        .await
        .unwrap();
    db.execute(format!("{noted} = {seq}")).await.unwrap();
    insert(&["comes"]).await;

    let states = match kind {
        Kind::MySql | Kind::MariaDb => {
            "SELECT CONCAT_WS(' ', topic, status, attempts, last_error) FROM outbox_status ORDER BY seq"
        }
        _ => {
            "SELECT topic || ' ' || status || ' ' || CAST(attempts AS text) || coalesce(' ' || last_error, '') FROM outbox_status ORDER BY seq"
        }
    };
    assert_eq!(
        db.texts(states).await,
        [
            "delivered delivered 0",
            "dead dead 3 why",
            "waits pending 3 why",
            "tried processing 3 why",
            "under way processing 0",
            "comes pending 0"
        ]
    );
    assert_eq!(db.number("SELECT count(*) FROM outbox_status WHERE parked").await, 3);
    assert_eq!(db.number("SELECT count(*) FROM outbox_status WHERE owner = 'me' AND lane = 0").await, 6);
    // Whose lease has ended has nothing under way.
    db.execute("UPDATE outbox_lanes SET leased_until = NULL").await.unwrap();
    assert_eq!(db.number("SELECT count(*) FROM outbox_status WHERE status = 'pending'").await, 4);
    db.drop_everything().await;
}

async fn sm1_an_aggregate_has_one_lane_and_many_have_all(kind: Kind) {
    const AGGREGATES: u64 = 1000;
    for (lanes, at_least, at_most) in [(2, 2, 600), (16, 16, 120), (256, 200, 25)] {
        let db = a_stream(kind, lanes).await;
        for (name, id) in aggregate_ids() {
            db.execute("DELETE FROM outbox").await.unwrap();
            // Twice, with the aggregate's type differing: the lane is the id's alone.
            for kind_of in ["order", "Order"] {
                let events: Vec<_> = (0..AGGREGATES)
                    .map(|n| event("a", n).aggregate(kind_of, id(n)).build().unwrap())
                    .collect();
                db.store().insert(&events).await.unwrap();
            }
            let split = "SELECT count(*) FROM (SELECT aggregate_id FROM outbox GROUP BY aggregate_id HAVING count(DISTINCT lane) > 1) s";
            assert_eq!(db.number(split).await, 0, "{name}");
            let sizes = db.texts(size_of_lanes(kind)).await;
            let sizes: Vec<u64> = sizes.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(sizes.iter().sum::<u64>(), AGGREGATES, "{name}");
            assert!(sizes.len() >= at_least, "{name}: {} of {lanes} lanes used", sizes.len());
            let most = sizes.iter().max().unwrap();
            assert!(*most <= at_most, "{name}: {most} of {AGGREGATES} aggregates in one of {lanes} lanes");
        }
        db.drop_everything().await;
    }
}

/// How many aggregates each lane has that has any.
fn size_of_lanes(kind: Kind) -> &'static str {
    match kind {
        Kind::MySql | Kind::MariaDb => {
            "SELECT CAST(count(DISTINCT aggregate_id) AS CHAR) FROM outbox GROUP BY lane"
        }
        _ => "SELECT CAST(count(DISTINCT aggregate_id) AS text) FROM outbox GROUP BY lane",
    }
}

/// Ways to call aggregates.
fn aggregate_ids() -> BTreeMap<&'static str, fn(u64) -> String> {
    BTreeMap::from([
        ("numbers", (|n| n.to_string()) as fn(u64) -> String),
        ("hundreds", |n| (n * 100).to_string()),
        ("named", |n| format!("order-{n}")),
        ("padded", |n| format!("ORD{n:08}")),
        ("numbers in front", |n| format!("{n}:order-lines")),
        ("uuids", |n| {
            let high = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            uuid::Uuid::from_u64_pair(high, high.wrapping_mul(0xff51_afd7_ed55_8ccd)).to_string()
        }),
    ])
}

async fn sm1_a_stream_is_not_claimed_row_by_row(kind: Kind) {
    let db = a_stream(kind, 4).await;
    let queue = Db::new(kind).await;
    queue.enqueue_numbers("a", 0..1).await;
    let lease = queue.claim(&worker(), 1).await.remove(0).lease;
    let store = db.store();
    let mut errors = vec![
        store.claim(&Claim::by(worker())).await.map(drop).unwrap_err(),
        store.extend(std::slice::from_ref(&lease), MINUTE).await.map(drop).unwrap_err(),
        store.settle(&[Settlement::delivered(lease)], Default::default()).await.map(drop).unwrap_err(),
    ];
    if kind != Kind::Sqlite {
        errors.push(store.absent_workers().await.map(drop).unwrap_err());
        errors.push(store.end_leases_of(&["gone".to_owned()]).await.map(drop).unwrap_err());
    }
    for error in errors {
        assert_eq!(error.kind(), &ErrorKind::SchemaMismatch, "{error}");
        assert!(error.to_string().contains("table outbox is a stream with 4 lanes"), "{error}");
    }
    db.drop_everything().await;
    queue.drop_everything().await;
}

/// As a migration leaves a table that ended before it was recorded, with the rest of its statements to come.
async fn unfinished(kind: Kind, mode: Mode, to_come: &[&str]) -> Db {
    let db = Db::with(kind, Setup { mode: Some(mode), ..Setup::default() }).await;
    db.execute("DELETE FROM posthaste_migrations WHERE table_name = 'outbox'").await.unwrap();
    for relation in to_come {
        db.execute(format!("DROP {relation}")).await.unwrap();
    }
    db
}

async fn sm1_a_stream_that_was_begun_stays_one_and_keeps_its_lanes(kind: Kind) {
    let ends: [&[&str]; 3] = [
        &["VIEW outbox_status", "TABLE outbox", "TABLE outbox_parked", "TABLE outbox_relays"],
        &["VIEW outbox_status", "TABLE outbox", "TABLE outbox_parked"],
        &[],
    ];
    for (to_come, left) in ends.into_iter().zip([
        "left outbox_lanes. ",
        "left outbox_lanes, outbox_relays. ",
        "left outbox_lanes, outbox_relays, outbox_parked, outbox. ",
    ]) {
        let db = unfinished(kind, stream(8), to_come).await;
        let before = relations(&db).await;
        let refused = [
            (db.store().migrate_up().await, "is a stream with 8 lanes, not a queue"),
            (db.store().migrate_up_as(Mode::Queue).await, "is a stream with 8 lanes, not a queue"),
            (
                db.store().migrate_up_as(stream(4)).await,
                "is a stream with 8 lanes, not a stream with 4 lanes",
            ),
        ];
        for (answer, words) in refused {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
            for words in [words, left, "`posthaste migrate up --mode stream --lanes 8`, or drop"] {
                assert!(error.to_string().contains(words), "no {words:?} in {error}");
            }
        }
        assert_eq!(relations(&db).await, before, "nothing was made");
        assert_eq!(db.store().migrate_up_as(stream(8)).await.unwrap(), [1]);
        assert_eq!(db.store().validate().await.unwrap(), []);
        assert_eq!(db.store().mode().await.unwrap(), Some(stream(8)));
        db.drop_everything().await;
    }
}

async fn sm1_a_stream_that_was_begun_without_lanes_is_no_queue(kind: Kind) {
    let to_come = ["VIEW outbox_status", "TABLE outbox", "TABLE outbox_parked", "TABLE outbox_relays"];
    let db = unfinished(kind, stream(8), &to_come).await;
    db.execute("DELETE FROM outbox_lanes").await.unwrap();
    let error = db.store().migrate_up().await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("left outbox_lanes. "), "{error}");
    assert_eq!(db.store().migrate_up_as(stream(4)).await.unwrap(), [1], "how many is open still");
    assert_eq!(db.store().validate().await.unwrap(), []);
    db.drop_everything().await;
}

async fn sm1_a_queue_that_was_begun_stays_one(kind: Kind) {
    let db = unfinished(kind, Mode::Queue, &["VIEW outbox_status"]).await;
    let error = db.store().migrate_up_as(stream(8)).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
    for words in [
        "is a queue, not a stream with 8 lanes",
        "left outbox. ",
        "`posthaste migrate up --mode queue`, or drop",
    ] {
        assert!(error.to_string().contains(words), "no {words:?} in {error}");
    }
    assert_eq!(relations(&db).await, ["inbox", "outbox"], "nothing was made");
    assert_eq!(db.store().migrate_up().await.unwrap(), [1]);
    assert_eq!(db.store().validate().await.unwrap(), []);
    assert_eq!(db.store().mode().await.unwrap(), Some(Mode::Queue));
    db.drop_everything().await;
}

async fn sm1_somebody_elses_table_of_lanes_is_no_stream(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    db.execute("CREATE TABLE outbox_lanes (number INT)").await.unwrap();
    db.execute("INSERT INTO outbox_lanes VALUES (1)").await.unwrap();
    assert_eq!(db.store().migrate_up().await.unwrap(), [1]);
    assert_eq!(db.store().mode().await.unwrap(), Some(Mode::Queue));
    db.drop_everything().await;
}

async fn sm1_the_mode_is_known_without_the_ledger(kind: Kind) {
    for mode in [None, Some(stream(4))] {
        let db = Db::with(kind, Setup { mode, ..Setup::default() }).await;
        let role = format!("r_{}", db.place());
        for grant in [
            format!("CREATE ROLE {role}"),
            format!("GRANT USAGE ON SCHEMA {} TO {role}", db.place()),
            format!("GRANT SELECT ON outbox TO {role}"),
        ] {
            db.execute(grant).await.unwrap();
        }
        if mode.is_some() {
            db.execute(format!("GRANT SELECT ON outbox_lanes TO {role}")).await.unwrap();
        }
        let store = connect(&format!("{}%20-crole%3D{role}", db.url()), "outbox").await.unwrap();
        assert_eq!(store.migrations().await.unwrap_err().kind(), &ErrorKind::AccessDenied);
        assert_eq!(store.mode().await.unwrap(), mode, "what is no stream can only be a queue");
        store.close().await;
        db.execute(format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
        db.drop_everything().await;
    }
}

async fn sm1_memory_has_no_streams(kind: Kind) {
    let db = Db::new(kind).await;
    assert_eq!(db.store().mode().await.unwrap(), Some(Mode::Queue));
    assert_eq!(db.store().migrate_up_as(Mode::Queue).await.unwrap(), NONE);
    let error = db.store().migrate_up_as(stream(1)).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidSetting);
    assert!(error.to_string().contains("table outbox: this database has no streams"), "{error}");
    db.drop_everything().await;
}
