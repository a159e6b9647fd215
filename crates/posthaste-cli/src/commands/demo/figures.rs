//! The live line: in a terminal it changes in place, cut to its width, elsewhere there is a new one every second.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use posthaste::store::Store;
use tokio::task::JoinHandle;

use super::customers::Customers;
use super::shop::Shop;
use crate::screen;

/// How often the figures are new.
const EVERY: Duration = Duration::from_secs(1);

/// Rows that are counted, at most.
const CAP: u32 = 10_000;

/// A task that shows figures until it is stopped.
pub(super) struct Figures {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Figures {
    pub(super) fn start(shop: &Arc<Shop>, customers: &Arc<Customers>, store: &Arc<dyn Store>) -> Self {
        let bar = screen::can_move(&io::stderr()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        let line =
            Line { shop: Arc::clone(shop), customers: Arc::clone(customers), store: Arc::clone(store) };
        let task = tokio::spawn(line.run(bar.clone()));
        Self { task, bar }
    }

    pub(super) async fn stop(self) {
        self.task.abort();
        // It was told to end, and has.
        let _ = self.task.await;
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

struct Line {
    shop: Arc<Shop>,
    customers: Arc<Customers>,
    store: Arc<dyn Store>,
}

impl Line {
    async fn run(self, bar: Option<ProgressBar>) {
        let start = Instant::now();
        let mut ticks = tokio::time::interval(EVERY);
        let mut before = 0;
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let taken = self.customers.taken.load(Ordering::Relaxed);
            let line = self.line(start.elapsed(), taken, taken - before).await;
            before = taken;
            match &bar {
                Some(bar) => bar.set_message(line),
                // Where nobody reads it, nothing is lost.
                None => drop(writeln!(io::stderr(), "{line}")),
            }
        }
    }

    async fn line(&self, elapsed: Duration, taken: u64, in_a_second: u64) -> String {
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let waiting = match self.store.stats(CAP).await {
            Ok(stats) => {
                format!("{} pending, {} under way, {} dead", stats.pending, stats.processing, stats.dead)
            }
            Err(error) => format!("the database does not answer ({error})"),
        };
        let latency = self.customers.latency().map_or_else(String::new, |latency| {
            format!(", {:.1} ms from commit to delivery", latency.as_secs_f64() * 1000.0)
        });
        format!(
            "{:>3}s  orders: {} committed, {} rolled back | events: {taken} delivered ({in_a_second}/s), {waiting}{latency}",
            elapsed.as_secs(),
            load(&self.shop.committed),
            load(&self.shop.rolled_back),
        )
    }
}
