//! Relays: paused, resumed, and asked for a pass.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use posthaste::relay::Passed;
use serde_json::json;

use super::status::relay_json;
use crate::http::input::{At, Body, Query};
use crate::http::problem::{self, Answer, Kind, Problem};
use crate::http::{Served, limits};

/// `POST /api/v1/relays/{table}/pause`
pub(in crate::http) async fn pause(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    body.none()?;
    served.relay(&table)?.pause();
    changed(&served, &table)
}

/// `POST /api/v1/relays/{table}/resume`
pub(in crate::http) async fn resume(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    body.none()?;
    served.relay(&table)?.resume();
    changed(&served, &table)
}

/// The relay as it is now.
pub(super) fn changed(served: &Served, table: &str) -> Answer {
    let relay = served.relay(table)?;
    Ok(problem::json(&relay_json(&relay.status(), &served.daemon().settings().sinks)))
}

/// `POST /api/v1/relays/{table}/trigger`
pub(in crate::http) async fn trigger(
    State(served): State<Served>,
    At(table): At<String>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    body.none()?;
    let relay = served.relay(&table)?;
    let status = relay.status();
    if status.paused {
        let message =
            format!("the relay of table {table} is paused and passes over nothing; resume it first");
        return Err(Problem::new(Kind::Conflict, message));
    }
    if !status.leading {
        let message = format!("the relay of table {table} stands by for another one; trigger that one");
        return Err(Problem::new(Kind::Conflict, message));
    }
    if let Some(error) = status.database {
        return Err(Problem::new(
            Kind::Unavailable,
            format!("the relay of table {table} cannot work: {error}"),
        ));
    }
    // Whoever waits longer than that need not: the relay runs and delivers what is due in any case.
    Ok(match tokio::time::timeout(limits::TRIGGER, relay.run_once()).await {
        Ok(passed) => answer(StatusCode::OK, Some(passed?)),
        Err(_) => answer(StatusCode::ACCEPTED, None),
    })
}

fn answer(code: StatusCode, passed: Option<Passed>) -> Response {
    let count = |of: fn(Passed) -> usize| passed.map(of);
    let answer = json!({
        "finished": passed.is_some(),
        "delivered": count(|passed| passed.delivered),
        "retried": count(|passed| passed.retried),
        "dead": count(|passed| passed.dead),
        "handed_back": count(|passed| passed.handed_back),
    });
    problem::json_with(code, &answer)
}
