//! A case from beginning to end: a child that dies, one that does not, and what is there then.
//!
//! The table is made before, so that everything that happens to it is noted; after the crash, where that is what the
//! child dies of: then it is gone on with.

use std::path::PathBuf;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;

use super::child::{ARGUMENT, LEASE, MAX_ATTEMPTS, Order, Role, SINK};
use super::ground::Ground;
use super::{Scenario, TABLE};
use crate::checker::Rules;
use crate::history::{Fault, History, Micros, Record, Writer, now};
use crate::plan::Database;

/// How much longer than a lease a crash may be felt: to the end of the second child, which on a busy machine may lose leases, too.
const SLACK: Micros = 60_000_000;

/// The child that comes after the one that died.
const HEIR: &str = "heir";

/// Longer than any child takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The variable by which a child is told where to die.
const FAILPOINT: &str = "POSTHASTE_FAILPOINT";

/// One crash.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub database: Database,
    pub scenario: Scenario,
    /// Where it dies.
    pub point: &'static str,
    /// When it gets there for the how manieth time.
    pub time: u64,
}

/// What cases need.
#[derive(Debug, Clone)]
pub struct Rig {
    /// The program that children run.
    pub program: PathBuf,
    /// The URL of the server, where there is one.
    pub server: String,
    /// Where each case has a directory of its own.
    pub directory: PathBuf,
}

impl Case {
    /// Where its history is.
    pub fn directory(&self, rig: &Rig) -> PathBuf {
        let Self { database, scenario, point, time } = self;
        rig.directory.join(format!("{}-{}-{point}-{time}", database.name(), scenario.name()))
    }

    /// Runs it; what happened. The directory stays.
    pub async fn run(&self, rig: &Rig) -> Result<History> {
        let directory = self.directory(rig);
        if directory.exists() {
            std::fs::remove_dir_all(&directory)?;
        }
        std::fs::create_dir_all(&directory)?;
        let ground = Ground::make(self.database, &rig.server, &directory).await?;
        let writer = Writer::open(&directory, "case")?;
        let order = Order {
            url: ground.url("child")?,
            scenario: self.scenario,
            directory: directory.clone(),
            name: "child".to_owned(),
            role: Role::Whole,
        };
        let makes_the_table = self.point.starts_with("migrate.");
        if makes_the_table {
            self.crash(rig, &order, &writer).await?;
        }
        ground.migrate(self.scenario).await.context("the table cannot be made")?;
        if !makes_the_table {
            self.crash(rig, &order, &writer).await?;
        }
        let heir = Order { url: ground.url(HEIR)?, name: HEIR.to_owned(), ..order };
        let ended = outcome(&mut child(rig, &heir)).await?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            bail!("the second child did not finish the work: {} {said}", ended.status);
        }
        ground.write_down(self.scenario, &writer).await?;
        ground.remove().await?;
        History::read(&directory).context("the history cannot be read")
    }

    /// A child that dies at the failpoint, which it must.
    async fn crash(&self, rig: &Rig, order: &Order, writer: &Writer) -> Result<()> {
        let end = end_at(rig, order, self.point, self.time, writer).await?;
        ensure!(end == End::Died, "the first child did not get there");
        Ok(())
    }
}

/// How a child ended that was told to die somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// There, which is written down.
    Died,
    /// It never got there, and came to its end.
    Ended,
}

/// Runs a child that is to die at this failpoint, when it gets there for the so manieth time.
pub(super) async fn end_at(rig: &Rig, order: &Order, point: &str, time: u64, writer: &Writer) -> Result<End> {
    let done = outcome(child(rig, order).env(FAILPOINT, format!("{point}:{time}"))).await?;
    if done.status.success() {
        return Ok(End::Ended);
    }
    let (kind, at) = ("kill".to_owned(), now());
    let fault = Fault { kind, whom: order.name.clone(), from: at, until: at };
    writer.write(&Record::Fault(fault))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(is_crash(done.status), "a child ended by itself: {} {said}", done.status);
    ensure!(said.contains(&format!("failpoint {point}: the process dies here")), "it died elsewhere: {said}");
    Ok(End::Died)
}

/// What is promised of a scenario's table.
pub fn rules(scenario: Scenario) -> Rules {
    let streams = if scenario == Scenario::Stream { vec![TABLE.to_owned()] } else { Vec::new() };
    Rules {
        max_attempts: MAX_ATTEMPTS.into(),
        lease: Micros::try_from(LEASE.as_micros()).unwrap_or(Micros::MAX),
        slack: SLACK,
        streams,
        // A dead event is purged, and what stood behind it goes on.
        blocks: false,
        prompt: vec![SINK.to_owned()],
        audited: vec![TABLE.to_owned()],
        // Not on all databases.
        marked: Vec::new(),
        sinks: Vec::new(),
        servers: Vec::new(),
    }
}

/// Waits for the end of a process.
pub(super) async fn outcome(command: &mut Command) -> Result<Output> {
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    Ok(output.with_context(|| format!("a child took longer than {PATIENCE:?}"))??)
}

/// A child, not started yet.
pub fn child(rig: &Rig, order: &Order) -> Command {
    let mut command = Command::new(&rig.program);
    command.arg(ARGUMENT).args(order.arguments()).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Whether a process ended as one does that dies at a failpoint.
fn is_crash(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    status.signal() == Some(rustix::process::Signal::ABORT.as_raw())
}
