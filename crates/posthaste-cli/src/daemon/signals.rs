//! Who may stop what runs until somebody stops it: Ctrl-C at its terminal, and SIGTERM from whatever runs it.
//!
//! They are listened to from the moment [`Signals`] is made, also where they were ignored by whoever started this (as a
//! shell does with what it starts in the background).

use crate::exit::Exit;
use crate::failure::Failure;

/// A wish to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Ctrl-C, SIGINT.
    Interrupt,
    /// SIGTERM.
    #[cfg(unix)]
    Terminate,
}

impl Stop {
    /// Its name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "Ctrl-C",
            #[cfg(unix)]
            Self::Terminate => "SIGTERM",
        }
    }

    /// The exit code of a program that leaves because of it: 128 and the signal's number.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            #[cfg(unix)]
            Self::Terminate => 143,
        }
    }
}

/// The signals from now on.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot wait for signals ({error}); stop it by force"))
            })
        };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
        }
    }
}

/// The signals from now on.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
        Ok(Self)
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Stop {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Stop::Interrupt
    }
}
