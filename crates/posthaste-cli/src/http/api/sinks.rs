//! The sinks of a relay: one is paused and resumed while the others go on.

use axum::extract::State;
use posthaste::Relay;

use super::relays::changed;
use crate::config::nearest;
use crate::http::Served;
use crate::http::input::{At, Body, Query};
use crate::http::problem::{Answer, Problem, quoted};

/// `POST /api/v1/relays/{table}/sinks/{sink}/pause`
pub(in crate::http) async fn pause(
    State(served): State<Served>,
    At((table, sink)): At<(String, String)>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    body.none()?;
    find(&served, &table, &sink)?.pause_route(&sink)?;
    changed(&served, &table)
}

/// `POST /api/v1/relays/{table}/sinks/{sink}/resume`
pub(in crate::http) async fn resume(
    State(served): State<Served>,
    At((table, sink)): At<(String, String)>,
    query: Query,
    body: Body,
) -> Answer {
    query.none()?;
    body.none()?;
    find(&served, &table, &sink)?.resume_route(&sink)?;
    changed(&served, &table)
}

/// The relay, if it has this sink.
fn find<'a>(served: &'a Served, table: &str, sink: &str) -> Result<&'a Relay, Problem> {
    let relay = served.relay(table)?;
    let routes = relay.status().routes;
    let mut names = routes.iter().map(|route| &*route.name);
    if names.clone().any(|name| name == sink) {
        return Ok(relay);
    }
    let meant = match nearest(sink, names.clone()) {
        Some(meant) => format!("do you mean {meant}?"),
        None => format!("it has {}", names.by_ref().collect::<Vec<_>>().join(", ")),
    };
    Err(Problem::missing(format!("the relay of table {table} has no sink {}; {meant}", quoted(sink))))
}
