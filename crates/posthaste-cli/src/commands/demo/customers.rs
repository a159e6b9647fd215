//! Where the demo's events go: a sink that takes most at once, some slowly, and some never.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::sink::{Delivery, Outcome, Sink};
use time::OffsetDateTime;

use super::shop::{Handling, Order};

/// How long a slow one takes.
const SLOWLY: Duration = Duration::from_millis(400);

/// Latencies of which the line of figures takes the median, at most.
const REMEMBERED: usize = 10_000;

/// Everybody who wants to hear of orders.
#[derive(Default)]
pub(super) struct Customers {
    /// How often an event was taken; one that comes twice counts twice.
    pub(super) taken: AtomicU64,
    /// How often one came before an earlier one of the same customer.
    pub(super) out_of_order: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The last order of each customer.
    last: HashMap<u64, u64>,
    /// From commit to delivery, since somebody last asked.
    latencies: Vec<Duration>,
}

impl Customers {
    /// The median from commit to delivery since the last time.
    pub(super) fn latency(&self) -> Option<Duration> {
        let mut latencies =
            std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner).latencies);
        latencies.sort_unstable();
        latencies.get(latencies.len() / 2).copied()
    }

    fn take(&self, order: &Order, delivery: &Delivery) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let last = seen.last.entry(order.customer).or_default();
        if *last > order.order {
            self.out_of_order.fetch_add(1, Ordering::Relaxed);
        }
        *last = order.order.max(*last);
        if seen.latencies.len() < REMEMBERED {
            let latency = OffsetDateTime::now_utc() - delivery.created_at;
            seen.latencies.push(latency.try_into().unwrap_or_default());
        }
    }
}

#[async_trait]
impl Sink for Customers {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            outcomes.push(match serde_json::from_slice::<Order>(delivery.event.payload().bytes()) {
                Ok(order) if order.handling == Handling::Poison => {
                    Outcome::Retry { after: None, error: "nobody can handle this order".to_owned() }
                }
                Ok(order) => {
                    if order.handling == Handling::Slow {
                        tokio::time::sleep(SLOWLY).await;
                    }
                    self.take(&order, delivery);
                    Outcome::Delivered
                }
                Err(error) => Outcome::Reject { error: format!("it is not an order: {error}") },
            });
        }
        outcomes
    }

    /// One at a time, many beside each other: a slow one holds up nobody.
    fn batch_limit(&self) -> usize {
        1
    }
}
