//! The token, hosts, other machines.

use serde_json::json;

use super::client::{TOKEN, start, start_by};
use crate::support::{Db, Dir, Kind};

#[test]
fn op5_whatever_writes_needs_the_token() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    let nobody = client.with_token(None);
    let other = client.with_token(Some("hunter23-operators"));
    let event = json!({ "topic": "a", "payload": 1 });
    for path in [
        "/api/v1/tables/outbox/events",
        "/api/v1/tables/outbox/dead/replay",
        "/api/v1/tables/outbox/dead/discard",
        "/api/v1/tables/outbox/purge",
        "/api/v1/relays/outbox/pause",
        "/api/v1/relays/outbox/resume",
        "/api/v1/relays/outbox/trigger",
        "/api/v1/relays/outbox/sinks/stdout/pause",
        "/api/v1/relays/outbox/sinks/stdout/resume",
        // Who may not write learns nothing of what there is.
        "/api/v1/relays/none/pause",
    ] {
        let answer = nobody.post(path, &event);
        answer.fails(401, "unauthorized", "send it as `Authorization: Bearer …`");
        assert!(answer.head.contains("www-authenticate: bearer"), "{answer:?}");
        other.post(path, &event).fails(401, "unauthorized", "the token is not that of http.token");
    }
    // Reading is for anybody on this machine.
    assert_eq!(nobody.get("/api/v1/tables/outbox/events").is(200)["events"], json!([]));
    let relay = &nobody.get("/api/v1/status").is(200)["tables"][0]["relay"];
    assert_eq!((&relay["doing"], &relay["sinks"][0]["paused"]), (&json!("working"), &json!(false)));
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
