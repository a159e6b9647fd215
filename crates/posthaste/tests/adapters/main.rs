//! The transactions of other client libraries against real servers.
//!
//! `suite` says what must hold of each library on each database, `sites` makes a schema, database or file
//! for every test, and each library's module says how it begins and ends a transaction and adds what only it
//! can show. Test names begin with the rows of the contract they show.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[macro_use]
mod suite;

mod diesel;
mod sea_orm;
mod sites;
mod tokio_postgres;
