//! Kills what a run has started when the run itself is gone: a process that is killed cannot do it.
//!
//! The guard is the binary of this crate in a process group of its own, so that what is meant for the run's group does not reach
//! it. It hears the numbers of processes through a pipe, which ends with the run, however that ends.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::program;

/// The argument that makes a guard of the binary.
pub const ARGUMENT: &str = "guard";

/// The end of the pipe that is the run's.
#[derive(Debug)]
pub struct Guard {
    child: Mutex<Child>,
}

impl Guard {
    pub fn start() -> Result<Self> {
        let mut command = Command::new(program::torture()?);
        command
            .arg(ARGUMENT)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().context("no guard")?;
        Ok(Self { child: Mutex::new(child) })
    }

    /// This process is to end with the run.
    pub(super) fn watch(&self, pid: u32) -> Result<()> {
        self.say(&format!("+{pid}\n")).context("the guard is gone")
    }

    /// This process has ended.
    pub(super) fn forget(&self, pid: u32) {
        self.say(&format!("-{pid}\n")).ok();
    }

    fn say(&self, line: &str) -> std::io::Result<()> {
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &mut child.stdin {
            Some(pipe) => pipe.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(child.stdin.take());
        child.wait().ok();
    }
}

/// What the guard does: listens until the pipe ends, and kills what is left.
pub fn stand(input: impl BufRead) {
    let mut watched = BTreeSet::new();
    for line in input.lines().map_while(Result::ok) {
        match line.split_at_checked(1) {
            Some(("+", pid)) => watched.insert(pid.to_owned()),
            Some((_, pid)) => watched.remove(pid),
            None => false,
        };
    }
    for pid in watched.iter().filter_map(|pid| pid.parse().ok()).filter_map(Pid::from_raw) {
        kill_process(pid, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    #[test]
    fn it_kills_what_is_left_and_nothing_else() {
        let (mut left, mut ended) = (sleeper(), sleeper());
        let input = format!("+{}\n+{}\n-{}\n", left.id(), ended.id(), ended.id());
        stand(input.as_bytes());
        assert!(!left.wait().unwrap().success());
        assert_eq!(ended.try_wait().unwrap(), None);
        ended.kill().unwrap();
        ended.wait().unwrap();
    }
}
