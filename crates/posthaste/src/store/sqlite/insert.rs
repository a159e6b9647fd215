//! Events into the table: one statement, whichever of the two unique keys a duplicate hits.

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row, Sqlite};
use uuid::Uuid;

use super::errors;
use super::stored_time;
use crate::error::Result;
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named};
use crate::store::statement::Statement;
use crate::store::{Dialect, TableName};

const INTO: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at)
VALUES ";

const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, coalesce(?, {now}), coalesce(?, {now} + ?))";

const ON_CONFLICT: &str = " ON CONFLICT DO NOTHING RETURNING id, seq";

const FIRST: &str = "
SELECT id, seq FROM {table} WHERE id = ?1
UNION ALL
SELECT id, seq FROM {table} WHERE namespace = ?2 AND topic = ?3 AND dedupe_key = ?4
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
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        let (into, row) = (statement(INTO), statement(ROW));
        let one = Statement::joined(&[into.text(), row.text(), ON_CONFLICT]);
        Self { table: table.clone(), into, row, one, first: statement(FIRST) }
    }

    /// The insert of this many rows.
    pub(crate) fn many(&self, rows: usize) -> String {
        let rows = vec![self.row.text(); rows].join(", ");
        [self.into.text(), &rows, ON_CONFLICT].concat()
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
        let row = bind(sqlx::query(self.statements.one.sql()), event)
            .fetch_optional(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        row.iter().map(|row| self.named(row, None)).collect()
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let query = sqlx::query(AssertSqlSafe(self.statements.many(events.len()))).persistent(false);
        let rows = events
            .iter()
            .fold(query, bind)
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
