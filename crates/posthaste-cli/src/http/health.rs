//! Whether the process lives, and whether it is ready.
//!
//! | `/readyz` | code | when |
//! |---|---|---|
//! | `ready` | 200 | every table can be reached and is up to date, and its relay works or stands by |
//! | `degraded` | 200 | a relay is paused, or a sink is paused or rests: another process would do no better |
//! | `not_ready` | 503 | it starts or drains, or a table or its database cannot be worked with |
//!
//! However many ask, the database is asked once a second at most, and waited for no longer than two. It is asked through a
//! connection of its own: that all others are busy says nothing of it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use posthaste::ErrorKind;
use posthaste::relay::RelayStatus;
use posthaste::store::Store;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Served;
use super::problem;
use crate::daemon::{Daemon, PROBE, Table};

/// How long an answer is good for.
const FRESH: Duration = Duration::from_secs(1);

/// `GET /healthz`
pub(super) async fn healthz() -> Response {
    problem::json(&json!({ "status": "alive" }))
}

/// `GET /readyz`
pub(super) async fn readyz(State(served): State<Served>) -> Response {
    let report = served.inner.readiness.of(served.daemon()).await;
    let code = match report.status {
        Condition::Ready | Condition::Degraded => StatusCode::OK,
        Condition::NotReady => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem::json_with(code, &*report)
}

/// The last answer.
#[derive(Default)]
pub(super) struct Readiness(Mutex<Option<(Instant, Arc<Report>)>>);

/// From good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Condition {
    Ready,
    Degraded,
    NotReady,
}

#[derive(Debug, Serialize)]
struct Report {
    status: Condition,
    /// What is not as it should be, of all tables.
    reasons: Vec<String>,
    tables: Vec<TableReport>,
}

#[derive(Debug, Clone, Serialize)]
struct TableReport {
    table: String,
    status: Condition,
    /// What its relay does; null where it is not relayed here.
    relay: Option<&'static str>,
    reasons: Vec<String>,
}

impl TableReport {
    fn worse(&mut self, condition: Condition, reason: impl Into<String>) {
        self.status = self.status.max(condition);
        self.reasons.push(reason.into());
    }
}

impl Readiness {
    async fn of(&self, daemon: &Daemon) -> Arc<Report> {
        if daemon.is_stopping() {
            let reasons = vec!["the daemon drains and is about to end".to_owned()];
            return Arc::new(Report { status: Condition::NotReady, reasons, tables: Vec::new() });
        }
        // Who comes while somebody looks waits for what that one sees.
        let mut last = self.0.lock().await;
        match &*last {
            Some((at, report)) if at.elapsed() < FRESH => Arc::clone(report),
            _ => {
                let report = Arc::new(look(daemon).await);
                *last = Some((Instant::now(), Arc::clone(&report)));
                report
            }
        }
    }
}

async fn look(daemon: &Daemon) -> Report {
    let mut tables: Vec<TableReport> =
        daemon.tables().iter().map(|(name, table)| known(name, table)).collect();
    let mut asked = JoinSet::new();
    for (at, table) in daemon.tables().values().enumerate() {
        if let Some(opened) = table.opened() {
            let probed = Arc::clone(&opened.probed);
            asked.spawn(async move { (at, ask(&*probed).await) });
        }
    }
    for (at, answer) in asked.join_all().await {
        if let Err(reason) = answer {
            tables[at].worse(Condition::NotReady, reason);
        }
    }
    let several = tables.len() > 1;
    let named = |table: &TableReport, reason: &String| match several {
        true => format!("table {}: {reason}", table.table),
        false => reason.clone(),
    };
    let reasons =
        tables.iter().flat_map(|table| table.reasons.iter().map(move |reason| named(table, reason)));
    Report {
        status: tables.iter().map(|table| table.status).max().unwrap_or(Condition::Ready),
        reasons: reasons.collect(),
        tables,
    }
}

/// What can be said without asking the database.
fn known(name: &str, table: &Table) -> TableReport {
    let mut report =
        TableReport { table: name.to_owned(), status: Condition::Ready, relay: None, reasons: Vec::new() };
    if table.opened().is_none() {
        let waits = table.waits_for().unwrap_or_else(|| "its database has not been reached yet".to_owned());
        report.worse(Condition::NotReady, waits);
    }
    if table.settings().relayed {
        match table.relay() {
            None => {
                report.relay = Some("starting");
                report.worse(Condition::NotReady, "the relay has not started yet");
            }
            Some(relay) => of_relay(&relay.status(), &mut report),
        }
    }
    report
}

fn of_relay(relay: &RelayStatus, report: &mut TableReport) {
    report.relay = Some(doing(relay));
    if !relay.running {
        report.worse(Condition::NotReady, "the relay has ended; the log says why");
    }
    if let Some(error) = &relay.database {
        report.worse(Condition::NotReady, format!("the relay's database fails, {error}"));
    }
    if relay.paused {
        report.worse(Condition::Degraded, "the relay is paused; resume it");
    }
    for route in &relay.routes {
        if route.paused {
            report.worse(Condition::Degraded, format!("sink {} is paused; resume it", route.name));
        }
        if let Some((since, why)) = &route.resting {
            let seconds = since.as_secs();
            report.worse(
                Condition::Degraded,
                format!("sink {} has been unavailable for {seconds} s: {why}", route.name),
            );
        }
    }
}

/// What a relay does, in a word.
pub(super) fn doing(relay: &RelayStatus) -> &'static str {
    match relay {
        RelayStatus { running: false, .. } => "ended",
        RelayStatus { paused: true, .. } => "paused",
        RelayStatus { leading: true, .. } => "working",
        _ => "standing_by",
    }
}

/// Whether the table can be read and has every migration.
async fn ask(store: &dyn Store) -> Result<(), String> {
    let asked = async {
        // Ended by the database itself, too: its connection is free for the next who asks.
        store.within(PROBE).stats(1).await?;
        store.migrations().await
    };
    let silent = || Err(format!("the database did not answer within {PROBE:?}"));
    match tokio::time::timeout(PROBE, asked).await {
        Err(_) => silent(),
        Ok(Err(error)) if *error.kind() == ErrorKind::TooSlow => silent(),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(migrations)) => {
            let missing: Vec<String> = migrations
                .iter()
                .filter(|migration| migration.applied_at.is_none())
                .map(|migration| migration.version.to_string())
                .collect();
            // Where none is known of, somebody made the table with a tool of their own.
            match missing.is_empty() || missing.len() == migrations.len() {
                true => Ok(()),
                false => Err(format!(
                    "table {} lacks migration {}; apply it with `posthaste migrate up`",
                    store.table(),
                    missing.join(", ")
                )),
            }
        }
    }
}
