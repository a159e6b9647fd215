//! Runs under fire, briefly and with fixed seeds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests")]

mod audit;
mod short_run;
