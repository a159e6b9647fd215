//! Which of MySQL's and MariaDB's errors is which kind.

use sqlx::Error as SqlxError;
use sqlx::mysql::MySqlDatabaseError;

use crate::error::{Error, ErrorKind};
use crate::store::TableName;
use crate::store::errors::{client_kind, message, of_constraint};

/// An error of a statement on this table.
pub(crate) fn classify(error: SqlxError, table: &TableName) -> Error {
    let (kind, said) = match &error {
        SqlxError::Database(db) => {
            (number(&error).map_or(ErrorKind::Database, kind_of_number), db.message().to_owned())
        }
        other => (client_kind(other), other.to_string()),
    };
    let kind = of_constraint(kind, &said);
    let said = match kind {
        ErrorKind::PayloadNotJson => format!(
            "{said}; MariaDB also refuses more than 31 levels of nesting, MySQL more than 100 and numbers that no 64-bit \
             floating point number holds"
        ),
        _ => said,
    };
    Error::new(kind.clone(), message(&kind, table, &said)).because(error)
}

/// An error on the way to the database.
pub(crate) fn connecting(error: SqlxError, table: &TableName, place: &str) -> Error {
    let kind = number(&error).map(kind_of_number);
    crate::store::errors::connecting(error, table, place, |_| kind.clone())
}

/// Whether a unique key refused a row.
pub(crate) fn is_duplicate(error: &SqlxError) -> bool {
    number(error) == Some(1062)
}

/// Whether the server ended a statement: at its limit, also in the middle of sorting, or because somebody told it to.
pub(super) fn was_ended(error: &SqlxError) -> bool {
    match number(error) {
        Some(1317 | 1969 | 3024) => true,
        Some(1028) => error.to_string().contains("execution"),
        _ => false,
    }
}

fn number(error: &SqlxError) -> Option<u16> {
    error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The kind behind an error number; most client libraries have one.
pub(crate) fn kind_of_number(number: u16) -> ErrorKind {
    match number {
        1146 => ErrorKind::TableMissing,
        1049 => ErrorKind::DatabaseMissing,
        1054 | 1136 | 1176 | 1366 => ErrorKind::SchemaMismatch,
        1290 | 1792 | 1836 => ErrorKind::ReadOnly,
        1020 | 1205 | 1213 => ErrorKind::Conflict,
        1048 | 1062 | 1264 | 1364 | 1406 | 3819 | 4025 => ErrorKind::Constraint,
        1044 | 1045 | 1142 | 1143 | 1370 | 1698 => ErrorKind::AccessDenied,
        1040 | 1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1203 | 1927 | 2006 | 2013 => {
            ErrorKind::Unreachable
        }
        _ => ErrorKind::Database,
    }
}
