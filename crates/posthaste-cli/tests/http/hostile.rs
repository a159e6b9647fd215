//! Anything as a body, a query or a head: it is refused as the sender's fault, or it is done, and the daemon lives.
//!
//! The routes are those of the document, so that a new one is tried, too.

use std::time::Duration;

use super::client::{Answer, Client, PATIENCE, TOKEN, start};
use crate::CORPUS;
use crate::daemon::Daemon;
use crate::support::{Db, Kind};

on_databases!(op5_no_body_breaks_the_daemon, op5_no_query_breaks_the_daemon);

/// Megabytes that the daemon may need for all of it.
const MEMORY: u64 = 500;

/// A request with the token and this behind its first line.
fn request(line: &str, rest: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n{rest}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Demands that it was done, or was the sender's fault and that is said as every error is.
#[track_caller]
fn is_answered(answer: &Answer, line: &str) {
    assert!(matches!(answer.code, 200..=299 | 400..=499), "{line}: {answer:?}");
    if answer.code >= 400 {
        let error = answer.json()["error"].clone();
        assert!(error["kind"].is_string() && error["message"].is_string(), "{line}: {answer:?}");
        assert!(answer.text.len() < 2000, "{line}: {} bytes", answer.text.len());
    }
}

fn lives(daemon: Daemon, client: &Client) {
    assert_eq!(client.get("/healthz").code, 200);
    let most = daemon.most_memory();
    assert!(most < MEMORY, "{most} MB");
    let panicked = daemon.err().into_iter().find(|line| line.contains("panicked"));
    assert_eq!(panicked, None);
    daemon.stop();
}

fn op5_no_body_breaks_the_daemon(kind: Kind) {
    let db = Db::new(kind);
    let (daemon, client) = start(&db);
    let writes = client.writes(&db.table(), "stdout");
    assert!(writes.len() >= 9, "{writes:?}");
    CORPUS.each_input("bodies", 250, |body| {
        for path in &writes {
            let rest = format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
            let line = format!("POST {path}");
            is_answered(&client.send_bytes(&request(&line, &rest, body), PATIENCE), &line);
        }
    });
    lives(daemon, &client);
}

fn op5_no_query_breaks_the_daemon(kind: Kind) {
    let db = Db::new(kind);
    let (daemon, client) = start(&db);
    let lines: Vec<String> = client
        .operations(&db.table(), "stdout")
        .into_iter()
        // Whether it is ready is a matter of how busy the machine is.
        .filter(|(_, path)| path != "/readyz")
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    CORPUS.each_input("queries", 100, |query| {
        // What would end the line is left to the heads.
        let query: Vec<u8> =
            query.iter().copied().filter(|byte| byte.is_ascii_graphic()).take(30_000).collect();
        let query = String::from_utf8(query).unwrap();
        for line in &lines {
            let line = format!("{line}?{query}");
            let answer = client.send_bytes(&request(&line, "content-length: 0\r\n", b""), PATIENCE);
            // Of a head that cannot be read, the server below says so, without a word.
            if !(answer.text.is_empty() && matches!(answer.code, 400 | 414 | 431)) {
                is_answered(&answer, &line[..line.len().min(200)]);
            }
        }
    });
    lives(daemon, &client);
}

#[test]
fn op5_no_head_breaks_the_daemon() {
    let db = Db::new(Kind::Sqlite);
    let (daemon, client) = start(&db);
    CORPUS.each_input("heads", 300, |head| {
        let whole = [head, b"\r\n\r\n"].concat();
        // One that promises more than it sends is not waited for.
        let answer = client.send_bytes(&whole, Duration::from_millis(100));
        assert!(answer.code < 500, "{answer:?}");
    });
    lives(daemon, &client);
}
