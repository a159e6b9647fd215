//! Gauges: the state of the table and of the relay's queues, at a cost that does not grow with the table.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `stats_interval` | 5 s | at least as often as anybody scrapes |

use std::sync::Arc;
use std::sync::atomic::Ordering;

use time::OffsetDateTime;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;
use crate::telemetry;

/// Rows counted at most: beyond it a gauge stays at it.
const CAP: u32 = 10_000;

/// Looks now and then until the relay stops.
pub(super) async fn run(engine: Arc<Engine>) {
    loop {
        match look(&engine).await {
            Ok(()) => engine.outage.over(Doing::Measuring),
            Err(error) => engine.outage.say(Doing::Measuring, &error),
        }
        if !engine.control.sleep(engine.settings.stats_every).await {
            return;
        }
    }
}

async fn look(engine: &Engine) -> Result<()> {
    let depths = [
        ("hot", &engine.depths.hot),
        ("claimed", &engine.depths.claimed),
        ("running", &engine.depths.running),
        ("settling", &engine.depths.settling),
    ];
    for (queue, depth) in depths {
        telemetry::depth(&engine.table, queue, depth.load(Ordering::Relaxed));
    }
    measure_skew(engine).await?;
    telemetry::state(&engine.table, &engine.in_time(engine.store.stats(CAP)).await?);
    if let Some(feed) = engine.feed().await?.stream() {
        let lags = engine.in_time(feed.stream().lag(CAP)).await?;
        telemetry::lag(&engine.table, &lags, &feed.lanes());
    }
    Ok(())
}

/// How far the database's clock is from this process's, half a round trip allowed for.
pub(super) async fn measure_skew(engine: &Engine) -> Result<()> {
    let before = OffsetDateTime::now_utc();
    let theirs = engine.in_time(engine.store.now()).await?;
    let ours = before + (OffsetDateTime::now_utc() - before) / 2;
    engine.set_skew(theirs - ours);
    Ok(())
}
