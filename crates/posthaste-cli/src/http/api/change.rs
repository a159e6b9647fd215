//! Whatever changes or deletes rows: shown first where that is asked for, confirmed where the database is on another
//! machine, and bounded.

use axum::response::Response;
use posthaste::admin::{Change, Preview};
use serde_json::{Value, json};

use crate::http::Served;
use crate::http::input::Fields;
use crate::http::limits;
use crate::http::problem::{self, Kind, Problem, quoted};
use crate::json::EventJson;

/// Its fields.
pub(super) const DOING: [&str; 3] = ["dry_run", "confirm", "limit"];

/// How something is done.
pub(super) struct Doing {
    pub(super) dry_run: bool,
    /// At most this many.
    pub(super) limit: u64,
}

/// A part of a change: its name, and what it does.
pub(super) struct Step {
    pub(super) kind: &'static str,
    pub(super) change: Change,
}

impl Served {
    /// How it is to be done, if it may be. What is not said event by event needs the table's name once more where the
    /// database is on another machine: a client with the wrong address then changes nothing.
    pub(super) fn doing(&self, body: &Fields, table: &str, one_by_one: bool) -> Result<Doing, Problem> {
        let dry_run = body.flag("dry_run")?;
        let limit = body.number("limit", 1..=limits::CHANGE)?.unwrap_or(limits::USUAL_CHANGE);
        match (body.text("confirm")?, &self.inner.remote_host) {
            (Some(given), _) if given != table => Err(Problem::new(
                Kind::Unconfirmed,
                format!("confirm names {}, the table is {table:?}; nothing was changed", quoted(&given)),
            )),
            (None, Some(host)) if !dry_run && !one_by_one => Err(Problem::new(
                Kind::Unconfirmed,
                format!(
                    "the database is on {host}, not on the daemon's machine; repeat the table's name: \"confirm\": {table:?}"
                ),
            )),
            _ => Ok(Doing { dry_run, limit }),
        }
    }
}

/// Does it, or shows what it would touch.
pub(super) async fn carry_out(
    table: &str,
    action: &str,
    doing: &Doing,
    steps: Vec<Step>,
) -> Result<Response, Problem> {
    if doing.dry_run {
        let mut would_touch = Vec::with_capacity(steps.len());
        for step in steps {
            would_touch.push(preview(step.kind, &step.change.limit(doing.limit).dry_run().await?));
        }
        let answer = json!({ "table": table, "action": action, "dry_run": true, "would_touch": would_touch });
        return Ok(problem::json(&answer));
    }
    let (mut touched, mut more) = (0, false);
    for step in steps {
        let done = step.change.limit(doing.limit).run().await?;
        touched += done;
        more |= done == doing.limit;
    }
    tracing::info!(table, action, touched, "an operator changed events");
    let answer =
        json!({ "table": table, "action": action, "dry_run": false, "touched": touched, "more": more });
    Ok(problem::json(&answer))
}

pub(super) fn preview(kind: &str, preview: &Preview) -> Value {
    json!({
        "kind": kind,
        "count": preview.count.n,
        "capped": preview.count.capped,
        "sample": preview.sample.iter().map(EventJson::new).collect::<Vec<_>>(),
    })
}
