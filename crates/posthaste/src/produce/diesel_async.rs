//! Transactions of diesel-async.
//!
//! Diesel's transaction is a closure that gets the connection, so nothing in its type says that one is open:
//! every call asks the connection's transaction manager first, and refuses to write outside of one. What
//! was begun behind the manager's back, with a `BEGIN` of the caller's own, does not count.
//!
//! Statements are prepared and kept by the connection's own cache, which the caller can switch off (behind
//! PgBouncer in transaction mode, say) with `set_prepared_statement_cache_size`.

#[cfg(feature = "mysql")]
mod mysql;
mod postgres;

use std::marker::PhantomData;

use diesel::backend::Backend;
use diesel::query_builder::{AstPass, Query, QueryFragment, QueryId};
use diesel::result::{DatabaseErrorKind, Error as DieselError, QueryResult};
use diesel_async::{AsyncConnection, TransactionManager};

use crate::error::{Error, ErrorKind, Result};
use crate::store::TableName;

/// A statement with its placeholders in place, what is bound to them, and the rows it answers with.
struct Sql<'q, P, Rows> {
    text: &'q str,
    params: &'q [P],
    /// Whether the text is the same each time.
    cached: bool,
    rows: PhantomData<fn() -> Rows>,
}

impl<'q, P, Rows> Sql<'q, P, Rows> {
    fn new(text: &'q str, params: &'q [P]) -> Self {
        Self { text, params, cached: true, rows: PhantomData }
    }
}

/// A value that diesel can bind.
trait Bind<DB: Backend> {
    fn bind<'b>(&'b self, out: &mut AstPass<'_, 'b, DB>) -> QueryResult<()>;
}

impl<DB: Backend, P: Bind<DB>, Rows> QueryFragment<DB> for Sql<'_, P, Rows> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        if !self.cached {
            out.unsafe_to_cache_prepared();
        }
        out.push_sql(self.text);
        self.params.iter().try_for_each(|param| param.bind(&mut out))
    }
}

/// The cache goes by the text: the type does not tell for which table it is.
impl<P, Rows> QueryId for Sql<'_, P, Rows> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<P, Rows> Query for Sql<'_, P, Rows> {
    type SqlType = Rows;
}

/// Refuses to go on where no transaction is open.
fn refuse_outside<C: AsyncConnection>(connection: &mut C, table: &TableName) -> Result<()> {
    let status = C::TransactionManager::transaction_manager_status_mut(connection);
    let refusal = |why| {
        let message = format!("table {table} was not written to: the diesel connection {why}");
        Error::new(ErrorKind::NotInTransaction, message)
    };
    match status.transaction_depth() {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(refusal("has no open transaction")),
        Err(broken) => Err(refusal("lost track of its transaction").because(broken)),
    }
}

/// The kind of an error as far as diesel tells; `None` where it says only that it is one. Diesel passes on
/// neither a SQLSTATE nor an error number.
fn kind_of(error: &DieselError) -> Option<ErrorKind> {
    match error {
        DieselError::DatabaseError(kind, _) => match kind {
            DatabaseErrorKind::UniqueViolation
            | DatabaseErrorKind::ForeignKeyViolation
            | DatabaseErrorKind::RestrictViolation
            | DatabaseErrorKind::NotNullViolation
            | DatabaseErrorKind::CheckViolation
            | DatabaseErrorKind::ExclusionViolation => Some(ErrorKind::Constraint),
            DatabaseErrorKind::SerializationFailure => Some(ErrorKind::Conflict),
            DatabaseErrorKind::ReadOnlyTransaction => Some(ErrorKind::ReadOnly),
            DatabaseErrorKind::UnableToSendCommand | DatabaseErrorKind::ClosedConnection => {
                Some(ErrorKind::Unreachable)
            }
            _ => None,
        },
        DieselError::DeserializationError(_) => Some(ErrorKind::SchemaMismatch),
        _ => Some(ErrorKind::Database),
    }
}

/// What the database said, without diesel's own words around it.
fn said(error: &DieselError) -> String {
    match error {
        DieselError::DatabaseError(_, information) => information.message().to_owned(),
        other => other.to_string(),
    }
}
