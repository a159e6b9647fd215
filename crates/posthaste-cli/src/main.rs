//! The `posthaste` binary: the operator's tool of a transactional outbox.
//!
//! | file | what is in it |
//! |---|---|
//! | `args.rs`, `args/` | the command line |
//! | `target.rs` | which database and table, and whether they are local |
//! | `commands/` | one file per subcommand |
//! | `table.rs`, `json.rs` | how events are shown to people and to programs |
//! | `tone.rs` | colours |
//! | `when.rs` | durations and times, read and written |
//! | `confirm.rs` | asking before something is changed or deleted |
//! | `progress.rs`, `screen.rs` | what moves on a terminal: long work, and what is watched |
//! | `failure.rs`, `exit.rs` | what is said of an error, and the exit code |
//!
//! What a command answers goes to standard output, everything else to standard error. A reader that has
//! gone (`posthaste events list | head`) ends the program quietly.

mod args;
mod commands;
mod confirm;
mod exit;
mod failure;
mod json;
mod progress;
mod screen;
mod table;
mod target;
mod tone;
mod when;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;
use crate::exit::Exit;
use crate::failure::Failure;

fn main() -> ExitCode {
    let exit = run(Args::parse()).unwrap_or_else(|failure| failure.report());
    exit.into()
}

fn run(args: Args) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot start ({error})")))?;
    let mut out = io::stdout().lock();
    let exit = runtime.block_on(commands::run(args, &mut out))?;
    out.flush()?;
    Ok(exit)
}
