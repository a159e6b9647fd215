//! How everything stands: each table, its relay, and the sinks that its events go to.

use std::collections::BTreeMap;

use axum::extract::State;
use posthaste::relay::RelayStatus;
use posthaste::store::Mode;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::config::settings::SinkSettings;
use crate::daemon::Opened;
use crate::http::Served;
use crate::http::health::doing;
use crate::http::input::Query;
use crate::http::problem::{self, Answer};
use crate::when;

/// `GET /api/v1/status`
pub(in crate::http) async fn status(State(served): State<Served>, query: Query) -> Answer {
    query.none()?;
    let daemon = served.daemon();
    let mut looks = JoinSet::new();
    for name in daemon.tables().keys() {
        let (served, name) = (served.clone(), name.clone());
        looks.spawn(async move {
            let looked = match served.opened(&name) {
                Ok(opened) => table_json(opened).await.map_err(|error| error.to_string()),
                Err(problem) => Err(problem.message().to_owned()),
            };
            (name, looked)
        });
    }
    let mut looked: BTreeMap<String, Result<Value, String>> = looks.join_all().await.into_iter().collect();
    let tables: Vec<Value> = daemon
        .tables()
        .iter()
        .map(|(name, table)| {
            let (status, error) = match looked.remove(name) {
                Some(Ok(status)) => (Some(status), None),
                Some(Err(error)) => (None, Some(error)),
                None => (None, None),
            };
            let relay = table.relay().map(|relay| relay_json(&relay.status(), &daemon.settings().sinks));
            json!({ "table": name, "status": status, "error": error, "relay": relay })
        })
        .collect();
    Ok(problem::json(&json!({ "version": env!("CARGO_PKG_VERSION"), "tables": tables })))
}

/// How a table stands, at a cost that does not grow with it.
async fn table_json(opened: &Opened) -> posthaste::Result<Value> {
    let status = opened.admin.status().await?;
    let mode = opened.store.mode().await?.unwrap_or(Mode::Queue);
    let migrations = opened.store.migrations().await?;
    let applied = migrations.iter().filter(|migration| migration.applied_at.is_some());
    let stats = &status.stats;
    let lanes = match mode {
        Mode::Stream(lanes) => Some(lanes.count()),
        _ => None,
    };
    Ok(json!({
        "mode": mode.as_str(),
        "lanes": lanes,
        "pending": stats.pending.n,
        "processing": stats.processing.n,
        "dead": stats.dead.n,
        "capped": stats.pending.capped || stats.processing.capped || stats.dead.capped,
        "oldest_seconds": stats.oldest_age.map(|age| age.as_secs_f64()),
        "schema": applied.map(|migration| migration.version).max().unwrap_or(0),
        "newest_schema": migrations.iter().map(|migration| migration.version).max().unwrap_or(0),
        "clock_skew_seconds": status.clock_skew.as_seconds_f64(),
        "now": when::rfc3339(status.now),
    }))
}

/// What a relay does, and how its sinks are.
pub(super) fn relay_json(relay: &RelayStatus, sinks: &BTreeMap<String, SinkSettings>) -> Value {
    let routes = relay.routes.iter().map(|route| {
        let resting = route
            .resting
            .as_ref()
            .map(|(since, why)| json!({ "seconds": since.as_secs_f64(), "reason": why }));
        json!({
            "sink": &*route.name,
            "kind": sinks.get(&*route.name).map(SinkSettings::kind_name),
            "paused": route.paused,
            "resting": resting,
        })
    });
    json!({
        "doing": doing(relay),
        "running": relay.running,
        "paused": relay.paused,
        "leading": relay.leading,
        "worker": relay.worker,
        "lanes": relay.lanes,
        "hot": relay.hot,
        "claimed": relay.claimed,
        "dispatching": relay.dispatching,
        "settling": relay.settling,
        "database": relay.database,
        "sinks": routes.collect::<Vec<_>>(),
    })
}
