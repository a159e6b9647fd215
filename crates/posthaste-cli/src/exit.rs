//! The exit codes, for scripts: one table of their meaning, one from the library's errors to them.

use std::fmt::Write as _;
use std::process::ExitCode;

use posthaste::ErrorKind;

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// The answer is no, or something else failed.
    Failed = 1,
    /// The command line cannot be understood; clap itself ends with it.
    Usage = 2,
    /// A value on the command line, in the environment or in a file is not accepted.
    BadInput = 3,
    /// The database cannot be reached or refuses.
    Database = 4,
    /// The table is missing or of another version.
    Table = 5,
    /// Something is to be changed or deleted and nobody has agreed.
    Refused = 6,
}

/// What `--help` says of each.
const MEANINGS: [(Exit, &str); 7] = [
    (Exit::Ok, "done"),
    (Exit::Failed, "the answer is no (differences found, no such event), or another failure"),
    (Exit::Usage, "the command line cannot be understood"),
    (Exit::BadInput, "an event, a file or a setting is not accepted"),
    (Exit::Database, "the database cannot be reached, denies access or is read-only"),
    (Exit::Table, "the table is missing or of another version: see `posthaste migrate`"),
    (Exit::Refused, "nobody has agreed to what changes or deletes events: see --yes and --confirm"),
];

/// The last paragraph of `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (exit, meaning) in MEANINGS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {}  {meaning}", exit as u8);
    }
    text
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&ErrorKind> for Exit {
    fn from(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::Empty { .. }
            | ErrorKind::TooLong { .. }
            | ErrorKind::ControlCharacter { .. }
            | ErrorKind::TopicPolicy
            | ErrorKind::HeaderKeyEmpty
            | ErrorKind::PayloadTooLarge { .. }
            | ErrorKind::PayloadMissing
            | ErrorKind::PayloadAmbiguous
            | ErrorKind::PayloadNotJson
            | ErrorKind::DedupeKeyTenant
            | ErrorKind::InvalidId
            | ErrorKind::OutOfRange { .. }
            | ErrorKind::InvalidTableName
            | ErrorKind::InvalidSetting
            | ErrorKind::UnknownDatabase
            | ErrorKind::Constraint => Self::BadInput,
            ErrorKind::Unreachable
            | ErrorKind::AccessDenied
            | ErrorKind::DatabaseMissing
            | ErrorKind::ReadOnly => Self::Database,
            ErrorKind::TableMissing | ErrorKind::SchemaMismatch | ErrorKind::SchemaTooNew { .. } => {
                Self::Table
            }
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_every_exit_code_is_documented() {
        for (code, (exit, _)) in MEANINGS.iter().enumerate() {
            assert_eq!(*exit as usize, code);
        }
        assert!(help().lines().count() == MEANINGS.len() + 1);
    }

    #[test]
    fn op1_errors_have_their_exit_code() {
        assert_eq!(Exit::from(&ErrorKind::InvalidTableName), Exit::BadInput);
        assert_eq!(Exit::from(&ErrorKind::AccessDenied), Exit::Database);
        assert_eq!(Exit::from(&ErrorKind::SchemaTooNew { found: 2, known: 1 }), Exit::Table);
        assert_eq!(Exit::from(&ErrorKind::Conflict), Exit::Failed);
        assert_eq!(Exit::from(&ErrorKind::TooSlow), Exit::Failed);
    }
}
