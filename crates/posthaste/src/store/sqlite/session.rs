//! Sessions: locks are rows with a lease, taken and renewed by one statement each. A file cannot tell whose
//! process is gone, so that nobody is present, and the locks of the dead end by time.
//!
//! They go through the pool: a database in memory is its connections' alone.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::SqlitePool;

use super::errors::classify;
use crate::error::Result;
use crate::store::session::gone;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, Lock, Session, TableName, WorkerId};

/// How long a lock lasts that is not renewed.
const LEASE: Duration = Duration::from_secs(10);

// Tables whose names differ in case only are one table here.
const TABLE: &str = "
CREATE TABLE IF NOT EXISTS posthaste_locks (name TEXT NOT NULL COLLATE NOCASE PRIMARY KEY, holder TEXT NOT NULL, until INTEGER NOT NULL)";

const LOCK: &str = "
INSERT INTO posthaste_locks (name, holder, until) VALUES ('{name}.' || ?1, ?2, {now} + ?3)
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
 WHERE holder = excluded.holder OR until <= {now}
RETURNING 1";

const UNLOCK: &str = "DELETE FROM posthaste_locks WHERE name = '{name}.' || ?1 AND holder = ?2";

const CHECK: &str = "SELECT 1";

/// A session, and the locks it has taken and not lost.
struct SqliteSession {
    pool: SqlitePool,
    table: TableName,
    worker: WorkerId,
    lock: Statement,
    unlock: Statement,
    // Whether the table of locks is known to be there.
    ready: bool,
    held: HashSet<Lock>,
}

/// Opens a session for a worker.
pub(super) async fn open(
    pool: &SqlitePool,
    table: &TableName,
    worker: &WorkerId,
) -> Result<Box<dyn Session>> {
    let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
    Ok(Box::new(SqliteSession {
        pool: pool.clone(),
        table: table.clone(),
        worker: worker.clone(),
        lock: statement(LOCK),
        unlock: statement(UNLOCK),
        ready: false,
        held: HashSet::new(),
    }))
}

#[async_trait]
impl Session for SqliteSession {
    fn worker(&self) -> &WorkerId {
        &self.worker
    }

    async fn try_lock(&mut self, lock: Lock) -> Result<bool> {
        if !self.ready {
            sqlx::query(TABLE).execute(&self.pool).await.map_err(|e| classify(e, &self.table))?;
            self.ready = true;
        }
        let locked = sqlx::query(self.lock.sql())
            .bind(lock.as_str())
            .bind(self.worker.as_str().to_owned())
            .bind(micros(LEASE))
            .fetch_all(&self.pool)
            .await
            .map_err(|e| classify(e, &self.table))?;
        if locked.is_empty() {
            self.held.remove(&lock);
        } else {
            self.held.insert(lock);
        }
        Ok(!locked.is_empty())
    }

    async fn unlock(&mut self, lock: Lock) -> Result<()> {
        if !self.held.remove(&lock) {
            return Ok(());
        }
        sqlx::query(self.unlock.sql())
            .bind(lock.as_str())
            .bind(self.worker.as_str().to_owned())
            .execute(&self.pool)
            .await
            .map_err(|e| classify(e, &self.table))?;
        Ok(())
    }

    /// Renews what it holds.
    async fn check(&mut self) -> Result<()> {
        if self.held.is_empty() {
            sqlx::query(CHECK).execute(&self.pool).await.map_err(|e| classify(e, &self.table))?;
        }
        for lock in self.held.clone() {
            if !self.try_lock(lock).await? {
                let why = format!("the lease of its {} lock ended, and another has it", lock.as_str());
                return Err(gone(&self.worker, &self.table, &why));
            }
        }
        Ok(())
    }

    /// A file has no connection that could be gone; what it holds has to be renewed.
    async fn ping(&mut self) -> Result<()> {
        if self.held.is_empty() { Ok(()) } else { self.check().await }
    }

    async fn close(mut self: Box<Self>) {
        for lock in self.held.clone() {
            if let Err(error) = self.unlock(lock).await {
                tracing::debug!(%error, table = %self.table, "a lock is left to the end of its lease");
            }
        }
    }
}

/// Nobody is known to be absent.
pub(super) async fn absent_workers(_pool: &SqlitePool, _table: &TableName) -> Result<Vec<String>> {
    Ok(Vec::new())
}

/// Nobody is known to be absent.
pub(super) async fn end_leases_of(
    _pool: &SqlitePool,
    _table: &TableName,
    _workers: &[String],
) -> Result<u64> {
    Ok(0)
}
