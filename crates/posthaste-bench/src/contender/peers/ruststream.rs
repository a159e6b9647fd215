//! ruststream-sqlx 0.7 (sqlx 0.9): tables of the service's own as queues of the RustStream framework.
//!
//! Driven as its guide "Relay" builds an outbox: the event is a row that commits with the order, and a subscription
//! hands each to whatever it relays to; the acknowledgement deletes the row. (Its component of the name `outbox` notes
//! what a service publishes on a broker, and publishes it again at the next start; it relays nothing, and has nothing
//! to drain.) Of its forms of claims the row lock with batches is the fastest: one transaction locks a batch, deletes
//! the rows one by one, and commits once. A lease would commit for each row. `workers` are batches beside each other.
//! Notifications wake it, from the trigger that its guide shows.

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use async_trait::async_trait;
use ruststream::runtime::RunningApp;
use ruststream_sqlx::prelude::*;
use serde::Deserialize;
use sqlx::PgPool;

use super::pool;
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample, payload_sql};
use crate::seen::Seen;
use crate::server::Database;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS order_events (id BIGSERIAL PRIMARY KEY, payload BYTEA NOT NULL);

CREATE OR REPLACE FUNCTION announce_order_event() RETURNS trigger AS $$
BEGIN
    PERFORM pg_notify(TG_TABLE_NAME, '');
    RETURN NULL;
END;
$$ LANGUAGE plpgsql;

CREATE OR REPLACE TRIGGER order_event_announced AFTER INSERT ON order_events
    FOR EACH ROW EXECUTE FUNCTION announce_order_event();
";

pub(super) struct Ruststream;

#[async_trait]
impl Contender for Ruststream {
    fn name(&self) -> &'static str {
        "ruststream"
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        Way::LeaseDeleting
    }

    fn version(&self) -> String {
        locked("ruststream-sqlx")
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool(database, 4).await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        Ok(Box::new(Here { database: database.clone(), pool }))
    }
}

struct Here {
    database: Database,
    pool: PgPool,
}

#[async_trait]
impl Installed for Here {
    async fn producer(&self) -> Result<Box<dyn Producer>> {
        Ok(Box::new(Orders { pool: pool(&self.database, 1).await? }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        let fill = format!(
            "INSERT INTO order_events (payload)
             SELECT convert_to({}, 'UTF8') FROM generate_series($1::bigint, $2::bigint) AS n",
            payload_sql()
        );
        sqlx::query(sqlx::AssertSqlSafe(fill))
            .bind(from as i64)
            .bind((from + events) as i64 - 1)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let pool = pool(&self.database, how.workers as u32 + 2).await?;
        let workers = NonZeroUsize::new(how.workers).context("no workers")?;
        let batch = NonZeroUsize::new(how.batch).context("no batch")?;
        let broker = SqlxBroker::new(pool.clone()).poll_interval(Duration::from_secs(60)).listen_notify();
        let app = RustStream::new(AppInfo::new("bench", "0.0.0"))
            .on_startup(async move |()| Ok::<_, Infallible>(Sinks { sink: Sink(seen) }))
            .with_broker(broker, |b| {
                b.include(relay.batch(batch).workers(workers));
            });
        let app = app.start().await.map_err(|error| anyhow!("ruststream: {error}"))?;
        Ok(Box::new(Relaying { app, pool }))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

/// A row of the table. Without a column for a lease, claims are locks of rows.
#[derive(Inbox, sqlx::FromRow)]
#[inbox(table = "order_events")]
struct OrderEvent {
    #[field(id, generated)]
    id: i64,
    #[field(payload)]
    payload: Vec<u8>,
}

/// What the handler reads of a payload.
#[derive(Deserialize)]
struct Event {
    n: u64,
}

#[derive(Clone)]
struct Sink(Seen);

#[derive(FromRef)]
struct Sinks {
    sink: Sink,
}

#[subscriber(InboxQueue::<OrderEvent>::new("order-events"))]
async fn relay(events: &[Event], State(sink): State<Sink>) -> Vec<HandlerOutcome> {
    events
        .iter()
        .map(|event| {
            sink.0.number(event.n);
            HandlerOutcome::ack()
        })
        .collect()
}

struct Orders {
    pool: PgPool,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut transaction = self.pool.begin().await?;
        sqlx::query(INSERT_ORDER).bind(customer).execute(&mut *transaction).await?;
        for event in events {
            OrderEvent { id: 0, payload: event.payload().into_bytes() }.insert(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }
}

struct Relaying {
    app: RunningApp,
    pool: PgPool,
}

#[async_trait]
impl Running for Relaying {
    async fn stop(self: Box<Self>) -> Result<()> {
        self.app.shutdown().await.map_err(|error| anyhow!("ruststream: {error}"))?;
        self.pool.close().await;
        Ok(())
    }
}
