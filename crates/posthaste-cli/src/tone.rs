//! Colours: which words have one, and whether any are used.
//!
//! `--color auto` uses them on a terminal. `NO_COLOR` and `TERM=dumb` switch them off, `CLICOLOR_FORCE` on where there
//! is no terminal; `--color always` and `--color never` are stronger than both.

use std::io;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use comfy_table::Color;
use posthaste::store::Status;

use crate::screen;

/// What `--color` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    #[default]
    Auto,
    Always,
    Never,
}

impl Colour {
    /// From now on so.
    pub(crate) fn choose(self) {
        match self {
            // The library would use them on a dumb terminal in continuous integration.
            Self::Auto if screen::is_dumb() && !is_forced() => ColorChoice::Never,
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        }
        .write_global();
    }
}

fn is_forced() -> bool {
    std::env::var_os("CLICOLOR_FORCE").is_some_and(|force| force != "0")
}

/// Whether the answer has colours.
pub(crate) fn is_coloured() -> bool {
    is_coloured_on(&io::stdout())
}

/// Whether what is written there has colours.
pub(crate) fn is_coloured_on(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// What a word says of the state of things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Under way.
    Busy,
    /// Waits, or wants to be looked at.
    Wary,
    /// Wants somebody to act.
    Bad,
}

impl Tone {
    /// Of an event in this state.
    pub(crate) fn of(status: Status) -> Self {
        match status {
            Status::Pending => Self::Wary,
            Status::Processing => Self::Busy,
            Status::Delivered => Self::Good,
            Status::Dead => Self::Bad,
        }
    }

    pub(crate) fn colour(self) -> Option<Color> {
        match self {
            Self::Plain => None,
            Self::Good => Some(Color::Green),
            Self::Busy => Some(Color::Cyan),
            Self::Wary => Some(Color::Yellow),
            Self::Bad => Some(Color::Red),
        }
    }
}
