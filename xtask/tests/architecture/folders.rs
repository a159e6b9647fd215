//! Every database has the same files, at any depth.

use std::collections::{BTreeMap, BTreeSet};

pub const DATABASES: [&str; 3] = ["mysql", "postgres", "sqlite"];

/// A file that not every database has. An exception that is not needed fails the test.
pub struct Exception {
    /// Path below the database's folder.
    pub file: &'static str,
    /// In alphabetical order.
    pub databases: &'static [&'static str],
    pub reason: &'static str,
}

pub const fn exception(
    file: &'static str,
    databases: &'static [&'static str],
    reason: &'static str,
) -> Exception {
    Exception { file, databases, reason }
}

const ROW_LOCKS: &str =
    "a producer may hold a lock on a row that is to be marked; SQLite has one writer at a time";
const MARKED_ROWS: &str =
    "delivery is marked in the rows of a stream, and one statement reads the rows without a mark";
const SNAPSHOTS: &str =
    "rows of a stream are not marked; a lane is read between two snapshots, in several steps";

/// Differences between the folders below `store/`.
pub const SOURCES: &[Exception] = &[
    exception("stream/mark.rs", &["mysql"], ROW_LOCKS),
    exception("stream/read.rs", &["mysql", "sqlite"], MARKED_ROWS),
    exception("stream/snapshot.rs", &["postgres"], SNAPSHOTS),
    exception("stream/window.rs", &["postgres"], SNAPSHOTS),
    exception("stream/window/ahead.rs", &["postgres"], SNAPSHOTS),
    exception("stream/window/note.rs", &["postgres"], SNAPSHOTS),
    exception("stream/window/open.rs", &["postgres"], SNAPSHOTS),
    exception("stream/window/page.rs", &["postgres"], SNAPSHOTS),
    exception("stream/window/place.rs", &["postgres"], SNAPSHOTS),
];

/// Differences between the folders below `migrations/`: none.
pub const MIGRATIONS: &[Exception] = &[];

/// Databases without files, files that not every database has and no exception names, and exceptions that no longer fit. A
/// path begins with the database's folder.
pub fn violations<'a>(paths: impl IntoIterator<Item = &'a str>, exceptions: &[Exception]) -> Vec<String> {
    let mut owners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (database, file) in paths.into_iter().filter_map(|path| path.split_once('/')) {
        if DATABASES.contains(&database) {
            owners.entry(file).or_default().insert(database);
        }
    }
    let is_excepted = |file: &str, owners: &BTreeSet<&str>| {
        let mut exceptions = exceptions.iter().filter(|exception| exception.file == file);
        exceptions.any(|exception| exception.databases.iter().copied().eq(owners.iter().copied()))
    };
    let uneven = owners.iter().filter(|(_, owners)| owners.len() < DATABASES.len());
    let uneven: BTreeMap<_, _> = uneven.collect();
    let found = uneven.iter().filter(|(file, owners)| !is_excepted(file, owners));
    let found = found.map(|(file, owners)| format!("{file} exists for {owners:?} alone"));
    let needed = |exception: &&Exception| uneven.contains_key(&exception.file);
    let unneeded = exceptions.iter().filter(|exception| !needed(exception));
    let unneeded = unneeded.map(|Exception { file, reason, .. }| {
        format!("{file} is equal for all databases, or gone: remove the exception ({reason})")
    });
    let empty = DATABASES.iter().filter(|name| !owners.values().any(|owners| owners.contains(*name)));
    let empty = empty.map(|name| format!("{name} has no files"));
    empty.chain(found).chain(unneeded).collect()
}
