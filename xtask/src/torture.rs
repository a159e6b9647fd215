//! `cargo xtask torture`: builds the binary and what tortures it, in release and without what is for tests alone, and
//! tells the latter where the programs of the servers are, which account they run as, and where their data may be.

use anyhow::{Context, Result, bail};

use crate::engine::Engine;
use crate::home::Home;
use crate::layout::Layout;
use crate::record::Record;
use crate::{cargo, engine, install};

/// A run with these arguments, which the program says itself what they are; in the end its exit is this one's.
pub(crate) fn run(layout: &Layout, arguments: &[String]) -> Result<()> {
    let mut build = cargo::command();
    build.args([
        "build",
        "--quiet",
        "--release",
        "--locked",
        "-p",
        "posthaste-cli",
        "-p",
        "posthaste-torture",
    ]);
    build.current_dir(&layout.root).arg("--target-dir").arg(&layout.target);
    if !build.status().context("cannot run cargo")?.success() {
        bail!("what is to be tortured cannot be built");
    }
    let mut command = std::process::Command::new(layout.target.join("release/posthaste-torture"));
    command.args(arguments);
    if arguments.iter().any(|argument| ["-h", "--help", "--check"].contains(&argument.as_str())) {
        return ended(command);
    }
    command.envs(private_servers(layout, engine::all().as_slice())?);
    let histories = layout.target.join("torture");
    std::fs::create_dir_all(&histories).with_context(|| format!("cannot make {}", histories.display()))?;
    command.env("POSTHASTE_TORTURE_HOME", histories);
    ended(command)
}

/// Variables with the programs of these servers, the accounts they run as, and directories for their data.
pub(crate) fn private_servers(
    layout: &Layout,
    engines: &[&'static dyn Engine],
) -> Result<Vec<(String, String)>> {
    let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
    if let [first, ..] = install::ensure(layout, &names)?[..] {
        bail!(
            "{first} would run in a container, which cannot be killed and started again: install its programs"
        );
    }
    let mut variables = Vec::new();
    for &engine in engines {
        let installation = engine.installed()?;
        let record = Record::read(layout, engine.name())?;
        let home = Home::choose(layout, engine.name(), record.as_ref(), &installation.account)?;
        variables.extend(installation.variables(engine, &home));
    }
    Ok(variables)
}

fn ended(mut command: std::process::Command) -> Result<()> {
    let status = command.status().context("cannot run posthaste-torture")?;
    if !status.success() {
        bail!("the torture ended with {status}");
    }
    Ok(())
}
