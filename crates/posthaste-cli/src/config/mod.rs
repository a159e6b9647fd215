//! The configuration: a file, then variables of the environment, then flags; the later ones win.
//!
//! | file | what is in it |
//! |---|---|
//! | `key.rs` | every key: the one table that all else is made from |
//! | `kind.rs` | what keys take, and how values are read |
//! | `path.rs` | places such as `tables.orders.lease` |
//! | `file.rs` | TOML, with the line of everything |
//! | `variables.rs` | `OUTBOX_*`, and `${NAME}` in texts |
//! | `origin.rs`, `mistake.rs` | where a setting came from, and what is wrong with it |
//! | `secret.rs` | what must not be shown |
//! | `settings/` | what it all comes to, typed, checked against each other |
//!
//! Loading never fails: it gathers what is wrong, so that everything is said at once. A command that only needs the
//! database goes on where only a daemon would stumble.

mod file;
#[cfg(test)]
mod fuzz;
pub(crate) mod key;
pub(crate) mod kind;
pub(crate) mod mistake;
pub(crate) mod origin;
pub(crate) mod path;
#[cfg(test)]
mod reference;
pub(crate) mod secret;
pub(crate) mod settings;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::args::Place;
use crate::failure::Failure;

use self::key::{Key, Preset};
use self::kind::Value;
use self::mistake::Mistake;
use self::origin::Origin;
use self::path::Path;

/// The environment that settings are read from.
pub(crate) type Environment = BTreeMap<String, String>;

/// What was said about settings, by whom, and what is wrong with it.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The file, if one was read.
    file: Option<PathBuf>,
    entries: BTreeMap<Path, Entry>,
    /// Sections of the file with a name: they exist even if nothing is in them.
    sections: BTreeMap<Path, Origin>,
    /// Keys whose value was refused: not to be missed on top of it.
    refused: BTreeSet<Path>,
    mistakes: Vec<Mistake>,
    warnings: Vec<String>,
}

/// A setting.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// As the file has it, where it names variables of the environment: shown instead of the value.
    pub(crate) written: Option<String>,
    pub(crate) origin: Origin,
}

impl Config {
    /// Reads everything that applies to this command line.
    pub(crate) fn load(place: &Place) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self::load_from(place, &environment)
    }

    /// For the demo, which has settings of its own: of the environment only what is said of HTTP and the log counts, and
    /// no file at all.
    pub(crate) fn load_for_demo(place: &Place) -> Self {
        let mut config = Self::default();
        let applies =
            |name: &str| ["OUTBOX_HTTP_", "OUTBOX_LOG"].iter().any(|prefix| name.starts_with(prefix));
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| applies(name))
            .collect();
        variables::read(&mut config, &environment);
        config.read_flags(place);
        config.read_secret_files();
        config
    }

    /// Whether somebody has said something about a key.
    pub(crate) fn is_set(&self, path: &str) -> bool {
        self.said(&Path::plain(path)).is_some()
    }

    /// Whether any sink is named; without one, events go to standard output.
    pub(crate) fn has_sinks(&self) -> bool {
        !self.names("sinks").is_empty()
    }

    fn load_from(place: &Place, environment: &Environment) -> Self {
        let mut config = Self::default();
        let variable = environment.get(variables::FILE).filter(|file| !file.is_empty());
        let file = match (&place.config, variable) {
            (Some(file), _) => Some((file.clone(), Origin::Flag("--config".to_owned()))),
            (None, Some(file)) => Some((file.into(), Origin::Variable(variables::FILE.to_owned()))),
            (None, None) => None,
        };
        file::read(&mut config, file, environment);
        variables::read(&mut config, environment);
        config.read_flags(place);
        config.read_secret_files();
        config
    }

    fn read_flags(&mut self, place: &Place) {
        for setting in &place.set {
            self.set(setting);
        }
        if let Some(url) = &place.database {
            self.flag("database.url", "--database", url);
        }
        if let Some(table) = &place.table {
            // Whoever names one table means that one, also where the file names several.
            for path in ["database.table", "relay.tables", "cleaner.tables"] {
                self.flag(path, "--table", table);
            }
        }
    }

    /// Sets a key as a flag of its own says.
    pub(crate) fn flag(&mut self, path: &str, flag: &str, value: &str) {
        if let Some(key) = Key::named(path) {
            let value = match key.kind {
                // The table's name and the URL are checked by whoever takes them, who says it best.
                kind::Kind::Tables => Value::List(vec![value.to_owned()]),
                kind::Kind::Bool => Value::Bool(value == "true"),
                _ => Value::Text(value.to_owned()),
            };
            self.insert(&Path::plain(path), key, value, None, Origin::Flag(flag.to_owned()));
        }
    }

    /// `--set KEY=VALUE`.
    fn set(&mut self, setting: &str) {
        let origin = Origin::Flag(format!("--set {}", setting.split('=').next().unwrap_or_default().trim()));
        let Some((path, value)) = setting.split_once('=') else {
            let message = "has no value; write a key and a value, such as --set relay.batch=100";
            self.mistakes.push(Mistake::new(&origin, message));
            return;
        };
        let path = steps(path.trim());
        match Key::at(&path) {
            Some(key) => {
                // Its section exists now, whether the file has it or not.
                for length in 1..path.steps().len() {
                    let section = Path::of(path.steps()[..length].iter().cloned());
                    self.sections.entry(section).or_insert_with(|| origin.clone());
                }
                variables::set(self, &path, key, value.trim(), origin);
            }
            None => self.mistakes.push(Mistake::new(&origin, file::unknown(&path, false))),
        }
    }

    /// Secrets that are in files of their own.
    fn read_secret_files(&mut self) {
        let files: Vec<(Path, &'static Key, Entry)> = self
            .entries
            .iter()
            .filter_map(|(path, entry)| {
                let key = Key::at(path).filter(|key| key.file_of.is_some())?;
                Some((path.clone(), key, entry.clone()))
            })
            .collect();
        for (path, key, entry) in files {
            let (Some(leaf), Value::Text(file)) = (key.file_of, &entry.value) else { continue };
            let of = path.beside(leaf);
            let daemon_only = of.first() != "database";
            let mistake = |message: String| Mistake { daemon_only, ..Mistake::new(&entry.origin, message) };
            if let Some(other) = self.entries.get(&of) {
                let message = format!("{path} and {of} ({}) are both set; leave one away", other.origin);
                self.refuse(&path, mistake(message));
                continue;
            }
            let Some(target) = Key::at(&of) else { continue };
            let text = match std::fs::read_to_string(file) {
                Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
                Ok(_) => {
                    self.refuse(
                        &of,
                        mistake(format!("{path}: the file {file} is empty; write the secret into it")),
                    );
                    continue;
                }
                Err(error) => {
                    let message =
                        format!("{path}: cannot read {file} ({error}); check its name and permissions");
                    self.refuse(&of, mistake(message));
                    continue;
                }
            };
            variables::set(self, &of, target, &text, entry.origin);
        }
    }

    /// A setting; one that came from a later layer wins, also over the file that its secret would be in.
    fn insert(
        &mut self,
        path: &Path,
        key: &'static Key,
        value: Value,
        written: Option<String>,
        origin: Origin,
    ) {
        let rivals = match key.file_of {
            Some(of) => vec![path.beside(of)],
            None => vec![path.beside(&format!("{}_file", path.last()))],
        };
        for rival in rivals {
            if self.entries.get(&rival).is_some_and(|entry| entry.origin.layer() < origin.layer()) {
                self.entries.remove(&rival);
            }
        }
        self.refused.remove(path);
        self.entries.insert(path.clone(), Entry { value, written, origin });
    }

    fn refuse(&mut self, path: &Path, mistake: Mistake) {
        self.refused.insert(path.clone());
        self.entries.remove(path);
        self.mistakes.push(mistake);
    }

    /// The file that was read, if one was.
    pub(crate) fn file(&self) -> Option<&std::path::Path> {
        self.file.as_deref()
    }

    /// What looks like a mistake and may be none.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Refuses what no command can work with.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mistakes: Vec<Mistake> =
            self.mistakes.iter().filter(|mistake| !mistake.daemon_only).cloned().collect();
        if mistakes.is_empty() { Ok(()) } else { Err(mistake::failure(&sorted(mistakes))) }
    }

    /// Everything that was said.
    pub(crate) fn entries(&self) -> &BTreeMap<Path, Entry> {
        &self.entries
    }

    /// The names with a section below this one, in the order of the file.
    pub(crate) fn names(&self, section: &str) -> Vec<(String, Origin)> {
        let mut found: Vec<(String, Origin)> = self
            .sections
            .iter()
            .filter(|(path, _)| path.first() == section && path.steps().len() == 2)
            .map(|(path, origin)| (path.last().to_owned(), origin.clone()))
            .collect();
        found.sort_by(|(_, one), (_, other)| one.cmp(other));
        found
    }

    /// What was said about a key. A table's falls back on what was said for all tables.
    pub(crate) fn said(&self, path: &Path) -> Option<&Entry> {
        let own = self.entries.get(path);
        let shared = match (path.first(), Key::at(path)) {
            ("tables", Some(key)) if key.in_tables.is_some() => self.entries.get(&Path::plain(key.path)),
            _ => None,
        };
        match (own, shared) {
            // A flag or variable for every table is stronger than what the file has for one.
            (Some(own), Some(shared)) if shared.origin.layer() > own.origin.layer() => Some(shared),
            (Some(own), _) => Some(own),
            (None, shared) => shared,
        }
    }

    /// A key's value: as somebody said, else its default.
    pub(crate) fn value(&self, path: &Path) -> Option<Value> {
        let said = self.said(path).map(|entry| entry.value.clone());
        said.or_else(|| match Key::at(path) {
            Some(Key { default: Preset::Value(text), kind, .. }) => file::preset(*kind, text),
            _ => None,
        })
    }

    /// Where a key's value came from.
    pub(crate) fn origin(&self, path: &Path) -> Origin {
        self.said(path).map_or(Origin::Default, |entry| entry.origin.clone())
    }

    pub(crate) fn duration(&self, path: &Path) -> Duration {
        match self.value(path) {
            Some(Value::Duration(duration)) => duration,
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn maybe_duration(&self, path: &Path) -> Option<Duration> {
        self.value(path).is_some().then(|| self.duration(path))
    }

    pub(crate) fn count(&self, path: &Path) -> Option<u64> {
        match self.value(path) {
            Some(Value::Count(number)) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn yes(&self, path: &Path) -> bool {
        self.value(path) == Some(Value::Bool(true))
    }

    pub(crate) fn text(&self, path: &Path) -> Option<String> {
        match self.value(path) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self, path: &Path) -> Vec<String> {
        match self.value(path) {
            Some(Value::List(texts)) => texts,
            _ => Vec::new(),
        }
    }
}

/// Mistakes in the order in which somebody mends them: those of the file from its top.
fn sorted(mut mistakes: Vec<Mistake>) -> Vec<Mistake> {
    mistakes.sort_by(|one, other| one.origin.cmp(&other.origin));
    mistakes
}

/// The steps of a path on the command line, where names with dots are in quotation marks.
fn steps(path: &str) -> Path {
    let mut steps: Vec<String> = Vec::new();
    let mut step = String::new();
    let mut quoted = false;
    for c in path.chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => steps.push(std::mem::take(&mut step)),
            '[' if !quoted => {
                steps.push(std::mem::take(&mut step));
                step.push(c);
            }
            c => step.push(c),
        }
    }
    steps.push(step);
    Path::of(steps)
}

/// The name that somebody may have meant.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &str| {
        let (name, known) = (name.to_ascii_lowercase().replace('-', "_"), known.to_ascii_lowercase());
        // One in the other counts, too: `batch_size` for `batch`.
        let part = (name.len() > 3 && known.contains(&name)) || (known.len() > 3 && name.contains(&known));
        strsim::normalized_damerau_levenshtein(&name, &known) + if part { 0.2 } else { 0.0 }
    };
    known
        .map(|known| (near(known), known))
        .filter(|(near, _)| *near > 0.55)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}
