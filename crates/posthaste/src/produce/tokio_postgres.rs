//! Transactions of tokio-postgres.
//!
//! Every statement goes out as an unnamed one with its parameters' types, which is one round trip: parse,
//! bind, execute and sync in one message. A named statement would be parsed once and executed often, but a
//! transaction has nowhere to keep it: preparing it anew in each would cost a second round trip, and one kept
//! beside the client would be lost behind PgBouncer in transaction mode, where the next transaction may be on
//! another server connection.

use std::error::Error as _;
use std::io;

use sqlx::Postgres;
use tokio_postgres::types::{ToSql, Type, WrongType};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::backend::{Enqueue, sealed};
use super::values::{Array, Value, arrays, keys, row};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::store::columns::Columns;
use crate::store::errors::message;
use crate::store::insert::{Insert, Named, insert};
use crate::store::postgres::errors::kind_of_sqlstate;
use crate::store::postgres::insert::Statements;
use crate::store::{Enqueued, PostgresInbox, PostgresStore, TableName};

/// A parameter and its type.
type Param<'p> = (&'p (dyn ToSql + Sync), Type);

/// A transaction of tokio-postgres, or a savepoint in one.
impl Enqueue<Postgres> for Transaction<'_> {}

impl sealed::Transaction<Postgres> for Transaction<'_> {
    async fn insert(&mut self, store: &PostgresStore, events: &[Event]) -> Result<Vec<Enqueued>> {
        insert(Client { transaction: self, statements: store.insert_statements() }, events).await
    }

    async fn receive(&mut self, inbox: &PostgresInbox, consumer: &str, id: Uuid) -> Result<bool> {
        let params: [Param<'_>; 2] = [(&consumer, Type::TEXT), (&id, Type::UUID)];
        let recorded = self.execute_typed(inbox.record.text(), &params).await;
        Ok(recorded.map_err(|error| classify(error, &inbox.table))? == 1)
    }
}

struct Client<'c, 't> {
    transaction: &'c Transaction<'t>,
    statements: &'c Statements,
}

impl Insert for Client<'_, '_> {
    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let values = row(event, Value::time);
        let params: Vec<Param<'_>> = values.iter().map(one).collect();
        let rows = self.query(self.statements.one.text(), &params).await?;
        self.named(&rows, 0)
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let values = arrays(events);
        let params: Vec<Param<'_>> = values.iter().map(many).collect();
        let rows = self.query(self.statements.many.text(), &params).await?;
        self.named(&rows, 0)
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let values = keys(events);
        let params: Vec<Param<'_>> = values.iter().map(many).collect();
        let rows = self.query(self.statements.first.text(), &params).await?;
        self.named(&rows, 1)
    }
}

impl Client<'_, '_> {
    async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.transaction.query_typed(sql, params).await.map_err(|error| self.error(error))
    }

    /// Rows of an id and its sequence; the wanted id is the first column, the found one may be the next.
    fn named(&self, rows: &[Row], found: usize) -> Result<Vec<Named>> {
        let read = |row: &Row| {
            Ok(Named {
                wanted: row.try_get(0)?,
                id: row.try_get(found)?,
                sequence: Some(row.try_get(found + 1)?),
            })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(|error| self.error(error))
    }

    fn error(&self, error: tokio_postgres::Error) -> Error {
        classify(error, &self.statements.table)
    }
}

fn one<'p>(value: &'p Value<'_>) -> Param<'p> {
    match value {
        Value::Id(id) => (id, Type::UUID),
        Value::Text(text) => (text, Type::TEXT),
        Value::Bytes(bytes) => (bytes, Type::BYTEA),
        Value::Int(int) => (int, Type::INT4),
        Value::Long(long) => (long, Type::INT8),
    }
}

fn many<'p>(array: &'p Array<'_>) -> Param<'p> {
    match array {
        Array::Id(ids) => (ids, Type::UUID_ARRAY),
        Array::Text(texts) => (texts, Type::TEXT_ARRAY),
        Array::Bytes(bytes) => (bytes, Type::BYTEA_ARRAY),
        Array::Int(ints) => (ints, Type::INT4_ARRAY),
        Array::Long(longs) => (longs, Type::INT8_ARRAY),
    }
}

/// An error of a statement on this table.
fn classify(error: tokio_postgres::Error, table: &TableName) -> Error {
    let (kind, said) = match error.as_db_error() {
        Some(db) => (kind_of_sqlstate(db.code().code()), db.message().to_owned()),
        None => (client_kind(&error), error.to_string()),
    };
    Error::new(kind.clone(), message(&kind, table, &said)).because(error)
}

/// The kind of an error that did not come from the server. The library names none of them but a closed
/// connection; the rest is told by its cause.
fn client_kind(error: &tokio_postgres::Error) -> ErrorKind {
    let cause = error.source();
    if error.is_closed() || cause.and_then(|c| c.downcast_ref::<io::Error>()).is_some_and(is_broken) {
        ErrorKind::Unreachable
    } else if cause.is_some_and(|cause| cause.is::<WrongType>()) {
        ErrorKind::SchemaMismatch
    } else {
        ErrorKind::Database
    }
}

/// Whether it is the connection that failed, not a message that could not be written or read.
fn is_broken(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
}
