//! `cargo xtask dist TARGET`: what a release has for one target, in `target/dist`.
//!
//! * `posthaste-VERSION-TARGET.tar.gz`: the binary, licences, changelog, completions and manual pages.
//! * `posthaste-VERSION-TARGET.cdx.json`: the list of the crates that the binary is built from (CycloneDX).
//! * `posthaste-VERSION-TARGET.sha256`: checksums of both.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::layout::Layout;
use crate::step::finish;
use crate::{cargo, tool};

/// Version of the program that lists the crates.
const CYCLONEDX: &str = "0.5.9";

/// Files of the repository that the archive has.
const FILES: [&str; 4] = ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "README.md"];

/// Shells with a file of completions.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Builds and packs the binary for this target, which must be one that the machine can run.
pub(crate) fn run(layout: &Layout, target: &str) -> Result<()> {
    let dist = layout.target.join("dist");
    let name = format!("posthaste-{}-{target}", version(layout)?);
    let packed = dist.join(&name);
    if packed.exists() {
        fs::remove_dir_all(&packed)?;
    }
    fs::create_dir_all(packed.join("man")).with_context(|| format!("cannot make {}", packed.display()))?;
    fs::create_dir_all(packed.join("completions"))?;

    let mut build = cargo::command();
    build.args(["build", "--release", "--locked", "--package", "posthaste-cli", "--target", target]);
    finish(in_root(build, layout)).context("the binary cannot be built")?;
    let binary = packed.join("posthaste");
    fs::copy(layout.target.join(target).join("release/posthaste"), &binary)?;
    for file in FILES {
        fs::copy(layout.root.join(file), packed.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    for shell in SHELLS {
        let output = Command::new(&binary).args(["completions", shell]).output()?;
        if !output.status.success() {
            bail!("the binary has no completions for {shell}");
        }
        fs::write(packed.join("completions").join(format!("posthaste.{shell}")), output.stdout)?;
    }
    let mut man = Command::new(&binary);
    man.arg("man").arg(packed.join("man"));
    finish(man).context("the binary has no manual pages")?;

    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.current_dir(&dist).args(["-czf", &archive, &name]);
    finish(tar).context("cannot pack the archive")?;
    fs::remove_dir_all(&packed)?;

    let list = format!("{name}.cdx.json");
    write_list(layout, target, &dist.join(&list))?;
    let sums = checksums(&dist, &[&archive, &list])?;
    fs::write(dist.join(format!("{name}.sha256")), sums)?;
    println!("{} is in {}", archive, dist.display());
    Ok(())
}

/// Writes the crates of the binary.
fn write_list(layout: &Layout, target: &str, path: &Path) -> Result<()> {
    let program = tool::build(layout, "cargo-cyclonedx", CYCLONEDX)?;
    let mut list = Command::new(program);
    list.args(["cyclonedx", "--format", "json", "--target", target, "--override-filename", "posthaste-list"]);
    list.arg("--manifest-path").arg("crates/posthaste-cli/Cargo.toml");
    finish(in_root(list, layout)).context("the list of crates cannot be made")?;
    // One is written beside the manifest of each package of the workspace.
    let crates = layout.root.join("crates");
    let mut found = None;
    for package in
        fs::read_dir(&crates)?.flatten().map(|entry| entry.path()).chain([layout.root.join("xtask")])
    {
        let written = package.join("posthaste-list.json");
        if package.ends_with("posthaste-cli") {
            found = Some(fs::read(&written).with_context(|| format!("cannot read {}", written.display()))?);
        }
        if written.exists() {
            fs::remove_file(written)?;
        }
    }
    fs::write(path, found.context("the binary has no package")?)?;
    Ok(())
}

/// Lines as `sha256sum --check` reads them.
fn checksums(dist: &Path, files: &[&str]) -> Result<Vec<u8>> {
    let programs: [&[&str]; 2] = [&["sha256sum"], &["shasum", "-a", "256"]];
    for program in programs {
        let mut command = Command::new(program[0]);
        let output = command.args(&program[1..]).args(files).current_dir(dist).output();
        if let Ok(output) = output
            && output.status.success()
        {
            return Ok(output.stdout);
        }
    }
    bail!("neither sha256sum nor shasum is there")
}

/// The version of the workspace.
fn version(layout: &Layout) -> Result<String> {
    let manifest = fs::read_to_string(layout.root.join("Cargo.toml"))?;
    let version = |line: &str| Some(line.strip_prefix("version = \"")?.strip_suffix('"')?.to_owned());
    manifest.lines().find_map(version).context("the workspace has no version")
}

fn in_root(mut command: Command, layout: &Layout) -> Command {
    command.current_dir(&layout.root);
    command
}
