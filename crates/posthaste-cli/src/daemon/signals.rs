//! Who may stop what runs until somebody stops it: Ctrl-C at its terminal, and SIGTERM from whatever runs it.
//!
//! On Unix they are listened to from the moment [`Signals`] or [`Interrupt`] is made, also where they were ignored by whoever
//! started this (as a shell does with what it starts in the background).

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

#[cfg(unix)]
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

#[cfg(unix)]
fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot wait for signals ({error}); stop it by force"))
    })
}

/// The signals from now on.
#[cfg(unix)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn new() -> Result<Self, Failure> {
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

/// Ctrl-C alone, from now on: for what only looks, and has nothing to finish when whatever runs it ends it.
#[cfg(unix)]
pub(crate) struct Interrupt(Signal);

#[cfg(unix)]
impl Interrupt {
    pub(crate) fn new() -> Result<Self, Failure> {
        listen(SignalKind::interrupt()).map(Self)
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Ctrl-C alone, from now on: for what only looks, and has nothing to finish when whatever runs it ends it.
#[cfg(not(unix))]
pub(crate) struct Interrupt(Signals);

#[cfg(not(unix))]
impl Interrupt {
    pub(crate) fn new() -> Result<Self, Failure> {
        Signals::new().map(Self)
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) {
        self.0.next().await;
    }
}
