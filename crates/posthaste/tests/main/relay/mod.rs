//! The relay: on every database what the database has a part in, in memory with a clock of its own what is
//! only a matter of time.

mod around;
mod control;
mod failures;
mod hot;
mod housekeeping;
mod idle;
mod memory;
mod observed;
mod pipeline;
mod recovery;
mod routes;
mod together;
mod wake;
