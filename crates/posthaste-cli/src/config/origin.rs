//! Where a setting came from.

use std::fmt;
use std::sync::Arc;

/// Where a setting came from; the later ones win.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// Nobody said anything.
    Default,
    /// A place in the file.
    File {
        /// The file's name as it was given.
        file: Arc<str>,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
    },
    /// This environment variable.
    Variable(String),
    /// This flag.
    Flag(String),
}

impl Origin {
    /// Which of file, environment and flags it belongs to.
    pub(crate) fn layer(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::File { .. } => 1,
            Self::Variable(_) => 2,
            Self::Flag(_) => 3,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line, .. } => write!(f, "{file}:{line}"),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}
