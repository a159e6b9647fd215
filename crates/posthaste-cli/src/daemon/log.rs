//! What the daemon says while it runs: its log, and a few lines for whoever has started it. Both go to standard error,
//! since standard output may be a sink.

use std::fmt::Display;
use std::io::{self, Write};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::settings::LogSettings;
use crate::tone;

/// Says things to people, or where programs read the log, to those.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Voice {
    json: bool,
    silent: bool,
}

impl Voice {
    /// Begins to log as the settings say.
    pub(crate) fn start(settings: &LogSettings) -> Self {
        let filter = quieted(settings.level.parse().unwrap_or_default(), &settings.level);
        let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        let registry = tracing_subscriber::registry();
        // Whoever has set one up before, in a test, keeps it.
        let _ = if settings.json {
            registry.with(layer.json().flatten_event(true).with_filter(filter)).try_init()
        } else {
            let colours = tone::is_coloured_on(&io::stderr());
            registry.with(layer.with_ansi(colours).with_filter(filter)).try_init()
        };
        Self { json: settings.json, silent: false }
    }

    /// One that says nothing.
    pub(crate) fn silent(self) -> Self {
        Self { silent: true, ..self }
    }

    /// Says one thing.
    pub(crate) fn say(self, what: impl Display) {
        if self.silent {
            return;
        }
        if self.json {
            tracing::info!("{what}");
        } else {
            // Where standard error has gone there is nobody to tell.
            let _ = writeln!(io::stderr(), "{what}");
        }
    }
}

/// What the libraries below say at their more talkative levels may hold what is nobody's business, and repeats what the relay
/// says of its sinks: it is heard only where somebody names them.
fn quieted(filter: Targets, level: &str) -> Targets {
    const TALKATIVE: [&str; 6] = ["async_nats", "h2", "hyper", "hyper_util", "reqwest", "rustls"];
    let unnamed = TALKATIVE.into_iter().filter(|name| !level.contains(name));
    let loud: Vec<&str> = unnamed.filter(|name| filter.would_enable(name, &tracing::Level::INFO)).collect();
    filter.with_targets(loud.into_iter().map(|name| (name, tracing::Level::WARN)))
}
