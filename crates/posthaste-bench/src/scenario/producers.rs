//! Producers at full speed, beside each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;

use crate::contender::Installed;
use crate::sample::Sample;

/// So many connections that take orders, each the next when the last is committed.
pub(super) struct Producers<'a> {
    pub(super) installed: &'a dyn Installed,
    pub(super) connections: usize,
    /// Events of one order.
    pub(super) events: u64,
    /// The number of the next event.
    pub(super) next: Arc<AtomicU64>,
}

impl Producers<'_> {
    /// What they do, in words.
    pub(super) fn case(&self) -> String {
        let with = match self.events {
            0 => "the business transaction alone".to_owned(),
            1 => "1 event".to_owned(),
            events => format!("{events} events"),
        };
        let connections = if self.connections == 1 { "connection" } else { "connections" };
        format!("{with}, {} {connections}", self.connections)
    }

    /// Orders per second, over this time.
    pub(super) async fn run(&self, time: Duration) -> Result<f64> {
        let done = Arc::new(AtomicBool::new(false));
        let orders = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            let mut producer = self.installed.producer().await?;
            // Connections and prepared statements are there before the time runs.
            producer.order(&take(&self.next, self.events)).await?;
            let (done, orders, next, events) =
                (Arc::clone(&done), Arc::clone(&orders), Arc::clone(&self.next), self.events);
            tasks.spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    producer.order(&take(&next, events)).await?;
                    orders.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        let (began, before) = (Instant::now(), orders.load(Ordering::Relaxed));
        tokio::time::sleep(time).await;
        let (taken, after) = (began.elapsed(), orders.load(Ordering::Relaxed));
        done.store(true, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok((after - before) as f64 / taken.as_secs_f64())
    }
}

fn take(next: &AtomicU64, events: u64) -> Vec<Sample> {
    let first = next.fetch_add(events, Ordering::Relaxed);
    (first..first + events).map(Sample::new).collect()
}
