//! The architecture of the library, checked on its parsed sources: which module sees which, where SQL lives, and that the
//! databases' folders are equal.
//!
//! Nothing of the library is compiled for these tests, and no database is needed. Each rule is a function of sources, so that
//! [`planted`] shows it a violation.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::panic, reason = "tests")]

mod edges;
mod folders;
mod planted;
mod sql;
mod tree;
mod uses;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tree::{Source, Tree};

const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/posthaste");

/// Paths of all files below a folder of the library, relative to the folder and in order.
fn files(folder: &str) -> Vec<String> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let folder = Path::new(LIBRARY).join(folder);
    let mut found = Vec::new();
    walk(&folder, &mut found);
    found.sort();
    found.iter().map(|path| path.strip_prefix(&folder).unwrap().to_str().unwrap().to_owned()).collect()
}

/// The library as it is, parsed once for all tests of a process.
static SOURCES: LazyLock<Tree> = LazyLock::new(|| {
    let read = |path: String| {
        let text = std::fs::read_to_string(Path::new(LIBRARY).join("src").join(&path)).unwrap();
        Source { path, text }
    };
    let sources: Vec<Source> =
        files("src").into_iter().filter(|path| path.ends_with(".rs")).map(read).collect();
    Tree::parse(&sources)
});

#[track_caller]
fn assert_none(violations: &[String]) {
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn every_module_sees_only_its_listed_parts() {
    assert_none(&edges::violations(&SOURCES));
}

#[test]
fn every_listed_edge_and_exception_is_needed() {
    assert_none(&edges::unneeded(&SOURCES));
    assert_none(&sql::unneeded(&SOURCES));
}

#[test]
fn every_part_sees_only_parts_above_it() {
    assert_none(&edges::upward(edges::PARTS));
}

#[test]
fn sql_lives_in_the_store_alone() {
    assert_none(&sql::violations(&SOURCES));
}

#[test]
fn every_database_has_the_same_files() {
    for (folder, exceptions) in [("src/store", folders::SOURCES), ("migrations", folders::MIGRATIONS)] {
        let files = files(folder);
        assert_none(&folders::violations(files.iter().map(String::as_str), exceptions));
    }
}
