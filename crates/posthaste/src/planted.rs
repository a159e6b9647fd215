//! Bugs on purpose: for this project's own tests, which see that whoever checks a run under fire finds each of them.
//!
//! They are there with the feature `planted-bugs` alone, and do nothing unless the variable `POSTHASTE_PLANTED_BUG` names
//! one. PostgreSQL is enough: what is checked is the checker, and it reads the same history whatever the database was.
//!
//! | bug | what is wrong |
//! |---|---|
//! | `settle-without-fencing` | how an event ended is written whoever holds its lease by then |
//! | `ack-before-publish` | an event counts as delivered before its sink has answered |
//! | `claim-without-lock` | a claim takes what others have claimed |
//! | `enqueue-outside-transaction` | an event is written by a transaction of its own, whatever becomes of the caller's |
//! | `cursor-by-bare-sequence` | a stream is read by sequence: what commits later than what came after it is passed over |
//! | `lane-written-without-its-fence` | who has lost a lane still writes how far it is |

/// Which bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    SettleWithoutFencing,
    AckBeforePublish,
    ClaimWithoutLock,
    EnqueueOutsideTransaction,
    CursorByBareSequence,
    LaneWrittenWithoutItsFence,
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) use off::{is, spoilt};
#[cfg(feature = "planted-bugs")]
pub use on::VARIABLE;
#[cfg(feature = "planted-bugs")]
pub(crate) use on::{is, spoilt};

#[cfg(not(feature = "planted-bugs"))]
mod off {
    use std::borrow::Cow;

    use super::Bug;

    /// No.
    pub(crate) const fn is(_: Bug) -> bool {
        false
    }

    /// The statement as it is.
    pub(crate) const fn spoilt(sql: &'static str) -> Cow<'static, str> {
        Cow::Borrowed(sql)
    }
}

#[cfg(feature = "planted-bugs")]
mod on {
    use std::borrow::Cow;
    use std::sync::LazyLock;

    use super::Bug;

    /// The variable that names the bug.
    pub const VARIABLE: &str = "POSTHASTE_PLANTED_BUG";

    impl Bug {
        /// All of them.
        pub const ALL: [Self; 6] = [
            Self::SettleWithoutFencing,
            Self::AckBeforePublish,
            Self::ClaimWithoutLock,
            Self::EnqueueOutsideTransaction,
            Self::CursorByBareSequence,
            Self::LaneWrittenWithoutItsFence,
        ];

        /// What it is called.
        pub const fn name(self) -> &'static str {
            match self {
                Self::SettleWithoutFencing => "settle-without-fencing",
                Self::AckBeforePublish => "ack-before-publish",
                Self::ClaimWithoutLock => "claim-without-lock",
                Self::EnqueueOutsideTransaction => "enqueue-outside-transaction",
                Self::CursorByBareSequence => "cursor-by-bare-sequence",
                Self::LaneWrittenWithoutItsFence => "lane-written-without-its-fence",
            }
        }

        /// What is taken out of PostgreSQL's statements, and what stands there instead.
        pub(super) const fn spoils(self) -> &'static [(&'static str, &'static str)] {
            match self {
                Self::SettleWithoutFencing => &[
                    ("locked_by = $2 AND attempts = $3", "$2 <> '' AND $3 > 0"),
                    ("o.locked_by = s.holder AND o.attempts = s.attempt", "true"),
                ],
                Self::ClaimWithoutLock => &[
                    ("AND (locked_until IS NULL OR locked_until <= now())", ""),
                    (
                        "LIMIT (SELECT $3::bigint)\n          FOR UPDATE SKIP LOCKED))",
                        "LIMIT (SELECT $3::bigint)))",
                    ),
                ],
                Self::LaneWrittenWithoutItsFence => &[
                    (
                        "(l.lane, l.fence) IN (SELECT said.lane, said.fence FROM said)",
                        "l.lane IN (SELECT said.lane FROM said)",
                    ),
                    (
                        "SELECT said.lane, said.step + 1,",
                        "SELECT said.lane, (SELECT max(q.step) + 1 FROM {places_table} AS q WHERE q.lane = said.lane),",
                    ),
                    (
                        "EXISTS (SELECT FROM {places_table} AS before WHERE before.lane = said.lane AND before.step = said.step OFFSET 0)",
                        "true",
                    ),
                ],
                Self::AckBeforePublish | Self::EnqueueOutsideTransaction | Self::CursorByBareSequence => &[],
            }
        }
    }

    static PLANTED: LazyLock<Option<Bug>> = LazyLock::new(|| {
        let said = std::env::var(VARIABLE).ok()?;
        let known = Bug::ALL.into_iter().find(|bug| bug.name() == said);
        if known.is_none() {
            tracing::error!("{VARIABLE} is {said:?}, which is the name of no bug");
        }
        known
    });

    /// Whether this process has this bug.
    pub(crate) fn is(bug: Bug) -> bool {
        *PLANTED == Some(bug)
    }

    /// A statement with this process's bug in it.
    pub(crate) fn spoilt(sql: &'static str) -> Cow<'static, str> {
        let spoils = PLANTED.map(Bug::spoils).unwrap_or_default();
        let spoil = |sql: Cow<'static, str>, (right, wrong): &(&str, &str)| match sql.contains(right) {
            true => Cow::Owned(sql.replace(right, wrong)),
            false => sql,
        };
        spoils.iter().fold(Cow::Borrowed(sql), spoil)
    }
}

#[cfg(all(test, feature = "planted-bugs"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::Bug;

    /// The statements may be written in another way one day: then a bug would not be planted any more.
    #[test]
    fn pr2_what_a_planted_bug_spoils_is_in_the_statements() {
        let file = |path: &str| {
            std::fs::read_to_string(format!("{}/src/store/postgres/{path}", env!("CARGO_MANIFEST_DIR")))
                .unwrap()
        };
        let sources = [file("queue.rs"), file("stream/mod.rs"), file("stream/window/note.rs")].concat();
        for bug in Bug::ALL {
            for (right, _) in bug.spoils() {
                assert!(sources.contains(right), "{}: no statement has {right:?}", bug.name());
            }
        }
    }
}
