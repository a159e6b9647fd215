//! Every sink against its real destination: one suite for all, and what only one of them can show.
//!
//! `conformance` is the sink specification of the book, row by row; a destination says in its module how it is
//! started, stopped, read and made to refuse. Test names begin with the rows of the contract they show.
//!
//! Rows of the contract: SI1, SI2, SI3, SI4, OP10.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod anything;
mod conformance;
mod destination;
mod doctor;
mod file;
mod http;
mod nats;
mod stdout;
mod tls;

/// The specification in the book and the suite say the same.
#[test]
fn the_specification_names_every_test() {
    let page = include_str!("../../../../docs/src/reference/sink-spec.md");
    let named: std::collections::BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.split(" | ").nth(2)?.strip_prefix('`')?.strip_suffix('`'))
        .collect();
    let suite = include_str!("conformance.rs");
    let tests =
        suite.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('<').next()).collect();
    assert_eq!(named, tests, "left: the page, right: the suite");
}
