//! One error type for the whole library.
//!
//! An [`Error`] says what happened and to which table or event; its [`ErrorKind`] is what code decides on,
//! and [`ErrorKind::policy`] with [`ErrorKind::advice`] is the one place that maps a kind to what is done
//! about it. Payloads and secrets never appear in a message.

use std::error::Error as StdError;
use std::fmt;

/// What every fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, to what, and (through [`Error::source`](StdError::source)) why.
pub struct Error {
    // Boxed so that a `Result<(), Error>` stays one word.
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of failure, for code that decides on them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    // The event, found before any database work.
    /// A field that must not be empty is.
    Empty {
        /// The field.
        field: &'static str,
    },
    /// A field is longer than its limit, in characters (all headers together: in bytes).
    TooLong {
        /// The field.
        field: &'static str,
        /// The most it may have.
        limit: usize,
        /// What it has.
        size: usize,
    },
    /// A field holds a control character.
    ControlCharacter {
        /// The field.
        field: &'static str,
        /// Byte offset of the first one.
        at: usize,
        /// The field's length in characters.
        size: usize,
    },
    /// The topic does not follow the strict policy `<module>.<aggregate>.<event>.vN`.
    TopicPolicy,
    /// A header has an empty key.
    HeaderKeyEmpty,
    /// The payload is larger than the limit, in bytes.
    PayloadTooLarge {
        /// The most it may have.
        limit: usize,
        /// What it has.
        size: usize,
    },
    /// Neither a JSON nor a binary payload was given.
    PayloadMissing,
    /// Both a JSON and a binary payload were given.
    PayloadAmbiguous,
    /// The payload could not be turned into JSON, or is not JSON.
    PayloadNotJson,
    /// `tenant_id` and `dedupe_key` are both set and the key does not begin with `<tenant_id>/`.
    DedupeKeyTenant,
    /// The id is neither a UUID nor a ULID.
    InvalidId,
    /// A number or time is outside what can be stored.
    OutOfRange {
        /// The field.
        field: &'static str,
    },

    // Settings.
    /// A table name that is not a plain identifier.
    InvalidTableName,
    /// A setting that cannot work.
    InvalidSetting,
    /// A connection URL of no supported database.
    UnknownDatabase,

    // Use.
    /// A producer hook refused the events.
    Hook,
    /// The connection has no open transaction.
    NotInTransaction,
    /// The transaction belongs to another kind of database than the outbox.
    WrongDatabase,

    // The database.
    /// The server cannot be reached, or the connection broke.
    Unreachable,
    /// The server refused the credentials, or the role lacks a privilege.
    AccessDenied,
    /// The database or the transaction is read-only.
    ReadOnly,
    /// The database, or the schema in it, does not exist.
    DatabaseMissing,
    /// The table does not exist.
    TableMissing,
    /// The table exists but is not as its migrations make it, or of another mode.
    SchemaMismatch,
    /// The table was migrated by a newer version of posthaste.
    SchemaTooNew {
        /// The newest migration of the table.
        found: u32,
        /// The newest this version knows.
        known: u32,
    },
    /// A constraint of the table refused the row.
    Constraint,
    /// The database ended the transaction in favour of another (deadlock, serialisation).
    Conflict,
    /// Looking at the table took longer than it may, and the database ended it.
    TooSlow,
    /// Anything else the database said.
    Database,
}

/// What is to be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The same call may succeed later: a relay tries again by itself.
    Retry,
    /// The caller's transaction is lost: roll it back and run it again from its start.
    RetryTransaction,
    /// It fails every time until somebody changes something.
    Fix,
}

impl ErrorKind {
    /// What is to be done: try again, run the transaction again, or change something first.
    pub fn policy(&self) -> Policy {
        match self {
            Self::Unreachable => Policy::Retry,
            Self::Conflict => Policy::RetryTransaction,
            _ => Policy::Fix,
        }
    }

    /// A sentence for the person who reads the log.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Empty { .. } => "give it a value",
            Self::TooLong { .. } => "shorten it",
            Self::ControlCharacter { .. } => "remove the control characters",
            Self::TopicPolicy => {
                "name it <module>.<aggregate>.<event>.vN in a-z, 0-9, '.' and '-', or switch strict topics off"
            }
            Self::HeaderKeyEmpty => "give every header a name",
            Self::PayloadTooLarge { .. } => {
                "send a reference instead of the data, or raise the outbox's payload limit"
            }
            Self::PayloadMissing => "set a JSON or a binary payload",
            Self::PayloadAmbiguous => "set either a JSON or a binary payload, not both",
            Self::PayloadNotJson => "give valid JSON, or send it as bytes with a content type",
            Self::DedupeKeyTenant => "begin the dedupe key with the tenant id and '/'",
            Self::InvalidId => "give a UUID or a ULID",
            Self::OutOfRange { .. } => "choose a value that can be stored",
            Self::InvalidTableName => {
                "use letters, digits and '_', not beginning with a digit, at most 40 characters; a schema and '.' may stand before it, but not on SQLite"
            }
            Self::InvalidSetting => "change the setting",
            Self::UnknownDatabase => "use a postgres://, mysql:// (or mariadb://) or sqlite:// URL",
            Self::Hook => "see the hook's own message",
            Self::NotInTransaction => "open a transaction and enqueue inside it",
            Self::WrongDatabase => "pass a transaction of the outbox's own database",
            Self::Unreachable => "check the URL, and that the server is up or the file's directory exists",
            Self::AccessDenied => "check user, password and privileges",
            Self::ReadOnly => "connect to a database that can be written to",
            Self::DatabaseMissing => "create the database or schema, or correct its name",
            Self::TableMissing => {
                "create it with `posthaste migrate up` (same --database and --table) or `outbox.migrate()`"
            }
            Self::SchemaMismatch => {
                "compare it with `posthaste migrate validate` (its mode is shown by `migrate status`), then bring it up with `posthaste migrate up`"
            }
            Self::SchemaTooNew { .. } => {
                "use a version of posthaste at least as new as the one that migrated it"
            }
            Self::Constraint => "correct the row; the table's rules are in the table reference",
            Self::Conflict => "roll the transaction back and run it again",
            Self::TooSlow => {
                "narrow it: by status (pending, processing or dead), by id or, on PostgreSQL, by a short time; nothing else is found without reading the whole table"
            }
            Self::Database => "see the database's own message",
        }
    }
}

impl Error {
    /// An error of this kind that says what happened, to which table or event; for a store of one's own.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { inner: Box::new(Inner { kind, message: message.into(), source: None }) }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// What code decides on.
    pub fn kind(&self) -> &ErrorKind {
        &self.inner.kind
    }

    /// What happened, without the advice that [`Display`](fmt::Display) adds.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        self.inner.kind.policy() != Policy::Fix
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.inner.message, self.inner.kind.advice())
    }
}

/// Shows of the cause only what it says: what a database adds for its own debugging may hold a row's values.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("source", &self.inner.source.as_ref().map(ToString::to_string))
            .finish()
    }
}

/// A text that somebody gave, in quotation marks, for a message that must stay short: the first so many characters.
///
/// A precision (`{text:.60?}`) does not do that: what shows a text in quotation marks ignores it.
pub(crate) fn quoted(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
