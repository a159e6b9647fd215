//! The file: TOML, with the place of every key, so that a mistake is found where it was made.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{KEYS, Key, Secrecy};
use super::kind::{Given, Kind, Raw, Value};
use super::origin::Origin;
use super::path::{Path, pattern_steps};
use super::variables::substitute;
use super::{Config, Environment, Mistake, nearest};

/// What the file is called where nobody says.
pub(super) const USUAL: &str = "posthaste.toml";

/// A file that is being read.
struct Reading<'a> {
    config: &'a mut Config,
    environment: &'a Environment,
    name: Arc<str>,
    text: &'a str,
}

/// Reads a file into the configuration; the usual one may be missing.
pub(super) fn read(config: &mut Config, file: Option<(PathBuf, Origin)>, environment: &Environment) {
    let (file, origin) = match file {
        Some((file, origin)) => (file, Some(origin)),
        None => (PathBuf::from(USUAL), None),
    };
    let text = match fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound && origin.is_none() => return,
        Err(error) => {
            let message = format!(
                "cannot read the configuration {} ({error}); check its name and permissions",
                file.display()
            );
            config.mistakes.push(Mistake::new(&origin.unwrap_or(Origin::Default), message));
            return;
        }
    };
    let name: Arc<str> = name(&file).into();
    match String::from_utf8(text) {
        Ok(text) => Reading { config, environment, name, text: &text }.document(),
        Err(_) => {
            let message = format!("the configuration {name} is not UTF-8; save it as UTF-8");
            config.mistakes.push(Mistake::new(&origin.unwrap_or(Origin::Default), message));
        }
    }
    config.file = Some(file);
}

fn name(file: &FilePath) -> String {
    file.display().to_string()
}

impl Reading<'_> {
    fn document(mut self) {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            let message = format!("{}; see https://toml.io for how a file is written", error.message());
            self.config.mistakes.push(Mistake::new(&self.place(at), message));
        }
        self.table(&Path::default(), document.get_ref());
    }

    /// Where a byte of the file is.
    fn place(&self, at: usize) -> Origin {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Origin::File { file: Arc::clone(&self.name), line, column }
    }

    fn table(&mut self, section: &Path, table: &DeTable<'_>) {
        for (name, value) in table {
            let origin = self.place(name.span().start);
            self.value(&section.then(name.get_ref().as_ref()), &origin, value);
        }
    }

    fn value(&mut self, path: &Path, origin: &Origin, value: &Spanned<DeValue<'_>>) {
        if let Some(key) = Key::at(path) {
            return self.set(path, key, origin, value.get_ref());
        }
        let is_section = KEYS.iter().any(|key| key.patterns().any(|pattern| path.leads_to(&pattern)));
        if !is_section {
            self.config
                .mistakes
                .push(Mistake::new(origin, unknown(path, matches!(value.get_ref(), DeValue::Table(_)))));
            return;
        }
        let is_list = KEYS.iter().any(|key| path.then("[0]").leads_to(key.path));
        match value.get_ref() {
            DeValue::Table(table) if !is_list => {
                self.config.sections.insert(path.clone(), origin.clone());
                self.table(path, table);
            }
            DeValue::Array(items) if is_list => {
                for (at, item) in items.iter().enumerate() {
                    let path = path.then(format!("[{at}]"));
                    let origin = self.place(item.span().start);
                    match item.get_ref() {
                        DeValue::Table(table) => {
                            self.config.sections.insert(path.clone(), origin);
                            self.table(&path, table);
                        }
                        _ => {
                            let message =
                                format!("{path} is not a section; write [[{}]] above its keys", path.first());
                            self.config.mistakes.push(Mistake::new(&origin, message));
                        }
                    }
                }
            }
            _ => {
                let head = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
                let message =
                    format!("{path} is not a value; write {head} on a line of its own and its keys below");
                self.config.mistakes.push(Mistake::new(origin, message));
            }
        }
    }

    fn set(&mut self, path: &Path, key: &'static Key, origin: &Origin, value: &DeValue<'_>) {
        let secret = key.secrecy != Secrecy::Open;
        let mut written = None;
        let read = if key.kind.is_text() && mentions_variable(value) {
            written = Some(text_of(value));
            match substituted(value, self.environment) {
                // What a variable holds is as little shown as a secret: it may be one, in the wrong place.
                Ok(value) => key.kind.read(&Given { value: Raw::Toml(&value), secret: true }),
                Err(message) => {
                    self.config.refuse(
                        path,
                        Mistake {
                            daemon_only: path.first() != "database",
                            ..Mistake::new(origin, format!("{path} {message}"))
                        },
                    );
                    return;
                }
            }
        } else {
            key.kind.read(&Given { value: Raw::Toml(value), secret })
        };
        match read {
            Ok(value) => self.config.insert(path, key, value, written, origin.clone()),
            Err(message) => self.config.refuse(path, Mistake::new(origin, format!("{path} {message}"))),
        }
    }
}

fn mentions_variable(value: &DeValue<'_>) -> bool {
    match value {
        DeValue::String(text) => text.contains("${"),
        DeValue::Array(items) => items.iter().any(|item| mentions_variable(item.get_ref())),
        _ => false,
    }
}

/// As it stands in the file.
fn text_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Array(items) => {
            items.iter().map(|item| text_of(item.get_ref())).collect::<Vec<_>>().join(", ")
        }
        value => value.as_str().unwrap_or_default().to_owned(),
    }
}

/// The same value with the environment's variables in it.
fn substituted(value: &DeValue<'_>, environment: &Environment) -> Result<DeValue<'static>, String> {
    match value {
        DeValue::String(text) => Ok(DeValue::String(substitute(text, environment)?.into())),
        DeValue::Array(items) => items
            .iter()
            .map(|item| Ok(Spanned::new(item.span(), substituted(item.get_ref(), environment)?)))
            .collect::<Result<_, String>>()
            .map(DeValue::Array),
        value => {
            let mut value = value.clone();
            value.make_owned();
            // Owned by now, whatever its type says.
            match value {
                DeValue::Boolean(yes) => Ok(DeValue::Boolean(yes)),
                _ => Err("has other things than texts in it; write each in quotation marks".to_owned()),
            }
        }
    }
}

/// That there is no such key, and which one may be meant.
pub(super) fn unknown(path: &Path, is_section: bool) -> String {
    let leaf = path.last();
    if path.steps().len() == 1 {
        let mut sections: Vec<&str> = KEYS.iter().map(|key| pattern_steps(key.path)[0]).collect();
        sections.push("tables");
        sections.sort_unstable();
        sections.dedup();
        let what = if is_section { "section" } else { "key" };
        // A key that has lost its section is more likely than a section without a body.
        let lost = (!is_section).then(|| KEYS.iter().find(|key| key.leaf() == leaf)).flatten();
        return match (lost, nearest(leaf, sections.iter().copied())) {
            (Some(key), _) => format!("there is no {what} {path}; did you mean {}?", key.path),
            (None, Some(near)) => format!("there is no {what} {path}; did you mean [{near}]?"),
            (None, None) => format!("there is no {what} {path}; there are {}", sections.join(", ")),
        };
    }
    let patterns = || KEYS.iter().flat_map(Key::patterns);
    let beside: Vec<String> = patterns()
        .filter(|pattern| path.beside("").leads_to_leaf(pattern))
        .filter_map(|pattern| pattern_steps(&pattern).last().map(|leaf| (*leaf).to_owned()))
        .collect();
    if let Some(near) = nearest(leaf, beside.iter().map(String::as_str)) {
        return format!("there is no key {path}; did you mean {}?", path.beside(near));
    }
    // The right key in the wrong section, rather than any that only sounds alike.
    if let Some(pattern) = patterns().find(|pattern| pattern_steps(pattern).last() == Some(&leaf)) {
        return format!("there is no key {path}; did you mean {}?", path.fill(&pattern));
    }
    if beside.is_empty() {
        return format!("there is no key {path}; see the reference of the configuration");
    }
    format!("there is no key {path}; there are {}", beside.join(", "))
}

impl Path {
    /// Whether a pattern is a key of the section that this path is in.
    fn leads_to_leaf(&self, pattern: &str) -> bool {
        let steps = pattern_steps(pattern);
        let own = self.steps();
        steps.len() == own.len() && Self::of(own[..own.len() - 1].iter().cloned()).leads_to(pattern)
    }
}

/// A value of the default's text.
pub(super) fn preset(kind: Kind, text: &str) -> Option<Value> {
    kind.read(&Given { value: Raw::Plain(text), secret: false }).ok()
}
