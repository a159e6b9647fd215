//! What the databases' errors have in common.

use std::fmt;
use std::time::Duration;

use sqlx::Error as SqlxError;

use super::{Mode, Store, TableName};
use crate::error::{Error, ErrorKind, Result};

/// The kind of an error that did not come from the server.
pub(crate) fn client_kind(error: &SqlxError) -> ErrorKind {
    match error {
        SqlxError::Io(_)
        | SqlxError::Tls(_)
        // Among others the end of a connection in the middle of its first words, which sqlx takes for an answer.
        | SqlxError::Protocol(_)
        | SqlxError::PoolTimedOut
        | SqlxError::PoolClosed
        | SqlxError::WorkerCrashed => ErrorKind::Unreachable,
        SqlxError::ColumnNotFound(_)
        | SqlxError::ColumnDecode { .. }
        | SqlxError::ColumnIndexOutOfBounds { .. } => ErrorKind::SchemaMismatch,
        SqlxError::Configuration(_) => ErrorKind::InvalidSetting,
        _ => ErrorKind::Database,
    }
}

/// What happened to this table, in one sentence.
pub(crate) fn message(kind: &ErrorKind, table: &TableName, said: &str) -> String {
    match kind {
        ErrorKind::DatabaseMissing => format!("the place of table {table} does not exist ({said})"),
        ErrorKind::TableMissing => format!("table {table} does not exist"),
        ErrorKind::SchemaMismatch => format!("table {table} is not as its migrations make it ({said})"),
        ErrorKind::ReadOnly => format!("table {table} cannot be written to ({said})"),
        ErrorKind::PayloadNotJson => {
            format!("table {table} refused the event: its JSON is not valid ({said})")
        }
        ErrorKind::Constraint => format!("table {table} refused the row ({said})"),
        ErrorKind::Conflict => format!("the transaction on table {table} lost against another ({said})"),
        ErrorKind::AccessDenied => format!("access to table {table} was denied ({said})"),
        ErrorKind::Unreachable => format!("the database of table {table} cannot be reached ({said})"),
        _ => format!("the database failed on table {table} ({said})"),
    }
}

/// A look that the database ended, because it took longer than it may or because the database itself allows less.
pub(crate) fn too_slow(
    table: &TableName,
    sought: &dyn fmt::Display,
    took: Duration,
    error: SqlxError,
) -> Error {
    let took = match took {
        took if took < Duration::from_secs(1) => format!("{} ms", took.as_millis()),
        took => format!("{:.0} s", took.as_secs_f64()),
    };
    let message = format!(
        "looking for {sought} in table {table} took too long, and the database ended it after {took}"
    );
    Error::new(ErrorKind::TooSlow, message).because(error)
}

/// How long a server may take to answer a new connection, or a session's question.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits for an answer, or says that there was none; a connection that gave none is of no further use.
pub(crate) async fn in_time<A>(asking: impl Future<Output = sqlx::Result<A>>) -> sqlx::Result<A> {
    let silence =
        || SqlxError::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer within 10 s"));
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| Err(silence()))
}

/// An error on the way to the database: what the server said, or that it cannot be reached.
pub(crate) fn connecting(
    error: SqlxError,
    table: &TableName,
    place: &str,
    kind_of_code: impl Fn(&str) -> Option<ErrorKind>,
) -> Error {
    let (kind, said) = match &error {
        SqlxError::Database(db) => (
            db.code().and_then(|code| kind_of_code(&code)).unwrap_or(ErrorKind::Unreachable),
            db.message().to_owned(),
        ),
        SqlxError::Configuration(_) => (ErrorKind::InvalidSetting, "the URL cannot be read".to_owned()),
        other => (ErrorKind::Unreachable, other.to_string()),
    };
    Error::new(kind, format!("cannot connect to {place} for table {table} ({said})")).because(error)
}

/// A refused row whose JSON is not valid is that, by the name of the constraint.
pub(crate) fn of_constraint(kind: ErrorKind, said: &str) -> ErrorKind {
    if kind == ErrorKind::Constraint && said.contains("_json_check") {
        ErrorKind::PayloadNotJson
    } else {
        kind
    }
}

/// Says of a failed operation on a queue that its table is a stream, where that is why. Only then is the table asked.
pub(crate) async fn of_queue<A>(store: &impl Store, answer: Result<A>) -> Result<A> {
    let Err(error) = answer else { return answer };
    if *error.kind() != ErrorKind::SchemaMismatch {
        return Err(error);
    }
    Err(match store.mode().await {
        Ok(Some(mode @ Mode::Stream(_))) => {
            let table = store.table();
            let message =
                format!("table {table} is a {mode}: its events are not leased one by one, as a queue's");
            Error::new(ErrorKind::SchemaMismatch, message).because(error)
        }
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So is the end of a connection in the middle of its first words.
    #[test]
    fn re11_what_the_other_side_says_wrongly_is_an_outage() {
        let said = SqlxError::Protocol("unexpected response from SSLRequest: 0x00".to_owned());
        assert_eq!(client_kind(&said), ErrorKind::Unreachable);
    }
}
