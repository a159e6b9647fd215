//! Tables come and go by migrations: once, whoever starts them, and as they should be.
//!
//! Rows of the contract: ST2, ST3.

use std::sync::Arc;

use posthaste::store::{Claim, Difference, Filter, Store, TableName, connect};
use posthaste::{Error, ErrorKind, Inbox};

use crate::harness::database::Handle;
use crate::harness::{Db, Kind, Setup, event, worker};

const NONE: [u32; 0] = [];

conformance_sql_by_kind!(
    st3_a_table_of_somebody_elses_is_not_taken_over,
    st3_up_down_and_up_again,
    st3_racing_starters_apply_once,
    st3_validate_finds_what_differs,
    st3_validate_finds_what_is_weaker,
    st3_a_newer_table_is_left_alone,
    st3_a_table_of_the_other_family_is_left_alone,
    st3_printed_sql_makes_the_same_table,
    st2_any_number_of_tables_live_side_by_side,
);

async fn st3_up_down_and_up_again(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let store = db.store();
    assert_eq!(store.validate().await.unwrap(), [Difference::Table]);
    assert!(store.migrations().await.unwrap().iter().all(|state| state.applied_at.is_none()));
    assert_eq!(store.migrate_up().await.unwrap(), [1]);
    assert_eq!(store.migrate_up().await.unwrap(), NONE);
    let states = store.migrations().await.unwrap();
    assert_eq!((states.len(), states[0].version, states[0].name.as_str()), (1, 1, "outbox"));
    assert!(states[0].applied_at.is_some());
    assert_eq!(store.validate().await.unwrap(), []);
    db.enqueue_numbers("a", 0..1).await;
    assert_eq!(store.migrate_down(0).await.unwrap(), [1]);
    assert_eq!(store.migrate_down(0).await.unwrap(), NONE);
    assert_eq!(store.validate().await.unwrap(), [Difference::Table]);
    assert_eq!(store.migrate_up().await.unwrap(), [1]);
    assert_eq!(store.count(&Filter::all(), 10).await.unwrap().n, 0);
    db.drop_everything().await;
}

async fn st3_racing_starters_apply_once(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let store = db.shared_store();
            tokio::spawn(async move { store.migrate_up().await.unwrap() })
        })
        .collect();
    let mut applied = Vec::new();
    for starter in starters {
        applied.extend(starter.await.unwrap());
    }
    assert_eq!(applied, [1]);
    assert_eq!(db.store().validate().await.unwrap(), []);
    db.drop_everything().await;
}

async fn st3_validate_finds_what_differs(kind: Kind) {
    let db = Db::new(kind).await;
    db.execute("ALTER TABLE outbox ADD COLUMN mine INTEGER").await.unwrap();
    assert_eq!(db.store().validate().await.unwrap(), [], "the user's own columns are the user's");
    db.execute("DROP VIEW outbox_status").await.unwrap();
    db.execute("ALTER TABLE outbox DROP COLUMN last_error").await.unwrap();
    let drop_index =
        if kind.is_mysql() { "DROP INDEX outbox_claim ON outbox" } else { "DROP INDEX outbox_claim" };
    db.execute(drop_index).await.unwrap();
    db.execute("DELETE FROM posthaste_migrations WHERE table_name = 'outbox'").await.unwrap();
    let found: Vec<String> = db.store().validate().await.unwrap().iter().map(Difference::to_string).collect();
    assert_eq!(
        found,
        [
            "migration 1 has not been applied",
            "column last_error is missing",
            "index outbox_claim is missing",
            "view outbox_status is missing"
        ]
    );
    db.drop_everything().await;
}

async fn st3_validate_finds_what_is_weaker(kind: Kind) {
    let db = Db::new(kind).await;
    assert_eq!(db.store().validate().await.unwrap(), []);
    match kind {
        Kind::Sqlite => weaken_by_rebuilding(&db).await,
        _ => weaken_by_altering(&db).await,
    }
    let found: Vec<String> = db.store().validate().await.unwrap().iter().map(Difference::to_string).collect();
    let (namespace, dedupe) = match kind {
        Kind::Postgres => {
            ("text not null", "btree (namespace, topic, dedupe_key) WHERE (dedupe_key IS NOT NULL)")
        }
        Kind::MySql | Kind::MariaDb => ("varchar(64) not null", "(dedupe_key, namespace, topic)"),
        _ => ("text not null", "(namespace, topic, dedupe_key) where dedupe_key is not null"),
    };
    assert_eq!(
        found,
        [
            format!("column namespace is {namespace}, expected {namespace} default"),
            format!("index outbox_dedupe is {dedupe}, expected unique {dedupe}"),
            "check outbox_topic_check is missing".to_owned()
        ]
    );
    db.drop_everything().await;
}

async fn weaken_by_altering(db: &Db) {
    let (drop_index, index) = match db.kind() {
        Kind::MySql | Kind::MariaDb => {
            ("DROP INDEX outbox_dedupe ON outbox", "(dedupe_key, namespace, topic)")
        }
        _ => ("DROP INDEX outbox_dedupe", "(namespace, topic, dedupe_key) WHERE dedupe_key IS NOT NULL"),
    };
    db.execute("ALTER TABLE outbox ALTER COLUMN namespace DROP DEFAULT").await.unwrap();
    db.execute(drop_index).await.unwrap();
    db.execute(format!("CREATE INDEX outbox_dedupe ON outbox {index}")).await.unwrap();
    db.execute("ALTER TABLE outbox DROP CONSTRAINT outbox_topic_check").await.unwrap();
}

/// SQLite alters neither defaults nor constraints, so that its table is made again from its own text.
async fn weaken_by_rebuilding(db: &Db) {
    let made = db
        .texts(
            "SELECT sql FROM sqlite_schema WHERE tbl_name = 'outbox' AND sql IS NOT NULL ORDER BY type DESC",
        )
        .await;
    let weaker = made.join(";\n");
    let weaker = weaker
        .replace("DEFAULT 'default'", "")
        .replace("CREATE UNIQUE INDEX", "CREATE INDEX")
        .replace("CONSTRAINT \"outbox_topic_check\"", "");
    // On one connection: another one of the pool may not have seen yet that the table is gone.
    db.execute(format!("DROP TABLE outbox;\n{weaker}")).await.unwrap();
}

async fn st3_a_newer_table_is_left_alone(kind: Kind) {
    let db = Db::new(kind).await;
    db.execute(
        "INSERT INTO posthaste_migrations (table_name, version, name) VALUES ('outbox', 99, 'future')",
    )
    .await
    .unwrap();
    for result in [db.store().migrate_up().await, db.store().migrate_down(0).await] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::SchemaTooNew { found: 99, known: 1 });
        assert!(error.to_string().contains("outbox") && error.to_string().contains("99"), "{error}");
    }
    let states = db.store().migrations().await.unwrap();
    assert_eq!(states.iter().map(|s| s.version).collect::<Vec<_>>(), [1, 99]);
    db.drop_everything().await;
}

async fn st3_a_table_of_the_other_family_is_left_alone(kind: Kind) {
    let db = Db::new(kind).await;
    db.enqueue_numbers("a", 0..3).await;
    db.execute(match kind {
        Kind::MySql | Kind::MariaDb => {
            "INSERT INTO inbox (consumer, event_id) VALUES ('billing', REPEAT('a', 16))"
        }
        Kind::Postgres => "INSERT INTO inbox (consumer, event_id) VALUES ('billing', gen_random_uuid())",
        _ => "INSERT INTO inbox (consumer, event_id) VALUES ('billing', 'an id')",
    })
    .await
    .unwrap();

    let [up, down] = inbox_on_the_outbox(&db).await;
    for error in [up, down] {
        refused(&error, "table outbox is recorded as an outbox, not as an inbox");
    }
    let store = connect(&db.url(), "inbox").await.unwrap();
    for error in [
        store.migrate_up().await.unwrap_err(),
        store.migrate_down(0).await.unwrap_err(),
        store.migrations().await.unwrap_err(),
        store.validate().await.unwrap_err(),
    ] {
        refused(&error, "table inbox is recorded as an inbox, not as an outbox");
    }

    assert_eq!(db.number("SELECT count(*) FROM outbox").await, 3);
    assert_eq!(db.number("SELECT count(*) FROM inbox").await, 1);
    assert_eq!(db.store().validate().await.unwrap(), []);
    drop(store);
    db.drop_everything().await;
}

/// What migrating an inbox up and down answers that has the outbox's name.
async fn inbox_on_the_outbox(db: &Db) -> [Error; 2] {
    async fn both<B: posthaste::Backend>(inbox: Inbox<B>) -> [Error; 2] {
        [inbox.migrate().await.unwrap_err(), inbox.migrate_down().await.unwrap_err()]
    }
    match db.handle() {
        Handle::Postgres(sql) => both(Inbox::postgres(sql.pool.clone(), "outbox").unwrap()).await,
        Handle::MySql(sql) => both(Inbox::mysql(sql.pool.clone(), "outbox").unwrap()).await,
        Handle::Sqlite(sql) => both(Inbox::sqlite(sql.pool.clone(), "outbox").unwrap()).await,
        Handle::Memory(_) => panic!("memory has no migrations"),
    }
}

fn refused(error: &Error, message: &str) {
    assert_eq!(error.kind(), &ErrorKind::SchemaMismatch);
    assert!(error.to_string().contains(message), "{error}");
}

async fn st3_printed_sql_makes_the_same_table(kind: Kind) {
    use posthaste::store::{Dialect, migration_sql};
    let db = Db::bare(kind, Setup::default()).await;
    let dialect = match kind {
        Kind::Postgres => Dialect::Postgres,
        Kind::MySql => Dialect::MySql,
        Kind::MariaDb => Dialect::MariaDb,
        _ => Dialect::Sqlite,
    };
    db.execute(migration_sql(dialect, &TableName::default(), 0)).await.unwrap();
    assert_eq!(db.store().validate().await.unwrap(), []);
    assert_eq!(db.store().migrate_up().await.unwrap(), NONE, "it has recorded itself");
    db.drop_everything().await;
}

async fn st2_any_number_of_tables_live_side_by_side(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    let mut names =
        vec!["org_outbox".to_owned(), "HRM_Outbox".to_owned(), "select".to_owned(), "a".repeat(40)];
    if kind != Kind::Sqlite {
        names.push(format!("{}.qualified", db.place()));
    }
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for name in &names {
        let store = connect(&db.url(), name).await.unwrap();
        assert_eq!(store.migrate_up().await.unwrap(), [1], "{name}");
        stores.push(store);
    }
    for (at, store) in stores.iter().enumerate() {
        let events: Vec<_> = (0..=at as u64).map(|n| event("a", n).build().unwrap()).collect();
        store.insert(&events).await.unwrap();
    }
    for (at, store) in stores.iter().enumerate() {
        assert_eq!(store.count(&Filter::all(), 100).await.unwrap().n, at as u64 + 1, "{}", store.table());
        assert_eq!(store.validate().await.unwrap(), [], "{}", store.table());
        let claimed = store.claim(&Claim::by(worker())).await.unwrap().events;
        assert_eq!(claimed.len(), at + 1, "{}", store.table());
    }
    stores[0].migrate_down(0).await.unwrap();
    assert_eq!(stores[1].count(&Filter::all(), 100).await.unwrap().n, 2);
    if kind == Kind::Sqlite {
        let error = connect(&db.url(), "main.outbox").await.err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::InvalidTableName);
    }
    drop(stores);
    db.drop_everything().await;
}

async fn st3_a_table_of_somebody_elses_is_not_taken_over(kind: Kind) {
    let db = Db::bare(kind, Setup::default()).await;
    for name in ["outbox", "inbox"] {
        db.execute(format!("CREATE TABLE {name} (mine INTEGER)")).await.unwrap();
        db.execute(format!("INSERT INTO {name} (mine) VALUES (1)")).await.unwrap();
    }
    db.store().migrate_up().await.unwrap_err();
    match db.handle() {
        Handle::Postgres(sql) => sql.inbox.migrate().await,
        Handle::MySql(sql) => sql.inbox.migrate().await,
        Handle::Sqlite(sql) => sql.inbox.migrate().await,
        Handle::Memory(_) => unreachable!(),
    }
    .unwrap_err();
    assert!(db.store().migrations().await.unwrap().iter().all(|state| state.applied_at.is_none()));
    for name in ["outbox", "inbox"] {
        assert_eq!(db.number(format!("SELECT count(*) FROM {name} WHERE mine = 1")).await, 1);
    }
    db.drop_everything().await;
}
