//! Reads the output of the test programs: how many tests passed, which failed, and why.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};

use super::plan::Batch;

/// The outcome of several batches.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Number of tests that passed.
    pub(crate) passed: usize,
    /// Names of the tests that failed.
    pub(crate) failed: Vec<String>,
    /// Programs that ended without a result for each of their tests, and why.
    pub(crate) broken: Vec<String>,
}

impl Report {
    /// Adds a batch whose program has ended, and prints its result.
    pub(crate) fn add(
        &mut self,
        batch: &Batch,
        log: &Path,
        taken: Duration,
        status: ExitStatus,
    ) -> Result<()> {
        let bytes = std::fs::read(log).with_context(|| format!("cannot read {}", log.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let (passed, failed) = results(&text);
        let name = name(batch);
        println!("{name}: {passed} of {} passed in {:.1} s", batch.tests.len(), taken.as_secs_f64());
        self.passed += passed;
        let answered = passed + failed.len();
        if answered != batch.tests.len() || (failed.is_empty() && !status.success()) {
            self.broken.push(format!(
                "{name} ended with {status} and results for {answered} of {} tests; its output is in {}",
                batch.tests.len(),
                log.display()
            ));
            println!("{}", last_lines(&text, 60));
            let begun = |test: &&String| !text.contains(&format!("test {test} ... "));
            let without: Vec<&String> = batch.tests.iter().filter(begun).take(20).collect();
            println!("among the tests without a result: {without:?}");
        }
        if !failed.is_empty() {
            println!("{}", failures(&text));
            println!("the whole output is in {}", log.display());
        }
        let of = |test: &String| format!("{}  {test}", batch.binary.name);
        self.failed.extend(failed.iter().map(of));
        Ok(())
    }

    /// What went wrong.
    pub(crate) fn complaint(&self) -> String {
        let mut lines = self.broken.clone();
        if !self.failed.is_empty() {
            lines.push(format!("{} tests failed:\n  {}", self.failed.len(), self.failed.join("\n  ")));
        }
        lines.join("\n")
    }
}

/// The number of results that a program has printed so far.
pub(crate) fn count(log: &Path) -> usize {
    let bytes = std::fs::read(log).unwrap_or_default();
    let (passed, failed) = results(&String::from_utf8_lossy(&bytes));
    passed + failed.len()
}

/// A line about a batch that still runs.
pub(crate) fn news(batch: &Batch, log: &Path) -> String {
    format!("… {}: {} of {} tests done", name(batch), count(log), batch.tests.len())
}

fn name(batch: &Batch) -> String {
    format!("{} ({:?})", batch.binary.name, batch.pace).to_lowercase()
}

/// The number of passed tests and the names of the failed ones. With one thread, what a test prints may stand between its name
/// and its result.
fn results(text: &str) -> (usize, Vec<String>) {
    let (mut passed, mut failed, mut begun) = (0, Vec::new(), None);
    // Behind that line is what the failed tests have printed, which may have results of other programs.
    for line in text.lines().take_while(|line| *line != "failures:") {
        let named = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
        let result = match named {
            Some((name, result)) => {
                begun = Some(name.to_owned());
                result
            }
            None => line,
        };
        match (result, &begun) {
            ("ok", Some(_)) => {
                passed += 1;
                begun = None;
            }
            ("FAILED", Some(name)) => {
                failed.push(name.clone());
                begun = None;
            }
            _ => {}
        }
    }
    (passed, failed)
}

/// What the failed tests have printed.
fn failures(text: &str) -> &str {
    text.find("\nfailures:\n").map_or(text, |at| &text[at..])
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
running 3 tests
test a::b ... ok
test a::c has been running for over 60 seconds
test a::c ... FAILED
test d ... ok

failures:

---- a::c stdout ----
no

failures:
    a::c

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.00s
";

    #[test]
    fn results_are_read_from_the_output() {
        assert_eq!(results(TEXT), (2, vec!["a::c".to_owned()]));
        assert!(failures(TEXT).contains("---- a::c stdout ----\nno"));
        assert_eq!(results("test x ... something\nok\n"), (1, Vec::new()));
    }

    #[test]
    fn a_complaint_names_tests_and_programs() {
        let report =
            Report { passed: 1, failed: vec!["p/main  a::c".to_owned()], broken: vec!["q ended".to_owned()] };
        assert_eq!(report.complaint(), "q ended\n1 tests failed:\n  p/main  a::c");
    }
}
