//! What only a stream has: lanes, and aggregates that wait for an operator.

use axum::extract::State;
use serde_json::json;

use crate::daemon::Opened;
use crate::http::input::{At, Query};
use crate::http::problem::{self, Answer, Problem};
use crate::http::{Served, limits};
use crate::json::{blocked as blocked_json, lane as lane_json};

/// `GET /api/v1/tables/{table}/lanes`
pub(in crate::http) async fn lanes(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
) -> Answer {
    query.none()?;
    let lanes = stream(&served, &table).await?.admin.lanes().await?;
    Ok(problem::json(&json!({ "lanes": lanes.iter().map(lane_json).collect::<Vec<_>>() })))
}

/// `GET /api/v1/tables/{table}/blocked`
pub(in crate::http) async fn blocked(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
) -> Answer {
    let query = query.of(&["limit"])?;
    let limit = query.number("limit", 1..=limits::PAGE)?.unwrap_or(limits::USUAL_PAGE);
    let blocked = stream(&served, &table).await?.admin.blocked(limit as u32).await?;
    Ok(problem::json(&json!({ "blocked": blocked.iter().map(blocked_json).collect::<Vec<_>>() })))
}

/// The table, if it is a stream.
async fn stream<'a>(served: &'a Served, table: &str) -> Result<&'a Opened, Problem> {
    let opened = served.opened(table)?;
    if opened.store.stream().await?.is_some() {
        return Ok(opened);
    }
    // A table that is not there is neither.
    opened.store.stats(1).await?;
    Err(Problem::missing(format!(
        "table {table} is a queue, which has no lanes and blocks no aggregates; a stream is made with `posthaste migrate up \
         --mode stream`"
    )))
}
