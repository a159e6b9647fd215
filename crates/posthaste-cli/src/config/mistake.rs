//! What is wrong with the configuration, and where: all of it at once, so that one run is enough to mend it.

use std::fmt;

use serde::Serialize;

use super::origin::Origin;
use crate::exit::Exit;
use crate::failure::Failure;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// Where; nowhere for what is missing altogether.
    pub(crate) origin: Origin,
    /// What, and what to do.
    pub(crate) message: String,
    /// Whether only a daemon would stumble over it: a secret of a sink that is not in this shell's environment is no
    /// reason to refuse a listing.
    pub(crate) daemon_only: bool,
}

impl Mistake {
    pub(crate) fn new(origin: &Origin, message: impl Into<String>) -> Self {
        Self { origin: origin.clone(), message: message.into(), daemon_only: false }
    }

    pub(crate) fn of_daemon(origin: &Origin, message: impl Into<String>) -> Self {
        Self { daemon_only: true, ..Self::new(origin, message) }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Default => f.write_str(&self.message),
            Origin::File { file, line, column } => write!(f, "{file}:{line}:{column}: {}", self.message),
            Origin::Variable(name) | Origin::Flag(name) => write!(f, "{name}: {}", self.message),
        }
    }
}

/// All of them as one failure: a line if there is one, else a list.
pub(crate) fn failure(mistakes: &[Mistake]) -> Failure {
    let message = match mistakes {
        [only] => only.to_string(),
        _ => {
            let lines: Vec<String> = mistakes.iter().map(|mistake| format!("  {mistake}")).collect();
            format!("the configuration has {} mistakes; mend them all:\n{}", mistakes.len(), lines.join("\n"))
        }
    };
    Failure::new(Exit::BadInput, message)
}

/// A mistake as programs see it.
#[derive(Debug, Serialize)]
pub(crate) struct MistakeJson {
    file: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
    /// The variable or flag that it is in.
    setting: Option<String>,
    message: String,
}

impl From<&Mistake> for MistakeJson {
    fn from(mistake: &Mistake) -> Self {
        let mut json =
            Self { file: None, line: None, column: None, setting: None, message: mistake.message.clone() };
        match &mistake.origin {
            Origin::Default => {}
            Origin::File { file, line, column } => {
                (json.file, json.line, json.column) = (Some(file.to_string()), Some(*line), Some(*column));
            }
            Origin::Variable(name) | Origin::Flag(name) => json.setting = Some(name.clone()),
        }
        json
    }
}
