//! Secrets are planted wherever there can be any, everything around them is made to fail, and all that the daemon and the
//! commands say is searched for them: log at its most talkative, metrics, answers, errors that are stored.
//!
//! Rows of the contract: OP3, OP7, RT5.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::daemon::{Daemon, wait_for};
use crate::http::client::{Client, start_by};
use crate::support::{Answer, Db, Kind};

/// What every secret begins with: nothing else does.
const MARK: &str = "zq7";
/// Numbers have no such beginning.
const NUMBER: u64 = 739_173_917_391;

/// A secret of this name.
fn secret(name: &str) -> String {
    format!("{MARK}-{name}-{MARK}")
}

/// The key that webhooks are signed with.
fn key() -> String {
    format!("whsec_{}", STANDARD.encode(format!("{:-<32}", secret("hmac"))))
}

/// Secrets that an event has, which are shown to whoever asks for that very event.
const OF_EVENTS: [&str; 3] = ["payload", "header", "note"];

/// Secrets that nobody is shown.
const OTHERS: [&str; 12] = [
    "db-password",
    "wrong-password",
    "api-token",
    "wrong-token",
    "hook-bearer",
    "hook-custom",
    "hook-path",
    "hook-query",
    "hook-user",
    "hook-password",
    "nats-token",
    "nats-password",
];

/// What was said, and by whom.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    fn add(&mut self, by: impl Into<String>, text: impl Into<String>) {
        self.0.push((by.into(), text.into()));
    }

    fn answer(&mut self, by: impl Into<String>, answer: Answer) {
        self.add(by, answer.out + &answer.err);
    }

    /// Demands that none of these is in any of it, plain or encoded.
    #[track_caller]
    fn keeps<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut hidden: Vec<String> = names.into_iter().map(secret).collect();
        hidden.push(key()["whsec_".len()..].to_owned());
        let encoded: Vec<String> =
            hidden.iter().map(|hidden| STANDARD.encode(hidden).trim_end_matches('=').to_owned()).collect();
        let quoted: Vec<String> = hidden.iter().map(|hidden| format!("{:?}", hidden.as_bytes())).collect();
        for (by, text) in &self.0 {
            for hidden in hidden.iter().chain(&encoded).chain(&quoted) {
                let line = text.lines().find(|line| line.contains(hidden.as_str()));
                assert!(line.is_none(), "{by} says {hidden}: {line:?}");
            }
        }
    }

    /// Demands that nothing of an event is in it, either.
    #[track_caller]
    fn keeps_events(&self) {
        self.keeps(OF_EVENTS);
        let number = NUMBER.to_string();
        for (by, text) in &self.0 {
            let line = text.lines().find(|line| line.contains(&number) || line.contains(MARK));
            assert!(line.is_none(), "{by} says {line:?}");
        }
    }
}

/// A webhook that refuses everything and repeats what it was given, as its event's type says.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || repeat(stream));
        }
    });
    address
}

fn repeat(mut stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_owned());
        }
        let header = |name: &str| {
            let named = |line: &&String| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
            head.iter().find(named).map_or("", |line| line.split_once(": ").map_or("", |(_, value)| value))
        };
        let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let body = String::from_utf8_lossy(&body).into_owned();
        let kind = header("ce-type").to_owned();
        let (code, text) = match kind.trim_start_matches("say.") {
            "path" => (404, format!("Cannot {}", head[0])),
            "custom" => (401, format!("who is {}?", header("x-shop"))),
            "bearer" => (403, format!("{} has no credit", header("authorization"))),
            "signature" => (400, format!("signature {} is of another key", header("webhook-signature"))),
            "header" => (422, format!("x-api-token: {}", header("x-api-token"))),
            "payload" => (422, format!("cannot read {body:?}")),
            "bytes" => (422, format!("cannot read {:?}", body.as_bytes())),
            "all" => (500, format!("{}\n\n{body}", head.join("\n"))),
            _ => (200, String::new()),
        };
        let answer = format!("HTTP/1.1 {code} X\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

/// A database with an account whose password is a secret.
struct Locked {
    db: Db,
    account: Option<String>,
}

impl Locked {
    fn new(kind: Kind, mode: &str) -> Self {
        let db = Db::with_table(kind, mode);
        let password = secret("db-password");
        let name = crate::support::unique().replace('-', "_");
        let name = name[..name.len().min(30)].to_owned();
        let account = match kind {
            Kind::Postgres => {
                let schema = db.table().replace(".outbox", "");
                db.sql(&format!(
                    "CREATE ROLE {name} LOGIN PASSWORD '{password}'; GRANT ALL ON SCHEMA {schema} TO {name}; \
                     GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}; GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {name}"
                ));
                Some(name)
            }
            Kind::MariaDb => {
                db.sql(&format!("CREATE USER {name} IDENTIFIED BY '{password}'; GRANT ALL ON *.* TO {name}"));
                Some(name)
            }
            Kind::Sqlite => None,
        };
        Self { db, account }
    }

    fn url(&self, password: &str) -> String {
        let url = self.db.url();
        match &self.account {
            None => url,
            Some(account) => {
                let (scheme, rest) = url.split_once("://").unwrap();
                let (_, server) = rest.rsplit_once('@').unwrap();
                format!("{scheme}://{account}:{password}@{server}")
            }
        }
    }

    /// The binary with the file alone.
    fn command<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Command {
        self.db.dir.command(arguments)
    }

    fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Answer {
        self.command(arguments).output().unwrap().into()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let Some(account) = &self.account else { return };
        match self.db.kind {
            Kind::Postgres => drop(self.db.sql(&format!("DROP OWNED BY {account}; DROP ROLE {account}"))),
            _ => drop(self.db.sql(&format!("DROP USER {account}"))),
        }
    }
}

/// A port where nobody answers.
fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn file(locked: &Locked, echo: SocketAddr) -> String {
    let (gone, broker) = (closed(), closed());
    let [token, bearer, custom, path, query] =
        ["api-token", "hook-bearer", "hook-custom", "hook-path", "hook-query"].map(secret);
    let [user, password, nats, nats_password] =
        ["hook-user", "hook-password", "nats-token", "nats-password"].map(secret);
    format!(
        r#"
[database]
url = "{url}"
table = "{table}"

[relay]
tables = ["{table}"]
max_attempts = 2
backoff_first = "10ms"
backoff_longest = "20ms"
probe_first = "50ms"
probe_longest = "100ms"
mask_tenants = true

[sinks.echo]
kind = "http"
url = "http://{echo}/hooks/{path}?key={query}"
secret = "{key}"
headers.authorization = "Bearer {bearer}"
headers.x-shop = "{custom}"

[sinks.login]
kind = "http"
url = "http://{user}:{password}@{echo}/hooks/{path}"

[sinks.gone]
kind = "http"
url = "http://{user}:{password}@{gone}/hooks/{path}?key={query}"

[sinks.broker]
kind = "nats"
url = "nats://{nats}@{broker}"
connect_timeout = "500ms"

[sinks.user]
kind = "nats"
url = "nats://{broker}"
connect_timeout = "500ms"
user = "shop"
password = "{nats_password}"

[[routes]]
topics = ["say.*"]
sink = "echo"

[[routes]]
topics = ["login.*"]
sink = "login"

[[routes]]
topics = ["gone.*"]
sink = "gone"

[[routes]]
topics = ["broker.*"]
sink = "broker"
destination = "shop.{{topic}}.{{tenant_id}}"

[[routes]]
topics = ["user.*"]
sink = "user"

[http]
token = "{token}"
"#,
        url = locked.url(&secret("db-password")),
        table = locked.db.table(),
        key = key(),
    )
}

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
    let unknown = url.replace("postgres://", "oracle://").replace("mariadb://", "oracle://");
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

#[test]
fn op7_no_secret_and_no_payload_is_said_on_postgres() {
    nothing_is_said(Kind::Postgres, "queue");
}

#[test]
fn op7_no_secret_and_no_payload_is_said_of_a_stream() {
    nothing_is_said(Kind::Postgres, "stream");
}

#[test]
fn op7_no_secret_and_no_payload_is_said_on_mariadb() {
    nothing_is_said(Kind::MariaDb, "queue");
}

#[test]
fn op7_no_secret_and_no_payload_is_said_on_sqlite() {
    nothing_is_said(Kind::Sqlite, "queue");
}
