//! The subcommands, a file for each.

mod doctor;
mod enqueue;
mod events;
mod migrate;
mod stream;

use std::io::Write;
use std::time::Duration;

use crate::args::{Args, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;

/// How long a database may take to say goodbye: one that does not answer is left alone.
const GOODBYE: Duration = Duration::from_secs(5);

/// Runs what the command line asks for; the answer goes to `out`.
pub(crate) async fn run(args: Args, out: &mut impl Write) -> Result<Exit, Failure> {
    let target = Target::new(args.place)?;
    let exit = match args.command {
        Command::Migrate(command) => migrate::run(&target, command, out).await,
        Command::Enqueue(command) => enqueue::run(&target, *command, out).await,
        Command::Events(command) => events::run(&target, command, out).await,
        Command::Lanes { json } => stream::lanes(&target, json, out).await,
        Command::Blocked { limit, json } => stream::blocked(&target, limit, json, out).await,
        Command::Doctor { old_transaction, json } => doctor::run(&target, old_transaction, json, out).await,
    };
    // The answer is given, whether it comes or not.
    let _ = tokio::time::timeout(GOODBYE, target.close()).await;
    exit
}
