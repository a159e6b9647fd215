//! The direction of the code: produce → store → relay → sink, and who may not see whom.

use std::path::{Path, PathBuf};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Source files below a directory (or a file of that name), without their tests.
fn files(part: &str) -> Vec<(PathBuf, String)> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                walk(&entry.unwrap().path(), found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path.to_owned());
        }
    }
    let mut found = Vec::new();
    for path in [Path::new(SOURCES).join(part), Path::new(SOURCES).join(format!("{part}.rs"))] {
        if path.exists() {
            walk(&path, &mut found);
        }
    }
    assert!(!found.is_empty(), "{part} is gone: correct this test");
    found
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            // Documentation may speak of everything.
            let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            (path, code.join("\n"))
        })
        .collect()
}

fn must_not_see(part: &str, others: &[&str]) {
    for (path, code) in files(part) {
        for other in others {
            assert!(!code.contains(&format!("crate::{other}")), "{} sees {other}", path.display());
        }
    }
}

#[test]
fn event_and_error_know_nothing_else() {
    must_not_see("error", &["event", "produce", "store", "relay", "sink", "dispatch", "admin", "inbox"]);
    must_not_see("event", &["produce", "store", "relay", "sink", "dispatch", "admin", "inbox"]);
}

#[test]
fn the_store_sees_neither_producers_nor_what_delivers() {
    must_not_see("store", &["produce", "relay", "sink", "dispatch", "admin", "testing", "inbox::"]);
}

#[test]
fn producers_only_insert() {
    must_not_see("produce", &["relay", "sink", "dispatch", "admin", "testing"]);
}

#[test]
fn sinks_never_see_the_store() {
    must_not_see("sink", &["store", "produce", "relay", "admin", "inbox"]);
}

#[test]
fn dispatch_sees_sinks_alone() {
    must_not_see("dispatch", &["store", "produce", "relay", "admin", "inbox"]);
}

#[test]
fn sql_lives_in_the_store_alone() {
    let statements = ["INSERT INTO", "UPDATE {", "DELETE FROM", "SELECT ", "CREATE TABLE", "DROP TABLE"];
    for part in ["event", "error", "produce", "dispatch", "relay", "sink", "inbox", "testing", "lib"] {
        for (path, code) in files(part) {
            for statement in statements {
                assert!(!code.contains(statement), "{} holds SQL: {statement}", path.display());
            }
        }
    }
}

#[test]
fn every_database_has_the_same_files() {
    let names = |database: &str| {
        let mut names: Vec<String> = std::fs::read_dir(Path::new(SOURCES).join("store").join(database))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("postgres"), names("mysql"));
    assert_eq!(names("postgres"), names("sqlite"));
    let migrations = |database: &str| {
        let mut names: Vec<String> =
            std::fs::read_dir(Path::new(SOURCES).join("../migrations").join(database))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
        names.sort();
        names
    };
    assert_eq!(migrations("postgres"), migrations("mysql"));
    assert_eq!(migrations("postgres"), migrations("sqlite"));
}
