//! Servers that are unpacked below the target directory instead of being installed.
//!
//! MySQL: Debian 12 has no package of it, and the unstable release (sid) has. apt itself resolves, downloads and verifies
//! the packages, with lists and a cache of its own, so that nothing of the machine's apt is changed. The packages are
//! unpacked and never installed: the programs start through the C library that came with them, by a script each.
//!
//! The directory appears under its final name once it is complete; an interrupted run leaves nothing that is taken for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::engine::run;
use crate::layout::Layout;
use crate::program;

/// The packages; apt adds those that they depend on.
const PACKAGES: [&str; 2] = ["mysql-server-core", "mysql-client-core"];

/// What the advice says where the packages cannot be had.
const ALTERNATIVE: &str =
    "install a MySQL server of version 8.0.22 or newer with its client, or start a Docker engine";

/// The directory with the scripts that start MySQL's programs, if they have been unpacked.
pub fn mysql_programs() -> Option<PathBuf> {
    let bin = directory(&Layout::find().ok()?).join("bin");
    bin.join("mysqld").is_file().then_some(bin)
}

fn directory(layout: &Layout) -> PathBuf {
    layout.target.join("mysql")
}

/// Unpacks MySQL from the packages of Debian's unstable release.
pub fn unpack_mysql(layout: &Layout) -> Result<()> {
    println!("unpacking MySQL from the packages of Debian's unstable release");
    let unfinished = layout.target.join("mysql.unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).context("cannot remove the rest of an interrupted run")?;
    }
    fs::create_dir_all(&unfinished)?;
    download(&unfinished).with_context(|| {
        format!(
            "the packages {} of Debian's unstable release cannot be downloaded from the mirror that apt is configured \
             with; {ALTERNATIVE}",
            PACKAGES.join(" and ")
        )
    })?;
    let root = unfinished.join("root");
    fs::create_dir_all(&root)?;
    for package in files(&unfinished.join("archives"), "deb")? {
        let mut command = Command::new(program::require("dpkg-deb")?);
        run(
            {
                command.arg("-x").arg(&package).arg(&root);
                command
            },
            "",
        )?;
    }
    fs::remove_dir_all(unfinished.join("archives"))?;
    fs::remove_dir_all(unfinished.join("lists"))?;
    let home = directory(layout);
    fs::create_dir_all(unfinished.join("bin"))?;
    let libraries = libraries(&root)?;
    let loader = loader(&root)?;
    for (name, program, arguments) in [
        (
            "mysqld",
            "usr/sbin/mysqld",
            format!(
                " --basedir={0}/root/usr --lc-messages-dir={0}/root/usr/share/mysql \
                 --plugin-dir={0}/{1}/mysql/plugin",
                home.display(),
                libraries.display()
            ),
        ),
        ("mysql", "usr/bin/mysql", String::new()),
    ] {
        if !root.join(program).is_file() {
            bail!("the packages have no {program}; {ALTERNATIVE}");
        }
        let script = format!(
            "#!/bin/sh\nexec {0}/{loader} --library-path {0}/{libraries}:{0}/{libraries}/mysql/private \
             {0}/root/{program} \"$@\"{arguments}\n",
            home.display(),
            loader = loader.display(),
            libraries = libraries.display(),
        );
        let path = unfinished.join("bin").join(name);
        fs::write(&path, script)?;
        make_executable(&path)?;
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::rename(&unfinished, &home).context("cannot move the unpacked MySQL to its place")
}

/// Downloads the packages and their dependencies into `archives`.
fn download(into: &Path) -> Result<()> {
    for name in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(into.join(name))?;
    }
    // As if nothing were installed, so that apt brings every library.
    fs::write(into.join("status"), "")?;
    let mirror = mirror()?;
    fs::write(into.join("sources.list"), format!("deb {mirror} sid main\n"))?;
    let at = |option: &str, path: &str| format!("{option}={}", into.join(path).display());
    let options = [
        at("Dir::Etc::SourceList", "sources.list"),
        "Dir::Etc::SourceParts=-".to_owned(),
        at("Dir::State::Lists", "lists"),
        at("Dir::State::Status", "status"),
        at("Dir::Cache::Archives", "archives"),
        "Dir::Cache::pkgcache=".to_owned(),
        "Dir::Cache::srcpkgcache=".to_owned(),
        "Debug::NoLocking=1".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        // Package lists and nothing else of the release.
        "Acquire::Languages=none".to_owned(),
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
    ];
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        for option in &options {
            command.args(["-o", option]);
        }
        command.args(["-q", "-y", "--no-install-recommends"]).args(arguments);
        run(command, "")
    };
    apt(&["update"])?;
    apt(&[&["--download-only", "install"][..], &PACKAGES].concat())
}

/// The mirror of Debian that apt is configured with.
fn mirror() -> Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
        .output()
        .context("cannot run apt-get")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let is_debian = |uri: &&str| uri.trim_end_matches('/').ends_with("/debian");
    text.lines().find(is_debian).map(str::to_owned).context("apt is not configured with a mirror of Debian")
}

/// The directory of the libraries, from the directory above `root`.
fn libraries(root: &Path) -> Result<PathBuf> {
    let triplets = fs::read_dir(root.join("usr/lib"))?.flatten().map(|entry| entry.path());
    let found = triplets.into_iter().find(|path| path.join("libc.so.6").exists());
    let path = found.context("the packages have no C library")?;
    Ok(Path::new("root").join(path.strip_prefix(root)?))
}

/// The program that loads programs with their libraries, from the directory above `root`.
fn loader(root: &Path) -> Result<PathBuf> {
    for dir in ["usr/lib64", "lib64", "usr/lib"] {
        let Ok(entries) = fs::read_dir(root.join(dir)) else { continue };
        for name in entries.flatten().map(|entry| entry.file_name()) {
            if name.to_string_lossy().starts_with("ld-linux") {
                return Ok(Path::new("root").join(dir).join(name));
            }
        }
    }
    bail!("the packages have no program loader")
}

fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|found| found == extension));
    found.sort();
    Ok(found)
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).context("cannot make a script executable")
}
