//! MySQL and MariaDB through diesel-async.
//!
//! Diesel does not tell which sequence a written row got, and asking would be another round trip: an event
//! that is no duplicate is answered without one.

use diesel::mysql::Mysql;
use diesel::query_builder::AstPass;
use diesel::result::{DatabaseErrorKind, Error as DieselError, QueryResult};
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Text};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};
use sqlx::MySql;
use uuid::Uuid;

use super::{Bind, Sql, kind_of, refuse_outside, said};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::produce::backend::{Enqueue, sealed};
use crate::produce::values::{Value, row};
use crate::store::columns::Columns;
use crate::store::errors::{message, of_constraint};
use crate::store::insert::{Insert, Named, insert};
use crate::store::mysql::insert::{Reading, Statements};
use crate::store::{Enqueued, MySqlInbox, MySqlStore, TableName};

/// The connection that the closure of `transaction` is given. Outside of one nothing is written, and the error's
/// kind is [`NotInTransaction`](ErrorKind::NotInTransaction).
impl Enqueue<MySql> for AsyncMysqlConnection {}

impl sealed::Transaction<MySql> for AsyncMysqlConnection {
    async fn insert(&mut self, store: &MySqlStore, events: &[Event]) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        refuse_outside(self, &statements.table)?;
        insert(Client { connection: self, statements }, events).await
    }

    async fn receive(&mut self, inbox: &MySqlInbox, consumer: &str, id: Uuid) -> Result<bool> {
        refuse_outside(self, &inbox.table)?;
        let params = [Value::Text(Some(consumer.into())), Value::Id(id)];
        written(Sql::new(inbox.record.text(), &params), self, &inbox.table).await
    }
}

struct Client<'c> {
    connection: &'c mut AsyncMysqlConnection,
    statements: &'c Statements,
}

impl Insert for Client<'_> {
    /// Well below the 65 535 values that MySQL takes.
    const MOST_ROWS: usize = 1000;

    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let params = row(event, Value::time);
        let sql = Sql::new(self.statements.one.text(), &params);
        let written = written(sql, self.connection, &self.statements.table).await?;
        Ok(written.then(|| named(event)).into_iter().collect())
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let params: Vec<Value<'_>> = events.iter().flat_map(|event| row(event, Value::time)).collect();
        let text = self.statements.many(events.len());
        let sql = Sql { cached: false, ..Sql::new(&text, &params) };
        if written(sql, self.connection, &self.statements.table).await? {
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
            let params = [
                Value::Id(event.id),
                Value::Text(event.dedupe_key.map(Into::into)),
                Value::Text(Some(event.namespace.into())),
                Value::Text(Some(event.topic.into())),
            ];
            let rows = Sql::<_, (Binary, BigInt)>::new(self.statements.of(reading).text(), &params)
                .load::<(Vec<u8>, i64)>(self.connection)
                .await
                .map_err(|error| classify(error, &self.statements.table))?;
            for (id, sequence) in rows {
                let id = Uuid::from_slice(&id).map_err(|error| {
                    classify(DieselError::DeserializationError(error.into()), &self.statements.table)
                })?;
                found.push(Named { wanted: event.id, id, sequence: Some(sequence) });
            }
        }
        Ok(found)
    }
}

fn named(event: &Columns<'_>) -> Named {
    Named { wanted: event.id, id: event.id, sequence: None }
}

/// Executes an insert; whether it wrote, not refused as a duplicate.
async fn written(
    sql: Sql<'_, Value<'_>, ()>,
    connection: &mut AsyncMysqlConnection,
    table: &TableName,
) -> Result<bool> {
    match sql.execute(connection).await {
        Ok(_) => Ok(true),
        Err(DieselError::DatabaseError(DatabaseErrorKind::UniqueViolation, _)) => Ok(false),
        Err(error) => Err(classify(error, table)),
    }
}

impl Bind<Mysql> for Value<'_> {
    fn bind<'b>(&'b self, out: &mut AstPass<'_, 'b, Mysql>) -> QueryResult<()> {
        match self {
            Value::Id(id) => out.push_bind_param_value_only::<Binary, [u8]>(id.as_bytes()),
            Value::Text(text) => out.push_bind_param_value_only::<Nullable<Text>, _>(text),
            Value::Bytes(bytes) => out.push_bind_param_value_only::<Nullable<Binary>, _>(bytes),
            Value::Int(int) => out.push_bind_param_value_only::<Integer, _>(int),
            Value::Long(long) => out.push_bind_param_value_only::<Nullable<BigInt>, _>(long),
        }
    }
}

/// An error of a statement on this table.
fn classify(error: DieselError, table: &TableName) -> Error {
    let said = said(&error);
    let kind = of_constraint(kind_of(&error).unwrap_or_else(|| kind_as_told(&said)), &said);
    Error::new(kind.clone(), message(&kind, table, &said)).because(error)
}

/// The kind of an error of which diesel tells no more than the server's words.
fn kind_as_told(said: &str) -> ErrorKind {
    let mentions = |words: &[&str]| words.iter().any(|words| said.contains(words));
    if mentions(&["Unknown database"]) {
        ErrorKind::DatabaseMissing
    } else if mentions(&["doesn't exist"]) {
        ErrorKind::TableMissing
    } else if mentions(&["Unknown column", "Incorrect string value", "Column count doesn't match"]) {
        ErrorKind::SchemaMismatch
    } else if mentions(&["Deadlock found", "Lock wait timeout"]) {
        ErrorKind::Conflict
    } else if mentions(&["CONSTRAINT `", "Data too long", "Out of range value"]) {
        ErrorKind::Constraint
    } else if mentions(&["denied"]) {
        ErrorKind::AccessDenied
    } else if mentions(&["read-only", "READ ONLY"]) {
        ErrorKind::ReadOnly
    } else if mentions(&["Input/output error", "is closed", "shutdown"]) {
        ErrorKind::Unreachable
    } else {
        ErrorKind::Database
    }
}
