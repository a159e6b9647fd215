//! Streams as a store has them.
//!
//! | file | what is in it |
//! |---|---|
//! | `rig.rs` | a stream under test, and what is said to it |
//! | `own.rs` | lanes and their owners |
//! | `again.rs` | lanes that are taken again by who held them last |
//! | `read.rs` | pages and what is under way |
//! | `floor.rs` | where each delivered row is marked: locks, failovers, repairs |
//! | `kept.rs` | where much is kept that was delivered |
//! | `suspects.rs` | what an owner had under way that ended uncleanly |
//! | `park.rs` | parked events, and who waits behind them |
//! | `admin.rs` | what operators do |

mod admin;
mod again;
mod floor;
mod kept;
mod own;
mod park;
mod read;
mod rig;
mod suspects;
