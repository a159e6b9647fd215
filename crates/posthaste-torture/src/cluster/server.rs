//! A server of a run's own: its data are removed with it, its port belongs to no other server.
//!
//! The process runs under the guard of the run; everything else is of the test kit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use posthaste_testkit::engine::{Engine, Profile};
use posthaste_testkit::private::{DEADLINE, Site};
use rustix::process::Signal;
use tokio::task::block_in_place;

use super::guard::Guard;
use super::process::{Process, tail};

/// A server that runs, or is down for a while.
#[derive(Debug)]
pub(super) struct Server {
    /// Before its data: it ends before they are removed.
    process: Option<Process>,
    site: Site,
    log: PathBuf,
    guard: Arc<Guard>,
}

impl Server {
    /// Starts a new one, whose log is in this directory.
    pub(super) async fn start(
        engine: &'static dyn Engine,
        directory: &Path,
        guard: &Arc<Guard>,
    ) -> Result<Self> {
        let site = block_in_place(|| Site::new(engine, Profile::Torture, &[]))?;
        let log = directory.join(format!("{}.log", engine.name()));
        let mut server = Self { process: None, site, log, guard: Arc::clone(guard) };
        server.start_again().await?;
        Ok(server)
    }

    pub(super) fn port(&self) -> u16 {
        self.site.port()
    }

    /// URL of a database, as a user with all rights; of NATS, the URL of the server.
    pub(super) fn url(&self, database: &str) -> String {
        self.site.url(database)
    }

    /// URL of the database that is always there.
    pub(super) fn first_url(&self) -> String {
        self.site.first_url()
    }

    /// Ends the server as a crash does.
    pub(super) async fn crash(&mut self) -> Result<()> {
        let death = self.death();
        if let Some(mut process) = self.process.take() {
            if let Some(status) = process.ended() {
                bail!("{} ended by itself with {status}: {}", self.name(), tail(&self.log));
            }
            process.end(death).await?;
        }
        Ok(())
    }

    /// Starts the server again, with what was committed.
    pub(super) async fn start_again(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        self.process = Some(Process::start(self.site.serve()?, &self.log, &self.guard)?);
        let began = Instant::now();
        while !block_in_place(|| self.site.is_ready()) {
            let ended = self.process.as_mut().and_then(Process::ended);
            if let Some(status) = ended {
                bail!("{} ended with {status}: {}", self.name(), tail(&self.log));
            }
            if began.elapsed() > DEADLINE {
                bail!("{} was not ready within {DEADLINE:?}: {}", self.name(), tail(&self.log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        self.site.engine().name()
    }

    /// The signal on which the server dies at once.
    fn death(&self) -> Signal {
        match self.site.death() {
            "QUIT" => Signal::QUIT,
            _ => Signal::KILL,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of a run that failed. The data are removed next, and the children of a PostgreSQL that is killed would still
        // write to them.
        let death = self.death();
        if let Some(process) = &mut self.process {
            process.signal(death);
            let began = Instant::now();
            while process.ended().is_none() && began.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
