//! Tables come and go by migrations: once, whoever starts them, and as they should be.

use std::sync::Arc;

use posthaste::ErrorKind;
use posthaste::store::{Difference, Filter, Store, TableName, connect};

use crate::harness::{Db, Kind, Setup, event};

const NONE: [u32; 0] = [];

conformance_sql_by_kind!(
    st3_up_down_and_up_again,
    st3_racing_starters_apply_once,
    st3_validate_finds_what_differs,
    st3_a_newer_table_is_left_alone,
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
        if kind == Kind::MySql { "DROP INDEX outbox_claim ON outbox" } else { "DROP INDEX outbox_claim" };
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

async fn st3_printed_sql_makes_the_same_table(kind: Kind) {
    use posthaste::store::{Dialect, migration_sql};
    let db = Db::bare(kind, Setup::default()).await;
    let dialect = match kind {
        Kind::Postgres => Dialect::Postgres,
        Kind::MySql if db.texts("SELECT VERSION()").await[0].contains("MariaDB") => Dialect::MariaDb,
        Kind::MySql => Dialect::MySql,
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
        let store = connect(&db.url(), name.parse().unwrap()).await.unwrap();
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
    }
    stores[0].migrate_down(0).await.unwrap();
    assert_eq!(stores[1].count(&Filter::all(), 100).await.unwrap().n, 2);
    if kind == Kind::Sqlite {
        let error = connect(&db.url(), "main.outbox".parse().unwrap()).await.err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::InvalidTableName);
    }
    drop(stores);
    db.drop_everything().await;
}
