//! Programs of other projects that the chores need, built once into `target/tools` from the registry.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo;
use crate::layout::Layout;
use crate::step::finish;

/// Returns a program of this name: the one of this version that was built before, or one that is built now.
///
/// A build without optimisations takes a third of the time, and these programs run for seconds.
pub(crate) fn build(layout: &Layout, name: &str, version: &str) -> Result<PathBuf> {
    let tools = layout.target.join("tools");
    let program = tools.join("bin").join(name);
    if is_of(&program, version) {
        return Ok(program);
    }
    println!("building {name} {version} into {}, once", tools.display());
    let objects = tools.join("build");
    let mut command = cargo::command();
    command.args(["install", name, "--version", version, "--locked", "--debug", "--quiet", "--force"]);
    command.arg("--root").arg(&tools).arg("--target-dir").arg(&objects).current_dir(&layout.root);
    finish(command).with_context(|| format!("{name} cannot be built"))?;
    // A gigabyte of objects that no later run needs.
    std::fs::remove_dir_all(&objects).with_context(|| format!("cannot remove {}", objects.display()))?;
    Ok(program)
}

/// `true` if the program says that it is of this version.
fn is_of(program: &PathBuf, version: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim().ends_with(version))
}
