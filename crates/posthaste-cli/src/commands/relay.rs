//! `posthaste relay`: the daemon. It delivers the events of its tables until it is told to stop, and then drains.

use std::fmt::Write as _;

use crate::args::Place;
use crate::config::key::Secrecy;
use crate::config::origin::Origin;
use crate::config::path::Path;
use crate::config::secret::masked;
use crate::config::settings::{Settings, TableSettings};
use crate::config::{Config, mistake};
use crate::daemon::Daemon;
use crate::daemon::log::Voice;
use crate::daemon::signals::{Signals, Stop};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::http::Server;
use crate::when;

use super::config::warn;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "With nothing configured it makes posthaste.db in the working directory and prints events to \
    standard output; all else goes to standard error. SIGTERM and Ctrl-C drain: what runs may finish, what has not \
    begun is handed back, and the exit code is 0. A second one leaves at once, with 130 or 143."
)]
pub(crate) struct RelayArgs {
    /// Create the tables, or bring them up to date, before anything is delivered
    #[arg(long)]
    pub(crate) migrate: bool,
}

/// Runs it to its end.
pub(crate) async fn run(place: &Place, args: &RelayArgs) -> Result<Exit, Failure> {
    let mut config = Config::load(place);
    if args.migrate {
        config.flag("relay.migrate", "--migrate", "true");
    }
    let settings = config.settings().map_err(|mistakes| {
        warn(config.warnings());
        mistake::failure(&mistakes)
    })?;
    let voice = Voice::start(&settings.log);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let mut signals = Signals::new()?;
    voice.say(header(&config, &settings));
    let daemon = Daemon::new(settings);
    // Before the database is reached, so that whoever asks can be told what it waits for.
    let server = Server::start(&daemon).await?;
    if let Some(server) = &server {
        voice.say(serving(server));
    }
    let started = tokio::select! {
        started = daemon.start() => started,
        stop = signals.next() => {
            voice.say(format_args!("{}: stopped before it was ready; Ctrl-C leaves at once", stop.name()));
            drain(&daemon, server, &mut signals, voice).await;
            return Ok(Exit::Ok);
        }
    };
    if let Err(failure) = started {
        drain(&daemon, server, &mut signals, voice.silent()).await;
        return Err(failure);
    }
    for line in tables(&daemon) {
        voice.say(line);
    }
    voice.say(invitation(&config, place, &daemon));
    voice.say("ready; Ctrl-C stops it");

    let ended = tokio::select! {
        stop = signals.next() => Ok(stop),
        failure = daemon.broken() => Err(failure),
    };
    let why = ended.as_ref().map_or("a relay has ended", |stop| stop.name());
    voice.say(format_args!("{why}: draining; Ctrl-C leaves at once"));
    drain(&daemon, server, &mut signals, voice).await;
    ended.map(|_| Exit::Ok)
}

/// Stops the daemon and says what was left, unless somebody cannot wait.
pub(super) async fn drain(daemon: &Daemon, server: Option<Server>, signals: &mut Signals, voice: Voice) {
    let drain = async {
        let drained = daemon.stop().await;
        // To the last it says that it is not ready, and what was delivered while it drained.
        if let Some(server) = server {
            server.stop().await;
        }
        drained
    };
    let drained = tokio::select! {
        drained = drain => drained,
        stop = signals.next() => leave(stop, voice),
    };
    for (table, left) in drained {
        let mut said = format!(
            "table {table}: while it drained, {} settled, {} handed back, {} abandoned",
            left.settled, left.handed_back, left.abandoned
        );
        if left.unsettled > 0 {
            // Writing to a string does not fail.
            let _ =
                write!(said, ", {} not settled: they come up again when their leases end", left.unsettled);
        }
        voice.say(said);
    }
    voice.say("stopped");
}

/// Where it can be asked.
pub(super) fn serving(server: &Server) -> String {
    format!("serving http://{}: health, metrics, and the API at /api/v1", server.address())
}

/// At once: leases say what was under way.
fn leave(stop: Stop, voice: Voice) -> ! {
    voice.say(format_args!(
        "{} again: leaving at once; what was under way comes up again when its leases end",
        stop.name()
    ));
    std::process::exit(stop.code())
}

fn header(config: &Config, settings: &Settings) -> String {
    let file = config.file().map_or_else(String::new, |file| format!(", configured by {}", file.display()));
    format!("posthaste {}: {}{file}", env!("CARGO_PKG_VERSION"), settings.database.url)
}

/// What is done for each table, a line for each.
fn tables(daemon: &Daemon) -> Vec<String> {
    let settings = daemon.settings();
    daemon
        .tables()
        .values()
        .map(|table| {
            let own = table.settings();
            let created = table.opened().is_some_and(|opened| opened.created);
            let made = if created { " (made just now)" } else { "" };
            format!("table {}{made}: {}; {}", own.name, destinations(settings, own), kept(own))
        })
        .collect()
}

fn destinations(settings: &Settings, table: &TableSettings) -> String {
    if !table.relayed {
        return "not relayed here".to_owned();
    }
    let routes = settings.routes_of(&table.name);
    let lines: Vec<String> = routes
        .iter()
        .map(|route| {
            let kind = settings.sinks.get(&route.sink).map_or("", |sink| sink.kind_name());
            let sink =
                if kind == route.sink { route.sink.clone() } else { format!("{} ({kind})", route.sink) };
            format!("{} to {sink}", route.topics.join(", "))
        })
        .collect();
    lines.join("; ")
}

fn kept(table: &TableSettings) -> String {
    match table.retention {
        _ if !table.cleaned => "nothing is deleted".to_owned(),
        kept if kept.is_zero() => "deleted on delivery".to_owned(),
        kept => format!("delivered events are kept for {}", when::length(kept)),
    }
}

/// How to write a first event from another terminal.
fn invitation(config: &Config, place: &Place, daemon: &Daemon) -> String {
    let program = std::env::args().next().unwrap_or_else(|| "posthaste".to_owned());
    let mut command = program;
    if let Some(file) = &place.config {
        let _ = write!(command, " --config {}", file.display());
    }
    let database = Path::plain("database.url");
    if matches!(config.origin(&database), Origin::Flag(_)) {
        let url = config.text(&database).unwrap_or_default();
        let is_open = masked(&url, Secrecy::Password) == url;
        let _ = write!(command, " --database {}", if is_open { &url } else { "…" });
    }
    let usual = &daemon.settings().database.table;
    let relayed = daemon.tables().values().filter(|table| table.settings().relayed);
    let names: Vec<String> = relayed.map(|table| table.settings().name.to_string()).collect();
    let Some(name) = names.iter().find(|name| *name == usual).or(names.first()) else {
        return "no table is relayed here: it only purges".to_owned();
    };
    let named_by_environment = matches!(config.origin(&Path::plain("database.table")), Origin::Flag(_));
    if name != usual || named_by_environment {
        let _ = write!(command, " --table {name}");
    }
    format!(
        "write an event, from another terminal in this directory:\n  {command} enqueue order.placed.v1 '{{\"order\": 42}}'"
    )
}
