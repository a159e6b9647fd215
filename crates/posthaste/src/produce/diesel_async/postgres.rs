//! PostgreSQL through diesel-async.

use diesel::pg::Pg;
use diesel::query_builder::AstPass;
use diesel::result::{Error as DieselError, QueryResult};
use diesel::sql_types::{Array as SqlArray, BigInt, Binary, Integer, Nullable, Text, Uuid as SqlUuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use sqlx::Postgres;
use uuid::Uuid;

use super::{Bind, Sql, kind_of, refuse_outside, said};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::produce::backend::{Enqueue, sealed};
use crate::produce::values::{Array, Value, arrays, keys, row};
use crate::store::columns::Columns;
use crate::store::errors::message;
use crate::store::insert::{Insert, Named, insert};
use crate::store::postgres::insert::Statements;
use crate::store::{Enqueued, PostgresInbox, PostgresStore, TableName};

/// The connection that the closure of `transaction` is given. Outside of one nothing is written, and the error's
/// kind is [`NotInTransaction`](ErrorKind::NotInTransaction).
impl Enqueue<Postgres> for AsyncPgConnection {}

impl sealed::Transaction<Postgres> for AsyncPgConnection {
    async fn insert(&mut self, store: &PostgresStore, events: &[Event]) -> Result<Vec<Enqueued>> {
        let statements = store.insert_statements();
        refuse_outside(self, &statements.table)?;
        insert(Client { connection: self, statements }, events).await
    }

    async fn receive(&mut self, inbox: &PostgresInbox, consumer: &str, id: Uuid) -> Result<bool> {
        refuse_outside(self, &inbox.table)?;
        let params = [Value::Text(Some(consumer.into())), Value::Id(id)];
        let sql = inbox.record.text();
        let recorded = Sql::<_, ()>::new(sql, &params).execute(self).await;
        Ok(recorded.map_err(|error| classify(error, &inbox.table, sql))? == 1)
    }
}

struct Client<'c> {
    connection: &'c mut AsyncPgConnection,
    statements: &'c Statements,
}

impl Insert for Client<'_> {
    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        self.insert(self.statements.one.text(), &row(event, Value::time)).await
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        self.insert(self.statements.many.text(), &arrays(events)).await
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let (sql, params) = (self.statements.first.text(), keys(events));
        let rows = Sql::<_, (SqlUuid, SqlUuid, BigInt)>::new(sql, &params)
            .load::<(Uuid, Uuid, i64)>(self.connection)
            .await
            .map_err(|error| classify(error, &self.statements.table, sql))?;
        Ok(rows
            .into_iter()
            .map(|(wanted, id, sequence)| Named { wanted, id, sequence: Some(sequence) })
            .collect())
    }
}

impl Client<'_> {
    async fn insert<P: Bind<Pg> + Send + Sync>(&mut self, sql: &str, params: &[P]) -> Result<Vec<Named>> {
        let rows = Sql::<_, (SqlUuid, BigInt)>::new(sql, params)
            .load::<(Uuid, i64)>(self.connection)
            .await
            .map_err(|error| classify(error, &self.statements.table, sql))?;
        Ok(rows
            .into_iter()
            .map(|(id, sequence)| Named { wanted: id, id, sequence: Some(sequence) })
            .collect())
    }
}

impl Bind<Pg> for Value<'_> {
    fn bind<'b>(&'b self, out: &mut AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        match self {
            Value::Id(id) => out.push_bind_param_value_only::<SqlUuid, _>(id),
            Value::Text(text) => out.push_bind_param_value_only::<Nullable<Text>, _>(text),
            Value::Bytes(bytes) => out.push_bind_param_value_only::<Nullable<Binary>, _>(bytes),
            Value::Int(int) => out.push_bind_param_value_only::<Integer, _>(int),
            Value::Long(long) => out.push_bind_param_value_only::<Nullable<BigInt>, _>(long),
        }
    }
}

impl Bind<Pg> for Array<'_> {
    fn bind<'b>(&'b self, out: &mut AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        match self {
            Array::Id(ids) => out.push_bind_param_value_only::<SqlArray<SqlUuid>, _>(ids),
            Array::Text(texts) => out.push_bind_param_value_only::<SqlArray<Nullable<Text>>, _>(texts),
            Array::Bytes(bytes) => out.push_bind_param_value_only::<SqlArray<Nullable<Binary>>, _>(bytes),
            Array::Int(ints) => out.push_bind_param_value_only::<SqlArray<Integer>, _>(ints),
            Array::Long(longs) => out.push_bind_param_value_only::<SqlArray<BigInt>, _>(longs),
        }
    }
}

/// An error of a statement on this table.
fn classify(error: DieselError, table: &TableName, sql: &str) -> Error {
    let kind = kind_of(&error).unwrap_or_else(|| kind_as_told(&error, sql));
    Error::new(kind.clone(), message(&kind, table, &said(&error))).because(error)
}

/// The kind of an error of which diesel tells no more than the server's words and where in the statement they
/// point. Where they point does not depend on the server's language: at the table, then it is missing;
/// elsewhere, then the table is not as the statement expects it. The words are the last resort.
fn kind_as_told(error: &DieselError, sql: &str) -> ErrorKind {
    let DieselError::DatabaseError(_, information) = error else { return ErrorKind::Database };
    if let Some(position) = information.statement_position() {
        // Counted from 1; nothing but the table's name is quoted.
        let at = usize::try_from(position).unwrap_or(0).saturating_sub(1);
        return match sql.chars().nth(at) {
            Some('"') => ErrorKind::TableMissing,
            _ => ErrorKind::SchemaMismatch,
        };
    }
    let said = information.message();
    let mentions = |words: &[&str]| words.iter().any(|words| said.contains(words));
    if mentions(&["deadlock detected"]) {
        ErrorKind::Conflict
    } else if mentions(&["permission denied"]) {
        ErrorKind::AccessDenied
    } else if mentions(&["invalid input syntax for type json"]) {
        ErrorKind::PayloadNotJson
    } else if mentions(&["terminating connection", "shutting down", "starting up"]) {
        ErrorKind::Unreachable
    } else {
        ErrorKind::Database
    }
}
