//! Inbox tables: what consumers have already taken. Written to in the consumer's own transaction, through
//! [`Inbox`](crate::Inbox).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use uuid::Uuid;

use super::TableName;
use crate::error::Result;

/// One inbox table.
#[async_trait]
pub trait InboxStore: Send + Sync + 'static {
    /// The table's name.
    fn table(&self) -> &TableName;

    /// Forgets what was received longer ago, at most `limit`. Answers with how many.
    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64>;

    /// Creates the table, or brings it to the newest version.
    async fn migrate_up(&self) -> Result<Vec<u32>>;

    /// Drops the table.
    async fn migrate_down(&self) -> Result<Vec<u32>>;
}

/// An inbox in memory, for tests; clones share it.
#[derive(Debug, Clone, Default)]
pub struct MemoryInbox {
    table: TableName,
    received: Arc<Mutex<BTreeMap<(String, Uuid), Instant>>>,
}

impl MemoryInbox {
    pub(crate) fn contains(&self, receipt: &(String, Uuid)) -> bool {
        self.lock().contains_key(receipt)
    }

    pub(crate) fn write(&self, receipt: (String, Uuid)) {
        self.lock().insert(receipt, Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, Uuid), Instant>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl InboxStore for MemoryInbox {
    fn table(&self) -> &TableName {
        &self.table
    }

    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64> {
        let mut received = self.lock();
        let old =
            received.iter().filter(|(_, at)| at.elapsed() >= older_than).map(|(receipt, _)| receipt.clone());
        let old: Vec<_> = old.take(limit as usize).collect();
        for receipt in &old {
            received.remove(receipt);
        }
        Ok(old.len() as u64)
    }

    async fn migrate_up(&self) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    async fn migrate_down(&self) -> Result<Vec<u32>> {
        self.lock().clear();
        Ok(Vec::new())
    }
}
