//! How everything stands: each table, its relay, and the sinks that its events go to.

use std::collections::BTreeMap;

use axum::extract::State;
use posthaste::relay::RelayStatus;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::config::settings::SinkSettings;
use crate::http::Served;
use crate::http::health::doing;
use crate::http::input::Query;
use crate::http::problem::{self, Answer};

/// `GET /api/v1/status`
pub(in crate::http) async fn status(State(served): State<Served>, query: Query) -> Answer {
    query.none()?;
    let daemon = served.daemon();
    let mut looks = JoinSet::new();
    for name in daemon.tables().keys() {
        let (served, name) = (served.clone(), name.clone());
        looks.spawn(async move {
            let looked = match served.opened(&name) {
                Ok(opened) => match opened.admin.status().await {
                    Ok(status) => Ok(crate::json::status(&status)),
                    Err(error) => Err(error.to_string()),
                },
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
