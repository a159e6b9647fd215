//! A process that dies between two steps, at every place where it can; then another that finishes the work, and the
//! checker.
//!
//! A *case* is a failpoint, a scenario and a database. A child process makes the table, writes business rows and events,
//! relays them in the same process to a handler that writes down what it is given, and purges; at the failpoint it dies.
//! One that never gets there fails the case: nothing would have been tried. Then a child without a failpoint has to come
//! to its end on what is there, and what both have written down is checked with what is in the database.
//!
//! | file | what is in it |
//! |---|---|
//! | `points.rs` | which scenario gets to which failpoint, and on which database it is not there |
//! | `ground.rs` | a schema, database or file for one case |
//! | `site.rs` | the outbox there, and transactions on it |
//! | `producer.rs` | who writes business rows and events there |
//! | `temper.rs` | what becomes of an event at its handler |
//! | `child.rs` | what a child does |
//! | `case.rs` | a case from beginning to end |
//! | `limit.rs` | an event whose every attempt ends in a crash, until it has none left |

pub mod case;
pub mod child;
pub mod ground;
pub mod limit;
pub mod points;
pub mod producer;
pub mod site;
pub mod temper;

use posthaste::store::Mode;

use crate::audit;

/// The outbox of every case.
pub const TABLE: &str = "outbox";

/// How many lanes a stream has.
const LANES: u16 = 4;

/// What a child's table is, and what its relay keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// A queue whose delivered events are purged.
    Queue,
    /// A queue whose events are deleted on delivery, and its dead ones purged.
    Brief,
    /// A stream.
    Stream,
}

impl Scenario {
    pub const ALL: [Self; 3] = [Self::Queue, Self::Brief, Self::Stream];

    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Brief => "brief",
            Self::Stream => "stream",
        }
    }

    /// Of what mode the outbox is.
    pub fn mode(self) -> anyhow::Result<Mode> {
        Ok(match self {
            Self::Queue | Self::Brief => Mode::Queue,
            Self::Stream => Mode::stream(LANES)?,
        })
    }

    /// The outbox, for those who look at it by themselves.
    pub fn table(self) -> audit::Table {
        audit::Table { name: TABLE.to_owned(), stream: self == Self::Stream }
    }
}

impl std::str::FromStr for Scenario {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let known = Self::ALL.into_iter().find(|scenario| scenario.name() == text);
        known.ok_or_else(|| anyhow::anyhow!("there is no scenario {text:?}"))
    }
}
