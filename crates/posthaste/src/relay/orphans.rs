//! Leases of workers that are gone: where the database can tell, they end long before their time.
//!
//! A worker whose session alone broke has a new one within seconds, and goes on delivering meanwhile. So only
//! the leases of those end that have been absent for some looks in a row.
//!
//! Who is absent is part of each survey (`stats.rs`). While others hold leases, or somebody is absent, it is asked for more often.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;

/// How often it looks while others hold leases.
const EVERY: Duration = Duration::from_secs(2);
/// How often while nobody is known to: whoever claims and dies between two surveys is found so late. A survey makes it unnecessary.
const AT_LEAST: Duration = Duration::from_secs(6);
/// How long a worker is absent before its leases end: longer than a live one takes to notice that its session is
/// gone and to open another, the longest pause between two tries included.
const ABSENCE: Duration = Duration::from_secs(8);

/// Looks now and then until the relay stops.
pub(super) async fn run(engine: Arc<Engine>) {
    let mut surveys = engine.surveyed.subscribe();
    let mut absent = HashMap::new();
    let mut others = false;
    loop {
        let rest = if others || !absent.is_empty() { EVERY } else { AT_LEAST };
        let seen = tokio::select! {
            () = engine.control.stopping() => return,
            // The sender is the engine's: it cannot be gone.
            _ = surveys.changed() => {
                let survey = surveys.borrow_and_update();
                others = survey.others;
                Ok(survey.absent.clone())
            }
            () = tokio::time::sleep(rest) => {
                // A stream has no leases but those of its lanes.
                if engine.feed().await.is_ok_and(|feed| feed.stream().is_some()) {
                    return;
                }
                engine.in_time(engine.store.absent_workers()).await
            }
        };
        let ended = match seen {
            Ok(seen) => end(&engine, seen, &mut absent).await,
            Err(error) => Err(error),
        };
        match ended {
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
async fn end(
    engine: &Engine,
    seen: Vec<String>,
    absent: &mut HashMap<String, Instant>,
) -> Result<(Vec<String>, u64)> {
    let now = Instant::now();
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
