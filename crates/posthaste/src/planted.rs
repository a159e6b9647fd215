//! Bugs on purpose: for this project's own tests, which see that whoever checks a run under fire finds each of them.
//!
//! They are there with the feature `__planted-bugs` alone, and do nothing unless the variable `POSTHASTE_PLANTED_BUG` names
//! one; a process that has one says so, in its log and on standard error. PostgreSQL is enough: what is checked is the checker,
//! and it reads the same history whatever the database was.
//!
//! | bug | what is wrong |
//! |---|---|
//! | `settle-without-fencing` | how an event ended is written whoever holds its lease by then |
//! | `ack-before-publish` | an event counts as delivered before its sink has answered |
//! | `claim-without-lock` | what a claim has found it does not lock: another that waits for the same row takes it, too |
//! | `deliver-twice` | what the sink has accepted is given to it once more, without a new claim |
//! | `enqueue-outside-transaction` | an event is written by a transaction of its own, whatever becomes of the caller's |
//! | `cursor-by-bare-sequence` | a stream is read by sequence: what commits later than what came after it is passed over |
//! | `lane-written-without-its-fence` | who has lost a lane still writes how far it is |

/// Which bug.
#[cfg_attr(
    not(feature = "__planted-bugs"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "without the feature no bug is ever planted, nor seen outside"
    )
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    SettleWithoutFencing,
    AckBeforePublish,
    ClaimWithoutLock,
    DeliverTwice,
    EnqueueOutsideTransaction,
    CursorByBareSequence,
    LaneWrittenWithoutItsFence,
}

#[cfg(not(feature = "__planted-bugs"))]
pub(crate) use off::{is, spoilt};
#[cfg(feature = "__planted-bugs")]
pub use on::VARIABLE;
#[cfg(feature = "__planted-bugs")]
pub(crate) use on::{is, spoilt};

#[cfg(not(feature = "__planted-bugs"))]
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

#[cfg(feature = "__planted-bugs")]
mod on {
    use std::borrow::Cow;
    use std::io::Write;
    use std::sync::LazyLock;

    use super::Bug;

    /// The variable that names the bug.
    pub const VARIABLE: &str = "POSTHASTE_PLANTED_BUG";

    impl Bug {
        /// All of them.
        pub(crate) const ALL: [Self; 7] = [
            Self::SettleWithoutFencing,
            Self::AckBeforePublish,
            Self::ClaimWithoutLock,
            Self::DeliverTwice,
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
                Self::DeliverTwice => "deliver-twice",
                Self::EnqueueOutsideTransaction => "enqueue-outside-transaction",
                Self::CursorByBareSequence => "cursor-by-bare-sequence",
                Self::LaneWrittenWithoutItsFence => "lane-written-without-its-fence",
            }
        }

        /// What a process says that has it.
        pub fn confession(self) -> String {
            format!("{VARIABLE} is {:?}: this process is wrong on purpose", self.name())
        }

        /// What is taken out of PostgreSQL's statements, and what stands there instead.
        pub(super) const fn spoils(self) -> &'static [(&'static str, &'static str)] {
            match self {
                Self::SettleWithoutFencing => &[
                    ("locked_by = $2 AND attempts = $3", "$2 <> '' AND $3 > 0"),
                    ("o.locked_by = s.holder AND o.attempts = s.attempt", "true"),
                ],
                Self::ClaimWithoutLock => &[(
                    "LIMIT (SELECT $3::bigint)\n          FOR UPDATE SKIP LOCKED))",
                    "LIMIT (SELECT $3::bigint)))",
                )],
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
                Self::AckBeforePublish
                | Self::DeliverTwice
                | Self::EnqueueOutsideTransaction
                | Self::CursorByBareSequence => &[],
            }
        }
    }

    static PLANTED: LazyLock<Option<Bug>> = LazyLock::new(|| {
        let said = std::env::var(VARIABLE).ok()?;
        let known = Bug::ALL.into_iter().find(|bug| bug.name() == said);
        let words = match known {
            Some(bug) => bug.confession(),
            None => format!("{VARIABLE} is {said:?}, which is the name of no bug"),
        };
        tracing::warn!("{words}");
        // Where that cannot be said, the log has it.
        writeln!(std::io::stderr(), "{words}").ok();
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

#[cfg(all(test, feature = "__planted-bugs"))]
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
