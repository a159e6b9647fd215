//! A newcomer in an empty directory: the embedded database, and the exit codes on the way.
//!
//! Rows of the contract: OP1, OP3.

use serde_json::json;

use crate::support::Dir;

#[test]
fn op1_the_first_event_creates_the_database() {
    let dir = Dir::new();
    let answer =
        dir.run(["enqueue", "order.placed.v1", r#"{"total":"9.90"}"#, "--aggregate", "order/42"]).exits(0);
    assert!(answer.err.contains("created posthaste.db"), "{answer:?}");
    assert!(answer.out.starts_with("enqueued ") && answer.out.contains("sequence 1"), "{answer:?}");

    let listed = dir.run(["events", "list"]).exits(0);
    assert!(listed.out.contains("order.placed.v1") && listed.out.contains("order/42"), "{listed:?}");
    assert_eq!(listed.out.lines().count(), 2, "{listed:?}");

    let again = dir.run(["enqueue", "order.placed.v1", "1", "--list"]).exits(0);
    assert!(!again.err.contains("created") && again.out.contains("SEQ"), "{again:?}");
    assert_eq!(again.out.lines().filter(|line| line.contains("pending")).count(), 2, "{again:?}");
}

#[test]
fn op1_every_option_of_enqueue_arrives() {
    let dir = Dir::new();
    let id = "0190a6b0-0000-7000-8000-000000000001";
    let arguments = [
        "enqueue",
        "order.placed.v1",
        r#"{"b":1, "a":2}"#,
        "--id",
        id,
        "--event-type",
        "placed",
        "--aggregate",
        "order/4/2",
        "--namespace",
        "shop",
        "--tenant",
        "acme",
        "--dedupe-key",
        "acme/42",
        "--header",
        "a=1",
        "--header",
        "b=x=y",
        "--version",
        "3",
        "--available-at",
        "2999-01-31T12:00:00+01:00",
        "--json",
    ];
    let first = dir.run(arguments).exits(0).json();
    assert_eq!(first, json!({ "id": id, "sequence": 1, "duplicate": false }));
    let second = dir.run(arguments).exits(0).json();
    assert_eq!(second, json!({ "id": id, "sequence": 1, "duplicate": true }));
    let said = dir.run(arguments.into_iter().filter(|a| *a != "--json")).exits(0).out;
    assert!(
        said.starts_with(&format!("duplicate of {id}")) && said.contains("nothing was written"),
        "{said}"
    );

    let shown = dir.run(["events", "show", id, "--json"]).exits(0).json();
    let expected = json!({
        "id": id, "sequence": 1, "status": "pending", "attempts": 0, "topic": "order.placed.v1",
        "event_type": "placed", "aggregate_type": "order", "aggregate_id": "4/2", "namespace": "shop",
        "tenant_id": "acme", "dedupe_key": "acme/42", "version": 3, "headers": { "a": "1", "b": "x=y" },
        "available_at": "2999-01-31T11:00:00Z", "settled_at": null, "locked_by": null, "locked_until": null,
        "last_error": null, "content_type": "application/json", "payload_size": 14, "payload": { "a": 2, "b": 1 },
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(shown.get(field), Some(value), "{field}");
    }
    assert!(shown["created_at"].is_string() && shown["occurred_at"].is_string(), "{shown}");
}

#[test]
fn op1_a_payload_comes_from_anywhere() {
    let dir = Dir::new();
    dir.write("payload.json", "{\"from\": \"file\"}\n");
    dir.write("picture.png", [0, 159, 146, 150]);
    dir.run_with_input(["enqueue", "a", "-"], b"{\"from\": \"input\"}\n").exits(0);
    dir.run(["enqueue", "b", "--file", "payload.json"]).exits(0);
    dir.run(["enqueue", "c", "--bytes-file", "picture.png", "--content-type", "image/png"]).exits(0);
    dir.run(["enqueue", "d", "-5"]).exits(0);

    let events = dir.run(["events", "list", "--json", "--oldest-first"]).exits(0).json();
    let payload = |at: usize| {
        let id = events[at]["id"].as_str().unwrap().to_owned();
        (
            dir.run(["events", "show", &id]).exits(0).out,
            dir.run(["events", "show", &id, "--json"]).exits(0).json(),
        )
    };
    assert_eq!(payload(0).1["payload"], json!({ "from": "input" }));
    assert!(
        payload(1).0.ends_with("application/json, 16 bytes\n\n{\"from\": \"file\"}\n"),
        "{}",
        payload(1).0
    );
    assert!(payload(2).0.ends_with("image/png, 4 bytes\n"), "{}", payload(2).0);
    assert_eq!(payload(2).1["payload"], json!(null));
    assert_eq!(payload(3).1["payload"], json!(-5));
}

#[test]
fn op1_a_delay_is_shown() {
    let dir = Dir::new();
    let listed = dir.run(["enqueue", "later", "1", "--delay", "2h", "--list"]).exits(0);
    assert!(listed.out.contains("pending, in 2h"), "{listed:?}");
}

#[test]
fn op1_looking_creates_nothing() {
    let dir = Dir::new();
    for arguments in [
        &["events", "list"][..],
        &["events", "show", "0190a6b0-0000-7000-8000-000000000001"],
        &["migrate", "status"],
        &["migrate", "validate"],
        &["migrate", "down", "--yes"],
        &["--database", "sqlite://other.db", "enqueue", "a", "1"],
        &["--database", "sqlite:other.db?mode=rwc", "events", "list"],
    ] {
        dir.run(arguments.iter().copied()).fails(5, "`posthaste migrate up --table outbox`");
        assert!(dir.is_empty(), "{arguments:?}");
    }
}

#[test]
fn op1_a_reader_that_has_gone_ends_it_quietly() {
    let dir = Dir::new();
    dir.run(["enqueue", "a", "1"]).exits(0);
    for arguments in [&["events", "list"][..], &["events", "list", "--json"], &["migrate", "print"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = dir.command(arguments.iter().copied()).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{arguments:?}");
    }
}

#[test]
fn op1_help_documents_the_exit_codes_and_shows_no_secret() {
    let dir = Dir::new();
    let mut command = dir.command(["--help"]);
    command.env("OUTBOX_DATABASE_URL", "postgres://user:s3cret@localhost/shop");
    let help = String::from_utf8(command.output().unwrap().stdout).unwrap();
    assert!(help.contains("OUTBOX_DATABASE_URL") && !help.contains("s3cret"), "{help}");
    for code in 0..=6 {
        assert!(help.contains(&format!("\n  {code}  ")), "{code}: {help}");
    }
}

#[test]
fn op3_an_empty_variable_is_one_that_is_not_set() {
    let dir = Dir::new();
    let mut command = dir.command(["enqueue", "a", "1"]);
    command.env("OUTBOX_DATABASE_URL", "");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(dir.path().join("posthaste.db").exists());
}

#[test]
fn op3_a_mistyped_table_is_not_made() {
    let dir = Dir::new();
    for command in [&["enqueue", "a", "1"][..], &["relay"], &["events", "list"]] {
        let answer = dir.run(["--table", "outbx"].into_iter().chain(command.iter().copied())).exits(5);
        assert!(answer.err.contains("`posthaste migrate up --table outbx`"), "{answer:?}");
        assert!(dir.is_empty(), "{command:?}");
    }
    dir.run(["enqueue", "a", "1"]).exits(0);
    let near = "table outbx does not exist; did you mean --table outbox? Else create it with `posthaste migrate up --table outbx`";
    for command in [&["enqueue", "a", "1"][..], &["relay"], &["events", "list"], &["status"]] {
        let answer = dir.run(["--table", "outbx"].into_iter().chain(command.iter().copied())).exits(5);
        assert!(answer.err.contains(near) && answer.out.is_empty(), "{answer:?}");
    }
    let other = dir.run(["--table", "billing", "enqueue", "a", "1"]).exits(5);
    assert!(other.err.contains("this database has the outbox table outbox: --table outbox."), "{other:?}");
    dir.run(["--table", "billing", "migrate", "up"]).exits(0);
    dir.run(["--table", "billing", "enqueue", "a", "1"]).exits(0);
    let both = dir.run(["--table", "orders", "status"]).exits(5);
    assert!(both.err.contains("has the outbox tables billing, outbox: name one with --table."), "{both:?}");
}

#[test]
fn op3_the_usual_table_is_made_only_as_the_first() {
    let dir = Dir::new();
    dir.run(["--table", "orders", "migrate", "up"]).exits(0);
    for command in [&["enqueue", "a", "1"][..], &["relay"]] {
        let answer = dir.run(command.iter().copied()).exits(5);
        assert!(answer.err.contains("has the outbox table orders: --table orders."), "{answer:?}");
    }
    let status = dir.run(["--table", "outbox", "migrate", "status", "--json"]).exits(0).json();
    assert_eq!(status["mode"], json!(null));
}

#[test]
fn op3_a_table_that_the_file_names_makes_itself() {
    let dir = Dir::new();
    dir.write("posthaste.toml", "[tables.orders]\nmode = \"stream\"\n");
    let answer = dir.run(["enqueue", "a", "1"]).exits(0);
    assert!(answer.out.contains("in table orders"), "{answer:?}");
    dir.run(["--table", "order", "enqueue", "a", "1"]).fails(5, "did you mean --table orders?");
}
