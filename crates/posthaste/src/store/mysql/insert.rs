//! Events into the table: one statement, whichever of the two unique keys a duplicate hits.
//!
//! A duplicate fails the statement and leaves the transaction as it was; `INSERT IGNORE` would swallow what
//! else may be wrong with a row, `ON DUPLICATE KEY UPDATE` would lock the first one's row for writing.

use serde_json::{Value, json};
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlQueryResult};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, Row};
use uuid::Uuid;

use super::{errors, stored_time};
use crate::error::{Error, Result};
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named};
use crate::store::statement::Statement;
use crate::store::{Dialect, Lease, TableName};

const INTO: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at{lease_columns})
VALUES ";

const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, COALESCE(?, UTC_TIMESTAMP(6)), COALESCE(?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND){lease_values})";

/// What is put into the two where some rows are leased from the beginning, and left out where none is. For a
/// row that is not, the values are 0 and null.
const LEASE: [(&str, &str); 2] = [
    ("{lease_columns}", ", attempts, locked_by, locked_until"),
    ("{lease_values}", ", ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"),
];

// Locking reads see what has been committed since the transaction began, and each must say so for itself.
const FIRST: &str = "
(SELECT id, seq FROM {table} WHERE id = ? LIMIT 1 LOCK IN SHARE MODE)
UNION ALL
(SELECT id, seq FROM {table} WHERE dedupe_key = ? AND namespace = ? AND topic = ? LIMIT 1 LOCK IN SHARE MODE)
LIMIT 1";

// The same without locks, of what was committed before the transaction read for the first time.
const COMMITTED: &str = "
(SELECT id, seq FROM {table} WHERE id = ? LIMIT 1)
UNION ALL
(SELECT id, seq FROM {table} WHERE dedupe_key = ? AND namespace = ? AND topic = ? LIMIT 1)
LIMIT 1";

const LEASED: &str = "
SELECT o.id, o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', holder VARCHAR(128) PATH '$[1]')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(l.id)
 WHERE o.locked_by = l.holder";

// By its index, or rows of others would be waited for in a small table.
const UNLEASE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', holder VARCHAR(128) PATH '$[1]')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(l.id) AND o.locked_by = l.holder
   SET o.attempts = 0, o.locked_by = NULL, o.locked_until = NULL";

/// Up to so many rows the statement is kept by the connection. One that is not is closed by a message that has no
/// answer, and the commit behind it then waits for a delayed acknowledgement: 40 ms.
const CACHED_ROWS: usize = 32;

/// What an insert executes; the other client libraries execute the same.
#[derive(Debug, Clone)]
pub(crate) struct Statements {
    pub(crate) table: TableName,
    into: Statement,
    row: Statement,
    into_leased: Statement,
    row_leased: Statement,
    pub(crate) one: Statement,
    one_leased: Statement,
    first: Statement,
    committed: Statement,
    leased: Statement,
    unlease: Statement,
}

/// How the first of duplicates is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reading {
    /// Without locks: rows that were committed before the transaction read for the first time.
    Committed,
    /// With a shared lock: rows that are committed now.
    Locked,
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let plain = |sql| LEASE.iter().fold(statement(sql), |sql, (place, _)| sql.with(place, ""));
        let leased = |sql| LEASE.iter().fold(statement(sql), |sql, (place, lease)| sql.with(place, lease));
        let (into, row) = (plain(INTO), plain(ROW));
        let (into_leased, row_leased) = (leased(INTO), leased(ROW));
        Self {
            table: table.clone(),
            one: Statement::joined(&[into.text(), row.text()]),
            one_leased: Statement::joined(&[into_leased.text(), row_leased.text()]),
            into,
            row,
            into_leased,
            row_leased,
            first: statement(FIRST),
            committed: statement(COMMITTED),
            leased: statement(LEASED),
            unlease: statement(UNLEASE),
        }
    }

    /// The statement that finds the first of duplicates.
    pub(crate) fn of(&self, reading: Reading) -> &Statement {
        match reading {
            Reading::Committed => &self.committed,
            Reading::Locked => &self.first,
        }
    }

    /// The insert of this many rows.
    pub(crate) fn many(&self, rows: usize) -> String {
        let rows = vec![self.row.text(); rows].join(", ");
        [self.into.text(), &rows].concat()
    }

    /// The insert of this many rows of which some are leased.
    fn many_leased(&self, rows: usize) -> String {
        let rows = vec![self.row_leased.text(); rows].join(", ");
        [self.into_leased.text(), &rows].concat()
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
        let query = match event.lease {
            Some(_) => bind_leased(sqlx::query(self.statements.one_leased.sql()), event),
            None => bind(sqlx::query(self.statements.one.sql()), event),
        };
        let written = query.execute(&mut *self.connection).await;
        Ok(self
            .unless_duplicate(written)?
            .map(|done| Named { sequence: sequence(&done), ..named(event) })
            .into_iter()
            .collect())
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let query = if events.iter().any(|event| event.lease.is_some()) {
            let query = sqlx::query(AssertSqlSafe(self.statements.many_leased(events.len())));
            events.iter().fold(query, bind_leased)
        } else {
            let query = sqlx::query(AssertSqlSafe(self.statements.many(events.len())));
            events.iter().fold(query, bind)
        };
        let written = query.persistent(events.len() <= CACHED_ROWS).execute(&mut *self.connection).await;
        if self.unless_duplicate(written)?.is_some() {
            return Ok(events.iter().map(named).collect());
        }
        // One of them is a duplicate and none was written. Those whose first one is committed are not inserted again: under
        // REPEATABLE READ, MySQL locks the end of the table for each insert that fails, and two producers that insert behind
        // such locks are a deadlock.
        let committed = self.find(Reading::Committed, &events.iter().collect::<Vec<_>>()).await?;
        // What was read without locks may have been deleted since: such an event is inserted, and in its place of the batch.
        let seen = events.iter().filter(|event| committed.iter().any(|row| row.wanted == event.id));
        let committed = self.find(Reading::Locked, &seen.collect::<Vec<_>>()).await?;
        let mut named = Vec::with_capacity(events.len());
        for event in events.iter().filter(|event| committed.iter().all(|row| row.wanted != event.id)) {
            named.append(&mut self.insert_one(event).await?);
        }
        Ok(named)
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        self.find(Reading::Locked, events).await
    }
}

impl Client<'_> {
    /// Finds the row that has an event's id, else the one that has its dedupe key.
    async fn find(&mut self, reading: Reading, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let mut found = Vec::with_capacity(events.len());
        for event in events {
            let row = sqlx::query(self.statements.of(reading).sql())
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

    /// Which of the leases this transaction still has rows for, and their sequences.
    pub(crate) async fn find_leased(&mut self, leases: &[&Lease]) -> Result<Vec<(Uuid, i64)>> {
        let leases = leases.iter().map(|l| json!([l.id.simple().to_string(), &*l.holder])).collect();
        sqlx::query_as(self.statements.leased.sql())
            .bind(Value::Array(leases).to_string())
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| self.error(error))
    }

    /// Makes leased rows of this transaction ordinary pending ones.
    pub(crate) async fn unlease(&mut self, leases: &[&Lease]) -> Result<()> {
        let leases = leases.iter().map(|l| json!([l.id.simple().to_string(), &*l.holder])).collect();
        sqlx::query(self.statements.unlease.sql())
            .bind(Value::Array(leases).to_string())
            .execute(&mut *self.connection)
            .await
            .map(drop)
            .map_err(|error| self.error(error))
    }

    /// Nothing to ask: a statement that fails leaves the transaction as it was, or ends it.
    pub(crate) async fn probe(&mut self) -> Result<()> {
        Ok(())
    }

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

/// Binds the values of one row that may be leased.
fn bind_leased<'q>(
    query: Query<'q, MySql, MySqlArguments>,
    event: &Columns<'_>,
) -> Query<'q, MySql, MySqlArguments> {
    bind(query, event).bind(event.attempts()).bind(event.locked_by()).bind(event.lease_length())
}
