//! Transactions of SeaORM.
//!
//! Which database a SeaORM transaction is of is only known at run time: every call asks first, and refuses a
//! transaction of another database than the outbox's. Beneath is sqlx, so its errors are classified as those
//! of sqlx's own transactions.
//!
//! `DatabaseTransaction` and `&DatabaseTransaction` both fit: `begin` gives the one, the closures of
//! `transaction` the other.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::io;
use std::sync::Arc;

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, RuntimeErr, Statement};
use sqlx::Error as SqlxError;
use uuid::Uuid;

use super::backend::{Backend, Enqueue, sealed};
use super::values;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::store::{Enqueued, TableName};

/// Makes both kinds of transaction fit outboxes of this database.
macro_rules! fits {
    ($database:ty, $module:ident, $($transaction:ty),+) => {$(
        /// A transaction of SeaORM's. Where it is of another database than the outbox, nothing is written, and
        /// the error's kind is [`WrongDatabase`](ErrorKind::WrongDatabase).
        impl Enqueue<$database> for $transaction {}

        impl sealed::Transaction<$database> for $transaction {
            async fn insert(
                &mut self,
                store: &<$database as Backend>::Store,
                events: &[Event],
            ) -> Result<Vec<Enqueued>> {
                $module::insert_events(self, store, events).await
            }

            async fn receive(
                &mut self,
                inbox: &<$database as Backend>::Inbox,
                consumer: &str,
                id: Uuid,
            ) -> Result<bool> {
                $module::receive(self, inbox, consumer, id).await
            }
        }
    )+};
}

#[cfg(feature = "postgres")]
fits!(sqlx::Postgres, postgres, DatabaseTransaction, &DatabaseTransaction);
#[cfg(feature = "mysql")]
fits!(sqlx::MySql, mysql, DatabaseTransaction, &DatabaseTransaction);
#[cfg(feature = "sqlite")]
fits!(sqlx::Sqlite, sqlite, DatabaseTransaction, &DatabaseTransaction);

/// A transaction that is known to be of the wanted database.
#[derive(Clone, Copy)]
struct Checked<'t> {
    transaction: &'t DatabaseTransaction,
    backend: DbBackend,
}

impl<'t> Checked<'t> {
    /// Refuses a transaction of another database.
    fn new(transaction: &'t DatabaseTransaction, wanted: DbBackend, table: &TableName) -> Result<Self> {
        let backend = transaction.get_database_backend();
        if backend == wanted {
            return Ok(Self { transaction, backend });
        }
        let message = format!("table {table} is in {wanted:?}, the SeaORM transaction is of {backend:?}");
        Err(Error::new(ErrorKind::WrongDatabase, message))
    }

    /// Executes a statement that answers with rows.
    async fn query(
        self,
        sql: impl Into<String>,
        values: impl IntoIterator<Item = sea_orm::Value>,
    ) -> Result<Vec<sea_orm::QueryResult>, SqlxError> {
        let statement = Statement::from_sql_and_values(self.backend, sql, values);
        self.transaction.query_all_raw(statement).await.map_err(beneath)
    }

    /// Executes a statement that answers with how many rows it wrote.
    async fn execute(
        self,
        sql: impl Into<String>,
        values: impl IntoIterator<Item = sea_orm::Value>,
    ) -> Result<sea_orm::ExecResult, SqlxError> {
        let statement = Statement::from_sql_and_values(self.backend, sql, values);
        self.transaction.execute_raw(statement).await.map_err(beneath)
    }
}

/// The error of sqlx's that SeaORM wrapped, or one that says what went wrong before sqlx was asked.
fn beneath(error: DbErr) -> SqlxError {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => {
            // Nobody else has it yet.
            Arc::try_unwrap(error).unwrap_or_else(|error| SqlxError::Protocol(error.to_string()))
        }
        DbErr::Conn(_) | DbErr::ConnectionAcquire(_) => {
            SqlxError::Io(io::Error::new(io::ErrorKind::NotConnected, error))
        }
        other => SqlxError::Decode(other.into()),
    }
}

/// A value as SeaORM takes it; ids as this database stores them.
fn value(value: values::Value<'_>, id: fn(Uuid) -> sea_orm::Value) -> sea_orm::Value {
    use sea_orm::Value;
    match value {
        values::Value::Id(uuid) => id(uuid),
        values::Value::Text(text) => Value::String(text.map(|text| text.into_owned())),
        values::Value::Bytes(bytes) => Value::Bytes(bytes.map(<[u8]>::to_vec)),
        values::Value::Int(int) => Value::Int(Some(int)),
        values::Value::Long(long) => Value::BigInt(long),
    }
}
