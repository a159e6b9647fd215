//! `doctor`: what it says of a healthy table, of each fault, and how it ends.
//!
//! The servers are shared: what is old on one of them may be another test's. So what is said of old transactions counts
//! only where this test has made one.
//!
//! Rows of the contract: OP10.

use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::private::Server;
use crate::support::{Answer, Db, Dir, Kind, server_url};

on_databases!(op10_a_missing_index_is_named);
in_both_modes!(op10_a_healthy_table_is_said_to_be_so, op10_due_events_that_nobody_takes_are_named,);

/// Findings about the table and not about the server, each with its check, verdict and words.
fn own(report: &Value) -> Vec<(&str, &str, &str)> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|finding| (text(&finding["check"]), text(&finding["verdict"]), text(&finding["found"])))
        .filter(|(check, ..)| *check != "old-transactions")
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// The only finding of a check; whatever is not in order says what to do.
#[track_caller]
fn one(report: &Value, check: &str) -> Value {
    let findings = report["findings"].as_array().unwrap();
    let found: Vec<&Value> = findings.iter().filter(|finding| finding["check"] == check).collect();
    assert_eq!(found.len(), 1, "{check}: {report:#}");
    assert_eq!(found[0]["advice"].is_string(), found[0]["verdict"] != "ok", "{report:#}");
    found[0].clone()
}

/// Digits that differ from run to run.
fn without_figures(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_digit() && shown.ends_with('N') => {}
            c if c.is_ascii_digit() => shown.push('N'),
            '.' if shown.ends_with('N') => {}
            c => shown.push(c),
        }
    }
    shown
}

fn op10_a_healthy_table_is_said_to_be_so(kind: Kind, mode: &str) {
    let db = Db::new(kind);
    db.run(["migrate", "up", "--mode", mode]).exits(0);
    let answer = db.run(["doctor", "--json"]);
    let report = answer.json();
    assert_eq!(report["table"], db.table());
    for (check, verdict, found) in own(&report) {
        assert!(["ok", "note"].contains(&verdict), "{kind:?} {mode} {check}: {found}");
    }
    let of_mode = if mode == "queue" { "leases" } else { "lanes" };
    for check in ["database", "migrations", "cleanup", "relay", of_mode, "dead-letters", "clock"] {
        one(&report, check);
    }
    assert_eq!(answer.code, i32::from(report["healthy"] == false));
    if kind == Kind::Sqlite {
        assert_eq!(report["healthy"], true);
    }
}

#[test]
fn op10_what_is_in_order_has_one_line_each() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    let answer = db.run(["doctor"]).exits(0);
    let expected = "\
ok      SQLite N answers in N ms
ok      migrations are current (N)
ok      the write-ahead log is small (N KiB)
ok      nothing is due
ok      no orphaned leases (N held)
ok      no dead letters
ok      clock skew N ms
table outbox is healthy
";
    assert_eq!(without_figures(&answer.out), expected);
    assert_eq!(answer.err, "");
}

#[test]
fn op10_a_terminal_is_shown_signs_and_colours_unless_it_wants_none() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    db.run(["enqueue", "a", "1", "--available-at", "2020-01-01T00:00:00Z"]).exits(0);
    let show = |no_color: Option<&str>| {
        let mut command = db.command(["doctor"]);
        match no_color {
            Some(value) => command.env("NO_COLOR", value),
            None => command.env_remove("NO_COLOR"),
        };
        Dir::run_on_screen(command, 200).exits(1).out
    };
    let coloured = show(None);
    assert!(coloured.starts_with("\x1b[31m✗\x1b[0m nobody delivers: "), "{coloured}");
    assert!(coloured.contains("\n\x1b[32m✓\x1b[0m migrations are current"), "{coloured}");
    assert!(show(Some("")).starts_with("\x1b[31m"), "an empty variable says nothing");
    let plain = show(Some("1"));
    assert!(
        plain.starts_with("✗ nobody delivers: 1 event is due and held by nobody, the oldest for "),
        "{plain}"
    );
    assert!(
        plain.contains("\n  Start a relay ") && plain.contains("(docs: operate/why-nothing-moves#"),
        "{plain}"
    );
    assert!(
        plain.ends_with("\ntable outbox is not healthy: 1 fault\n") && !plain.contains('\x1b'),
        "{plain}"
    );
}

fn op10_due_events_that_nobody_takes_are_named(kind: Kind, mode: &str) {
    let db = Db::new(kind);
    db.run(["migrate", "up", "--mode", mode]).exits(0);
    db.run(["enqueue", "a", "1", "--available-at", "2020-01-01T00:00:00Z"]).exits(0);
    let report = db.run(["doctor", "--json"]).exits(1).json();
    let finding = one(&report, "relay");
    assert_eq!(finding["verdict"], "fault");
    let found = finding["found"].as_str().unwrap();
    assert!(found.starts_with("nobody delivers: ") && found.contains("1 event is "), "{found}");
    assert_eq!(finding["page"], "operate/why-nothing-moves#nobody-delivers");
    assert_eq!((&report["healthy"], &finding["sink"]), (&Value::Bool(false), &Value::Null));
}

fn op10_a_missing_index_is_named(kind: Kind) {
    let db = Db::new(kind);
    db.run(["migrate", "up"]).exits(0);
    let index = match kind {
        Kind::Postgres => db.table().replace(".outbox", ".outbox_claim"),
        Kind::MySql | Kind::MariaDb => "outbox_claim ON outbox".to_owned(),
        Kind::Sqlite => "outbox_claim".to_owned(),
    };
    db.sql(&format!("DROP INDEX {index}"));
    let answer = db.run(["doctor"]).exits(1);
    let first = answer.out.lines().next().unwrap();
    assert!(
        first.starts_with("fault   table ") && first.contains("index outbox_claim is missing"),
        "{first}"
    );
}

/// Demands that only the database, or the table, is said to be the matter.
#[track_caller]
fn says(answer: Answer, code: i32, words: &str) {
    let answer = answer.exits(code);
    let first = answer.out.lines().next().unwrap();
    assert!(first.starts_with("fault   ") && first.contains(words), "not {words:?}: {answer:?}");
    assert!(answer.out.ends_with(" is not healthy: 1 fault\n") && answer.err.is_empty(), "{answer:?}");
}

#[test]
fn op10_that_database_or_table_are_not_there_has_an_exit_code_of_its_own() {
    let dir = Dir::new();
    says(dir.run(["doctor"]), 5, "there is no database file posthaste.db");
    assert!(dir.is_empty(), "looking makes nothing");
    let json = dir.run(["doctor", "--json"]).exits(5).json();
    assert_eq!(one(&json, "database")["verdict"], "fault");

    let db = Db::new(Kind::Sqlite);
    db.sql("CREATE TABLE orders (id)");
    says(db.run(["doctor"]), 5, "table outbox does not exist");
    for kind in [Kind::Postgres, Kind::MySql, Kind::MariaDb] {
        let db = Db::new(kind);
        let report = db.run(["doctor", "--json"]).exits(5).json();
        assert_eq!(one(&report, "migrations")["found"], format!("table {} does not exist", db.table()));
    }

    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://user:s3cr3t@127.0.0.1:{port}/shop");
        let answer = dir.run(["--database", &url, "doctor"]);
        assert!(!answer.out.contains("s3cr3t"), "{answer:?}");
        says(answer, 4, &format!("127.0.0.1:{port} for table outbox"));
    }
    for kind in [Kind::Postgres, Kind::MySql, Kind::MariaDb] {
        let url = server_url(kind);
        let (user, rest) = url.split_once("://").unwrap().1.split_once('@').unwrap();
        let (user, scheme) = (user.split(':').next().unwrap(), url.split("://").next().unwrap());
        let answer = dir.run(["--database", &format!("{scheme}://{user}:wrong@{rest}"), "doctor"]);
        says(answer, 4, "cannot connect to ");
    }
    // What cannot be understood is no finding.
    dir.run(["--database", "oracle://db", "doctor"]).fails(3, "oracle");
    dir.run(["doctor", "--old-transaction", "long"]).exits(2);
}

#[test]
fn op10_a_pinned_xmin_is_named() {
    // Others' old transactions are not to be told of before this one.
    let (server, dir, name) = (Server::postgres(), Dir::new(), "report-of-the-quarter");
    let url = server.url();
    let run = |arguments: &[&str]| dir.run(arguments.iter().copied().chain(["--database", &url]));
    run(&["migrate", "up"]).exits(0);
    let mut report = Command::new("psql");
    report.args([&url, "-qAtX"]).env("PGAPPNAME", name);
    let mut report = report.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = report.stdin.take().unwrap();
    writeln!(input, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox;").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let line = loop {
        let answer = run(&["doctor", "--old-transaction", "0s"]);
        let line = answer.out.lines().find(|line| line.contains(name)).map(str::to_owned);
        if let Some(line) = line.filter(|line| line.contains("\"idle in transaction\"")) {
            assert_eq!(answer.code, 1);
            break line;
        }
        assert!(Instant::now() < deadline, "it is never named: {answer:?}");
    };
    assert!(line.starts_with("fault   an old transaction holds back cleanup: pid "), "{line}");
    assert!(!run(&["doctor"]).out.contains(name), "it is not old by itself");
    drop(input);
    report.wait().unwrap();
}

#[test]
fn op10_sinks_of_the_configuration_are_asked_and_an_unreachable_broker_is_named() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    // Nothing listens there: the port was somebody's a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = format!(
        r#"
        [sinks.broker]
        kind = "nats"
        url = "${{NATS}}"
        stream = "TO_COME"
        create_stream = true
        [sinks.hook]
        kind = "http"
        url = "http://{closed}/hook"
        [sinks.spool]
        kind = "file"
        path = "not-made.jsonl"
        [[routes]]
        topics = "order.*"
        sink = "broker"
        [[routes]]
        topics = "spool.*"
        sink = "spool"
        [[routes]]
        sink = "hook"
        "#
    );
    // A server without any stream, as it is on the first day.
    let broker = Server::nats();
    let asked = |file: &str| {
        db.dir.write("posthaste.toml", file);
        Answer::from(db.command(["doctor"]).env("NATS", broker.url()).output().unwrap()).exits(1)
    };
    let answer = asked(&file);
    assert!(answer.out.contains("ok      sink broker is reachable ("), "{}", answer.out);
    assert!(answer.out.contains("fault   sink hook "), "{}", answer.out);
    assert!(!db.dir.path().join("not-made.jsonl").exists(), "a doctor changes nothing");
    let answer = asked(&file.replace("create_stream = true", ""));
    assert!(answer.out.contains("there is no stream \"TO_COME\""), "it changes nothing: {}", answer.out);

    db.dir.write("posthaste.toml", "[sinks.broker]\nkind = \"nats\"\n");
    let answer = db.run(["doctor"]).exits(1);
    assert!(answer.out.contains("fault   the configuration has mistakes (1): "), "{}", answer.out);
    assert!(answer.out.contains("posthaste config check"), "{}", answer.out);
}

#[test]
fn op10_every_table_of_the_configuration_is_looked_at() {
    let db = Db::new(Kind::Sqlite);
    db.dir.write("posthaste.toml", "[relay]\ntables = [\"orders_outbox\", \"billing_outbox\"]\n");
    let configured = |arguments: &[&str]| {
        let mut command = db.dir.command(arguments.iter().copied());
        Answer::from(command.args(["--database", &db.url()]).output().unwrap())
    };
    configured(&["migrate", "up"])
        .fails(3, "several tables (orders_outbox, billing_outbox); say which with --table");
    configured(&["migrate", "up", "--table", "orders_outbox"]).exits(0);
    let answer = configured(&["doctor"]).exits(5);
    assert!(answer.out.contains("table orders_outbox is healthy"), "{}", answer.out);
    assert!(answer.out.contains("table billing_outbox is not healthy: 1 fault"), "{}", answer.out);
    configured(&["migrate", "up", "--table", "billing_outbox"]).exits(0);
    let reports = configured(&["doctor", "--json"]).exits(0).json();
    assert_eq!(reports.as_array().unwrap().len(), 2);
    let statuses = configured(&["status", "--json"]).exits(0).json();
    assert_eq!(statuses[1]["table"], "billing_outbox");
    db.dir.write("posthaste.toml", "[relay]\ntables = [\"orders_outbox\"]\n");
    assert_eq!(configured(&["status", "--json"]).exits(0).json()["table"], "orders_outbox");
}

#[test]
fn op10_a_broker_that_is_away_is_named_by_its_address_alone() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let db = Db::with_table(Kind::Sqlite, "queue");
    let url = format!("sinks.broker.url=nats://shop:hunter22@{closed}");
    let settings =
        ["--set", "sinks.broker.kind=nats", "--set", &url, "--set", "sinks.broker.connect_timeout=200ms"];
    let answer = db.run(settings.into_iter().chain(["doctor"])).exits(1);
    assert!(answer.out.contains(&format!("not connected to NATS at {closed}")), "{answer:?}");
    assert!(!answer.out.contains("hunter22") && !answer.err.contains("hunter22"), "{answer:?}");
}
