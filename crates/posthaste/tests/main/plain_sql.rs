//! Other languages enqueue with one plain INSERT: tried with the databases' own clients, and with the Python
//! and Node programs of the documentation.
//!
//! Rows of the contract: ST4.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use posthaste::store::{Filter, Status};
use sqlx::mysql::MySqlConnectOptions;

use crate::harness::database::sqlite_file;
use crate::harness::servers::target;
use crate::harness::{Db, Kind, worker};

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/reference/plain_sql");

conformance_sql!(
    st4_the_databases_own_client_enqueues_with_topic_and_payload,
    st4_the_python_program_enqueues_with_its_data,
    st4_the_node_program_enqueues_with_its_data,
);

/// Runs SQL with `psql`, `mariadb` or `sqlite3`.
fn client(db: &Db, sql: &str) -> Output {
    let mut command = match db.kind() {
        Kind::Postgres => {
            let mut command = Command::new("psql");
            command.args([&db.url(), "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", "--command", sql]);
            command
        }
        Kind::MySql | Kind::MariaDb => {
            let url = db.url();
            let options: MySqlConnectOptions = url.parse().unwrap();
            let mut command = Command::new("mariadb");
            command
                .args(["--no-defaults", "--protocol=tcp", "--user=posthaste", "--password=posthaste"])
                .args([format!("--host={}", options.get_host()), format!("--port={}", options.get_port())])
                .args([db.place(), "--execute", sql]);
            command
        }
        _ => {
            let mut command = Command::new("sqlite3");
            command.arg("-bail").arg(sqlite_file(db.place())).arg(sql);
            command
        }
    };
    let program = command.get_program().to_string_lossy().into_owned();
    command
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; `cargo xtask services up` installs it"))
}

fn succeed(output: Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn st4_the_databases_own_client_enqueues_with_topic_and_payload(db: &Db) {
    succeed(client(
        db,
        r#"INSERT INTO outbox (topic, payload) VALUES ('order.placed.v1', '{"total":  "9.90"}')"#,
    ));
    succeed(client(db, "INSERT INTO outbox (topic, payload) VALUES ('a', '1'), ('b', '2'), ('c', '3')"));
    // What every column may be given, too.
    succeed(client(
        db,
        "INSERT INTO outbox (topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                             content_type, headers, payload_bytes, version)
         VALUES ('full', 'Full', 'order', '42', 'shop', 't1', 't1/42', 'text/plain', '{\"h\": \"v\"}', 'bytes', 3)",
    ));
    for bad in [
        "INSERT INTO outbox (topic, payload) VALUES ('a', '{oops')",
        "INSERT INTO outbox (topic, payload, dedupe_key, namespace) VALUES ('full', '1', 't1/42', 'shop')",
    ] {
        assert!(!client(db, bad).status.success(), "{bad}");
    }

    let claimed = db.claim(&worker(), 10).await;
    assert_eq!(claimed.len(), 5);
    let first = &claimed[0].event;
    assert_eq!((first.topic(), first.event_type()), ("order.placed.v1", "order.placed.v1"));
    assert_eq!(first.payload().as_json(), Some(r#"{"total":  "9.90"}"#));
    assert_eq!((first.namespace(), first.version()), ("default", 1));
    let now = db.store().now().await.unwrap();
    assert!((now - first.occurred_at().unwrap()).abs() < time::Duration::MINUTE);
    for claimed in &claimed {
        let id = claimed.event.id();
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122), "{id}");
        let (seconds, _) = id.get_timestamp().unwrap().to_unix();
        assert!(now.unix_timestamp().abs_diff(seconds as i64) < 60, "{id} is not of now");
        assert_eq!(claimed.lease.attempt(), 1);
    }
    let mut ids: Vec<_> = claimed.iter().map(|claimed| claimed.event.id()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
    let full = &claimed[4].event;
    assert_eq!((full.event_type(), full.aggregate_id(), full.tenant_id()), ("Full", Some("42"), Some("t1")));
    assert_eq!((full.payload().content_type(), full.payload().bytes()), ("text/plain", &b"bytes"[..]));
    assert_eq!((full.headers()["h"].as_str(), full.version()), ("v", 3));
}

async fn st4_the_python_program_enqueues_with_its_data(db: &Db) {
    if !answers(&["python3", "-c", "import venv, ensurepip"], "the Python program") {
        return;
    }
    let venv = prepare("python", &["requirements.txt", "enqueue.py"], |place| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(place.join("venv")));
        run(Command::new(place.join("venv/bin/pip"))
            .args(["install", "--quiet", "--requirement"])
            .arg(Path::new(PROGRAMS).join("requirements.txt")));
    });
    let program = |arguments: &[&str]| {
        let mut command = Command::new(venv.join("venv/bin/python"));
        command.arg(Path::new(PROGRAMS).join("enqueue.py")).args(arguments);
        command
    };
    enqueues_with_its_data(db, program).await;
}

async fn st4_the_node_program_enqueues_with_its_data(db: &Db) {
    if !answers(&["npm", "--version"], "the Node program") {
        return;
    }
    let place = prepare("node", &["package.json", "enqueue.mjs"], |place| {
        for file in ["package.json", "enqueue.mjs"] {
            std::fs::copy(Path::new(PROGRAMS).join(file), place.join(file)).unwrap();
        }
        run(Command::new("npm").args(["install", "--no-audit", "--no-fund", "--silent"]).current_dir(place));
    });
    let program = |arguments: &[&str]| {
        let mut command = Command::new("node");
        command.arg(place.join("enqueue.mjs")).args(arguments);
        command
    };
    enqueues_with_its_data(db, program).await;
}

/// An order and its event are written together, or not at all.
async fn enqueues_with_its_data(db: &Db, program: impl Fn(&[&str]) -> Command) {
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total VARCHAR(20) NOT NULL)").await.unwrap();
    let place = match db.kind() {
        Kind::Sqlite => sqlite_file(db.place()).display().to_string(),
        _ => db.url(),
    };
    let payload = r#"{"order": 42, "total": "9.90", "note": "Zoë 'quoted'"}"#;
    run(&mut program(&[&place, "order.placed.v1", payload]));
    run(&mut program(&[&place, "order.placed.v1", r#"{"order": 43, "total": "1.00"}"#, "--rollback"]));
    // The order is there already: neither it nor its event is written again.
    let again = program(&[&place, "order.placed.v1", payload]).output().unwrap();
    assert!(!again.status.success(), "the same order twice");
    // An event that the table refuses takes its order with it.
    let broken = program(&[&place, "", r#"{"order": 44, "total": "1.00"}"#]).output().unwrap();
    assert!(!broken.status.success(), "an empty topic");

    assert_eq!(db.number("SELECT count(*) FROM orders").await, 1);
    assert_eq!(db.store().count(&Filter::status(Status::Pending), 10).await.unwrap().n, 1);
    let event = db.claim(&worker(), 10).await.remove(0).event;
    assert_eq!((event.topic(), event.payload().as_json()), ("order.placed.v1", Some(payload)));
    assert_eq!(event.id().get_version_num(), 7);
}

/// Whether the interpreter is there; where it is not a visible line says so.
fn answers(words: &[&str], what: &str) -> bool {
    let there = Command::new(words[0]).args(&words[1..]).output().is_ok_and(|output| output.status.success());
    if !there {
        println!("NOT TESTED: `{}` fails on this machine, so {what} is not tried", words.join(" "));
    }
    there
}

/// Makes a directory below `target/` once for all tests, whatever their process, and again when its inputs
/// change.
fn prepare(name: &str, inputs: &[&str], make: impl FnOnce(&Path)) -> PathBuf {
    let place = target().join("plain_sql").join(name);
    std::fs::create_dir_all(&place).unwrap();
    let lock = std::fs::File::create(place.join("lock")).unwrap();
    lock.lock().unwrap();
    let read = |input: &&str| std::fs::read_to_string(Path::new(PROGRAMS).join(input)).unwrap();
    let wanted: String = inputs.iter().map(read).collect();
    let stamp = place.join("made-from");
    if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&wanted) {
        make(&place);
        std::fs::write(&stamp, wanted).unwrap();
    }
    place
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
