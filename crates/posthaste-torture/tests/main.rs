//! Everything that can break is broken, and nothing is lost.
#![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

#[cfg(feature = "failpoints")]
mod crash;
#[cfg(all(feature = "failpoints", feature = "planted-bugs"))]
mod planted;
mod servers;
