//! The binary from outside: its answers, its exit codes, and what it leaves behind.
//!
//! | file | what is in it |
//! |---|---|
//! | `support.rs` | running the binary, fresh databases, the databases' own clients |
//! | `embedded.rs` | a newcomer in an empty directory |
//! | `listing.rs` | `events list` and `events show` |
//! | `streams.rs` | `lanes` and `blocked` |
//! | `migrate.rs` | racing migrations, printed SQL, reverting |
//! | `deploy.rs`, `promql.rs` | dashboard and alert rules name metrics that there are |
//! | `deployed.rs` | deployment and guide name commands and settings that there are |
//! | `bad_input.rs` | what is refused, with which exit code, and that nothing is written |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod deploy;
mod deployed;
mod embedded;
mod listing;
mod migrate;
mod promql;
mod streams;
mod support;
