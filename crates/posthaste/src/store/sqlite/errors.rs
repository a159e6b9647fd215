//! Which of SQLite's errors is which kind.

use sqlx::Error as SqlxError;
use sqlx::error::DatabaseError;

use crate::error::{Error, ErrorKind};
use crate::store::TableName;
use crate::store::errors::{client_kind, message, of_constraint};

/// An error of a statement on this table.
pub(crate) fn classify(error: SqlxError, table: &TableName) -> Error {
    let (kind, said) = match &error {
        SqlxError::Database(db) => (kind_of(&**db), db.message().to_owned()),
        other => (client_kind(other), other.to_string()),
    };
    let kind = of_constraint(kind, &said);
    Error::new(kind.clone(), message(&kind, table, &said)).because(error)
}

/// An error on the way to the file.
pub(crate) fn connecting(error: SqlxError, table: &TableName, place: &str) -> Error {
    crate::store::errors::connecting(error, table, place, |code| match kind_of_code(code, "") {
        ErrorKind::Database => None,
        kind => Some(kind),
    })
}

/// Whether the file may only be read.
pub(super) fn is_read_only(error: &SqlxError) -> bool {
    error.as_database_error().is_some_and(|db| kind_of(db) == ErrorKind::ReadOnly)
}

/// Whether somebody else writes and does not come to an end.
pub(super) fn is_busy(error: &SqlxError) -> bool {
    error.as_database_error().is_some_and(|db| kind_of(db) == ErrorKind::Conflict)
}

/// Whether a statement was not allowed to go on.
pub(super) fn was_ended(error: &SqlxError) -> bool {
    error.as_database_error().and_then(|db| db.code()).is_some_and(|code| code == "9")
}

fn kind_of(error: &dyn DatabaseError) -> ErrorKind {
    kind_of_code(&error.code().unwrap_or_default(), error.message())
}

/// The kind behind an extended result code, whose lowest byte is the primary one. A missing table or column
/// has no code of its own.
pub(crate) fn kind_of_code(code: &str, said: &str) -> ErrorKind {
    // `SQLITE_ERROR`, `BUSY` and `LOCKED`, `READONLY`, `CANTOPEN`, `CONSTRAINT`, `PERM` and `AUTH`.
    match code.parse::<u32>().map(|code| code & 0xff) {
        Ok(1) if said.starts_with("no such table") => ErrorKind::TableMissing,
        Ok(1) if said.contains("no such column") || said.contains("has no column") => {
            ErrorKind::SchemaMismatch
        }
        Ok(5 | 6) => ErrorKind::Conflict,
        Ok(8) => ErrorKind::ReadOnly,
        Ok(14) => ErrorKind::Unreachable,
        Ok(19) => ErrorKind::Constraint,
        Ok(3 | 23) => ErrorKind::AccessDenied,
        _ => ErrorKind::Database,
    }
}
