//! Which transaction fits which outbox, by type.

use crate::error::Result;
use crate::event::Event;
use crate::store::{Enqueued, InboxStore, Store};

use super::Outbox;
use super::hooks::Hooks;

/// A kind of database: `sqlx::Postgres`, `sqlx::MySql`, `sqlx::Sqlite`, or [`Memory`](super::Memory).
pub trait Backend: sealed::Sealed + Send + Sync + 'static {
    /// Its store.
    type Store: Store + Clone;
    /// Its inbox.
    type Inbox: InboxStore;
}

/// An open transaction that an outbox (or inbox) of this backend can write to.
///
/// Implemented for [`OutboxTransaction`](super::OutboxTransaction) and `sqlx::Transaction`, and behind features
/// for the transactions of other client libraries.
/// A service's own function can take any of them:
///
/// ```
/// use posthaste::{Backend, Enqueue, Event, Outbox};
///
/// async fn place_order<B: Backend>(outbox: &Outbox<B>, tx: &mut impl Enqueue<B>) -> posthaste::Result<()> {
///     outbox.enqueue(tx, Event::json("order.placed.v1", &42)?).await?;
///     Ok(())
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction of this outbox's database",
    label = "an event is written in the same transaction as the data it speaks of",
    note = "pass `&mut tx`, where `tx` comes from `outbox.begin().await?`, or from `pool.begin().await?` on its database",
    note = "tokio-postgres, diesel-async and SeaORM transactions need the feature of their name"
)]
pub trait Enqueue<B: Backend>: sealed::Transaction<B> {}

pub(crate) mod sealed {
    use uuid::Uuid;

    use super::{Backend, Enqueued, Event, Hooks, Outbox, Result};

    /// Keeps [`Backend`] to what posthaste implements.
    pub trait Sealed {}

    /// What a transaction must be able to do.
    pub trait Transaction<B: Backend>: Send {
        /// Writes events; one answer per event, in order.
        fn insert(
            &mut self,
            store: &B::Store,
            events: &[Event],
        ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send;

        /// Records an event for a consumer; whether it is the first time.
        fn receive(
            &mut self,
            inbox: &B::Inbox,
            consumer: &str,
            id: Uuid,
        ) -> impl Future<Output = Result<bool>> + Send;

        /// Writes events for an outbox, as well as the transaction can: one that knows its commit may lease
        /// them to a relay, and dates those.
        fn write(
            &mut self,
            outbox: &Outbox<B>,
            events: &mut [Event],
        ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send {
            self.insert(outbox.store(), events)
        }

        /// Keeps what was written for the hooks that run when the transaction ends, where it knows its end.
        fn remember(&mut self, _hooks: &Hooks, _events: &[Event]) {}
    }
}
