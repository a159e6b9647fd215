//! `posthaste config`: what is wrong with the configuration, and what it comes to.

use std::io::{self, Write};

use clap::Subcommand;
use serde_json::json;

use crate::config::Config;
use crate::config::key::{KEYS, Key, Preset, Secrecy};
use crate::config::kind::Kind;
use crate::config::mistake::{self, MistakeJson};
use crate::config::path::{Path, pattern_steps};
use crate::config::secret::masked;
use crate::config::settings::Settings;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::table::Column::{Rigid, Soft};
use crate::{json, table};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Find every mistake, with its line and what to do; exit code 3 if there is one
    Check {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// Show every setting and where it came from; secrets are not shown
    Print {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    /// List every key: what it takes, its default, the variable that sets it, and what it is for
    Keys {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs one of its commands.
pub(super) fn run(config: &Config, command: ConfigCommand, out: &mut impl Write) -> Result<Exit, Failure> {
    match command {
        ConfigCommand::Check { json } => check(config, json, out),
        ConfigCommand::Print { json } => print(config, json, out),
        ConfigCommand::Keys { json } => keys(json, out),
    }
}

/// Says on standard error what looks like a mistake and may be none.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings {
        // A remark; where nobody reads it, nothing is lost.
        let _ = writeln!(io::stderr(), "posthaste: warning: {warning}");
    }
}

fn check(config: &Config, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let settings = config.settings();
    if json {
        let file = config.file().map(|file| file.display().to_string());
        let answer = match &settings {
            Ok(settings) => json!({
                "ok": true,
                "file": file,
                "tables": settings.tables.iter().map(|table| table.name.to_string()).collect::<Vec<_>>(),
                "sinks": settings.sinks.keys().collect::<Vec<_>>(),
                "routes": settings.routes.len(),
                "mistakes": [],
                "warnings": settings.warnings,
            }),
            Err(mistakes) => json!({
                "ok": false,
                "file": file,
                "mistakes": mistakes.iter().map(MistakeJson::from).collect::<Vec<_>>(),
                "warnings": config.warnings(),
            }),
        };
        json::write(out, &answer)?;
        return Ok(if settings.is_ok() { Exit::Ok } else { Exit::BadInput });
    }
    match settings {
        Ok(settings) => {
            warn(&settings.warnings);
            writeln!(out, "{}", said(config, &settings))?;
            Ok(Exit::Ok)
        }
        Err(mistakes) => {
            warn(config.warnings());
            Err(mistake::failure(&mistakes))
        }
    }
}

fn said(config: &Config, settings: &Settings) -> String {
    let file = config.file().map_or_else(
        || "no file (posthaste.toml is not here), so defaults and the environment".to_owned(),
        |file| file.display().to_string(),
    );
    let tables: Vec<String> = settings.tables.iter().map(|table| table.name.to_string()).collect();
    let sinks: Vec<String> =
        settings.sinks.iter().map(|(name, sink)| format!("{name} ({})", sink.kind_name())).collect();
    let (one, many) = (settings.routes.len() == 1, settings.routes.len());
    let routes = if one { "1 route".to_owned() } else { format!("{many} routes") };
    format!(
        "{file}: ok\n{}: {}\n{}: {}\n{routes}",
        counted(tables.len(), "table"),
        tables.join(", "),
        counted(sinks.len(), "sink"),
        sinks.join(", "),
    )
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The reference without the book. It needs no configuration, and is there when that is wrong.
fn keys(json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    if json {
        let keys: Vec<_> = KEYS
            .iter()
            .map(|key| {
                let default = match key.default {
                    Preset::Value(text) => Some(text),
                    Preset::Unset(_) => None,
                };
                let (takes, variable) = (key.kind.name(), key.variable);
                json!({ "key": key.path, "takes": takes, "default": default, "variable": variable, "about": key.about })
            })
            .collect();
        json::write(out, &keys)?;
        return Ok(Exit::Ok);
    }
    for key in KEYS {
        writeln!(out, "{}\n    {}", key.path, plain(key.about))?;
        writeln!(out, "    takes: {}; default: {}", plain(&key.kind.name()), plain(key.default.shown()))?;
        if let Some(variable) = key.variable {
            writeln!(out, "    variable: {variable}")?;
        }
    }
    Ok(Exit::Ok)
}

/// Without the marks that the book needs.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

/// One line of the answer.
struct Line {
    path: Path,
    value: String,
    origin: String,
}

fn print(config: &Config, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    // What cannot be read has no value to be shown.
    config.check()?;
    warn(config.warnings());
    let lines = lines(config);
    if json {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| json!({ "key": line.path.to_string(), "value": line.value, "origin": line.origin }))
            .collect();
        json::write(out, &lines)?;
    } else {
        let rows = lines.into_iter().map(|line| [line.path.to_string(), line.value, line.origin]);
        out.write_all(table::columns([Rigid("KEY"), Soft("VALUE"), Soft("ORIGIN")], rows).as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// Every setting. Of tables, what differs from everybody's; of sinks, what their kind has.
fn lines(config: &Config) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut sections: Vec<&str> = Vec::new();
    for key in KEYS {
        let section = pattern_steps(key.path)[0];
        if !sections.contains(&section) {
            sections.push(section);
        }
    }
    for section in sections {
        let keys: Vec<&Key> = KEYS.iter().filter(|key| pattern_steps(key.path)[0] == section).collect();
        if !keys.iter().any(|key| key.path.contains(['*', '['])) {
            lines.extend(keys.iter().filter_map(|key| line(config, key, Path::plain(key.path))));
            continue;
        }
        for (name, _) in config.names(section) {
            let own = |path: &Path| path.first() == section && path.steps().get(1) == Some(&name);
            if section == "tables" {
                let said = config.entries().keys().filter(|path| own(path));
                lines.extend(said.filter_map(|path| line(config, Key::at(path)?, path.clone())));
                continue;
            }
            let kind = config.text(&Path::of([section, &name, "kind"]));
            for key in &keys {
                if section == "sinks" && !kind.as_deref().is_some_and(|kind| key.of.contains(&kind)) {
                    continue;
                }
                let path = Path::of([section, &name]).fill(key.path);
                if path.steps().contains(&"*".to_owned()) {
                    let said = config.entries().keys().filter(|path| own(path) && path.fits(key.path));
                    lines.extend(said.filter_map(|path| line(config, key, path.clone())));
                } else {
                    lines.extend(line(config, key, path));
                }
            }
        }
    }
    lines
}

/// A key's line; none where there is neither a value nor a default.
fn line(config: &Config, key: &Key, path: Path) -> Option<Line> {
    let Some(entry) = config.said(&path) else {
        let value = match key.default {
            Preset::Value(text) => text.to_owned(),
            Preset::Unset("none") => return None,
            Preset::Unset(_) if key.kind == Kind::Tables && path.first() != "routes" => {
                let tables = config.tables(path.first() == "cleaner");
                tables.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
            Preset::Unset(means) => format!("({})", plain(means)),
        };
        return Some(Line { path, value, origin: "default".to_owned() });
    };
    // A server of NATS is known by its host and port; a webhook's path may be its secret.
    let kind = config.text(&path.beside("kind"));
    let secrecy = match key.secrecy {
        Secrecy::Path if kind.as_deref() == Some("nats") => Secrecy::Login,
        secrecy => secrecy,
    };
    let value = match &entry.written {
        // What the file has in place of a secret is none.
        Some(written) => masked_around_variables(written, secrecy),
        None => masked(&entry.value.shown(), secrecy),
    };
    Some(Line { path, value, origin: entry.origin.to_string() })
}

/// A text that names variables: those are shown, and what else is secret in it is not.
fn masked_around_variables(written: &str, secrecy: Secrecy) -> String {
    let is_variable =
        written.starts_with("${") && written.ends_with('}') && written.matches('}').count() == 1;
    if is_variable { written.to_owned() } else { masked(written, secrecy) }
}
