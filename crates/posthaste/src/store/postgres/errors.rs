//! Which of PostgreSQL's errors is which kind.

use sqlx::Error as SqlxError;

use crate::error::{Error, ErrorKind};
use crate::store::TableName;
use crate::store::errors::{client_kind, message};

/// An error of a statement on this table.
pub(crate) fn classify(error: SqlxError, table: &TableName) -> Error {
    let kind = match &error {
        SqlxError::Database(db) => db.code().map_or(ErrorKind::Database, |code| kind_of_sqlstate(&code)),
        other => client_kind(other),
    };
    let message = match &error {
        SqlxError::Database(db) => message(&kind, table, db.message()),
        other => message(&kind, table, &other.to_string()),
    };
    Error::new(kind, message).because(error)
}

/// An error on the way to the database.
pub(crate) fn connecting(error: SqlxError, table: &TableName, place: &str) -> Error {
    crate::store::errors::connecting(error, table, place, |code| match kind_of_sqlstate(code) {
        ErrorKind::Database => None,
        kind => Some(kind),
    })
}

/// Whether the server ended a statement: at its limit, or because somebody told it to.
pub(super) fn was_ended(error: &SqlxError) -> bool {
    error.as_database_error().and_then(|db| db.code()).is_some_and(|code| code == "57014")
}

/// The kind behind a SQLSTATE; every client library has one.
pub(crate) fn kind_of_sqlstate(code: &str) -> ErrorKind {
    match code {
        "42P01" => ErrorKind::TableMissing,
        "3D000" | "3F000" => ErrorKind::DatabaseMissing,
        "42703" | "42P10" | "42804" => ErrorKind::SchemaMismatch,
        "25006" => ErrorKind::ReadOnly,
        // `54001`: JSON so deep that reading it would overflow the server's stack. Nothing else here is that complex.
        "22P02" | "22032" | "54001" => ErrorKind::PayloadNotJson,
        "40001" | "40P01" => ErrorKind::Conflict,
        "28000" | "28P01" | "42501" => ErrorKind::AccessDenied,
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" => ErrorKind::Unreachable,
        _ if code.starts_with("08") => ErrorKind::Unreachable,
        _ if code.starts_with("23") => ErrorKind::Constraint,
        _ => ErrorKind::Database,
    }
}
