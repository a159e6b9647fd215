//! What a consumer has already taken.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgPool};
use uuid::Uuid;

use super::errors::classify;
use super::schema;
use crate::error::Result;
use crate::store::migrate::Role;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, InboxStore, TableName};

/// A racing transaction is waited for: if it rolls back, this one is first after all.
const RECORD: &str = "INSERT INTO {table} (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";

const PURGE: &str = "
DELETE FROM {table} WHERE ctid = ANY (ARRAY (
    SELECT ctid FROM {table} WHERE received_at <= now() - $1 * interval '1 microsecond'
     ORDER BY received_at LIMIT (SELECT $2::bigint) FOR UPDATE SKIP LOCKED))";

/// An inbox table; the other client libraries execute the same statement.
#[derive(Debug, Clone)]
pub struct PostgresInbox {
    pool: PgPool,
    pub(crate) table: TableName,
    pub(crate) record: Statement,
    purge: Statement,
}

impl PostgresInbox {
    pub(crate) fn new(pool: PgPool, table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Postgres, table, sql);
        Self { pool, table: table.clone(), record: statement(RECORD), purge: statement(PURGE) }
    }

    /// Whether this consumer sees this event for the first time.
    pub(crate) async fn first(
        &self,
        connection: &mut PgConnection,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        let done = sqlx::query(self.record.sql()).bind(consumer).bind(id).execute(connection).await;
        Ok(done.map_err(|e| classify(e, &self.table))?.rows_affected() == 1)
    }
}

#[async_trait]
impl InboxStore for PostgresInbox {
    fn table(&self) -> &TableName {
        &self.table
    }

    async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64> {
        let purge = sqlx::query(self.purge.sql())
            .bind(micros(older_than))
            .bind(i64::from(limit))
            .execute(&self.pool)
            .await;
        Ok(purge.map_err(|e| classify(e, &self.table))?.rows_affected())
    }

    async fn migrate_up(&self) -> Result<Vec<u32>> {
        schema::up(&self.pool, &self.table, Role::Inbox).await
    }

    async fn migrate_down(&self) -> Result<Vec<u32>> {
        schema::down(&self.pool, &self.table, Role::Inbox, 0).await
    }
}
