//! The subcommands, a file for each.

pub(crate) mod config;
pub(crate) mod demo;
mod enqueue;
mod events;
mod migrate;
pub(crate) mod relay;
mod stream;

use std::io::Write;

use crate::args::{Args, Command};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// Runs a command that goes on until it is stopped. It has several threads, and standard output to itself: events may
/// go there.
pub(crate) async fn serve(args: Args) -> Result<Exit, Failure> {
    match &args.command {
        Command::Relay(command) => relay::run(&args.place, command).await,
        Command::Demo(command) => demo::run(&args.place, command).await,
        _ => Ok(Exit::Ok),
    }
}

/// Runs what the command line asks for; the answer goes to `out`.
pub(crate) async fn run(args: Args, out: &mut impl Write) -> Result<Exit, Failure> {
    let settings = Config::load(&args.place);
    // It speaks of mistakes itself.
    if let Command::Config(command) = args.command {
        return config::run(&settings, command, out);
    }
    settings.check()?;
    let target = Target::new(&settings.database())?;
    let exit = match args.command {
        Command::Migrate(command) => migrate::run(&target, command, out).await,
        Command::Enqueue(command) => enqueue::run(&target, *command, out).await,
        Command::Events(command) => events::run(&target, command, out).await,
        // Handled above, and by `serve`.
        Command::Config(_) | Command::Relay(_) | Command::Demo(_) => Ok(Exit::Ok),
        Command::Lanes { json } => stream::lanes(&target, json, out).await,
        Command::Blocked { limit, json } => stream::blocked(&target, limit, json, out).await,
    };
    target.close().await;
    exit
}
