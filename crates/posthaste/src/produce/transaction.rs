//! Transactions that know their commit: after it, their events go straight to a relay in the same process.
//!
//! When an event is written, a slot in the relay's queue is asked for. If there is one, the row is written
//! already leased to that relay, and after the commit the event is handed over, without a claim. If there is
//! none, or the event is for later, the row is an ordinary pending one, and relays are woken after the commit.
//! A transaction that takes so long that a lease is half over makes its row an ordinary one, too.
//! Whatever goes wrong in between, the lease ends and the row is claimed like any other.
//!
//! No event is handed over whose transaction has not committed. A commit that the client library calls
//! successful need not have been one: PostgreSQL answers the commit of an aborted transaction by rolling it
//! back, a deadlock ends a MySQL transaction, and a savepoint may have taken single rows with it. So if
//! anything but the writing of events has run on the connection since, the database is asked what is there.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::{Connection, Database, Transaction};
use time::{OffsetDateTime, UtcOffset};
use tracing::Instrument;
use uuid::Uuid;

use super::Outbox;
use super::backend::{Backend, Enqueue, sealed};
use super::gate::Written;
use super::hooks::{AtEnd, Hooks};
use super::unbroken::Unbroken;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Available, Event};
use crate::store::{BirthLease, Enqueued, Keep, Lease, Settlement, Store, TableName};
use crate::telemetry;

/// What a database must be able to do inside such a transaction.
pub trait Sql: Backend + Database {
    /// Begins one.
    fn begin(store: &Self::Store) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;

    /// Writes events; one answer per event, in order.
    fn insert(
        connection: &mut Self::Connection,
        store: &Self::Store,
        events: &[Event],
    ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send;

    /// Writes events of which some are leased from the beginning.
    fn insert_leased(
        connection: &mut Self::Connection,
        store: &Self::Store,
        events: &[Event],
        leases: &[Option<BirthLease<'_>>],
    ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send;

    /// Records an event for a consumer; whether it is the first time.
    fn receive(
        connection: &mut Self::Connection,
        inbox: &Self::Inbox,
        consumer: &str,
        id: Uuid,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Which of the leases there still are rows for, and their sequences.
    fn find_leased(
        connection: &mut Self::Connection,
        store: &Self::Store,
        leases: &[&Lease],
    ) -> impl Future<Output = Result<Vec<(Uuid, i64)>>> + Send;

    /// Makes leased rows of this transaction ordinary pending ones.
    fn unlease(
        connection: &mut Self::Connection,
        store: &Self::Store,
        leases: &[&Lease],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Fails if the transaction can only roll back any more, where a commit would not say so.
    fn probe(
        connection: &mut Self::Connection,
        store: &Self::Store,
    ) -> impl Future<Output = Result<()>> + Send;

    /// An error on this table.
    fn error(error: sqlx::Error, table: &TableName) -> Error;
}

impl<DB: Sql> Outbox<DB> {
    /// Begins a transaction that knows its commit: what is enqueued in it goes straight to a relay in this
    /// process, if there is one with room for it, and wakes the other relays if not.
    ///
    /// ```
    /// use posthaste::{Event, Outbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    /// # sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&pool).await?;
    /// # let outbox = Outbox::sqlite(pool).build()?;
    /// # outbox.migrate().await?;
    /// let mut tx = outbox.begin().await?;
    /// sqlx::query("INSERT INTO orders (id) VALUES (42)").execute(&mut *tx).await?;
    /// outbox.enqueue(&mut tx, Event::json("order.placed.v1", &42)?.aggregate("order", 42)).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// On SQLite it is a `BEGIN IMMEDIATE`, so that it may read before it writes.
    pub async fn begin(&self) -> Result<OutboxTransaction<DB>> {
        // Where a caller is dropped half-way, sqlx would put a connection back into the pool inside an open transaction, with
        // which the next one's statements would be rolled back. So it is begun in any case, and what nobody takes any more is
        // rolled back.
        let outbox = self.clone();
        let begins = async move { DB::begin(outbox.store()).await };
        let transaction = Unbroken::new(begins.in_current_span()).await?;
        Ok(OutboxTransaction {
            outbox: self.clone(),
            transaction,
            batches: Vec::new(),
            at_end: AtEnd::default(),
            touched: false,
            disturbed: false,
            concerned: false,
        })
    }
}

/// A transaction that knows its commit, from [`Outbox::begin`]; dropping it rolls back.
///
/// It is used like the `sqlx::Transaction` that it wraps: `&mut *tx` is the connection, for queries and for
/// functions that take one. Events of any number of outboxes in the same database may be enqueued in it.
///
/// Enqueue last where you can: after other statements the commit makes sure, in one more, that the events are
/// still there.
///
/// - A transaction nested in it with `sqlx::Connection::begin(&mut *tx)` is a plain one of sqlx: what is
///   enqueued in that is an ordinary pending row, which comes and goes with it.
/// - What was enqueued after a `SAVEPOINT` of your own and undone by `ROLLBACK TO` is not delivered: that is
///   what the commit makes sure of.
#[must_use = "what is enqueued exists from the commit on"]
pub struct OutboxTransaction<DB: Backend + Database> {
    outbox: Outbox<DB>,
    // These end in this order: rolled back, the slots free, the hooks told.
    transaction: Transaction<'static, DB>,
    batches: Vec<Batch<DB>>,
    at_end: AtEnd,
    /// Whether anything may have run on the connection since events were last written.
    touched: bool,
    /// Whether anything else may have run on it since the first leased row was written.
    disturbed: bool,
    /// Whether an event or an inbox was to be written in it.
    concerned: bool,
}

/// What was written to one outbox.
struct Batch<DB: Backend> {
    outbox: Outbox<DB>,
    hot: Vec<Written>,
    /// Whether the database has not told the sequences of all that is hot.
    unnumbered: bool,
    cold: usize,
}

impl<DB: Backend + Database> std::fmt::Debug for OutboxTransaction<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hot = self.batches.iter().map(|batch| batch.hot.len()).sum::<usize>();
        let cold = self.batches.iter().map(|batch| batch.cold).sum::<usize>();
        f.debug_struct("OutboxTransaction").field("hot", &hot).field("cold", &cold).finish_non_exhaustive()
    }
}

impl<DB: Backend + Database> Deref for OutboxTransaction<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.transaction
    }
}

impl<DB: Backend + Database> DerefMut for OutboxTransaction<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.doubt();
        &mut self.transaction
    }
}

impl<DB: Backend + Database> OutboxTransaction<DB> {
    /// An event or an inbox is going to be written; answers with what was known of the connection before.
    fn begin_writing(&mut self) -> bool {
        self.concerned = true;
        self.doubt()
    }

    /// Something is going to run on the connection; answers with what was known of it before.
    fn doubt(&mut self) -> bool {
        self.touched = true;
        std::mem::replace(&mut self.disturbed, true)
    }

    /// What ran was our own and has succeeded, so that the transaction stands; a call that fails or is
    /// dropped half-way never gets here.
    fn trust(&mut self, disturbed: bool) {
        self.touched = false;
        self.disturbed = disturbed;
    }
}

impl<DB: Sql> OutboxTransaction<DB> {
    /// Commits; then events go to the relay that has them leased, and relays are woken for the others.
    ///
    /// On PostgreSQL it fails if a statement has failed before: that has aborted the transaction, and its
    /// commit is a rollback. (A transaction in which nothing was to be enqueued is committed as by sqlx, which does not
    /// tell.) If it fails because the connection broke, the transaction may have committed all
    /// the same: its events are then delivered when they are claimed.
    pub async fn commit(mut self) -> Result<()> {
        self.verify().await?;
        let Self { outbox, transaction, batches, at_end, .. } = self;
        failpoint!("commit.verified");
        transaction.commit().await.map_err(|error| DB::error(error, outbox.table()))?;
        failpoint!("commit.committed");
        at_end.committed();
        // All are handed over before anything is waited for: a caller that is gone takes none with it.
        let refused: Vec<_> = batches.into_iter().filter_map(Batch::hand_over).collect();
        failpoint!("commit.handed_over");
        for (outbox, leases) in refused {
            release(&outbox, leases).await;
        }
        Ok(())
    }

    /// Rolls back: as if nothing had been enqueued.
    pub async fn rollback(self) -> Result<()> {
        let Self { outbox, transaction, .. } = self;
        transaction.rollback().await.map_err(|error| DB::error(error, outbox.table()))
    }

    /// Makes sure that a commit is going to be one, and for which of the leased events.
    async fn verify(&mut self) -> Result<()> {
        let mut asked = false;
        for batch in &mut self.batches {
            if !batch.hot.is_empty() && (self.disturbed || batch.unnumbered) {
                let leases: Vec<&Lease> = batch.hot.iter().map(Written::lease).collect();
                let found = DB::find_leased(&mut self.transaction, batch.outbox.store(), &leases).await?;
                let sequences: HashMap<Uuid, i64> = found.into_iter().collect();
                batch.hot.retain_mut(|written| match sequences.get(&written.lease().id()) {
                    Some(sequence) => {
                        written.set_sequence(*sequence);
                        true
                    }
                    None => false,
                });
                asked = true;
            }
            // A lease that ends before its event is dispatched would have counted an attempt that was none, and
            // at its last allowed one the event would be dead.
            let (fresh, stale): (Vec<Written>, Vec<Written>) =
                std::mem::take(&mut batch.hot).into_iter().partition(Written::is_fresh);
            batch.hot = fresh;
            if !stale.is_empty() {
                let leases: Vec<&Lease> = stale.iter().map(Written::lease).collect();
                DB::unlease(&mut self.transaction, batch.outbox.store(), &leases).await?;
                batch.cold += stale.len();
                asked = true;
            }
        }
        // What has nothing to do with the outbox is committed as it would be without it.
        if self.touched && self.concerned && !asked {
            DB::probe(&mut self.transaction, self.outbox.store()).await?;
        }
        // A nested transaction that is cancelled while it begins takes this one with it.
        if !self.transaction.is_in_transaction() {
            let message =
                format!("the transaction on table {} has ended before its commit", self.outbox.table());
            return Err(Error::new(ErrorKind::NotInTransaction, message));
        }
        Ok(())
    }

    /// What has been written to this outbox.
    fn batch(&mut self, outbox: &Outbox<DB>) -> &mut Batch<DB> {
        let known = self.batches.iter().position(|batch| batch.outbox.is(outbox));
        let at = known.unwrap_or_else(|| {
            self.batches.push(Batch { outbox: outbox.clone(), hot: Vec::new(), unnumbered: false, cold: 0 });
            self.batches.len() - 1
        });
        &mut self.batches[at]
    }
}

impl<DB: Sql> Enqueue<DB> for OutboxTransaction<DB> {}

impl<DB: Sql> sealed::Transaction<DB> for OutboxTransaction<DB> {
    async fn insert(&mut self, store: &DB::Store, events: &[Event]) -> Result<Vec<Enqueued>> {
        let before = self.begin_writing();
        let answers = DB::insert(&mut self.transaction, store, events).await?;
        self.trust(before);
        Ok(answers)
    }

    async fn receive(&mut self, inbox: &DB::Inbox, consumer: &str, id: Uuid) -> Result<bool> {
        let before = self.begin_writing();
        let first = DB::receive(&mut self.transaction, inbox, consumer, id).await?;
        self.trust(before);
        Ok(first)
    }

    async fn write(&mut self, outbox: &Outbox<DB>, events: &mut [Event]) -> Result<Vec<Enqueued>> {
        let wanted = events.iter().filter(|event| !matches!(event.available, Available::After(_))).count();
        let Some(mut slots) = outbox.gate().reserve(wanted) else {
            let answers = self.insert(outbox.store(), events).await?;
            if outbox.gate().has_relay() {
                telemetry::hot(outbox.table(), 0, wanted);
            }
            self.batch(outbox).cold += answers.iter().filter(|answer| !answer.duplicate).count();
            return Ok(answers);
        };
        let (now, holder, length) = (slots.now(), Arc::clone(slots.holder()), slots.lease());
        let mut free = slots.len();
        telemetry::hot(outbox.table(), 0, wanted - free);
        let mut leases = Vec::with_capacity(events.len());
        for event in events.iter_mut() {
            let leased = free > 0 && is_due(event, now);
            if leased {
                free -= 1;
                event.occurred_at = Some(as_stored(event.occurred_at.unwrap_or(now)));
            }
            leases.push(leased.then_some(BirthLease { holder: &holder, length }));
        }

        let before = self.begin_writing();
        let answers = DB::insert_leased(&mut self.transaction, outbox.store(), events, &leases).await?;
        let first = self.batches.iter().all(|batch| batch.hot.is_empty());
        self.trust(before && !first);

        let batch = self.batch(outbox);
        for ((event, lease), answer) in events.iter().zip(&leases).zip(&answers) {
            if answer.duplicate {
                continue;
            }
            let written = lease.and_then(|_| {
                let sequence = answer.sequence.unwrap_or_default();
                let lease = Lease { id: event.id, sequence, holder: Arc::clone(&holder), attempt: 1 };
                slots.take(Arc::new(event.clone()), lease, now)
            });
            match written {
                Some(written) => {
                    batch.hot.push(written);
                    batch.unnumbered |= answer.sequence.is_none();
                }
                None => batch.cold += 1,
            }
        }
        Ok(answers)
    }

    fn remember(&mut self, hooks: &Hooks, events: &[Event]) {
        self.at_end.push(hooks, events);
    }
}

impl<DB: Sql> Batch<DB> {
    /// Hands over what is hot and wakes relays for the rest; answers with the leases of what no relay takes
    /// any more.
    fn hand_over(self) -> Option<(Outbox<DB>, Vec<Lease>)> {
        let leased = self.hot.len();
        let refused: Vec<Lease> =
            self.hot.into_iter().filter_map(|written| written.hand_over().err()).collect();
        telemetry::hot(self.outbox.table(), leased - refused.len(), 0);
        if self.cold > 0 {
            self.outbox.wake();
        }
        (!refused.is_empty()).then_some((self.outbox, refused))
    }
}

/// Makes leased events pending ones, for any relay to claim.
async fn release<DB: Sql>(outbox: &Outbox<DB>, leases: Vec<Lease>) {
    let settlements: Vec<Settlement> = leases.into_iter().map(Settlement::released).collect();
    match outbox.store().settle(&settlements, Keep::Delivered).await {
        Ok(_) => outbox.wake(),
        Err(error) => tracing::warn!(
            table = %outbox.table(), events = settlements.len(), %error,
            "the relay in this process has stopped, and its events could not be released; they are delivered when their leases end"
        ),
    }
}

/// Whether an event may be delivered as soon as it is committed.
fn is_due(event: &Event, now: OffsetDateTime) -> bool {
    match event.available {
        Available::Now => true,
        Available::After(_) => false,
        Available::At(at) => at <= now,
    }
}

/// A time as it is read back: in UTC, to the microsecond.
fn as_stored(at: OffsetDateTime) -> OffsetDateTime {
    let at = at.to_offset(UtcOffset::UTC);
    at.replace_microsecond(at.microsecond()).unwrap_or(at)
}

#[cfg(feature = "sqlite")]
#[cfg(test)]
mod tests;
