//! The test binaries: cargo builds them and says where they are.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::step::Run;

/// Tests of the workspace that cargo builds, with all features.
const BUILD: &str = "test --workspace --all-features --lib --bins --tests --no-run";

/// A program with tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The package and the test target, such as `posthaste/main`; `unit` and `bin-NAME` for the tests inside the sources of its
    /// library and of its programs.
    pub(crate) name: String,
    /// The program.
    pub(crate) path: PathBuf,
    /// The directory of its package, in which cargo runs it.
    pub(crate) directory: PathBuf,
}

/// Builds all test binaries.
pub(crate) fn build(run: &Run<'_>) -> Result<Vec<Binary>> {
    let mut command = run.command(BUILD);
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot run cargo")?;
    let stdout = child.stdout.take().context("cargo has no output")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(stdout).lines() {
        binaries.extend(read(&line?));
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the tests cannot be built: cargo ended with {status}");
    }
    if binaries.is_empty() {
        bail!("cargo named no test binary: its messages have changed");
    }
    binaries.sort_by(|one, other| one.name.cmp(&other.name));
    if let Some(pair) = binaries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        bail!("two test programs are called {}: their output would be in one file", pair[0].name);
    }
    Ok(binaries)
}

/// The test binary that a message of cargo names, if it names one.
///
/// The messages are JSON, a line each; the few fields are read without a parser. Paths have no quotation marks.
fn read(message: &str) -> Option<Binary> {
    if !message.contains("\"reason\":\"compiler-artifact\"") {
        return None;
    }
    // The description of the target has a field of the same name.
    let (_, profile) = message.split_once("\"profile\":{")?;
    if !profile.split('}').next()?.contains("\"test\":true") {
        return None;
    }
    let path = PathBuf::from(field(message, "\"executable\":\"")?);
    let manifest = PathBuf::from(field(message, "\"manifest_path\":\"")?);
    let directory = manifest.parent()?.to_owned();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    let (_, target) = message.split_once("\"target\":{")?;
    let target = match field(target, "\"kind\":[\"")? {
        "test" => field(target, "\"name\":\"")?.to_owned(),
        // A package has one library, and its programs have names.
        "bin" => format!("bin-{}", field(target, "\"name\":\"")?),
        _ => "unit".to_owned(),
    };
    Some(Binary { name: format!("{package}/{target}"), path, directory })
}

fn field<'m>(message: &'m str, before: &str) -> Option<&'m str> {
    let (_, after) = message.split_once(before)?;
    after.split('"').next()
}

impl Binary {
    /// The names of its tests without those that are ignored.
    pub(crate) fn tests(&self, run: &Run<'_>) -> Result<Vec<String>> {
        let ignored = self.list(run, &["--ignored"])?;
        let mut tests = self.list(run, &[])?;
        tests.retain(|test| !ignored.contains(test));
        Ok(tests)
    }

    fn list(&self, run: &Run<'_>, arguments: &[&str]) -> Result<Vec<String>> {
        let mut command = self.command(run);
        let output = command.args(["--list", "--format", "terse"]).args(arguments).output()?;
        if !output.status.success() {
            bail!("{} cannot list its tests: {}", self.name, String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// The program, as cargo would run it.
    pub(crate) fn command(&self, run: &Run<'_>) -> Command {
        let mut command = run.program(&self.path);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory).stdin(Stdio::null());
        command
    }

    /// The file that the program is, for messages.
    pub(crate) fn file(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, is_test: bool) -> String {
        format!(
            "{{\"reason\":\"compiler-artifact\",\"package_id\":\"path+file:///w/crates/shop#0.1.0\",\
             \"manifest_path\":\"/w/crates/shop/Cargo.toml\",\"target\":{{\"kind\":[\"{kind}\"],\"crate_types\":[\"bin\"],\
             \"name\":\"main\",\"src_path\":\"/w/x.rs\",\"test\":true}},\"profile\":{{\"opt_level\":\"0\",\"test\":{is_test}}},\
             \"executable\":\"/w/target/debug/deps/main-1\",\"fresh\":true}}"
        )
    }

    #[test]
    fn a_test_binary_is_read_from_the_message_of_cargo() {
        let binary = read(&message("test", true)).map(|binary| (binary.name, binary.path, binary.directory));
        let path = |path: &str| PathBuf::from(path);
        assert_eq!(
            binary,
            Some(("shop/main".to_owned(), path("/w/target/debug/deps/main-1"), path("/w/crates/shop")))
        );
        assert_eq!(read(&message("lib", true)).map(|binary| binary.name), Some("shop/unit".to_owned()));
        assert_eq!(read(&message("bin", true)).map(|binary| binary.name), Some("shop/bin-main".to_owned()));
        assert_eq!(read(&message("bin", false)), None);
        assert_eq!(read("{\"reason\":\"build-finished\",\"success\":true}"), None);
    }
}
