//! What every database does alike, one file per area.

mod admin;
mod bad_input;
mod claim;
mod enqueue;
mod hooks;
mod inbox;
mod migrate;
mod purge;
mod race;
mod settle;
