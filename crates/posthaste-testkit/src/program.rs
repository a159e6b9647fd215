//! The programs of other packages: their names, the packages that bring them, and where they are.
//!
//! They are looked for in `PATH` first, since a program there was put there on purpose, and then
//! where the packages put what is not for everyone's `PATH`: Debian's
//! `/usr/lib/postgresql/VERSION/bin` and Fedora's `/usr/pgsql-VERSION/bin` (the highest version
//! first), the directories of system programs, and Homebrew's prefixes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A program this workspace needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// The name of its file.
    pub name: &'static str,
    /// The package of Debian and Ubuntu that has it.
    pub debian: &'static str,
    /// The formula of Homebrew that has it.
    pub brew: &'static str,
    /// For a program that only a server needs, the server: a container can replace it.
    pub server: Option<&'static str>,
}

/// All programs that are needed; the tests call the clients, too.
pub const ALL: [Program; 7] = [
    server("initdb", "postgresql", "postgresql@16", "postgres"),
    server("mariadbd", "mariadb-server", "mariadb", "mariadb"),
    server("mariadb-install-db", "mariadb-server", "mariadb", "mariadb"),
    server("nats-server", "nats-server", "nats-server", "nats"),
    client("psql", "postgresql-client", "postgresql@16"),
    client("mariadb", "mariadb-client", "mariadb"),
    client("sqlite3", "sqlite3", "sqlite"),
];

const fn server(
    name: &'static str,
    debian: &'static str,
    brew: &'static str,
    server: &'static str,
) -> Program {
    Program { name, debian, brew, server: Some(server) }
}

const fn client(name: &'static str, debian: &'static str, brew: &'static str) -> Program {
    Program { name, debian, brew, server: None }
}

impl Program {
    /// `true` if this machine does not have it.
    pub fn is_missing(&self) -> bool {
        pick(self.name, &directories()).is_none()
    }
}

/// The path of a program, or an error that names it.
pub fn require(name: &str) -> Result<PathBuf> {
    pick(name, &directories()).with_context(|| format!("the program `{name}` is not installed"))
}

/// Every program of this name, in the order of preference.
pub fn all_named(name: &str) -> Vec<PathBuf> {
    directories().into_iter().map(|dir| dir.join(name)).filter(|path| is_executable(path)).collect()
}

/// `PATH` for the tests: as it is, and after it the directories of the clients that are not found
/// in it.
pub fn path() -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for client in ALL.iter().filter(|program| program.server.is_none()) {
        if pick(client.name, &all).is_none()
            && let Ok(found) = require(client.name)
            && let Some(dir) = found.parent()
        {
            all.push(dir.to_path_buf());
        }
    }
    Ok(std::env::join_paths(all)?)
}

/// The first of the directories that has an executable file of this name.
fn pick(name: &str, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|dir| dir.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Every directory to look in, in order.
fn directories() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An empty or relative entry of PATH would depend on the current directory.
    let mut all: Vec<PathBuf> = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    all.extend(versions(Path::new("/usr/lib/postgresql"), ""));
    all.extend(versions(Path::new("/usr"), "pgsql-"));
    all.extend(["/usr/sbin", "/usr/libexec", "/usr/local/sbin"].map(PathBuf::from));
    for prefix in ["/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew"] {
        all.push(Path::new(prefix).join("bin"));
        for formula in ["postgresql", "mariadb", "nats-server", "sqlite"] {
            all.extend(versions(&Path::new(prefix).join("opt"), formula));
        }
    }
    all
}

/// The `bin` of every directory in `parent` whose name begins with `prefix`, the highest version
/// first.
fn versions(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut names: Vec<String> = std::fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort_by_key(|name| std::cmp::Reverse(version(name)));
    let bin = |name: String| parent.join(name).join("bin");
    names.into_iter().map(bin).collect()
}

/// The numbers in a name: `postgresql@16` is 16 and `9.6` is 9, 6.
fn version(name: &str) -> Vec<u32> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(version("16") > version("9.6"));
        assert!(version("postgresql@17") > version("postgresql@9"));
        assert!(version("postgresql@16") > version("postgresql"));
        assert!(version("9.6") > version("9.5"));
    }

    #[test]
    fn the_first_executable_file_is_picked() -> Result<()> {
        let top = std::env::temp_dir().join(format!("testkit-program-{}", std::process::id()));
        for (name, mode) in [("9.6", 0o755), ("15", 0o755), ("16", 0o644)] {
            let bin = top.join(name).join("bin");
            std::fs::create_dir_all(&bin)?;
            std::fs::write(bin.join("initdb"), "")?;
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(bin.join("initdb"), permissions)?;
        }
        let found = versions(&top, "");
        assert_eq!(found[0], top.join("16/bin"));
        assert_eq!(pick("initdb", &found), Some(top.join("15/bin/initdb")));
        assert_eq!(pick("psql", &found), None);
        std::fs::remove_dir_all(&top)?;
        Ok(())
    }
}
