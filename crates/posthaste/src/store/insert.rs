//! How events get into a table, the same for every database and client library.
//!
//! The insert itself decides who is first, in one statement and rightly under a race. Only a duplicate needs
//! a second one, which reads who was first.

use std::collections::HashMap;

use uuid::Uuid;

use super::columns::{Columns, chunks};
use super::{BirthLease, Enqueued, TableName};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

/// For which event, which row.
pub(crate) struct Named {
    pub(crate) wanted: Uuid,
    pub(crate) id: Uuid,
    pub(crate) sequence: Option<i64>,
}

/// What a client library must be able to do, inside the caller's transaction.
pub(crate) trait Insert: Send {
    /// Most rows of one statement.
    const MOST_ROWS: usize = usize::MAX;

    /// The table it writes to.
    fn table(&self) -> &TableName;

    /// Writes one event; no row for a duplicate.
    fn insert_one(&mut self, event: &Columns<'_>) -> impl Future<Output = Result<Vec<Named>>> + Send;

    /// Writes events in one round trip; no row for a duplicate.
    fn insert_many(&mut self, events: &[Columns<'_>]) -> impl Future<Output = Result<Vec<Named>>> + Send;

    /// Finds the row that has an event's id, else the one that has its dedupe key.
    fn find_first(&mut self, events: &[&Columns<'_>]) -> impl Future<Output = Result<Vec<Named>>> + Send;
}

/// Writes events inside the caller's transaction; one answer per event, in order.
pub(crate) async fn insert<C: Insert>(client: C, events: &[Event]) -> Result<Vec<Enqueued>> {
    insert_chunks(client, chunks(events.iter().map(Columns::of), C::MOST_ROWS)).await
}

/// The same for events of which some are leased from the beginning.
pub(crate) async fn insert_leased<C: Insert>(
    client: C,
    events: &[Event],
    leases: &[Option<BirthLease<'_>>],
) -> Result<Vec<Enqueued>> {
    let leased = |(event, lease): (_, &Option<_>)| Columns { lease: *lease, ..Columns::of(event) };
    insert_chunks(client, chunks(events.iter().zip(leases).map(leased), C::MOST_ROWS)).await
}

async fn insert_chunks<C: Insert>(mut client: C, chunks: Vec<Vec<Columns<'_>>>) -> Result<Vec<Enqueued>> {
    let mut enqueued = Vec::with_capacity(chunks.iter().map(Vec::len).sum());
    for chunk in chunks {
        enqueued.append(&mut insert_chunk(&mut client, &chunk).await?);
    }
    Ok(enqueued)
}

async fn insert_chunk<C: Insert>(client: &mut C, chunk: &[Columns<'_>]) -> Result<Vec<Enqueued>> {
    let written = match chunk {
        [event] => client.insert_one(event).await?,
        events => client.insert_many(events).await?,
    };
    failpoint!("enqueue.inserted");
    if let ([event], [row]) = (chunk, &*written) {
        return Ok(vec![Enqueued::new(event.id, row.sequence)]);
    }
    let mut written: HashMap<Uuid, Option<i64>> =
        written.into_iter().map(|row| (row.id, row.sequence)).collect();
    // The same id twice in one call: the first takes the row, the second is its duplicate.
    let mut answers: Vec<Option<Enqueued>> = chunk
        .iter()
        .map(|event| written.remove(&event.id).map(|sequence| Enqueued::new(event.id, sequence)))
        .collect();
    let duplicates: Vec<&Columns<'_>> =
        chunk.iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(event, _)| event).collect();
    if duplicates.is_empty() {
        return Ok(answers.into_iter().flatten().collect());
    }
    failpoint!("enqueue.duplicate");
    let first: HashMap<Uuid, Named> =
        client.find_first(&duplicates).await?.into_iter().map(|row| (row.wanted, row)).collect();
    for (event, answer) in chunk.iter().zip(&mut answers).filter(|(_, answer)| answer.is_none()) {
        *answer = Some(match first.get(&event.id) {
            Some(row) => Enqueued::duplicate(row.id, row.sequence),
            None => again(client, event).await?,
        });
    }
    Ok(answers.into_iter().flatten().collect())
}

/// A duplicate whose first one was deleted before it could be read is tried again; each time needs another
/// producer to win the race and a relay to deliver and delete in between.
async fn again<C: Insert>(client: &mut C, event: &Columns<'_>) -> Result<Enqueued> {
    const TRIES: usize = 5;
    for _ in 0..TRIES {
        if let Some(row) = client.insert_one(event).await?.first() {
            return Ok(Enqueued::new(row.id, row.sequence));
        }
        if let Some(row) = client.find_first(&[event]).await?.first() {
            return Ok(Enqueued::duplicate(row.id, row.sequence));
        }
    }
    let message = format!(
        "event {}: its duplicate in table {} vanished before it could be read, again and again",
        event.id,
        client.table()
    );
    Err(Error::new(ErrorKind::Conflict, message))
}
