//! MySQL: how its data are made, how it is started, and its settings.
//!
//! Debian has MySQL in its unstable release only, so the server comes from [`crate::unpacked`] where none is installed.
//! MariaDB also installs a program called `mysqld`; a program is taken for MySQL's only if its version text says so.
//!
//! As with the other servers, only the guards against a loss of power are off: a transaction that was committed before the
//! server is killed is there when it starts again.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::account::Account;
use crate::engine::{Engine, Programs, WORD, run};
use crate::home::Home;
use crate::{program, unpacked};

/// Settings of the server.
const SETTINGS: [&str; 11] = [
    // Reachable from this machine only.
    "--bind-address=127.0.0.1",
    "--mysqlx=OFF",
    // Relative to the data, because the path of a socket must not be longer than some 100 bytes.
    "--socket=server.sock",
    // Tests run in parallel, each with pools of its own.
    "--max-connections=500",
    // A commit writes to the operating system, which outlives a killed server, and does not wait for the disk.
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-doublewrite=OFF",
    "--innodb-flush-method=fsync",
    // Nothing is replicated.
    "--disable-log-bin",
    // Tests write files nowhere.
    "--secure-file-priv=NULL",
    "--skip-name-resolve",
    // The same on every machine.
    "--default-time-zone=+00:00",
];

/// MySQL.
pub struct MySql;

/// The server and its client, and whether they are those that [`unpacked`] brings.
struct Found {
    server: PathBuf,
    client: PathBuf,
    is_unpacked: bool,
}

fn found() -> Result<Found> {
    let installed = program::all_named("mysqld").into_iter().find(|path| is_mysql(path));
    let client = program::all_named("mysql").into_iter().find(|path| is_mysql(path));
    if let (Some(server), Some(client)) = (installed, client) {
        return Ok(Found { server, client, is_unpacked: false });
    }
    let bin = unpacked::mysql_programs().context(
        "MySQL is neither installed nor unpacked: run `cargo xtask services up`, or install MySQL 8.0.17 or newer",
    )?;
    Ok(Found { server: bin.join("mysqld"), client: bin.join("mysql"), is_unpacked: true })
}

/// `true` if a MySQL server and its client are on this machine.
pub fn is_there() -> bool {
    found().is_ok()
}

/// `true` if the program is MySQL's and not MariaDB's program of the same name.
fn is_mysql(path: &Path) -> bool {
    let output = Command::new(path).arg("--version").output();
    output.is_ok_and(|output| {
        output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("MariaDB")
    })
}

impl Engine for MySql {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn prefix(&self) -> &'static str {
        "POSTHASTE_TEST_MYSQL"
    }

    fn scheme(&self) -> &'static str {
        "mysql"
    }

    /// The account of the package `mysql-server`; the unpacked server belongs to the current user.
    fn account(&self) -> Result<Account> {
        match Account::of_service("mysql")? {
            Some(account) if !found()?.is_unpacked => Ok(account),
            _ => Account::current(),
        }
    }

    fn programs(&self) -> Result<Programs> {
        let server = found()?.server;
        Ok(Programs { create: server.clone(), serve: server })
    }

    /// `root` gets no password and may log in from this machine.
    fn create(&self, account: &Account, home: &Home) -> Result<Command> {
        let mut command = account.command(self.programs()?.create);
        command
            .args(["--no-defaults", "--initialize-insecure", "--secure-file-priv=NULL"])
            .arg(format!("--datadir={}", home.unfinished().display()))
            .arg(format!("--tmpdir={}", home.0.display()))
            .arg("--innodb-doublewrite=OFF");
        if account.is_root() {
            command.arg("--user=root");
        }
        Ok(command)
    }

    fn serve(&self, account: &Account, home: &Home, port: u16) -> Result<Command> {
        // Run at every start, before the first connection is accepted.
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

    /// MySQL locks its files and replaces a stale socket and pid file by itself.
    fn clear_stale(&self, _home: &Home) -> Result<()> {
        Ok(())
    }

    fn signals(&self) -> (&'static str, &'static str) {
        ("TERM", "KILL")
    }

    fn login(&self, port: u16) -> Result<()> {
        let mut command = Command::new(found()?.client);
        command
            .env("MYSQL_PWD", WORD)
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1"])
            .arg(format!("--port={port}"))
            .arg(format!("--user={WORD}"))
            .arg("--connect-timeout=5");
        run(command, &format!("CREATE DATABASE IF NOT EXISTS {WORD};\n"))
    }
}

/// Makes the database and a user with all rights, its password kept by the default plugin of the server: one statement a
/// line, as an init file wants it.
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
