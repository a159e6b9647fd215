//! The subcommands, a file for each.

mod change;
mod completions;
mod dead;
mod enqueue;
mod events;
mod migrate;
mod purge;
mod status;
mod stream;
mod tail;

use std::io::Write;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// Runs what the command line asks for; the answer goes to `out`.
pub(crate) async fn run(args: Args, out: &mut impl Write) -> Result<Exit, Failure> {
    args.color.choose();
    // These look at no database.
    match args.command {
        Command::Completions { shell } => return completions::script(shell, out),
        Command::Man { directory } => return completions::manual(directory.as_deref(), out),
        _ => {}
    }
    let target = Target::new(args.place)?;
    let exit = match args.command {
        Command::Migrate(command) => migrate::run(&target, command, out).await,
        Command::Enqueue(command) => enqueue::run(&target, *command, out).await,
        Command::Events(command) => events::run(&target, command, out).await,
        Command::Dead(command) => dead::run(&target, command, out).await,
        Command::Purge(command) => purge::run(&target, command, out).await,
        Command::Status(command) => status::run(&target, &command, out).await,
        Command::Completions { .. } | Command::Man { .. } => Ok(Exit::Ok),
        Command::Lanes { json } => stream::lanes(&target, json, out).await,
        Command::Blocked { limit, json } => stream::blocked(&target, limit, json, out).await,
    };
    target.close().await;
    exit
}
