//! A whole shop in one program: it takes an order, and a relay delivers what that leads to.
//!
//! ```sh
//! cargo run -p posthaste --example standalone
//! ```
//!
//! One order writes three events. One is delivered at once. One fails and is tried again by itself. One is
//! refused, waits as a dead letter until somebody has mended what was wrong, and is then replayed.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use posthaste::sink::Delivery;
use posthaste::store::{Filter, Page, Status};
use posthaste::{Admin, Backoff, Event, Failure, Meta, Outbox, Router, TypedEvent};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

/// What happened, as a type: its topic cannot be misspelt, and its handler gets it decoded.
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    id: i64,
    total: String,
}

impl TypedEvent for OrderPlaced {
    const TOPIC: &'static str = "order.placed.v1";
    const AGGREGATE: &'static str = "order";

    fn aggregate_id(&self) -> String {
        self.id.to_string()
    }
}

/// Handles a typed event.
async fn send_mail(order: OrderPlaced, meta: Meta) -> Result<()> {
    println!("  mail: thank you for order {}, it costs {} (event {})", order.id, order.total, meta.id);
    Ok(())
}

/// Handles any event of its topic. An error means: try again later.
async fn reserve_stock(delivery: Delivery) -> Result<()> {
    if delivery.attempt == 1 {
        println!("  stock: the warehouse does not answer, so this is tried again");
        bail!("the warehouse does not answer");
    }
    println!("  stock: reserved at attempt {}", delivery.attempt);
    Ok(())
}

/// Handles it with the help of the database. A rejection means: do not try again, somebody must look at it.
async fn send_parcel(pool: SqlitePool, delivery: Delivery) -> Result<(), Failure> {
    let order = delivery.event.aggregate_id();
    let address: Option<String> =
        sqlx::query_scalar("SELECT address FROM orders WHERE id = ?").bind(order).fetch_one(&pool).await?;
    let Some(address) = address else {
        println!("  parcel: nobody knows where to, and trying again would not help");
        return Err(Failure::reject("the order has no address"));
    };
    println!("  parcel: sent to {address}");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("posthaste-example-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&directory).context("cannot create a directory for the database")?;
    let outcome = run(&directory.join("shop.db")).await;
    std::fs::remove_dir_all(&directory)?;
    outcome
}

async fn run(file: &Path) -> Result<()> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT NOT NULL, address TEXT)")
        .execute(&pool)
        .await?;

    // The outbox is one more table in the same database; that is what makes it transactional.
    let outbox = Outbox::sqlite(pool.clone()).table("orders_outbox").build()?;
    outbox.migrate().await?;

    // The relay hands every committed event to the handler that is registered for it.
    let parcels = pool.clone();
    let relay = outbox
        .relay()
        .handler(
            Router::new()
                .on(send_mail)
                .topic("stock.needed.v1", reserve_stock)
                .topic("parcel.due.v1", move |delivery| send_parcel(parcels.clone(), delivery)),
        )
        .retry(Backoff::exponential(Duration::from_millis(100), Duration::from_secs(1)).max_attempts(5))
        .start()
        .await?;

    // The order and its events are written in one transaction: after the commit all of them exist, after a
    // rollback none. The commit hands the events to the relay.
    println!("An order comes in:");
    let mut tx = outbox.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES (1, '9.90')").execute(&mut *tx).await?;
    outbox.enqueue(&mut tx, OrderPlaced { id: 1, total: "9.90".to_owned() }).await?;
    for topic in ["stock.needed.v1", "parcel.due.v1"] {
        outbox.enqueue(&mut tx, Event::json(topic, &json!({ "order": 1 }))?.aggregate("order", 1)).await?;
    }
    tx.commit().await?;

    let admin = outbox.admin();
    all_settled(&admin).await?;

    // What was refused is not lost: it is a dead letter, with the reason.
    let dead = admin.dead_letters(&Filter::all(), Page::first(10)).await?;
    for letter in &dead {
        println!("Dead letter {}: {}.", letter.id, letter.last_error.as_deref().unwrap_or("no reason"));
    }
    ensure!(dead.len() == 1, "there should be one dead letter, there are {}", dead.len());

    // Somebody mends what was wrong, and has it delivered again.
    println!("The customer calls, and the letter is replayed:");
    sqlx::query("UPDATE orders SET address = '1 Harbour Street' WHERE id = 1").execute(&pool).await?;
    let replayed = admin.replay(Filter::dead().topic("parcel.*")).run().await?;
    ensure!(replayed == 1, "one letter should have been replayed, it was {replayed}");
    all_settled(&admin).await?;

    // Stopping lets what runs finish, and says what was left.
    let left = relay.stop().await;
    ensure!(left.abandoned + left.unsettled == 0, "nothing should have been left, there is {left:?}");

    println!("All is done, and the relay has stopped:");
    let events = admin.list(&Filter::all(), Page::first(10)).await?;
    for record in &events {
        if let Ok(event) = &record.event {
            println!("  {:<16} {}, attempts: {}", event.topic(), record.status, record.attempts);
        }
    }
    let attempts: Vec<(Status, u32)> = events.iter().map(|event| (event.status, event.attempts)).collect();
    ensure!(attempts == [1, 2, 1].map(|attempts| (Status::Delivered, attempts)), "not as it should be");

    pool.close().await;
    Ok(())
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
