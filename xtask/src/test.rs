//! `cargo xtask test`: everything that must pass, in one command.
//!
//! * The servers come first, when a step that is to run needs them. A database that cannot be had
//!   fails the run; nothing is ever skipped for want of one.
//! * The first step that fails ends the run, with its name and a non-zero exit code.
//! * A table of the times is printed at the end, also after a failure: a run that gets slow shows
//!   where, and fails once a step takes half as long again as its limit.
//! * Servers that this run has started are stopped again, also after a failure; those that were
//!   up before stay up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Versions;
use crate::envfile::EnvFile;
use crate::layout::Layout;
use crate::services::{self, User};
use crate::step::{Run, Step};
use crate::suite::plan::Selection;

/// Set where steps may take any time.
const UNLIMITED: &str = "POSTHASTE_TEST_UNLIMITED";

/// How long a step took.
struct Time {
    name: &'static str,
    taken: Duration,
    passed: bool,
}

/// A run of steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The steps, in the order they run in.
    pub(crate) steps: Vec<Step>,
    /// Which tests the step `test` runs.
    pub(crate) selection: Selection,
    /// Versions of the servers.
    pub(crate) versions: Versions,
    /// Environment variables for the tests.
    pub(crate) settings: Vec<(&'static str, &'static str)>,
}

/// Runs the steps.
pub(crate) fn run(layout: &Layout, wanted: &Wanted) -> Result<()> {
    let begin = Instant::now();
    let mut times = Vec::new();
    let result = with_services(layout, wanted, &mut times);
    print!("{}", table(&times, begin.elapsed()));
    result
}

fn with_services(layout: &Layout, wanted: &Wanted, times: &mut Vec<Time>) -> Result<()> {
    let selection = wanted.selection.clone().of_commit(layout);
    if !wanted.steps.iter().any(|step| step.needs_services()) {
        return in_order(&wanted.steps, &Run::new(layout, EnvFile::default(), &selection)?, times);
    }
    let user = User::announce(layout)?;
    let mut started = Vec::new();
    let result = timed("services", times, || services::up(layout, &wanted.versions, &mut started))
        .context("without its databases nothing is tested")
        .and_then(|mut env| {
            for (variable, value) in &wanted.settings {
                env.push(variable, value)?;
            }
            in_order(&wanted.steps, &Run::new(layout, env, &selection)?, times)
        });
    let left = user.leave(layout, &started);
    result.and(left)
}

/// Runs one step after the other until one fails.
fn in_order(steps: &[Step], run: &Run<'_>, times: &mut Vec<Time>) -> Result<()> {
    let limited = run.is_default() && std::env::var_os(UNLIMITED).is_none();
    for step in steps {
        let name = step.name();
        println!("\n== {name}");
        timed(name, times, || step.run(run)).with_context(|| format!("the step `{name}` failed"))?;
        if let (true, Some(time)) = (limited, times.last()) {
            in_time(name, time.taken, step.limit())?;
        }
    }
    Ok(())
}

/// An error if a step took half as long again as its limit.
fn in_time(name: &str, taken: Duration, limit: Duration) -> Result<()> {
    if taken > limit * 3 / 2 {
        bail!(
            "the step `{name}` passed, but took {:.0} s; its limit is {:.0} s and half of that more: make it quicker, move \
             its longest tests to `--all`, or set {UNLIMITED}=1 on a slow machine",
            taken.as_secs_f64(),
            limit.as_secs_f64()
        );
    }
    Ok(())
}

/// Does something and notes how long it took, whatever came of it.
fn timed<T>(name: &'static str, times: &mut Vec<Time>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let result = work();
    times.push(Time { name, taken: begin.elapsed(), passed: result.is_ok() });
    result
}

/// The steps that were run, their seconds, and the total.
fn table(times: &[Time], total: Duration) -> String {
    let mut table = String::from("\n");
    for time in times {
        let mark = if time.passed { "" } else { "  FAILED" };
        table += &line(time.name, time.taken, mark);
    }
    table + &line("total", total, "")
}

fn line(name: &str, taken: Duration, mark: &str) -> String {
    format!("{name:<10}{:>8.1} s{mark}\n", taken.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_step_may_take_half_as_long_again_as_its_limit() {
        let limit = Duration::from_secs(100);
        assert!(in_time("test", Duration::from_secs(150), limit).is_ok());
        let error = in_time("test", Duration::from_secs(151), limit).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("took 151 s; its limit is 100 s")));
    }

    #[test]
    fn the_time_of_a_failure_counts_too() {
        let mut times = Vec::new();
        assert!(timed("fmt", &mut times, || Ok(())).is_ok());
        assert!(timed("test", &mut times, || Err::<(), _>(anyhow!("no"))).is_err());
        times[0].taken = Duration::from_millis(1_250);
        times[1].taken = Duration::from_secs(100);
        assert_eq!(
            table(&times, Duration::from_secs(102)),
            "\n\
             fmt            1.2 s\n\
             test         100.0 s  FAILED\n\
             total        102.0 s\n"
        );
    }
}
