//! The subcommands, a file for each.

mod change;
mod completions;
pub(crate) mod config;
mod dead;
pub(crate) mod demo;
mod doctor;
mod enqueue;
mod events;
mod id;
mod migrate;
mod purge;
pub(crate) mod relay;
mod status;
mod stream;
mod tail;

use std::io::Write;
use std::time::Duration;

use crate::args::{Args, Command, Dead, Migrate};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::remedy::{self, Need};
use crate::target::Target;

/// How long a database may take to say goodbye: one that does not answer is left alone.
const GOODBYE: Duration = Duration::from_secs(5);

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
    // These look at no database.
    match args.command {
        Command::Completions { shell } => return completions::script(shell, out),
        Command::Man { directory } => return completions::manual(directory.as_deref(), out),
        _ => {}
    }
    let settings = Config::load(&args.place);
    // It speaks of mistakes itself.
    if let Command::Config(command) = args.command {
        return config::run(&settings, command, out);
    }
    settings.check()?;
    let targets = settings.databases().iter().map(Target::new).collect::<Result<Vec<_>, _>>()?;
    let need = need(&args.command);
    let exit = match args.command {
        Command::Status(command) => status::run(&targets, &command, out).await,
        Command::Doctor { old_transaction, json } => {
            doctor::run(&targets, &settings, old_transaction, json, out).await
        }
        command => on_one(only(&targets)?, command, out).await,
    };
    let exit = match exit {
        Err(failure) => Err(remedy::of(failure, &targets, need).await),
        exit => exit,
    };
    for target in &targets {
        // The answer is given, whether it comes or not.
        let _ = tokio::time::timeout(GOODBYE, target.close()).await;
    }
    exit
}

/// What a command does to the table, and so which rights it needs.
fn need(command: &Command) -> Need {
    match command {
        Command::Enqueue(_) => Need::Produce,
        Command::Migrate(Migrate::Up { .. } | Migrate::Down { .. }) => Need::Migrate,
        Command::Dead(Dead::Replay(_) | Dead::Discard(_)) | Command::Purge(_) => Need::Deliver,
        _ => Need::Look,
    }
}

/// The one table that a command is about.
fn only(targets: &[Target]) -> Result<&Target, Failure> {
    match targets {
        [target] => Ok(target),
        several => {
            let names: Vec<String> = several.iter().map(|target| target.table().to_string()).collect();
            let message = format!(
                "the configuration has several tables ({}); say which with --table",
                names.join(", ")
            );
            Err(Failure::new(Exit::BadInput, message))
        }
    }
}

/// Runs a command that is about one table.
async fn on_one(target: &Target, command: Command, out: &mut impl Write) -> Result<Exit, Failure> {
    match command {
        Command::Migrate(command) => migrate::run(target, command, out).await,
        Command::Enqueue(command) => enqueue::run(target, *command, out).await,
        Command::Events(command) => events::run(target, command, out).await,
        Command::Dead(command) => dead::run(target, command, out).await,
        Command::Purge(command) => purge::run(target, command, out).await,
        // Handled by who looks at no table, at several, or serves.
        Command::Completions { .. } | Command::Man { .. } | Command::Config(_) => Ok(Exit::Ok),
        Command::Status(_) | Command::Doctor { .. } => Ok(Exit::Ok),
        Command::Relay(_) | Command::Demo(_) => Ok(Exit::Ok),
        Command::Lanes { json } => stream::lanes(target, json, out).await,
        Command::Blocked { limit, json } => stream::blocked(target, limit, json, out).await,
    }
}
