//! Brings the programs that are missing: from Debian's or Ubuntu's packages where that is possible
//! without asking anyone, and otherwise by saying exactly what to install.
//!
//! * `--no-install-recommends`: the recommended packages are for a server in earnest.
//! * The list of packages is fetched only when the first try fails, which saves it on most runs.
//! * `DEBIAN_FRONTEND=noninteractive`: a question would wait for ever in CI.
//! * A package of a server starts that server. `policy-rc.d` is the documented way to forbid it;
//!   it is made for the time of the installation only, and one that is already there stays.
//!
//! Promise: no system-wide server is started, stopped or configured.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::account::Account;
use crate::compose;
use crate::engine::mysql;
use crate::layout::Layout;
use crate::program::{self, Program};
use crate::unpacked;

/// Runs as root with the packages as arguments.
const SCRIPT: &str = r#"
set -eu
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
fi
install() { apt-get install -y -q --no-install-recommends "$@"; }
install "$@" || { apt-get update -q && install "$@"; }
"#;

/// Makes sure that every program is there, except for the servers that are not `needed`, and returns the servers that have to run in
/// a container because theirs cannot be had.
pub fn ensure(layout: &Layout, needed: &[&str]) -> Result<Vec<&'static str>> {
    let is_needed = |program: &Program| program.server.is_none_or(|server| needed.contains(&server));
    let programs: Vec<Program> = program::ALL.into_iter().filter(is_needed).collect();
    let mut containers = ensure_of(&programs)?;
    if needed.contains(&"mysql")
        && !mysql::is_there()
        && let Err(error) = unpacked::unpack_mysql(layout)
    {
        if !compose::engine_answers() {
            return Err(error);
        }
        println!("MySQL runs in a container: {error:#}");
        containers.push("mysql");
    }
    Ok(containers)
}

/// The same of the programs that these servers need.
pub fn ensure_servers(names: &[&str]) -> Result<Vec<&'static str>> {
    let of_them = |program: &Program| program.server.is_some_and(|server| names.contains(&server));
    let needed: Vec<Program> = program::ALL.into_iter().filter(of_them).collect();
    ensure_of(&needed)
}

fn ensure_of(needed: &[Program]) -> Result<Vec<&'static str>> {
    let look = || needed.iter().copied().filter(Program::is_missing).collect::<Vec<_>>();
    let mut missing = look();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(prefix) = apt()? {
        let packages = packages(&missing);
        println!("installing {} with apt-get", packages.join(" "));
        let [first, rest @ ..] = &prefix[..] else {
            bail!("no command to install with");
        };
        let output = Command::new(first)
            .args(rest)
            .args(["-c", SCRIPT, "sh"])
            .args(&packages)
            .stdin(Stdio::null())
            .output()
            .context("cannot run apt-get")?;
        if !output.status.success() {
            bail!(
                "apt-get could not install {}:\n{}{}",
                packages.join(" "),
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        missing = look();
    }
    let containers = replaceable(&missing);
    match containers {
        Some(servers) if servers.is_empty() || compose::engine_answers() => Ok(servers),
        _ => bail!("{}", advice(&missing)),
    }
}

/// The command that runs a shell as root without a password, where there is `apt-get`.
fn apt() -> Result<Option<Vec<&'static str>>> {
    if program::require("apt-get").is_err() {
        return Ok(None);
    }
    if Account::current()?.is_root() {
        return Ok(Some(vec!["sh"]));
    }
    let sudo = Command::new("sudo").args(["-n", "true"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    Ok(sudo.is_ok_and(|status| status.success()).then(|| vec!["sudo", "-n", "sh"]))
}

/// The servers that containers can stand in for; `None` when a client is missing, since the tests
/// call the clients themselves.
fn replaceable(missing: &[Program]) -> Option<Vec<&'static str>> {
    let mut servers = missing.iter().map(|program| program.server).collect::<Option<Vec<_>>>()?;
    servers.dedup();
    Some(servers)
}

/// The packages of Debian that have these programs.
fn packages(missing: &[Program]) -> Vec<&'static str> {
    let mut packages: Vec<_> = missing.iter().map(|program| program.debian).collect();
    packages.dedup();
    packages
}

/// What to do about programs that cannot be installed from here.
fn advice(missing: &[Program]) -> String {
    let names: Vec<_> = missing.iter().map(|program| program.name).collect();
    let mut brew: Vec<_> = missing.iter().map(|program| program.brew).collect();
    brew.sort_unstable();
    brew.dedup();
    format!(
        "programs are missing that are needed and cannot be installed from here: {}\n  \
         Debian, Ubuntu:  sudo apt-get install {}\n  \
         macOS:           brew install {}\n  \
         elsewhere:       the packages of PostgreSQL, MariaDB, NATS and SQLite, servers and clients\n  \
         or, for the servers alone, a Docker engine that answers `docker info`, with `docker compose`",
        names.join(" "),
        packages(missing).join(" "),
        brew.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_programs_have_the_packages_we_know() {
        assert_eq!(
            packages(&program::ALL).join(" "),
            "postgresql mariadb-server nats-server postgresql-client mariadb-client sqlite3"
        );
    }

    #[test]
    fn only_servers_can_be_containers() {
        assert_eq!(replaceable(&[]), Some(vec![]));
        let (servers, clients) = program::ALL.split_at(3);
        assert_eq!(replaceable(servers), Some(vec!["postgres", "mariadb"]));
        assert_eq!(replaceable(&servers[..1]), Some(vec!["postgres"]));
        assert_eq!(replaceable(clients), None);
        assert_eq!(replaceable(&program::ALL), None);
    }

    #[test]
    fn the_advice_names_programs_and_packages() {
        let advice = advice(&program::ALL[1..3]);
        assert!(advice.contains("mariadbd mariadb-install-db\n"));
        assert!(advice.contains("apt-get install mariadb-server\n"));
        assert!(advice.contains("brew install mariadb\n"));
    }
}
