//! Where the programs are that a run starts.
//!
//! The binaries of this workspace are those beside the running one, so that they were built by the same command, or
//! those that the environment names: `POSTHASTE_BIN`, `POSTHASTE_TORTURE_BIN`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The binary `posthaste`.
pub fn posthaste() -> Result<PathBuf> {
    find("posthaste", "POSTHASTE_BIN", "cargo build -p posthaste-cli")
}

/// The binary of this crate, which is also the producers' and the guard's.
pub fn torture() -> Result<PathBuf> {
    find("posthaste-torture", "POSTHASTE_TORTURE_BIN", "cargo build -p posthaste-torture")
}

fn find(name: &str, variable: &str, build: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("this program does not know where it is")?;
    // A test is one directory below the binaries.
    let beside = own.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    match beside.into_iter().find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!("there is no {name} beside {}: run `{build}`, or set {variable}", own.display()),
    }
}
