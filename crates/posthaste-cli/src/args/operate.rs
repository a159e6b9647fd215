//! What operators look at, mend and clear away.

use std::time::Duration;

use clap::ArgGroup;
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use posthaste::store::Status;

use super::which::Which;
use crate::when;

#[derive(Debug, Subcommand)]
pub(crate) enum Events {
    /// List events, newest first
    List(Box<List>),
    /// Show one event with its payload
    Show {
        /// The event's id, or its first 8 characters or more if no other begins so
        id: String,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Print events as they are committed, from now on or from --since on, until Ctrl-C
    Tail(Box<TailOf>),
}

#[derive(Debug, clap::Args)]
pub(crate) struct TailOf {
    #[command(flatten)]
    pub(crate) which: Which,
    /// How often to look: seconds, or a duration such as 500ms
    #[arg(long, value_name = "INTERVAL", default_value = "1", value_parser = interval)]
    pub(crate) every: Duration,
    /// A line of JSON for each event
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Only events in this state
    #[arg(long, value_parser = statuses())]
    pub(crate) status: Option<Status>,
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) listing: Listing,
}

/// How much of a list, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct Listing {
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

#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// List dead events, newest first, with why each was given up
    List {
        #[command(flatten)]
        which: Box<Which>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show one dead event with its payload
    Show {
        /// The event's id, or its first 8 characters or more if no other begins so
        id: String,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Try dead events again: their attempts begin anew. Shows which, and asks
    Replay(Box<DeadOnes>),
    /// Delete dead events. Shows which, and asks
    Discard(Box<DeadOnes>),
}

/// Which dead events something is to be done to.
#[derive(Debug, clap::Args)]
pub(crate) struct DeadOnes {
    /// One event, by its id or its first 8 characters or more
    pub(crate) id: Option<String>,
    #[command(flatten)]
    pub(crate) which: Which,
    /// Every dead event
    #[arg(long, help_heading = "Which")]
    pub(crate) all: bool,
    /// At most this many, oldest first [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) doing: Doing,
}

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("ending").args(["delivered", "dead"]).required(true).multiple(true))]
pub(crate) struct Purge {
    /// Delete events that were delivered
    #[arg(long)]
    pub(crate) delivered: bool,
    /// Delete events that were given up
    #[arg(long)]
    pub(crate) dead: bool,
    /// Only those that ended longer ago than this, such as 12h or 7d; 0s is all of them
    #[arg(long, value_name = "DURATION", value_parser = when::duration)]
    pub(crate) older_than: Duration,
    /// At most this many of each [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    #[command(flatten)]
    pub(crate) doing: Doing,
}

/// How something is done that changes or deletes events.
#[derive(Debug, clap::Args)]
pub(crate) struct Doing {
    /// Only show what would be touched
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

/// Who agrees to a change or deletion.
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
pub(crate) struct StatusOf {
    /// Look again and again, until Ctrl-C: every so many seconds, or a duration such as 500ms [default: 2]
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2", value_parser = interval)]
    pub(crate) watch: Option<Duration>,
    /// Answer in JSON; with --watch a line for each look
    #[arg(long)]
    pub(crate) json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .or_else(|| when::duration(text).ok())
        .filter(|seconds| (Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(seconds))
        .ok_or_else(|| {
            "not a number of seconds between 0.1 and 86400, or a duration such as 500ms or 2s".to_owned()
        })
}

fn statuses() -> impl TypedValueParser<Value = Status> {
    PossibleValuesParser::new(["pending", "processing", "delivered", "dead"])
        .try_map(|name| name.parse::<Status>())
}
