//! `posthaste status`: how a table stands, once or again and again.
//!
//! A look costs a bounded amount whatever the table's size. What the database does not know is a dash, or null: how
//! fast events are delivered where no row says so, and relays of a queue that have nothing to do.

use std::io::{self, Write};
use std::time::Duration;

use posthaste::admin::TableStatus;
use posthaste::store::{Count, Mode};
use posthaste::{Admin, ErrorKind};

use crate::args::StatusOf;
use crate::daemon::signals::Interrupt;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{self, Screen};
use crate::table::Cell;
use crate::table::Column::{Extra, Rigid, Soft, Spare};
use crate::target::Target;
use crate::tone::Tone;
use crate::{json, table, when};

/// From which difference of the clocks on it is worth a look.
const SKEWED: Duration = Duration::from_secs(1);

/// Shows the tables, and with `--watch` goes on until somebody has seen enough.
pub(super) async fn run(targets: &[Target], asked: &StatusOf, out: &mut impl Write) -> Result<Exit, Failure> {
    let mut admins = Vec::new();
    for target in targets {
        admins.push(Admin::new(target.open().await?));
    }
    let first = look_at(&admins).await?;
    let Some(pause) = asked.watch else {
        match first.as_slice() {
            [one] if asked.json => json::write(out, &json::status(one))?,
            several if asked.json => json::write(out, &several.iter().map(json::status).collect::<Vec<_>>())?,
            statuses => out.write_all(rows(statuses).as_bytes())?,
        }
        return Ok(Exit::Ok);
    };
    let mut enough = Interrupt::new()?;
    let mut shown = Screen::default();
    let mut look: posthaste::Result<_> = Ok(first);
    loop {
        match look {
            Ok(statuses) if asked.json => {
                for status in &statuses {
                    json::line(out, &json::status(status))?;
                }
            }
            Ok(statuses) if screen::can_move(&io::stdout()) => {
                let now = statuses.first().map_or_else(String::new, |status| when::stamp(status.now));
                shown.draw(out, &format!("{now}\n{}", rows(&statuses)))?;
            }
            Ok(statuses) => {
                for status in &statuses {
                    writeln!(out, "{}", line(status))?;
                }
            }
            // A database that is away for a while is one of the things to watch.
            Err(error) if *error.kind() == ErrorKind::Unreachable => {
                writeln!(io::stderr(), "posthaste: {error}")?;
            }
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
        look = tokio::select! {
            look = async {
                tokio::time::sleep(pause).await;
                look_at(&admins).await
            } => look,
            () = enough.next() => return Ok(Exit::Ok),
        };
    }
}

async fn look_at(admins: &[Admin]) -> posthaste::Result<Vec<TableStatus>> {
    let mut statuses = Vec::new();
    for admin in admins {
        statuses.push(admin.status().await?);
    }
    Ok(statuses)
}

/// A line for each table, below their names.
fn rows(statuses: &[TableStatus]) -> String {
    let names = [
        Soft("TABLE"),
        Extra("MODE"),
        Rigid("PENDING"),
        Rigid("OLDEST"),
        Extra("PROCESSING"),
        Rigid("DEAD"),
        Extra("DELIVERED/S"),
        Extra("RELAYS"),
        Rigid("BLOCKED"),
        Spare("SCHEMA"),
        Spare("SKEW"),
    ];
    let bad = |count: Count| if count.n > 0 { Tone::Bad } else { Tone::Plain };
    table::columns(
        names,
        statuses.iter().map(|status| {
            let (schema, newest) = status.schema;
            let behind = if schema < newest { Tone::Wary } else { Tone::Plain };
            let skewed = if status.clock_skew.unsigned_abs() > SKEWED { Tone::Wary } else { Tone::Plain };
            [
                status.table.to_string().into(),
                mode(status).to_owned().into(),
                status.stats.pending.to_string().into(),
                oldest(status).into(),
                status.stats.processing.to_string().into(),
                Cell::new(status.stats.dead.to_string(), bad(status.stats.dead)),
                rate(status).into(),
                relays(status).map_or_else(|| "-".to_owned(), |relays| relays.len().to_string()).into(),
                match blocked(status) {
                    Some(blocked) => Cell::new(blocked.to_string(), bad(blocked)),
                    None => "-".to_owned().into(),
                },
                Cell::new(version(status), behind),
                Cell::new(skew(status), skewed),
            ]
        }),
    )
}

/// The same as one line that needs no heading.
fn line(status: &TableStatus) -> String {
    let mut line = format!(
        "{}  {}: {} pending, oldest {}, {} processing, {} dead, {} delivered/s, {} relays",
        when::stamp(status.now),
        status.table,
        status.stats.pending,
        oldest(status),
        status.stats.processing,
        status.stats.dead,
        rate(status),
        relays(status).map_or_else(|| "-".to_owned(), |relays| relays.len().to_string()),
    );
    if let Some(blocked) = blocked(status) {
        line += &format!(", {blocked} blocked");
    }
    line
}

fn mode(status: &TableStatus) -> &'static str {
    status.mode.map_or("queue", Mode::as_str)
}

fn oldest(status: &TableStatus) -> String {
    status.stats.oldest_age.map_or_else(|| "-".to_owned(), when::length)
}

fn rate(status: &TableStatus) -> String {
    match status.delivered.map(|delivered| delivered.per_second()) {
        None => "-".to_owned(),
        Some(rate) if rate >= 10.0 => format!("{rate:.0}"),
        Some(rate) => format!("{rate:.1}"),
    }
}

/// Who is at work. A queue knows of those that hold an event: of nobody means nothing.
fn relays(status: &TableStatus) -> Option<&[String]> {
    let is_stream = matches!(status.mode, Some(Mode::Stream(_)));
    (is_stream || !status.workers.is_empty()).then_some(&status.workers[..])
}

/// A queue blocks no aggregates.
fn blocked(status: &TableStatus) -> Option<Count> {
    matches!(status.mode, Some(Mode::Stream(_))).then_some(status.blocked)
}

fn version(status: &TableStatus) -> String {
    match status.schema {
        (schema, newest) if schema < newest => format!("{schema} of {newest}"),
        (schema, _) => schema.to_string(),
    }
}

/// The database's clock less ours.
fn skew(status: &TableStatus) -> String {
    let length = when::length(status.clock_skew.unsigned_abs());
    // What is shown as nothing is not below nothing.
    let sign = if status.clock_skew.is_negative() && length != "0ms" { "-" } else { "" };
    format!("{sign}{length}")
}
