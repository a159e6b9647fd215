//! How fast a backlog goes out to a sink that takes everything at once.
//!
//! Everybody's backlog is written once and copied for each run, so that all runs begin alike. The time is that from the
//! first delivery to the last: how long a relay takes to start is not part of it. A slow one is stopped
//! after a while, and its rate is that of what it has delivered until then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Bench, Scenario};
use crate::contender::{Class, Contender, Delivering};
use crate::meter::Meter;
use crate::report::{Better, Measured};
use crate::seen::Seen;
use crate::server::Database;

/// Events of a drain whose processor time can be told.
const ENOUGH: u64 = 100_000;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let events = bench.pick(30_000, 200_000);
    let or = |asked: &[usize], usual: &[usize]| if asked.is_empty() { usual } else { asked }.to_vec();
    let batches = or(&bench.batches, bench.pick(&[1000], &[1000, 100]));
    let workers = or(&bench.workers, bench.pick(&[1, 2], &[1, 2, 4]));
    let with = |batch: usize| workers.iter().map(move |&workers| Delivering { batch, workers });
    let cases: Vec<Delivering> = batches.into_iter().flat_map(with).collect();
    let mut filled = HashMap::new();
    for run in 0..bench.runs {
        for contender in bench.order(Scenario::Drain, run) {
            for case in &cases {
                if case.workers > bench.contenders[contender].most_workers() {
                    continue;
                }
                let measured = one(bench, contender, &mut filled, events, *case).await;
                bench.note(Scenario::Drain, contender, measured);
            }
        }
    }
    for database in filled.into_values() {
        bench.server.drop(database).await?;
    }
    Ok(())
}

async fn one(
    bench: &Bench,
    contender: usize,
    filled: &mut HashMap<usize, Database>,
    events: u64,
    how: Delivering,
) -> Result<Measured> {
    let patience = bench.patience(contender, Duration::from_secs(1), Duration::from_secs(15));
    let template = match filled.entry(contender) {
        Entry::Occupied(filled) => filled.into_mut(),
        Entry::Vacant(empty) => empty.insert(bench.filled(contender, events).await?),
    };
    bench.server.checkpoint().await?;
    let database = bench.server.copy(template).await?;
    let measured = drain(bench.contenders[contender].as_ref(), &database, events, how, patience).await;
    bench.server.drop(database).await?;
    let (rate, more) = measured?;
    let workers = if how.workers == 1 { "worker" } else { "workers" };
    Ok(Measured {
        case: format!("batches of {}, {} {workers}", how.batch, how.workers),
        unit: "events/s",
        better: Better::More,
        value: rate,
        more,
    })
}

/// Events per second, and what each costs.
pub(super) async fn drain(
    contender: &dyn Contender,
    database: &Database,
    events: u64,
    how: Delivering,
    patience: Duration,
) -> Result<(f64, Vec<(&'static str, f64)>)> {
    let installed = contender.set_up(database).await?;
    let seen = Seen::new(events);
    let before = Meter::read(database).await?;
    let running = installed.deliver(how, seen.clone()).await?;
    let drained = seen.reaches(events, patience).await;
    running.stop().await?;
    let cost = Meter::read(database).await?.since(&before);
    installed.close().await;
    ensure!(seen.unknown() == 0, "it delivered {} events that nobody wrote", seen.unknown());
    let (first, last, count) = seen.span().context("it delivered nothing")?;
    let may_be_given_up = contender.class() == Class::Peer;
    ensure!(drained || may_be_given_up, "it delivered {count} of {events} events in {patience:?}");
    // One that was given up has delivered some more while it was stopping.
    let count = count as f64;
    let mut more =
        vec![("WAL bytes/event", cost.log_bytes / count), ("dead rows/event", cost.dead_rows / count)];
    // The kernel counts in hundredths of a second for each process: of few events that says nothing.
    if events >= ENOUGH {
        more.push(("server µs/event", cost.server_seconds * 1e6 / count));
        more.push(("client µs/event", cost.client_seconds * 1e6 / count));
    }
    if !drained {
        more.push(("left over", events as f64 - count));
    }
    if seen.again() > 0 {
        more.push(("repeated", seen.again() as f64));
    }
    Ok((count / last.saturating_sub(first).as_secs_f64(), more))
}
