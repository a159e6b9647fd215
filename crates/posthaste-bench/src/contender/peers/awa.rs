//! awa 0.6 (sqlx 0.8): a queue of jobs with leases, used in an outbox's place. What was delivered stays until its
//! retention ends.
//!
//! Driven as its README shows, on its queue storage, with the settings of its own throughput benchmark: no deadline,
//! which is its short path of claims and completions; claims of a batch; completions gathered by itself and durable.
//! `claimers`, its way to claim beside itself, is the number of workers. For the rest see [`MAX_WORKERS`].

use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobContext, JobError, JobResult, QueueConfig, QueueStorage,
    QueueStorageConfig, Worker,
};
use serde::Serialize;
use sqlx_0_8::PgPool;

use super::{Payload, apart, pool_0_8};
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample};
use crate::seen::Seen;
use crate::server::Database;

const QUEUE: &str = "events";
const KIND: &str = "event";

/// Jobs in work at once: the fastest of 100, 511, 1024 and 4096. From 512 on it completes over four connections.
const MAX_WORKERS: u32 = 4096;

/// Events of one COPY.
const COPY: u64 = 10_000;

/// How long it may take to end what it has begun.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Awa;

#[async_trait]
impl Contender for Awa {
    fn name(&self) -> &'static str {
        "awa"
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        Way::Lease
    }

    fn version(&self) -> String {
        locked("awa")
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool_0_8(database, 8).await?;
        let tables = pool.clone();
        apart(async move || {
            awa::migrations::run(&tables).await?;
            if awa::storage::status(&tables).await?.state != "active" {
                // The first worker in a new database makes the tables of its queue storage.
                let client = client(&tables, Delivering { workers: 1, batch: 1 }, Sink(Seen::new(0)))?;
                client.start().await?;
                client.shutdown(PATIENCE).await;
            }
            Ok(())
        })
        .await?;
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
        Ok(Box::new(Orders { pool: pool_0_8(&self.database, 1).await? }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        let store = QueueStorage::new(QueueStorageConfig::default())?;
        for first in (from..from + events).step_by(COPY as usize) {
            let numbers = first..(from + events).min(first + COPY);
            let jobs = numbers.map(|number| params(&Sample::new(number))).collect::<Result<Vec<_>>>()?;
            store.enqueue_params_copy(&self.pool, &jobs).await?;
        }
        Ok(())
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let pool = pool_0_8(&self.database, 24).await?;
        let client = client(&pool, how, Sink(seen))?;
        client.start().await?;
        Ok(Box::new(Working { client, pool }))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

fn client(pool: &PgPool, how: Delivering, sink: Sink) -> Result<Client> {
    let queue = QueueConfig {
        max_workers: MAX_WORKERS,
        claimers: how.workers as u16,
        claim_batch_size: how.batch,
        poll_interval: Duration::from_millis(50),
        deadline_duration: Duration::ZERO,
        ..QueueConfig::default()
    };
    Ok(Client::builder(pool.clone()).queue(QUEUE, queue).register_worker(sink).build()?)
}

struct Sink(Seen);

#[async_trait]
impl Worker for Sink {
    fn kind(&self) -> &'static str {
        KIND
    }

    async fn perform(&self, ctx: &JobContext) -> Result<JobResult, JobError> {
        match ctx.job.args["n"].as_u64() {
            Some(number) => self.0.number(number),
            None => return Err(JobError::Terminal("no number".to_owned())),
        }
        Ok(JobResult::Completed)
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Event(Payload);

impl JobArgs for Event {
    fn kind() -> &'static str {
        KIND
    }
}

fn options() -> InsertOpts {
    InsertOpts { queue: QUEUE.to_owned(), ..InsertOpts::default() }
}

fn params(sample: &Sample) -> Result<InsertParams> {
    let args = serde_json::from_str(&sample.payload()).context("a sample is JSON")?;
    Ok(InsertParams { kind: KIND.to_owned(), args, opts: options() })
}

struct Orders {
    pool: PgPool,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut transaction = self.pool.begin().await?;
        sqlx_0_8::query(INSERT_ORDER).bind(customer).execute(&mut *transaction).await?;
        if let [event] = events {
            awa::insert_with(&mut *transaction, &Event(Payload::of(event)), options()).await?;
        } else if !events.is_empty() {
            let jobs = events.iter().map(params).collect::<Result<Vec<_>>>()?;
            awa::insert_many(&mut *transaction, &jobs).await?;
        }
        transaction.commit().await?;
        Ok(())
    }
}

struct Working {
    client: Client,
    pool: PgPool,
}

#[async_trait]
impl Running for Working {
    async fn stop(self: Box<Self>) -> Result<()> {
        self.client.shutdown(PATIENCE).await;
        drop(self.client);
        self.pool.close().await;
        Ok(())
    }
}
