//! The `posthaste` binary: the operator's tool of a transactional outbox.
//!
//! | file | what is in it |
//! |---|---|
//! | `args.rs`, `args/` | the command line |
//! | `config/` | the settings: file, environment, flags |
//! | `target.rs` | which database and table, and whether they are local |
//! | `daemon/` | relays, sinks and routes of a running daemon |
//! | `http/` | what a daemon serves: health, metrics, an API |
//! | `commands/` | one file per subcommand |
//! | `table.rs`, `json.rs` | how events are shown to people and to programs |
//! | `tone.rs` | colours |
//! | `when.rs` | durations and times, read and written |
//! | `confirm.rs` | asking before something is changed or deleted |
//! | `progress.rs`, `screen.rs` | what moves on a terminal: long work, and what is watched |
//! | `failure.rs`, `exit.rs` | what is said of an error, and the exit code |
//! | `remedy/` | what to do about an error of the database, which is asked for it |
//!
//! What a command answers goes to standard output, everything else to standard error. A reader that has
//! gone (`posthaste events list | head`) ends the program quietly.

mod args;
mod commands;
mod config;
mod confirm;
mod daemon;
mod exit;
mod failure;
mod http;
mod json;
mod progress;
mod remedy;
mod screen;
mod table;
mod target;
mod tone;
mod when;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tokio::runtime;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::failure::Failure;

/// Seeds of arbitrary input.
#[cfg(test)]
const CORPUS: posthaste_testkit::fuzz::Corpus =
    posthaste_testkit::fuzz::Corpus::of_crate(env!("CARGO_MANIFEST_DIR"));

fn main() -> ExitCode {
    let exit = run(Args::parse()).unwrap_or_else(|failure| failure.report());
    exit.into()
}

fn run(args: Args) -> Result<Exit, Failure> {
    args.color.choose();
    let serves = matches!(args.command, Command::Relay(_) | Command::Demo(_));
    let mut runtime =
        if serves { runtime::Builder::new_multi_thread() } else { runtime::Builder::new_current_thread() };
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start ({error})")))?;
    if serves {
        let exit = runtime.block_on(commands::serve(args));
        // A pipe that nobody reads must not keep it.
        runtime.shutdown_background();
        return exit;
    }
    let mut out = io::stdout().lock();
    let exit = runtime.block_on(commands::run(args, &mut out))?;
    out.flush()?;
    Ok(exit)
}
