//! The command line. Everything unknown is an error that says what is known.

use anyhow::{Context, Result, bail};

use crate::Versions;
use crate::nightly::Part;
use crate::step::Step;
use crate::suite::plan::Selection;
use crate::test::Wanted;

/// What `cargo xtask --help` prints.
pub(crate) const USAGE: &str = "\
The chores of this workspace.

cargo xtask services up             start private PostgreSQL, MySQL, MariaDB and NATS servers; versions as below
cargo xtask services down [--wipe]  stop them; --wipe removes their data, too
cargo xtask services status         one line per server
cargo xtask test [STEP…] [-- NAME…] run all steps, or the named ones, until one fails; NAMEs are parts of tests' names
      --postgres V  --mysql V  --mariadb V   with servers of these versions
      --sample N                    slow tests run on one database, by the commit; N is what a run has printed
cargo xtask test --all [PART…]      every test on every database and version, in parts that can be interrupted
cargo xtask bench [ARG…]            measure posthaste beside its limits and peers; `bench --help` says more;
                                    with --outbox-postgres that peer takes part in place of obix
cargo xtask torture [ARG…]          break everything around posthaste and check that nothing is lost; `torture --help` says more
cargo xtask docs                    render the book and the documentation into target/site
cargo xtask dist TARGET             build what a release has for this target, into target/dist

Steps, in their order: fmt clippy features build test doctest examples doc deny
Parts, in their order: tests crashes postgres-13 postgres-18 mariadb-11.4 random torture bench

The servers listen on 127.0.0.1 only; their data are in target/services, their URLs and
programs in target/services/services.env. A test run stops the servers it has started.
After Ctrl-C they stay up: `cargo xtask services down` stops them.";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Print the usage.
    Help,
    /// Start the servers.
    Up {
        /// Versions of the servers.
        versions: Versions,
    },
    /// Stop the servers.
    Down {
        /// Remove their data, too.
        wipe: bool,
    },
    /// Tell about the servers.
    Status,
    /// Render the book and the documentation.
    Docs,
    /// Build what a release has.
    Dist {
        /// The target, as the compiler names it.
        target: String,
    },
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
    Test(Wanted),
    /// Run parts of everything; all of them if none is named.
    All {
        /// The named parts.
        parts: Vec<Part>,
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
        ["services", "up", ref options @ ..] => up(options),
        ["services", "down"] => Ok(Request::Down { wipe: false }),
        ["services", "down", "--wipe"] => Ok(Request::Down { wipe: true }),
        ["services", "status"] => Ok(Request::Status),
        ["services", ref other @ ..] => {
            bail!("`services {}` is unknown; known are: up, down [--wipe], status", other.join(" "))
        }
        ["docs"] => Ok(Request::Docs),
        ["dist", target] => Ok(Request::Dist { target: target.to_owned() }),
        ["test", ref names @ ..] => test(names, rest.unwrap_or_default()),
        ref other => {
            bail!(
                "`{}` is unknown; known are: services, test, bench, torture, docs, dist TARGET, --help",
                other.join(" ")
            )
        }
    }
}

fn up(words: &[&str]) -> Result<Request> {
    let mut versions = Versions::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if !version(word, &mut words, &mut versions)? {
            bail!("`services up {word}` is unknown; known are: --postgres V, --mysql V, --mariadb V");
        }
    }
    Ok(Request::Up { versions })
}

/// Reads the version of a server; `false` if the word is no such option.
fn version<'w>(
    word: &str,
    words: &mut impl Iterator<Item = &'w &'w str>,
    versions: &mut Versions,
) -> Result<bool> {
    let place = match word {
        "--postgres" => &mut versions.postgres,
        "--mysql" => &mut versions.mysql,
        "--mariadb" => &mut versions.mariadb,
        _ => return Ok(false),
    };
    let number = words.next().filter(|number| number.starts_with(|c: char| c.is_ascii_digit()));
    *place =
        Some((*number.with_context(|| format!("{word} wants a version, such as 13 or 11.4"))?).to_owned());
    Ok(true)
}

fn test(words: &[&str], names: &[String]) -> Result<Request> {
    if let ["--all", parts @ ..] = words {
        return all(parts, names);
    }
    let mut selection = Selection { names: names.to_vec(), ..Selection::default() };
    let mut versions = Versions::default();
    let mut named = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if version(word, &mut words, &mut versions)? {
            continue;
        }
        if *word == "--sample" {
            let number = words.next().and_then(|number| number.parse().ok());
            selection.sample = Some(number.context("--sample wants a number, as a run prints it")?);
            continue;
        }
        match Step::ALL.into_iter().find(|step| step.name() == *word) {
            Some(step) => named.push(step),
            None => bail!(
                "the step `{word}` is unknown; known are: {}; options are --sample, --postgres, --mysql and --mariadb, \
                 and --all alone",
                Step::ALL.map(Step::name).join(", ")
            ),
        }
    }
    let steps: Vec<Step> =
        Step::ALL.into_iter().filter(|step| named.is_empty() || named.contains(step)).collect();
    if !names.is_empty() && !steps.contains(&Step::Test) {
        bail!("names after `--` are for the step `test`, which is not among the named ones");
    }
    Ok(Request::Test(Wanted { steps, selection, versions, settings: Vec::new() }))
}

fn all(words: &[&str], names: &[String]) -> Result<Request> {
    if !names.is_empty() {
        bail!("`--all` takes parts, not names of tests: leave it out");
    }
    let part = |word: &&str| {
        let known = || Part::ALL.map(Part::name).join(", ");
        let part = Part::ALL.into_iter().find(|part| part.name() == *word);
        part.with_context(|| format!("the part `{word}` is unknown; known are: {}", known()))
    };
    Ok(Request::All { parts: words.iter().map(part).collect::<Result<_>>()? })
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
        assert_eq!(read("services up"), Ok(Request::Up { versions: Versions::default() }));
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
        let sampled = Selection { sample: Some(7), ..Selection::default() };
        let versions = Versions { postgres: Some("13".to_owned()), ..Versions::default() };
        let wanted = |steps: &[Step], selection: &Selection| Wanted {
            steps: steps.to_vec(),
            selection: selection.clone(),
            ..Wanted::default()
        };
        let older = Wanted { versions: versions.clone(), ..wanted(&all, &Selection::default()) };
        let expected = [
            ("test test fmt -- en3_ --help", Request::Test(wanted(&steps, &selection))),
            ("test", Request::Test(wanted(&all, &Selection::default()))),
            ("test --sample 7", Request::Test(wanted(&all, &sampled))),
            ("test --postgres 13", Request::Test(older)),
            ("services up --postgres 13", Request::Up { versions }),
            ("test --all", Request::All { parts: Vec::new() }),
            ("test --all bench tests", Request::All { parts: vec![Part::Bench, Part::Tests] }),
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
            ("services up --wipe", "--postgres V"),
            ("services up --postgres", "wants a version"),
            ("test --all lint", "postgres-13"),
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
        assert!(USAGE.contains(&Part::ALL.map(Part::name).join(" ")));
    }
}
