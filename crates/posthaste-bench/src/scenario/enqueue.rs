//! What an event costs the transaction that writes it: orders per second with none, one and ten.
//!
//! The time is cut into slices in which everybody has a turn, so that whatever else the machine does meets all alike.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Result;

use super::producers::Producers;
use super::{Bench, Scenario};
use crate::contender::Installed;
use crate::report::{Better, Measured};
use crate::server::Database;

/// Slices of one run.
const SLICES: usize = 3;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let slice = bench.pick(Duration::from_millis(300), Duration::from_secs(1));
    let slices = bench.pick(1, SLICES);
    let connections: &[usize] = bench.pick(&[8], &[8, 32]);
    let mut ready: Vec<Option<(Database, Box<dyn Installed>)>> = Vec::new();
    ready.resize_with(bench.contenders.len(), || None);
    for contender in bench.order(Scenario::Enqueue, 0) {
        let database = bench.server.create().await?;
        match bench.contenders[contender].set_up(&database).await {
            Ok(installed) => ready[contender] = Some((database, installed)),
            Err(error) => bench.note(Scenario::Enqueue, contender, Err(error)),
        }
    }
    bench.server.checkpoint().await?;
    for run in 0..bench.runs * slices {
        for &connections in connections {
            for events in [0, 1, 10] {
                for contender in bench.order(Scenario::Enqueue, run) {
                    let Some((_, installed)) = &ready[contender] else { continue };
                    let measured = one(installed.as_ref(), connections, events, slice).await;
                    let failed = measured.is_err();
                    bench.note(Scenario::Enqueue, contender, measured);
                    if failed && let Some((database, installed)) = ready[contender].take() {
                        installed.close().await;
                        bench.server.drop(database).await?;
                    }
                }
            }
        }
    }
    for (database, installed) in ready.into_iter().flatten() {
        installed.close().await;
        bench.server.drop(database).await?;
    }
    Ok(())
}

async fn one(
    installed: &dyn Installed,
    connections: usize,
    events: u64,
    slice: Duration,
) -> Result<Measured> {
    let producers = Producers { installed, connections, events, next: Arc::new(AtomicU64::new(0)) };
    let rate = producers.run(slice).await?;
    Ok(Measured {
        case: producers.case(),
        unit: "transactions/s",
        better: Better::More,
        value: rate,
        more: Vec::new(),
    })
}
