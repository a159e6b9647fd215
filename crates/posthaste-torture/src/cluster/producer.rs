//! A producer process: this crate's own binary, with a file that says what to do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Result;

use super::guard::Guard;
use super::process::Process;
use crate::producer::{ARGUMENT, Orders};
use crate::program;

/// A producer that runs, or is down for a while.
#[derive(Debug)]
pub(super) struct Producer {
    name: String,
    orders: PathBuf,
    log: PathBuf,
    env: Vec<(String, String)>,
    guard: Arc<Guard>,
    pub(super) process: Option<Process>,
}

impl Producer {
    /// One that is not started yet; its orders and log are in this directory.
    pub(super) fn new(
        orders: &Orders,
        env: &[(String, String)],
        directory: &Path,
        guard: &Arc<Guard>,
    ) -> Result<Self> {
        let file = directory.join(format!("{}.json", orders.name));
        std::fs::write(&file, serde_json::to_vec_pretty(orders)?)?;
        Ok(Self {
            name: orders.name.clone(),
            orders: file,
            log: directory.join(format!("{}.log", orders.name)),
            env: env.to_vec(),
            guard: Arc::clone(guard),
            process: None,
        })
    }

    /// Starts it, if it does not run.
    pub(super) fn start(&mut self) -> Result<()> {
        if self.process.is_none() {
            let mut command = Command::new(program::torture()?);
            command.arg(ARGUMENT).arg(&self.orders).envs(self.env.iter().cloned());
            self.process = Some(Process::start(command, &self.log, &self.guard)?);
        }
        Ok(())
    }

    /// What is wrong with it, if it should run and does not any more.
    pub(super) fn has_failed(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        let status = process.ended()?;
        let words = process.last_words();
        self.process = None;
        Some(format!("{} ended by itself with {status}: {words}", self.name))
    }
}
