//! `cargo xtask bench`: builds the benchmarks, which are a workspace of their own, and tells them where the programs
//! of the servers are, which account they run as, and where their data may be.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::engine::{mariadb::MariaDb, postgres::Postgres};
use crate::layout::Layout;
use crate::{cargo, torture};

/// Another build, with this peer in place of one that cannot be built together with it.
const OTHER_PEER: &str = "--outbox-postgres";

/// The benchmarks, with these arguments; in the end the exit of the program is this one's.
pub(crate) fn run(layout: &Layout, arguments: &[String]) -> Result<()> {
    let here = layout.root.join("crates/posthaste-bench");
    let target = layout.target.join("bench");
    let mut command = cargo::command();
    command.args(["run", "--quiet", "--release", "--locked", "--manifest-path"]).arg(here.join("Cargo.toml"));
    command.arg("--target-dir").arg(target);
    if arguments.iter().any(|argument| argument == OTHER_PEER) {
        command.args(["--no-default-features", "--features", "outbox-postgres"]);
    }
    command.arg("--").args(arguments.iter().filter(|argument| *argument != OTHER_PEER));
    if arguments.iter().any(|argument| ["-h", "--help"].contains(&argument.as_str())) {
        return ended(command);
    }
    command.envs(torture::private_servers(layout, &[&Postgres, &MariaDb])?);
    let sqlite = layout.target.join("bench/sqlite");
    std::fs::create_dir_all(&sqlite).with_context(|| format!("cannot make {}", sqlite.display()))?;
    command.env("POSTHASTE_BENCH_SQLITE_HOME", sqlite);
    ended(command)
}

fn ended(mut command: Command) -> Result<()> {
    let status = command.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("the benchmarks ended with {status}");
    }
    Ok(())
}
