//! What is remembered of a server from one call to the next: `target/services/NAME.record`.
//!
//! It names the directory it was written for, because a copied workspace brings its records along:
//! without that, `services down` in the copy would stop the servers of the original.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::envfile::EnvFile;
use crate::layout::Layout;

/// How a server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// As a process of this machine.
    Process {
        /// The number of the process, living or not.
        pid: u32,
        /// The directory of its data and its log.
        home: PathBuf,
    },
    /// As a container.
    Container,
}

/// What is known of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The port it listens on, or did last.
    pub port: u16,
    /// How it runs.
    pub how: How,
}

impl Record {
    fn path(layout: &Layout, name: &str) -> PathBuf {
        layout.services.join(format!("{name}.record"))
    }

    /// The record of a server; `None` when there is none or it is another directory's.
    pub fn read(layout: &Layout, name: &str) -> Result<Option<Self>> {
        let lines = EnvFile::read(&Self::path(layout, name))?;
        Ok(lines.and_then(|lines| Self::from_lines(&layout.services, &lines)))
    }

    /// The directory that a record found here was written for, when that is not this one: empty
    /// when the record cannot be read at all.
    pub fn stranger(layout: &Layout, name: &str) -> Result<Option<PathBuf>> {
        let Some(lines) = EnvFile::read(&Self::path(layout, name))? else {
            return Ok(None);
        };
        Ok(match Self::from_lines(&layout.services, &lines) {
            Some(_) => None,
            None => Some(PathBuf::from(lines.get("for").unwrap_or_default())),
        })
    }

    /// Replaces the record.
    pub fn write(&self, layout: &Layout, name: &str) -> Result<()> {
        self.to_lines(&layout.services)?.write(&Self::path(layout, name))
    }

    /// Removes the record.
    pub fn remove(layout: &Layout, name: &str) -> Result<()> {
        let path = Self::path(layout, name);
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(())
    }

    fn to_lines(&self, services: &Path) -> Result<EnvFile> {
        let mut lines = EnvFile::default();
        lines.push("for", services.display())?;
        lines.push("port", self.port)?;
        if let How::Process { pid, home } = &self.how {
            lines.push("pid", pid)?;
            lines.push("home", home.display())?;
        }
        Ok(lines)
    }

    fn from_lines(services: &Path, lines: &EnvFile) -> Option<Self> {
        if lines.get("for")? != services.display().to_string() {
            return None;
        }
        let port = lines.get("port")?.parse().ok()?;
        let how = match (lines.get("pid"), lines.get("home")) {
            (Some(pid), Some(home)) => How::Process { pid: pid.parse().ok()?, home: PathBuf::from(home) },
            _ => How::Container,
        };
        Some(Self { port, how })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back_by_its_own_directory_only() -> Result<()> {
        let here = Path::new("/a/target/services");
        for how in [How::Container, How::Process { pid: 7, home: here.join("postgres") }] {
            let record = Record { port: 5433, how };
            let lines = record.to_lines(here)?;
            assert_eq!(Record::from_lines(here, &lines), Some(record));
            assert_eq!(Record::from_lines(Path::new("/b"), &lines), None);
        }
        Ok(())
    }

    #[test]
    fn a_broken_record_is_none() -> Result<()> {
        let lines = EnvFile::parse("for=/a\nport=many\n")?;
        assert_eq!(Record::from_lines(Path::new("/a"), &lines), None);
        Ok(())
    }
}
