//! A producer: a process that writes business rows and events in transactions, some of which roll back, stay open for long
//! or enqueue an event twice, and that goes on when its connections break.
//!
//! It is a process of its own so that it can be killed, and so that the relay which it may have beside itself is one among
//! others. What it is to do is in a file; it does it until it is terminated, or has written as many events as it was told.

mod database;
mod occasion;
mod relays;
mod transaction;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sqlx::Pool;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::history::Writer;
use crate::plan::{self, Mix, Settings, Table, Way};
use database::Speaks;
use occasion::Occasions;
use transaction::{Desk, Known};

/// The argument that makes a producer of the binary; the file follows.
pub const ARGUMENT: &str = "producer";

/// Transactions that are open at once.
const WORKERS: u64 = 4;

/// A producer that could not write for a while makes up for no more than this.
const ARREARS: Duration = Duration::from_secs(5);

/// How long a producer rests after a failure.
const PAUSE: Duration = Duration::from_millis(150);

/// What a producer is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub name: String,
    pub seed: u64,
    pub way: Way,
    pub database: plan::Database,
    pub url: String,
    /// The directory of the history.
    pub directory: PathBuf,
    pub tables: Vec<Table>,
    pub mix: Mix,
    pub settings: Settings,
    /// The port of the sink over HTTP.
    pub recorder: u16,
    pub pace: Pace,
}

/// How fast it writes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// So many events in a second, for ever.
    Steady(f64),
    /// So many events, as fast as it can.
    Rush(u64),
}

/// Does what the file says.
pub async fn run(file: &Path) -> Result<()> {
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let orders: Orders = serde_json::from_slice(&text)?;
    let mut terminated = signal(SignalKind::terminate())?;
    let stop = watch::Sender::new(false);
    let stopped = stop.subscribe();
    let work = async {
        match orders.database {
            plan::Database::Postgres => obey::<sqlx::Postgres>(&orders, stopped).await,
            plan::Database::MySql | plan::Database::MariaDb => obey::<sqlx::MySql>(&orders, stopped).await,
            plan::Database::Sqlite => obey::<sqlx::Sqlite>(&orders, stopped).await,
        }
    };
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        _ = terminated.recv() => {}
    }
    // What is under way is finished.
    stop.send_replace(true);
    work.await
}

async fn obey<DB: Speaks>(orders: &Orders, stop: watch::Receiver<bool>) -> Result<()> {
    let pool = DB::pool(&orders.url)?;
    let history = Writer::open(&orders.directory, &orders.name)?;
    let desks = orders.tables.iter().map(|table| desk::<DB>(&pool, table)).collect::<Result<Vec<_>>>()?;
    let relays = relays::start(orders, &desks).await?;
    let progress = Progress { began: Instant::now(), written: Cell::new(0), pace: orders.pace };
    let worker = |number| work(orders, &pool, &desks, &history, &progress, number, stop.clone());
    let ends = futures_util::future::join_all((0..WORKERS).map(worker)).await;
    for relay in relays {
        relay.stop().await;
    }
    ends.into_iter().collect()
}

fn desk<DB: Speaks>(pool: &Pool<DB>, table: &Table) -> Result<Desk<DB>> {
    Ok(Desk { outbox: DB::outbox(pool, &table.name)?, table: table.clone() })
}

/// How many events were written, of how many.
struct Progress {
    began: Instant,
    written: Cell<u64>,
    pace: Pace,
}

impl Progress {
    /// How long to wait before the next transaction; none if there is to be no other.
    fn wait(&self) -> Option<Duration> {
        match self.pace {
            Pace::Rush(all) => (self.written.get() < all).then_some(Duration::ZERO),
            Pace::Steady(rate) => {
                let due = self.began.elapsed().as_secs_f64() * rate;
                let least = due - ARREARS.as_secs_f64() * rate;
                // Both are far below what a float can count.
                if (self.written.get() as f64) < least {
                    self.written.set(least as u64);
                }
                let ahead = self.written.get() as f64 - due;
                Some(Duration::from_secs_f64((ahead / rate).max(0.0)))
            }
        }
    }

    fn add(&self, events: usize) {
        self.written.set(self.written.get() + events as u64);
    }
}

/// One transaction after the other. Only a history that cannot be written ends it early: without it nothing is proved.
async fn work<DB: Speaks>(
    orders: &Orders,
    pool: &Pool<DB>,
    desks: &[Desk<DB>],
    history: &Writer,
    progress: &Progress,
    number: u64,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let mut occasions = Occasions::new(orders, number);
    let mut known = Known::default();
    while let Some(wait) = progress.wait() {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            () = tokio::time::sleep(wait) => {}
        }
        let desk = &desks[occasions.table(desks.len())];
        let occasion = occasions.next(&desk.table, &known);
        progress.add(occasion.events.len());
        let done = transaction::run(orders, pool, desk, history, &occasion, &mut known, &mut stop).await;
        if let Err(error) = done {
            if let Some(broken) = error.downcast_ref::<std::io::Error>() {
                anyhow::bail!("the history cannot be written: {broken}");
            }
            // A server that is down, a connection that was cut: what the run is about.
            report(&orders.name, &error);
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

#[allow(clippy::print_stderr, reason = "a process of its own, whose standard error is its log")]
fn report(name: &str, error: &anyhow::Error) {
    eprintln!("{name}: {error:#}");
}
