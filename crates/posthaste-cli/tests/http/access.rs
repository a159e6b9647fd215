//! The token, hosts, other machines.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::client::{Answer, TOKEN, start, start_by};
use crate::support::{Db, Dir, Kind};

/// What somebody without the token may show in its place; all of it is refused.
fn others() -> Vec<String> {
    let token = |value: &str| format!("authorization: {value}\r\n");
    let (short, long) = (&TOKEN[..TOKEN.len() - 1], format!("{TOKEN}s"));
    let mut others: Vec<String> = [
        "",
        "Bearer",
        "Bearer ",
        "Bearer  ",
        "Bearer x",
        "Bearer null",
        &format!("Bearer {short}"),
        &format!("Bearer {long}"),
        &format!("Bearer {}", TOKEN.to_uppercase()),
        &format!("Bearer {TOKEN} {TOKEN}"),
        &format!("Bearer \"{TOKEN}\""),
        &format!("Bearer{TOKEN}"),
        &format!("Basic {TOKEN}"),
        &format!("Basic {}", STANDARD.encode(format!("operator:{TOKEN}"))),
        &format!("Token {TOKEN}"),
        TOKEN,
    ]
    .into_iter()
    .map(token)
    .collect();
    others.push(String::new());
    others.push(format!("x-api-key: {TOKEN}\r\n"));
    others.push(format!("cookie: authorization=Bearer {TOKEN}; token={TOKEN}\r\n"));
    others.push(format!("proxy-authorization: Bearer {TOKEN}\r\n"));
    others.push(format!("{}{}", token("Bearer x"), token(&format!("Bearer {TOKEN}"))));
    others
}

/// Every route of the document but those that read, so that none can be forgotten.
#[test]
fn op5_whatever_writes_needs_the_token() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let nobody = client.with_token(None);
    let ask = |method: &str, path: &str, headers: &str, body: &str| {
        let length = body.len();
        nobody.send(&format!(
            "{method} {path} HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\n{headers}content-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    };
    let refused = |answer: &Answer, what: &str| {
        assert_eq!(answer.code, 401, "{what}: {answer:?}");
        answer.fails(401, "unauthorized", "send");
        assert!(answer.head.contains("www-authenticate: bearer"), "{what}: {answer:?}");
    };
    let event = json!({ "topic": "a", "payload": 1, "token": TOKEN }).to_string();
    let mut writes = client.writes("outbox", "stdout");
    assert!(writes.len() >= 9, "{writes:?}");
    // Who may not write learns nothing of what there is.
    writes.extend(client.writes("none", "none"));
    for path in &writes {
        for headers in others() {
            refused(&ask("POST", path, &headers, &event), &format!("{path} {headers:?}"));
        }
        for query in ["token", "access_token", "authorization"] {
            let path = format!("{path}?{query}={TOKEN}");
            refused(&ask("POST", &path, "", &event), &path);
        }
    }
    // No other way to write to any path, and none that says it only reads.
    for (_, path) in client.operations("outbox", "stdout") {
        for method in ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW", "get"] {
            refused(&ask(method, &path, "", ""), &format!("{method} {path}"));
            let with = format!("authorization: Bearer {TOKEN}\r\n");
            assert_eq!(ask(method, &path, &with, "").code, 405, "{method} {path}");
        }
        let disguised = ask("GET", &path, "x-http-method-override: POST\r\n", &event);
        assert!(matches!(disguised.code, 200 | 404 | 405), "{path}: {disguised:?}");
    }
    // Nothing of it was done, and reading is for anybody on this machine.
    assert_eq!(nobody.get("/api/v1/tables/outbox/events").is(200)["events"], json!([]));
    let relay = &nobody.get("/api/v1/status").is(200)["tables"][0]["relay"];
    assert_eq!((&relay["doing"], &relay["sinks"][0]["paused"]), (&json!("working"), &json!(false)));
    // With the token the same requests get further.
    let with = format!("authorization: bearer {TOKEN}\r\n");
    for path in client.writes("outbox", "stdout") {
        assert_ne!(ask("POST", &path, &with, "{}").code, 401, "{path}");
    }
    daemon.stop();
}

#[test]
fn op5_without_a_configured_token_nobody_writes() {
    let dir = Dir::new();
    for token in [None, Some("")] {
        let mut command = dir.command(["relay"]);
        if let Some(token) = token {
            command.env("OUTBOX_HTTP_TOKEN", token);
        }
        let (daemon, client) = start_by(&mut command);
        for client in [client.with_token(None), client.with_token(Some("")), client] {
            let answer = client.tell("/api/v1/relays/outbox/pause");
            answer.fails(403, "forbidden", "set http.token, http.token_file or OUTBOX_HTTP_TOKEN");
        }
        daemon.stop();
    }
}

#[test]
fn op5_from_another_machine_reading_needs_the_token_too() {
    let db = Db::new(Kind::Sqlite);
    db.run(["migrate", "up"]).exits(0);
    let mut command = db.command(["relay"]);
    let (daemon, client) =
        start_by(command.env("OUTBOX_HTTP_LISTEN", "0.0.0.0:0").env("OUTBOX_HTTP_TOKEN", TOKEN));
    let nobody = client.with_token(None);
    for path in ["/api/v1/status", "/api/v1/tables/outbox/events", "/api/v1/openapi.json", "/api/v1/none"] {
        nobody.get(path).fails(401, "unauthorized", "reading from another machine needs the token");
    }
    client.get("/api/v1/status").is(200);
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(nobody.get(path).code, 200, "{path}");
    }
    // Its name is whatever the others call it.
    let answer = nobody.send("GET /healthz HTTP/1.1\r\nhost: relay.example\r\nconnection: close\r\n\r\n");
    assert_eq!(answer.code, 200);
    daemon.stop();
}

#[test]
fn op5_a_web_page_reads_nothing() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let ask = |method: &str, path: &str, headers: &str| {
        client.send(&format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n"))
    };
    for path in ["/api/v1/status", "/metrics", "/readyz"] {
        let answer = ask("GET", path, "host: evil.example:8470\r\n");
        answer.fails(403, "forbidden", "the request is for another host than this machine");
        assert_eq!(ask("GET", path, "host: localhost:8470\r\n").code, 200);
    }
    let origin = "host: localhost\r\norigin: https://evil.example\r\n";
    let answer = ask("GET", "/api/v1/status", origin);
    assert!(!answer.head.contains("access-control"), "{answer:?}");
    let preflight = format!("{origin}access-control-request-method: POST\r\n");
    let answer = ask("OPTIONS", "/api/v1/relays/outbox/pause", &preflight);
    assert!(answer.code == 401 && !answer.head.contains("access-control"), "{answer:?}");
    daemon.stop();
}
