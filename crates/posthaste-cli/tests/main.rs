//! The binary from outside: its answers, its exit codes, and what it leaves behind.
//!
//! | file | what is in it |
//! |---|---|
//! | `support.rs` | running the binary, fresh databases, the databases' own clients |
//! | `embedded.rs` | a newcomer in an empty directory |
//! | `listing.rs` | `events list` and `events show` |
//! | `streams.rs` | `lanes` and `blocked` |
//! | `doctor.rs` | what `doctor` says of a healthy table and of each fault |
//! | `migrate.rs` | racing migrations, printed SQL, reverting |
//! | `bad_input.rs` | what is refused, with which exit code, and that nothing is written |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod doctor;
mod embedded;
mod listing;
mod migrate;
mod streams;
mod support;
