//! Every sink against its real destination: one suite for all, and what only one of them can show.
//!
//! `conformance` is the sink specification of the book, row by row; a destination says in its module how it is
//! started, stopped, read and made to refuse. Test names begin with the rows of the contract they show.

#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod conformance;
mod destination;
mod file;
mod http;
mod nats;
mod stdout;
