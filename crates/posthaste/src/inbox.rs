//! The inbox: a consumer takes each event once, though it may arrive twice.
//!
//! The consumer records the event in the same transaction as what it does about it. Of two deliveries, even
//! at the same time, one is first; the other waits for it and is told so.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::error::{Error, ErrorKind, Result};
use crate::produce::{Backend, Enqueue, Memory};
use crate::store::{InboxStore, MemoryInbox, TableName};

/// Characters a consumer's name may have.
const CONSUMER_LIMIT: usize = 128;
/// Rows a purge deletes at once, so that it never holds locks for long.
const PURGE_BATCH: u32 = 5000;

/// The consumer's handle to an inbox table; clones share it.
///
/// ```
/// # use posthaste::Inbox;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
/// # let event_id = uuid::Uuid::now_v7();
/// let inbox = Inbox::sqlite(pool.clone(), "inbox")?;
/// inbox.migrate().await?;
///
/// let mut tx = pool.begin().await?;
/// if inbox.first(&mut tx, "billing", event_id).await? {
///     // … bill the order, on the same transaction …
/// }
/// tx.commit().await?;
/// # Ok(()) }
/// ```
pub struct Inbox<B: Backend> {
    store: Arc<B::Inbox>,
}

impl<B: Backend> Clone for Inbox<B> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store) }
    }
}

impl<B: Backend> std::fmt::Debug for Inbox<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("table", self.store.table()).finish()
    }
}

impl<B: Backend> Inbox<B> {
    fn new(store: B::Inbox) -> Self {
        Self { store: Arc::new(store) }
    }

    /// Records the event for this consumer in the caller's open transaction, and says whether it is the first
    /// time. If the transaction rolls back, so does the record.
    pub async fn first<T: Enqueue<B> + ?Sized>(
        &self,
        transaction: &mut T,
        consumer: &str,
        event_id: Uuid,
    ) -> Result<bool> {
        check_consumer(consumer)?;
        transaction.receive(&self.store, consumer, event_id).await
    }

    /// Forgets what was received longer ago than this, in batches. Answers with how many.
    ///
    /// Keep records for longer than any delivery can be repeated.
    pub async fn purge(&self, older_than: Duration) -> Result<u64> {
        let mut purged = 0;
        loop {
            let batch = self.store.purge(older_than, PURGE_BATCH).await?;
            purged += batch;
            if batch < u64::from(PURGE_BATCH) {
                return Ok(purged);
            }
        }
    }

    /// Creates the table, or brings it to the newest version; any number may try at once.
    pub async fn migrate(&self) -> Result<Vec<u32>> {
        self.store.migrate_up().await
    }

    /// Drops the table and every record in it.
    pub async fn migrate_down(&self) -> Result<Vec<u32>> {
        self.store.migrate_down().await
    }

    /// The table's name.
    pub fn table(&self) -> &TableName {
        self.store.table()
    }
}

impl Inbox<Memory> {
    /// An inbox in the process's memory, for tests.
    pub fn memory() -> Self {
        Self::new(MemoryInbox::default())
    }
}

#[cfg(feature = "postgres")]
impl Inbox<sqlx::Postgres> {
    /// An inbox in PostgreSQL.
    pub fn postgres(pool: sqlx::PgPool, table: &str) -> Result<Self> {
        Ok(Self::new(crate::store::PostgresInbox::new(pool, &table.parse()?)))
    }
}

#[cfg(feature = "mysql")]
impl Inbox<sqlx::MySql> {
    /// An inbox in MySQL or MariaDB.
    pub fn mysql(pool: sqlx::MySqlPool, table: &str) -> Result<Self> {
        Ok(Self::new(crate::store::MySqlInbox::new(pool, &table.parse()?)))
    }
}

#[cfg(feature = "sqlite")]
impl Inbox<sqlx::Sqlite> {
    /// An inbox in an SQLite file.
    pub fn sqlite(pool: sqlx::SqlitePool, table: &str) -> Result<Self> {
        Ok(Self::new(crate::store::SqliteInbox::new(pool, &table.parse()?)?))
    }
}

fn check_consumer(consumer: &str) -> Result<()> {
    let size = consumer.chars().count();
    if size == 0 {
        return Err(Error::new(ErrorKind::Empty { field: "consumer" }, "the consumer's name is empty"));
    }
    if size > CONSUMER_LIMIT {
        let kind = ErrorKind::TooLong { field: "consumer", limit: CONSUMER_LIMIT, size };
        return Err(Error::new(
            kind,
            format!("the consumer's name has {size} characters, at most {CONSUMER_LIMIT} are allowed"),
        ));
    }
    if let Some(at) = consumer.find(char::is_control) {
        let kind = ErrorKind::ControlCharacter { field: "consumer", at, size };
        return Err(Error::new(kind, format!("the consumer's name has a control character at byte {at}")));
    }
    Ok(())
}
