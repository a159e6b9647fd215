//! An order and its event in one transaction, with diesel-async on PostgreSQL.
//!
//! ```sh
//! DATABASE_URL=postgres://… cargo run -p posthaste --features diesel-async-0_9 --example enqueue_diesel
//! ```
//!
//! It works in a schema of its own, which it drops in the end.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use anyhow::{Context, Result, bail, ensure};
use diesel::{ExpressionMethods, QueryDsl};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use posthaste::store::{Filter, Page, Store};
use posthaste::{Event, Outbox};
use serde_json::json;
use sqlx::PgPool;

diesel::table! {
    /// What customers have ordered.
    orders (id) {
        /// The order's number.
        id -> BigInt,
        /// What it costs.
        total -> Text,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL")
        .or_else(|_| std::env::var("POSTHASTE_TEST_POSTGRES_URL"))
        .context("set DATABASE_URL to the URL of a PostgreSQL database to try this in")?;
    let mut connection = AsyncPgConnection::establish(&url).await?;

    let schema = format!("shop_{}", uuid::Uuid::now_v7().simple());
    connection.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path TO {schema}")).await?;
    println!("The shop's tables are in schema {schema}.");
    let outcome = run(&url, &schema, &mut connection).await;
    connection.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    outcome
}

async fn run(url: &str, schema: &str, connection: &mut AsyncPgConnection) -> Result<()> {
    connection.batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, total text NOT NULL)").await?;

    // The outbox is one more table in the same database; that is what makes it transactional. It has a pool
    // of its own to migrate and read with, and writes events through the caller's transactions alone.
    let pool = PgPool::connect(url).await?;
    let outbox = Outbox::postgres(pool).table(format!("{schema}.orders_outbox")).build()?;
    outbox.migrate().await?;

    // The order and its event are written in one transaction. After the commit, both exist.
    let placed = connection
        .transaction::<_, anyhow::Error, _>(async |tx| {
            let order = (orders::id.eq(1), orders::total.eq("9.90"));
            diesel::insert_into(orders::table).values(order).execute(tx).await?;
            let event = Event::json("order.placed.v1", &json!({ "order": 1, "total": "9.90" }))?;
            Ok(outbox.enqueue(tx, event.aggregate("order", 1)).await?)
        })
        .await?;
    println!("Order 1 is committed, and with it the event {}.", placed.id);

    // An error rolls back, and neither exists: nobody is told of an order that was never placed.
    let failed = connection
        .transaction::<(), anyhow::Error, _>(async |tx| {
            let order = (orders::id.eq(2), orders::total.eq("5.00"));
            diesel::insert_into(orders::table).values(order).execute(tx).await?;
            let event = Event::json("order.placed.v1", &json!({ "order": 2, "total": "5.00" }))?;
            let gone = outbox.enqueue(tx, event.aggregate("order", 2)).await?;
            bail!("order 2 is out of stock; the event {} goes with it", gone.id)
        })
        .await;
    match failed {
        Ok(()) => bail!("order 2 should have failed"),
        Err(error) => println!("Rolled back: {error}."),
    }

    // Outside of a transaction nothing is written at all.
    let outside = outbox.enqueue(connection, Event::json("order.placed.v1", &3)?).await;
    ensure!(outside.is_err(), "there is no transaction to be part of");

    let ids: Vec<i64> = orders::table.select(orders::id).load(connection).await?;
    ensure!(ids == [1], "the orders should be [1], they are {ids:?}");
    let events = outbox.store().list(&Filter::all(), Page::first(10)).await?;
    ensure!(events.len() == 1, "there should be one event, there are {}", events.len());
    ensure!(events[0].id == placed.id, "it should be that of order 1, it is {}", events[0].id);
    println!("The outbox holds exactly the committed event; a relay delivers it from here.");
    Ok(())
}
