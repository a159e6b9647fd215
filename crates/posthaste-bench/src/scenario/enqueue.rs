//! What an event costs the transaction that writes it: orders per second with none, one and ten.
//!
//! The time is cut into short slices in which everybody has a turn, so that whatever else the machine does meets all alike. Who has none
//! holds no connections.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Result;

use super::producers::Producers;
use super::{Bench, Scenario};
use crate::report::{Better, Measured};
use crate::server::Database;

/// Slices of one run.
const SLICES: usize = 8;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let slice = bench.pick(Duration::from_millis(300), Duration::from_millis(400));
    let slices = bench.pick(1, SLICES);
    let connections: &[usize] = bench.pick(&[8], &[8, 32]);
    let mut databases: Vec<Option<Database>> = Vec::new();
    databases.resize_with(bench.contenders.len(), || None);
    for contender in bench.order(Scenario::Enqueue, 0) {
        databases[contender] = Some(bench.server.create().await?);
    }
    bench.server.checkpoint().await?;
    for round in 0..bench.runs * slices {
        for &connections in connections {
            for events in [0, 1, 10] {
                for contender in bench.turns(Scenario::Enqueue, round) {
                    let Some(database) = &databases[contender] else { continue };
                    let measured = one(bench, contender, database, connections, events, slice).await;
                    let failed = measured.is_err();
                    bench.note(Scenario::Enqueue, contender, measured);
                    if failed && let Some(database) = databases[contender].take() {
                        bench.server.drop(database).await?;
                    }
                }
            }
        }
    }
    for database in databases.into_iter().flatten() {
        bench.server.drop(database).await?;
    }
    Ok(())
}

async fn one(
    bench: &Bench,
    contender: usize,
    database: &Database,
    connections: usize,
    events: u64,
    slice: Duration,
) -> Result<Measured> {
    let installed = bench.contenders[contender].set_up(database).await?;
    let producers =
        Producers { installed: installed.as_ref(), connections, events, next: Arc::new(AtomicU64::new(0)) };
    let rate = producers.run(slice).await;
    let case = producers.case();
    installed.close().await;
    Ok(Measured { case, unit: "transactions/s", better: Better::More, value: rate?, more: Vec::new() })
}
