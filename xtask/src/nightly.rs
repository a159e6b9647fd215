//! `cargo xtask test --all`: every test on every database and version, in parts of less than an hour.
//!
//! A part that has passed is noted with its commit, so that a run that was interrupted goes on where it was. A tree with
//! uncommitted changes has no notes.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::layout::Layout;
use crate::step::Step;
use crate::suite::plan::{Programs, Selection};
use crate::test::{self, Wanted};
use crate::{Versions, bench, cargo, torture};

/// Longest time of a part.
const LIMIT: Duration = Duration::from_secs(3600);

/// Databases that the torture runs on, and the minutes of each run.
const TORTURE: [&str; 4] = ["postgres", "mysql", "mariadb", "sqlite"];
const TORTURE_MINUTES: &str = "5";

/// The program whose tests crash processes at every step.
const CRASHES: &str = "posthaste-torture/main";

/// A part of the whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All steps, with every test except the crashes.
    Tests,
    /// Crashes at every failpoint, planted bugs and short runs under fire, on every database.
    Crashes,
    /// The tests of PostgreSQL on its oldest supported version.
    Postgres13,
    /// The tests of PostgreSQL on its newest supported version.
    Postgres18,
    /// The tests of MariaDB on the release with long support after the default one.
    MariaDb114,
    /// Arbitrary inputs and random operations, for longer.
    Random,
    /// Everything around posthaste is broken for some minutes, on each database.
    Torture,
    /// The benchmarks, briefly: they have to work, not to be fast.
    Bench,
}

impl Part {
    /// All parts, in their order.
    pub(crate) const ALL: [Self; 8] = [
        Self::Tests,
        Self::Crashes,
        Self::Postgres13,
        Self::Postgres18,
        Self::MariaDb114,
        Self::Random,
        Self::Torture,
        Self::Bench,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tests => "tests",
            Self::Crashes => "crashes",
            Self::Postgres13 => "postgres-13",
            Self::Postgres18 => "postgres-18",
            Self::MariaDb114 => "mariadb-11.4",
            Self::Random => "random",
            Self::Torture => "torture",
            Self::Bench => "bench",
        }
    }

    fn run(self, layout: &Layout) -> Result<()> {
        let every = || Selection { all: true, ..Selection::default() };
        let of = |version: &str| Some(version.to_owned());
        let on = |database: &str, versions: Versions| Wanted {
            steps: vec![Step::Build, Step::Test],
            selection: Selection { names: vec![database.to_owned()], ..every() },
            versions,
            ..Wanted::default()
        };
        match self {
            Self::Tests => {
                let selection = Selection { programs: Programs::Except(CRASHES), ..every() };
                test::run(layout, &Wanted { steps: Step::ALL.to_vec(), selection, ..Wanted::default() })
            }
            Self::Crashes => {
                let selection = Selection { programs: Programs::Only(CRASHES), ..every() };
                let steps = vec![Step::Build, Step::Test];
                test::run(layout, &Wanted { steps, selection, ..Wanted::default() })
            }
            Self::Postgres13 => {
                test::run(layout, &on("postgres", Versions { postgres: of("13"), ..Versions::default() }))
            }
            Self::Postgres18 => {
                test::run(layout, &on("postgres", Versions { postgres: of("18"), ..Versions::default() }))
            }
            Self::MariaDb114 => {
                test::run(layout, &on("mariadb", Versions { mariadb: of("11.4"), ..Versions::default() }))
            }
            Self::Random => {
                let names = ["pr1_", "fuzz", "edges", "hostile"].map(str::to_owned).to_vec();
                let selection = Selection { names, ..every() };
                let settings = vec![("PROPTEST_CASES", "600"), ("POSTHASTE_FUZZ_SECONDS", "30")];
                let steps = vec![Step::Build, Step::Test];
                test::run(layout, &Wanted { steps, selection, settings, ..Wanted::default() })
            }
            Self::Torture => TORTURE.iter().try_for_each(|database| {
                let arguments = ["--minutes", TORTURE_MINUTES, "--database", database];
                torture::run(layout, &arguments.map(str::to_owned))
            }),
            Self::Bench => {
                bench::run(layout, &["--quick".to_owned()])?;
                let mut tests = cargo::command();
                tests
                    .args(["test", "--quiet", "--release", "--locked", "--manifest-path"])
                    .arg(layout.root.join("crates/posthaste-bench/Cargo.toml"))
                    .arg("--target-dir")
                    .arg(layout.target.join("bench"));
                if !tests.status().context("cannot run cargo")?.success() {
                    bail!("the tests of the benchmarks failed");
                }
                Ok(())
            }
        }
    }
}

/// Runs these parts, or all of them without those that have passed on this commit.
pub(crate) fn run(layout: &Layout, parts: &[Part]) -> Result<()> {
    let commit = clean_commit(layout);
    let notes = Notes { path: layout.target.join("nightly.passed"), commit };
    let wanted: Vec<Part> = if parts.is_empty() {
        let passed = notes.passed();
        let (skipped, wanted): (Vec<Part>, Vec<Part>) =
            Part::ALL.into_iter().partition(|part| passed.contains(&part.name().to_owned()));
        for part in skipped {
            println!("{} has passed on this commit; `--all {0}` runs it again", part.name());
        }
        wanted
    } else {
        parts.to_vec()
    };
    let mut failed = Vec::new();
    for part in wanted {
        println!("\n=== {}", part.name());
        let begin = Instant::now();
        let mut result = part.run(layout);
        let taken = begin.elapsed();
        if result.is_ok() && taken > LIMIT {
            result = Err(anyhow!("it passed, but took longer than an hour: divide it"));
        }
        match result {
            Ok(()) => {
                println!("=== {} passed in {:.0} s", part.name(), taken.as_secs_f64());
                notes.add(part)?;
            }
            Err(error) => {
                println!("=== {} failed after {:.0} s: {error:#}", part.name(), taken.as_secs_f64());
                failed.push(part.name());
            }
        }
    }
    if !failed.is_empty() {
        bail!("parts that failed: {}", failed.join(", "));
    }
    Ok(())
}

/// The commit that is checked out, unless the tree has changes.
fn clean_commit(layout: &Layout) -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        let output = command.args(arguments).current_dir(&layout.root).stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    git(&["status", "--porcelain"]).filter(String::is_empty)?;
    git(&["rev-parse", "HEAD"])
}

/// The parts that have passed, a line each with the commit.
struct Notes {
    path: std::path::PathBuf,
    commit: Option<String>,
}

impl Notes {
    fn passed(&self) -> Vec<String> {
        let Some(commit) = &self.commit else { return Vec::new() };
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let of_commit = |line: &str| Some(line.strip_prefix(commit)?.trim().to_owned());
        text.lines().filter_map(of_commit).collect()
    }

    fn add(&self, part: Part) -> Result<()> {
        let Some(commit) = &self.commit else { return Ok(()) };
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        let mut file = file.with_context(|| format!("cannot write {}", self.path.display()))?;
        writeln!(file, "{commit} {}", part.name()).context("cannot note the part")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_noted_by_commit() -> Result<()> {
        let path = std::env::temp_dir().join(format!("xtask-nightly-{}", std::process::id()));
        let notes = |commit: Option<&str>| Notes { path: path.clone(), commit: commit.map(str::to_owned) };
        notes(Some("a1")).add(Part::Tests)?;
        notes(Some("b2")).add(Part::Bench)?;
        notes(Some("a1")).add(Part::Postgres13)?;
        assert_eq!(notes(Some("a1")).passed(), ["tests", "postgres-13"]);
        assert_eq!(notes(Some("c3")).passed(), [""; 0]);
        assert_eq!(notes(None).passed(), [""; 0]);
        std::fs::remove_file(path)?;
        Ok(())
    }
}
