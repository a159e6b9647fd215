//! Events into the table: one statement, whichever of the two unique keys a duplicate hits.

use serde_json::{Value, json};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Connection, Row, Sqlite};
use uuid::Uuid;

use super::errors;
use super::stored_time;
use crate::error::Result;
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named};
use crate::store::migrate::SQLITE_NOW;
use crate::store::statement::Statement;
use crate::store::{Dialect, Lease, TableName};

const INTO: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at{lease_columns})
VALUES ";

const ROW: &str =
    "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(?, {now}), coalesce(?, {now} + ?){lease_values})";

/// What is put into the two where some rows are leased from the beginning, and left out where none is. For a
/// row that is not, the values are 0 and null.
const LEASE: [(&str, &str); 2] =
    [("{lease_columns}", ", attempts, locked_by, locked_until"), ("{lease_values}", ", ?, ?, {now} + ?")];

const ON_CONFLICT: &str = " ON CONFLICT DO NOTHING RETURNING id, seq";

const FIRST: &str = "
SELECT id, seq FROM {table} WHERE id = ?1
UNION ALL
SELECT id, seq FROM {table} WHERE namespace = ?2 AND topic = ?3 AND dedupe_key = ?4
LIMIT 1";

const LEASED: &str = "
SELECT o.id, o.seq
  FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS holder FROM json_each(?1)) AS l
  JOIN {table} AS o ON o.id = l.id AND o.locked_by = l.holder";

const UNLEASE: &str = "
UPDATE {table} AS o
   SET attempts = 0, locked_by = NULL, locked_until = NULL
  FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS holder FROM json_each(?1)) AS l
 WHERE o.id = l.id AND o.locked_by = l.holder";

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
    pub(crate) first: Statement,
    leased: Statement,
    unlease: Statement,
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        let plain = |sql| LEASE.iter().fold(statement(sql), |sql, (place, _)| sql.with(place, ""));
        let leased = |sql| LEASE.iter().fold(statement(sql), |sql, (place, lease)| sql.with(place, lease));
        let (into, row) = (plain(INTO), plain(ROW));
        let (into_leased, row_leased) = (leased(INTO), leased(ROW).with("{now}", SQLITE_NOW));
        Self {
            table: table.clone(),
            one: Statement::joined(&[into.text(), row.text(), ON_CONFLICT]),
            one_leased: Statement::joined(&[into_leased.text(), row_leased.text(), ON_CONFLICT]),
            into,
            row,
            into_leased,
            row_leased,
            first: statement(FIRST),
            leased: statement(LEASED),
            unlease: statement(UNLEASE),
        }
    }

    /// The insert of this many rows.
    pub(crate) fn many(&self, rows: usize) -> String {
        let rows = vec![self.row.text(); rows].join(", ");
        [self.into.text(), &rows, ON_CONFLICT].concat()
    }

    /// The insert of this many rows of which some are leased.
    fn many_leased(&self, rows: usize) -> String {
        let rows = vec![self.row_leased.text(); rows].join(", ");
        [self.into_leased.text(), &rows, ON_CONFLICT].concat()
    }
}

/// A connection of sqlx's, inside the caller's transaction.
pub(crate) struct Client<'c> {
    pub(crate) connection: &'c mut SqliteConnection,
    pub(crate) statements: &'c Statements,
}

impl Insert for Client<'_> {
    /// Well below the 32 766 values that SQLite takes.
    const MOST_ROWS: usize = 500;

    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let query = match event.lease {
            Some(_) => bind_leased(sqlx::query(self.statements.one_leased.sql()), event),
            None => bind(sqlx::query(self.statements.one.sql()), event),
        };
        let row = query
            .fetch_optional(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        row.iter().map(|row| self.named(row, None)).collect()
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let query = if events.iter().any(|event| event.lease.is_some()) {
            let query = sqlx::query(AssertSqlSafe(self.statements.many_leased(events.len())));
            events.iter().fold(query, bind_leased)
        } else {
            let query = sqlx::query(AssertSqlSafe(self.statements.many(events.len())));
            events.iter().fold(query, bind)
        };
        let rows = query
            .persistent(false)
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        rows.iter().map(|row| self.named(row, None)).collect()
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let mut found = Vec::with_capacity(events.len());
        for event in events {
            let row = sqlx::query(self.statements.first.sql())
                .bind(event.id.hyphenated().to_string())
                .bind(event.namespace.to_owned())
                .bind(event.topic.to_owned())
                .bind(event.dedupe_key.map(str::to_owned))
                .fetch_optional(&mut *self.connection)
                .await
                .map_err(|error| errors::classify(error, &self.statements.table))?;
            if let Some(row) = row {
                found.push(self.named(&row, Some(event.id))?);
            }
        }
        Ok(found)
    }
}

impl Client<'_> {
    /// Which of the leases this transaction still has rows for, and their sequences.
    pub(crate) async fn find_leased(&mut self, leases: &[&Lease]) -> Result<Vec<(Uuid, i64)>> {
        let leases = leases.iter().map(|l| json!([l.id.hyphenated().to_string(), &*l.holder])).collect();
        let rows = sqlx::query(self.statements.leased.sql())
            .bind(Value::Array(leases).to_string())
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        let found = rows.iter().map(|row| self.named(row, None));
        found.map(|row| row.map(|row| (row.id, row.sequence.unwrap_or_default()))).collect()
    }

    /// Makes leased rows of this transaction ordinary pending ones.
    pub(crate) async fn unlease(&mut self, leases: &[&Lease]) -> Result<()> {
        let leases = leases.iter().map(|l| json!([l.id.hyphenated().to_string(), &*l.holder])).collect();
        sqlx::query(self.statements.unlease.sql())
            .bind(Value::Array(leases).to_string())
            .execute(&mut *self.connection)
            .await
            .map(drop)
            .map_err(|error| errors::classify(error, &self.statements.table))
    }

    /// Waits for what the connection's thread has still to do: the end of a nested transaction that was
    /// dropped, say.
    pub(crate) async fn probe(&mut self) -> Result<()> {
        self.connection.ping().await.map_err(|error| errors::classify(error, &self.statements.table))
    }

    fn named(&self, row: &SqliteRow, wanted: Option<Uuid>) -> Result<Named> {
        let read = || {
            let id = Uuid::try_parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
            Ok(Named { wanted: wanted.unwrap_or(id), id, sequence: Some(row.try_get(1)?) })
        };
        read().map_err(|error| errors::classify(error, &self.statements.table))
    }
}

/// Binds the values of one row; SQLite's arguments own theirs.
fn bind<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    event: &Columns<'_>,
) -> Query<'q, Sqlite, SqliteArguments> {
    query
        .bind(event.id.hyphenated().to_string())
        .bind(event.topic.to_owned())
        .bind(event.event_type.map(str::to_owned))
        .bind(event.aggregate_type.map(str::to_owned))
        .bind(event.aggregate_id.map(str::to_owned))
        .bind(event.namespace.to_owned())
        .bind(event.tenant_id.map(str::to_owned))
        .bind(event.dedupe_key.map(str::to_owned))
        .bind(event.content_type.map(str::to_owned))
        .bind(event.headers.clone())
        .bind(event.payload.map(str::to_owned))
        .bind(event.payload_bytes.map(<[u8]>::to_vec))
        .bind(event.version)
        .bind(event.occurred_at.map(stored_time))
        .bind(event.available_at.map(stored_time))
        .bind(event.delay)
}

/// Binds the values of one row that may be leased.
fn bind_leased<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    event: &Columns<'_>,
) -> Query<'q, Sqlite, SqliteArguments> {
    let locked_by = event.locked_by().map(str::to_owned);
    bind(query, event).bind(event.attempts()).bind(locked_by).bind(event.lease_length())
}
