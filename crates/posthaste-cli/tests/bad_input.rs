//! What is refused: one clear line, the right exit code, nothing written.
//!
//! Rows of the contract: OP1, OP3, ST2, ST3.

use std::net::TcpListener;

use crate::support::{Db, Dir, Kind, answer, server_url};

on_databases!(op1_a_missing_table_is_exit_code_5, st3_a_table_of_a_newer_version_is_exit_code_5,);
on_servers!(op1_a_wrong_password_is_exit_code_4);

const KINDS: [Kind; 3] = [Kind::Postgres, Kind::MariaDb, Kind::Sqlite];

#[test]
fn op1_what_clap_cannot_read_is_usage() {
    let dir = Dir::new();
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["enqueue", "a"],
        &["enqueue", "a", "1", "--file", "b"],
        &["enqueue", "a", "--bytes-file", "b"],
        &["enqueue", "a", "1", "--delay", "soon"],
        &["enqueue", "a", "1", "--delay", "5m", "--available-at", "2999-01-31T12:00:00Z"],
        &["enqueue", "a", "1", "--aggregate", "order"],
        &["enqueue", "a", "1", "--header", "k"],
        &["events", "list", "--status", "lost"],
        &["events", "list", "--limit", "0"],
        &["events", "list", "--since", "yesterday"],
        &["migrate", "print", "--dialect", "oracle"],
    ] {
        let answer = dir.run(arguments.iter().copied()).exits(2);
        let helps = answer.err.contains("Usage: ") || answer.err.contains("'--help'");
        assert!(answer.out.is_empty() && helps, "{answer:?}");
        assert!(dir.is_empty(), "{arguments:?}");
    }
}

#[test]
fn st2_a_table_name_that_could_inject_is_refused() {
    for kind in KINDS {
        let db = Db::new(kind);
        db.run(["migrate", "up"]).exits(0);
        for name in ["outbox; DROP TABLE outbox", "outbox\" --", "outbox`x", "a.b.c", "", "1st", "'x'"] {
            for command in
                [&["migrate", "up"][..], &["enqueue", "a", "1"], &["events", "list"], &["migrate", "print"]]
            {
                db.run(["--table", name].into_iter().chain(command.iter().copied()))
                    .fails(3, "is not the name of a table");
            }
        }
        db.run(["migrate", "validate"]).exits(0);
    }
    let dir = Dir::new();
    dir.run(["--table", "a;b", "enqueue", "a", "1"]).fails(3, "is not the name of a table");
    dir.run(["--table", "shop.outbox", "enqueue", "a", "1"]).fails(3, "SQLite has no schemas");
    assert!(dir.is_empty());
}

#[test]
fn op1_a_bad_event_is_refused_before_the_database_is_touched() {
    let dir = Dir::new();
    let long = "x".repeat(129);
    let huge = format!("\"{}\"", "x".repeat(1024 * 1024));
    for (arguments, words) in [
        (&["enqueue", "a", "{"][..], "is not valid JSON"),
        (&["enqueue", "a", "hello"], "because: expected value"),
        (&["enqueue", "a", ""], "is not valid JSON"),
        (&["enqueue", "", "1"], "topic is empty"),
        (&["enqueue", &long, "1"], "topic has 129 characters"),
        (&["enqueue", "a\nb", "1"], "control character"),
        (&["enqueue", "a", "1", "--id", "7"], "neither a UUID nor a ULID"),
        (&["enqueue", "a", "1", "--version", "0"], "version 0"),
        (&["enqueue", "a", "1", "--header", "=x"], "empty key"),
        (&["enqueue", "a", "1", "--aggregate", "/"], "aggregate_type is empty"),
        (&["enqueue", "a", "1", "--tenant", "t", "--dedupe-key", "k"], "dedupe_key"),
        (&["enqueue", "a", "--file", "missing.json"], "cannot read missing.json"),
        (
            &["enqueue", "a", "--bytes-file", "missing.png", "--content-type", "image/png"],
            "cannot read missing.png",
        ),
        (&["events", "show", "7"], "neither a UUID nor a ULID"),
    ] {
        dir.run(arguments.iter().copied()).fails(3, words);
        assert!(dir.is_empty(), "{arguments:?}");
    }
    dir.run_with_input(["enqueue", "a", "-"], huge.as_bytes()).fails(3, "payload has 1048578 bytes");
    dir.run_with_input(["enqueue", "a", "-"], b"\"\xff\"").fails(3, "not UTF-8");
    assert!(dir.is_empty());
}

#[test]
fn op1_a_bad_event_is_not_written_to_any_database() {
    for kind in KINDS {
        let db = Db::new(kind);
        db.run(["migrate", "up"]).exits(0);
        db.run(["enqueue", "a", "{"]).fails(3, "is not valid JSON");
        db.run(["enqueue", "a", "1", "--version", "0"]).fails(3, "version 0");
        assert_eq!(db.sql(&format!("SELECT count(*) FROM {}", db.table())), "0");
    }
}

#[test]
fn op3_a_bad_url_is_refused_without_its_password() {
    let dir = Dir::new();
    for (url, words) in [
        ("oracle://user:s3cret@host/db", "\"oracle\" is no supported kind of database"),
        ("user:s3cret@host/db", "no supported kind"),
        ("s3cret", "has no scheme"),
        ("", "has no scheme"),
        ("postgres://user:s3cret@host:99999/db", "because: invalid port number"),
        ("mysql://user:s3cret@host:x/db", "because: invalid port number"),
        ("sqlite://s3cret.db?colour=red", "because: unknown query parameter `colour`"),
    ] {
        for command in [&["migrate", "up"][..], &["events", "list"], &["enqueue", "a", "1"]] {
            let answer = dir.run(["--database", url].into_iter().chain(command.iter().copied()));
            let answer = answer.fails(3, words);
            assert!(!answer.err.contains("s3cret"), "{answer:?}");
        }
    }
    assert!(dir.is_empty());
}

#[test]
fn op1_a_server_that_does_not_answer_is_exit_code_4() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = Db::new(Kind::Sqlite);
    let children = ["postgres", "mysql"].map(|scheme| {
        let url = format!("{scheme}://user:s3cret@{closed}/shop");
        dir.spawn(["--database", &url, "events", "list"])
    });
    for child in children {
        let answer = answer(child).fails(4, "cannot connect to");
        assert!(!answer.err.contains("s3cret"), "{answer:?}");
    }
    let nowhere = ["--database", "sqlite://no/such/directory/outbox.db", "migrate", "up"];
    dir.run(nowhere).fails(4, "there is no directory no/such/directory");
}

fn op1_a_wrong_password_is_exit_code_4(kind: Kind) {
    let db = Db::new(kind);
    let url = server_url(kind);
    let (user, server) = url.rsplit_once('@').unwrap();
    let (user, _) = user.rsplit_once(':').unwrap();
    let wrong = format!("{user}:s3cret@{server}");
    let answer =
        db.run(["--database", &wrong, "migrate", "up"]).fails(4, "check user, password and privileges");
    assert!(!answer.err.contains("s3cret"), "{answer:?}");
    let nowhere = format!("{url}_that_is_not_there");
    db.run(["--database", &nowhere, "events", "list"]).exits(4);
}

fn op1_a_missing_table_is_exit_code_5(kind: Kind) {
    let db = Db::new(kind);
    if kind == Kind::Sqlite {
        db.sql("CREATE TABLE other (id INTEGER)");
    }
    for command in [&["enqueue", "a", "1"][..], &["events", "list"]] {
        db.run(command.iter().copied())
            .fails(5, &format!("`posthaste migrate up --table {}` (same --database)", db.table()));
    }
    db.run(["events", "show", "0190a6b0-0000-7000-8000-000000000001"]).fails(5, "does not exist");
    db.run(["migrate", "validate"]).exits(5);
}

fn st3_a_table_of_a_newer_version_is_exit_code_5(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up"]).exits(0);
    let ledger = db.ledger();
    db.sql(&format!("INSERT INTO {ledger} (table_name, version, name) VALUES ('outbox', 99, 'later')"));
    db.run(["migrate", "up"]).fails(5, "is at migration 99");
    db.run(["migrate", "down", "--yes"]).fails(5, "has migration 99");
    db.run(["migrate", "validate"]).fails(5, "has migration 99");
    let status = db.run(["migrate", "status"]).exits(0);
    assert!(status.out.contains("99"), "{status:?}");
    assert_eq!(db.sql(&format!("SELECT count(*) FROM {ledger}")), "2");
}

#[test]
fn op1_a_read_only_file_is_exit_code_4() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.run(["enqueue", "a", "1"]).exits(0);
    let read_only = ["--database", "sqlite://outbox.db?mode=ro"];
    let with = |command: &[&'static str]| db.run(read_only.into_iter().chain(command.iter().copied()));
    with(&["enqueue", "a", "2"]).fails(4, "leave mode=ro and immutable out of --database");
    let down = with(&["migrate", "down", "--yes"]).exits(4);
    assert!(down.err.contains("read"), "{down:?}");
    assert_eq!(db.sql("SELECT count(*) FROM outbox"), "1");
    let listed = with(&["events", "list"]).exits(0);
    assert!(listed.out.contains("pending"), "{listed:?}");
}

#[test]
fn op1_an_answer_of_no_is_exit_code_1() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.run(["events", "show", "0190a6b0-0000-7000-8000-000000000001"]).fails(1, "has no event");
    db.sql("DROP INDEX outbox_claim");
    let differs = db.run(["migrate", "validate"]).exits(1);
    assert_eq!(differs.out, "table outbox: index outbox_claim is missing\n");
}
