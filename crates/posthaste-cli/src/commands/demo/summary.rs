//! What the database says at the end: whether there is an event for every committed order, and for no other.

use std::sync::atomic::Ordering;

use posthaste::store::{self, Filter, Status};
use serde_json::{Value, json};

use super::customers::Customers;
use super::shop::Shop;
use super::{ATTEMPTS, TABLE};
use crate::failure::Failure;

/// The end of a demo, counted in the database; what the program itself remembers is beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    /// Orders in the database.
    orders: u64,
    committed: u64,
    rolled_back: u64,
    delivered: u64,
    pending: u64,
    dead: u64,
    orders_without_event: u64,
    events_without_order: u64,
    /// How often somebody took an event.
    taken: u64,
    out_of_order: u64,
    /// Whether order was promised.
    stream: bool,
}

impl Summary {
    /// Asks a database whose relay has stopped.
    pub(super) async fn of(
        url: &str,
        shop: &Shop,
        customers: &Customers,
        stream: bool,
    ) -> Result<Self, Failure> {
        let (orders, orders_without_event, events_without_order) = shop.count().await?;
        let store = store::connect(url, TABLE).await?;
        let count = async |status| store.count(&Filter::status(status), u32::MAX).await.map(|count| count.n);
        let summary = Self {
            orders,
            committed: shop.committed.load(Ordering::Relaxed),
            rolled_back: shop.rolled_back.load(Ordering::Relaxed),
            delivered: count(Status::Delivered).await?,
            pending: count(Status::Pending).await? + count(Status::Processing).await?,
            dead: count(Status::Dead).await?,
            orders_without_event,
            events_without_order,
            taken: customers.taken.load(Ordering::Relaxed),
            out_of_order: customers.out_of_order.load(Ordering::Relaxed),
            stream,
        };
        store.close().await;
        Ok(summary)
    }

    /// Whether the promise was kept.
    pub(super) fn holds(&self) -> bool {
        self.orders == self.committed
            && self.orders == self.events()
            && self.orders_without_event == 0
            && self.events_without_order == 0
            && self.taken >= self.delivered
            && (self.out_of_order == 0 || !self.stream)
    }

    fn events(&self) -> u64 {
        self.delivered + self.pending + self.dead
    }

    pub(super) fn text(&self) -> String {
        let Self { orders, rolled_back, delivered, pending, dead, taken, .. } = self;
        let mark = |holds: bool| if holds { "ok" } else { "WRONG" };
        let mut lines = vec![
            format!("orders committed          {orders:>8}"),
            format!("orders rolled back        {rolled_back:>8}"),
            String::new(),
            format!("events delivered          {delivered:>8}    taken {taken} times: at least once"),
            format!("events pending            {pending:>8}    a relay would go on with them"),
            format!("events dead               {dead:>8}    poison: given up after {ATTEMPTS} attempts"),
            String::new(),
            format!(
                "events in all             {:>8}    as many as committed orders: {}",
                self.events(),
                mark(self.events() == *orders)
            ),
            format!(
                "orders without an event   {:>8}    {}",
                self.orders_without_event,
                mark(self.orders_without_event == 0)
            ),
            format!(
                "events without an order   {:>8}    what was rolled back left none: {}",
                self.events_without_order,
                mark(self.events_without_order == 0)
            ),
        ];
        if self.stream {
            let out_of_order = self.out_of_order;
            lines.push(format!("events out of order       {out_of_order:>8}    {}", mark(out_of_order == 0)));
        }
        lines.join("\n") + "\n"
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "orders_committed": self.orders,
            "orders_rolled_back": self.rolled_back,
            "events_delivered": self.delivered,
            "events_pending": self.pending,
            "events_dead": self.dead,
            "orders_without_event": self.orders_without_event,
            "events_without_order": self.events_without_order,
            "times_taken": self.taken,
            "out_of_order": self.out_of_order,
            "holds": self.holds(),
        })
    }
}
