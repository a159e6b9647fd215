//! A process of a run: its log, its signals, its end.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::guard::Guard;

/// A running process. It is killed when this is dropped, and by the guard when nobody is there to drop it.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    log: PathBuf,
    guard: Arc<Guard>,
    pid: u32,
}

impl Process {
    /// Starts it; what it says goes to the end of this log.
    pub(super) fn start(mut command: std::process::Command, log: &Path, guard: &Arc<Guard>) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let name = command.get_program().to_owned();
        let child = Command::from(command).kill_on_drop(true).spawn();
        let child = child.with_context(|| format!("cannot run {}", name.display()))?;
        let pid = child.id().context("a process that has just begun has no number")?;
        guard.watch(pid)?;
        Ok(Self { child, log: log.to_owned(), guard: Arc::clone(guard), pid })
    }

    /// Whether it has ended, and how.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends it a signal, if it runs.
    pub(super) fn signal(&mut self, signal: Signal) {
        // While nobody has asked for its end, its number is nobody else's.
        if self.ended().is_none()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            kill_process(pid, signal).ok();
        }
    }

    /// Sends it a signal and waits for its end.
    pub(super) async fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        self.signal(signal);
        Ok(self.child.wait().await?)
    }

    /// The same, but for no longer than this; then it is killed, and the answer is `None`.
    pub(super) async fn end_within(
        &mut self,
        signal: Signal,
        patience: Duration,
    ) -> Result<Option<ExitStatus>> {
        self.signal(signal);
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => Ok(Some(status?)),
            Err(_) => {
                self.end(Signal::KILL).await?;
                Ok(None)
            }
        }
    }

    /// Waits for its end.
    pub(super) async fn wait(&mut self) -> Result<ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// The last lines it has written.
    pub(super) fn last_words(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.child.start_kill().ok();
        }
        self.guard.forget(self.pid);
    }
}

/// The last lines of a log.
pub(super) fn tail(log: &Path) -> String {
    const LINES: usize = 20;
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}
