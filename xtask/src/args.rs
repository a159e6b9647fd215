//! The command line. Everything unknown is an error that says what is known.

use anyhow::{Context, Result, bail};

use crate::step::Step;
use crate::suite::plan::Selection;

/// What `cargo xtask --help` prints.
pub(crate) const USAGE: &str = "\
The chores of this workspace.

cargo xtask services up             start private PostgreSQL, MariaDB and NATS servers
cargo xtask services down [--wipe]  stop them; --wipe removes their data, too
cargo xtask services status         one line per server
cargo xtask test [STEP…] [-- NAME…] run all steps, or the named ones, until one fails; NAMEs are parts of tests' names
      --all                         every test on every database; else slow tests run on one of them, by the commit
      --sample N                    the sample of another commit, whose number its run has printed
cargo xtask bench [ARG…]            measure posthaste beside its limits and peers; `bench --help` says more;
                                    with --outbox-postgres that peer takes part in place of obix
cargo xtask torture [ARG…]          break everything around posthaste and check that nothing is lost; `torture --help` says more

Steps, in their order: fmt clippy features build test doctest examples doc deny

The servers listen on 127.0.0.1 only; their data are in target/services, their URLs and
programs in target/services/services.env. A test run stops the servers it has started.
After Ctrl-C they stay up: `cargo xtask services down` stops them.";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Print the usage.
    Help,
    /// Start the servers.
    Up,
    /// Stop the servers.
    Down {
        /// Remove their data, too.
        wipe: bool,
    },
    /// Tell about the servers.
    Status,
    /// Measure.
    Bench {
        /// Arguments for the benchmarks, which say themselves what they know.
        arguments: Vec<String>,
    },
    /// Break everything around posthaste.
    Torture {
        /// Arguments for the run, which says itself what it knows.
        arguments: Vec<String>,
    },
    /// Run steps.
    Test {
        /// Which ones, in the order they run in.
        steps: Vec<Step>,
        /// Which tests.
        selection: Selection,
    },
}

/// Reads the arguments after the name of the program.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Request> {
    let mut arguments: Vec<String> = arguments.into_iter().collect();
    if arguments.first().is_some_and(|word| word == "bench") {
        arguments.remove(0);
        return Ok(Request::Bench { arguments });
    }
    if arguments.first().is_some_and(|word| word == "torture") {
        arguments.remove(0);
        return Ok(Request::Torture { arguments });
    }
    let (own, rest) = match arguments.iter().position(|argument| argument == "--") {
        Some(at) => (&arguments[..at], Some(&arguments[at + 1..])),
        None => (&arguments[..], None),
    };
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    if own.is_empty() || own.iter().any(|word| matches!(*word, "-h" | "--help")) {
        return Ok(Request::Help);
    }
    if rest.is_some() && own[0] != "test" {
        bail!("`--` is for `test` only");
    }
    match own[..] {
        ["help"] => Ok(Request::Help),
        ["services", "up"] => Ok(Request::Up),
        ["services", "down"] => Ok(Request::Down { wipe: false }),
        ["services", "down", "--wipe"] => Ok(Request::Down { wipe: true }),
        ["services", "status"] => Ok(Request::Status),
        ["services", ref other @ ..] => {
            bail!("`services {}` is unknown; known are: up, down [--wipe], status", other.join(" "))
        }
        ["test", ref names @ ..] => test(names, rest.unwrap_or_default()),
        ref other => {
            bail!("`{}` is unknown; known are: services, test, bench, torture, --help", other.join(" "))
        }
    }
}

fn test(words: &[&str], names: &[String]) -> Result<Request> {
    let mut selection = Selection { names: names.to_vec(), ..Selection::default() };
    let mut named = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--all" => selection.all = true,
            "--sample" => {
                let number = words.next().and_then(|number| number.parse().ok());
                selection.sample = Some(number.context("--sample wants a number, as a run prints it")?);
            }
            name => match Step::ALL.into_iter().find(|step| step.name() == name) {
                Some(step) => named.push(step),
                None => {
                    let known = Step::ALL.map(Step::name).join(", ");
                    bail!(
                        "the step `{name}` is unknown; known are: {known}, and the options --all and --sample N"
                    );
                }
            },
        }
    }
    let steps: Vec<Step> =
        Step::ALL.into_iter().filter(|step| named.is_empty() || named.contains(step)).collect();
    if !names.is_empty() && !steps.contains(&Step::Test) {
        bail!("names after `--` are for the step `test`, which is not among the named ones");
    }
    Ok(Request::Test { steps, selection })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(str::to_owned)).map_err(|error| error.to_string())
    }

    #[test]
    fn help_is_the_answer_to_nothing() {
        for line in ["", "--help", "-h", "help", "services --help", "test -h"] {
            assert_eq!(read(line), Ok(Request::Help), "{line}");
        }
    }

    #[test]
    fn services_have_three_verbs() {
        assert_eq!(read("services up"), Ok(Request::Up));
        assert_eq!(read("services status"), Ok(Request::Status));
        assert_eq!(read("services down"), Ok(Request::Down { wipe: false }));
        let wipe = read("services down --wipe");
        assert_eq!(wipe, Ok(Request::Down { wipe: true }));
    }

    #[test]
    fn what_a_run_under_fire_is_told_is_its_own_to_understand() {
        let arguments = ["--minutes", "2", "--help"].map(str::to_owned).to_vec();
        assert_eq!(read("torture --minutes 2 --help"), Ok(Request::Torture { arguments }));
    }

    #[test]
    fn what_the_benchmarks_are_told_is_theirs_to_understand() {
        let arguments = ["--quick", "drain", "--help"].map(str::to_owned).to_vec();
        assert_eq!(read("bench --quick drain --help"), Ok(Request::Bench { arguments }));
        assert_eq!(read("bench"), Ok(Request::Bench { arguments: Vec::new() }));
    }

    #[test]
    fn steps_run_in_their_order_whatever_the_order_of_their_names() {
        let steps = vec![Step::Fmt, Step::Test];
        let names = vec!["en3_".to_owned(), "--help".to_owned()];
        let all = Step::ALL.to_vec();
        let selection = Selection { names, ..Selection::default() };
        let whole = Selection { all: true, sample: Some(7), names: Vec::new() };
        let expected = [
            ("test test fmt -- en3_ --help", Request::Test { steps, selection }),
            ("test", Request::Test { steps: all.clone(), selection: Selection::default() }),
            ("test --all --sample 7", Request::Test { steps: all, selection: whole }),
        ];
        for (line, request) in expected {
            assert_eq!(read(line), Ok(request), "{line}");
        }
    }

    #[test]
    fn an_error_says_what_is_known() {
        for (line, known) in [
            ("tset", "services, test"),
            ("services", "up, down [--wipe], status"),
            ("services up --wipe", "up, down [--wipe], status"),
            ("test lint", "fmt, clippy, features, build, test"),
            ("test fmt -- x", "the step `test`"),
            ("services up -- x", "`test` only"),
            ("test --sample", "wants a number"),
        ] {
            let error = read(line).err().unwrap_or_default();
            assert!(error.contains(known), "{line}: {error}");
        }
    }

    #[test]
    fn the_usage_names_every_step_in_order() {
        assert!(USAGE.contains(&Step::ALL.map(Step::name).join(" ")));
    }
}
