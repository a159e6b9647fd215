//! One transaction of a producer, and what is written down of it.
//!
//! The order matters: the aggregate's counter first, which keeps others of the same aggregate out until the end; then the
//! business rows, then the events. What is intended is written down before the end is asked for, and what came of it
//! after: a producer that dies in between leaves an intent whose end only the business row tells.

use std::collections::HashMap;

use anyhow::Result;
use posthaste::produce::OutboxTransaction;
use posthaste::{Event, EventBuilder, Outbox};
use serde::Serialize;
use sqlx::{Pool, Transaction};
use tokio::sync::watch;
use uuid::Uuid;

use super::Orders;
use super::database::{Speaks, Value};
use super::occasion::{Draft, Occasion, Twice};
use crate::history::{Ending, Intent, Record, Writer, now};
use crate::ledger;
use crate::plan::{Table, Way};

/// A table and its outbox.
pub(super) struct Desk<DB: Speaks> {
    pub(super) table: Table,
    pub(super) outbox: Outbox<DB>,
}

/// Of each table, an event with a key for deduplication that has surely committed: key, aggregate and number.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<String, (String, String, i64)>);

impl Known {
    pub(super) fn of(&self, table: &str) -> Option<&(String, String, i64)> {
        self.0.get(table)
    }
}

/// What consumers are told.
#[derive(Serialize)]
struct Payload<'a> {
    aggregate: &'a str,
    number: i64,
    pad: &'a str,
    poison: bool,
}

/// A transaction that is open.
enum Open<DB: Speaks> {
    Plain(Transaction<'static, DB>),
    Hot(Box<OutboxTransaction<DB>>),
}

/// An event as it is enqueued.
struct Entry {
    intent: Intent,
    topic: String,
    dedupe_key: Option<String>,
}

/// Begins, writes, and ends as the occasion says. An error from before the end leaves nothing behind, neither in the database nor
/// in the history.
pub(super) async fn run<DB: Speaks>(
    orders: &Orders,
    pool: &Pool<DB>,
    desk: &Desk<DB>,
    history: &Writer,
    occasion: &Occasion,
    known: &mut Known,
    stop: &mut watch::Receiver<bool>,
) -> Result<()> {
    let mut open = match orders.way {
        Way::Hot => Open::Hot(Box::new(DB::begin_hot(&desk.outbox).await?)),
        Way::Library | Way::PlainSql => Open::Plain(DB::begin(pool).await?),
    };
    let first = count_on(&mut open, &desk.table, occasion).await?;
    let entries = entries(orders, &desk.table, occasion, first)?;
    for entry in entries.iter().filter(|entry| !entry.intent.duplicate) {
        write_business(&mut open, &entry.intent).await?;
    }
    enqueue(orders, desk, &mut open, &entries, occasion.at_once).await?;
    if let Some(wait) = occasion.stays_open {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    for entry in &entries {
        history.write(&Record::Intent(Intent { at: now(), ..entry.intent.clone() }))?;
    }
    let how = open.end(occasion.rolls_back).await;
    for entry in &entries {
        history.write(&Record::Outcome { at: now(), event: entry.intent.event, how })?;
    }
    if how == Some(Ending::Committed) {
        if orders.way == Way::Library {
            desk.outbox.wake();
        }
        remember(known, &entries);
    }
    Ok(())
}

impl<DB: Speaks> Open<DB> {
    fn connection(&mut self) -> &mut DB::Connection {
        match self {
            Self::Plain(transaction) => transaction,
            Self::Hot(transaction) => transaction,
        }
    }

    /// Ends it. Nobody knows what came of a commit that failed, nor whether a rollback was heard; but what was not told to
    /// commit has not.
    async fn end(self, rolls_back: bool) -> Option<Ending> {
        if rolls_back {
            match self {
                Self::Plain(transaction) => drop(transaction.rollback().await),
                Self::Hot(transaction) => drop(DB::roll_back_hot(*transaction).await),
            }
            return Some(Ending::RolledBack);
        }
        let committed = match self {
            Self::Plain(transaction) => transaction.commit().await.is_ok(),
            Self::Hot(transaction) => DB::commit_hot(*transaction).await.is_ok(),
        };
        committed.then_some(Ending::Committed)
    }
}

/// Takes numbers for all events of the transaction; the first of them.
async fn count_on<DB: Speaks>(open: &mut Open<DB>, table: &Table, occasion: &Occasion) -> Result<i64> {
    let count = i64::try_from(occasion.events.len())?;
    let of = [Value::Text(&table.name), Value::Text(&occasion.aggregate)];
    DB::execute(open.connection(), ledger::COUNT_ON, &[Value::Number(count), of[0], of[1]]).await?;
    let last = DB::number(open.connection(), ledger::COUNTED, &of).await?;
    Ok(last - count + 1)
}

async fn write_business<DB: Speaks>(open: &mut Open<DB>, intent: &Intent) -> Result<()> {
    let id = intent.event.to_string();
    let values = [
        Value::Text(&id),
        Value::Text(&intent.table),
        Value::Text(&intent.aggregate),
        Value::Number(intent.number),
        Value::Number(ledger::hash(&intent.payload)),
    ];
    DB::execute(open.connection(), ledger::ADD_BUSINESS, &values).await?;
    Ok(())
}

/// The events of an occasion, and the one that is enqueued twice.
fn entries(orders: &Orders, table: &Table, occasion: &Occasion, first: i64) -> Result<Vec<Entry>> {
    let aggregate = &occasion.aggregate;
    let mut entries = Vec::with_capacity(occasion.events.len() + 1);
    for (number, draft) in (first..).zip(&occasion.events) {
        entries.push(entry(orders, table, draft, aggregate, number)?);
    }
    let again = |id: Uuid, key: &str, aggregate: &str, number| {
        let draft = Draft {
            id,
            pad: "again".to_owned(),
            headers: vec![("x-event".to_owned(), id.to_string())],
            poison: false,
            dedupe_key: Some(key.to_owned()),
        };
        let mut entry = entry(orders, table, &draft, aggregate, number)?;
        entry.intent.duplicate = true;
        anyhow::Ok(entry)
    };
    match (&occasion.twice, occasion.events.first().and_then(|event| event.dedupe_key.as_deref())) {
        (Some(Twice::Here(id)), Some(key)) => entries.push(again(*id, key, aggregate, first)?),
        (Some(Twice::Again(id, key, aggregate, number)), _) => {
            entries.push(again(*id, key, aggregate, *number)?)
        }
        _ => {}
    }
    Ok(entries)
}

fn entry(orders: &Orders, table: &Table, draft: &Draft, aggregate: &str, number: i64) -> Result<Entry> {
    let payload = Payload { aggregate, number, pad: &draft.pad, poison: draft.poison };
    let intent = Intent {
        at: 0,
        producer: orders.name.clone(),
        table: table.name.clone(),
        event: draft.id,
        aggregate: aggregate.to_owned(),
        number,
        payload: serde_json::to_string(&payload)?,
        headers: draft.headers.clone(),
        poison: draft.poison,
        duplicate: false,
    };
    Ok(Entry { intent, topic: table.topic(draft.poison), dedupe_key: draft.dedupe_key.clone() })
}

/// Enqueues all, in one statement or in one for each.
async fn enqueue<DB: Speaks>(
    orders: &Orders,
    desk: &Desk<DB>,
    open: &mut Open<DB>,
    entries: &[Entry],
    at_once: bool,
) -> Result<()> {
    if orders.way == Way::PlainSql {
        for entry in entries {
            insert(desk, open, entry).await?;
        }
        return Ok(());
    }
    for some in entries.chunks(if at_once { entries.len() } else { 1 }) {
        let events = some.iter().map(Entry::event).collect::<posthaste::Result<Vec<_>>>()?;
        match open {
            Open::Plain(transaction) => DB::enqueue(&desk.outbox, transaction, events).await?,
            Open::Hot(transaction) => DB::enqueue_hot(&desk.outbox, transaction, events).await?,
        };
    }
    Ok(())
}

impl Entry {
    fn event(&self) -> posthaste::Result<EventBuilder> {
        let Intent { event, aggregate, payload, headers, .. } = &self.intent;
        let mut builder =
            Event::builder(&self.topic).id(*event).aggregate("torture", aggregate).json_text(payload)?;
        for (name, value) in headers {
            builder = builder.header(name, value);
        }
        Ok(match &self.dedupe_key {
            Some(key) => builder.dedupe_key(key),
            None => builder,
        })
    }
}

/// As any program would do it.
async fn insert<DB: Speaks>(desk: &Desk<DB>, open: &mut Open<DB>, entry: &Entry) -> Result<()> {
    let intent = &entry.intent;
    let id = intent.event.to_string();
    let headers: HashMap<&str, &str> =
        intent.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let headers = serde_json::to_string(&headers)?;
    let values = [
        Value::Text(&id),
        Value::Text(&entry.topic),
        Value::Text(&intent.aggregate),
        entry.dedupe_key.as_deref().map_or(Value::Nothing, Value::Text),
        Value::Text(&headers),
        Value::Text(&intent.payload),
    ];
    let sql = DB::INSERT.replace("{table}", &desk.table.name);
    match DB::execute(open.connection(), &sql, &values).await {
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() && intent.duplicate => Ok(()),
        other => Ok(other?),
    }
}

fn remember(known: &mut Known, entries: &[Entry]) {
    for entry in entries.iter().filter(|entry| !entry.intent.duplicate && !entry.intent.poison) {
        if let Some(key) = &entry.dedupe_key {
            let Intent { table, aggregate, number, .. } = &entry.intent;
            known.0.insert(table.clone(), (key.clone(), aggregate.clone(), *number));
        }
    }
}
