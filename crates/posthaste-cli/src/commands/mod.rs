//! The subcommands, a file for each.

mod enqueue;
mod events;
mod migrate;
mod stream;

use std::io::Write;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// Runs what the command line asks for; the answer goes to `out`.
pub(crate) async fn run(args: Args, out: &mut impl Write) -> Result<Exit, Failure> {
    let target = Target::new(args.place)?;
    let exit = match args.command {
        Command::Migrate(command) => migrate::run(&target, command, out).await,
        Command::Enqueue(command) => enqueue::run(&target, *command, out).await,
        Command::Events(command) => events::run(&target, command, out).await,
        Command::Lanes { json } => stream::lanes(&target, json, out).await,
        Command::Blocked { limit, json } => stream::blocked(&target, limit, json, out).await,
    };
    target.close().await;
    exit
}
