//! An order and its event in one transaction, with sqlx on an SQLite file.
//!
//! ```sh
//! cargo run -p posthaste --example enqueue_sqlx
//! ```
//!
//! With `Outbox::postgres` or `Outbox::mysql` and a pool of that database, the rest stays as it is.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;

use anyhow::{Context, Result, ensure};
use posthaste::store::{Filter, Page, Store};
use posthaste::{Event, Outbox};
use serde_json::json;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("posthaste-example-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&directory).context("cannot create a directory for the database")?;
    let outcome = run(&directory.join("shop.db")).await;
    std::fs::remove_dir_all(&directory)?;
    outcome
}

async fn run(file: &Path) -> Result<()> {
    println!("The shop's database is {}.", file.display());
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT NOT NULL)").execute(&pool).await?;

    // The outbox is one more table in the same database; that is what makes it transactional.
    let outbox = Outbox::sqlite(pool.clone()).table("orders_outbox").build()?;
    outbox.migrate().await?;

    // The order and its event are written in one transaction. After the commit, both exist.
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES (1, '9.90')").execute(&mut *tx).await?;
    let event =
        Event::json("order.placed.v1", &json!({ "order": 1, "total": "9.90" }))?.aggregate("order", 1);
    let placed = outbox.enqueue(&mut tx, event).await?;
    tx.commit().await?;
    println!("Order 1 is committed, and with it the event {}.", placed.id);

    // After a rollback, neither does: nobody is told of an order that was never placed.
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id, total) VALUES (2, '5.00')").execute(&mut *tx).await?;
    let event =
        Event::json("order.placed.v1", &json!({ "order": 2, "total": "5.00" }))?.aggregate("order", 2);
    let gone = outbox.enqueue(&mut tx, event).await?;
    tx.rollback().await?;
    println!("Order 2 is rolled back, and with it the event {}.", gone.id);

    let orders: Vec<i64> = sqlx::query_scalar("SELECT id FROM orders").fetch_all(&pool).await?;
    ensure!(orders == [1], "the orders should be [1], they are {orders:?}");
    let events = outbox.store().list(&Filter::all(), Page::first(10)).await?;
    ensure!(events.len() == 1, "there should be one event, there are {}", events.len());
    ensure!(events[0].id == placed.id, "it should be that of order 1, it is {}", events[0].id);
    println!("The outbox holds exactly the committed event; a relay delivers it from here.");

    pool.close().await;
    Ok(())
}
