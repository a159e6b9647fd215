//! Dead letters: a page of them, and what operators do with them.

use axum::extract::State;
use posthaste::Admin;
use posthaste::admin::Change;
use posthaste::event::parse_id;
use posthaste::store::Filter;
use serde_json::json;

use super::change::{self, DOING, Doing, Step};
use super::events::{PAGE, one_more, page, paged};
use super::which::{FILTER, filter};
use crate::http::input::{At, Body, Fields, Query};
use crate::http::problem::{self, Answer, Problem};
use crate::http::{Served, limits};

/// `GET /api/v1/tables/{table}/dead`
pub(in crate::http) async fn list(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
) -> Answer {
    let query = query.of(&[&FILTER[..], &PAGE].concat())?;
    let opened = served.opened(&table)?;
    let page = page(&query)?;
    let filter = filter(&query, opened.store.now().await?)?;
    let records = opened.admin.dead_letters(&filter, one_more(page)).await?;
    Ok(paged(records, page))
}

/// `POST /api/v1/tables/{table}/dead/replay`
pub(in crate::http) async fn replay(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    mend(&served, &table, "replay", Admin::replay, body).await
}

/// `POST /api/v1/tables/{table}/dead/discard`
pub(in crate::http) async fn discard(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    mend(&served, &table, "discard", Admin::discard, body).await
}

/// What is done to dead letters that fit.
type Deed = fn(&Admin, Filter) -> Change;

async fn mend(served: &Served, table: &str, action: &'static str, deed: Deed, body: Body) -> Answer {
    let body = body.of(&[&["ids", "filter", "all"], &DOING[..]].concat())?;
    let ids = body.texts("ids")?;
    let which = body.object("filter", "filter.", &FILTER)?;
    let all = body.flag("all")?;
    let opened = served.opened(table)?;
    let doing = served.doing(&body, table, ids.is_some())?;
    let filter = match (ids, which, all) {
        (Some(ids), None, false) => {
            return one_by_one(&opened.admin, table, (action, deed), &doing, &ids).await;
        }
        (None, Some(which), false) => {
            require_some(&which)?;
            filter(&which, opened.store.now().await?)?
        }
        (None, None, true) => Filter::all(),
        _ => {
            return Err(Problem::bad(
                "no dead events are named, or in two ways; give one of ids, filter and \"all\": true",
            ));
        }
    };
    let step = Step { kind: "dead", change: deed(&opened.admin, filter) };
    change::carry_out(table, action, &doing, vec![step]).await
}

/// A filter that was meant to have something in it must not mean everything.
fn require_some(which: &Fields) -> Result<(), Problem> {
    match which.is_empty() {
        true => Err(Problem::bad("filter is empty; give \"all\": true for every dead event")),
        false => Ok(()),
    }
}

async fn one_by_one(
    admin: &Admin,
    table: &str,
    (action, deed): (&str, Deed),
    doing: &Doing,
    ids: &[String],
) -> Answer {
    if ids.is_empty() || ids.len() > limits::IDS {
        return Err(Problem::bad(format!(
            "ids has {} of them; give 1 to {}, or a filter",
            ids.len(),
            limits::IDS
        )));
    }
    let mut parsed = Vec::with_capacity(ids.len());
    for id in ids {
        let id = parse_id(id).map_err(|error| Problem::bad(format!("ids: {error}")))?;
        if !parsed.contains(&id) {
            parsed.push(id);
        }
    }
    let (mut touched, mut missing, mut sample) = (0, Vec::new(), Vec::new());
    for id in parsed {
        let change = deed(admin, Filter::dead().id(id)).limit(1);
        let done = match doing.dry_run {
            true => {
                let mut preview = change.dry_run().await?;
                sample.append(&mut preview.sample);
                preview.count.n
            }
            false => change.run().await?,
        };
        touched += done;
        if done == 0 {
            missing.push(id.to_string());
        }
    }
    if doing.dry_run {
        let events: Vec<_> = sample.iter().map(crate::json::EventJson::new).collect();
        let would_touch = json!([{ "kind": "dead", "count": touched, "capped": false, "sample": events }]);
        return Ok(problem::json(&json!({
            "table": table, "action": action, "dry_run": true, "would_touch": would_touch, "missing": missing,
        })));
    }
    tracing::info!(table, action, touched, "an operator changed events");
    Ok(problem::json(&json!({
        "table": table, "action": action, "dry_run": false, "touched": touched, "more": false, "missing": missing,
    })))
}
