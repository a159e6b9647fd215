//! What happened in a run, as those saw it who did it: JSON lines, a file for each process.
//!
//! A line is written with one call as soon as it is known, so that a process which is killed leaves whole lines behind
//! but for the last, which reading leaves out (`history/reading.rs`).
//!
//! Times are microseconds since 1970 by the machine's clock: all processes and servers of a run are on one machine.

mod reading;

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Between the names of those whom a fault befell.
pub const SEPARATOR: &str = ", ";

/// Microseconds since 1970.
pub type Micros = i64;

/// The clock of the machine.
pub fn now() -> Micros {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

/// A line of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// A producer is about to commit or roll back a transaction with this event in it.
    Intent(Intent),
    /// How the transaction ended, as its producer saw it. None: nobody knows.
    Outcome { at: Micros, event: Uuid, how: Option<Ending> },
    /// A sink was given an event.
    Delivery(Delivery),
    /// Something was broken on purpose.
    Fault(Fault),
    /// A lease, an outcome or a count of attempts was changed, by the database's own record.
    Change(Change),
    /// A row of the outbox at the end of the run.
    Row(Row),
    /// A business row at the end of the run: its transaction has committed.
    Business { event: Uuid, table: String, aggregate: String, number: i64 },
}

/// What is written in one transaction with a business row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    pub at: Micros,
    pub producer: String,
    pub table: String,
    pub event: Uuid,
    pub aggregate: String,
    /// Counts the aggregate's committed events from 1, in the order of their commits.
    pub number: i64,
    /// The bytes of the payload.
    pub payload: String,
    pub headers: Vec<(String, String)>,
    /// The sink rejects it for good.
    pub poison: bool,
    /// Enqueued a second time on purpose, with the same key for deduplication: this one must never be delivered.
    pub duplicate: bool,
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Committed,
    RolledBack,
}

/// What arrived at a sink.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delivery {
    pub at: Micros,
    /// Which sink.
    pub sink: String,
    /// Who gave it to the sink: the name of a relay, or of a producer with relays of its own.
    pub by: String,
    pub event: Uuid,
    pub payload: String,
    pub headers: Vec<(String, String)>,
    pub answer: Answer,
}

/// What the sink told the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It has it.
    Accepted,
    /// Try again.
    Failed,
    /// Never.
    Rejected,
    /// It has it, and said that it failed, or said nothing.
    Lied,
}

/// Something broken on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// For example `kill`, `stop`, `terminate`, `restart`, `cut`, `slow`, `broker`, `sink`, `fill`.
    pub kind: String,
    /// Whom it befell, for example `relay-2`, or `relay-2, producer-1`; or a table, whose sink it was, or a server.
    pub whom: String,
    pub from: Micros,
    pub until: Micros,
}

impl Fault {
    /// Whether this one is among those whom it befell by name.
    pub fn befell(&self, name: &str) -> bool {
        self.whom.split(SEPARATOR).any(|one| one == name)
    }
}

/// A change of a lease by the database's own record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub at: Micros,
    /// The order of the changes of one thing.
    pub number: i64,
    pub table: String,
    pub of: Leased,
    /// The session that made it, named after its relay; empty if the database cannot tell.
    pub session: String,
    pub before: State,
    pub after: State,
}

/// What a lease is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leased {
    /// A queue's event.
    Event(Uuid),
    /// A stream's lane.
    Lane(i64),
}

/// A lease and what it is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    pub holder: Option<String>,
    /// When the lease ends.
    pub until: Option<Micros>,
    pub attempts: i64,
    pub outcome: Option<String>,
    /// A lane's fence and position; the row is gone when an event is deleted on delivery.
    pub fence: Option<i64>,
    pub position: Option<i64>,
    pub gone: bool,
}

/// A row of the outbox at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub table: String,
    pub event: Uuid,
    pub attempts: i64,
    pub outcome: Option<String>,
}

/// The end of a history that is written to.
#[derive(Debug)]
pub struct Writer {
    file: Mutex<File>,
}

impl Writer {
    /// The file of this name in a run's directory, or its continuation: on a new line, should the last have been cut off.
    pub fn open(directory: &Path, name: &str) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path(directory, name))?;
        if ends_within_a_line(&mut file)? {
            file.write_all(b"\n")?;
        }
        Ok(Self { file: Mutex::new(file) })
    }

    /// Adds a line.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner).write_all(&line)
    }
}

fn ends_within_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.jsonl"))
}

/// All that was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    pub records: Vec<Record>,
}
