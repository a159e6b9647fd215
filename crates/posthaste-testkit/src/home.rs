//! The directory of one server: where it is, and how it comes to hold data.
//!
//! * It is `target/services/NAME`, unless the account of the server cannot write there: then it is
//!   a directory of the same name in [`Layout::shelter`], and a line says so.
//! * Data are made beside their place and moved there when they are complete: what an interrupted
//!   run leaves behind is never taken for data.
//! * Data that belong to another account (a cache that was restored, a run with other rights) are
//!   of no use to the server, and are made afresh.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::account::Account;
use crate::engine::{Engine, Installation, Profile, run};
use crate::layout::{Layout, is_ours};
use crate::record::{How, Record};

/// The directory of one server.
#[derive(Debug, Clone)]
pub struct Home(pub PathBuf);

impl Home {
    /// The home of a server: where its record says, or else in `target`.
    pub fn known(layout: &Layout, name: &str, record: Option<&Record>) -> Self {
        match record.map(|record| &record.how) {
            Some(How::Process { home, .. }) => Self(home.clone()),
            _ => Self(layout.services.join(name)),
        }
    }

    /// The home of a server that is to be started: as known, if its account can write there, or
    /// else outside the workspace.
    pub fn choose(layout: &Layout, name: &str, record: Option<&Record>, account: &Account) -> Result<Self> {
        let mut known = Self::known(layout, name, record);
        // A directory outside may have been removed since, and one of another user made in its place.
        if !known.0.parent().map_or(Ok(false), is_ours)? {
            known = Self::known(layout, name, None);
        }
        if account.take_over(&known.0)? {
            return Ok(known);
        }
        let outside = Self(layout.shelter()?.join(name));
        if !account.take_over(&outside.0)? {
            bail!(
                "the account of {name} can write neither to {} nor to {}",
                known.0.display(),
                outside.0.display()
            );
        }
        println!(
            "{name}: its account cannot reach {}, so its data are in {}",
            known.0.display(),
            outside.0.display()
        );
        known.remove()?;
        Ok(outside)
    }

    /// The data of the server. It exists only once it is complete.
    pub fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// Data in the making, which become [`Self::data`] when they are complete.
    pub fn unfinished(&self) -> PathBuf {
        self.0.join("data.unfinished")
    }

    /// What the server writes to its standard output and standard error.
    pub fn log(&self) -> PathBuf {
        self.0.join("server.log")
    }

    /// Makes the data, unless they are there.
    pub fn fill(&self, engine: &dyn Engine, installation: &Installation, profile: Profile) -> Result<()> {
        match self.data().metadata() {
            Ok(found) if found.uid() == installation.account.uid => return Ok(()),
            Ok(_) => remove_dir(&self.data())?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("cannot look at the data"),
        }
        println!("{}: making {}", engine.name(), self.data().display());
        remove_dir(&self.unfinished())?;
        run(engine.create(installation, profile, self)?, "")?;
        fs::rename(self.unfinished(), self.data()).context("cannot move the data into place")
    }

    /// Removes the data and everything else about this server.
    pub fn remove(&self) -> Result<()> {
        remove_dir(&self.0)
    }
}

/// A copied workspace has a copy of the records and of data that were in use while they were
/// copied: away with both. What another mount of this very directory has made must stay.
pub fn clear_copy(layout: &Layout, name: &str) -> Result<()> {
    let Some(origin) = Record::stranger(layout, name)? else {
        return Ok(());
    };
    if !origin.as_os_str().is_empty() && !origin.exists() {
        bail!(
            "the servers here were made at {}, which does not exist (any more): when no server \
             runs on them, remove {}",
            origin.display(),
            layout.services.display()
        );
    }
    Home::known(layout, name, None).remove()?;
    Record::remove(layout, name)
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}
