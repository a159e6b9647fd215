//! The cargo that runs this, called again.
//!
//! What it says about xtask itself (`CARGO_MANIFEST_DIR`, `CARGO_PKG_NAME` and such) is not passed on: build scripts
//! that look at it would build their crates, and all that use them, once for a call from here and once for a call from
//! a shell.

use std::ffi::OsString;
use std::process::Command;

/// A command of cargo, to be given its arguments.
pub(crate) fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_about_xtask(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command
}

fn is_about_xtask(name: &str) -> bool {
    name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_about_xtask() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo tells its tests");
        let command = command();
        let removed: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert!(removed.contains(&"CARGO_PKG_NAME".into()) && removed.contains(&"CARGO_MANIFEST_DIR".into()));
        assert!(!removed.contains(&"CARGO_HOME".into()) && !removed.contains(&"CARGO_TARGET_DIR".into()));
    }
}
