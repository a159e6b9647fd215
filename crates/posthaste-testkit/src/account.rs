//! The account a server runs as.
//!
//! * Run as root, a server gets the account of its package (`postgres`, `mysql`): PostgreSQL
//!   refuses to run as root, and a database has no business with root's rights.
//! * Run as anyone else, a server runs as that user.
//!
//! The switch is `setuid` in the child (`CommandExt::uid`), which also drops the supplementary
//! groups, so neither `runuser` nor `su` has to be there. Promise: a command of an [`Account`]
//! never runs with more rights than that account has.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A user of this machine.
#[derive(Debug, Clone)]
pub struct Account {
    /// The number of the user.
    pub uid: u32,
    /// The number of the user's own group.
    pub gid: u32,
    /// Whether a command has to change to this account first.
    switch: bool,
}

impl Account {
    /// The user of this process.
    pub fn current() -> Result<Self> {
        Ok(Self {
            uid: id(&["-u"])?.context("`id -u` failed")?,
            gid: id(&["-g"])?.context("`id -g` failed")?,
            switch: false,
        })
    }

    /// An account by its numbers, `UID:GID`, for a program that knows it from [`crate::environment`].
    pub fn parse(text: &str) -> Result<Self> {
        let (uid, gid) = text.split_once(':').with_context(|| format!("{text:?} is not UID:GID"))?;
        let number = |text: &str| text.parse().with_context(|| format!("{text:?} is no number"));
        // Changing to the own account is allowed to everyone.
        Ok(Self { uid: number(uid)?, gid: number(gid)?, switch: true })
    }

    /// The account for a service whose package makes the user `name`; `None` when that user is
    /// needed (this is root) and missing.
    pub fn of_service(name: &str) -> Result<Option<Self>> {
        let current = Self::current()?;
        if !current.is_root() {
            return Ok(Some(current));
        }
        let Some(uid) = id(&["-u", name])? else {
            return Ok(None);
        };
        let gid = id(&["-g", name])?.with_context(|| format!("user {name} has no group"))?;
        let switch = true;
        Ok(Some(Self { uid, gid, switch }))
    }

    /// `true` if this is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// A command that runs as this account, in a directory that everyone can enter.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").stdin(Stdio::null());
        if self.switch {
            command.uid(self.uid).gid(self.gid);
            // Root's own are not for this account.
            command.env("HOME", "/").env_remove("TMPDIR");
        }
        command
    }

    /// Makes `dir` if need be, gives it to this account and tells whether the account can really
    /// write there.
    pub fn take_over(&self, dir: &Path) -> Result<bool> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        if self.switch {
            std::os::unix::fs::chown(dir, Some(self.uid), Some(self.gid))
                .with_context(|| format!("cannot give away {}", dir.display()))?;
        }
        let probe = self
            .command("sh")
            .args(["-c", "cd -- \"$1\" && test -w .", "sh"])
            .arg(dir)
            .stderr(Stdio::null())
            .status()
            .context("cannot run sh")?;
        Ok(probe.success())
    }

    /// `true` if this account can enter `dir`.
    pub fn can_enter(&self, dir: &Path) -> Result<bool> {
        let mut command = self.command("sh");
        command.args(["-c", "cd -- \"$1\"", "sh"]).arg(dir).stderr(Stdio::null());
        Ok(command.status().context("cannot run sh")?.success())
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// What `id` answers, or `None` when it knows no such user.
fn id(arguments: &[&str]) -> Result<Option<u32>> {
    let output = Command::new("id").args(arguments).output().context("cannot run id")?;
    if !output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => bail!("id answered {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_user_is_none() -> Result<()> {
        assert_eq!(id(&["-u", "no-such-user-here"])?, None);
        assert!(id(&["-u"])?.is_some());
        Ok(())
    }

    #[test]
    fn an_account_is_read_as_it_is_shown() -> Result<()> {
        assert_eq!(Account::parse("117:120")?.to_string(), "117:120");
        assert!(Account::parse("117").is_err() && Account::parse("a:b").is_err());
        Ok(())
    }

    #[test]
    fn the_current_account_can_write_to_a_directory_of_its_own() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("testkit-account-{}", std::process::id()));
        assert!(Account::current()?.take_over(&dir)?);
        std::fs::remove_dir(&dir)?;
        Ok(())
    }
}
