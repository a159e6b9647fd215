//! Writes business rows and events, and writes down that it did.

use anyhow::Result;
use posthaste::Event;
use serde_json::json;
use uuid::Uuid;

use super::TABLE;
use super::site::{Site, Tx};
use super::temper::Temper;
use crate::history::{Ending, Intent, Record, Writer, now};

/// What is to be written.
#[derive(Debug, Clone, Copy)]
pub struct Draft {
    pub aggregate: &'static str,
    pub temper: Temper,
    /// In a transaction that knows its commit.
    pub hot: bool,
    /// And once more, with the same key for deduplication.
    pub twice: bool,
}

impl Draft {
    pub fn new(aggregate: &'static str, temper: Temper) -> Self {
        Self { aggregate, temper, hot: false, twice: false }
    }
}

/// Writes business rows and events.
pub struct Producer<'a> {
    pub site: &'a Site,
    pub writer: &'a Writer,
    pub name: &'a str,
}

/// A transaction with everything in it, and what is written down of it when it ends.
pub struct Begun {
    tx: Tx,
    intents: Vec<Intent>,
}

impl Producer<'_> {
    /// A whole transaction; the event's id.
    pub async fn write(&self, draft: Draft, how: Ending) -> Result<Uuid> {
        let begun = self.begin(draft).await?;
        let id = begun.intents.first().map(|intent| intent.event).unwrap_or_default();
        self.end(begun, how).await?;
        Ok(id)
    }

    /// All of it but the end.
    pub async fn begin(&self, draft: Draft) -> Result<Begun> {
        let mut tx = if draft.hot { self.site.begin_hot().await? } else { self.site.begin().await? };
        let number = tx.next_number(draft.aggregate).await?;
        let poison = draft.temper == Temper::Poison;
        let payload = json!({
            "aggregate": draft.aggregate, "number": number, "pad": draft.temper.name(), "poison": poison,
        });
        let event = Event::json("torture.crash.v1", &payload)?
            .aggregate("torture", draft.aggregate)
            .header("number", number.to_string());
        let key = Uuid::now_v7().to_string();
        let event = if draft.twice { event.dedupe_key(key) } else { event };
        let first = event.clone().build()?;
        let text = String::from_utf8_lossy(first.payload().bytes()).into_owned();
        tx.add_business(first.id(), draft.aggregate, number, &text).await?;
        let mut events = vec![first];
        if draft.twice {
            events.push(event.id(Uuid::now_v7()).build()?);
        }
        let mut intents = Vec::new();
        for (at, event) in events.into_iter().enumerate() {
            intents.push(Intent {
                at: 0,
                producer: self.name.to_owned(),
                table: TABLE.to_owned(),
                event: event.id(),
                aggregate: draft.aggregate.to_owned(),
                number,
                payload: text.clone(),
                headers: headers(&event),
                poison,
                duplicate: at > 0,
            });
            let duplicate = tx.enqueue(self.site, event).await?;
            anyhow::ensure!(
                duplicate == (at > 0),
                "the event was {} a duplicate",
                if duplicate { "" } else { "not" }
            );
        }
        Ok(Begun { tx, intents })
    }

    /// Writes down what is about to end, and then how it did. What is delivered before the first of the two was not committed
    /// yet.
    pub async fn end(&self, begun: Begun, how: Ending) -> Result<()> {
        let Begun { tx, intents } = begun;
        let events: Vec<Uuid> = intents.iter().map(|intent| intent.event).collect();
        for intent in intents {
            self.writer.write(&Record::Intent(Intent { at: now(), ..intent }))?;
        }
        match how {
            Ending::Committed => tx.commit().await?,
            Ending::RolledBack => tx.rollback().await?,
        }
        for event in events {
            self.writer.write(&Record::Outcome { at: now(), event, how: Some(how) })?;
        }
        Ok(())
    }
}

/// As a history has them.
pub(super) fn headers(event: &Event) -> Vec<(String, String)> {
    let headers = event.headers().iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let mut headers: Vec<(String, String)> = headers.collect();
    headers.sort();
    headers
}
