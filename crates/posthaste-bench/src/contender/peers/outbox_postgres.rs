//! outbox-postgres 0.3 with outbox-core 0.6 (oxide-outbox; sqlx 0.8): an outbox with leases that keeps what was sent.
//!
//! Driven as its README shows: `OutboxService` writes in the caller's transaction, `OutboxManager` fetches a batch in
//! one statement, publishes each event to a `Transport`, and marks all of them as sent in one durable statement. Its
//! only setting that bears on speed is `batch_size`. A worker is a manager of its own. It wakes by NOTIFY, from the
//! trigger of its migration.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use async_trait::async_trait;
use outbox_core::prelude::*;
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use sqlx_0_8::PgPool;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Payload, pool_0_8};
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample, TOPIC, payload_sql};
use crate::seen::Seen;
use crate::server::Database;

/// Its migration, which is to be copied.
const TABLES: &str = include_str!("../../../peers/outbox_postgres.sql");

pub(super) struct OutboxPostgres;

#[async_trait]
impl Contender for OutboxPostgres {
    fn name(&self) -> &'static str {
        "outbox-postgres"
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        Way::Lease
    }

    fn version(&self) -> String {
        locked("outbox-postgres")
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool_0_8(database, 4).await?;
        let there = "SELECT to_regclass('outbox_events') IS NOT NULL";
        let there: bool = sqlx_0_8::query_scalar(there).fetch_one(&pool).await?;
        if !there {
            sqlx_0_8::raw_sql(TABLES).execute(&pool).await?;
        }
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
        let pool = pool_0_8(&self.database, 1).await?;
        let service = OutboxService::new(Arc::new(PostgresWriter), Arc::new(OutboxConfig::default()));
        Ok(Box::new(Orders { pool, service }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        // As it inserts them, with random identifiers.
        let fill = format!(
            "INSERT INTO outbox_events (event_type, payload, locked_until)
             SELECT $3, {}::jsonb, to_timestamp(0) FROM generate_series($1::bigint, $2::bigint) AS n",
            payload_sql()
        );
        sqlx_0_8::query(&fill)
            .bind(from as i64)
            .bind((from + events) as i64 - 1)
            .bind(TOPIC)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let (stop, stopped) = watch::channel(false);
        let mut managers = JoinSet::new();
        let mut pools = Vec::new();
        for _ in 0..how.workers {
            // One connection to work, one to listen, one for its garbage collection.
            let pool = pool_0_8(&self.database, 3).await?;
            let mut config = OutboxConfig::default();
            config.batch_size = how.batch as u32;
            let config = Arc::new(config);
            let manager = OutboxManagerBuilder::new()
                .storage(Arc::new(PostgresOutbox::<Payload>::new(pool.clone(), Arc::clone(&config))))
                .publisher(Arc::new(Sink(seen.clone())))
                .config(config)
                .shutdown_rx(stopped.clone())
                .build()
                .map_err(fault)?;
            managers.spawn(async move { manager.run().await.map_err(fault) });
            pools.push(pool);
        }
        Ok(Box::new(Managing { stop, managers, pools }))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

struct Orders {
    pool: PgPool,
    service: OutboxService<PostgresWriter, NoIdempotency, Payload>,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut transaction = self.pool.begin().await?;
        sqlx_0_8::query(INSERT_ORDER).bind(customer).execute(&mut *transaction).await?;
        for event in events {
            self.service
                .add_event(TOPIC, Payload::of(event), None, &mut *transaction)
                .await
                .map_err(fault)?;
        }
        transaction.commit().await?;
        Ok(())
    }
}

struct Sink(Seen);

#[async_trait]
impl Transport<Payload> for Sink {
    async fn publish(&self, event: Event<Payload>) -> Result<(), OutboxError> {
        self.0.number(event.payload.as_value().n);
        Ok(())
    }
}

struct Managing {
    stop: watch::Sender<bool>,
    managers: JoinSet<Result<()>>,
    pools: Vec<PgPool>,
}

#[async_trait]
impl Running for Managing {
    async fn stop(mut self: Box<Self>) -> Result<()> {
        self.stop.send(true)?;
        while let Some(ended) = self.managers.join_next().await {
            ended??;
        }
        for pool in self.pools {
            pool.close().await;
        }
        Ok(())
    }
}

fn fault(error: OutboxError) -> anyhow::Error {
    anyhow!("outbox-core: {error:?}")
}
