//! PostgreSQL: how its data are made, how it is started, and its settings.
//!
//! The tests kill processes and cut connections; they never cut the power. So everything that
//! guards against a loss of power alone is off, and everything else is as in production. In
//! particular `synchronous_commit` stays on, since its order of events is what an outbox is about.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::account::Account;
use crate::engine::{Engine, Programs, WORD, read_pid, run};
use crate::home::Home;
use crate::{process, program};

/// The settings of the server.
const SETTINGS: [&str; 8] = [
    // Nobody outside this machine, and no socket file whose path could be too long.
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    // Tests run in parallel, each with pools of its own.
    "max_connections=300",
    // The operating system outlives a killed server and has its writes: only a loss of power
    // needs these two.
    "fsync=off",
    "full_page_writes=off",
    // Not weakened, and said here so that nobody thinks it was forgotten.
    "synchronous_commit=on",
    // The same on every machine.
    "timezone=UTC",
    "log_timezone=UTC",
];

/// PostgreSQL.
pub struct Postgres;

impl Engine for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn prefix(&self) -> &'static str {
        "POSTHASTE_TEST_POSTGRES"
    }

    fn scheme(&self) -> &'static str {
        "postgres"
    }

    fn account(&self) -> Result<Account> {
        Account::of_service("postgres")?
            .context("PostgreSQL refuses to run as root, and there is no user `postgres`")
    }

    /// The server is beside the very `initdb` that made the data: another version would refuse them.
    fn programs(&self) -> Result<Programs> {
        let create = program::require("initdb")?.canonicalize()?;
        let serve = create.with_file_name("postgres");
        Ok(Programs { create, serve })
    }

    /// The user of the tests is the one that `initdb` makes, so it is a superuser: tests make
    /// databases and roles and read the statistics of others.
    fn create(&self, account: &Account, home: &Home) -> Result<Command> {
        let password = home.0.join("password");
        std::fs::write(&password, WORD)?;
        let mut command = account.command(self.programs()?.create);
        command
            .args(["--username", WORD, "--encoding=UTF8"])
            // Messages in English and strings sorted by their bytes, on every machine.
            .arg("--locale=C")
            // Passwords are checked as in production.
            .arg("--auth=scram-sha-256")
            // As `fsync=off`.
            .arg("--no-sync")
            .arg("--pwfile")
            .arg(password)
            .arg("--pgdata")
            .arg(home.unfinished());
        Ok(command)
    }

    fn serve(&self, account: &Account, home: &Home, port: u16) -> Result<Command> {
        let mut command = account.command(self.programs()?.serve);
        command.arg("-D").arg(home.data());
        command.args(["-p", &port.to_string()]);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        Ok(command)
    }

    fn argument(&self, home: &Home) -> String {
        home.data().display().to_string()
    }

    fn pid_file(&self, home: &Home) -> PathBuf {
        home.data().join("postmaster.pid")
    }

    /// PostgreSQL clears away the file of a dead server itself, unless the number in it now belongs
    /// to another process or to a zombie. It refuses to start, rightly, while a child of the dead
    /// server lives, and a child that computes does not notice that death: it is asked to end.
    fn clear_stale(&self, home: &Home) -> Result<()> {
        for pid in process::living_in(&home.data(), "postgres") {
            process::signal(pid, "TERM");
        }
        let file = self.pid_file(home);
        if read_pid(&file).is_some_and(|pid| process::signal(pid, "0")) {
            std::fs::remove_file(file)?;
        }
        Ok(())
    }

    /// `SIGINT` is the fast shutdown, which does not wait for clients; `SIGQUIT` the immediate one,
    /// which recovers at the next start.
    fn signals(&self) -> (&'static str, &'static str) {
        ("INT", "QUIT")
    }

    fn login(&self, port: u16) -> Result<()> {
        let mut command = Command::new(program::require("psql")?);
        for (key, _) in std::env::vars_os() {
            // The settings of whoever runs this are for other servers.
            if key.to_string_lossy().starts_with("PG") {
                command.env_remove(key);
            }
        }
        command
            .env("PGPASSWORD", WORD)
            .env("PGCONNECT_TIMEOUT", "5")
            .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1"])
            .args(["-p", &port.to_string(), "-U", WORD, "-d", "postgres"]);
        run(
            command,
            &format!(
                "SELECT 'CREATE DATABASE {WORD}' WHERE NOT EXISTS \
                 (SELECT FROM pg_database WHERE datname = '{WORD}') \\gexec\n"
            ),
        )
    }
}
