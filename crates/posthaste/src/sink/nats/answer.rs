//! What became of one message, as far as its own answer tells.

use std::error::Error as _;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{Error as ServerError, ErrorCode};

use super::NatsSink;
use crate::sink::Outcome;

/// The server's word that a header named another stream than the one that took the subject.
const STREAM_NOT_MATCH: ErrorCode = ErrorCode::STREAM_NOT_MATCH;

/// What one message was answered with.
#[derive(Debug)]
pub(super) enum Answer {
    /// It is clear what it means.
    Clear(Outcome),
    /// No stream takes its subject: this one's, or any?
    NoStream(String),
    /// No answer in time: to this one, or to any?
    Silence(String),
}

impl NatsSink {
    /// What an error of a publish means.
    pub(super) fn judge(&self, error: &PublishError) -> Answer {
        let clear = |outcome: fn(String) -> Outcome, error: String| Answer::Clear(outcome(error));
        match error.kind() {
            PublishErrorKind::StreamNotFound => Answer::NoStream(
                "no stream of JetStream takes its subject: add the subject to a stream".to_owned(),
            ),
            PublishErrorKind::TimedOut => {
                let said = self.link.borrow().said.clone();
                let said = said.map(|said| format!(" (the server has said: {said})")).unwrap_or_default();
                Answer::Silence(format!("no acknowledgement within {:?}{said}", self.ack_timeout))
            }
            PublishErrorKind::BrokenPipe => {
                clear(unavailable, "the client has closed its connection".to_owned())
            }
            PublishErrorKind::MaxPayloadExceeded => clear(reject, error.to_string()),
            PublishErrorKind::MaxAckPending => clear(retry, error.to_string()),
            PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => {
                clear(retry, error.to_string())
            }
            PublishErrorKind::Other => {
                match error.source().and_then(|source| source.downcast_ref::<ServerError>()) {
                    Some(said) => Answer::Clear(self.judge_server(said)),
                    None => clear(retry, error.to_string()),
                }
            }
        }
    }

    /// What the server's refusal means.
    fn judge_server(&self, error: &ServerError) -> Outcome {
        let text = format!("JetStream refused it: {error}");
        match error.error_code() {
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
                reject(text)
            }
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::CLUSTER_NOT_ACTIVE
            | ErrorCode::CLUSTER_NOT_ASSIGNED
            | ErrorCode::CLUSTER_NOT_AVAILABLE
            | ErrorCode::CLUSTER_NOT_LEADER
            | ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::JETSTREAM_NOT_ENABLED
            | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
            | ErrorCode::MEMORY_RESOURCES_EXCEEDED
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED => unavailable(text),
            STREAM_NOT_MATCH => retry(format!("{text}: its subject is another stream's")),
            // One stream's trouble is the whole destination's only where the sink has no other.
            ErrorCode::STREAM_STORE_FAILED | ErrorCode::STREAM_OFFLINE | ErrorCode::STREAM_SEALED
                if self.stream.is_some() && !text.contains("per subject") =>
            {
                unavailable(text)
            }
            _ => retry(text),
        }
    }
}

fn reject(error: String) -> Outcome {
    Outcome::Reject { error }
}

fn retry(error: String) -> Outcome {
    Outcome::Retry { after: None, error }
}

fn unavailable(error: String) -> Outcome {
    Outcome::Unavailable { error }
}
