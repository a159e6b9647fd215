//! The chores of this workspace: `cargo xtask services …` runs private database servers,
//! `cargo xtask test` runs everything that must pass, `cargo xtask bench` measures, `cargo xtask torture` breaks everything
//! around posthaste.
//!
//! It depends on `anyhow` and on the servers of `posthaste-testkit`, which depends on `anyhow` alone: a fresh clone needs nothing
//! but the toolchain, and building it takes seconds.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool: its output is its purpose"
)]

mod args;
mod bench;
mod cargo;
mod deny;
mod dist;
mod docs;
mod examples;
mod nightly;
mod step;
mod suite;
mod test;
mod tool;
mod torture;

use std::process::ExitCode;

use anyhow::Result;
use posthaste_testkit::choice::Versions;
use posthaste_testkit::{engine, envfile, home, install, layout, process, program, record, services};

use crate::args::Request;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let request = args::parse(std::env::args().skip(1))?;
    if request == Request::Help {
        println!("{}", args::USAGE);
        return Ok(());
    }
    let layout = layout::Layout::find()?;
    match request {
        Request::Help => Ok(()),
        Request::Up { versions } => services::up(&layout, &versions, &mut Vec::new()).map(drop),
        Request::Down { wipe } => services::down(&layout, wipe),
        Request::Status => services::status(&layout),
        Request::Docs => docs::run(&layout),
        Request::Dist { target } => dist::run(&layout, &target),
        Request::Bench { arguments } => bench::run(&layout, &arguments),
        Request::Torture { arguments } => torture::run(&layout, &arguments),
        Request::Test(wanted) => test::run(&layout, &wanted),
        Request::All { parts } => nightly::run(&layout, &parts),
    }
}
