//! Whatever comes in at the edges: it is taken and arrives as it was, or it is refused with an error that says why and repeats
//! no secret. Nothing makes it panic, hang or swell.
//!
//! Seeds are in `tests/corpus`, a directory for each target; `posthaste_testkit::fuzz` changes them at random.
//!
//! | file | what comes in |
//! |---|---|
//! | `payloads.rs` | JSON texts and bytes, through every format of message |
//! | `headers.rs` | headers of events, to headers of messages and back |
//! | `templates.rs` | templates of destinations, filled with anything |
//! | `names.rs` | names of tables, and ids |
//! | `databases.rs` | events with anything in them, through every database; hostile names of tables |
//!
//! Rows that somebody wrote by hand are read in `src/store/columns/fuzz.rs`.
//!
//! Rows of the contract: DI4, EV2, EV4, SI3, ST1, ST2.

mod databases;
mod headers;
mod names;
mod payloads;
mod templates;
