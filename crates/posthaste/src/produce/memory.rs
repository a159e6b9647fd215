//! Transactions on the outbox in memory.

use std::sync::Arc;

use uuid::Uuid;

use super::backend::{Backend, Enqueue, sealed};
use super::gate::Gate;
use super::hooks::{AtEnd, Hooks};
use super::{Outbox, OutboxBuilder};
use crate::error::Result;
use crate::event::Event;
use crate::store::memory::same_dedupe_key;
use crate::store::{Enqueued, MemoryInbox, MemoryStore};

/// The backend of an outbox in memory, for tests.
#[derive(Debug, Clone, Copy)]
pub enum Memory {}

impl sealed::Sealed for Memory {}

impl Backend for Memory {
    type Store = MemoryStore;
    type Inbox = MemoryInbox;
}

impl Outbox<Memory> {
    /// An outbox in the process's memory, for tests.
    pub fn memory() -> OutboxBuilder<Memory> {
        OutboxBuilder::new(|table| Ok(MemoryStore::named(table)))
    }

    /// A transaction on it: what is enqueued exists from its commit on.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction::default()
    }
}

/// A transaction on outboxes in memory; dropping it rolls back. As in a database, one transaction may write to
/// any number of outboxes.
#[derive(Default)]
#[must_use = "what is enqueued exists from the commit on"]
pub struct MemoryTransaction {
    written: Vec<(MemoryStore, Event)>,
    received: Vec<(MemoryInbox, (String, Uuid))>,
    gates: Vec<Arc<Gate>>,
    at_end: AtEnd,
}

impl std::fmt::Debug for MemoryTransaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryTransaction").field("written", &self.written.len()).finish_non_exhaustive()
    }
}

impl MemoryTransaction {
    /// Makes what was enqueued exist.
    pub fn commit(self) {
        for (store, event) in self.written {
            store.write(&[event]);
        }
        for (inbox, receipt) in self.received {
            inbox.write(receipt);
        }
        self.at_end.committed();
        for gate in self.gates {
            gate.wake();
        }
    }

    /// Makes it as if nothing had been enqueued.
    pub fn rollback(self) {}

    fn find_first(&self, store: &MemoryStore, event: &Event) -> Option<Enqueued> {
        let own = self.written.iter().find(|(written_to, written)| {
            written_to.is(store) && (written.id == event.id || same_dedupe_key(written, event))
        });
        store.find_first(event).or_else(|| own.map(|(_, first)| Enqueued::duplicate(first.id, None)))
    }
}

impl Enqueue<Memory> for MemoryTransaction {}

impl sealed::Transaction<Memory> for MemoryTransaction {
    async fn insert(&mut self, store: &MemoryStore, events: &[Event]) -> Result<Vec<Enqueued>> {
        let mut answers = Vec::with_capacity(events.len());
        for event in events {
            answers.push(match self.find_first(store, event) {
                Some(first) => first,
                None => {
                    self.written.push((store.clone(), event.clone()));
                    Enqueued::new(event.id, None)
                }
            });
        }
        Ok(answers)
    }

    async fn receive(&mut self, inbox: &MemoryInbox, consumer: &str, id: Uuid) -> Result<bool> {
        let receipt = (consumer.to_owned(), id);
        let seen = inbox.contains(&receipt) || self.received.iter().any(|(_, own)| *own == receipt);
        if !seen {
            self.received.push((inbox.clone(), receipt));
        }
        Ok(!seen)
    }

    async fn write(&mut self, outbox: &Outbox<Memory>, events: &mut [Event]) -> Result<Vec<Enqueued>> {
        self.gates.push(Arc::clone(outbox.gate()));
        self.insert(outbox.store(), events).await
    }

    fn remember(&mut self, hooks: &Hooks, events: &[Event]) {
        self.at_end.push(hooks, events);
    }
}
