//! The step `deny`: licences, sources and bans of the dependencies, as `deny.toml` says, and known vulnerabilities.
//!
//! * cargo-deny is brought along: where it is missing, or too old for `deny.toml`, it is built once into `target/tools`, of the
//!   [version](VERSION) that is known to understand it. Nothing but crates.io is needed for that.
//! * Bans, licences and sources are checked always, for the workspace and for the benchmarks, which are one of their own.
//! * Advisories are a repository on GitHub. Where it can be reached, one that concerns a dependency fails the step; where it
//!   cannot, a line says that they were not checked.
//! * A build without optimisations: it takes a third of the time to make, and the check itself is a matter of seconds.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cargo;
use crate::step::{Run, finish};

/// The version that is built.
const VERSION: &str = "0.20.2";

/// The oldest whose configuration is written as ours is.
const OLDEST: (u32, u32) = (0, 18);

/// How long the advisories may take to arrive.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is checked, and what for. The benchmarks' peers choose their own cryptography and their own versions.
const CHECKED: [(&str, &[&str]); 2] = [
    ("Cargo.toml", &["bans", "licenses", "sources"]),
    ("crates/posthaste-bench/Cargo.toml", &["licenses", "sources"]),
];

/// Runs the step.
pub(crate) fn run(run: &Run<'_>) -> Result<()> {
    let program = program(run)?;
    for (manifest, checks) in CHECKED {
        finish(deny(run, &program, manifest, &["check"], checks))?;
    }
    if !fetched(run, &program)? {
        println!(
            "NOT CHECKED: advisories, since https://github.com/RustSec/advisory-db cannot be reached from here; where it can, \
             this step checks them, too"
        );
        return Ok(());
    }
    for (manifest, _) in CHECKED {
        finish(deny(run, &program, manifest, &["--offline", "check"], &["advisories"]))?;
    }
    Ok(())
}

/// A command of cargo-deny for one of the workspaces.
fn deny(run: &Run<'_>, program: &Path, manifest: &str, verb: &[&str], what: &[&str]) -> Command {
    let mut command = run.program(program);
    // It looks for `deny.toml` from there upwards.
    command.args(["deny", "--locked", "--manifest-path", manifest]);
    command.args(verb).args(what);
    command
}

/// cargo-deny: the machine's own, the one that was built before, or one that is built now.
fn program(run: &Run<'_>) -> Result<PathBuf> {
    let tools = run.layout.target.join("tools");
    let built = tools.join("bin/cargo-deny");
    let found = [PathBuf::from("cargo-deny"), built.clone()].into_iter().find(|program| {
        let output = run.program(program).arg("--version").stderr(Stdio::null()).output();
        output.is_ok_and(|output| is_new_enough(&String::from_utf8_lossy(&output.stdout)))
    });
    if let Some(found) = found {
        return Ok(found);
    }
    println!("cargo-deny is not installed, or too old: building {VERSION} into {}, once", tools.display());
    let build = tools.join("build");
    let mut command = cargo::command();
    command.args(["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--quiet"]);
    command.arg("--root").arg(&tools).arg("--target-dir").arg(&build).current_dir(&run.layout.root);
    finish(command).context("without cargo-deny the dependencies are not checked")?;
    // What it was built from is a gigabyte that nobody needs again.
    std::fs::remove_dir_all(&build).with_context(|| format!("cannot remove {}", build.display()))?;
    Ok(built)
}

/// Whether `cargo-deny --version` says that it understands our configuration.
fn is_new_enough(said: &str) -> bool {
    let Some(version) = said.trim().rsplit(' ').next() else { return false };
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= OLDEST,
        _ => false,
    }
}

/// Fetches the advisories; whether they came.
fn fetched(run: &Run<'_>, program: &Path) -> Result<bool> {
    let mut command = deny(run, program, "Cargo.toml", &["fetch"], &["db"]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        thread::sleep(Duration::from_millis(200));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_cargo_deny_is_not_taken() {
        for (said, new) in [
            ("cargo-deny 0.20.2\n", true),
            ("cargo-deny 0.18.0", true),
            ("cargo-deny 1.0.0", true),
            ("cargo-deny 0.14.2", false),
            ("", false),
            ("error: no such command: `deny`", false),
        ] {
            assert_eq!(is_new_enough(said), new, "{said}");
        }
        assert!(is_new_enough(&format!("cargo-deny {VERSION}")));
    }

    /// Every workspace of this repository is checked.
    #[test]
    fn every_lock_file_is_checked() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let in_crates = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
        let directories = in_crates.map(|entry| entry.path()).chain([root.clone()]);
        let locked = directories.filter(|directory| directory.join("Cargo.lock").is_file()).count();
        assert_eq!(locked, CHECKED.len());
        for (manifest, _) in CHECKED {
            assert!(root.join(manifest).is_file(), "{manifest}");
        }
    }
}
