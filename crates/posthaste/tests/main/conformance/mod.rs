//! What every database does alike, one file per area.

mod admin;
mod bad_input;
mod begin;
mod claim;
mod clock;
mod enqueue;
mod hooks;
mod inbox;
mod locks;
mod look;
mod migrate;
mod mode;
mod operate;
mod purge;
mod race;
mod session;
mod settle;
mod stream;
