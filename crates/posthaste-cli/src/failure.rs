//! What is said of an error: one line of what happened and what to do, and a second line only where the
//! cause adds something. Neither can hold a password: the library's messages hold none, and URLs are never
//! repeated here.

use std::error::Error as _;
use std::io::{self, Write};

use posthaste::ErrorKind;

use crate::exit::Exit;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library said so.
    Library(posthaste::Error),
    /// This program said so.
    Own(Exit, String),
    /// The answer could not be written.
    Output(io::Error),
}

impl Failure {
    /// With this exit code, saying this.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Own(exit, message.into())
    }

    /// What the library said, if it was the library.
    pub(crate) fn library(&self) -> Option<&posthaste::Error> {
        match self {
            Self::Library(error) => Some(error),
            Self::Own(..) | Self::Output(_) => None,
        }
    }

    /// Says it on standard error; the exit code to end with.
    pub(crate) fn report(&self) -> Exit {
        let Some(text) = self.text() else {
            return Exit::Ok;
        };
        // Where standard error has gone too, there is nobody left to tell.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        self.exit()
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Library(error) => error.kind().into(),
            Self::Own(exit, _) => *exit,
            Self::Output(_) => Exit::Failed,
        }
    }

    /// The lines; `None` if the reader of the answer has simply had enough.
    fn text(&self) -> Option<String> {
        match self {
            Self::Library(error) => {
                let said = error.to_string();
                Some(match cause(error, &said) {
                    Some(cause) => format!("posthaste: {said}\n  because: {cause}\n"),
                    None => format!("posthaste: {said}\n"),
                })
            }
            Self::Own(_, message) => Some(format!("posthaste: {message}\n")),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Self::Output(error) => Some(format!("posthaste: cannot write the answer ({error})\n")),
        }
    }
}

/// The first cause that says something the line above has not said already.
fn cause(error: &posthaste::Error, said: &str) -> Option<String> {
    /// How the databases say that a table is missing.
    const MISSING: [&str; 3] = ["relation ", "Table ", "no such table"];
    let repeats = |cause: &str| {
        said.contains(cause)
            || *error.kind() == ErrorKind::TableMissing
                && MISSING.iter().any(|words| cause.starts_with(words))
    };
    std::iter::successors(error.source(), |cause| (*cause).source())
        .map(|cause| essence(&cause.to_string()))
        .find(|cause| !repeats(cause))
}

/// A cause on one line, without what the databases' clients put around the databases' own words:
/// `error returned from database: (code: 14) unable to open` and `… 1146 (42S02): Table …`, and behind
/// PostgreSQL's words the line of its source.
fn essence(text: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix("error returned from database: ").unwrap_or(text);
    let text = text.strip_prefix("error with configuration: ").unwrap_or(text);
    let text = match text.strip_prefix("(code: ").and_then(|rest| rest.split_once(") ")) {
        Some((code, words)) if digits(code) => words,
        _ => text,
    };
    let text = match text.split_once("): ") {
        Some((code, words)) if code.split_once(" (").is_some_and(|(number, _)| digits(number)) => words,
        _ => text,
    };
    let text = match text.rsplit_once(" at line ") {
        Some((words, line)) if digits(line) => words,
        _ => text,
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<posthaste::Error> for Failure {
    fn from(error: posthaste::Error) -> Self {
        Self::Library(error)
    }
}

/// Only the answer is written with `?`; files that are read say which one it was.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_a_cause_is_shown_only_where_it_adds_something() {
        let not_json = posthaste::Event::builder("a").json_text("{").map(drop).map_err(Failure::from);
        let text = not_json.err().and_then(|failure| failure.text()).unwrap_or_default();
        assert!(text.contains("\n  because: EOF while parsing"), "{text}");
    }

    #[test]
    fn op1_a_cause_is_the_words_of_the_database() {
        for (text, words) in [
            ("error returned from database: (code: 14) unable\n to open", "unable to open"),
            ("error returned from database: 1146 (42S02): Table 'a.b' (c): d", "Table 'a.b' (c): d"),
            (
                "error returned from database: relation \"a\" does not exist at line 1392",
                "relation \"a\" does not exist",
            ),
            ("error with configuration: invalid port number", "invalid port number"),
            ("expected value at line 1 column 1", "expected value at line 1 column 1"),
        ] {
            assert_eq!(essence(text), words);
        }
    }

    #[test]
    fn op1_a_reader_that_has_gone_is_no_error() {
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).report(), Exit::Ok);
    }
}
