//! The binary from outside: its answers, its exit codes, and what it leaves behind.
//!
//! | file | what is in it |
//! |---|---|
//! | `support.rs` | running the binary, fresh databases, the databases' own clients |
//! | `embedded.rs` | a newcomer in an empty directory |
//! | `listing.rs` | `events list` and `events show` |
//! | `refusing.rs` | a relay that makes some events dead |
//! | `snapshot.rs` | answers as people see them, without what differs each time |
//! | `dead.rs` | `dead list`, `show`, `replay` and `discard` |
//! | `purge.rs` | `purge` |
//! | `status.rs` | `status`, once and watched |
//! | `tail.rs` | `events tail`, late commits among it |
//! | `terminal.rs` | widths, colours |
//! | `completions.rs` | `completions` and `man` |
//! | `streams.rs` | `lanes` and `blocked` |
//! | `doctor.rs` | what `doctor` says of a healthy table and of each fault |
//! | `migrate.rs` | racing migrations, printed SQL, reverting |
//! | `config.rs` | the configuration: where settings come from, and mistakes in them |
//! | `passwords.rs` | logins with MySQL's default plugin, with and without TLS |
//! | `daemon.rs` | running the relay, and what its events arrive at |
//! | `relay.rs` | the relay as a program: sinks, routes, signals, databases that are away |
//! | `demo.rs` | the demo, and that its figures add up |
//! | `deploy.rs`, `promql.rs` | dashboard and alert rules name metrics that there are |
//! | `private.rs`, `end_to_end.rs` | from psql to JetStream, through servers that are killed |
//! | `deployed.rs` | deployment and guide name commands and settings that there are |
//! | `http/` | what the relay serves: health, metrics, the API, and who may ask for it |
//! | `rights.rs` | what is said to who may not read or write |
//! | `secrets.rs` | that no secret and no payload is said anywhere |
//! | `injection.rs` | that no name of a table does harm |
//! | `bad_input.rs` | what is refused, with which exit code, and that nothing is written |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[macro_use]
mod support;

mod bad_input;
mod completions;
mod config;
mod daemon;
mod dead;
mod demo;
mod deploy;
mod deployed;
mod doctor;
mod embedded;
mod end_to_end;
mod http;
mod injection;
mod listing;
mod migrate;
mod passwords;
mod private;
mod promql;
mod purge;
mod refusing;
mod relay;
mod rights;
mod secrets;
mod snapshot;
mod status;
mod streams;
mod tail;
mod terminal;

/// Seeds of arbitrary input.
const CORPUS: posthaste_testkit::fuzz::Corpus =
    posthaste_testkit::fuzz::Corpus::of_crate(env!("CARGO_MANIFEST_DIR"));
