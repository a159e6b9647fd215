//! Private servers with the durability that they come with: their data are made for one run and removed with it.
//!
//! `cargo xtask bench` sets the variables with their programs, accounts and directories.

mod mariadb;
mod postgres;

pub(crate) use mariadb::MariaDb;
pub(crate) use postgres::{Database, Postgres};
