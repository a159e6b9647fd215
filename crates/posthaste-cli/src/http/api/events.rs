//! Events of a table: a page of them, one of them, and a new one.

use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste::Event;
use posthaste::event::parse_id;
use posthaste::store::{Page, Record, Status};
use serde_json::json;

use super::which::{FILTER, filter};
use crate::http::input::{At, Body, Fields, Query};
use crate::http::problem::{self, Answer, Problem};
use crate::http::{Served, limits};
use crate::json::EventJson;
use crate::when;

/// What says which page.
pub(super) const PAGE: [&str; 3] = ["limit", "after", "oldest_first"];

/// `GET /api/v1/tables/{table}/events`
pub(in crate::http) async fn list(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
) -> Answer {
    let query = query.of(&[&["status"], &FILTER[..], &PAGE].concat())?;
    let opened = served.opened(&table)?;
    let page = page(&query)?;
    let status =
        query.parsed("status", |text| text.parse::<Status>().map_err(|error| error.message().to_owned()))?;
    let mut filter = filter(&query, opened.store.now().await?)?;
    filter.status = status;
    let records = opened.admin.list(&filter, one_more(page)).await?;
    Ok(paged(records, page))
}

/// The page that a query asks for.
pub(super) fn page(query: &Fields) -> Result<Page, Problem> {
    let limit = query.number("limit", 1..=limits::PAGE)?.unwrap_or(limits::USUAL_PAGE);
    let after =
        query.parsed("after", |text| parse_id(text).map_err(|_| "take it from `next` of the page before"))?;
    let first = Page { newest_first: !query.flag("oldest_first")?, ..Page::first(limit as u32) };
    Ok(after.map_or(first, |after| first.behind(after)))
}

/// With a record that only says that there are more.
pub(super) fn one_more(page: Page) -> Page {
    Page { limit: page.limit + 1, ..page }
}

/// A page, and where the next one begins.
pub(super) fn paged(mut records: Vec<Record>, page: Page) -> axum::response::Response {
    let more = records.len() > page.limit as usize;
    records.truncate(page.limit as usize);
    let next = records.last().filter(|_| more).map(|record| record.id.to_string());
    let events: Vec<EventJson<'_>> = records.iter().map(EventJson::new).collect();
    problem::json(&json!({ "events": events, "next": next }))
}

/// `GET /api/v1/tables/{table}/events/{id}`
pub(in crate::http) async fn show(
    State(served): State<Served>,
    At((table, id)): At<(String, String)>,
    query: Query,
) -> Answer {
    query.none()?;
    let opened = served.opened(&table)?;
    let id = parse_id(&id).map_err(|error| Problem::bad(error.to_string()))?;
    match opened.admin.show(id).await? {
        Some(record) => Ok(problem::json(&EventJson::with_payload(&record))),
        None => Err(Problem::missing(format!("table {table} has no event {id}"))),
    }
}

/// `POST /api/v1/tables/{table}/events`
pub(in crate::http) async fn enqueue(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    let event = event(&body.of(&EVENT)?)?;
    let enqueued = served.opened(&table)?.admin.enqueue(&[event]).await?;
    let Some(enqueued) = enqueued.first() else { return Err(Problem::missing("nothing was written")) };
    let code = if enqueued.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let answer = json!({
        "id": enqueued.id.to_string(),
        "sequence": enqueued.sequence,
        "duplicate": enqueued.duplicate,
    });
    Ok(problem::json_with(code, &answer))
}

/// What a new event is made of.
const EVENT: [&str; 16] = [
    "topic",
    "payload",
    "payload_base64",
    "content_type",
    "id",
    "event_type",
    "aggregate_type",
    "aggregate_id",
    "namespace",
    "tenant_id",
    "dedupe_key",
    "headers",
    "version",
    "delay",
    "available_at",
    "occurred_at",
];

#[cfg(test)]
mod fuzz;

fn event(body: &Fields) -> Result<Event, Problem> {
    let topic = body.text("topic")?.ok_or_else(|| Problem::bad("topic is missing; give the event one"))?;
    let mut event = Event::builder(topic);
    event = match (body.raw("payload"), body.text("payload_base64")?, body.text("content_type")?) {
        (Some(payload), None, None) => event.json_text(payload)?,
        (None, Some(text), Some(content_type)) => {
            let bytes = STANDARD
                .decode(text)
                .map_err(|error| Problem::bad(format!("payload_base64 is not base 64: {error}")))?;
            event.bytes(content_type, bytes)
        }
        _ => {
            return Err(Problem::bad(
                "the payload is unclear; give payload (any JSON), or payload_base64 and content_type",
            ));
        }
    };
    if let Some(id) = body.text("id")? {
        event = event.parse_id(&id)?;
    }
    if let Some(event_type) = body.text("event_type")? {
        event = event.event_type(event_type);
    }
    match (body.text("aggregate_type")?, body.text("aggregate_id")?) {
        (Some(kind), Some(id)) => event = event.aggregate(kind, id),
        (None, None) => {}
        _ => return Err(Problem::bad("aggregate_type and aggregate_id go together; give both or neither")),
    }
    if let Some(namespace) = body.text("namespace")? {
        event = event.namespace(namespace);
    }
    if let Some(tenant) = body.text("tenant_id")? {
        event = event.tenant(tenant);
    }
    if let Some(dedupe_key) = body.text("dedupe_key")? {
        event = event.dedupe_key(dedupe_key);
    }
    if let Some(version) = body.number("version", 0..=u64::from(u32::MAX))? {
        event = event.version(u32::try_from(version).unwrap_or(u32::MAX));
    }
    match (body.parsed("delay", when::duration)?, body.parsed("available_at", when::instant)?) {
        (Some(_), Some(_)) => {
            return Err(Problem::bad("delay and available_at exclude each other; give one"));
        }
        (Some(delay), None) => event = event.delay(delay),
        (None, Some(at)) => event = event.available_at(at),
        (None, None) => {}
    }
    if let Some(at) = body.parsed("occurred_at", when::instant)? {
        event = event.occurred_at(at);
    }
    for (name, value) in body.pairs("headers")? {
        event = event.header(name, value);
    }
    Ok(event.build()?)
}
