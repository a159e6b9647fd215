//! What differs between one server and the other; the rest is in [`crate::server`].

pub mod mariadb;
pub mod mysql;
pub mod nats;
pub mod postgres;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::account::Account;
use crate::home::Home;

/// The user, its password and its database: the same word for all three, on every server. The
/// servers listen on the loopback interface only and hold nothing but what tests put there.
pub const WORD: &str = "posthaste";

/// The programs of a server.
#[derive(Debug)]
pub struct Programs {
    /// Makes the data.
    pub create: PathBuf,
    /// Is the server.
    pub serve: PathBuf,
}

/// A kind of server.
pub trait Engine {
    /// Its short name, of its directory and of its service in the compose file.
    fn name(&self) -> &'static str;

    /// The beginning of its environment variables.
    fn prefix(&self) -> &'static str;

    /// The beginning of its URL.
    fn scheme(&self) -> &'static str;

    /// The account it runs as.
    fn account(&self) -> Result<Account>;

    /// Its programs.
    fn programs(&self) -> Result<Programs>;

    /// The command that makes its data in [`Home::unfinished`].
    fn create(&self, account: &Account, home: &Home) -> Result<Command>;

    /// The command that is the server (not one that puts it into the background).
    fn serve(&self, account: &Account, home: &Home, port: u16) -> Result<Command>;

    /// The argument of that command by which the process is known to be ours.
    fn argument(&self, home: &Home) -> String;

    /// The file in which the server itself writes the number of its process.
    fn pid_file(&self, home: &Home) -> PathBuf;

    /// Removes what would keep the server from starting although none is running.
    fn clear_stale(&self, home: &Home) -> Result<()>;

    /// The signals that end it: the one that leaves its data clean, and the one that it obeys even
    /// when that takes too long.
    fn signals(&self) -> (&'static str, &'static str);

    /// Logs in with the user of the tests, and makes the database if it has one and that is missing.
    fn login(&self, port: u16) -> Result<()>;

    /// The environment variable that says this of it.
    fn variable(&self, what: &str) -> String {
        format!("{}_{what}", self.prefix())
    }

    /// The URL for the tests.
    fn url(&self, port: u16) -> String {
        format!("{}://{WORD}:{WORD}@127.0.0.1:{port}/{WORD}", self.scheme())
    }
}

/// All servers.
pub fn all() -> [&'static dyn Engine; 4] {
    [&postgres::Postgres, &mysql::MySql, &mariadb::MariaDb, &nats::Nats]
}

/// The number in the first line of a pid file.
pub fn read_pid(path: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next()?.trim().parse().ok()
}

/// Runs a command with `input`; when it fails, what it wrote is the error.
pub fn run(mut command: Command, input: &str) -> Result<()> {
    use std::io::Write;
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends without reading says why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", format!("{out}{err}").trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urls_are_the_promised_ones() {
        let urls = all().map(|engine| (engine.variable("URL"), engine.url(5433)));
        assert_eq!(
            urls[0],
            (
                "POSTHASTE_TEST_POSTGRES_URL".to_owned(),
                "postgres://posthaste:posthaste@127.0.0.1:5433/posthaste".to_owned()
            )
        );
        assert_eq!(
            urls[1],
            (
                "POSTHASTE_TEST_MYSQL_URL".to_owned(),
                "mysql://posthaste:posthaste@127.0.0.1:5433/posthaste".to_owned()
            )
        );
        assert_eq!(
            urls[2],
            (
                "POSTHASTE_TEST_MARIADB_URL".to_owned(),
                "mysql://posthaste:posthaste@127.0.0.1:5433/posthaste".to_owned()
            )
        );
        assert_eq!(
            urls[3],
            ("POSTHASTE_TEST_NATS_URL".to_owned(), "nats://posthaste:posthaste@127.0.0.1:5433".to_owned())
        );
    }

    #[test]
    fn a_failing_command_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat; echo reason >&2; exit 3"]);
        let error = run(command, "input ").map_err(|error| error.to_string());
        assert_eq!(error, Err("sh failed: input reason".to_owned()));
    }
}
