//! Which tests run, beside what, and which of them only now and then.
//!
//! * **Sampled** tests take long and exist once per database. The default run takes each of them on one database; the
//!   sample number decides on which, so that all of them come round, and a failure is repeated with the same number. With
//!   `--all` they run on every database.
//! * **Quiet** tests compare times with times: nothing else runs beside them.
//! * **Calm** tests watch a process that has nothing to do: they run beside each other and nothing else.
//! * **Single** tests want a server or a machine for themselves and wait for each other inside their program: they get one
//!   thread, beside the others.
//! * All others run together, on more threads than there are processors: most of them wait.

use std::process::{Command, Stdio};

use crate::layout::Layout;
use crate::suite::binary::Binary;

/// The databases of the test matrix, as the names of tests have them.
const DATABASES: [&str; 4] = ["postgres", "mysql", "mariadb", "sqlite"];

/// Tests of which the default run takes one database each: the binary and a part of the test's name.
const SAMPLED: [(&str, &str); 20] = [
    // Relays and servers that die, and leases that must end by themselves.
    ("posthaste/main", "stream::handover::"),
    ("posthaste/main", "stream::order::"),
    ("posthaste/main", "stream::cut::"),
    ("posthaste/main", "stream::r#move::"),
    ("posthaste/main", "stream::stalls::"),
    ("posthaste/main", "parks_its_aggregate"),
    ("posthaste/main", "relay::recovery::"),
    ("posthaste/main", "relay::failures::stream::rt3_a_sink_that_is_gone_longer_than_all_retries"),
    ("posthaste/main", "relay::failures::rt3_a_sink_that_is_gone_longer_than_all_retries"),
    // Producers and several relays that are busy for half a minute.
    ("posthaste/main", "relay::together::"),
    ("posthaste/main", "relay::pipeline::stream::re9_a_poison_event_holds_up_nobody"),
    // 200 000 events each.
    ("posthaste/main", "relay::memory::"),
    // 25 seconds of doing nothing.
    ("posthaste/main", "relay::idle::"),
    // Hundreds of starts of the binary each.
    ("posthaste-cli/main", "secrets::op7_no_secret"),
    ("posthaste-cli/main", "http::hostile::"),
    ("posthaste-cli/main", "injection::"),
    // Servers and processes of their own, for most of a minute each.
    ("posthaste-torture/main", "crash::"),
    ("posthaste-torture/main", "short_run::"),
    ("posthaste-torture/main", "planted_run::"),
    ("posthaste-torture/main", "planted::"),
];

/// Tests beside which nothing else runs.
const QUIET: [(&str, &str); 5] = [
    ("posthaste/main", "stream::stalls::"),
    ("posthaste/main", "parks_its_aggregate"),
    ("posthaste/main", "hands_over_within_a_second"),
    ("posthaste/main", "sm1_other_aggregates_do_not_wait_for_a_slow_one"),
    ("posthaste/main", "postgres::cost::"),
];

/// Tests beside which only tests of the same kind run.
const CALM: [(&str, &str); 1] = [("posthaste/main", "relay::idle::")];

/// Tests that get one thread of their own program.
const SINGLE: [(&str, &str); 7] = [
    ("posthaste/main", "relay::recovery::outage::"),
    ("posthaste/main", "stream::cut::"),
    ("posthaste/main", "stream::r#move::"),
    ("posthaste/main", "doctor::postgres::"),
    ("posthaste/main", "doctor::mysql::"),
    ("posthaste-torture/main", "crash::"),
    ("posthaste-torture/main", "run"),
];

/// Samples have numbers below this one. Any number of databases up to four divides it.
const SAMPLES: u32 = 12;

/// How tests of one program run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pace {
    /// On many threads, beside other programs.
    Together,
    /// On one thread, beside other programs.
    Single,
    /// On one thread, with nothing beside it.
    Quiet,
    /// On many threads, with nothing beside them.
    Calm,
}

/// Tests of one program that run in one process.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The program.
    pub(crate) binary: Binary,
    /// How they run.
    pub(crate) pace: Pace,
    /// Their names.
    pub(crate) tests: Vec<String>,
}

/// Programs whose tests are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Programs {
    /// Every program.
    #[default]
    Every,
    /// This one.
    Only(&'static str),
    /// All others.
    Except(&'static str),
}

/// Which tests are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Sampled tests on every database.
    pub(crate) all: bool,
    /// The number that decides which database a sampled test runs on; that of the commit if there is none.
    pub(crate) sample: Option<u32>,
    /// Parts of names: a test runs if its name has one of them, and none is sampled. Empty for all tests.
    pub(crate) names: Vec<String>,
    /// Programs whose tests are wanted.
    pub(crate) programs: Programs,
}

impl Selection {
    /// The same with the sample of the commit that is checked out, unless a sample was chosen: the number of commits up to it, so
    /// that consecutive commits have consecutive samples. Where that number is not known, the commit's hash decides.
    pub(crate) fn of_commit(self, layout: &Layout) -> Self {
        if self.sample.is_some() {
            return self;
        }
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            let output = command.args(arguments).current_dir(&layout.root).stderr(Stdio::null()).output();
            // A source archive has no commits: it always has the same sample.
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
        };
        let is_whole = git(&["rev-parse", "--is-shallow-repository"]) == "false";
        let count = git(&["rev-list", "--count", "HEAD"]).parse().ok().filter(|_| is_whole);
        let sample: u32 = count.unwrap_or_else(|| hash(&git(&["rev-parse", "HEAD"])));
        Self { sample: Some(sample % SAMPLES), ..self }
    }

    /// `true` if the test is to run.
    pub(crate) fn takes(&self, binary: &str, test: &str, all: &[String]) -> bool {
        let is_wanted = match self.programs {
            Programs::Every => true,
            Programs::Only(program) => program == binary,
            Programs::Except(program) => program != binary,
        };
        if !is_wanted {
            return false;
        }
        if !self.names.is_empty() {
            return self.names.iter().any(|name| test.contains(name));
        }
        self.all || !is_in(&SAMPLED, binary, test) || self.is_in_sample(test, all)
    }

    /// `true` if this is the database of the sample. Tests that differ only in the database are one test; those without
    /// a database, or on one database only, are in every sample.
    fn is_in_sample(&self, test: &str, all: &[String]) -> bool {
        let Some((family, _)) = database(test) else { return true };
        let variants: Vec<&String> =
            all.iter().filter(|other| database(other).is_some_and(|(of, _)| of == family)).collect();
        let turn =
            self.sample.unwrap_or_default().wrapping_add(hash(&family)) as usize % variants.len().max(1);
        variants.get(turn).is_some_and(|variant| *variant == test)
    }
}

/// The entries of the lists that fit no test: a renamed test would run with the others, unnoticed.
pub(crate) fn unused(tests: &[(String, Vec<String>)]) -> Vec<String> {
    let fits = |(binary, part): &(&str, &str)| {
        tests.iter().any(|(of, tests)| of == binary && tests.iter().any(|test| test.contains(part)))
    };
    let entries = SAMPLED.iter().chain(&QUIET).chain(&CALM).chain(&SINGLE);
    entries.filter(|entry| !fits(entry)).map(|(binary, part)| format!("{binary} {part}")).collect()
}

/// Sorts the tests of a program into batches; the number of those that are left out.
pub(crate) fn batches(binary: &Binary, tests: &[String], selection: &Selection) -> (Vec<Batch>, usize) {
    let mut batches: Vec<Batch> = Vec::new();
    let mut left_out = 0;
    for test in tests {
        if !selection.takes(&binary.name, test, tests) {
            left_out += 1;
            continue;
        }
        let pace = pace(&binary.name, test);
        match batches.iter_mut().find(|batch| batch.pace == pace) {
            Some(batch) => batch.tests.push(test.clone()),
            None => batches.push(Batch { binary: binary.clone(), pace, tests: vec![test.clone()] }),
        }
    }
    (batches, left_out)
}

fn pace(binary: &str, test: &str) -> Pace {
    if is_in(&QUIET, binary, test) {
        Pace::Quiet
    } else if is_in(&CALM, binary, test) {
        Pace::Calm
    } else if is_in(&SINGLE, binary, test) {
        Pace::Single
    } else {
        Pace::Together
    }
}

fn is_in(list: &[(&str, &str)], binary: &str, test: &str) -> bool {
    list.iter().any(|(of, part)| *of == binary && test.contains(part))
}

/// The name without the database that stands at its end (`…::mysql`, `…_on_mysql`), and the database.
fn database(test: &str) -> Option<(String, &'static str)> {
    DATABASES.into_iter().find_map(|name| {
        let family = test.strip_suffix(name)?;
        (family.ends_with("::") || family.ends_with("_on_")).then(|| (family.to_owned(), name))
    })
}

/// FNV-1a: the same on every machine.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: &str = "posthaste/main";

    fn family(function: &str) -> Vec<String> {
        DATABASES.map(|database| format!("{function}::{database}")).to_vec()
    }

    #[test]
    fn a_sampled_test_runs_on_one_database_and_comes_round() {
        let tests = [family("relay::memory::a"), family("relay::memory::b")].concat();
        let taken = |sample: u32| {
            let selection = Selection { sample: Some(sample), ..Selection::default() };
            tests.iter().filter(|test| selection.takes(MAIN, test, &tests)).cloned().collect::<Vec<_>>()
        };
        let mut seen = Vec::new();
        for sample in 40..44 {
            let taken = taken(sample);
            assert_eq!(taken.iter().filter(|test| test.contains("::a::")).count(), 1, "{taken:?}");
            assert_eq!(taken.len(), 2, "{taken:?}");
            seen.extend(taken);
        }
        seen.sort();
        let mut all = tests.clone();
        all.sort();
        assert_eq!(seen, all, "four samples have everything");
    }

    #[test]
    fn nothing_is_left_out_of_a_whole_run_or_of_one_that_names_tests() {
        let tests = family("relay::memory::a");
        let all = Selection { all: true, ..Selection::default() };
        assert!(tests.iter().all(|test| all.takes(MAIN, test, &tests)));
        let named = Selection { names: vec!["memory".to_owned()], ..Selection::default() };
        assert!(tests.iter().all(|test| named.takes(MAIN, test, &tests)));
        assert!(!named.takes(MAIN, "relay::wake::x", &tests));
    }

    #[test]
    fn a_test_without_a_database_or_that_is_quick_is_in_every_sample() {
        let tests = ["relay::memory::alone".to_owned(), "relay::wake::x::mysql".to_owned()];
        for sample in 0..8 {
            let selection = Selection { sample: Some(sample), ..Selection::default() };
            assert!(tests.iter().all(|test| selection.takes(MAIN, test, &tests)));
        }
    }

    #[test]
    fn an_entry_that_fits_no_test_is_found() {
        let tests = [(MAIN.to_owned(), vec!["stream::stalls::x".to_owned()])];
        let unused = unused(&tests);
        assert!(unused.contains(&"posthaste/main stream::order::".to_owned()));
        assert!(!unused.contains(&"posthaste/main stream::stalls::".to_owned()));
    }

    #[test]
    fn a_program_has_a_batch_for_each_pace() {
        let binary = Binary { name: MAIN.to_owned(), path: "p".into(), directory: "d".into() };
        let tests = ["a::b", "relay::recovery::outage::x", "postgres::cost::y", "c::d"].map(str::to_owned);
        let (batches, left_out) = batches(&binary, &tests, &Selection::default());
        let found: Vec<_> = batches.iter().map(|batch| (batch.pace, batch.tests.len())).collect();
        assert_eq!(found, [(Pace::Together, 2), (Pace::Single, 1), (Pace::Quiet, 1)]);
        assert_eq!(left_out, 0);
    }
}
