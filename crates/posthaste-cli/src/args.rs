//! The command line.
//!
//! | file | what is in it |
//! |---|---|
//! | `args.rs` | what every command has, and what makes tables and events |
//! | `args/which.rs` | which events |
//! | `args/operate.rs` | what operators look at, mend and clear away |

mod operate;
mod which;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Parser, Subcommand};
use posthaste::store::Dialect;
use time::OffsetDateTime;

pub(crate) use operate::{Consent, Dead, DeadOnes, Doing, Events, List, Listing, Purge, StatusOf, TailOf};
pub(crate) use which::{Aggregate, Which};

use crate::commands::config::ConfigCommand;
use crate::commands::demo::DemoArgs;
use crate::commands::relay::RelayArgs;
use crate::exit;
use crate::tone::Colour;
use crate::when;

/// A transactional outbox: events that commit with your data, delivered at least once.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, after_help = exit::help(), arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) place: Place,
    /// When to use colours: auto is on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub(crate) color: Colour,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the table is, and the settings.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Where")]
pub(crate) struct Place {
    /// The database: a postgres://, mysql://, mariadb:// or sqlite:// URL [env: OUTBOX_DATABASE_URL] [default:
    /// sqlite://posthaste.db, a file in the working directory]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// The outbox table, with its schema if need be [env: OUTBOX_TABLE] [default: outbox]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// The configuration [env: OUTBOX_CONFIG] [default: posthaste.toml in the working directory, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Any key of the configuration, such as relay.batch=100; can be given many times
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Deliver events until stopped: the daemon
    Relay(RelayArgs),
    /// See it work: a shop, a relay and figures, on a database that is gone afterwards
    Demo(DemoArgs),
    /// Create the table, bring it up to date, compare it, or drop it
    #[command(subcommand)]
    Migrate(Migrate),
    /// Write an event
    Enqueue(Box<Enqueue>),
    /// Look at events
    #[command(subcommand)]
    Events(Events),
    /// Look at dead events, try them again, or delete them
    #[command(subcommand)]
    Dead(Dead),
    /// Delete events that ended some time ago. Shows which, and asks
    Purge(Purge),
    /// Show how a table stands: what waits, what is dead, who is at work
    Status(StatusOf),
    /// Check the configuration, or show every setting and where it came from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show the lanes of a stream: who owns each, and how far it is behind
    Lanes {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// List aggregates of a stream that wait until somebody replays or discards their dead event, longest first
    Blocked {
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Say why nothing moves: look at the database, the table and who works on it, with what to do about each fault
    Doctor {
        /// Transactions that have been open this long are old
        #[arg(long, value_name = "DURATION", value_parser = when::duration, default_value = "5m")]
        old_transaction: Duration,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Print a script that completes commands in a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the pages of all commands into a directory
    Man {
        /// The directory; it is created if need be
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Create the table, or bring it to the newest version; any number may try at once
    Up {
        #[command(flatten)]
        making: Making,
        /// Make or drop the trigger that wakes relays at every insert, whoever writes it; PostgreSQL only
        #[arg(long, value_name = "STATE", value_enum)]
        notify_on_insert: Option<Switch>,
    },
    /// Revert migrations; the first one's reversal drops the table and every event in it
    Down {
        /// Revert what is above this version; 0 drops the table [default: one back]
        #[arg(long, value_name = "N")]
        to: Option<u32>,
        #[command(flatten)]
        consent: Consent,
    },
    /// Print the migrations as SQL, for a migration tool of your own
    Print {
        /// The database to print for, without connecting to one [default: that of --database]
        #[arg(long, value_parser = dialects())]
        dialect: Option<Dialect>,
        /// Leave out migrations up to this version
        #[arg(long, value_name = "N", default_value_t = 0)]
        from: u32,
        #[command(flatten)]
        making: Making,
    },
    /// Show the table's mode, its migrations and when they were applied
    Status {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Compare the live table with what its migrations make; exit code 1 if it differs
    Validate {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

/// How a table's events are to be delivered; it is fixed when the table is made.
#[derive(Debug, clap::Args)]
pub(crate) struct Making {
    /// A queue, or a stream that keeps the order of each aggregate's events [default: the mode it has, or queue]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeName>,
    /// Into how many lanes a stream is divided: a power of two up to 256 [default: 1]
    #[arg(long, value_name = "N", requires = "mode")]
    pub(crate) lanes: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ModeName {
    Queue,
    Stream,
}

#[derive(Debug, clap::Args)]
#[command(override_usage = "posthaste enqueue [OPTIONS] <TOPIC> <PAYLOAD>\n       \
        posthaste enqueue [OPTIONS] <TOPIC> --file <FILE>\n       \
        posthaste enqueue [OPTIONS] <TOPIC> --bytes-file <FILE> --content-type <TYPE>")]
#[command(group = ArgGroup::new("content").args(["payload", "file", "bytes_file"]).required(true))]
pub(crate) struct Enqueue {
    /// The event's topic, such as order.placed.v1
    pub(crate) topic: String,
    /// The payload as JSON; - reads it from standard input
    #[arg(allow_negative_numbers = true)]
    pub(crate) payload: Option<String>,
    /// Read the JSON payload from this file
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Read a payload that is not JSON from this file
    #[arg(long, value_name = "FILE", requires = "content_type")]
    pub(crate) bytes_file: Option<PathBuf>,
    /// What the bytes are, such as image/png
    #[arg(long, value_name = "TYPE", requires = "bytes_file")]
    pub(crate) content_type: Option<String>,
    /// The event's id, a UUID or ULID [default: a new one]
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// What happened [default: the topic]
    #[arg(long, value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// What it happened to, such as order/42
    #[arg(long, value_name = "TYPE/ID", value_parser = which::aggregate)]
    pub(crate) aggregate: Option<Aggregate>,
    /// The space in which topic and dedupe key are unique [default: default]
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    /// The tenant it belongs to
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Write nothing if this topic has an event with this key already
    #[arg(long, value_name = "KEY")]
    pub(crate) dedupe_key: Option<String>,
    /// A header; can be given many times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// The version of the payload's schema [default: 1]
    #[arg(long = "version", value_name = "N")]
    pub(crate) schema: Option<u32>,
    /// Deliver not before this long from now, such as 30s, 5m or 2h
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    pub(crate) delay: Option<Duration>,
    /// Deliver not before this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = when::instant, conflicts_with = "delay")]
    pub(crate) available_at: Option<OffsetDateTime>,
    /// List the table's newest events afterwards
    #[arg(long)]
    pub(crate) list: bool,
    /// Answer in JSON
    #[arg(long, conflicts_with = "list")]
    pub(crate) json: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not a name and a value such as source=shop")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn dialects() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(["postgres", "mysql", "mariadb", "sqlite"])
        .try_map(|name| Dialect::of_url(&format!("{name}:")))
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::Args;

    /// The names of the commands that have none below them, with their options.
    fn leaves(command: &Command, path: &str, found: &mut Vec<(String, Vec<String>)>) {
        let below = command.get_subcommands().filter(|command| command.get_name() != "help");
        let path = format!("{path} {}", command.get_name());
        let mut is_leaf = true;
        for command in below {
            is_leaf = false;
            leaves(command, &path, found);
        }
        if is_leaf {
            let options = command.get_arguments().filter_map(|argument| argument.get_long());
            found.push((path.trim().to_owned(), options.map(|long| format!("--{long}")).collect()));
        }
    }

    #[test]
    fn op1_the_command_line_makes_sense() {
        Args::command().debug_assert();
    }

    #[test]
    fn op1_every_command_and_option_is_in_the_reference() {
        let page = include_str!("../../../docs/src/reference/cli.md");
        let mut found = Vec::new();
        leaves(&Args::command(), "", &mut found);
        assert!(found.iter().any(|(path, _)| path == "posthaste dead replay"), "{found:?}");
        for (path, options) in found {
            let name = path.trim_start_matches("posthaste ");
            assert!(page.contains(&format!("`{path}")) || page.contains(&format!("`{name}")), "{path}");
            for option in options {
                assert!(page.contains(&option), "{option} of {path}");
            }
        }
    }
}
