//! What a consumer has already taken.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use uuid::Uuid;

use super::errors::classify;
use super::{refuse_schema, schema};
use crate::error::Result;
use crate::store::migrate::Role;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, InboxStore, TableName};

const RECORD: &str = "INSERT INTO {table} (consumer, event_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING";

const PURGE: &str = "
DELETE FROM {table} WHERE (consumer, event_id) IN (
    SELECT consumer, event_id FROM {table} WHERE received_at <= {now} - ?1 LIMIT ?2)";

/// An inbox table; the other client libraries execute the same statement.
#[derive(Debug, Clone)]
pub struct SqliteInbox {
    pool: SqlitePool,
    pub(crate) table: TableName,
    pub(crate) record: Statement,
    purge: Statement,
}

impl SqliteInbox {
    pub(crate) fn new(pool: SqlitePool, table: &TableName) -> Result<Self> {
        refuse_schema(table)?;
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        Ok(Self { pool, table: table.clone(), record: statement(RECORD), purge: statement(PURGE) })
    }

    /// Whether this consumer sees this event for the first time.
    pub(crate) async fn first(
        &self,
        connection: &mut SqliteConnection,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        let done = sqlx::query(self.record.sql())
            .bind(consumer.to_owned())
            .bind(id.hyphenated().to_string())
            .execute(connection)
            .await;
        Ok(done.map_err(|e| classify(e, &self.table))?.rows_affected() == 1)
    }
}

#[async_trait]
impl InboxStore for SqliteInbox {
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
