//! What is measured: a file for each question.

mod drain;
mod elsewhere;
mod enqueue;
mod growth;
mod idle;
mod latency;
mod memory;
mod pinned;
mod producers;
mod steady;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::contender::{Class, Contender};
use crate::report::{Measured, Report, number};
use crate::server::{Database, Postgres};

/// One question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub(crate) enum Scenario {
    /// What an event costs the transaction that writes it.
    Enqueue,
    /// How fast a backlog goes out.
    Drain,
    /// How long an event takes from its commit to its handler.
    Latency,
    /// What a relay costs producers at full speed.
    Steady,
    /// How fast a backlog goes out beside what was delivered and kept.
    Growth,
    /// The same while an old transaction holds back cleanup.
    Pinned,
    /// What a relay with nothing to do costs.
    Idle,
    /// What a relay holds in memory.
    Memory,
    /// Enqueue and drain on SQLite.
    Sqlite,
    /// Enqueue and drain on MariaDB.
    MariaDb,
}

impl Scenario {
    /// How it is called in tables and charts.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Drain => "drain",
            Self::Latency => "latency",
            Self::Steady => "steady state",
            Self::Growth => "growth",
            Self::Pinned => "pinned xmin",
            Self::Idle => "idle",
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::MariaDb => "MariaDB",
        }
    }

    /// Measures it.
    pub(crate) async fn run(self, bench: &mut Bench) -> Result<()> {
        match self {
            Self::Enqueue => enqueue::run(bench).await,
            Self::Drain => drain::run(bench).await,
            Self::Latency => latency::run(bench).await,
            Self::Steady => steady::run(bench).await,
            Self::Growth => growth::run(bench).await,
            Self::Pinned => pinned::run(bench).await,
            Self::Idle => idle::run(bench).await,
            Self::Memory => memory::run(bench).await,
            Self::Sqlite => elsewhere::sqlite(bench).await,
            Self::MariaDb => elsewhere::mariadb(bench).await,
        }
    }
}

/// The surroundings of a scenario.
pub(crate) struct Bench {
    pub(crate) server: Postgres,
    pub(crate) contenders: Vec<Box<dyn Contender>>,
    /// Short and once, to see that everything works.
    pub(crate) quick: bool,
    /// The batches and workers that a drain is asked about instead of the usual ones.
    pub(crate) batches: Vec<usize>,
    pub(crate) workers: Vec<usize>,
    pub(crate) runs: usize,
    pub(crate) report: Report,
    /// What could not be measured though it is this project's own.
    pub(crate) failed: Vec<String>,
}

impl Bench {
    /// One of two, by how long it may take.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Those who take part, by number, in another order in each run.
    pub(crate) fn order(&self, scenario: Scenario, run: usize) -> Vec<usize> {
        let order = self.takers(scenario);
        let by = run * order.len() / self.runs.max(1);
        rotated(order, by)
    }

    /// The same of many short rounds: in each, another is the first.
    pub(crate) fn turns(&self, scenario: Scenario, round: usize) -> Vec<usize> {
        rotated(self.takers(scenario), round)
    }

    fn takers(&self, scenario: Scenario) -> Vec<usize> {
        let takes_part = |at: &usize| self.contenders[*at].takes_part(scenario);
        (0..self.contenders.len()).filter(takes_part).collect()
    }

    /// How long somebody's deliveries are waited for. A peer that is slow is not to make a quick run long; what is this
    /// project's own has to come to an end, however slow the machine is.
    pub(crate) fn patience(&self, contender: usize, quick: Duration, full: Duration) -> Duration {
        match self.contenders[contender].class() {
            Class::Peer => self.pick(quick, full),
            Class::Posthaste | Class::Limit => full.max(PATIENCE),
        }
    }

    /// Takes down a value, or that there is none, and why.
    pub(crate) fn note(&mut self, scenario: Scenario, contender: usize, measured: Result<Measured>) {
        match measured {
            Ok(measured) => {
                progress(&format!(
                    "{}, {}: {}: {} {}",
                    scenario.title(),
                    measured.case,
                    self.contenders[contender].name(),
                    number(measured.value),
                    measured.unit
                ));
                self.report.add(scenario, self.contenders[contender].as_ref(), measured);
            }
            Err(error) => {
                let name = self.contenders[contender].name();
                let line = format!("{name}, {}: {error:#}", scenario.title());
                progress(&line);
                if self.contenders[contender].class() != Class::Peer && !self.failed.contains(&line) {
                    self.failed.push(line.clone());
                }
                if !self.report.left_out.contains(&line) {
                    self.report.left_out.push(line);
                }
            }
        }
    }

    /// A new database with this contender's tables and a backlog, as the planner knows it.
    pub(crate) async fn filled(&self, contender: usize, events: u64) -> Result<Database> {
        let database = self.server.create().await?;
        let installed = self.contenders[contender].set_up(&database).await?;
        installed.fill(0, events).await?;
        installed.close().await;
        database.vacuum().await?;
        Ok(database)
    }
}

fn rotated(mut order: Vec<usize>, by: usize) -> Vec<usize> {
    let count = order.len();
    if count > 0 {
        order.rotate_left(by % count);
    }
    order
}

/// How long something that should have ended at once is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One line for who waits.
#[allow(clippy::print_stderr, reason = "a run takes long, and says how far it is")]
pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}
