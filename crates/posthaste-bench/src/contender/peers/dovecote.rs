//! dovecote-sqlx-postgres 0.2 (sqlx 0.9): an outbox with leases that keeps what was delivered.
//!
//! Driven as its README says: `enqueue` in the caller's transaction; a worker of ours claims a batch (of at most 1000,
//! one UPDATE for each event), delivers, and acknowledges. It acknowledges one event at a time, each in a durable
//! transaction of its own, so the worker does that over several connections at once, which share a flush of the disk;
//! as many as were fastest, see [`ACKNOWLEDGING`]. It has no wake-up: an idle worker polls.

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use dovecote::{EventId, EventSource, EventType, Lease, Limit, NewEvent, StreamName, TenantId, WorkerId};
use dovecote_sqlx_postgres::{AdminDovecote, MIGRATIONS, PostgresDovecote, TenantDovecote};
use futures_util::{StreamExt, TryStreamExt};
use sqlx::PgPool;
use uuid::Uuid;

use super::loops::{Loops, Stopped};
use super::pool;
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample, TOPIC, payload_sql};
use crate::seen::Seen;
use crate::server::Database;

const TENANT: &str = "bench";
const STREAM: &str = "orders";
const SOURCE: &str = "https://bench.example/orders";

/// Acknowledgements beside each other, for each worker: four were slower, 32 no faster.
const ACKNOWLEDGING: usize = 16;

/// How often an idle worker looks.
const POLL: Duration = Duration::from_millis(100);

pub(super) struct Dovecote;

#[async_trait]
impl Contender for Dovecote {
    fn name(&self) -> &'static str {
        "dovecote"
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        Way::Lease
    }

    fn version(&self) -> String {
        locked("dovecote-sqlx-postgres")
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool(database, 4).await?;
        let there = "SELECT to_regclass('dovecote_events') IS NOT NULL";
        if !sqlx::query_scalar::<_, bool>(there).fetch_one(&pool).await? {
            for migration in MIGRATIONS {
                sqlx::raw_sql(migration.sql()).execute(&pool).await?;
            }
        }
        PostgresDovecote::new(pool.clone()).check_schema().await?;
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
        let pool = pool(&self.database, 1).await?;
        let outbox = PostgresDovecote::new(pool.clone()).for_tenant(TenantId::new(TENANT)?);
        Ok(Box::new(Orders { pool, outbox }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        let fill = format!(
            "WITH events AS (
                 INSERT INTO dovecote_events
                     (tenant_id, stream, specversion, event_id, source, event_type, datacontenttype, data_kind, data)
                 SELECT '{TENANT}', '{STREAM}', '1.0', gen_random_uuid()::text, '{SOURCE}', '{TOPIC}', 'application/json', 'json',
                        convert_to({}, 'UTF8')
                   FROM generate_series($1::bigint, $2::bigint) AS n
                 RETURNING row_id, enqueued_at)
             INSERT INTO dovecote_deliveries (tenant_id, event_row_id, state, available_at)
             SELECT '{TENANT}', row_id, 'pending', enqueued_at FROM events",
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
        let connections = (how.workers * (ACKNOWLEDGING + 1)) as u32;
        let pool = pool(&self.database, connections).await?;
        let outbox = PostgresDovecote::new(pool.clone()).admin();
        let batch = Limit::new(how.batch as u32)?;
        Ok(Box::new(Loops::start(how.workers, pool, |stopped| {
            work(outbox.clone(), batch, seen.clone(), stopped)
        })))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

async fn work(outbox: AdminDovecote, batch: Limit, seen: Seen, mut stopped: Stopped) -> Result<()> {
    let worker = WorkerId::new(Uuid::now_v7().to_string())?;
    let lease = Lease::new(Duration::from_secs(60))?;
    while !stopped.is() {
        let claimed = outbox.claim(worker.clone(), lease, batch).await?;
        if claimed.is_empty() {
            tokio::time::timeout(POLL, stopped.wait()).await.ok();
            continue;
        }
        for event in &claimed {
            let data = event.event().data().context("dovecote: an event without data")?;
            seen.payload(data.as_bytes());
        }
        futures_util::stream::iter(claimed)
            .map(|event| {
                let outbox = outbox.clone();
                async move { outbox.ack(event.tenant_id().clone(), event.row_id(), event.claim_token()).await }
            })
            .buffer_unordered(ACKNOWLEDGING)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}

struct Orders {
    pool: PgPool,
    outbox: TenantDovecote,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut transaction = self.pool.begin().await?;
        sqlx::query(INSERT_ORDER).bind(customer).execute(&mut *transaction).await?;
        for event in events {
            let event = NewEvent::builder(
                StreamName::new(STREAM)?,
                EventId::new(Uuid::now_v7().to_string())?,
                EventSource::new(SOURCE)?,
                EventType::new(TOPIC)?,
            )
            .json_data(event.payload())?
            .build()?;
            self.outbox.enqueue(&mut transaction, event).await?;
        }
        transaction.commit().await?;
        Ok(())
    }
}
