//! posthaste beside its limits and its peers, in one run on one machine: `cargo xtask bench`.

#![allow(clippy::print_stdout, reason = "a command-line tool: its output is its purpose")]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed"))]

mod child;
mod contender;
mod machine;
mod meter;
mod report;
mod sample;
mod scenario;
mod seen;
mod server;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use contender::{Class, Contender};
use report::Report;
use scenario::{Bench, Scenario};
use server::Postgres;

/// posthaste beside its limits and its peers.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Arguments {
    /// What to measure; everything unless something is named.
    scenarios: Vec<Scenario>,
    /// Short and once, to see that everything works: about four minutes.
    #[arg(long)]
    quick: bool,
    /// Only the contender of this name, or all whose names hold it; more than once for several.
    #[arg(long = "contender", value_name = "NAME")]
    contenders: Vec<String>,
    /// Of the drain, with batches of this size instead of the usual ones; more than once for several.
    #[arg(long = "batch", value_name = "EVENTS")]
    batches: Vec<usize>,
    /// Of the drain, with so many workers instead of the usual numbers; more than once for several.
    #[arg(long)]
    workers: Vec<usize>,
    /// How often everything is measured; 3, or 1 if it is to be quick.
    #[arg(long)]
    runs: Option<usize>,
    /// Writes all figures to this file, too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a chart of each scenario to this directory, and the tables to `figures.txt` there.
    #[arg(long, value_name = "DIRECTORY")]
    charts: Option<PathBuf>,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == child::COMMAND) {
        println!("{}", runtime.block_on(child::run(&words[1..]))?);
        return Ok(());
    }
    let arguments = Arguments::parse();
    runtime.block_on(async {
        let mut ended = signal(SignalKind::terminate())?;
        tokio::select! {
            done = run(arguments) => done,
            // The servers end with what was begun, and their data with them.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = ended.recv() => bail!("ended"),
        }
    })
}

async fn run(arguments: Arguments) -> Result<()> {
    let contenders = named(&arguments.contenders)?;
    let names: Vec<&'static str> = contenders.iter().map(|one| one.name()).collect();
    let server = Postgres::start()?;
    let mut versions = vec![server.version().await?];
    versions.extend(contenders.iter().filter(|one| one.class() != Class::Limit).map(|one| one.version()));
    versions.dedup();
    let runs = arguments.runs.unwrap_or(if arguments.quick { 1 } else { 3 });
    let report = Report {
        command: command(std::env::args().skip(1)),
        date: machine::date()?,
        machine: machine::describe(),
        versions,
        runs,
        figures: Vec::new(),
        left_out: contender::LEFT_OUT.iter().map(|(name, why)| format!("{name}: {why}")).collect(),
    };
    let quick = arguments.quick;
    let (batches, workers) = (arguments.batches, arguments.workers);
    let mut bench = Bench { server, contenders, quick, batches, workers, runs, report, failed: Vec::new() };
    let all = Scenario::value_variants();
    let scenarios = if arguments.scenarios.is_empty() { all } else { &arguments.scenarios };
    for scenario in scenarios {
        scenario.run(&mut bench).await.with_context(|| scenario.title())?;
    }
    let Bench { report, failed, .. } = bench;
    let text = report::text(&report, &names);
    println!("{text}");
    if let Some(file) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(directory) = &arguments.charts {
        std::fs::create_dir_all(directory)?;
        std::fs::write(directory.join("figures.txt"), text)?;
        for (file, chart) in report::chart::charts(&report, &names) {
            let file = directory.join(file);
            std::fs::write(&file, chart).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    // A peer that fails is left out, and that is all that can be done about it here.
    if !failed.is_empty() {
        bail!("not everything of posthaste and its limits could be measured: {}", failed.join("; "));
    }
    Ok(())
}

/// All, or those that are named.
fn named(names: &[String]) -> Result<Vec<Box<dyn Contender>>> {
    let mut all = contender::all();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|one| one.name().contains(*name))) {
        let known: Vec<&str> = all.iter().map(|one| one.name()).collect();
        bail!("the contender `{unknown}` is unknown; known are: {}", known.join("; "));
    }
    let known: Vec<&str> = all.iter().map(|one| one.name()).collect();
    let meant = |name: &String, one: &str| {
        if known.contains(&name.as_str()) { one == name } else { one.contains(name) }
    };
    all.retain(|one| names.is_empty() || names.iter().any(|name| meant(name, one.name())));
    Ok(all)
}

/// What was asked for, as one would ask again; without where the figures go to.
fn command(words: impl Iterator<Item = String>) -> String {
    let mut command = "cargo xtask bench".to_owned();
    let mut words = words;
    while let Some(word) = words.next() {
        let goes_to = ["--json", "--charts"];
        if goes_to.contains(&word.as_str()) {
            words.next();
        } else if !goes_to.iter().any(|name| word.starts_with(&format!("{name}="))) {
            command.push(' ');
            let quoted = if word.contains(' ') { format!("'{word}'") } else { word };
            command.push_str(&quoted);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_where_its_figures_go() {
        let words = "--quick drain --json x.json --charts=y --runs 3";
        let told = command(words.split(' ').map(str::to_owned).chain(["limit lease".to_owned()]));
        assert_eq!(told, "cargo xtask bench --quick drain --runs 3 'limit lease'");
    }

    #[test]
    fn who_is_unknown_is_named_with_those_who_are_known() {
        let error = named(&["no such".to_owned()]).err().map(|error| error.to_string()).unwrap();
        assert!(error.contains("`no such`") && error.contains("posthaste stream"), "{error}");
        let streams = named(&["stream".to_owned()]).unwrap();
        assert!(streams.len() > 1 && streams.iter().all(|one| one.name().contains("stream")));
        let pgmq = named(&["pgmq".to_owned()]).unwrap();
        assert_eq!(pgmq.iter().map(|one| one.name()).collect::<Vec<_>>(), ["pgmq"]);
    }
}
