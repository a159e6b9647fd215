//! posthaste against real servers: one binary, a module per area.
//!
//! `conformance` runs unchanged on every database; `model` compares random sequences of operations with a
//! reference; the rest is what only one database, or no database, can show. Test names begin with the rows
//! of the contract they show.

#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

#[macro_use]
mod harness;

mod conformance;
mod dispatch;
mod docs;
mod doctor;
mod edges;
mod exclusion;
mod model;
mod mysql;
mod plain_sql;
mod postgres;
mod relay;
mod rules;
mod stream;
mod testing;
