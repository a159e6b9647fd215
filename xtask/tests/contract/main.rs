//! Compares `docs/contract.md` with the tests of all crates: a row that is `built` has a test, a `planned` one has none, and each row
//! that a test names is on the page.
//!
//! | file | contents |
//! |---|---|
//! | `main.rs` | the comparison of this repository |
//! | `page.rs` | rows, parts and their states, as the page lists them |
//! | `lexer.rs` | Rust source as tokens, without comments and literals |
//! | `sources.rs` | tests in Rust source, also those that macros make |
//! | `rules.rs` | the rules, and a message for each breach |
//! | `planted.rs` | wrong pages and wrong tests, each of which a rule must find |
//!
//! The scan reads text: it builds nothing, needs no database and takes a few seconds.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::panic, reason = "tests")]

mod lexer;
mod page;
mod planted;
mod rules;
mod sources;

use std::path::Path;

use sources::Source;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Path of the page below the root, as messages show it.
const PAGE: &str = "docs/contract.md";

/// Reads every Rust file below a directory, and names each by its path below the root.
fn read_sources(directory: &Path, found: &mut Vec<Source>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Build products; some contain generated Rust.
            if !path.ends_with("target") {
                read_sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(ROOT).unwrap().to_string_lossy().replace('\\', "/");
            found.push(Source { path: name, text: std::fs::read_to_string(&path).unwrap() });
        }
    }
}

fn all_sources() -> Vec<Source> {
    let mut found = Vec::new();
    for directory in ["crates", "xtask"] {
        read_sources(&Path::new(ROOT).join(directory), &mut found);
    }
    found
}

#[test]
fn every_row_has_the_tests_that_its_state_demands() {
    let page = std::fs::read_to_string(Path::new(ROOT).join(PAGE)).unwrap();
    let breaches = rules::check(&page, &all_sources());
    assert!(breaches.is_empty(), "{PAGE} and the tests differ:\n{}\n", breaches.join("\n"));
}

/// Guards the scan itself: a macro whose tests it no longer sees would make every rule easier to pass.
#[test]
fn the_scan_sees_tests_of_every_making() {
    let tests = sources::tests(&all_sources());
    let count =
        |is_meant: &dyn Fn(&sources::Test) -> bool| tests.iter().filter(|test| is_meant(test)).count();
    let is_in = |test: &sources::Test, module: &str| test.modules.iter().any(|name| name == module);
    assert!(tests.len() > 900, "{} tests", tests.len());
    for database in ["postgres", "mysql", "sqlite", "memory"] {
        let with_database = count(&|test| test.database.as_deref() == Some(database));
        assert!(with_database > 100, "{with_database} tests on {database}");
    }
    for sink in ["stdout", "file", "http", "nats"] {
        let of_suite = count(&|test| is_in(test, "sinks") && is_in(test, sink));
        assert!(of_suite > 5, "{of_suite} tests of the sink {sink}");
    }
    let of_adapters = count(&|test| is_in(test, "adapters"));
    assert!(of_adapters > 10, "{of_adapters} tests of client libraries");
    let of_crashes = count(&|test| is_in(test, "crash") && test.database.is_some());
    assert!(of_crashes > 5, "{of_crashes} tests of crashes");
}
