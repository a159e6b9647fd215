//! Runs under fire; see the library of the same name. `cargo xtask torture` builds and calls it.

#![allow(clippy::print_stdout, reason = "a command-line tool: its output is its purpose")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use posthaste_torture::cluster::guard;
use posthaste_torture::plan::{Database, Plan};
use posthaste_torture::run::{Verdict, judge, planned, run};
use posthaste_torture::{crash, producer, program};
use tokio::signal::unix::{SignalKind, signal};

/// The variable that says where histories go.
const HOME: &str = "POSTHASTE_TORTURE_HOME";

/// Breaks everything around posthaste and checks that no event was lost, invented or reordered.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask torture", bin_name = "cargo xtask torture")]
struct Args {
    /// For how long events are written and things are broken, but for 20 s of calm in every 90
    #[arg(long, default_value = "2", value_parser = minutes, allow_negative_numbers = true)]
    minutes: Duration,
    /// Decides what is broken when; another one at each run if it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// postgres, mysql, mariadb or sqlite
    #[arg(long, default_value = "postgres")]
    database: Database,
    /// How many events are written in a second [default: 160, on SQLite 80]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    events_per_second: Option<u32>,
    /// Keep the history of a run that went well, too
    #[arg(long)]
    keep: bool,
    /// Run nothing: check the history in this directory once more
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["minutes", "seed", "database", "events_per_second", "keep"])]
    check: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match words.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some(guard::ARGUMENT) => {
            guard::stand(std::io::stdin().lock());
            Ok(ExitCode::SUCCESS)
        }
        Some(producer::ARGUMENT) => {
            let orders = PathBuf::from(words.next().context("a producer is given a file")?);
            runtime.block_on(producer::run(&orders)).map(|()| ExitCode::SUCCESS)
        }
        Some(crash::child::ARGUMENT) => {
            let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
            crash::child::run(&words).map(|()| ExitCode::SUCCESS)
        }
        _ => {
            let args = Args::parse();
            // Interrupted, it leaves by the way on which everything that runs is ended.
            runtime.block_on(async {
                let mut terminated = signal(SignalKind::terminate())?;
                tokio::select! {
                    done = torture(&args) => done,
                    _ = tokio::signal::ctrl_c() => Ok(interrupted(130)),
                    _ = terminated.recv() => Ok(interrupted(143)),
                }
            })
        }
    }
}

fn interrupted(code: u8) -> ExitCode {
    println!(
        "interrupted: everything is ended, and nothing is judged; what was written so far stays where it is"
    );
    ExitCode::from(code)
}

/// From a number of minutes.
fn minutes(text: &str) -> Result<Duration, String> {
    let minutes: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if !(0.1..=10_000.0).contains(&minutes) {
        return Err("it is to be from 0.1 to 10000".to_owned());
    }
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

async fn torture(args: &Args) -> Result<ExitCode> {
    if let Some(directory) = &args.check {
        let plan = planned(directory)?;
        let verdict = judge(&plan, directory)?;
        print(&verdict, &plan);
        return Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    // Before anything is started.
    program::posthaste()?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut plan = Plan::new(args.database, seed, args.minutes);
    if let Some(rate) = args.events_per_second {
        plan.events_per_second = rate;
    }
    let home = std::env::var_os(HOME).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = home.join(format!("torture-{seed}-{}", uuid::Uuid::now_v7().simple()));
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    println!("{} with seed {seed}; the history goes to {}", plan.database.name(), directory.display());
    let began = Instant::now();
    let tell = |line: String| println!("[{:>7.1} s] {line}", began.elapsed().as_secs_f64());
    let verdict = run(&plan, &directory, &tell).await.with_context(|| format!("seed {seed}"))?;
    print(&verdict, &plan);
    if !verdict.is_good() {
        return Ok(ExitCode::FAILURE);
    }
    if args.keep {
        println!("the history is in {}: --check reads it once more", directory.display());
    } else {
        std::fs::remove_dir_all(&directory)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Most violations that are shown; the history has them all.
const SHOWN: usize = 40;

fn print(verdict: &Verdict, plan: &Plan) {
    println!("\n{} for {:?}, seed {}", plan.database.name(), plan.length, plan.seed);
    println!("{}", verdict.report);
    for complaint in &verdict.complaints {
        println!("FAILURE: {complaint}");
    }
    for violation in verdict.violations.iter().take(SHOWN) {
        println!("VIOLATION: {violation}");
    }
    if verdict.violations.len() > SHOWN {
        println!("… and {} more", verdict.violations.len() - SHOWN);
    }
    if verdict.is_good() {
        println!("nothing lost, nothing invented, nothing out of order");
    } else {
        println!("failed with seed {}; the history is in {}", plan.seed, verdict.directory.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pr2_a_run_has_a_length() {
        assert_eq!(minutes("0.5"), Ok(Duration::from_secs(30)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "five"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
