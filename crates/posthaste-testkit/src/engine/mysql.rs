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
use crate::engine::Profile::{Private, Shared, Torture};
use crate::engine::{ALL, Engine, FAST, Installation, Profile, Settings, WORD, run, settings_of};
use crate::home::Home;
use crate::{process, program, unpacked};

const SETTINGS: Settings = &[
    // Reachable from this machine only.
    ("--bind-address=127.0.0.1", ALL),
    ("--mysqlx=OFF", ALL),
    // Relative to the data, because the path of a socket must not be longer than some 100 bytes.
    ("--socket=server.sock", ALL),
    // Shared: tests run in parallel, each with pools of its own. Torture: relays have connections for each table.
    ("--max-connections=500", &[Shared]),
    ("--max-connections=400", &[Torture]),
    // The data of a small server are made, copied and recovered in no time.
    // A database per test is many small writes: with the default log, the server waits for checkpoints.
    ("--innodb-buffer-pool-size=512M", &[Shared]),
    ("--innodb-redo-log-capacity=512M", &[Shared]),
    // Tables live for a second: no statistics of theirs are kept.
    ("--innodb-stats-persistent=OFF", &[Shared]),
    ("--innodb-buffer-pool-size=16M", &[Private]),
    ("--innodb-redo-log-capacity=16M", &[Private]),
    ("--innodb-buffer-pool-size=64M", &[Torture]),
    // A commit writes to the operating system, which outlives a killed server, and does not wait for the disk.
    ("--innodb-flush-log-at-trx-commit=2", FAST),
    ("--innodb-doublewrite=OFF", FAST),
    ("--innodb-flush-method=fsync", FAST),
    // Nothing is replicated.
    ("--disable-log-bin", ALL),
    // Tests write files nowhere.
    ("--secure-file-priv=NULL", ALL),
    ("--skip-name-resolve", ALL),
    // The same on every machine.
    ("--default-time-zone=+00:00", ALL),
];

/// MySQL.
#[derive(Debug)]
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
        "MySQL is neither installed nor unpacked: run `cargo xtask services up`, or install MySQL 8.0.22 or newer",
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

    /// Root only where no package made a user `mysql`.
    fn account(&self) -> Result<Account> {
        match Account::of_service("mysql")? {
            Some(account) => Ok(account),
            None => Account::current(),
        }
    }

    /// The unpacked server belongs to the current user.
    fn installed(&self) -> Result<Installation> {
        let found = found()?;
        let account = if found.is_unpacked { Account::current() } else { self.account() }?;
        Ok(Installation { create: found.server.clone(), serve: found.server, account })
    }

    /// `root` gets no password.
    fn create(&self, installation: &Installation, profile: Profile, home: &Home) -> Result<Command> {
        let mut command = installation.account.command(&installation.create);
        command
            .args(["--no-defaults", "--initialize-insecure", "--secure-file-priv=NULL"])
            .arg(format!("--datadir={}", home.unfinished().display()))
            .arg(format!("--tmpdir={}", home.0.display()))
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
        // Executed at every start, before the first connection is accepted.
        let init = home.0.join("init.sql");
        std::fs::write(&init, if profile == Shared { init_sql() } else { INIT_PRIVATE.to_owned() })?;
        let mut command = installation.account.command(&installation.serve);
        command
            .arg("--no-defaults")
            .arg(self.argument(home))
            .arg(format!("--pid-file={}", self.pid_file(home).display()))
            .arg(format!("--init-file={}", init.display()))
            .arg(format!("--tmpdir={}", home.0.display()))
            .arg(format!("--port={port}"))
            .args(settings_of(SETTINGS, profile));
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

    /// MySQL locks its files and replaces a stale socket and pid file by itself.
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
        let mut command = Command::new(found()?.client);
        command
            .env("MYSQL_PWD", WORD)
            .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1"])
            .arg(format!("--port={port}"))
            .arg(format!("--user={WORD}"))
            .arg("--connect-timeout=5");
        run(command, &format!("CREATE DATABASE IF NOT EXISTS {WORD};\n"))
    }

    fn private_url(&self, port: u16, database: &str) -> String {
        format!("mysql://root@127.0.0.1:{port}/{database}")
    }

    fn first_database(&self) -> &'static str {
        "mysql"
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

/// Without name resolution, the `root@localhost` that MySQL makes cannot log in over TCP.
const INIT_PRIVATE: &str =
    "CREATE USER IF NOT EXISTS root@'%';\nGRANT ALL PRIVILEGES ON *.* TO root@'%' WITH GRANT OPTION;\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_init_file_has_a_statement_a_line() {
        for sql in [&init_sql(), INIT_PRIVATE] {
            assert!(sql.lines().all(|line| line.ends_with(';')));
        }
    }
}
