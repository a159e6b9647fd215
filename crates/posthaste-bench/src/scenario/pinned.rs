//! The same while an old transaction holds back cleanup: a drain before it begins, many events while it is open, and
//! another drain beside what all of those have left behind.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Bench, Scenario, drain};
use crate::contender::{Contender, Delivering};
use crate::report::{Better, Measured};
use crate::seen::Seen;
use crate::server::Database;

const HOW: Delivering = Delivering { workers: 1, batch: 1000 };

/// Who takes longer for what goes through meanwhile is left out.
const PATIENCE: Duration = Duration::from_secs(180);
/// And if it is to be quick.
const LITTLE: Duration = Duration::from_secs(4);

/// Events that are written at a time, and delivered before the next.
const ROUND: u64 = 5_000;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let events = bench.pick(10_000, 100_000);
    // Ten minutes at 500 a second.
    let meanwhile = bench.pick(10_000, 300_000);
    for run in 0..bench.runs {
        for contender in bench.order(Scenario::Pinned, run) {
            let database = bench.server.create().await?;
            let contending = bench.contenders[contender].as_ref();
            let patience = bench.patience(contender, LITTLE, PATIENCE);
            let measured = one(contending, &database, events, meanwhile, patience).await;
            bench.note(Scenario::Pinned, contender, measured);
            bench.server.drop(database).await?;
        }
    }
    Ok(())
}

async fn one(
    contender: &dyn Contender,
    database: &Database,
    events: u64,
    meanwhile: u64,
    patience: Duration,
) -> Result<Measured> {
    let before = drained(contender, database, events, patience).await?;
    let old = database.client().await?;
    old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()").await?;
    let installed = contender.set_up(database).await?;
    let seen = Seen::new(meanwhile);
    let running = installed.deliver(HOW, seen.clone()).await?;
    let mut written = 0;
    while written < meanwhile {
        let count = ROUND.min(meanwhile - written);
        installed.fill(written, count).await?;
        written += count;
        ensure!(
            seen.reaches(written, patience).await,
            "of {meanwhile} events it has delivered {}",
            seen.count()
        );
    }
    running.stop().await?;
    installed.close().await;
    let after = drained(contender, database, events, patience).await?;
    drop(old);
    Ok(Measured {
        case: format!("{meanwhile} events while a transaction is open"),
        unit: "of the time per batch before",
        better: Better::Less,
        value: before / after,
        more: vec![("events/s before", before), ("events/s after", after)],
    })
}

async fn drained(
    contender: &dyn Contender,
    database: &Database,
    events: u64,
    patience: Duration,
) -> Result<f64> {
    let installed = contender.set_up(database).await?;
    installed.fill(0, events).await?;
    installed.close().await;
    database.vacuum().await?;
    let (rate, _) = drain::drain(contender, database, events, HOW, patience).await?;
    Ok(rate)
}
