//! The sink over HTTP: writes down everything that it is sent, before it answers, and answers as it is in the mood to.
//!
//! Each table has a path and a mood of its own; who sends adds its name to the path. An event that says that it is poison is
//! rejected in every mood.
//!
//! | mood | written down as | answer |
//! |---|---|---|
//! | normal | accepted | 204 |
//! | slow | accepted | 204, after a while that the relay waits for |
//! | down | failed | 503, also to `HEAD`: the relay takes it for an outage |
//! | failing | failed | 500: a failure of the event |
//! | lying | lied | 500 after a while, or the end of the connection without a word |

pub mod headers;
mod mood;

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::history::{Answer, Delivery, Record, Writer, now};
pub use mood::Mood;

/// A running server. It ends when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    history: Writer,
    moods: Mutex<HashMap<String, Mood>>,
}

/// What it looks for in a payload.
#[derive(Deserialize)]
struct Payload {
    poison: bool,
}

impl Recorder {
    /// Starts one that writes to the history in this directory.
    pub async fn start(directory: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let history = Writer::open(directory, "recorder")?;
        let shared = Arc::new(Shared { history, moods: Mutex::default() });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { port, shared, accepting })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The mood in which it takes this table's events from now on.
    pub fn set(&self, table: &str, mood: Mood) {
        let mut moods = self.shared.moods.lock().unwrap_or_else(PoisonError::into_inner);
        moods.insert(table.to_owned(), mood);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // No file descriptor is left: others end soon.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        stream.set_nodelay(true).ok();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(|request| answer(Arc::clone(&shared), request));
            // An error is a client that went, or an answer that was refused on purpose.
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

/// An error ends the connection without an answer.
async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Response<Empty<Bytes>>> {
    let (table, by) = sent(request.uri().path());
    let mood = {
        let moods = shared.moods.lock().unwrap_or_else(PoisonError::into_inner);
        moods.get(&table).copied().unwrap_or_default()
    };
    if request.method() == Method::HEAD {
        return Ok(with(if mood == Mood::Down {
            StatusCode::SERVICE_UNAVAILABLE
        } else {
            StatusCode::NO_CONTENT
        }));
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let poison = serde_json::from_slice::<Payload>(&body).is_ok_and(|payload| payload.poison);
    let told = if poison { Answer::Rejected } else { mood.told() };
    shared.history.write(&Record::Delivery(Delivery {
        at: now(),
        sink: table,
        by,
        // One without an id is nobody's, and so is the one of zeros.
        event: header(&head.headers, headers::ID).and_then(|id| id.parse().ok()).unwrap_or(Uuid::nil()),
        payload: String::from_utf8_lossy(&body).into_owned(),
        headers: headers::kept(all(&head.headers)),
        answer: told,
    }))?;
    if poison {
        return Ok(with(StatusCode::UNPROCESSABLE_ENTITY));
    }
    match mood {
        Mood::Normal => Ok(with(StatusCode::NO_CONTENT)),
        Mood::Slow(wait) => {
            tokio::time::sleep(wait).await;
            Ok(with(StatusCode::NO_CONTENT))
        }
        Mood::Down => Ok(with(StatusCode::SERVICE_UNAVAILABLE)),
        Mood::Failing => Ok(with(StatusCode::INTERNAL_SERVER_ERROR)),
        Mood::Lying { wait, silent } => {
            tokio::time::sleep(wait).await;
            if silent {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Ok(with(StatusCode::INTERNAL_SERVER_ERROR))
        }
    }
}

/// Where a sender of this name sends a table's events, past the port.
pub fn path(table: &str, by: &str) -> String {
    format!("/{table}/{by}")
}

/// The table and the sender of a path.
fn sent(path: &str) -> (String, String) {
    let (table, by) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    (table.to_owned(), by.to_owned())
}

fn with(status: StatusCode) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    std::str::from_utf8(headers.get(name)?.as_bytes()).ok()
}

fn all(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    headers.iter().map(move |(name, value)| (name.to_string(), text(value.as_bytes())))
}
