//! Reading a history: all of it, or an error.
//!
//! A process that is killed leaves its last line cut off. Such a line is left out at the end of a file, and before the lines of
//! a process that goes on with the file, as often as that one was killed. Whatever else cannot be read is an
//! error that names its line: what is not read is not checked.

use std::io;
use std::path::Path;

use super::{History, Record};

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
        let is_kill = |record: &&Record| match record {
            Record::Fault(fault) => fault.kind.starts_with("kill") && fault.whom == name,
            _ => false,
        };
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

    use std::io::Write;
    use std::path::PathBuf;

    use uuid::Uuid;

    use super::*;
    use crate::history::{Change, Fault, Leased, Micros, State, Writer};

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
