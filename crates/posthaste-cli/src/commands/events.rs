//! `posthaste events`: what is in the table.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use posthaste::Admin;
use posthaste::store::{Filter, Page, Record};
use time::OffsetDateTime;

use super::id::Id;
use crate::args::{Events, List};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::json::{self, EventJson};
use crate::target::{LOOK, Target};
use crate::{table, when};

/// Runs one of its commands.
pub(super) async fn run(target: &Target, command: Events, out: &mut impl Write) -> Result<Exit, Failure> {
    match command {
        Events::List(list) => self::list(target, *list, out).await,
        Events::Show { id, json } => show(target, &id, json, out).await,
        Events::Tail(tail) => super::tail::run(target, *tail, out).await,
    }
}

async fn list(target: &Target, list: List, out: &mut impl Write) -> Result<Exit, Failure> {
    let store = target.open().await?;
    let now = store.now().await?;
    let List { status, which, listing } = list;
    let mut filter = which.filter(now);
    filter.status = status;
    let page = Page { newest_first: !listing.oldest_first, ..Page::first(listing.limit) };
    let records = store.within(LOOK).list(&filter, page).await?;
    if listing.json {
        json::write(out, &records.iter().map(EventJson::new).collect::<Vec<_>>())?;
    } else if records.is_empty() {
        let which = if filter == Filter::all() { "no events" } else { "no such events" };
        writeln!(out, "table {} has {which}", target.table())?;
    } else {
        out.write_all(table::events(&records, now).as_bytes())?;
    }
    Ok(Exit::Ok)
}

async fn show(target: &Target, id: &str, json: bool, out: &mut impl Write) -> Result<Exit, Failure> {
    let id = Id::read(id)?;
    let store = target.open().await?;
    let id = id.resolve(target, &Admin::new(Arc::clone(&store)), &Filter::all()).await?;
    let Some(record) = store.get(id).await? else {
        let message =
            format!("table {} has no event {id}; list them with `posthaste events list`", target.table());
        return Err(Failure::new(Exit::Failed, message));
    };
    if json {
        json::write(out, &EventJson::with_payload(&record))?;
    } else {
        out.write_all(details(&record, store.now().await?, "").as_bytes())?;
    }
    Ok(Exit::Ok)
}

/// Everything about one event, a line for each thing it has, and its payload; `more` is lines that go before that.
pub(super) fn details(record: &Record, now: OffsetDateTime, more: &str) -> String {
    let mut lines = Lines::default();
    lines.add("id", Some(record.id));
    lines.add("sequence", Some(record.sequence));
    lines.add("status", Some(table::status(record, now)));
    lines.add("attempts", Some(record.attempts));
    lines.add("last error", record.last_error.as_ref());
    if let Ok(event) = &record.event {
        lines.add("topic", Some(event.topic()));
        lines.add("event type", Some(event.event_type()).filter(|kind| *kind != event.topic()));
        lines.add("aggregate", table::aggregate(event));
        lines.add("namespace", Some(event.namespace()));
        lines.add("tenant", event.tenant_id());
        lines.add("dedupe key", event.dedupe_key());
        lines.add("version", Some(event.version()));
        for (name, value) in event.headers() {
            lines.add("header", Some(format!("{name}={value}")));
        }
        lines.add("occurred", event.occurred_at().map(when::stamp));
    }
    lines.add("created", Some(when::stamp(record.created_at)));
    lines.add("available", Some(when::stamp(record.available_at)));
    lines.add("settled", record.settled_at.map(when::stamp));
    lines.add("locked by", record.locked_by.as_ref());
    lines.add("locked until", record.locked_until.map(when::stamp));
    lines.0 += more;
    match &record.event {
        Ok(event) => {
            let payload = event.payload();
            let size = payload.bytes().len();
            let unit = if size == 1 { "byte" } else { "bytes" };
            lines.add("payload", Some(format!("{}, {size} {unit}", payload.content_type())));
            if let Some(text) = payload.as_json() {
                lines.0 += &format!("\n{}\n", table::visible(text, true));
            }
        }
        Err(reason) => lines.add("unreadable", Some(reason)),
    }
    lines.0
}

/// Names and values below each other.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.0 += &format!("{name:<12}  {}\n", table::visible(&value.to_string(), false));
        }
    }
}
