//! What a relay costs producers at full speed: their rate with one beside them, as a part of that without.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Result;

use super::producers::Producers;
use super::{Bench, Scenario};
use crate::contender::Delivering;
use crate::report::{Better, Measured};
use crate::seen::Seen;

const CONNECTIONS: usize = 16;

/// More than anybody writes in the time.
const MOST: u64 = 4_000_000;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let time = bench.pick(Duration::from_millis(500), Duration::from_secs(8));
    let events: &[u64] = bench.pick(&[1], &[1, 10]);
    for run in 0..bench.runs {
        for &events in events {
            for contender in bench.order(Scenario::Steady, run) {
                let measured = one(bench, contender, events, time).await;
                bench.note(Scenario::Steady, contender, measured);
            }
        }
    }
    Ok(())
}

async fn one(bench: &Bench, contender: usize, events: u64, time: Duration) -> Result<Measured> {
    let (alone, _, _) = rate(bench, contender, events, time, false).await?;
    let (beside, written, delivered) = rate(bench, contender, events, time, true).await?;
    Ok(Measured {
        case: format!("{CONNECTIONS} producers, events of a transaction: {events}"),
        unit: "of the rate alone",
        better: Better::More,
        value: beside / alone,
        more: vec![
            ("transactions/s alone", alone),
            ("transactions/s beside", beside),
            ("delivered, part of written", delivered / written),
        ],
    })
}

/// Transactions per second, and how many events were written and delivered meanwhile.
async fn rate(
    bench: &Bench,
    contender: usize,
    events: u64,
    time: Duration,
    relay: bool,
) -> Result<(f64, f64, f64)> {
    let database = bench.server.create().await?;
    let installed = bench.contenders[contender].set_up(&database).await?;
    bench.server.checkpoint().await?;
    let seen = Seen::new(if relay { MOST } else { 0 });
    let running = match relay {
        true => Some(installed.deliver(Delivering { workers: 1, batch: 1000 }, seen.clone()).await?),
        false => None,
    };
    let next = Arc::new(AtomicU64::new(0));
    let producers = Producers {
        installed: installed.as_ref(),
        connections: CONNECTIONS,
        events,
        next: Arc::clone(&next),
    };
    let rate = producers.run(time).await;
    let counts = (next.load(std::sync::atomic::Ordering::Relaxed) as f64, seen.count() as f64);
    if let Some(running) = running {
        running.stop().await?;
    }
    installed.close().await;
    bench.server.drop(database).await?;
    Ok((rate?, counts.0, counts.1))
}
