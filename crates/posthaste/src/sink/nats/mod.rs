//! NATS JetStream: each event a message that the stream has acknowledged.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `stream`, `create_stream` | none | which stream the events must arrive in; made, if asked, where it is missing |
//! | `envelope` | CloudEvents, binary | as the NATS binding of CloudEvents has it |
//! | `ack_timeout` | 5 s | for one batch's acknowledgements, and for a question to the server; twice that must fit into the relay's timeout |
//! | `connect_timeout` | 5 s | for one try of one server |
//!
//! A batch is published on one connection without waiting, and its acknowledgements are awaited together; each event has
//! its own outcome. The subject is the delivery's destination. `Nats-Msg-Id` is the event's id: within the stream's
//! window the server drops what it has already, and acknowledges it.
//!
//! | what happens | outcome |
//! |---|---|
//! | acknowledged, as a duplicate or not | delivered |
//! | a subject with blanks, wildcards or empty levels, one of the server's own (`$…`), one beyond 1024 bytes | reject |
//! | larger than the server or the stream takes, headers included | reject |
//! | no connection, or lost before the acknowledgement | unavailable; the client connects again by itself |
//! | no stream takes the subject, and there is none at all, or the sink's own is missing | unavailable: somebody must create it |
//! | no stream takes the subject, but there are others | retry: it is this event's subject |
//! | the stream is full or sealed | unavailable if the sink has a stream of its own, else retry |
//! | JetStream without a leader, out of resources, switched off | unavailable |
//! | no acknowledgement in time, and the server does not answer a question either | unavailable |
//! | no acknowledgement in time otherwise | retry |
//!
//! **Order.** It does not say [`keeps_order`](crate::sink::Sink::keeps_order). Messages of one connection arrive in their
//! order, but when one in the middle is refused (too large, stream full for a moment), those behind it are stored
//! all the same.

mod answer;
mod builder;
mod link;
mod stream;

use std::fmt;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::header::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;
use async_nats::{Client, HeaderName, HeaderValue};
use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::{Mutex, watch};

use super::envelope::Envelope;
use super::{Delivery, Outcome, Sink};
use crate::error::quoted;
use answer::Answer;
use link::Link;

pub use builder::NatsSinkBuilder;
pub use stream::NatsStream;

/// The longest subject: a protocol line of the server has 4096 bytes, and one that is longer costs the connection.
const SUBJECT_LIMIT: usize = 1024;

/// Publishes events to NATS JetStream.
///
/// ```no_run
/// # async fn example() -> posthaste::Result<()> {
/// use posthaste::sink::NatsSink;
/// use posthaste::sink::nats::NatsStream;
///
/// let sink = NatsSink::builder("nats://localhost:4222")
///     .create_stream(NatsStream::new("ORDERS").subject("order.>"))
///     .build()
///     .await?;
/// # let _ = sink; Ok(()) }
/// ```
pub struct NatsSink {
    client: Client,
    /// Their addresses, without who logs in.
    servers: String,
    context: Context,
    link: watch::Receiver<Link>,
    /// The stream that the events must arrive in.
    stream: Option<String>,
    /// How to make it, and whether it is known to be there.
    wanted: Option<(NatsStream, Mutex<bool>)>,
    envelope: Envelope,
    ack_timeout: Duration,
}

/// A message under way, or why there is none.
type Sent = Result<PublishAckFuture, Answer>;

impl NatsSink {
    /// A sink for this server: `nats://` or `tls://`, with user and password if need be, several of one cluster
    /// separated by commas.
    pub fn builder(url: impl Into<String>) -> NatsSinkBuilder {
        NatsSinkBuilder::new(url.into())
    }

    /// Whether JetStream answers; an error says why not. Unlike [`probe`](Sink::probe) it neither asks for the stream
    /// nor makes it: it is for those who look and must change nothing.
    pub async fn answers(&self) -> Result<(), String> {
        self.connected()?;
        stream::count(&self.context, &self.link).await.map(drop).map_err(|error| self.located(&error))
    }

    fn connected(&self) -> Result<(), String> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            _ => Err(self.link.borrow().unconnected(&self.servers)),
        }
    }

    /// An answer, or none, with where it was to come from.
    fn located(&self, error: &str) -> String {
        format!("{error} (NATS at {})", self.servers)
    }

    /// Whether there is a connection, and the stream that was asked for.
    async fn ready(&self) -> Result<(), String> {
        self.connected()?;
        if let Some((stream, is_there)) = &self.wanted {
            let mut is_there = is_there.lock().await;
            if !*is_there {
                stream.make_sure(&self.context).await.map_err(|error| self.located(&error))?;
                *is_there = true;
            }
        }
        Ok(())
    }

    /// Hands one message to the connection.
    async fn send(&self, delivery: &Delivery) -> Sent {
        let reject = |error| Err(Answer::Clear(Outcome::Reject { error }));
        let subject = match check_subject(delivery.destination()) {
            Ok(subject) => subject.to_owned(),
            Err(error) => return reject(error),
        };
        let message = self.envelope.wrap(delivery);
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers() {
            match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Ok(name), Ok(value)) => headers.append(name, value),
                _ => return reject(format!("its header {name:?} cannot be sent")),
            }
        }
        let mut publish = PublishMessage::build().payload(message.body).headers(headers);
        publish = publish.message_id(message.id.to_string());
        if let Some(stream) = &self.stream {
            publish = publish.expected_stream(stream);
        }
        self.context.send_publish(subject, publish).await.map_err(|error| self.judge(&error))
    }

    /// Hands a batch to the connection, in order. A connection that takes no more is not asked for each of them.
    async fn send_all(&self, batch: &[Delivery]) -> Vec<Sent> {
        let mut sent: Vec<Sent> = Vec::with_capacity(batch.len());
        for delivery in batch {
            let stuck = matches!(sent.last(), Some(Err(Answer::Silence(_))));
            let next =
                if stuck { Err(Answer::Silence("not sent".to_owned())) } else { self.send(delivery).await };
            sent.push(next);
        }
        sent
    }

    /// Waits for one acknowledgement, or for the end of the connection it would have come on.
    async fn acknowledged(&self, sent: Sent, mut link: watch::Receiver<Link>, losses: u64) -> Answer {
        let ack = match sent {
            Ok(ack) => ack,
            Err(answer) => return answer,
        };
        tokio::select! {
            biased;
            ack = ack.into_future() => match ack {
                Ok(_) => Answer::Clear(Outcome::Delivered),
                Err(error) => self.judge(&error),
            },
            _ = link.wait_for(|link| link.losses != losses) => Answer::Clear(Outcome::Unavailable {
                error: format!("the connection to NATS at {} was lost before the acknowledgement", self.servers),
            }),
        }
    }

    /// Whether what happened to some concerns all: an error says how.
    async fn ask(&self) -> Result<(), String> {
        let answer = match &self.stream {
            Some(name) => stream::exists(&self.context, name, &self.link).await,
            None => stream::any(&self.context, &self.link).await,
        };
        answer.map_err(|error| self.located(&error))
    }

    /// Finds out about the answers that could be the event's fault or the destination's.
    async fn settle(&self, answers: Vec<Answer>) -> Vec<Outcome> {
        let in_doubt = |answer: &Answer| !matches!(answer, Answer::Clear(_));
        let works = answers.iter().any(|answer| matches!(answer, Answer::Clear(Outcome::Delivered)));
        let outage = match answers.iter().any(in_doubt) {
            true if !works => self.ask().await.err(),
            _ => None,
        };
        if answers.iter().any(|answer| matches!(answer, Answer::NoStream(_)))
            && let Some((_, is_there)) = &self.wanted
        {
            // Deleted since: made again before the next batch.
            *is_there.lock().await = false;
        }
        let outcome = |answer| match (answer, &outage) {
            (Answer::Clear(outcome), _) => outcome,
            (Answer::NoStream(_), Some(error)) => Outcome::Unavailable { error: error.clone() },
            (Answer::Silence(what), Some(error)) => {
                Outcome::Unavailable { error: format!("{what}; {error}") }
            }
            (Answer::NoStream(error) | Answer::Silence(error), None) => Outcome::Retry { after: None, error },
        };
        answers.into_iter().map(outcome).collect()
    }
}

/// Whether a message can be published to this subject.
fn check_subject(subject: &str) -> Result<&str, String> {
    let wrong = |what: &str| {
        Err(format!("its destination {} is no subject of NATS: it {what}", quoted(subject, 128)))
    };
    if subject.len() > SUBJECT_LIMIT {
        return wrong(&format!("has {} bytes, more than {SUBJECT_LIMIT}", subject.len()));
    }
    if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return wrong("has a blank in it");
    }
    if subject.contains(['*', '>']) {
        return wrong("has a wildcard in it");
    }
    if subject.split('.').any(str::is_empty) {
        return wrong("has an empty level");
    }
    // `$JS.API.…` would be an order to the server.
    if subject.starts_with('$') {
        return wrong("begins with $, as the server's own do");
    }
    Ok(subject)
}

#[async_trait]
impl Sink for NatsSink {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        if let Err(error) = self.ready().await {
            return vec![Outcome::Unavailable { error }; batch.len()];
        }
        let losses = self.link.borrow().losses;
        let sent = self.send_all(batch).await;
        let acks = sent.into_iter().map(|sent| self.acknowledged(sent, self.link.clone(), losses));
        self.settle(join_all(acks).await).await
    }

    async fn probe(&self) -> Result<(), String> {
        self.ready().await?;
        self.ask().await
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").field("stream", &self.stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn si2_only_what_is_a_subject_is_published_to() {
        let long = "x".repeat(1024);
        for right in ["order", "order.placed.v1", "größe.42", "a-b_c.D", "_INBOX.x", &long] {
            assert_eq!(check_subject(right), Ok(right));
        }
        let longer = "x".repeat(1025);
        for wrong in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a\tb",
            "a.*",
            "a.>",
            "a*b",
            "$JS.API.STREAM.DELETE.X",
            "$SYS.x",
            &longer,
        ] {
            assert!(check_subject(wrong).is_err(), "{wrong}");
        }
    }
}
