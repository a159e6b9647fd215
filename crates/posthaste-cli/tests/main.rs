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
//! | `daemon.rs` | running the relay, and what its events arrive at |
//! | `relay.rs` | the relay as a program: sinks, routes, signals, databases that are away |
//! | `demo.rs` | the demo, and that its figures add up |
//! | `http/` | what the relay serves: health, metrics, the API, and who may ask for it |
//! | `bad_input.rs` | what is refused, with which exit code, and that nothing is written |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod bad_input;
mod config;
mod daemon;
mod demo;
mod embedded;
mod http;
mod listing;
mod migrate;
mod relay;
mod streams;
mod support;
