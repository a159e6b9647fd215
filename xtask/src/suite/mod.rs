//! The step `test`: all tests of the workspace, several programs at once.
//!
//! `cargo test` runs one program after the other, on as many threads as there are processors. Most tests of this project wait:
//! for a lease, for a server, for a relay that has nothing to do. So the programs run beside each other, on more threads than
//! there are processors; [`plan`] says which tests must not.

pub(crate) mod binary;
pub(crate) mod plan;
mod report;

use std::fs::File;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::step::Run;
use binary::Binary;
use plan::{Batch, Pace, Selection};
use report::Report;

/// Threads of the programs whose tests run together: those with the longest lists, and all others.
const THREADS: [(&str, usize); 2] = [("posthaste/main", 8), ("posthaste-cli/main", 4)];
const THREADS_OF_OTHERS: usize = 2;

/// Time between two lines that say what is still running.
const NEWS: Duration = Duration::from_secs(60);

/// Longest time between two results of a program: a test that takes longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A program that runs a batch of tests. It is ended with the run.
struct Running {
    batch: Batch,
    child: Child,
    log: PathBuf,
    begun: Instant,
    /// The results that it has printed, and since when there are no more.
    results: (usize, Instant),
}

impl Running {
    /// `true` if the program has printed no result for too long.
    fn is_stuck(&mut self) -> bool {
        let results = report::count(&self.log);
        if results != self.results.0 {
            self.results = (results, Instant::now());
        }
        self.results.1.elapsed() > PATIENCE
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}

/// Runs the selected tests of these binaries.
pub(crate) fn run(run: &Run<'_>, binaries: &[Binary], selection: &Selection) -> Result<()> {
    let logs = run.layout.target.join("test-logs");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let (mut batches, mut left_out, mut all) = (Vec::new(), 0, Vec::new());
    for binary in binaries {
        let tests = binary.tests(run)?;
        let (of_binary, left) = plan::batches(binary, &tests, selection);
        batches.extend(of_binary);
        left_out += left;
        all.push((binary.name.clone(), tests));
    }
    let unused = plan::unused(&all);
    if !unused.is_empty() {
        bail!("xtask/src/suite/plan.rs names tests that are not there: {}", unused.join(", "));
    }
    if batches.is_empty() {
        bail!("no test has a name with {}", selection.names.join(" or "));
    }
    if left_out > 0 && selection.names.is_empty() {
        println!(
            "sample {}: {left_out} tests run on another database in other samples; `--all` runs them all",
            selection.sample.unwrap_or_default()
        );
    }
    let (quiet, beside): (Vec<Batch>, Vec<Batch>) =
        batches.into_iter().partition(|batch| matches!(batch.pace, Pace::Quiet | Pace::Calm));
    let mut total = Report::default();
    together(run, beside, &logs, &mut total)?;
    for batch in quiet {
        together(run, vec![batch], &logs, &mut total)?;
    }
    // The line that runs of tests are known by.
    println!("{} passed, {} failed, {left_out} skipped", total.passed, total.failed.len());
    if total.failed.is_empty() && total.broken.is_empty() {
        return Ok(());
    }
    bail!("{}", total.complaint())
}

/// Runs these batches beside each other and waits for all.
fn together(run: &Run<'_>, batches: Vec<Batch>, logs: &std::path::Path, total: &mut Report) -> Result<()> {
    let mut running = Vec::new();
    for batch in batches {
        running.push(start(run, batch, logs)?);
    }
    let (mut news, mut looked) = (Instant::now(), Instant::now());
    while !running.is_empty() {
        std::thread::sleep(Duration::from_millis(50));
        let mut still = Vec::new();
        for mut one in running {
            match one.child.try_wait()? {
                Some(status) => total.add(&one.batch, &one.log, one.begun.elapsed(), status)?,
                None => still.push(one),
            }
        }
        running = still;
        if looked.elapsed() > Duration::from_secs(5) {
            looked = Instant::now();
            for one in &mut running {
                if one.is_stuck() {
                    println!("{}: no result for {PATIENCE:?}, so it is ended", one.batch.binary.name);
                    one.child.kill()?;
                }
            }
        }
        if news.elapsed() > NEWS {
            news = Instant::now();
            for one in &running {
                println!("{}", report::news(&one.batch, &one.log));
            }
        }
    }
    Ok(())
}

fn start(run: &Run<'_>, batch: Batch, logs: &std::path::Path) -> Result<Running> {
    let name = format!("{}-{:?}.log", batch.binary.name.replace('/', "-"), batch.pace).to_lowercase();
    let log = logs.join(name);
    let file = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let threads = match batch.pace {
        Pace::Single | Pace::Quiet => 1,
        Pace::Together | Pace::Calm => THREADS
            .iter()
            .find(|(name, _)| *name == batch.binary.name)
            .map_or(THREADS_OF_OTHERS, |(_, threads)| *threads),
    };
    let mut command = batch.binary.command(run);
    command
        .args(&batch.tests)
        .args(["--exact", &format!("--test-threads={threads}")])
        .stdout(file.try_clone()?)
        .stderr(file);
    let child = command.spawn().with_context(|| format!("cannot run {}", batch.binary.file().display()))?;
    let begun = Instant::now();
    Ok(Running { batch, child, log, begun, results: (0, begun) })
}
