//! Which version of a server is asked for, and where its programs come from.
//!
//! The usual one is the one that is installed. Another version has a name, a record, data and a container of its own, so that it
//! does not disturb the usual one: `postgres-13` beside `postgres`.

use std::fs;

use anyhow::{Context, Result};

use crate::engine::{self, Engine, Installation};
use crate::layout::Layout;
use crate::{compose, download};

/// Versions of the servers, by the beginning of their numbers: `13`, `11.4`. `None` is the installed one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// Version of PostgreSQL.
    pub postgres: Option<String>,
    /// Version of MySQL.
    pub mysql: Option<String>,
    /// Version of MariaDB.
    pub mariadb: Option<String>,
}

impl Versions {
    fn of(&self, engine: &dyn Engine) -> Option<&str> {
        match engine.name() {
            "postgres" => self.postgres.as_deref(),
            "mysql" => self.mysql.as_deref(),
            "mariadb" => self.mariadb.as_deref(),
            _ => None,
        }
    }

    /// The server of each engine.
    pub fn choices(&self) -> [Choice; 4] {
        engine::all().map(|engine| Choice { engine, version: self.of(engine).map(str::to_owned) })
    }
}

/// A server of one version.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The kind of the server.
    pub engine: &'static dyn Engine,
    /// The version, unless it is the installed one.
    pub version: Option<String>,
}

/// Source of a server's programs.
#[derive(Debug, Clone)]
pub enum Source {
    /// On this machine.
    Programs(Installation),
    /// In a container.
    Container,
}

impl Choice {
    /// The name of its record, its directory and its container.
    pub fn name(&self) -> String {
        match &self.version {
            Some(version) => format!("{}-{version}", self.engine.name()),
            None => self.engine.name().to_owned(),
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        let (first, version) = match name.split_once('-') {
            Some((first, version)) => (first, Some(version.to_owned())),
            None => (name, None),
        };
        let engine = engine::all().into_iter().find(|engine| engine.name() == first)?;
        Some(Self { engine, version })
    }

    /// The usual servers, and every other one that was ever started.
    pub fn known(layout: &Layout) -> Result<Vec<Self>> {
        let mut names: Vec<String> = fs::read_dir(&layout.services)?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".record").map(str::to_owned))
            .collect();
        names.sort();
        let others =
            names.iter().filter_map(|name| Self::from_name(name)).filter(|one| one.version.is_some());
        Ok(Versions::default().choices().into_iter().chain(others).collect())
    }

    /// Finds the programs of this version: installed, or downloaded, or in a container.
    pub fn source(&self, layout: &Layout) -> Result<Source> {
        let Some(version) = &self.version else {
            return Ok(Source::Programs(self.engine.installed()?));
        };
        if let Ok(installed) = self.engine.installed()
            && installed.version().is_ok_and(|found| fits(&found, version))
        {
            return Ok(Source::Programs(installed));
        }
        match download::installation(layout, self.engine, version) {
            Ok(installation) => Ok(Source::Programs(installation)),
            Err(error) if compose::engine_answers() => {
                println!("{} runs in a container: {error:#}", self.name());
                Ok(Source::Container)
            }
            Err(error) => Err(error).with_context(|| {
                let name = self.engine.name();
                format!(
                    "{name} {version} cannot be had: install that version, start a Docker engine that answers \
                     `docker info`, or set {} to the URL of a server of your own",
                    self.engine.variable("URL")
                )
            }),
        }
    }
}

/// `true` if a full version is of the wanted one: 13.23 and 13, not 13 and 1.
pub(crate) fn fits(full: &str, wanted: &str) -> bool {
    full.strip_prefix(wanted).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_a_name_of_its_own() {
        let versions = Versions { postgres: Some("13".to_owned()), ..Versions::default() };
        let names = versions.choices().map(|choice| choice.name());
        assert_eq!(names, ["postgres-13", "mysql", "mariadb", "nats"]);
        for name in ["postgres-13", "mysql", "mariadb-11.4"] {
            assert_eq!(Choice::from_name(name).map(|choice| choice.name()).as_deref(), Some(name));
        }
        assert!(Choice::from_name("bench-postgres").is_none());
    }

    #[test]
    fn a_version_is_wanted_by_its_beginning() {
        for (full, wanted, expected) in [
            ("13.23", "13", true),
            ("13.23.0-beta.16", "13.23", true),
            ("11.4.5", "11.4", true),
            ("11.40.1", "11.4", false),
            ("13.23", "1", false),
            ("13.23", "14", false),
        ] {
            assert_eq!(fits(full, wanted), expected, "{full} {wanted}");
        }
    }
}
