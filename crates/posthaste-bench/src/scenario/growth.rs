//! How fast a backlog goes out beside rows that were delivered and kept. Everybody is compared with itself on an empty
//! table; who deletes what is delivered has nothing to be measured by.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Bench, Scenario, drain};
use crate::contender::{Delivering, Way};
use crate::report::{Better, Measured};
use crate::seen::Seen;
use crate::server::Database;

const HOW: Delivering = Delivering { workers: 1, batch: 1000 };

/// Who takes longer to deliver the rows that are to be kept is left out.
const PATIENCE: Duration = Duration::from_secs(180);
/// And if it is to be quick.
const LITTLE: Duration = Duration::from_secs(4);

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let kept: &[u64] = bench.pick(&[0, 30_000], &[0, 300_000, 2_000_000]);
    let events = bench.pick(10_000, 200_000);
    for contender in bench.order(Scenario::Growth, 0) {
        if bench.contenders[contender].way() == Way::LeaseDeleting {
            continue;
        }
        let mut empty = Vec::new();
        for &kept in kept {
            let database = match template(bench, contender, kept, events).await {
                Ok(database) => database,
                Err(error) => {
                    bench.note(Scenario::Growth, contender, Err(error));
                    break;
                }
            };
            for run in 0..bench.runs {
                let measured = one(bench, contender, &database, kept, events).await;
                let measured = measured.map(|mut measured| {
                    if kept == 0 {
                        empty.push(measured.value);
                    }
                    if let Some(empty) = empty.get(run) {
                        measured.more.push(("of empty", measured.value / empty));
                    }
                    measured
                });
                bench.note(Scenario::Growth, contender, measured);
            }
            bench.server.drop(database).await?;
        }
    }
    Ok(())
}

/// A database with so many delivered rows, and a backlog.
async fn template(bench: &Bench, contender: usize, kept: u64, events: u64) -> Result<Database> {
    let patience = bench.patience(contender, LITTLE, PATIENCE);
    let database = bench.server.create().await?;
    let installed = bench.contenders[contender].set_up(&database).await?;
    if kept > 0 {
        installed.fill(0, kept).await?;
        database.vacuum().await?;
        let seen = Seen::new(kept);
        let running = installed.deliver(HOW, seen.clone()).await?;
        let delivered = seen.reaches(kept, patience).await;
        running.stop().await?;
        ensure!(
            delivered,
            "it takes more than {patience:?} to deliver the {kept} events that are to be kept"
        );
    }
    installed.fill(0, events).await?;
    installed.close().await;
    database.vacuum().await?;
    Ok(database)
}

async fn one(
    bench: &Bench,
    contender: usize,
    template: &Database,
    kept: u64,
    events: u64,
) -> Result<Measured> {
    bench.server.checkpoint().await?;
    let database = bench.server.copy(template).await?;
    let patience = bench.patience(contender, LITTLE, Duration::from_secs(15));
    let drained = drain::drain(bench.contenders[contender].as_ref(), &database, events, HOW, patience).await;
    bench.server.drop(database).await?;
    let (rate, _) = drained?;
    Ok(Measured {
        case: format!("{kept} delivered rows kept"),
        unit: "events/s",
        better: Better::More,
        value: rate,
        more: vec![("ms/batch", HOW.batch as f64 * 1000.0 / rate)],
    })
}
