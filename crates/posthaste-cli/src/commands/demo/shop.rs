//! The shop: a service as a user of the library would write it. An order and its event are written in one transaction;
//! now and then the customer changes their mind, and both are rolled back.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use posthaste::store::Mode;
use posthaste::{Event, Outbox};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{Sqlite, SqliteConnection};

use super::{LANES, TABLE};
use crate::exit::Exit;
use crate::failure::Failure;

/// What its events are about.
pub(super) const TOPIC: &str = "order.placed.v1";

/// How many customers it has.
const CUSTOMERS: u64 = 20;

/// How often it looks whether an order is due.
const TICK: Duration = Duration::from_millis(10);

/// One order in so many is rolled back, slow, poison: told by the remainder.
const ROLLED_BACK: (u64, u64) = (10, 7);
const SLOW: (u64, u64) = (20, 3);
const POISON: (u64, u64) = (50, 11);

/// An order as its event has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) order: u64,
    pub(super) customer: u64,
    pub(super) handling: Handling,
}

/// How its event is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Handling {
    AtOnce,
    Slow,
    Poison,
}

impl Order {
    fn number(order: u64) -> Self {
        let is = |(of, rest): (u64, u64)| order % of == rest;
        let handling = match () {
            () if is(POISON) => Handling::Poison,
            () if is(SLOW) => Handling::Slow,
            () => Handling::AtOnce,
        };
        Self { order, customer: order % CUSTOMERS, handling }
    }

    fn is_rolled_back(&self) -> bool {
        self.order % ROLLED_BACK.0 == ROLLED_BACK.1
    }
}

/// The shop.
pub(super) struct Shop {
    pool: SqlitePool,
    outbox: Outbox<Sqlite>,
    /// Whether events are of customers, to be in order, or of orders.
    by_customer: bool,
    pub(super) committed: AtomicU64,
    pub(super) rolled_back: AtomicU64,
    closing: AtomicBool,
}

impl Shop {
    /// Opens its database, with a table for orders and one for events.
    pub(super) async fn open(file: &Path, stream: bool) -> Result<Self, Failure> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.map_err(failed)?;
        // The shop's own table: a service has those beside the outbox.
        sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL)")
            .execute(&pool)
            .await
            .map_err(failed)?;
        let outbox = Outbox::sqlite(pool.clone()).table(TABLE).build()?;
        outbox.migrate_as(if stream { Mode::stream(LANES)? } else { Mode::Queue }).await?;
        Ok(Self {
            pool,
            outbox,
            by_customer: stream,
            committed: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        })
    }

    /// Takes no more orders.
    pub(super) fn closes(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(super) fn outbox(&self) -> &Outbox<Sqlite> {
        &self.outbox
    }

    /// Takes orders until it is told to close. It is not to be dropped before its end: whether an order that is under
    /// way was committed, nobody would know.
    pub(super) async fn sell(&self, rate: u32) -> Result<(), Failure> {
        let start = tokio::time::Instant::now();
        let mut ticks = tokio::time::interval(TICK);
        let mut taken = 0;
        loop {
            ticks.tick().await;
            let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
            while taken < due {
                if self.closing.load(Ordering::Acquire) {
                    return Ok(());
                }
                taken += 1;
                self.take(Order::number(taken)).await?;
            }
            if self.closing.load(Ordering::Acquire) {
                return Ok(());
            }
        }
    }

    async fn take(&self, order: Order) -> Result<(), Failure> {
        let mut transaction = self.outbox.begin().await?;
        let id = order.order.cast_signed();
        let customer = order.customer.cast_signed();
        insert_order(&mut transaction, id, customer).await.map_err(failed)?;
        let event = Event::json(TOPIC, &order)?;
        let event = if self.by_customer {
            event.aggregate("customer", order.customer)
        } else {
            event.aggregate("order", order.order)
        };
        self.outbox.enqueue(&mut transaction, event.dedupe_key(order.order.to_string())).await?;
        if order.is_rolled_back() {
            transaction.rollback().await?;
            self.rolled_back.fetch_add(1, Ordering::Relaxed);
        } else {
            transaction.commit().await?;
            self.committed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What its own tables say: how many orders there are, and how many orders have no event, or events no order.
    pub(super) async fn count(&self) -> Result<(u64, u64, u64), Failure> {
        let orders = self.one("SELECT count(*) FROM orders").await?;
        let without_event = self
            .one("SELECT count(*) FROM orders WHERE CAST(id AS TEXT) NOT IN (SELECT dedupe_key FROM outbox)")
            .await?;
        let without_order = self
            .one("SELECT count(*) FROM outbox WHERE dedupe_key NOT IN (SELECT CAST(id AS TEXT) FROM orders)")
            .await?;
        Ok((orders, without_event, without_order))
    }

    async fn one(&self, sql: &'static str) -> Result<u64, Failure> {
        let count: i64 = sqlx::query_scalar(sql).fetch_one(&self.pool).await.map_err(failed)?;
        Ok(count.unsigned_abs())
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

async fn insert_order(connection: &mut SqliteConnection, id: i64, customer: i64) -> sqlx::Result<()> {
    let insert = sqlx::query("INSERT INTO orders (id, customer) VALUES (?, ?)").bind(id).bind(customer);
    insert.execute(connection).await.map(drop)
}

fn failed(error: sqlx::Error) -> Failure {
    Failure::new(
        Exit::Database,
        format!("the demo's database fails ({error}); try another directory with --keep"),
    )
}
