//! A REST service on PostgreSQL that takes orders and sends mails about them, with axum.
//!
//! ```sh
//! DATABASE_URL=postgres://… cargo run -p posthaste --features postgres --example rest_service
//! curl -i 127.0.0.1:3000/orders -H 'content-type: application/json' -d '{"customer": "ada", "total": 990}'
//! curl -i 127.0.0.1:3000/orders/1
//! ```
//!
//! It serves until Ctrl-C. With `-- --self-test` it listens on a free port, sends itself requests, checks the
//! answers and ends. Either way it works in a schema of its own, which it drops in the end.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use posthaste::store::Filter;
use posthaste::{ErrorKind, Meta, Outbox, Router, TypedEvent};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, PgPool, Postgres};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// The shop's tables. Whether there is such a customer is asked at the commit, the last moment at which an
/// order can fail.
const TABLES: &str = "
CREATE TABLE customers (name text PRIMARY KEY);
CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
    total bigint NOT NULL
);
CREATE TABLE mails (event_id uuid PRIMARY KEY, order_id bigint NOT NULL, text text NOT NULL);
INSERT INTO customers VALUES ('ada'), ('grace')";

/// What the service works with.
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<Postgres>,
}

/// What a customer sends.
#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    total: i64,
}

/// What happened, for whoever wants to do something about it.
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    id: i64,
    customer: String,
    total: i64,
}

impl TypedEvent for OrderPlaced {
    const TOPIC: &'static str = "order.placed.v1";
    const AGGREGATE: &'static str = "order";

    fn aggregate_id(&self) -> String {
        self.id.to_string()
    }
}

/// `POST /orders`: the order and its event are one transaction, and the customer waits for nothing else.
async fn place_order(State(shop): State<Shop>, Json(order): Json<NewOrder>) -> Result<Response, Failed> {
    let NewOrder { customer, total } = order;
    let mut tx = shop.outbox.begin().await?;
    let id: i64 = sqlx::query_scalar("INSERT INTO orders (customer, total) VALUES ($1, $2) RETURNING id")
        .bind(&customer)
        .bind(total)
        .fetch_one(&mut *tx)
        .await?;
    shop.outbox.enqueue(&mut tx, OrderPlaced { id, customer, total }).await?;
    match tx.commit().await {
        // Nobody hears of an order that was never placed: its event is gone with it.
        Err(error) if *error.kind() == ErrorKind::Constraint => {
            let refusal = json!({ "error": "there is no such customer" });
            Ok((StatusCode::UNPROCESSABLE_ENTITY, Json(refusal)).into_response())
        }
        committed => {
            committed?;
            Ok((StatusCode::CREATED, Json(json!({ "id": id }))).into_response())
        }
    }
}

/// `GET /orders/{id}`: the order, and whether its mail is out.
async fn show_order(State(shop): State<Shop>, Path(id): Path<i64>) -> Result<Response, Failed> {
    let found: Option<(String, i64, bool)> = sqlx::query_as(
        "SELECT customer, total, EXISTS (SELECT FROM mails WHERE order_id = id) FROM orders WHERE id = $1",
    )
    .bind(id)
    .fetch_optional(&shop.pool)
    .await?;
    Ok(match found {
        Some((customer, total, mailed)) => {
            Json(json!({ "id": id, "customer": customer, "total": total, "mailed": mailed })).into_response()
        }
        None => (StatusCode::NOT_FOUND, Json(json!({ "error": "there is no such order" }))).into_response(),
    })
}

/// The relay's handler. It may be called again for an event, so the event's id keeps it from a second mail; one
/// of a real mail service would be given that id as its idempotency key.
async fn send_mail(pool: PgPool, order: OrderPlaced, meta: Meta) -> Result<()> {
    let text = format!("Dear {}, thank you for order {}.", order.customer, order.id);
    println!("  mail: {text}");
    sqlx::query("INSERT INTO mails (event_id, order_id, text) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(meta.id)
        .bind(order.id)
        .bind(text)
        .execute(&pool)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let self_test = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--self-test") => true,
        Some(other) => bail!("{other:?} is unknown; known is --self-test"),
    };
    let url = std::env::var("DATABASE_URL")
        .or_else(|_| std::env::var("POSTHASTE_TEST_POSTGRES_URL"))
        .context("set DATABASE_URL to the URL of a PostgreSQL database to try this in")?;
    let schema = format!("shop_{}", uuid::Uuid::now_v7().simple());
    let options: PgConnectOptions = url.parse().context("the URL cannot be read")?;
    let pool = PgPool::connect_with(options.options([("search_path", &schema)])).await?;

    sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {schema}"))).execute(&pool).await?;
    println!("The shop's tables are in schema {schema}.");
    let outcome = run(&pool, self_test).await;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP SCHEMA {schema} CASCADE"))).execute(&pool).await?;
    outcome
}

async fn run(pool: &PgPool, self_test: bool) -> Result<()> {
    sqlx::raw_sql(TABLES).execute(pool).await?;
    let outbox = Outbox::postgres(pool.clone()).table("orders_outbox").build()?;
    outbox.migrate().await?;
    let shop = Shop { pool: pool.clone(), outbox };

    // The relay runs beside the service: what commits through `outbox.begin()` goes straight to it.
    let mails = pool.clone();
    let mail = move |order: OrderPlaced, meta: Meta| send_mail(mails.clone(), order, meta);
    let relay = shop.outbox.relay().handler(Router::new().on(mail)).start().await?;

    let listener = TcpListener::bind(if self_test { "127.0.0.1:0" } else { "127.0.0.1:3000" }).await?;
    let address = listener.local_addr()?;
    let app = axum::Router::new()
        .route("/orders", post(place_order))
        .route("/orders/{id}", get(show_order))
        .with_state(shop.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async { drop(stopped.await) });
    let server = tokio::spawn(server.into_future());
    println!("The service listens on http://{address}.");

    let outcome = if self_test {
        try_it(&shop, address).await
    } else {
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")
    };

    // First the last requests are answered, then the relay finishes what they have led to.
    drop(stop);
    server.await??;
    let left = relay.stop().await;
    println!("The service and its relay have stopped; events handed back: {}.", left.handed_back);
    outcome?;
    ensure!(left.abandoned + left.unsettled == 0, "nothing should have been cut short, but {left:?}");
    Ok(())
}

/// What a customer would do, and what must come of it.
async fn try_it(shop: &Shop, address: SocketAddr) -> Result<()> {
    for (customer, id) in [("ada", 1), ("grace", 2)] {
        let order = json!({ "customer": customer, "total": 990 });
        let answer = request(address, "POST", "/orders", &order.to_string()).await?;
        ensure!(answer == (201, json!({ "id": id })), "an order of {customer} was answered with {answer:?}");
    }
    let (status, answer) =
        request(address, "POST", "/orders", &json!({ "customer": "nobody", "total": 1 }).to_string()).await?;
    ensure!(status == 422, "an order of nobody was answered with {status} {answer}");
    println!("An order of nobody was refused: {answer}.");

    for id in [1, 2] {
        let order = tokio::time::timeout(Duration::from_secs(30), mailed(address, id)).await;
        println!("Order {id}: {}.", order.with_context(|| format!("no mail about order {id}"))??);
    }
    let (status, _) = request(address, "GET", "/orders/3", "").await?;
    ensure!(status == 404, "the order of nobody was answered with {status}");

    let events = shop.outbox.admin().count(&Filter::all()).await?.n;
    let mails: i64 = sqlx::query_scalar("SELECT count(*) FROM mails").fetch_one(&shop.pool).await?;
    println!("2 orders made {events} events and {mails} mails; the refused one made none.");
    ensure!((events, mails) == (2, 2), "there should be an event and a mail for each order");
    Ok(())
}

/// The order, once its mail is out.
async fn mailed(address: SocketAddr, id: i64) -> Result<Value> {
    loop {
        let (status, order) = request(address, "GET", &format!("/orders/{id}"), "").await?;
        ensure!(status == 200, "order {id} was answered with {status} {order}");
        if order["mailed"] == true {
            return Ok(order);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// One request on a connection of its own; the status and the JSON of its answer.
async fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
    let status = head.split(' ').nth(1).context("the answer has no status")?.parse()?;
    Ok((status, serde_json::from_str(body)?))
}

/// Whatever else went wrong: an error for the customer, a line in the log for us.
struct Failed(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        println!("  failed: {:#}", self.0);
        (StatusCode::INTERNAL_SERVER_ERROR, Json(json!({ "error": "try again later" }))).into_response()
    }
}
