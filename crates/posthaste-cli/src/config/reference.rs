//! The reference in the book is the program's own word: its tables are made from the keys, and every key is shown to
//! change something.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::PathBuf;

use super::key::{KEYS, Key, Preset, SINKS};
use super::path::{Path, pattern_steps};
use super::{Config, Environment};
use crate::args::Place;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/reference/config.md");

/// How the page is written anew: `UPDATE=1 cargo test -p posthaste-cli op3_the_reference`.
const BLESS: &str = "UPDATE";

fn cell(text: &str) -> String {
    assert!(!text.contains('|'), "a table has no room for {text:?}");
    text.to_owned()
}

fn row(key: &Key) -> String {
    let default = match key.default {
        Preset::Value(text) => format!("`{text}`"),
        Preset::Unset(text) => text.to_owned(),
    };
    let code = |text: &str| format!("`{text}`");
    let mut elsewhere: Vec<String> = key.variable.map(code).into_iter().collect();
    elsewhere.extend(key.flag.map(code));
    // A header's key is its name.
    let leaf = if key.path.ends_with(".headers.*") { "headers.NAME" } else { key.leaf() };
    let mut about = key.about.to_owned();
    if let Some(name) = key.in_tables.filter(|name| *name != leaf) {
        about += &format!(" In `[tables.NAME]` it is `{name}`.");
    }
    let cells = [code(leaf), key.kind.name(), default, elsewhere.join(", "), about];
    format!("| {} |", cells.map(|text| cell(&text)).join(" | "))
}

fn table<'a>(keys: impl Iterator<Item = &'a Key>, required: bool) -> String {
    let head = "| key | takes | default | also set by | |\n|---|---|---|---|---|";
    let rows: Vec<String> = keys
        .map(|key| {
            if required && key.required { row(key).replacen("| none |", "| required |", 1) } else { row(key) }
        })
        .collect();
    format!("{head}\n{}", rows.join("\n"))
}

/// The table of a marker in the page: a section, or a kind of sink.
fn made(marker: &str) -> String {
    let section = |key: &&Key| pattern_steps(key.path)[0] == marker.split(' ').next().unwrap();
    let keys = KEYS.iter().filter(section);
    match marker.split_once(' ') {
        None => table(keys.filter(|key| key.of.is_empty()), false),
        Some((_, "all")) => table(keys.filter(|key| key.of == SINKS), true),
        Some((_, kind)) => table(keys.filter(|key| key.of != SINKS && key.of.contains(&kind)), true),
    }
}

#[test]
fn op3_the_reference_is_what_the_keys_say() {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut written = String::new();
    let mut markers = Vec::new();
    let mut rest = page.as_str();
    while let Some((before, after)) = rest.split_once("<!-- keys: ") {
        let (marker, after) = after.split_once(" -->").unwrap();
        let (_, after) = after.split_once("<!-- end -->").unwrap();
        written += &format!("{before}<!-- keys: {marker} -->\n\n{}\n\n<!-- end -->", made(marker));
        markers.push(marker.to_owned());
        rest = after;
    }
    written += rest;
    if std::env::var_os(BLESS).is_some() {
        fs::write(PAGE, &written).unwrap();
    }
    let page = fs::read_to_string(PAGE).unwrap();
    assert_eq!(page, written, "write the page anew: {BLESS}=1 cargo test -p posthaste-cli op3_the_reference");
    for key in KEYS {
        let rows = row(key);
        let about = rows.rsplit(" | ").next().unwrap();
        assert!(page.contains(about), "{} is not in the reference", key.path);
    }
}

#[test]
fn op3_keys_are_told_apart() {
    let mut places: Vec<String> = KEYS.iter().flat_map(Key::patterns).collect();
    let mut variables: Vec<&str> = KEYS.iter().filter_map(|key| key.variable).collect();
    for names in [&mut places, &mut variables.iter_mut().map(|name| name.to_string()).collect::<Vec<_>>()] {
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
    for key in KEYS {
        if let Preset::Value(text) = key.default {
            assert!(super::file::preset(key.kind, text).is_some(), "{}: {text} is no value", key.path);
        }
        assert!(!key.example.is_empty() && key.about.ends_with('.'), "{}", key.path);
    }
}

/// What must be there for a key to mean something.
fn context(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap() {
        "client_certificate" => "client_key = \"k\"",
        "client_key" => "client_certificate = \"c\"",
        "user" => "password = \"p\"",
        "password" | "password_file" => "user = \"u\"",
        "subjects" | "duplicate_window" | "max_age" | "max_bytes" | "replicas" | "storage" => {
            "stream = \"S\"\ncreate_stream = true"
        }
        "create_stream" => "stream = \"S\"",
        "lanes" => "mode = \"stream\"",
        _ => "",
    }
}

struct Case {
    dir: PathBuf,
    environment: Environment,
}

impl Case {
    fn settings(&self, text: &str) -> String {
        let file = self.dir.join("posthaste.toml");
        fs::write(&file, text).unwrap();
        let place = Place { config: Some(file), ..Place::default() };
        let config = Config::load_from(&place, &self.environment);
        assert!(config.mistakes.is_empty(), "{:?} in\n{text}", config.mistakes);
        format!("{:?}", config.make().0)
    }
}

#[test]
fn op3_every_key_has_an_effect() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/tmp")
        .join(format!("keys-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let names = ["DB_PASSWORD", "HOOK_TOKEN", "NATS_TOKEN", "NATS_PASSWORD", "NATS_NKEY", "OPERATOR_TOKEN"];
    let environment = names.into_iter().map(|name| (name.to_owned(), "x".to_owned())).collect();
    let case = Case { dir, environment };
    let secret = case.dir.join("secret");
    fs::write(&secret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    let mut shown = 0;
    for key in KEYS {
        for pattern in key.patterns() {
            let steps = pattern_steps(&pattern);
            let leaf = *steps.last().unwrap();
            let value = if key.file_of.is_some() {
                format!("{:?}", secret.display().to_string())
            } else {
                key.example.to_owned()
            };
            let own = if leaf == "*" { format!("headers.a = {value}") } else { format!("{leaf} = {value}") };
            let kind = key.of.first().copied().unwrap_or("stdout");
            let (with, without) = match steps[0] {
                "sinks" if leaf == "kind" => {
                    ("[sinks.a]\nkind = \"nats\"".to_owned(), "[sinks.a]\nkind = \"stdout\"".to_owned())
                }
                "sinks" => {
                    let needs = match kind {
                        "http" | "nats" if !["url", "url_file"].contains(&leaf) => "url = \"nats://a\"",
                        "file" if leaf != "path" => "path = \"a\"",
                        _ => "",
                    };
                    let base = format!("[sinks.a]\nkind = \"{kind}\"\n{needs}\n{}\n", context(&pattern));
                    (format!("{base}{own}"), base)
                }
                "routes" => {
                    let base = "[sinks.out]\nkind = \"stdout\"\n[sinks.broker]\nkind = \"stdout\"\n[tables.orders_outbox]\n[[routes]]\n";
                    let sink = if leaf == "sink" { "" } else { "sink = \"out\"\n" };
                    (format!("{base}{sink}{own}"), format!("{base}sink = \"out\"\n"))
                }
                "tables" | "topics" => {
                    let base = format!("[{}.a]\n{}\n", steps[0], context(&pattern));
                    (format!("{base}{own}"), base)
                }
                section => (format!("[{section}]\n{own}"), String::new()),
            };
            assert_ne!(case.settings(&with), case.settings(&without), "{pattern} changes nothing:\n{with}");
            shown += 1;
        }
    }
    assert!(shown > KEYS.len());
    fs::remove_dir_all(&case.dir).unwrap();
}

#[test]
fn op3_later_settings_win() {
    let set = |set: &[&str], variables: &[(&str, &str)]| {
        let place = Place { set: set.iter().map(ToString::to_string).collect(), ..Place::default() };
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Config::load_from(&place, &variables)
    };
    let path = Path::plain("relay.batch");
    let config = set(&["relay.batch=7"], &[("OUTBOX_RELAY_BATCH_SIZE", "6")]);
    assert_eq!(
        (config.count(&path), config.origin(&path).to_string().as_str()),
        (Some(7), "--set relay.batch")
    );
    let config = set(&[], &[("OUTBOX_RELAY_BATCH_SIZE", "6")]);
    assert_eq!(
        (config.count(&path), config.origin(&path).to_string().as_str()),
        (Some(6), "OUTBOX_RELAY_BATCH_SIZE")
    );
    let config = set(&[], &[("OUTBOX_RELAY_BATCH_SIZE", "")]);
    assert_eq!((config.count(&path), config.origin(&path).to_string().as_str()), (Some(500), "default"));
    let config = set(&["tables.\"shop.a\".batch=9"], &[]);
    assert_eq!(config.count(&Path::of(["tables", "shop.a", "batch"])), Some(9));
    assert_eq!(config.make().0.tables[0].name.to_string(), "shop.a");
}
