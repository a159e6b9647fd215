//! The steps of a test run: what each of them runs.
//!
//! They go from the quick to the slow, so that what is cheap to find is found first. All but one
//! take the whole workspace with all features: what is not built here does not work.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::envfile::EnvFile;
use crate::layout::Layout;
use crate::suite::plan::Selection;
use crate::suite::{self, binary};
use crate::{cargo, deny, examples, program};

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The format of the source.
    Fmt,
    /// The lints, of which none is tolerated.
    Clippy,
    /// The library with each database alone, with each sink alone, and with none.
    Features,
    /// The programs of the tests.
    Build,
    /// All tests except those in the documentation.
    Test,
    /// The tests in the documentation.
    Doctest,
    /// The examples of the library, each of which must end well.
    Examples,
    /// The documentation, without a warning.
    Doc,
    /// The licences and sources of the dependencies, and what is known against them.
    Deny,
}

/// What the tests of the documentation's programs in other languages need; the tests ask the same.
const INTERPRETERS: [(&[&str], &str); 2] = [
    (&["python3", "-c", "import venv, ensurepip"], "the Python program of the documentation"),
    (&["npm", "--version"], "the Node program of the documentation"),
];

/// The surroundings of a step.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    /// The directories.
    pub(crate) layout: &'a Layout,
    /// The URLs of the servers.
    env: EnvFile,
    /// The `PATH` with the clients of the servers, which the tests call.
    path: OsString,
    /// Which tests are wanted.
    selection: &'a Selection,
}

impl Step {
    /// All steps, in their order.
    pub(crate) const ALL: [Self; 9] = [
        Self::Fmt,
        Self::Clippy,
        Self::Features,
        Self::Build,
        Self::Test,
        Self::Doctest,
        Self::Examples,
        Self::Doc,
        Self::Deny,
    ];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Features => "features",
            Self::Build => "build",
            Self::Test => "test",
            Self::Doctest => "doctest",
            Self::Examples => "examples",
            Self::Doc => "doc",
            Self::Deny => "deny",
        }
    }

    /// Whether the step runs code that talks to the servers.
    pub(crate) fn needs_services(self) -> bool {
        matches!(self, Self::Test | Self::Doctest | Self::Examples)
    }

    /// Time that the step takes on two processors at most, from a fresh clone. A run fails when a step takes half as long
    /// again: all later changes would pay for it.
    pub(crate) fn limit(self) -> Duration {
        Duration::from_secs(match self {
            Self::Fmt => 10,
            Self::Clippy | Self::Deny => 300,
            Self::Features => 240,
            Self::Build | Self::Test => 600,
            Self::Doctest | Self::Doc => 240,
            Self::Examples => 120,
        })
    }

    /// Runs the step; an error when it does not pass.
    pub(crate) fn run(self, run: &Run<'_>) -> Result<()> {
        match self {
            Self::Fmt => {
                run.cargo("fmt --all --check")?;
                run.cargo("fmt --manifest-path=crates/posthaste-bench/Cargo.toml --check")
            }
            Self::Clippy => run.cargo("clippy --workspace --all-targets --all-features -- -D warnings"),
            Self::Features => {
                ["postgres", "mysql", "sqlite", "http", "nats", ""].into_iter().try_for_each(|feature| {
                    let clippy = "clippy -p posthaste --lib --no-default-features";
                    run.cargo(&format!("{clippy} --features={feature} -- -D warnings"))
                })
            }
            Self::Build => binary::build(run).map(drop),
            Self::Test => run.tests(),
            Self::Doctest => run.cargo("test --workspace --all-features --doc"),
            Self::Examples => examples::run(run),
            Self::Doc => {
                let mut command = run.command("doc --workspace --all-features --no-deps");
                command.env("RUSTDOCFLAGS", "-D warnings");
                finish(command)
            }
            Self::Deny => deny::run(run),
        }
    }
}

impl<'a> Run<'a> {
    /// The surroundings with these URLs, for these tests.
    pub(crate) fn new(layout: &'a Layout, env: EnvFile, selection: &'a Selection) -> Result<Self> {
        let path = program::path()?;
        Ok(Self { layout, env, path, selection })
    }

    /// `true` if the tests are those of the default run.
    pub(crate) fn is_default(&self) -> bool {
        !self.selection.all && self.selection.names.is_empty()
    }

    /// A cargo command in the workspace, with the URLs of the servers in its environment.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = cargo::command();
        self.surround(&mut command);
        command.args(arguments.split_whitespace());
        command
    }

    /// Any program in the workspace, with the same environment.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.surround(&mut command);
        command
    }

    fn surround(&self, command: &mut Command) {
        command.envs(self.env.iter()).env("PATH", &self.path).current_dir(&self.layout.root);
    }

    /// Runs a cargo command.
    pub(crate) fn cargo(&self, arguments: &str) -> Result<()> {
        finish(self.command(arguments))
    }

    /// Whether a command succeeds.
    fn answers(&self, words: &[&str]) -> bool {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("PATH", &self.path).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn tests(&self) -> Result<()> {
        for (words, what) in INTERPRETERS {
            if !self.answers(words) {
                println!("NOT TESTED: `{}` fails on this machine, so {what} is not tried", words.join(" "));
            }
        }
        suite::run(self, &binary::build(self)?, self.selection)
    }
}

/// Shows a command, runs it, and fails when it fails.
pub(crate) fn finish(mut command: Command) -> Result<()> {
    let shown = show(&command);
    println!("$ {shown}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// A command as one would type it.
fn show(command: &Command) -> String {
    let mut words = vec!["cargo".to_owned()];
    words.extend(command.get_args().map(|word| {
        let word = word.to_string_lossy();
        if word.contains(|c: char| c.is_whitespace() || "'\"()&|*".contains(c)) {
            format!("'{}'", word.replace('\'', r"'\''"))
        } else {
            word.into_owned()
        }
    }));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/some/where/cargo");
        command.args(["nextest", "run", "-E", "test(it's)"]);
        assert_eq!(show(&command), r"cargo nextest run -E 'test(it'\''s)'");
    }

    #[test]
    fn only_code_that_runs_needs_servers() {
        let needing: Vec<_> =
            Step::ALL.into_iter().filter(|step| step.needs_services()).map(Step::name).collect();
        assert_eq!(needing, ["test", "doctest", "examples"]);
    }
}
