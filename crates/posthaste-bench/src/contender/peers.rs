//! The peers: what a team would use instead. A file for each, in a directory beside this one.

use super::Contender;

/// All that take part.
pub(super) fn all() -> Vec<Box<dyn Contender>> {
    Vec::new()
}

/// Who does not, and why; said in every report.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[];
