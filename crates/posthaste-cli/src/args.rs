//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Parser, Subcommand};
use posthaste::store::{Dialect, Status};
use time::OffsetDateTime;

use crate::commands::config::ConfigCommand;
use crate::commands::demo::DemoArgs;
use crate::commands::relay::RelayArgs;
use crate::exit;
use crate::when::{self, When};

/// A transactional outbox: events that commit with your data, delivered at least once.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, after_help = exit::help(), arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) place: Place,
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
}

#[derive(Debug, Subcommand)]
pub(crate) enum Migrate {
    /// Create the table, or bring it to the newest version; any number may try at once
    Up {
        #[command(flatten)]
        making: Making,
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
pub(crate) enum ModeName {
    Queue,
    Stream,
}

/// Who agrees to a deletion.
#[derive(Debug, clap::Args)]
pub(crate) struct Consent {
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// The table's name once more: needed where the database is on another machine
    #[arg(long, value_name = "TABLE")]
    pub(crate) confirm: Option<String>,
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
    #[arg(long, value_name = "TYPE/ID", value_parser = aggregate)]
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

#[derive(Debug, Subcommand)]
pub(crate) enum Events {
    /// List events, newest first
    List(Box<List>),
    /// Show one event with its payload
    Show {
        /// The event's id
        id: String,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only events in this state
    #[arg(long, value_parser = statuses())]
    pub(crate) status: Option<Status>,
    /// Only this topic; * stands for any characters
    #[arg(long)]
    pub(crate) topic: Option<String>,
    /// Only this type of event
    #[arg(long, value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Only this aggregate, such as order/42
    #[arg(long, value_name = "TYPE/ID", value_parser = aggregate)]
    pub(crate) aggregate: Option<Aggregate>,
    /// Only this tenant
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// Only this namespace
    #[arg(long)]
    pub(crate) namespace: Option<String>,
    /// Written since then: so long ago (2h), or at or after a time (2026-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = when::when)]
    pub(crate) since: Option<When>,
    /// Written before then
    #[arg(long, value_name = "WHEN", value_parser = when::when)]
    pub(crate) until: Option<When>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Oldest first instead of newest first
    #[arg(long)]
    pub(crate) oldest_first: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What an event happened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Aggregate {
    pub(crate) kind: String,
    pub(crate) id: String,
}

fn aggregate(text: &str) -> Result<Aggregate, String> {
    let (kind, id) = text.split_once('/').ok_or("not a type and an id such as order/42")?;
    Ok(Aggregate { kind: kind.to_owned(), id: id.to_owned() })
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not a name and a value such as source=shop")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn dialects() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(["postgres", "mysql", "mariadb", "sqlite"])
        .try_map(|name| Dialect::of_url(&format!("{name}:")))
}

fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(["pending", "processing", "delivered", "dead"])
        .try_map(|name| name.parse::<Status>())
}
