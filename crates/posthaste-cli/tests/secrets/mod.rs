//! Secrets are planted wherever there can be any, everything around them is made to fail, and all that the daemon and the
//! commands say is searched for them: log at its most talkative, metrics, answers, errors that are stored.
//!
//! Rows of the contract: OP3, OP7, RT5.
//!
//! | file | what is in it |
//! |---|---|
//! | `said.rs` | the secrets, and what was said |
//! | `locked.rs` | a database behind a password, and a configuration that is full of secrets |
//! | `echo.rs` | a webhook that gives away whatever it is told |

mod echo;
mod locked;
mod said;

use serde_json::{Value, json};

use crate::daemon::{Daemon, wait_for};
use crate::http::client::{Client, start_by};
use crate::support::Kind;
use echo::echo;
use locked::{Locked, closed, file};
use said::{NUMBER, OTHERS, Said, secret};

on_databases!(op7_no_secret_and_no_payload_is_said);

/// What the webhook can be made to repeat.
const SAYS: [&str; 8] = ["path", "custom", "bearer", "signature", "header", "payload", "bytes", "all"];

fn event(topic: &str) -> Value {
    json!({
        "topic": topic,
        "payload": { "card": secret("payload"), "number": NUMBER, "list": [secret("payload")] },
        "headers": { "x-api-token": secret("header"), "authorization": format!("Bearer {}", secret("header")) },
        "tenant_id": "acme",
        "aggregate_type": "order",
        "aggregate_id": topic,
    })
}

fn nothing_is_said(kind: Kind, mode: &str) {
    let locked = Locked::new(kind, mode);
    let db = &locked.db;
    let table = db.table();
    db.dir.write("posthaste.toml", file(&locked, echo()));
    let mut said = Said::default();

    let mut command = locked.command(["relay"]);
    command.env("OUTBOX_LOG", "trace").env("RUST_BACKTRACE", "1");
    let (daemon, client) = start_by(&mut command);
    let token = secret("api-token");
    let post = |path: &str, token: &str, body: &str| {
        let length = body.len();
        client.send(&format!(
            "POST {path} HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    };
    let events = format!("/api/v1/tables/{table}/events");

    // Whatever is refused.
    let hidden = secret("payload");
    for body in [
        event("say.payload").to_string().replace('}', ""),
        format!("{hidden:?}"),
        format!("[{hidden:?}]"),
        json!({ "topic": "a", "payload": hidden, "headers": { "x-token": [hidden] } }).to_string(),
        json!({ "topic": "a", "payload": hidden, "headers": hidden }).to_string(),
        json!({ "topic": "a", "payload": hidden, "headers": { "x": format!("{hidden}\u{1}") } }).to_string(),
        json!({ "topic": "", "payload": hidden }).to_string(),
        json!({ "topic": "a", "payload": hidden, "payload_base64": hidden, "content_type": "x" }).to_string(),
        json!({ "topic": "a", "payload": format!("{hidden}\u{1}"), "version": 0 }).to_string(),
        format!(r#"{{"topic":"a","payload":"{hidden}\ud800"}}"#),
        format!(r#"{{"topic":"a","payload":{}"{hidden}"{}}}"#, "[".repeat(20_000), "]".repeat(20_000)),
    ] {
        let answer = post(&events, &token, &body);
        assert!((400..500).contains(&answer.code), "{answer:?}");
        said.add("a refusal", answer.text);
    }
    for path in client.writes(&table, "echo") {
        said.add(format!("no access to {path}"), post(&path, &secret("wrong-token"), "{}").text);
    }

    // What is taken, and cannot be delivered.
    let topics: Vec<String> = SAYS
        .iter()
        .flat_map(|what| [format!("say.{what}"), format!("login.{what}")])
        .chain(["gone.a", "broker.a", "user.a"].map(str::to_owned))
        .collect();
    for topic in &topics {
        let mut event = event(topic);
        let (_, kind) = topic.split_once('.').unwrap();
        event["event_type"] = json!(format!("say.{kind}"));
        let answer = post(&events, &token, &event.to_string());
        assert_eq!(answer.code, 201, "{answer:?}");
        said.add("an enqueue", answer.text);
    }
    let payload = event("say.payload")["payload"].to_string();
    let header = format!("x-note={}", secret("note"));
    said.answer("enqueue", locked.run(["enqueue", "gone.b", &payload, "--header", &header]).exits(0));
    let broken = payload.replace('}', "");
    said.answer("a bad enqueue", locked.run(["enqueue", "gone.b", &broken]).exits(3));
    // A row that somebody wrote by hand, and that is no event.
    db.sql(&format!(
        "INSERT INTO {table} (topic, payload, headers, aggregate_type, aggregate_id) \
         VALUES ('say.payload', '{payload}', '{{\"x-api-token\": {NUMBER}}}', 'order', 'undecodable')"
    ));

    // Everything that can end has ended, and the rest cannot.
    let dead = || {
        let listed = locked.run(["dead", "list", "--json", "--limit", "100"]).exits(0).json();
        listed.as_array().unwrap().len()
    };
    wait_for("dead events", || (dead() > 2 * SAYS.len()).then_some(()));
    wait_for("sinks that rest", || {
        let status = client.get("/api/v1/status").json();
        let sinks = status["tables"][0]["relay"]["sinks"].as_array().unwrap().clone();
        let resting = sinks.iter().filter(|sink| !sink["resting"].is_null()).count();
        (resting >= 3).then_some(())
    });

    // Whoever looks. A listing for programs has the events' headers, which are theirs, and no payloads.
    let mut listed = Said::default();
    for (method, path) in client.operations(&table, "echo").into_iter().filter(|(method, _)| method == "GET")
    {
        let answer = client.send(&format!(
            "{method} {path} HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        ));
        let lists = path.ends_with("/events") || path.ends_with("/dead");
        let by = if lists { &mut listed } else { &mut said };
        by.add(path, answer.head + &answer.text);
    }
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["doctor", "--json"],
        &["events", "list"],
        &["events", "list", "--json"],
        &["dead", "list"],
        &["dead", "list", "--json"],
        &["dead", "replay", "--all", "--dry-run"],
        &["purge", "--dead", "--older-than", "0s", "--dry-run"],
        &["lanes"],
        &["blocked", "--json"],
        &["migrate", "status"],
        &["migrate", "validate"],
        &["config", "check"],
        &["config", "check", "--json"],
        &["config", "print"],
        &["config", "print", "--json"],
        &["config", "keys"],
    ] {
        let lists = arguments.contains(&"list") && arguments.contains(&"--json");
        let by = if lists { &mut listed } else { &mut said };
        by.answer(arguments.join(" "), locked.run(arguments.iter().copied()));
    }
    listed.keeps(OTHERS.into_iter().chain(["payload"]));
    let failing = if mode == "queue" { wrong_ways(&locked, &mut said) } else { 1 };
    assert!(kind == Kind::Sqlite || failing > 0);
    let stored = match mode {
        "stream" => format!("{table}_parked"),
        _ => table.clone(),
    };
    let errors = db.sql(&format!("SELECT last_error FROM {stored} WHERE last_error IS NOT NULL"));
    assert!(errors.contains("HTTP 422") && errors.contains("undecodable"), "{errors}");
    said.add("last_error", errors);
    said.add("standard output", daemon.out().join("\n"));
    said.add("the log", daemon.err().join("\n"));
    said.keeps(OTHERS);
    said.keeps_events();

    shown_events(&locked, &client, &events);
    daemon.stop();
}

/// Databases that refuse or do not answer; how many commands failed.
fn wrong_ways(locked: &Locked, said: &mut Said) -> usize {
    let url = locked.url(&secret("wrong-password"));
    let Some((server, database)) = url.rsplit_once('/').filter(|_| locked.account.is_some()) else {
        return 0;
    };
    let (login, _) = server.rsplit_once('@').unwrap();
    let nobody = format!("{login}@{}/{database}", closed());
    let unreadable = format!("{login}@127.0.0.1:99999/{database}?password={}", secret("wrong-password"));
    let (_, behind_scheme) = url.split_once("://").unwrap();
    let unknown = format!("oracle://{behind_scheme}");
    let mut failed = 0;
    for url in [&url, &nobody, &unreadable, &unknown] {
        for command in [&["status"][..], &["migrate", "up"], &["enqueue", "a", "1"], &["config", "print"]] {
            let answer = locked.run(["--database", url].into_iter().chain(command.iter().copied()));
            failed += usize::from(answer.code != 0);
            said.answer(format!("{} with a wrong URL", command.join(" ")), answer);
        }
        let mut command = locked.command(["--database", url, "relay"]);
        let mut daemon = Daemon::spawn(command.env("OUTBOX_LOG", "trace"));
        // It waits for a database that may come, and ends over a URL that never leads to one.
        wait_for("word", || {
            let lines = daemon.err();
            lines
                .iter()
                .any(|line| line.contains("cannot connect") || line.contains("posthaste: "))
                .then_some(())
        });
        daemon.signal(rustix::process::Signal::TERM);
        daemon.ends();
        said.add("a relay with a wrong URL", daemon.err().join("\n"));
    }
    failed
}

/// Whoever asks for an event is shown that event, and nobody else's secrets.
fn shown_events(locked: &Locked, client: &Client, events: &str) {
    let dead = locked.run(["dead", "list", "--json", "--limit", "100"]).exits(0).json();
    let mut said = Said::default();
    for event in dead.as_array().unwrap() {
        let id = event["id"].as_str().unwrap();
        said.answer("events show", locked.run(["events", "show", id]));
        said.add("GET an event", client.get(&format!("{events}/{id}")).text);
    }
    let shown = said.0.iter().any(|(_, text)| text.contains(&secret("payload")));
    assert!(shown, "a search that finds nothing proves nothing");
    said.keeps(OTHERS);
}

fn op7_no_secret_and_no_payload_is_said(kind: Kind) {
    nothing_is_said(kind, "queue");
}

#[test]
fn op7_no_secret_and_no_payload_is_said_of_a_stream() {
    nothing_is_said(Kind::Postgres, "stream");
}
