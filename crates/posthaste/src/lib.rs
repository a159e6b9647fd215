//! posthaste: a transactional outbox.
//!
//! A service that saves an order and then tells a broker can crash in between. With an outbox it writes the
//! event in the same database transaction as the order: both exist or neither does.
//!
//! ```
//! use posthaste::{Event, Outbox};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
//! sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT)").execute(&pool).await?;
//! let outbox = Outbox::sqlite(pool.clone()).table("orders_outbox").build()?;
//! outbox.migrate().await?;
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id, total) VALUES (1, '9.90')").execute(&mut *tx).await?;
//! let event = Event::json("order.placed.v1", &serde_json::json!({"total": "9.90"}))?.aggregate("order", 1);
//! let enqueued = outbox.enqueue(&mut tx, event).await?;
//! tx.commit().await?;
//!
//! assert!(!enqueued.duplicate);
//! # Ok(()) }
//! ```
//!
//! A [`Relay`] in the same process delivers what was committed, at least once, to a handler or a sink. A
//! transaction from [`Outbox::begin`] knows its commit, and its events go straight there:
//!
//! ```
//! use posthaste::{Meta, Outbox, Router, TypedEvent};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct OrderPlaced { id: i64, total: String }
//!
//! impl TypedEvent for OrderPlaced {
//!     const TOPIC: &'static str = "order.placed.v1";
//!     const AGGREGATE: &'static str = "order";
//!     fn aggregate_id(&self) -> String { self.id.to_string() }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
//! # sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT)").execute(&pool).await?;
//! # let outbox = Outbox::sqlite(pool.clone()).table("orders_outbox").build()?;
//! # outbox.migrate().await?;
//! let (mailed, mut mails) = tokio::sync::mpsc::unbounded_channel();
//! let router = Router::new().on(move |order: OrderPlaced, meta: Meta| {
//!     let mailed = mailed.clone();
//!     // An error is tried again; `Failure` can say more than that.
//!     async move { mailed.send(format!("order {} for {}, attempt {}", order.id, order.total, meta.attempt)) }
//! });
//! let relay = outbox.relay().handler(router).start().await?;
//!
//! let mut tx = outbox.begin().await?;
//! sqlx::query("INSERT INTO orders (id, total) VALUES (1, '9.90')").execute(&mut *tx).await?;
//! outbox.enqueue(&mut tx, OrderPlaced { id: 1, total: "9.90".into() }).await?;
//! tx.commit().await?;
//!
//! assert_eq!(mails.recv().await.as_deref(), Some("order 1 for 9.90, attempt 1"));
//! relay.stop().await; // finishes what runs, hands back the rest
//! # Ok(()) }
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`event`] | the event and its rules |
//! | [`produce`] | [`Outbox`]: events into the caller's transaction |
//! | [`store`] | one table: claim, settle, look, purge, migrate |
//! | [`inbox`] | [`Inbox`]: a consumer takes each event once |
//! | [`relay`] | [`Relay`]: from a committed row to a handler or broker |
//! | [`dispatch`] | [`Router`], [`Broadcast`] and what else stands between an event and its handler |
//! | [`sink`] | where events go: standard output, files, webhooks, NATS JetStream |
//! | [`admin`] | [`Admin`]: look, replay, discard, purge; the [`doctor`](admin::doctor) |
//! | [`telemetry`] | the names of the metrics |
//! | [`testing`] | an outbox and a sink in memory, with assertions |

#![cfg_attr(
    not(all(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(dead_code, unused_imports, reason = "what the databases share is all in use only when all are on")
)]

#[cfg(feature = "__failpoints")]
#[doc(hidden)]
#[macro_use]
pub mod failpoint;
#[cfg(not(feature = "__failpoints"))]
#[macro_use]
mod failpoint;

pub mod admin;
pub mod dispatch;
pub mod error;
pub mod event;
pub mod inbox;
#[cfg(feature = "__planted-bugs")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "__planted-bugs"))]
mod planted;
pub mod produce;
pub mod relay;
pub mod sink;
pub mod store;
pub mod telemetry;
pub mod testing;

/// Seeds of arbitrary input.
#[cfg(test)]
const CORPUS: posthaste_testkit::fuzz::Corpus =
    posthaste_testkit::fuzz::Corpus::of_crate(env!("CARGO_MANIFEST_DIR"));

pub use admin::Admin;
pub use dispatch::{Broadcast, Failure, Handler, Interceptor, Meta, Router, TopicMap};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventBuilder, IntoEvent, TypedEvent};
pub use inbox::Inbox;
pub use produce::{Backend, Enqueue, Hook, Outbox};
pub use relay::{Backoff, Relay};
pub use sink::Delivery;
pub use store::{Enqueued, TableName};

/// The code of the README and of the book compiles.
#[cfg(all(
    doctest,
    feature = "postgres",
    feature = "mysql",
    feature = "sqlite",
    feature = "http",
    feature = "nats",
    feature = "tokio-postgres-0_7",
    feature = "diesel-async-0_9",
    feature = "sea-orm-2",
    feature = "opentelemetry-0_33"
))]
mod book {
    macro_rules! page {
        ($name:ident, $file:literal) => {
            #[doc = include_str!(concat!("../../../", $file))]
            struct $name;
        };
    }
    page!(Readme, "README.md");
    page!(Axum, "docs/src/guides/axum.md");
    page!(BuiltinSinks, "docs/src/guides/builtin-sinks.md");
    page!(DeliveryLoop, "docs/src/guides/delivery-loop.md");
    page!(Diesel, "docs/src/guides/diesel.md");
    page!(Handlers, "docs/src/guides/handlers.md");
    page!(Hooks, "docs/src/guides/hooks.md");
    page!(HotPath, "docs/src/guides/hot-path.md");
    page!(Inbox, "docs/src/guides/inbox.md");
    page!(RelayGuide, "docs/src/guides/relay.md");
    page!(Retries, "docs/src/guides/retries.md");
    page!(SeaOrm, "docs/src/guides/sea-orm.md");
    page!(Sinks, "docs/src/guides/sinks.md");
    page!(Sqlx, "docs/src/guides/sqlx.md");
    page!(Streams, "docs/src/guides/streams.md");
    page!(Testing, "docs/src/guides/testing.md");
    page!(TokioPostgres, "docs/src/guides/tokio-postgres.md");
    page!(Tracing, "docs/src/guides/tracing.md");
    page!(Connections, "docs/src/operate/connections.md");
    page!(Isolation, "docs/src/operate/isolation.md");
    page!(Migrations, "docs/src/operate/migrations.md");
    page!(Retention, "docs/src/operate/retention.md");
    page!(Errors, "docs/src/reference/errors.md");
    page!(Metrics, "docs/src/reference/metrics.md");
    page!(Tutorial, "docs/src/tutorial.md");
}
