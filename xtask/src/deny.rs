//! The step `deny`: licences, sources and bans of the dependencies, as `deny.toml` says, and known vulnerabilities.
//!
//! * cargo-deny is brought along: where it is missing, or too old for `deny.toml`, it is built once into `target/tools`, of the
//!   [version](VERSION) that is known to understand it. Nothing but crates.io is needed for that.
//! * Licences and sources are checked always, for the workspace and for the benchmarks, which are one of their own; bans for
//!   the workspace alone.
//! * Advisories are a repository on GitHub. Where it can be reached, one that concerns a dependency fails the step; where the
//!   network does not let it be, a line says that they were not checked, and why. That they cannot be had for any other reason
//!   fails the step: a mistake in `deny.toml` does not switch them off.
//! * A build without optimisations: it takes a third of the time to make, and the check itself is a matter of seconds.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::step::{Run, finish};
use crate::tool;

/// The version that is built.
const VERSION: &str = "0.20.2";

/// The oldest whose configuration is written as ours is.
const OLDEST: (u32, u32) = (0, 18);

/// Where the advisories are.
const ADVISORIES: &str = "https://github.com/RustSec/advisory-db";

/// What git says of a connection that ended before everything had come.
const BROKEN_OFF: [&str; 3] = ["early EOF", "RPC failed", "the remote end hung up unexpectedly"];

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
    if let Some(why) = unreachable(run, &program)? {
        println!("{why}");
        println!(
            "NOT CHECKED: advisories, since {ADVISORIES} cannot be reached from here; where it can, this step checks them, too"
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
    let found = [PathBuf::from("cargo-deny"), built].into_iter().find(|program| {
        let output = run.program(program).arg("--version").stderr(Stdio::null()).output();
        output.is_ok_and(|output| is_new_enough(&String::from_utf8_lossy(&output.stdout)))
    });
    if let Some(found) = found {
        return Ok(found);
    }
    tool::build(run.layout, "cargo-deny", VERSION)
        .context("without cargo-deny the dependencies are not checked")
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

/// Fetches the advisories; why they cannot be reached, if they cannot. Any other failure is an error.
fn unreachable(run: &Run<'_>, program: &Path) -> Result<Option<String>> {
    // Not a pipe: git, which outlives cargo-deny where that is killed, would keep it open.
    let log = run.layout.target.join("advisories.log");
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = deny(run, program, "Cargo.toml", &["fetch"], &["db"]);
    // Git asks nobody for a password, and says what is wrong in the words that are looked for.
    command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = || fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned());
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(None),
            Some(_) if is_of_the_network(&said()?) => return Ok(Some(said()?)),
            Some(status) => bail!("the advisories cannot be fetched ({status}):\n{}", said()?),
            None => thread::sleep(Duration::from_millis(200)),
        }
    }
    child.kill()?;
    child.wait()?;
    Ok(Some(format!("{}\nit took longer than {PATIENCE:?}", said()?)))
}

/// Whether what `cargo deny fetch` says is that the network does not let it reach the advisories.
fn is_of_the_network(said: &str) -> bool {
    said.contains(&format!("fatal: unable to access '{ADVISORIES}"))
        || BROKEN_OFF.into_iter().any(|words| said.contains(words))
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

    /// As cargo-deny and git say it, but for the names of directories.
    #[test]
    fn only_the_network_excuses_from_the_advisories() {
        let fetch = "[ERROR] failed to fetch database: ";
        let of_git = format!("{fetch}failed to fetch advisory database {ADVISORIES} with cli: failed to ");
        for (said, of_the_network) in [
            (
                format!(
                    "{of_git}clone: [\"clone\"]\nfatal: unable to access '{ADVISORIES}/': Could not resolve host"
                ),
                true,
            ),
            (
                format!(
                    "{of_git}fetch: [\"fetch\"]\nfatal: unable to access '{ADVISORIES}/': Connection refused"
                ),
                true,
            ),
            (format!("{of_git}clone: [\"clone\"]\nfatal: early EOF"), true),
            (format!("{of_git}clone: failed to spawn git: No such file or directory (os error 2)"), false),
            (
                format!("{of_git}clone: [\"clone\"]\nfatal: Remote branch main not found in upstream origin"),
                false,
            ),
            (format!("{fetch}failed to acquire advisory database lock: failed to obtain lock file"), false),
            (
                "fatal: unable to access 'https://example.com/advisories/': Could not resolve host"
                    .to_owned(),
                false,
            ),
            ("[ERROR] failed to validate configuration file deny.toml".to_owned(), false),
            ("error[wanted]: \n2 | db-urls=\"x\"\n  | expected an array".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_of_the_network(&said), of_the_network, "{said}");
        }
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
