//! What Prometheus reads: everything that the library records, in its text format.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::Served;
use crate::exit::Exit;
use crate::failure::Failure;

/// Bounds of the histograms, in seconds: from a handler in the same process to a sink that was away for an hour.
const BUCKETS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    900.0, 3600.0,
];

/// How often what was recorded is put into its buckets, whether anybody reads it or not.
pub(super) const UPKEEP: Duration = Duration::from_secs(5);

/// Records from now on; a relay that was started before is not seen.
pub(super) fn record() -> Result<PrometheusHandle, Failure> {
    let matcher = Matcher::Suffix("_latency_seconds".to_owned());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(matcher, &BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot record metrics ({error})")))?;
    posthaste::telemetry::describe();
    Ok(handle)
}

/// `GET /metrics`
pub(super) async fn scrape(State(served): State<Served>) -> Response {
    let text = served.inner.metrics.render();
    ([("content-type", "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
