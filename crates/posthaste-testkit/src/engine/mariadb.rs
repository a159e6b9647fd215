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
use crate::engine::{Engine, Programs, WORD, run};
use crate::home::Home;
use crate::program;

/// The settings of the server.
const SETTINGS: [&str; 9] = [
    // Nobody outside this machine.
    "--bind-address=127.0.0.1",
    // Relative to the data, because the path of a socket must not be longer than some 100 bytes.
    "--socket=server.sock",
    // Tests run in parallel, each with pools of its own.
    "--max-connections=300",
    // A commit writes to the operating system, which outlives a killed server, and does not wait
    // for the disk: the latter, and the second copy of every page, are for a loss of power.
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=0",
    // Nothing is replicated.
    "--skip-log-bin",
    // All of Unicode, whatever the version takes for granted.
    "--character-set-server=utf8mb4",
    // A login never waits for a name server.
    "--skip-name-resolve",
    // The same on every machine.
    "--default-time-zone=+00:00",
];

/// MariaDB.
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

    fn programs(&self) -> Result<Programs> {
        let create = program::require("mariadb-install-db")?;
        let serve = program::require("mariadbd")?;
        Ok(Programs { create, serve })
    }

    fn create(&self, account: &Account, home: &Home) -> Result<Command> {
        let mut command = account.command(self.programs()?.create);
        command
            .arg("--no-defaults")
            // The user `root` of the database is not the `root` of the machine.
            .arg("--auth-root-authentication-method=normal")
            .arg("--skip-test-db")
            .arg("--skip-name-resolve")
            // Whoever starts removes what others have made in the directory that all share.
            .env("TMPDIR", &home.0)
            .arg(format!("--datadir={}", home.unfinished().display()));
        if account.is_root() {
            command.arg("--user=root");
        }
        Ok(command)
    }

    fn serve(&self, account: &Account, home: &Home, port: u16) -> Result<Command> {
        // Run at every start, before the first connection is let in.
        let init = home.0.join("init.sql");
        std::fs::write(&init, init_sql())?;
        let mut command = account.command(self.programs()?.serve);
        command
            .arg("--no-defaults")
            .arg(self.argument(home))
            .arg(format!("--pid-file={}", self.pid_file(home).display()))
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--tmpdir={}", home.0.display()))
            .arg(format!("--port={port}"))
            .args(SETTINGS);
        if account.is_root() {
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
}

/// Makes the database and a user who may do everything, and pass it on: one statement a line, as
/// an init file wants it.
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
