//! How long an event takes from its commit to its handler, at a steady thousand a second.
//!
//! The clock starts when the producer hears of its commit. An event that is with its handler by then took no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::{Bench, PATIENCE, Scenario};
use crate::contender::{Delivering, Installed, Producer};
use crate::report::{Better, Measured, percentile};
use crate::sample::Sample;
use crate::seen::Seen;

const PER_SECOND: u64 = 1000;
const CONNECTIONS: usize = 16;
/// Events before those that count.
const WARM: u64 = 500;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let seconds = bench.pick(1, 20);
    for run in 0..bench.runs {
        for contender in bench.order(Scenario::Latency, run) {
            let measured = one(bench, contender, seconds).await;
            bench.note(Scenario::Latency, contender, measured);
        }
    }
    Ok(())
}

async fn one(bench: &Bench, contender: usize, seconds: u64) -> Result<Measured> {
    let database = bench.server.create().await?;
    let installed = bench.contenders[contender].set_up(&database).await?;
    let times = measure(installed.as_ref(), WARM + seconds * PER_SECOND).await;
    installed.close().await;
    bench.server.drop(database).await?;
    let mut times = times?;
    times.sort_by(f64::total_cmp);
    Ok(Measured {
        case: format!("{PER_SECOND} events/s"),
        unit: "p50 ms",
        better: Better::Less,
        // What took no time that can be measured would be infinitely better than anything else.
        value: percentile(&times, 0.5).max(0.001),
        more: vec![("p99 ms", percentile(&times, 0.99)), ("p99.9 ms", percentile(&times, 0.999))],
    })
}

/// Milliseconds from commit to handler of each event.
async fn measure(installed: &dyn Installed, events: u64) -> Result<Vec<f64>> {
    let seen = Seen::new(events);
    let running = installed.deliver(Delivering { workers: 1, batch: 1000 }, seen.clone()).await?;
    let committed: Arc<[AtomicU64]> = (0..events).map(|_| AtomicU64::new(0)).collect();
    let (sender, numbers) = mpsc::channel(events as usize);
    let numbers = Arc::new(Mutex::new(numbers));
    let mut producers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let producer = installed.producer().await?;
        producers.spawn(produce(producer, Arc::clone(&numbers), seen.clone(), Arc::clone(&committed)));
    }
    sender.send(0).await?;
    ensure!(seen.reaches(1, PATIENCE).await, "the first event was not delivered within {PATIENCE:?}");
    let mut clock = tokio::time::interval(Duration::from_micros(1_000_000 / PER_SECOND));
    clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 1..events {
        clock.tick().await;
        sender.send(number).await?;
    }
    drop(sender);
    while let Some(ended) = producers.join_next().await {
        ended??;
    }
    ensure!(
        seen.reaches(events, PATIENCE).await,
        "of {events} events {} were delivered within {PATIENCE:?}",
        seen.count()
    );
    running.stop().await?;
    let took = |number: u64| {
        let committed = Duration::from_nanos(committed[number as usize].load(Ordering::Acquire));
        seen.when(number).map(|seen| seen.saturating_sub(committed).as_secs_f64() * 1000.0)
    };
    Ok((WARM..events).filter_map(took).collect())
}

async fn produce(
    mut producer: Box<dyn Producer>,
    numbers: Arc<Mutex<mpsc::Receiver<u64>>>,
    seen: Seen,
    committed: Arc<[AtomicU64]>,
) -> Result<()> {
    loop {
        let Some(number) = numbers.lock().await.recv().await else { return Ok(()) };
        producer.order(&[Sample::new(number)]).await?;
        let now = u64::try_from(seen.now().as_nanos()).unwrap_or(u64::MAX);
        committed[number as usize].store(now, Ordering::Release);
    }
}
