//! What a relay costs producers at full speed: their rate with one beside them, as a part of that without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;

use super::producers::Producers;
use super::{Bench, Scenario};
use crate::contender::Delivering;
use crate::meter::Meter;
use crate::report::{Better, Measured};
use crate::seen::Seen;

const CONNECTIONS: usize = 16;

/// More than anybody writes in the time.
const MOST: u64 = 4_000_000;

/// How often the producers are measured alone and beside a relay, by turns: what else the machine does changes within seconds.
const TURNS: usize = 6;
/// And in short: each is the first of the two once.
const FEWEST: usize = 2;

pub(super) async fn run(bench: &mut Bench) -> Result<()> {
    let time = bench.pick(Duration::from_millis(500), Duration::from_secs(2));
    let turns = bench.pick(FEWEST, TURNS);
    let events: &[u64] = bench.pick(&[1], &[1, 10]);
    for run in 0..bench.runs {
        for &events in events {
            for contender in bench.order(Scenario::Steady, run) {
                let measured = one(bench, contender, events, time, turns).await;
                bench.note(Scenario::Steady, contender, measured);
            }
        }
    }
    Ok(())
}

async fn one(bench: &Bench, contender: usize, events: u64, time: Duration, turns: usize) -> Result<Measured> {
    let (mut alone, mut beside) = (Slices::default(), Slices::default());
    for turn in 0..turns {
        // Neither is always the first of the two.
        for relay in [turn % 2 == 1, turn % 2 == 0] {
            let slice = slice(bench, contender, events, time, relay).await?;
            if relay { beside.add(slice) } else { alone.add(slice) }
        }
    }
    let mut more = vec![
        ("transactions/s alone", alone.rate / turns as f64),
        ("transactions/s beside", beside.rate / turns as f64),
        ("delivered, part of written", beside.delivered / beside.written),
    ];
    // The kernel counts in hundredths of a second for each process: of short slices that says nothing.
    if !bench.quick {
        more.push(("server µs/transaction alone", alone.server_micros()));
        more.push(("server µs/transaction more beside", beside.server_micros() - alone.server_micros()));
        more.push(("client µs/transaction alone", alone.client_micros()));
        more.push(("client µs/transaction more beside", beside.client_micros() - alone.client_micros()));
    }
    Ok(Measured {
        case: format!("{CONNECTIONS} producers, events of a transaction: {events}"),
        unit: "of the rate alone",
        better: Better::More,
        value: beside.rate / alone.rate,
        more,
    })
}

/// What producers came to in a slice of the time; of several, the sum.
#[derive(Default)]
struct Slices {
    /// Transactions per second.
    rate: f64,
    transactions: f64,
    /// Events.
    written: f64,
    /// Of those, how many had been delivered when the last was written.
    delivered: f64,
    server_seconds: f64,
    client_seconds: f64,
}

impl Slices {
    fn add(&mut self, other: Self) {
        self.rate += other.rate;
        self.transactions += other.transactions;
        self.written += other.written;
        self.delivered += other.delivered;
        self.server_seconds += other.server_seconds;
        self.client_seconds += other.client_seconds;
    }

    fn server_micros(&self) -> f64 {
        self.server_seconds / self.transactions * 1e6
    }

    fn client_micros(&self) -> f64 {
        self.client_seconds / self.transactions * 1e6
    }
}

async fn slice(bench: &Bench, contender: usize, events: u64, time: Duration, relay: bool) -> Result<Slices> {
    let database = bench.server.create().await?;
    let installed = bench.contenders[contender].set_up(&database).await?;
    bench.server.checkpoint().await?;
    let before = Meter::read(&database).await?;
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
    let written = next.load(Ordering::Relaxed) as f64;
    let delivered = seen.count() as f64;
    // Whatever fails, nobody is left at work beside the next slice.
    let after = Meter::read(&database).await;
    if let Some(running) = running {
        running.stop().await?;
    }
    installed.close().await;
    bench.server.drop(database).await?;
    let (rate, cost) = (rate?, after?.since(&before));
    Ok(Slices {
        rate,
        transactions: written / events as f64,
        written,
        delivered,
        server_seconds: cost.server_seconds,
        client_seconds: cost.client_seconds,
    })
}
