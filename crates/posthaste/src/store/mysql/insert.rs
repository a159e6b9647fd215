//! Events into the table: one statement, whichever of the two unique keys a duplicate hits.
//!
//! A duplicate fails the statement and leaves the transaction as it was; `INSERT IGNORE` would swallow what
//! else may be wrong with a row, `ON DUPLICATE KEY UPDATE` would lock the first one's row for writing.

use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlQueryResult};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, Row};

use super::{errors, stored_time};
use crate::error::{Error, Result};
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named};
use crate::store::statement::Statement;
use crate::store::{Dialect, TableName};

const INTO: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at)
VALUES ";

const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, UTC_TIMESTAMP(6)), COALESCE(?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND))";

// Locking reads see what has been committed since the transaction began, and each must say so for itself.
const FIRST: &str = "
(SELECT id, seq FROM {table} WHERE id = ? LIMIT 1 LOCK IN SHARE MODE)
UNION ALL
(SELECT id, seq FROM {table} WHERE dedupe_key = ? AND namespace = ? AND topic = ? LIMIT 1 LOCK IN SHARE MODE)
LIMIT 1";

/// What an insert executes; the other client libraries execute the same.
#[derive(Debug, Clone)]
pub(crate) struct Statements {
    pub(crate) table: TableName,
    into: Statement,
    row: Statement,
    pub(crate) one: Statement,
    pub(crate) first: Statement,
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let (into, row) = (statement(INTO), statement(ROW));
        let one = Statement::joined(&[into.text(), row.text()]);
        Self { table: table.clone(), into, row, one, first: statement(FIRST) }
    }

    /// The insert of this many rows.
    pub(crate) fn many(&self, rows: usize) -> String {
        let rows = vec![self.row.text(); rows].join(", ");
        [self.into.text(), &rows].concat()
    }
}

/// A connection of sqlx's, inside the caller's transaction.
pub(crate) struct Client<'c> {
    pub(crate) connection: &'c mut MySqlConnection,
    pub(crate) statements: &'c Statements,
}

impl Insert for Client<'_> {
    /// Well below the 65 535 values that MySQL takes.
    const MOST_ROWS: usize = 1000;

    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let written =
            bind(sqlx::query(self.statements.one.sql()), event).execute(&mut *self.connection).await;
        Ok(self
            .unless_duplicate(written)?
            .map(|done| Named { sequence: sequence(&done), ..named(event) })
            .into_iter()
            .collect())
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let query = sqlx::query(AssertSqlSafe(self.statements.many(events.len()))).persistent(false);
        let written = events.iter().fold(query, bind).execute(&mut *self.connection).await;
        if self.unless_duplicate(written)?.is_some() {
            return Ok(events.iter().map(named).collect());
        }
        // One of them is a duplicate and none was written: find out which, one at a time.
        let mut named = Vec::with_capacity(events.len());
        for event in events {
            named.append(&mut self.insert_one(event).await?);
        }
        Ok(named)
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let mut found = Vec::with_capacity(events.len());
        for event in events {
            let row = sqlx::query(self.statements.first.sql())
                .bind(event.id)
                .bind(event.dedupe_key)
                .bind(event.namespace)
                .bind(event.topic)
                .fetch_optional(&mut *self.connection)
                .await
                .map_err(|error| self.error(error))?;
            if let Some(row) = row {
                let read =
                    || Ok(Named { wanted: event.id, id: row.try_get(0)?, sequence: Some(row.try_get(1)?) });
                found.push(read().map_err(|error| self.error(error))?);
            }
        }
        Ok(found)
    }
}

impl Client<'_> {
    fn unless_duplicate(&self, written: sqlx::Result<MySqlQueryResult>) -> Result<Option<MySqlQueryResult>> {
        match written {
            Ok(done) => Ok(Some(done)),
            Err(error) if errors::is_duplicate(&error) => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    fn error(&self, error: sqlx::Error) -> Error {
        errors::classify(error, &self.statements.table)
    }
}

fn named(event: &Columns<'_>) -> Named {
    Named { wanted: event.id, id: event.id, sequence: None }
}

fn sequence(done: &MySqlQueryResult) -> Option<i64> {
    i64::try_from(done.last_insert_id()).ok().filter(|sequence| *sequence > 0)
}

/// Binds the values of one row.
fn bind<'q>(
    query: Query<'q, MySql, MySqlArguments>,
    event: &Columns<'_>,
) -> Query<'q, MySql, MySqlArguments> {
    query
        .bind(event.id)
        .bind(event.topic)
        .bind(event.event_type)
        .bind(event.aggregate_type)
        .bind(event.aggregate_id)
        .bind(event.namespace)
        .bind(event.tenant_id)
        .bind(event.dedupe_key)
        .bind(event.content_type)
        .bind(event.headers.as_deref())
        .bind(event.payload)
        .bind(event.payload_bytes)
        .bind(event.version)
        .bind(event.occurred_at.map(stored_time))
        .bind(event.available_at.map(stored_time))
        .bind(event.delay)
}
