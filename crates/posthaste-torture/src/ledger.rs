//! The business data that events are written with: a row for each event, and a counter for each aggregate.
//!
//! A producer's transaction takes the counter of its aggregate forward, which locks it until the end: so the numbers of
//! committed events are in the order of their commits, without gaps. Then it writes a row with the event's id. Whether
//! that row is there in the end says whether the transaction has committed, also where its producer never learned it.
//!
//! | table | columns |
//! |---|---|
//! | `torture_counter` | `outbox`, `aggregate`, `counted` |
//! | `torture_business` | `id` (the event's, as text), `outbox`, `aggregate`, `number`, `hash` (of the payload) |
//!
//! The SQL is the same on all databases but for the placeholders.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Makes the tables.
pub const CREATE: [&str; 2] = [
    "CREATE TABLE torture_counter (
        outbox    VARCHAR(64) NOT NULL,
        aggregate VARCHAR(64) NOT NULL,
        counted   BIGINT      NOT NULL,
        PRIMARY KEY (outbox, aggregate))",
    "CREATE TABLE torture_business (
        id        CHAR(36)    NOT NULL PRIMARY KEY,
        outbox    VARCHAR(64) NOT NULL,
        aggregate VARCHAR(64) NOT NULL,
        number    BIGINT      NOT NULL,
        hash      BIGINT      NOT NULL)",
];

/// A counter that nothing was counted by yet; its outbox and aggregate are bound.
pub const ADD_COUNTER: &str = "INSERT INTO torture_counter (outbox, aggregate, counted) VALUES (?, ?, 0)";

/// Takes a counter forward, and keeps it from others; how far, outbox and aggregate are bound.
pub const COUNT_ON: &str =
    "UPDATE torture_counter SET counted = counted + ? WHERE outbox = ? AND aggregate = ?";

/// How far a counter is; outbox and aggregate are bound.
pub const COUNTED: &str = "SELECT counted FROM torture_counter WHERE outbox = ? AND aggregate = ?";

/// A business row; all its columns are bound, in their order.
pub const ADD_BUSINESS: &str =
    "INSERT INTO torture_business (id, outbox, aggregate, number, hash) VALUES (?, ?, ?, ?, ?)";

/// What is kept of a payload.
pub fn hash(payload: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish().cast_signed()
}

/// A statement as PostgreSQL has it, with numbers for its placeholders.
pub fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.enumerate().fold(first, |text, (at, part)| format!("{text}${}{part}", at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_numbered_from_one() {
        assert_eq!(numbered("a = ? AND b = ?"), "a = $1 AND b = $2");
        assert_eq!(numbered("nothing"), "nothing");
    }
}
