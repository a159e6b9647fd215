//! An order and its event in one transaction, with SeaORM on PostgreSQL.
//!
//! ```sh
//! DATABASE_URL=postgres://… cargo run -p posthaste --features sea-orm-2,postgres --example enqueue_sea_orm
//! ```
//!
//! It works in a schema of its own, which it drops in the end. SeaORM's transactions on MySQL and SQLite fit
//! `Outbox::mysql` and `Outbox::sqlite` in the same way.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use anyhow::{Context, Result, ensure};
use posthaste::store::{Filter, Page, Store};
use posthaste::{Event, Outbox};
use sea_orm::sea_query::{InsertStatement, Query};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection, TransactionTrait};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::var("DATABASE_URL")
        .or_else(|_| std::env::var("POSTHASTE_TEST_POSTGRES_URL"))
        .context("set DATABASE_URL to the URL of a PostgreSQL database to try this in")?;
    let schema = format!("shop_{}", uuid::Uuid::now_v7().simple());
    let mut options = ConnectOptions::new(url);
    options.set_schema_search_path(&schema);
    let db = Database::connect(options).await?;

    db.execute_unprepared(&format!("CREATE SCHEMA {schema}")).await?;
    println!("The shop's tables are in schema {schema}.");
    let outcome = run(&db).await;
    db.execute_unprepared(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    outcome
}

async fn run(db: &DatabaseConnection) -> Result<()> {
    db.execute_unprepared("CREATE TABLE orders (id bigint PRIMARY KEY, total text NOT NULL)").await?;

    // The outbox is one more table in the same database; that is what makes it transactional. It migrates
    // and reads with SeaORM's own pool.
    let pool = db.get_postgres_connection_pool().clone();
    let outbox = Outbox::postgres(pool).table("orders_outbox").build()?;
    outbox.migrate().await?;

    // The order and its event are written in one transaction. After the commit, both exist.
    let mut tx = db.begin().await?;
    tx.execute(&order(1, "9.90")?).await?;
    let event =
        Event::json("order.placed.v1", &json!({ "order": 1, "total": "9.90" }))?.aggregate("order", 1);
    let placed = outbox.enqueue(&mut tx, event).await?;
    tx.commit().await?;
    println!("Order 1 is committed, and with it the event {}.", placed.id);

    // After a rollback, neither does: nobody is told of an order that was never placed.
    let mut tx = db.begin().await?;
    tx.execute(&order(2, "5.00")?).await?;
    let event =
        Event::json("order.placed.v1", &json!({ "order": 2, "total": "5.00" }))?.aggregate("order", 2);
    let gone = outbox.enqueue(&mut tx, event).await?;
    tx.rollback().await?;
    println!("Order 2 is rolled back, and with it the event {}.", gone.id);

    let orders = db.query_all(Query::select().column("id").from("orders")).await?;
    let orders = orders.iter().map(|row| row.try_get_by_index(0)).collect::<Result<Vec<i64>, _>>()?;
    ensure!(orders == [1], "the orders should be [1], they are {orders:?}");
    let events = outbox.store().list(&Filter::all(), Page::first(10)).await?;
    ensure!(events.len() == 1, "there should be one event, there are {}", events.len());
    ensure!(events[0].id == placed.id, "it should be that of order 1, it is {}", events[0].id);
    println!("The outbox holds exactly the committed event; a relay delivers it from here.");
    Ok(())
}

fn order(id: i64, total: &str) -> Result<InsertStatement> {
    let values = [id.into(), total.into()];
    Ok(Query::insert().into_table("orders").columns(["id", "total"]).values(values)?.to_owned())
}
