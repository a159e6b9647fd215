//! What differs between one server and the other; the rest is in [`crate::server`] and [`crate::private`].

pub mod mariadb;
pub mod mysql;
pub mod nats;
pub mod postgres;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::account::Account;
use crate::environment::setting;
use crate::home::Home;

/// The user of a shared server, its password and its database: one word for all three, on every server. The servers listen on
/// the loopback interface only and hold nothing but what tests put there.
pub const WORD: &str = "posthaste";

/// Purpose of a server. It decides its sizes, its durability, and its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Shared by all tests of a workspace; a user with a password.
    Shared,
    /// One test's own: small; a superuser without a password, as in all profiles below.
    Private,
    /// Of a run under fire: many connections.
    Torture,
    /// Of a benchmark: as durable as the server is by default.
    Bench,
}

/// Every profile.
pub const ALL: &[Profile] = &[Profile::Shared, Profile::Private, Profile::Torture, Profile::Bench];

/// Every profile whose servers outlive no loss of power. Processes die in a test, the machine does not.
pub const FAST: &[Profile] = &[Profile::Shared, Profile::Private, Profile::Torture];

/// Settings of a server, each with the profiles that have it.
pub type Settings = &'static [(&'static str, &'static [Profile])];

/// The settings of a profile.
pub fn settings_of(settings: Settings, profile: Profile) -> impl Iterator<Item = &'static str> {
    settings.iter().filter(move |(_, profiles)| profiles.contains(&profile)).map(|(setting, _)| *setting)
}

/// The programs of a server, and the account that they run as.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The program that makes the data.
    pub create: PathBuf,
    /// The program that is the server.
    pub serve: PathBuf,
    /// The account of both.
    pub account: Account,
}

impl Installation {
    /// Variables that tell tests how to run private servers: the programs, the account, and a directory for data.
    pub fn variables(&self, engine: &dyn Engine, home: &Home) -> [(String, String); 4] {
        [
            (engine.variable("CREATE"), self.create.display().to_string()),
            (engine.variable("SERVE"), self.serve.display().to_string()),
            (engine.variable("ACCOUNT"), self.account.to_string()),
            (engine.variable("HOME"), home.0.display().to_string()),
        ]
    }

    /// Reads the variables of [`Self::variables`]: the installation, and the directory for data.
    pub fn from_variables(engine: &dyn Engine) -> Result<(Self, PathBuf)> {
        let value = |what: &str| setting(&engine.variable(what));
        let account = Account::parse(&value("ACCOUNT")?)?;
        let (create, serve) = (value("CREATE")?.into(), value("SERVE")?.into());
        Ok((Self { create, serve, account }, value("HOME")?.into()))
    }

    /// Version of the server: numbers with dots, without what distributions add.
    pub fn version(&self) -> Result<String> {
        let output = Command::new(&self.serve).arg("--version").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", self.serve.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        version_in(&text).map(str::to_owned).with_context(|| format!("no version in {text:?}"))
    }
}

/// The first word that begins with a number, up to where that ends: `16.4` in `postgres (PostgreSQL) 16.4 (Debian 16.4-1)`.
fn version_in(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace().map(|word| word.trim_start_matches('v'));
    let word = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    word.split(|c: char| !c.is_ascii_digit() && c != '.').next()
}

/// A kind of server.
pub trait Engine: Debug + Sync {
    /// Its short name, of its directory and of its service in the compose file.
    fn name(&self) -> &'static str;

    /// The beginning of its environment variables.
    fn prefix(&self) -> &'static str;

    /// The beginning of its URL.
    fn scheme(&self) -> &'static str;

    /// The account for these programs, which [`Self::installed`] has not found.
    fn account(&self) -> Result<Account>;

    /// The programs that this machine has.
    fn installed(&self) -> Result<Installation>;

    /// The command that makes its data in [`Home::unfinished`].
    fn create(&self, installation: &Installation, profile: Profile, home: &Home) -> Result<Command>;

    /// The command that is the server (not one that puts it into the background).
    fn serve(&self, installation: &Installation, profile: Profile, home: &Home, port: u16)
    -> Result<Command>;

    /// The argument of that command by which the process is known to be ours.
    fn argument(&self, home: &Home) -> String;

    /// The file in which the server itself writes the number of its process.
    fn pid_file(&self, home: &Home) -> PathBuf;

    /// Removes what would keep the server from starting although none is running.
    fn clear_stale(&self, home: &Home) -> Result<()>;

    /// The signals that end it: the one that leaves its data clean, and the one on which it dies at once.
    fn signals(&self) -> (&'static str, &'static str);

    /// `true` if the server accepts clients, by the first bytes of its protocol.
    fn is_ready(&self, port: u16) -> bool;

    /// Logs in with the user of a shared server, and makes the database if it has one and that is missing.
    fn login(&self, port: u16) -> Result<()>;

    /// Name of its environment variable for this: `URL`, `SERVE`.
    fn variable(&self, what: &str) -> String {
        format!("{}_{what}", self.prefix())
    }

    /// URL of a shared server.
    fn url(&self, port: u16) -> String {
        format!("{}://{WORD}:{WORD}@127.0.0.1:{port}/{WORD}", self.scheme())
    }

    /// URL of a private server's database, as its superuser.
    fn private_url(&self, port: u16, database: &str) -> String;

    /// The database that every private server has.
    fn first_database(&self) -> &'static str;
}

/// All engines.
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
        let of = |name: &str, url: &str| (format!("POSTHASTE_TEST_{name}_URL"), url.to_owned());
        assert_eq!(
            urls,
            [
                of("POSTGRES", "postgres://posthaste:posthaste@127.0.0.1:5433/posthaste"),
                of("MYSQL", "mysql://posthaste:posthaste@127.0.0.1:5433/posthaste"),
                of("MARIADB", "mysql://posthaste:posthaste@127.0.0.1:5433/posthaste"),
                of("NATS", "nats://posthaste:posthaste@127.0.0.1:5433"),
            ]
        );
        let private = all().map(|engine| engine.private_url(5433, "orders"));
        assert_eq!(
            private,
            [
                "postgres://posthaste@127.0.0.1:5433/orders",
                "mysql://root@127.0.0.1:5433/orders",
                "mysql://root@127.0.0.1:5433/orders",
                "nats://127.0.0.1:5433",
            ]
        );
    }

    #[test]
    fn a_version_is_read_from_each_servers_words() {
        for (text, version) in [
            ("postgres (PostgreSQL) 15.10 (Debian 15.10-0+deb12u1)", Some("15.10")),
            ("postgres (PostgreSQL) 18beta1", Some("18")),
            ("/usr/sbin/mysqld  Ver 9.7.0-1 for Linux on x86_64 ((Debian))", Some("9.7.0")),
            ("mariadbd  Ver 11.4.5-MariaDB for linux-systemd on x86_64 (MariaDB Server)", Some("11.4.5")),
            ("nats-server: v2.9.10", Some("2.9.10")),
            ("", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
    }

    #[test]
    fn a_failing_command_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "cat; echo reason >&2; exit 3"]);
        let error = run(command, "input ").map_err(|error| error.to_string());
        assert_eq!(error, Err("sh failed: input reason".to_owned()));
    }
}
