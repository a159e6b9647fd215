//! The relays in a producer's own process, which take its events straight from their commit.

use anyhow::Result;
use posthaste::relay::OnDead;
use posthaste::sink::HttpSink;
use posthaste::{Backoff, Relay};

use super::Orders;
use super::database::Speaks;
use super::transaction::Desk;
use crate::plan::{Sink, Way};
use crate::recorder;

/// How long delivered rows stay where they do.
const RETENTION: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// One for each table whose sink is the recorder, if the producer is one with relays, with the settings of all others.
pub(super) async fn start<DB: Speaks>(orders: &Orders, desks: &[Desk<DB>]) -> Result<Vec<Relay>> {
    let mut relays = Vec::new();
    if orders.way != Way::Hot {
        return Ok(relays);
    }
    let settings = &orders.settings;
    for desk in desks.iter().filter(|desk| desk.table.sink == Sink::Http) {
        let path = recorder::path(&desk.table.name, &orders.name);
        let sink = HttpSink::builder(format!("http://127.0.0.1:{}{path}", orders.recorder))
            .timeout(settings.sink_timeout)
            .build()?;
        let retry =
            Backoff::exponential(settings.backoff.0, settings.backoff.1).max_attempts(settings.max_attempts);
        let relay = desk
            .outbox
            .relay()
            .sink(sink)
            .lease(settings.lease)
            .lane_lease(settings.lane_lease)
            .timeout(settings.timeout)
            .poll_interval(settings.poll)
            .probe_interval(settings.probe.0, settings.probe.1)
            .retry(retry)
            .retention(if desk.table.keeps() { RETENTION } else { std::time::Duration::ZERO })
            .on_dead(desk.table.topic(true), OnDead::GoOn)
            .start()
            .await?;
        relays.push(relay);
    }
    Ok(relays)
}
