//! Where the servers are, and the target directory.

use std::path::{Path, PathBuf};

/// Returns a variable about the servers under test, such as the URL of one.
pub fn setting(variable: &str) -> String {
    posthaste_testkit::environment::setting(variable).unwrap_or_else(|error| panic!("{error}"))
}

/// The target directory, which holds this very program.
pub fn target() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_owned()
}
