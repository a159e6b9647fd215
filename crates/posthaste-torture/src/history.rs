//! What happened in a run, as those saw it who did it: JSON lines, a file for each process.
//!
//! A line is written with one call as soon as it is known, so that a process which is killed leaves whole lines behind
//! but for the last. Reading leaves out such a line: at the end of a file, or before the lines of the process that goes on with
//! the file, as often as that one was killed. Whatever else cannot be read is an error, as what is not read is not
//! checked.
//!
//! Times are microseconds since 1970 by the machine's clock: all processes and servers of a run are on one machine.

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

impl History {
    /// Reads all files of a run's directory.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut history = Self::default();
        let mut torn = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                let lines = read_file(&path, &mut history.records)?;
                torn.push((path, lines));
            }
        }
        for (path, lines) in torn {
            let kills = history.kills(&path);
            if let Some(line) = lines.get(kills) {
                let why = format!("it was cut off, and whoever wrote it was killed {kills} times");
                return Err(unreadable(&path, *line, why));
            }
        }
        Ok(history)
    }

    /// How often the process was killed that wrote this file.
    fn kills(&self, path: &Path) -> usize {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let is_kill = |record: &&Record| matches!(record, Record::Fault(Fault { kind, whom, .. }) if kind.starts_with("kill") && *whom == name);
        self.records.iter().filter(is_kill).count()
    }
}

/// Adds the records of a file; the numbers of the lines that were cut off and that others follow.
fn read_file(path: &Path, records: &mut Vec<Record>) -> io::Result<Vec<usize>> {
    let text = std::fs::read(path)?;
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // Behind the last end of a line there is nothing, or what was cut off.
    let rest = lines.pop().unwrap_or_default();
    let mut torn = Vec::new();
    for (number, line) in (1..).zip(&lines) {
        match serde_json::from_slice(line) {
            Ok(record) => records.push(record),
            Err(error) if error.is_eof() => torn.push(number),
            Err(error) => return Err(unreadable(path, number, error.to_string())),
        }
    }
    if !rest.is_empty() {
        match serde_json::from_slice(rest) {
            Ok(record) => records.push(record),
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(unreadable(path, lines.len() + 1, error.to_string())),
        }
    }
    Ok(torn)
}

fn unreadable(path: &Path, line: usize, why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}, line {line}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A directory for histories, which goes with its test.
    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("history-{}", Uuid::now_v7().simple()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// A process that writes these, and is cut off within this text.
        fn write(&self, name: &str, records: &[Record], cut: &str) {
            let writer = Writer::open(&self.0, name).unwrap();
            records.iter().for_each(|record| writer.write(record).unwrap());
            writer.file.lock().unwrap().write_all(cut.as_bytes()).unwrap();
        }

        fn read(&self) -> Vec<Record> {
            History::read(&self.0).unwrap().records
        }

        fn assert_unreadable(&self, words: &[&str]) {
            let error = History::read(&self.0).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}, not {error}");
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn outcome(at: Micros) -> Record {
        Record::Outcome { at, event: Uuid::from_u128(7), how: None }
    }

    fn kill(whom: &str) -> Record {
        Record::Fault(Fault { kind: "kill".to_owned(), whom: whom.to_owned(), from: 1, until: 2 })
    }

    fn change() -> Record {
        let (before, after) = (State::default(), State { until: Some(-3), ..State::default() });
        let (table, session) = ("→\"kept".to_owned(), "\\".to_owned());
        Record::Change(Change { at: 1, number: 2, table, of: Leased::Lane(3), session, before, after })
    }

    #[test]
    fn pr2_what_was_written_is_read() {
        let directory = Directory::new();
        directory.write("one", &[outcome(1), change()], "");
        directory.write("one", &[kill("two")], "");
        assert_eq!(directory.read(), [outcome(1), change(), kill("two")]);
    }

    #[test]
    fn pr2_wherever_the_last_line_was_cut_off_it_is_left_out_and_nothing_else() {
        for record in [change(), outcome(12), kill("one")] {
            let line = serde_json::to_string(&record).unwrap();
            for (at, _) in line.char_indices() {
                let directory = Directory::new();
                directory.write("one", &[outcome(1)], &line[..at]);
                assert_eq!(directory.read(), [outcome(1)], "{}", &line[..at]);
            }
        }
        // One that lacks its end alone is whole.
        let directory = Directory::new();
        directory.write("one", &[], &serde_json::to_string(&change()).unwrap());
        directory.write("one", &[outcome(2)], "");
        assert_eq!(directory.read(), [change(), outcome(2)]);
    }

    #[test]
    fn pr2_a_process_goes_on_behind_what_was_cut_off_as_often_as_it_was_killed() {
        let directory = Directory::new();
        directory.write("one", &[outcome(1)], "{\"what\":\"outc");
        directory.write("one", &[outcome(2), kill("one")], "{\"what\"");
        assert_eq!(directory.read(), [outcome(1), outcome(2), kill("one")]);
        directory.write("one", &[outcome(3)], "");
        directory.assert_unreadable(&["one.jsonl, line 5: it was cut off", "killed 1 times"]);
    }

    #[test]
    fn pr2_a_line_that_was_cut_off_though_nobody_killed_its_process_is_an_error() {
        let directory = Directory::new();
        directory.write("one", &[outcome(1)], "{");
        directory.write("one", &[outcome(2), kill("two")], "");
        directory.assert_unreadable(&["one.jsonl, line 2: it was cut off", "killed 0 times"]);
    }

    #[test]
    fn pr2_a_whole_line_that_cannot_be_read_is_an_error_wherever_it_is() {
        let wrong = [
            "{}",
            "nothing",
            "{\"what\":\"rumour\"}",
            "{\"what\":\"outcome\",\"at\":1}",
            "{\"what\":\"outcome\",\"at\":1,\"event\":\"x\",\"how\":null}",
        ];
        for line in wrong {
            let directory = Directory::new();
            directory.write("one", &[outcome(1), kill("one")], line);
            directory.assert_unreadable(&["one.jsonl, line 3: "]);
            directory.write("one", &[outcome(2)], "");
            directory.assert_unreadable(&["one.jsonl, line 3: "]);
        }
    }

    #[test]
    fn pr2_what_a_newer_one_says_and_nobody_here_understands_is_an_error() {
        for record in [outcome(1), change(), kill("one")] {
            let line = serde_json::to_string(&record).unwrap();
            let directory = Directory::new();
            directory.write("one", &[], &line.replacen(',', ",\"newer\":1,", 1));
            directory.assert_unreadable(&["one.jsonl, line 1: ", "newer"]);
        }
    }
}
