//! Servers for the tests, the benchmarks and the torture of posthaste.
//!
//! | module | contents |
//! |---|---|
//! | [`services`] | the shared servers: `cargo xtask services up` and `down` |
//! | [`private`] | servers of a test's own, which it may crash and start again |
//! | [`environment`] | where tests find both |
//! | [`choice`] | versions of the servers |
//! | [`engine`] | what differs between PostgreSQL, MySQL, MariaDB and NATS |
//! | [`server`], [`home`], [`record`] | life, directory and memory of one shared server |
//! | [`install`], [`program`], [`unpacked`], [`download`], [`compose`] | where programs come from: packages, downloads, containers |
//! | [`layout`], [`envfile`] | directories of a workspace, and the file with the URLs |
//! | `fuzz` | arbitrary input, with the feature of that name |
//! | [`account`], [`process`] | the user that a server runs as, processes and ports |
//!
//! The interface is blocking. Without features it needs the standard library and `anyhow` alone.

#![allow(
    clippy::print_stdout,
    reason = "the output of `cargo xtask services`: what is installed, made and started"
)]

pub mod account;
pub mod choice;
pub mod compose;
pub mod download;
pub mod engine;
pub mod envfile;
pub mod environment;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod home;
pub mod install;
pub mod layout;
pub mod private;
pub mod process;
pub mod program;
pub mod record;
pub mod server;
pub mod services;
pub mod unpacked;
