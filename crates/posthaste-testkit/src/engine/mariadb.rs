//! MariaDB: how its data are made, how it is started, and its settings.
//!
//! As with PostgreSQL, only what guards against a loss of power is off; a transaction that was
//! committed before the server is killed is there when it starts again.
//!
//! `--no-defaults` comes first everywhere: the configuration of a system-wide server is not ours.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::account::Account;
use crate::engine::Profile::{Private, Shared, Torture};
use crate::engine::{ALL, Engine, FAST, Installation, Profile, Settings, WORD, run, settings_of};
use crate::home::Home;
use crate::{process, program};

const SETTINGS: Settings = &[
    // Reachable from this machine only.
    ("--bind-address=127.0.0.1", ALL),
    // Relative to the data, because the path of a socket must not be longer than some 100 bytes.
    ("--socket=server.sock", ALL),
    // Shared: tests run in parallel, each with pools of its own. Torture: relays have connections for each table.
    ("--max-connections=300", &[Shared]),
    ("--max-connections=400", &[Torture]),
    // The data of a small server are made, copied and recovered in no time.
    // Tables live for a second: no statistics of theirs are kept.
    ("--innodb-stats-persistent=0", &[Shared]),
    ("--innodb-buffer-pool-size=16M", &[Private]),
    ("--innodb-log-file-size=16M", &[Private]),
    ("--innodb-buffer-pool-size=64M", &[Torture]),
    // A commit writes to the operating system, which outlives a killed server, and does not wait
    // for the disk: the latter, and the second copy of every page, are for a loss of power.
    ("--innodb-flush-log-at-trx-commit=2", FAST),
    ("--innodb-doublewrite=0", FAST),
    // Nothing is replicated.
    ("--skip-log-bin", ALL),
    // All of Unicode, whatever the version takes for granted.
    ("--character-set-server=utf8mb4", ALL),
    // A login never waits for a name server.
    ("--skip-name-resolve", ALL),
    // The same on every machine.
    ("--default-time-zone=+00:00", ALL),
];

/// MariaDB.
#[derive(Debug)]
pub struct MariaDb;

impl Engine for MariaDb {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn prefix(&self) -> &'static str {
        "POSTHASTE_TEST_MARIADB"
    }

    fn scheme(&self) -> &'static str {
        "mysql"
    }

    /// Root only where the package made no user `mysql`: MariaDB then wants `--user=root`.
    fn account(&self) -> Result<Account> {
        match Account::of_service("mysql")? {
            Some(account) => Ok(account),
            None => Account::current(),
        }
    }

    fn installed(&self) -> Result<Installation> {
        let create = program::require("mariadb-install-db")?;
        let serve = program::require("mariadbd")?;
        Ok(Installation { create, serve, account: self.account()? })
    }

    /// `root` gets no password.
    fn create(&self, installation: &Installation, profile: Profile, home: &Home) -> Result<Command> {
        let mut command = installation.account.command(&installation.create);
        command
            .arg("--no-defaults")
            // The user `root` of the database is not the `root` of the machine.
            .arg("--auth-root-authentication-method=normal")
            .arg("--skip-test-db")
            .arg("--skip-name-resolve")
            // A server that starts removes the files that others have made in a directory that all share.
            .env("TMPDIR", &home.0)
            .arg(format!("--datadir={}", home.unfinished().display()))
            .args(settings_of(SETTINGS, profile).filter(|setting| setting.starts_with("--innodb-")));
        if installation.account.is_root() {
            command.arg("--user=root");
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
        command
            .arg("--no-defaults")
            .arg(self.argument(home))
            .arg(format!("--pid-file={}", self.pid_file(home).display()))
            .arg(format!("--tmpdir={}", home.0.display()))
            .arg(format!("--port={port}"))
            .args(settings_of(SETTINGS, profile));
        if profile == Shared {
            // Executed at every start, before the first connection is accepted.
            let init = home.0.join("init.sql");
            std::fs::write(&init, init_sql())?;
            command.arg(format!("--init-file={}", init.display()));
        }
        if installation.account.is_root() {
            command.arg("--user=root");
        }
        Ok(command)
    }

    fn argument(&self, home: &Home) -> String {
        format!("--datadir={}", home.data().display())
    }

    fn pid_file(&self, home: &Home) -> PathBuf {
        home.0.join("server.pid")
    }

    /// MariaDB locks its files and replaces a stale socket and pid file by itself.
    fn clear_stale(&self, _home: &Home) -> Result<()> {
        Ok(())
    }

    fn signals(&self) -> (&'static str, &'static str) {
        ("TERM", "KILL")
    }

    /// The server introduces itself: a packet that begins with version 10 of the protocol, or with an error.
    fn is_ready(&self, port: u16) -> bool {
        process::first_bytes(port, &[]).is_some_and(|[_, _, _, _, protocol, _]| protocol == 10)
    }

    fn login(&self, port: u16) -> Result<()> {
        let mut command = Command::new(program::require("mariadb")?);
        command
            .env("MYSQL_PWD", WORD)
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1"])
            .arg(format!("--port={port}"))
            .arg(format!("--user={WORD}"))
            // Newer clients insist on TLS, which the server does not have; this is the loopback.
            .args(["--skip-ssl", "--connect-timeout=5"]);
        run(command, &format!("CREATE DATABASE IF NOT EXISTS {WORD};\n"))
    }

    fn private_url(&self, port: u16, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{port}/{database}")
    }

    fn first_database(&self) -> &'static str {
        "mysql"
    }
}

/// Makes the database and a user with all rights: one statement a line, as an init file wants it.
fn init_sql() -> String {
    format!(
        "CREATE DATABASE IF NOT EXISTS {WORD};\n\
         CREATE USER IF NOT EXISTS '{WORD}'@'%' IDENTIFIED BY '{WORD}';\n\
         GRANT ALL PRIVILEGES ON *.* TO '{WORD}'@'%' WITH GRANT OPTION;\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_init_file_has_a_statement_a_line() {
        assert!(init_sql().lines().all(|line| line.ends_with(';')));
    }
}
