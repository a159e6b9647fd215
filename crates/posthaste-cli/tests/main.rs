//! The binary from outside: its answers, its exit codes, and what it leaves behind.
//!
//! | file | what is in it |
//! |---|---|
//! | `support.rs` | running the binary, fresh databases, the databases' own clients |
//! | `embedded.rs` | a newcomer in an empty directory |
//! | `listing.rs` | `events list` and `events show` |
//! | `streams.rs` | `lanes` and `blocked` |
//! | `migrate.rs` | racing migrations, printed SQL, reverting |
//! | `config.rs` | the configuration: where settings come from, and mistakes in them |
//! | `bad_input.rs` | what is refused, with which exit code, and that nothing is written |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod config;
mod embedded;
mod listing;
mod migrate;
mod streams;
mod support;
