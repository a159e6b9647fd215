//! What is wrong is said clearly, and nothing is half-written.
//!
//! Rows of the contract: EV2, EV4, ST1, ST4.

use posthaste::store::{Claim, Dialect, Filter, connect};
use posthaste::{ErrorKind, Event};

use crate::harness::{Db, Kind, Setup, event, worker};

conformance!(ev4_payloads_over_the_limit_are_refused_before_the_database);

conformance_sql!(
    st4_invalid_json_by_plain_sql_is_refused,
    st4_rows_that_cannot_be_events_are_refused,
    st1_a_missing_table_is_said_to_be_missing,
    st1_a_table_of_another_shape_is_said_to_be_so,
    st1_a_read_only_database_is_said_to_be_so,
    a_failed_enqueue_leaves_nothing_half_written,
);

async fn ev4_payloads_over_the_limit_are_refused_before_the_database(db: &Db) {
    let large = Event::json("a", &"x".repeat(1024 * 1024)).unwrap();
    let mut tx = db.begin().await;
    let error = tx.enqueue(db, large.clone()).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PayloadTooLarge { limit: 1 << 20, size: (1 << 20) + 2 });
    tx.commit().await;
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 0);
    // The limit can be raised, and then that much really fits.
    let roomy = Db::with(db.kind(), Setup { max_payload: Some(4 << 20), ..Setup::default() }).await;
    let mut tx = roomy.begin().await;
    tx.enqueue(&roomy, large).await.unwrap();
    tx.commit().await;
    assert_eq!(roomy.claim(&worker(), 1).await[0].event.payload().bytes().len(), (1 << 20) + 2);
    roomy.drop_everything().await;
}

async fn st4_invalid_json_by_plain_sql_is_refused(db: &Db) {
    for sql in [
        "INSERT INTO outbox (topic, payload) VALUES ('a', '{broken')",
        "INSERT INTO outbox (topic, payload) VALUES ('a', '')",
        "INSERT INTO outbox (topic, payload, headers) VALUES ('a', '{}', 'x=y')",
        "INSERT INTO outbox (topic, payload, headers) VALUES ('a', '{}', '[1]')",
    ] {
        assert!(db.execute(sql).await.is_err(), "{sql}");
    }
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 0);
}

async fn st4_rows_that_cannot_be_events_are_refused(db: &Db) {
    for sql in [
        "INSERT INTO outbox (payload) VALUES ('{}')",
        "INSERT INTO outbox (topic) VALUES ('a')",
        "INSERT INTO outbox (topic, payload) VALUES ('', '{}')",
        "INSERT INTO outbox (topic, payload, payload_bytes) VALUES ('a', '{}', 'bytes')",
        "INSERT INTO outbox (topic, payload, attempts) VALUES ('a', '{}', -1)",
        "INSERT INTO outbox (topic, payload, outcome) VALUES ('a', '{}', 'lost')",
        "INSERT INTO outbox (topic, payload, id) VALUES ('a', '{}', NULL)",
    ] {
        assert!(db.execute(sql).await.is_err(), "{sql}");
    }
    assert!(
        db.execute(format!("INSERT INTO outbox (topic, payload) VALUES ('{}', '1')", "x".repeat(129)))
            .await
            .is_err()
    );
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 0);
}

async fn st1_a_missing_table_is_said_to_be_missing(db: &Db) {
    db.store().migrate_down(0).await.unwrap();
    let mut tx = db.begin().await;
    let enqueue = tx.enqueue(db, event("a", 1)).await.unwrap_err();
    tx.rollback().await;
    let store = db.store();
    for error in [
        enqueue,
        store.claim(&Claim::by(worker())).await.unwrap_err(),
        store.count(&Filter::all(), 1).await.unwrap_err(),
        store.stats(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::TableMissing);
        assert!(!error.is_transient());
        assert!(error.to_string().contains("table outbox does not exist"), "{error}");
        assert!(error.to_string().contains("posthaste migrate up"), "{error}");
    }
}

async fn st1_a_table_of_another_shape_is_said_to_be_so(db: &Db) {
    db.execute("DROP VIEW outbox_status").await.unwrap();
    db.execute("ALTER TABLE outbox DROP COLUMN tenant_id").await.unwrap();
    let mut tx = db.begin().await;
    let enqueue = tx.enqueue(db, event("a", 1)).await.unwrap_err();
    tx.rollback().await;
    for error in [enqueue, db.store().claim(&Claim::by(worker())).await.unwrap_err()] {
        assert_eq!(error.kind(), &ErrorKind::SchemaMismatch, "{error}");
        assert!(error.to_string().contains("posthaste migrate"), "{error}");
    }
}

async fn st1_a_read_only_database_is_said_to_be_so(db: &Db) {
    db.enqueue_numbers("a", 0..1).await;
    let url = match db.kind() {
        Kind::Postgres => format!("{}%20-cdefault_transaction_read_only%3Don", db.url()),
        Kind::Sqlite => format!("{}?mode=ro", db.url()),
        _ => db.url(),
    };
    if db.kind().is_mysql() {
        // No URL says read-only here; a transaction can.
        use crate::harness::database::Handle;
        let Handle::MySql(sql) = db.handle() else { unreachable!() };
        let mut tx = sql.pool.begin_with("START TRANSACTION READ ONLY").await.unwrap();
        let error = sql.outbox.enqueue(&mut tx, event("a", 1)).await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::ReadOnly, "{error}");
        return;
    }
    let store = connect(&url, "outbox").await.unwrap();
    assert_eq!(store.count(&Filter::all(), 10).await.unwrap().n, 1, "it can be read");
    for error in [
        store.insert(&[event("a", 1).build().unwrap()]).await.unwrap_err(),
        store.claim(&Claim::by(worker())).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), &ErrorKind::ReadOnly, "{error}");
        assert!(error.to_string().contains("outbox"), "{error}");
    }
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 1);
}

async fn a_failed_enqueue_leaves_nothing_half_written(db: &Db) {
    // The second of two is refused by a rule of the table that events know nothing of.
    let rule = match db.kind() {
        Kind::Sqlite => {
            "CREATE TRIGGER no_thirteen BEFORE INSERT ON outbox WHEN NEW.payload = '13'
             BEGIN SELECT raise(ABORT, 'thirteen'); END"
        }
        _ => "ALTER TABLE outbox ADD CONSTRAINT no_thirteen CHECK (version <> 13)",
    };
    db.execute(rule).await.unwrap();
    let mut tx = db.begin().await;
    let error = tx
        .enqueue_all(db, [event("a", 1), event("a", 13).version(13).header("secret", "hunter2")])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Constraint, "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "the row's values stay out of it: {error:?}");
    tx.rollback().await;
    assert_eq!(db.store().count(&Filter::all(), 10).await.unwrap().n, 0);
}

/// MariaDB's own limit, which no other database has: said as such.
#[tokio::test]
async fn ev2_json_nested_too_deep_for_mariadb_is_a_clear_error() {
    let db = Db::new(Kind::MariaDb).await;
    let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
    let mut tx = db.begin().await;
    let error = tx.enqueue(&db, Event::builder("a").json_text(deep).unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PayloadNotJson);
    assert!(error.to_string().contains("31 levels"), "{error}");
    tx.rollback().await;
    db.drop_everything().await;
}

#[tokio::test]
async fn st1_the_url_says_which_database() {
    for (url, dialect) in [
        ("postgres://h/db", Dialect::Postgres),
        ("postgresql://h/db", Dialect::Postgres),
        ("mysql://h/db", Dialect::MySql),
        ("mariadb://h/db", Dialect::MariaDb),
        ("sqlite://file.db", Dialect::Sqlite),
        ("SQLITE:file.db", Dialect::Sqlite),
    ] {
        assert_eq!(Dialect::of_url(url).unwrap(), dialect);
    }
    for url in ["oracle://u:secret@h/db", "secret", "", "redis://x", "://secret"] {
        let error = connect(url, "outbox").await.err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::UnknownDatabase, "{url}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(error.to_string().contains("sqlite://"), "{error}");
    }
}

/// A server that accepts and says nothing: whoever waits for it is told so, within 10 s.
#[tokio::test]
async fn st1_a_silent_server_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("postgres://u:hunter2@{}/db", listener.local_addr().unwrap());
    let error = connect(&url, "outbox").await.err().unwrap();
    assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
    let port = listener.local_addr().unwrap().port().to_string();
    assert!(error.to_string().contains("no answer") && error.to_string().contains(&port), "{error}");
}

#[tokio::test]
async fn st1_a_wrong_url_is_a_clear_error_without_the_password() {
    // Nothing listens on port 1; the password must not appear anywhere in what is printed.
    for url in [
        "postgres://u:hunter2@127.0.0.1:1/db",
        "mysql://u:hunter2@127.0.0.1:1/db",
        "sqlite:///no/such/directory/x.db",
    ] {
        let error = connect(url, "outbox").await.err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
        assert!(error.is_transient());
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        assert!(error.to_string().contains("outbox"), "{error}");
    }
    let wrong_password = crate::harness::servers::setting("POSTHASTE_TEST_POSTGRES_URL")
        .replace("posthaste:posthaste@", "posthaste:hunter2@");
    let wrong_mysql = ["POSTHASTE_TEST_MYSQL_URL", "POSTHASTE_TEST_MARIADB_URL"].map(|variable| {
        crate::harness::servers::setting(variable).replace("posthaste:posthaste@", "posthaste:hunter2@")
    });
    for url in wrong_mysql.into_iter().chain([wrong_password]) {
        let error = connect(&url, "outbox").await.err().unwrap();
        assert_eq!(error.kind(), &ErrorKind::AccessDenied, "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}
