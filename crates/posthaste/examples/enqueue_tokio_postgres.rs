//! An order and its event in one transaction, with tokio-postgres.
//!
//! ```sh
//! DATABASE_URL=postgres://… cargo run -p posthaste --features tokio-postgres-0_7 --example enqueue_tokio_postgres
//! ```
//!
//! It works in a schema of its own, which it drops in the end.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use anyhow::{Context, Result, ensure};
use posthaste::store::{Filter, Page, Store};
use posthaste::{Event, Outbox};
use serde_json::json;
use sqlx::PgPool;
use tokio_postgres::{Client, NoTls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL")
        .or_else(|_| std::env::var("POSTHASTE_TEST_POSTGRES_URL"))
        .context("set DATABASE_URL to the URL of a PostgreSQL database to try this in")?;
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);

    let schema = format!("shop_{}", uuid::Uuid::now_v7().simple());
    client.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path TO {schema}")).await?;
    println!("The shop's tables are in schema {schema}.");
    let outcome = run(&url, &schema, &mut client).await;
    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    outcome
}

async fn run(url: &str, schema: &str, client: &mut Client) -> Result<()> {
    client.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, total text NOT NULL)").await?;

    // The outbox is one more table in the same database; that is what makes it transactional. It has a pool
    // of its own to migrate and read with, and writes events through the caller's transactions alone.
    let pool = PgPool::connect(url).await?;
    let outbox = Outbox::postgres(pool).table(format!("{schema}.orders_outbox")).build()?;
    outbox.migrate().await?;

    // The order and its event are written in one transaction. After the commit, both exist.
    let mut tx = client.transaction().await?;
    tx.execute("INSERT INTO orders (id, total) VALUES (1, '9.90')", &[]).await?;
    let event =
        Event::json("order.placed.v1", &json!({ "order": 1, "total": "9.90" }))?.aggregate("order", 1);
    let placed = outbox.enqueue(&mut tx, event).await?;
    tx.commit().await?;
    println!("Order 1 is committed, and with it the event {}.", placed.id);

    // After a rollback, neither does: nobody is told of an order that was never placed.
    let mut tx = client.transaction().await?;
    tx.execute("INSERT INTO orders (id, total) VALUES (2, '5.00')", &[]).await?;
    let event =
        Event::json("order.placed.v1", &json!({ "order": 2, "total": "5.00" }))?.aggregate("order", 2);
    let gone = outbox.enqueue(&mut tx, event).await?;
    tx.rollback().await?;
    println!("Order 2 is rolled back, and with it the event {}.", gone.id);

    let orders: Vec<i64> =
        client.query("SELECT id FROM orders", &[]).await?.iter().map(|row| row.get(0)).collect();
    ensure!(orders == [1], "the orders should be [1], they are {orders:?}");
    let events = outbox.store().list(&Filter::all(), Page::first(10)).await?;
    ensure!(events.len() == 1, "there should be one event, there are {}", events.len());
    ensure!(events[0].id == placed.id, "it should be that of order 1, it is {}", events[0].id);
    println!("The outbox holds exactly the committed event; a relay delivers it from here.");
    Ok(())
}
