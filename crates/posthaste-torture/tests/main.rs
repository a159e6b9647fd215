//! Everything that can break is broken, and nothing is lost: at every step, at random with fixed seeds, and with bugs that
//! must be found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests")]

/// Held by what wants the machine for itself: nextest sees to that, `cargo test` does not.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

mod audit;
#[cfg(feature = "__failpoints")]
mod crash;
#[cfg(all(feature = "__failpoints", feature = "__planted-bugs"))]
mod planted;
#[cfg(feature = "__planted-bugs")]
mod planted_run;
#[cfg(feature = "__failpoints")]
mod servers;
mod short_run;
