//! PostgreSQL: how its data are made, how it is started, and its settings.
//!
//! The tests kill processes and cut connections; they never cut the power. So everything that
//! guards against a loss of power alone is off, and everything else is as in production. In
//! particular `synchronous_commit` stays on, since its order of events is what an outbox is about.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::account::Account;
use crate::engine::Profile::{Bench, Private, Shared, Torture};
use crate::engine::{ALL, Engine, FAST, Installation, Profile, Settings, WORD, read_pid, run, settings_of};
use crate::home::Home;
use crate::{process, program};

const SETTINGS: Settings = &[
    // Reachable from this machine only, and no socket file whose path could be too long.
    ("listen_addresses=127.0.0.1", ALL),
    ("unix_socket_directories=", ALL),
    // Shared: tests run in parallel, each with pools of its own. Torture: relays have connections for each table.
    ("max_connections=300", &[Shared]),
    ("max_connections=100", &[Private]),
    ("max_connections=400", &[Torture]),
    ("max_connections=200", &[Bench]),
    ("shared_buffers=16MB", &[Private]),
    ("shared_buffers=64MB", &[Torture]),
    // The operating system outlives a killed server and has its writes: only a loss of power
    // needs these two.
    ("fsync=off", FAST),
    ("full_page_writes=off", FAST),
    // Not weakened, and said here so that it does not look forgotten.
    ("synchronous_commit=on", FAST),
    // The same on every machine.
    ("timezone=UTC", ALL),
    ("log_timezone=UTC", ALL),
];

/// PostgreSQL.
#[derive(Debug)]
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
    fn installed(&self) -> Result<Installation> {
        let create = program::require("initdb")?.canonicalize()?;
        let serve = create.with_file_name("postgres");
        Ok(Installation { create, serve, account: self.account()? })
    }

    /// The user of the tests is the one that `initdb` makes, so it is a superuser: tests make
    /// databases and roles and read the statistics of others.
    fn create(&self, installation: &Installation, profile: Profile, home: &Home) -> Result<Command> {
        let mut command = installation.account.command(&installation.create);
        command
            .args(["--username", WORD, "--encoding=UTF8"])
            // Messages in English and strings sorted by their bytes, on every machine.
            .arg("--locale=C")
            // As `fsync=off`.
            .arg("--no-sync")
            .arg("--pgdata")
            .arg(home.unfinished());
        if profile == Shared {
            let password = home.0.join("password");
            std::fs::write(&password, WORD)?;
            // Passwords are checked as in production.
            command.arg("--auth=scram-sha-256").arg("--pwfile").arg(password);
        } else {
            command.arg("--auth=trust");
        }
        Ok(command)
    }

    fn serve(
        &self,
        installation: &Installation,
        profile: Profile,
        home: &Home,
        port: u16,
    ) -> Result<Command> {
        let mut command = installation.account.command(&installation.serve);
        command.arg("-D").arg(home.data());
        command.args(["-p", &port.to_string()]);
        for setting in settings_of(SETTINGS, profile) {
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
    /// which recovers at the next start. The children of a server that is killed outlive it for a moment and keep the next one
    /// from starting.
    fn signals(&self) -> (&'static str, &'static str) {
        ("INT", "QUIT")
    }

    /// A startup message is answered by a request for authentication, or, as long as the server starts, by an error.
    fn is_ready(&self, port: u16) -> bool {
        let mut message = vec![0, 0, 0, 0];
        // Version 3.0 of the protocol.
        message.extend(196_608_u32.to_be_bytes());
        for word in ["user", WORD, "database", "postgres", ""] {
            message.extend(word.as_bytes());
            message.push(0);
        }
        let length = (message.len() as u32).to_be_bytes();
        message[..4].copy_from_slice(&length);
        process::first_bytes(port, &message).is_some_and(|[first, ..]| first == b'R')
    }

    fn login(&self, port: u16) -> Result<()> {
        let mut command = Command::new(program::require("psql")?);
        for (key, _) in std::env::vars_os() {
            // The settings of the user's shell are for other servers.
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

    fn private_url(&self, port: u16, database: &str) -> String {
        format!("postgres://{WORD}@127.0.0.1:{port}/{database}")
    }

    fn first_database(&self) -> &'static str {
        "postgres"
    }
}
