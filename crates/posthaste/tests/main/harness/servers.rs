//! Where the servers are: the environment says, else the file that `cargo xtask services up` writes.

use std::path::{Path, PathBuf};

/// The URL of a server under test.
pub fn url(variable: &str) -> String {
    setting(variable)
}

/// What is said of a server under test.
pub fn setting(variable: &str) -> String {
    std::env::var(variable).ok().or_else(|| from_file(variable)).unwrap_or_else(|| {
        panic!("{variable} is not set and no services.env has it: run `cargo xtask services up` first")
    })
}

fn from_file(variable: &str) -> Option<String> {
    let text = std::fs::read_to_string(target().join("services/services.env")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('=').map(str::to_owned))
}

/// The target directory, which holds this very program.
pub fn target() -> PathBuf {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    scratch.parent().unwrap_or(scratch).to_owned()
}
