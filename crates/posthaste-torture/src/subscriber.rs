//! What arrived at the broker: read out of its stream when all is over, in the order in which it is there.
//!
//! The broker has written down itself what it took, and when; so nothing is missed while it or a subscriber is away.

use std::time::Duration;

use anyhow::{Result, bail};
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, Message};
use futures_util::StreamExt;
use uuid::Uuid;

use crate::history::{Answer, Delivery, Micros, Record, Writer};
use crate::recorder::headers;

/// The stream, and the sink's name in the history.
pub const STREAM: &str = "TORTURE";

/// Messages of one request.
const PAGE: usize = 1000;

/// For how long the broker drops a message with an id that it has seen: as short as it allows, so that what is published twice
/// shows.
const DUPLICATES: Duration = Duration::from_millis(100);

/// The subject of a message, for a topic: who sends it is its last part.
pub fn destination(by: &str) -> String {
    format!("{{topic}}.{by}")
}

/// Makes the stream, which takes the topics of all tables.
pub async fn create(url: &str) -> Result<()> {
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["torture.>".to_owned()],
        duplicate_window: DUPLICATES,
        ..Config::default()
    };
    jetstream::new(async_nats::connect(url).await?).create_stream(config).await?;
    Ok(())
}

/// Writes down all that is in the stream; how many that were.
pub async fn collect(url: &str, history: &Writer) -> Result<u64> {
    let stream = jetstream::new(async_nats::connect(url).await?).get_stream(STREAM).await?;
    let expected = stream.cached_info().state.messages;
    let found = read(&stream, expected, history).await?;
    if found != expected {
        bail!("the broker has {expected} messages, and gave {found} of them");
    }
    Ok(found)
}

async fn read(stream: &Stream, expected: u64, history: &Writer) -> Result<u64> {
    let config = pull::Config {
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let mut found = 0;
    while found < expected {
        let before = found;
        let mut page = consumer.fetch().max_messages(PAGE).messages().await?;
        while let Some(message) = page.next().await {
            let message = message.map_err(|error| anyhow::anyhow!("{error}"))?;
            history.write(&Record::Delivery(delivery(&message)?))?;
            found += 1;
        }
        if found == before {
            break;
        }
    }
    Ok(found)
}

fn delivery(message: &Message) -> Result<Delivery> {
    let info = message.info().map_err(|error| anyhow::anyhow!("{error}"))?;
    let nanoseconds = info.published.unix_timestamp_nanos();
    let all = message.headers.iter().flat_map(|headers| headers.iter());
    let all = all.flat_map(|(name, values)| values.iter().map(|value| (name.to_string(), value.to_string())));
    let headers = headers::kept(all);
    let id = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(headers::ID));
    Ok(Delivery {
        at: Micros::try_from(nanoseconds / 1000)?,
        sink: STREAM.to_owned(),
        by: message.subject.rsplit('.').next().unwrap_or_default().to_owned(),
        // One without an id is nobody's, and so is the one of zeros.
        event: id.and_then(|(_, id)| id.parse().ok()).unwrap_or(Uuid::nil()),
        payload: String::from_utf8_lossy(&message.payload).into_owned(),
        headers,
        // It is there, so it was taken, whatever the relay heard of it.
        answer: Answer::Accepted,
    })
}
