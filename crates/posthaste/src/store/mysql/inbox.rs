//! What a consumer has already taken.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnection, MySqlPool};
use uuid::Uuid;

use super::errors::{classify, is_duplicate};
use super::schema;
use crate::error::Result;
use crate::store::migrate::Role;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, InboxStore, TableName};

/// A racing transaction is waited for: if it rolls back, this one is first after all.
const RECORD: &str = "INSERT INTO {table} (consumer, event_id) VALUES (?, ?)";

const PURGE: &str = "DELETE FROM {table} WHERE received_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY received_at LIMIT ?";

/// An inbox table; the other client libraries execute the same statement.
#[derive(Debug, Clone)]
pub struct MySqlInbox {
    pool: MySqlPool,
    pub(crate) table: TableName,
    pub(crate) record: Statement,
    purge: Statement,
}

impl MySqlInbox {
    pub(crate) fn new(pool: MySqlPool, table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        Self { pool, table: table.clone(), record: statement(RECORD), purge: statement(PURGE) }
    }

    /// Whether this consumer sees this event for the first time.
    pub(crate) async fn first(
        &self,
        connection: &mut MySqlConnection,
        consumer: &str,
        id: Uuid,
    ) -> Result<bool> {
        match sqlx::query(self.record.sql()).bind(consumer).bind(id).execute(connection).await {
            Ok(_) => Ok(true),
            Err(error) if is_duplicate(&error) => Ok(false),
            Err(error) => Err(classify(error, &self.table)),
        }
    }
}

#[async_trait]
impl InboxStore for MySqlInbox {
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
