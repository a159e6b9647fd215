//! Leases of workers that are gone: where the database can tell, they end long before their time.
//!
//! A worker whose session alone broke has a new one within seconds, and goes on delivering meanwhile. So only
//! the leases of those end that have been absent for some looks in a row.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(2);
/// How long a worker is absent before its leases end: longer than a live one takes to notice that its session is
/// gone and to open another, the longest pause between two tries included.
const ABSENCE: Duration = Duration::from_secs(8);

/// Looks now and then until the relay stops.
pub(super) async fn run(engine: Arc<Engine>) {
    let mut absent = HashMap::new();
    while engine.control.sleep(EVERY).await {
        // A stream has no leases but those of its lanes.
        if engine.feed().await.is_ok_and(|feed| feed.stream().is_some()) {
            return;
        }
        match look(&engine, &mut absent).await {
            Ok((workers, leases)) => {
                engine.outage.over(Doing::EndingOrphans);
                if leases > 0 {
                    tracing::info!(table = %engine.table, ?workers, leases, "the leases of relays that are gone were ended");
                    engine.wake.notify_one();
                }
            }
            Err(error) => {
                absent.clear();
                engine.outage.say(Doing::EndingOrphans, &error);
            }
        }
    }
}

/// Ends the leases of those absent for long enough; whose, and how many. Since when each is absent is kept for the next look.
async fn look(engine: &Engine, absent: &mut HashMap<String, Instant>) -> Result<(Vec<String>, u64)> {
    let now = Instant::now();
    let seen = engine.in_time(engine.store.absent_workers()).await?;
    *absent = seen
        .into_iter()
        .map(|worker| {
            let since = absent.get(&worker).copied().unwrap_or(now);
            (worker, since)
        })
        .collect();
    let gone: Vec<String> = absent
        .iter()
        .filter(|(_, since)| now.duration_since(**since) >= ABSENCE)
        .map(|(worker, _)| worker.clone())
        .collect();
    let ended = match gone.is_empty() {
        true => 0,
        false => engine.in_time(engine.store.end_leases_of(&gone)).await?,
    };
    Ok((gone, ended))
}
