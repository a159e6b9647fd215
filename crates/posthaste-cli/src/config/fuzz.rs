//! Configurations with anything in them: read, or refused with what is wrong and where, and no secret in any of it.

#![allow(clippy::unwrap_used, reason = "tests")]

use posthaste_testkit::fuzz::text;
use std::fs;
use std::path::PathBuf;

use super::key::{KEYS, Key, Secrecy};
use super::mistake::{Mistake, MistakeJson};
use super::origin::Origin;
use super::secret::masked;
use super::{Config, Environment};
use crate::CORPUS;
use crate::args::Place;

/// What must not be said: of no kind that anything is called by.
const SECRET: &str = "hunter22 §cr\u{eb}t";

/// A file that is gone at the end.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("posthaste-{name}-{}.toml", std::process::id())))
    }

    fn holding(&self, bytes: &[u8]) -> Config {
        fs::write(&self.0, bytes).unwrap();
        let place = Place { config: Some(self.0.clone()), ..Place::default() };
        Config::load_from(&place, &Environment::from([("SECRET".to_owned(), SECRET.to_owned())]))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn op3_a_file_is_read_or_every_mistake_has_its_place() {
    let file = File::new("fuzz");
    CORPUS.each_input("config", 250, |input| {
        let config = file.holding(input);
        let lines = text(input).map_or(1, |text| text.matches('\n').count() + 1);
        for mistake in config.settings().err().into_iter().flatten() {
            assert!(!mistake.message.is_empty());
            assert!(!mistake.message.contains(char::is_control), "{mistake}");
            if let Origin::File { line, column, .. } = &mistake.origin {
                assert!((1..=lines).contains(line) && *column >= 1, "{mistake}");
            }
        }
        // What every command does with it.
        let _ = (config.check(), config.databases(), config.tables(true), config.log());
    });
}

#[test]
fn op3_a_setting_on_the_command_line_is_read_or_refused() {
    CORPUS.each_input("settings", 600, |input| {
        let Some(text) = text(input) else { return };
        let place = Place { set: text.split('\n').map(str::to_owned).collect(), ..Place::default() };
        let config = Config::load_from(&place, &Environment::new());
        for mistake in config.settings().err().into_iter().flatten() {
            assert!(!mistake.message.is_empty());
        }
    });
}

/// Everything that is ever said of a configuration.
fn said(config: &Config) -> String {
    let mut said = config.warnings().join("\n");
    match config.settings() {
        Ok(settings) => said += &format!("{settings:?}"),
        Err(mistakes) => {
            let json: Vec<MistakeJson> = mistakes.iter().map(MistakeJson::from).collect();
            said += &mistakes.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n");
            said += &serde_json::to_string(&json).unwrap();
        }
    }
    for (path, entry) in config.entries() {
        let secrecy = Key::at(path).map_or(Secrecy::Open, |key| key.secrecy);
        said += &masked(&entry.value.shown(), secrecy);
    }
    said
}

/// A file with this as a key's value, in the section that the key needs.
fn with(key: &Key, value: &str) -> String {
    let path = key.path.replace("sinks.*", "sinks.s").replace("headers.*", "headers.h");
    let (section, leaf) = path.split_once('.').unwrap();
    let leaf = leaf.strip_prefix("s.").unwrap_or(leaf);
    match section {
        "sinks" => {
            let url = if key.leaf() == "url" { "" } else { "url = \"http://localhost/\"\n" };
            format!("[sinks.s]\nkind = {:?}\n{url}{leaf} = {value}\n", key.of[0])
        }
        section => format!("[{section}]\n{leaf} = {value}\n"),
    }
}

/// Of every key that is secret, whatever is wrong with its value.
#[test]
fn op3_no_mistake_repeats_a_secret() {
    let file = File::new("secret");
    let secret = KEYS.iter().filter(|key| key.secrecy != Secrecy::Open);
    let mut tried = 0;
    for key in secret {
        let plain = SECRET.replace(' ', "-");
        for (value, hidden) in [
            (format!("{plain:?}"), plain.as_str()),
            (format!("{SECRET:?}"), SECRET),
            (format!("\"https://u:{plain}@localhost/?token={plain}\""), &plain),
            (format!("\"{plain}\\u0000\""), &plain),
            ("\"${SECRET}\"".to_owned(), SECRET),
            ("[\"${SECRET}\", 1]".to_owned(), SECRET),
            (format!("[\"{SECRET}\", {{ a = 1 }}]"), SECRET),
            (format!("{{ x = \"{SECRET}\" }}"), SECRET),
            (format!("\"{SECRET}"), SECRET),
            (format!("'{SECRET}"), SECRET),
            (format!("\"\"\"{SECRET}"), SECRET),
            (format!("\"{SECRET}\" x"), SECRET),
            (SECRET.to_owned(), SECRET),
            ("271828182845".to_owned(), "271828182845"),
            ("2.71828182845".to_owned(), "2.71828182845"),
            ("2718-02-18".to_owned(), "2718-02-18"),
        ] {
            let config = file.holding(with(key, &value).as_bytes());
            let said = said(&config);
            assert!(!said.contains(hidden), "{} = {value}: {said}", key.path);
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// A variable of the environment may hold a secret, wherever somebody names it.
#[test]
fn op3_no_mistake_repeats_what_a_variable_holds() {
    let file = File::new("variable");
    // The name of a file that holds a secret is none.
    for key in KEYS.iter().filter(|key| !key.path.contains(['*', '[']) && key.file_of.is_none()) {
        for value in ["\"${SECRET}\"", "[\"${SECRET}\"]"] {
            let config = file.holding(with(key, value).as_bytes());
            for mistake in config.settings().err().into_iter().flatten() {
                assert!(!mistake.to_string().contains(SECRET), "{} = {value}: {mistake}", key.path);
            }
        }
    }
}

/// A password in a URL, whatever stands around it.
#[test]
fn op3_no_url_is_shown_with_its_password() {
    CORPUS.each_input("urls", 15_000, |input| {
        let Some(text) = text(input) else { return };
        let mut parts = text.splitn(3, '\n');
        let mut part = || parts.next().unwrap_or_default();
        let (scheme, user, rest) = (part(), part(), part());
        let hidden = "hunter22%21";
        let url = format!("{scheme}://{user}:{hidden}@{rest}");
        for secrecy in [Secrecy::Password, Secrecy::Login, Secrecy::Path] {
            let shown = masked(&url, secrecy);
            assert!(!shown.contains(hidden), "{url:?} as {shown:?}");
        }
    });
}
