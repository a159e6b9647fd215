//! A relay in a process of its own, whose memory and processor time are nobody else's.
//!
//! The parent starts this same program with [`COMMAND`]; it ends when it has delivered what it was told to, or when
//! its standard input is closed, as that is by a parent that has died.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::contender::{self, Delivering};
use crate::meter;
use crate::seen::Seen;
use crate::server::Database;

/// The hidden word on the command line.
pub(crate) const COMMAND: &str = "relay";

/// A started one.
pub(crate) struct Relay(Child);

impl Relay {
    /// Delivers this contender's events of this database: so many, or until it is ended.
    pub(crate) fn start(contender: &str, database: &Database, events: Option<u64>) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args([COMMAND, contender, database.url(), &database.process().to_string()])
            .arg(events.unwrap_or(u64::MAX).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self(child))
    }

    /// The time of processors that it has taken so far.
    pub(crate) fn time(&self) -> Result<Duration> {
        meter::time_of(self.0.id().context("the relay has ended")?)
    }

    /// Waits until it has delivered everything; the most memory it has held.
    pub(crate) async fn delivered(self, patience: Duration) -> Result<u64> {
        let output = tokio::time::timeout(patience, self.0.wait_with_output()).await;
        let output = output.with_context(|| format!("it was not done within {patience:?}"))??;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.trim().parse() {
            Ok(bytes) if output.status.success() => Ok(bytes),
            _ => bail!("its relay ended with {}: {text}", output.status),
        }
    }

    /// Ends it.
    pub(crate) async fn end(mut self) -> Result<()> {
        if let Some(mut input) = self.0.stdin.take() {
            input.shutdown().await.ok();
        }
        tokio::time::timeout(Duration::from_secs(20), self.0.wait())
            .await
            .context("the relay does not end")??;
        Ok(())
    }
}

/// The child's side: the arguments behind the word.
pub(crate) async fn run(arguments: &[String]) -> Result<u64> {
    let [name, url, process, events] = arguments else { bail!("not for people") };
    let all = contender::all();
    let contender = all.iter().find(|one| one.name() == name).context("an unknown contender")?;
    let installed = contender.set_up(&Database::at(url, process.parse()?)).await?;
    let events: u64 = events.parse()?;
    // What is seen is not part of what is measured: a bit for each number would be, for a million of them.
    let seen = Seen::counting();
    let running = installed.deliver(Delivering { workers: 1, batch: 1000 }, seen.clone()).await?;
    let mut input = tokio::io::stdin();
    let mut bytes = [0; 1];
    tokio::select! {
        _ = input.read(&mut bytes) => {}
        () = seen.counts(events) => {}
    }
    let memory = meter::most_memory()?;
    running.stop().await?;
    installed.close().await;
    Ok(memory)
}
