//! Two databases in one process: what is ordered in the one is billed in the other, once.
//!
//! ```sh
//! cargo run -p posthaste --example two_databases
//! ```
//!
//! No transaction spans both. Each database has its own outbox and relay, and delivery is at least once; the
//! inbox of the second makes that exactly one bill per order, even where an event is delivered twice. With
//! `Outbox::postgres` and `Inbox::postgres` on one of the two, or on both, the rest stays as it is.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use posthaste::store::{Filter, Status};
use posthaste::{Admin, Backoff, Inbox, Meta, Outbox, Router, TypedEvent};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Sqlite, SqlitePool};

/// The shop says: somebody has ordered.
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order: i64,
    total: i64,
}

impl TypedEvent for OrderPlaced {
    const TOPIC: &'static str = "order.placed.v1";
    const AGGREGATE: &'static str = "order";

    fn aggregate_id(&self) -> String {
        self.order.to_string()
    }
}

/// The billing department says: a bill is out.
#[derive(Serialize, Deserialize)]
struct BillSent {
    order: i64,
}

impl TypedEvent for BillSent {
    const TOPIC: &'static str = "bill.sent.v1";
    const AGGREGATE: &'static str = "bill";

    fn aggregate_id(&self) -> String {
        self.order.to_string()
    }
}

/// What the billing department works with: all of it in its own database.
#[derive(Clone)]
struct Billing {
    outbox: Outbox<Sqlite>,
    inbox: Inbox<Sqlite>,
}

impl Billing {
    /// Bills an order that the shop has told of. The record in the inbox, the bill and the next event are one
    /// transaction: all of it happens or nothing, and what has happened does not happen again.
    async fn bill(self, placed: OrderPlaced, meta: Meta) -> Result<()> {
        let OrderPlaced { order, total } = placed;
        let mut tx = self.outbox.begin().await?;
        if self.inbox.first(&mut tx, "billing", meta.id).await? {
            sqlx::query("INSERT INTO bills (order_id, total) VALUES (?, ?)")
                .bind(order)
                .bind(total)
                .execute(&mut *tx)
                .await?;
            self.outbox.enqueue(&mut tx, BillSent { order }).await?;
            println!("  billing: order {order} is billed");
        } else {
            println!("  billing: order {order} has come again, its bill is out already");
        }
        tx.commit().await?;

        // The worst moment to fail: the bill is committed, and the shop's relay does not learn of it.
        if order % 2 == 1 && meta.attempt == 1 {
            println!("  billing: the power goes out after order {order}");
            bail!("the power went out");
        }
        Ok(())
    }
}

/// Tells the customer.
async fn send_letter(bill: BillSent, _: Meta) -> Result<()> {
    println!("  customer: a bill for order {}", bill.order);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("posthaste-example-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&directory).context("cannot create a directory for the databases")?;
    let outcome = run(&directory).await;
    std::fs::remove_dir_all(&directory)?;
    outcome
}

async fn run(directory: &Path) -> Result<()> {
    // The shop's database.
    let shop_pool = open(&directory.join("shop.db")).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
        .execute(&shop_pool)
        .await?;
    let shop = Outbox::sqlite(shop_pool.clone()).build()?;
    shop.migrate().await?;

    // The billing department's. Its table would take two bills for an order: it is the inbox that does not.
    let billing_pool = open(&directory.join("billing.db")).await?;
    sqlx::query("CREATE TABLE bills (order_id INTEGER NOT NULL, total INTEGER NOT NULL)")
        .execute(&billing_pool)
        .await?;
    let outbox = Outbox::sqlite(billing_pool.clone()).build()?;
    outbox.migrate().await?;
    let inbox = Inbox::sqlite(billing_pool.clone(), "inbox")?;
    inbox.migrate().await?;
    let billing = Billing { outbox, inbox };

    // The shop's relay leads into the billing department, whose own leads to the customers.
    let deliveries = Arc::new(AtomicUsize::new(0));
    let bill = {
        let (billing, deliveries) = (billing.clone(), Arc::clone(&deliveries));
        move |placed: OrderPlaced, meta: Meta| {
            deliveries.fetch_add(1, Ordering::Relaxed);
            billing.clone().bill(placed, meta)
        }
    };
    let shop_relay = shop
        .relay()
        .handler(Router::new().on(bill))
        .retry(Backoff::exponential(Duration::from_millis(50), Duration::from_secs(1)))
        .start()
        .await?;
    let billing_relay = billing.outbox.relay().handler(Router::new().on(send_letter)).start().await?;

    println!("5 orders come in:");
    for order in 1..=5 {
        let total = 990 * order;
        let mut tx = shop.begin().await?;
        sqlx::query("INSERT INTO orders (id, total) VALUES (?, ?)")
            .bind(order)
            .bind(total)
            .execute(&mut *tx)
            .await?;
        shop.enqueue(&mut tx, OrderPlaced { order, total }).await?;
        tx.commit().await?;
    }

    // Upstream first: once the shop has nothing left to tell, nothing more comes to the billing department.
    for (outbox, relay) in [(&shop, shop_relay), (&billing.outbox, billing_relay)] {
        all_settled(&outbox.admin()).await?;
        let left = relay.stop().await;
        ensure!(left.abandoned + left.unsettled == 0, "nothing should have been left, there is {left:?}");
    }

    let count = async |what: &'static str, pool: &SqlitePool| -> Result<i64> {
        Ok(sqlx::query_scalar(what).fetch_one(pool).await?)
    };
    let orders = count("SELECT count(*) FROM orders", &shop_pool).await?;
    let bills = count("SELECT count(*) FROM bills", &billing_pool).await?;
    let billed = count("SELECT count(DISTINCT order_id) FROM bills", &billing_pool).await?;
    let letters = billing.outbox.admin().count(&Filter::status(Status::Delivered)).await?.n;
    let deliveries = deliveries.load(Ordering::Relaxed);
    println!("{orders} orders, delivered {deliveries} times, made {bills} bills and {letters} letters.");
    ensure!(
        (orders, bills, billed, letters) == (5, 5, 5, 5),
        "there should be a bill and a letter per order"
    );
    ensure!(deliveries >= 8, "orders 1, 3 and 5 should have been delivered twice");

    shop_pool.close().await;
    billing_pool.close().await;
    Ok(())
}

async fn open(file: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    Ok(SqlitePool::connect_with(options).await?)
}

/// Waits until every event is delivered or dead.
async fn all_settled(admin: &Admin) -> Result<()> {
    let settled = async {
        loop {
            let stats = admin.status().await?.stats;
            if stats.pending.n + stats.processing.n == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), settled).await.context("the events are not delivered")?
}
