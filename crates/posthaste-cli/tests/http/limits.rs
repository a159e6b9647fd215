//! Too much, too slow, and what the log says of it.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{TOKEN, read, start, start_by};
use crate::support::{Db, Dir, Kind};

#[test]
fn op5_a_body_that_is_too_large_is_refused() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let path = "/api/v1/tables/outbox/events";
    let payload = "x".repeat(1024 * 1024);
    client.post(path, &json!({ "topic": "a", "payload": payload })).fails(413, "too_large", "1048576 bytes");
    client.post(path, &json!({ "topic": "a", "payload": &payload[..1000 * 1000] })).is(201);
    // One that does not say how long it is.
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n"
    );
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let body = chunk.repeat(17) + "0\r\n\r\n";
    let answer = client
        .send(&format!("{head}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{body}"));
    answer.fails(413, "too_large", "1048576 bytes");
    // And too many headers.
    let headers: String = (0..70).map(|n| format!("x-{n}: 1\r\n")).collect();
    let answer = client.send(&format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n"));
    assert_eq!(answer.code, 431, "{answer:?}");
    daemon.stop();
}

/// As many as there may be hold their connections and say nothing, or little: others are served all the same.
#[test]
fn op5_slow_clients_are_not_waited_for() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let began = Instant::now();
    let mut slow_body = client.connect();
    let head = format!(
        "POST /api/v1/tables/outbox/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
    );
    let rest = "content-type: application/json\r\ncontent-length: 100\r\nconnection: close\r\n\r\n{\"topic\"";
    slow_body.write_all(format!("{head}{rest}").as_bytes()).unwrap();
    let mut slow_head = client.connect();
    slow_head.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").unwrap();
    let silent: Vec<TcpStream> = (0..300).map(|_| client.connect()).collect();
    assert_eq!(client.get("/healthz").code, 200, "nobody is served any more");
    let answer = read(&mut slow_body);
    answer.fails(408, "timeout", "the body did not arrive within 10s");
    // Its head never came: there is nothing to answer.
    let answer = read(&mut slow_head);
    assert!(answer.code == 0 || answer.code == 408, "{answer:?}");
    for mut stream in silent {
        assert_eq!(read(&mut stream).text, "");
    }
    let took = began.elapsed();
    assert!((Duration::from_secs(9)..Duration::from_secs(45)).contains(&took), "{took:?}");
    daemon.stop();
}

#[test]
fn op5_neither_payloads_nor_the_token_are_logged() {
    let dir = Dir::new();
    let mut command = dir.command(["relay"]);
    command.env("OUTBOX_HTTP_TOKEN", TOKEN).env("OUTBOX_LOG", "trace");
    let (mut daemon, client) = start_by(&mut command);
    let events = "/api/v1/tables/outbox/events";
    let event =
        json!({ "topic": "a", "payload": { "card": "4111-secret" }, "headers": { "h": "header-secret" } });
    let id = client.post(events, &event).is(201)["id"].as_str().unwrap().to_owned();
    client.get(&format!("{events}/{id}")).is(200);
    client.get(&format!("{events}?tenant=tenant-secret")).is(200);
    client.with_token(Some("wrong-secret")).tell("/api/v1/relays/outbox/pause");
    client.post(events, &json!({ "topic": "a", "payload": 1, "secret": 1 }));
    daemon.events(1);
    let line = daemon.said("answered a request");
    assert!(line.contains("DEBUG"), "{line}");
    let logged = daemon.err().join("\n");
    assert!(logged.contains("status=401") && logged.contains("status=201"), "{logged}");
    for secret in ["secret", TOKEN] {
        let found: Vec<&str> = logged.lines().filter(|line| line.contains(secret)).collect();
        assert!(found.is_empty(), "{found:#?}");
    }
    daemon.stop();
}

#[test]
fn op5_an_address_that_is_taken_or_not_wanted() {
    let dir = Dir::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = dir.command(["relay"]);
    command.env("OUTBOX_HTTP_LISTEN", &address);
    let answer: crate::support::Answer = command.output().unwrap().into();
    assert!(answer.err.contains(&format!("cannot serve HTTP on {address}")), "{answer:?}");
    assert!(answer.err.contains("--set http.enabled=false"), "{answer:?}");
    answer.exits(1);
    let mut command = dir.command(["--set", "http.enabled=false", "relay"]);
    let daemon = crate::daemon::Daemon::start(command.env("OUTBOX_HTTP_LISTEN", &address));
    assert!(!daemon.err().join("\n").contains("serving"), "{:#?}", daemon.err());
    daemon.stop();
}
