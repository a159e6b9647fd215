//! `posthaste enqueue`: an event from the shell into the table.
//!
//! The event is made and checked before the database is touched, so that a mistake leaves nothing behind.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use posthaste::store::{Enqueued, Filter, Page, Store};
use posthaste::{Admin, Event};
use serde_json::json;

use crate::args::Enqueue;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::Target;
use crate::{json, table};

/// How many events `--list` shows.
const NEWEST: u32 = 20;

/// Writes one event.
pub(super) async fn run(target: &Target, command: Enqueue, out: &mut impl Write) -> Result<Exit, Failure> {
    let (list, json) = (command.list, command.json);
    let event = event(command)?;
    let store = open(target).await?;
    // Relays are told of it where they listen.
    let enqueued = Admin::new(Arc::clone(&store)).enqueue(&[event]).await?;
    for enqueued in &enqueued {
        if json {
            let Enqueued { id, sequence, duplicate, .. } = enqueued;
            json::write(out, &json!({ "id": id.to_string(), "sequence": sequence, "duplicate": duplicate }))?;
        } else {
            writeln!(out, "{}", said(target, enqueued))?;
        }
    }
    if list {
        let records = store.list(&Filter::all(), Page::newest(NEWEST)).await?;
        write!(out, "\n{}", table::events(&records, store.now().await?))?;
    }
    Ok(Exit::Ok)
}

fn said(target: &Target, enqueued: &Enqueued) -> String {
    let (id, table) = (enqueued.id, target.table());
    let sequence = enqueued.sequence.map_or_else(String::new, |sequence| format!(", sequence {sequence}"));
    if enqueued.duplicate {
        format!("duplicate of {id}{sequence}: table {table} has it already, nothing was written")
    } else {
        format!("enqueued {id} in table {table}{sequence}")
    }
}

/// The store; the embedded database makes itself.
async fn open(target: &Target) -> Result<Arc<dyn Store>, Failure> {
    let new = target.missing_file();
    let store = if target.creates_itself() { target.open_or_create().await? } else { target.open().await? };
    if target.makes_itself(&*store).await? {
        store.migrate_up().await?;
    }
    if let Some(file) = new {
        // A remark; the answer is that of the insert.
        let _ = writeln!(io::stderr(), "created {}, since no --database was given", file.display());
    }
    Ok(store)
}

fn event(command: Enqueue) -> Result<Event, Failure> {
    let mut event = Event::builder(command.topic);
    event = match (command.payload, command.file, command.bytes_file) {
        (Some(payload), ..) if payload == "-" => event.json_text(text("standard input", stdin()?)?)?,
        (Some(payload), ..) => event.json_text(payload)?,
        (None, Some(file), _) => event.json_text(text(&file.display().to_string(), read(&file)?)?)?,
        (None, None, Some(file)) => event.bytes(command.content_type.unwrap_or_default(), read(&file)?),
        (None, None, None) => event,
    };
    if let Some(id) = command.id {
        event = event.parse_id(&id)?;
    }
    if let Some(event_type) = command.event_type {
        event = event.event_type(event_type);
    }
    if let Some(aggregate) = command.aggregate {
        event = event.aggregate(aggregate.kind, aggregate.id);
    }
    if let Some(namespace) = command.namespace {
        event = event.namespace(namespace);
    }
    if let Some(tenant) = command.tenant {
        event = event.tenant(tenant);
    }
    if let Some(dedupe_key) = command.dedupe_key {
        event = event.dedupe_key(dedupe_key);
    }
    if let Some(version) = command.schema {
        event = event.version(version);
    }
    if let Some(delay) = command.delay {
        event = event.delay(delay);
    }
    if let Some(at) = command.available_at {
        event = event.available_at(at);
    }
    for (name, value) in command.headers {
        event = event.header(name, value);
    }
    Ok(event.build()?)
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(|error| unreadable(&file.display().to_string(), error))
}

fn stdin() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).map_err(|error| unreadable("standard input", error))?;
    Ok(bytes)
}

fn unreadable(source: &str, error: io::Error) -> Failure {
    Failure::new(Exit::BadInput, format!("cannot read {source} ({error}); check its name and permissions"))
}

/// Text without the line break that most editors and `echo` end it with.
fn text(source: &str, bytes: Vec<u8>) -> Result<String, Failure> {
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::new(
            Exit::BadInput,
            format!("{source} is not UTF-8; send it with --bytes-file and --content-type"),
        )
    })?;
    Ok(text.trim().to_owned())
}
