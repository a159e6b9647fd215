//! What to do about an error of the database: which table may have been meant, which right to grant, which file or
//! directory to open up. The database is asked for it once more, and only after it has failed; what it does not answer
//! leaves the error as it was.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | tables that are missing, and those that are no outbox |
//! | `rights.rs` | rights that PostgreSQL, MySQL and MariaDB deny |
//! | `certificates.rs` | certificates that are not trusted |
//! | `files.rs` | SQLite files and directories that cannot be read or written |

mod certificates;
mod files;
mod rights;

use posthaste::store::{Difference, Mode, Store};
use posthaste::{Error, ErrorKind};

use crate::config::nearest;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// What a command does to a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Writes events.
    Produce,
    /// Reads only.
    Look,
    /// Changes and deletes events: a relay, and who mends.
    Deliver,
    /// Makes tables.
    Migrate,
}

/// The failure of a command on these tables, with what to do about it.
pub(crate) async fn of(failure: Failure, targets: &[Target], need: Need) -> Failure {
    let Some(error) = failure.library() else { return failure };
    let named = |target: &&Target| error.message().contains(&format!("table {} ", target.table()));
    let Some(target) = targets.iter().find(named).or(targets.first()) else { return failure };
    let store = target.opened();
    match advice(error, target, store.as_deref(), need).await {
        Some((exit, message)) => Failure::new(exit, message),
        None => failure,
    }
}

/// What happened and what to do, where more can be said than the error does.
pub(crate) async fn advice(
    error: &Error,
    target: &Target,
    store: Option<&dyn Store>,
    need: Need,
) -> Option<(Exit, String)> {
    match error.kind() {
        ErrorKind::TableMissing => Some((Exit::Table, missing(target, store?).await)),
        ErrorKind::AccessDenied => {
            rights::advice(error, target, store, need).await.map(|message| (Exit::Database, message))
        }
        ErrorKind::ReadOnly => files::advice(error, target).map(|message| (Exit::Database, message)),
        ErrorKind::Unreachable => certificates::advice(error, target)
            .or_else(|| files::advice(error, target))
            .map(|message| (Exit::Database, message)),
        ErrorKind::SchemaMismatch | ErrorKind::Database => misfit(target, store?, need).await,
        _ => None,
    }
}

/// Why a relay cannot work on a table that it has opened, and what to do; nothing where it may be only for now: a standby
/// becomes the primary.
pub(crate) async fn unfit(target: &Target, store: &dyn Store) -> Option<(Exit, String)> {
    let access = store.health()?.access().await.ok()?;
    // A stream on PostgreSQL is read, and how far is written beside it.
    let needed: &[&str] = if matches!(store.mode().await, Ok(Some(Mode::Stream(_)))) {
        &["SELECT"]
    } else {
        &["SELECT", "UPDATE"]
    };
    let unfit = if access.denied.iter().any(|right| needed.contains(right)) {
        rights::lacking(target, &access.denied, access.account.as_deref())
    } else {
        access.read_only.and_then(|_| files::unwritable(target))
    };
    unfit.map(|message| (Exit::Database, message))
}

/// A table that is not there: the one that may have been meant, and how to make it.
async fn missing(target: &Target, store: &dyn Store) -> String {
    let table = target.table();
    let make = target.migration();
    match others(target, store).await {
        Some(others) => format!("table {table} does not exist; {others} Else create it with {make}"),
        None => format!("table {table} does not exist; create it with {make}"),
    }
}

/// A table that is there and has nothing of an outbox, or not all that a queue has.
async fn misfit(target: &Target, store: &dyn Store, need: Need) -> Option<(Exit, String)> {
    /// Columns that no other kind of table is likely to have all of.
    const TELLING: [&str; 3] = ["topic", "event_type", "available_at"];
    let differences = store.validate().await.ok()?;
    let lacks = |name: &str| {
        differences
            .iter()
            .any(|found| matches!(found, Difference::MissingColumn { column } if column == name))
    };
    // Where the record of migrations is seen it says what the table is: a queue that has lost a column stays one.
    let unrecorded = async || store.tables().await.is_ok_and(|tables| tables.is_empty());
    if lacks("attempts") && !TELLING.into_iter().any(lacks) && unrecorded().await {
        return rights::hidden_stream(target, store, need).await.map(|message| (Exit::Database, message));
    }
    if !TELLING.into_iter().all(lacks) {
        return None;
    }
    let table = target.table();
    let others = others(target, store).await;
    let instead = others.unwrap_or_else(|| "name another one with --table".to_owned());
    let instead = instead.trim_end_matches('.');
    let columns = TELLING.join(", ");
    let message = format!("table {table} exists and is no outbox: it has no columns {columns}, …; {instead}");
    Some((Exit::Table, message))
}

/// Which tables there are instead, as a sentence.
async fn others(target: &Target, store: &dyn Store) -> Option<String> {
    let table = target.table().to_string();
    // Who may not see which tables there are is told of none.
    let tables = store.tables().await.unwrap_or_default();
    let names: Vec<String> = tables.iter().map(ToString::to_string).filter(|name| *name != table).collect();
    // Their schema is the same, and would make all of them near.
    let own = |name: &str| name.rsplit_once('.').map_or(0, |(schema, _)| schema.len() + 1);
    let at = own(&table);
    let near = nearest(&table[at..], names.iter().map(|name| &name[at..]))
        .map(|near| format!("{}{near}", &table[..at]));
    match (near, names.as_slice()) {
        (Some(near), _) => Some(format!("did you mean --table {near}?")),
        (None, []) => None,
        (None, [only]) => Some(format!("this database has the outbox table {only}: --table {only}.")),
        (None, _) => {
            let listed = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if names.len() > NAMED { ", …" } else { "" };
            Some(format!("this database has the outbox tables {listed}{more}: name one with --table."))
        }
    }
}

/// Most tables that are named.
const NAMED: usize = 5;
