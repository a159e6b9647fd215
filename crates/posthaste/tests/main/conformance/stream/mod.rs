//! Streams as a store has them.
//!
//! | file | what is in it |
//! |---|---|
//! | `rig.rs` | a stream under test, and what is said to it |
//! | `own.rs` | lanes and their owners |
//! | `read.rs` | pages and what is under way |
//! | `suspects.rs` | what an owner had under way that ended uncleanly |
//! | `park.rs` | parked events, and who waits behind them |

mod own;
mod park;
mod read;
mod rig;
mod suspects;
