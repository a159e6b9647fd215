//! obix 0.16 (sqlx 0.8): an outbox that is read by a cursor; the fastest peer known.
//!
//! Its durable way is a singleton subscriber: a job of the `job` crate that reads pages in the order of their
//! sequence and `collect`s what it gets; a batch lands together with its checkpoint, so that the acknowledgement is
//! one small transaction for each batch. That is `obix`. Its README also shows the bare listener, which remembers its
//! position in memory alone: `obix-listener` acknowledges nothing, and shows only what reading costs.
//!
//! Settings: `max_batch_size` is the batch that is asked for; for the rest see [`mailbox`]. One subscriber reads a
//! stream ("exactly one instance exists per type"), so that more workers change nothing. What was delivered stays.

use std::future::Future;
use std::sync::{Arc, Weak};

use anyhow::{Result, anyhow};
use async_trait::async_trait;
use futures_util::StreamExt;
use job::{JobSvcConfig, JobType, Jobs};
use obix::prelude::es_entity::DbOp;
use obix::{
    EventCtx, EventDelivery, EventSequence, FlushOp, Handled, InsertOrder, MailboxConfig, Outbox,
    OutboxEventJobConfig, PartitionMaintainerConfig, Partitions, SingletonSubscriber,
};
use sqlx_0_8::PgPool;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::{Payload, apart, pool_0_8};
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample, payload_sql};
use crate::scenario::Scenario;
use crate::seen::Seen;
use crate::server::Database;

/// Its migration, which is to be copied; the jobs' tables are made by the `job` crate.
const TABLES: &str = include_str!("../../../peers/obix.sql");

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The two ways.
pub(super) enum Obix {
    /// With a durable checkpoint.
    Subscriber,
    /// Without any acknowledgement.
    Listener,
}

#[async_trait]
impl Contender for Obix {
    fn name(&self) -> &'static str {
        match self {
            Self::Subscriber => "obix",
            Self::Listener => "obix-listener",
        }
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        Way::Cursor
    }

    fn version(&self) -> String {
        locked("obix")
    }

    fn most_workers(&self) -> usize {
        1
    }

    /// A listener that forgets its position cannot be stopped and started again.
    fn takes_part(&self, scenario: Scenario) -> bool {
        matches!(self, Self::Subscriber) || scenario == Scenario::Drain
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool_0_8(database, 8).await?;
        let jobs = JobSvcConfig::builder().pool(pool.clone()).exec_migrations(true).build()?;
        apart(async move || Jobs::init(jobs).await.map(drop).map_err(fault)).await?;
        let there: bool =
            sqlx_0_8::query_scalar("SELECT to_regclass('persistent_outbox_events') IS NOT NULL")
                .fetch_one(&pool)
                .await?;
        if !there {
            sqlx_0_8::raw_sql(TABLES).execute(&pool).await?;
        }
        // Some millions of rows have partitions of their own before they are written, as in production.
        let partitions: Partitions = Partitions::new(&pool, 5);
        apart(async move || partitions.ensure().await.map_err(fault)).await?;
        Ok(Box::new(Here {
            durable: matches!(self, Self::Subscriber),
            database: database.clone(),
            pool,
            outbox: Mutex::new(Weak::new()),
        }))
    }
}

struct Here {
    durable: bool,
    database: Database,
    pool: PgPool,
    /// Producers and subscribers of one process share the outbox: what the ones commit the others need not read.
    outbox: Mutex<Weak<Shared>>,
}

struct Shared {
    outbox: Outbox<Payload>,
    pool: PgPool,
}

impl Here {
    async fn shared(&self) -> Result<Arc<Shared>> {
        let mut known = self.outbox.lock().await;
        if let Some(shared) = known.upgrade() {
            return Ok(shared);
        }
        let pool = pool_0_8(&self.database, 8).await?;
        let shared = apart(async move || {
            let outbox = Outbox::init(&pool, mailbox()).await.map_err(fault)?;
            Ok(Arc::new(Shared { outbox, pool }))
        })
        .await?;
        *known = Arc::downgrade(&shared);
        Ok(shared)
    }
}

#[async_trait]
impl Installed for Here {
    async fn producer(&self) -> Result<Box<dyn Producer>> {
        let shared = self.shared().await?;
        Ok(Box::new(Orders { pool: pool_0_8(&self.database, 1).await?, shared }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        let payload = payload_sql();
        let fill = format!(
            "INSERT INTO persistent_outbox_events (payload)
             SELECT {payload}::jsonb FROM generate_series($1::bigint, $2::bigint) AS n"
        );
        sqlx_0_8::query(&fill).bind(from as i64).bind((from + events) as i64 - 1).execute(&self.pool).await?;
        Ok(())
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let shared = self.shared().await?;
        if !self.durable {
            let mut listener = shared.outbox.listen_persisted(EventSequence::BEGIN);
            let reading = tokio::spawn(async move {
                while let Some(Ok(event)) = listener.next().await {
                    if let Some(payload) = &event.payload {
                        seen.number(payload.n);
                    }
                }
            });
            return Ok(Box::new(Reading { shared, reading }));
        }
        let jobs = subscribe(Arc::clone(&shared), how.batch, Sink(seen));
        Ok(Box::new(Subscribed { shared, jobs: jobs.await? }))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

async fn subscribe(shared: Arc<Shared>, batch: usize, sink: Sink) -> Result<Jobs> {
    apart(async move || {
        let config = JobSvcConfig::builder().pool(shared.pool.clone()).exec_migrations(false).build()?;
        let mut jobs = Jobs::init(config).await.map_err(fault)?;
        let maintainer = PartitionMaintainerConfig::new(JobType::new("outbox-partition-maintainer"));
        shared.outbox.register_partition_maintainer(&mut jobs, maintainer).await.map_err(fault)?;
        let config = OutboxEventJobConfig::new(JobType::new("null-sink")).with_max_batch_size(batch);
        shared.outbox.register_singleton_subscriber(&mut jobs, config, sink).await.map_err(fault)?;
        jobs.start_poll().await.map_err(fault)?;
        Ok(jobs)
    })
    .await
}

/// Events of one page: its default. Pages of 2500 and of 5000 took more of the processor and were no faster.
const PAGE: usize = 1000;

/// A page is read in one statement, and the next one while this is handled; the buffer between them holds a page.
fn mailbox() -> MailboxConfig {
    MailboxConfig::builder()
        .backfill_page_size(PAGE)
        .event_buffer_size(PAGE)
        .event_cache_size(10 * PAGE)
        .build()
}

struct Orders {
    pool: PgPool,
    shared: Arc<Shared>,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut op = DbOp::init(&self.pool).await?;
        sqlx_0_8::query(INSERT_ORDER).bind(customer).execute(&mut **op.tx_mut()).await?;
        if !events.is_empty() {
            let payloads = events.iter().map(Payload::of).collect::<Vec<_>>();
            self.shared.outbox.publish_all_persisted(&mut op, payloads).await?;
        }
        op.commit().await?;
        Ok(())
    }
}

struct Sink(Seen);

impl SingletonSubscriber<Payload> for Sink {
    type Batch = Vec<u64>;

    async fn handle_persistent<'inv>(
        &self,
        ctx: EventCtx<'inv, Self::Batch>,
        event: &EventDelivery<Payload>,
    ) -> Result<Handled<'inv>, Error> {
        Ok(match &event.payload {
            Some(payload) => ctx.collect(payload.n),
            None => ctx.skip(),
        })
    }

    fn flush(
        &self,
        _op: &mut FlushOp<'_, InsertOrder>,
        numbers: Self::Batch,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        for number in numbers {
            self.0.number(number);
        }
        std::future::ready(Ok(()))
    }
}

struct Subscribed {
    shared: Arc<Shared>,
    jobs: Jobs,
}

#[async_trait]
impl Running for Subscribed {
    async fn stop(self: Box<Self>) -> Result<()> {
        self.jobs.shutdown().await.map_err(fault)?;
        drop(self.jobs);
        shut(self.shared).await;
        Ok(())
    }
}

struct Reading {
    shared: Arc<Shared>,
    reading: JoinHandle<()>,
}

#[async_trait]
impl Running for Reading {
    async fn stop(self: Box<Self>) -> Result<()> {
        self.reading.abort();
        self.reading.await.ok();
        shut(self.shared).await;
        Ok(())
    }
}

/// Closes the connections of an outbox that nobody else uses.
async fn shut(shared: Arc<Shared>) {
    if let Some(Shared { outbox, pool }) = Arc::into_inner(shared) {
        drop(outbox);
        pool.close().await;
    }
}

/// Its errors are classes of errors, and no [`std::error::Error`]s of one type.
fn fault(error: impl std::fmt::Debug) -> anyhow::Error {
    anyhow!("obix: {error:?}")
}
