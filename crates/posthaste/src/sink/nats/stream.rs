//! The stream that events arrive in: asked after, and made on request.

use std::time::Duration;

use async_nats::jetstream::context::{GetStreamErrorKind, RequestErrorKind};
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{Context, Error as ServerError, ErrorCode};
use serde::Deserialize;
use tokio::sync::watch;

use super::link::Link;

/// A stream as the sink makes it where it is missing. One that is there stays as it is.
///
/// ```
/// use std::time::Duration;
/// use posthaste::sink::nats::NatsStream;
///
/// let stream = NatsStream::new("ORDERS")
///     .subject("order.>")
///     .duplicate_window(Duration::from_secs(600))
///     .max_age(Duration::from_secs(7 * 86_400));
/// # let _ = stream;
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct NatsStream {
    name: String,
    subjects: Vec<String>,
    duplicate_window: Duration,
    max_age: Duration,
    max_bytes: Option<i64>,
    replicas: usize,
    in_memory: bool,
}

impl NatsStream {
    /// A stream of this name, on disk, without limits, with one replica and a window of two minutes. Without a
    /// subject it takes the one that equals its name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            subjects: Vec::new(),
            duplicate_window: Duration::from_secs(120),
            max_age: Duration::ZERO,
            max_bytes: None,
            replicas: 1,
            in_memory: false,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It takes this subject, too; wildcards are allowed.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subjects.push(subject.into());
        self
    }

    /// For how long the server remembers ids and drops what comes again. It should outlast the longest pause
    /// between two tries.
    pub fn duplicate_window(mut self, window: Duration) -> Self {
        self.duplicate_window = window;
        self
    }

    /// How long messages are kept; zero is for ever.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// How many bytes are kept, the oldest going first.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(i64::try_from(bytes).unwrap_or(i64::MAX));
        self
    }

    /// On how many servers of a cluster it is kept.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Kept in memory. What it acknowledges is gone when its servers are.
    pub fn in_memory(mut self) -> Self {
        self.in_memory = true;
        self
    }

    /// Makes it where it is missing; an error says what to do.
    pub(super) async fn make_sure(&self, context: &Context) -> Result<(), String> {
        match missing(context, &self.name).await? {
            false => Ok(()),
            true => match context.create_stream(self.config()).await {
                Ok(_) => {
                    tracing::info!(stream = self.name, "made a stream of JetStream");
                    Ok(())
                }
                Err(error) => Err(format!("the stream {:?} cannot be created: {error}", self.name)),
            },
        }
    }

    fn config(&self) -> Config {
        Config {
            name: self.name.clone(),
            subjects: self.subjects.clone(),
            duplicate_window: self.duplicate_window,
            max_age: self.max_age,
            max_bytes: self.max_bytes.unwrap_or(-1),
            num_replicas: self.replicas,
            storage: if self.in_memory { StorageType::Memory } else { StorageType::File },
            ..Config::default()
        }
    }
}

/// Whether JetStream answers that there is no such stream.
async fn missing(context: &Context, name: &str) -> Result<bool, String> {
    match context.get_stream(name).await {
        Ok(_) => Ok(false),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(said) if said.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                Ok(true)
            }
            GetStreamErrorKind::JetStream(said) => {
                Err(format!("JetStream says of the stream {name:?}: {said}"))
            }
            _ => Err(format!("JetStream does not say whether there is the stream {name:?}: {error}")),
        },
    }
}

/// Whether there is the stream of this name; an error says what to do. A user who may publish and nothing else gets
/// no answer but that it may not ask, which comes from a living server.
pub(super) async fn exists(
    context: &Context,
    name: &str,
    link: &watch::Receiver<Link>,
) -> Result<(), String> {
    match missing(context, name).await {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!(
            "there is no stream {name:?}: create it (`nats stream add {name}`), or let the sink create it"
        )),
        Err(_) if link.borrow().may_not_ask => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether there is any stream at all; an error says what to do. As for the user, see [`exists`].
pub(super) async fn any(context: &Context, link: &watch::Receiver<Link>) -> Result<(), String> {
    match count(context, link).await? {
        Some(0) => {
            Err("JetStream has no stream at all: create one that takes the events' subjects (`nats stream \
             add`), or let the sink create it"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// How many streams there are, as far as the user may ask; an error says why JetStream does not answer.
pub(super) async fn count(context: &Context, link: &watch::Receiver<Link>) -> Result<Option<usize>, String> {
    // Not the client's own question: it fails on what servers before 2.10 answer.
    match context.request::<_, _, Account>("INFO", &()).await {
        Ok(Account { error: Some(said), .. }) => Err(format!("JetStream refuses to answer: {said}")),
        Ok(Account { streams, .. }) => Ok(Some(streams)),
        Err(_) if link.borrow().may_not_ask => Ok(None),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => {
            Err("the server has no JetStream: switch it on".to_owned())
        }
        Err(error) => Err(format!("JetStream does not answer: {error}")),
    }
}

/// What JetStream answers about an account, as far as it matters here.
#[derive(Deserialize)]
struct Account {
    #[serde(default)]
    streams: usize,
    error: Option<ServerError>,
}
