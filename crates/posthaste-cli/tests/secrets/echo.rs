//! A webhook that gives away whatever it is told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// A webhook that refuses everything and repeats what it was given, as its event's type says.
pub(super) fn echo() -> SocketAddr {
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
