//! graphile_worker 0.14 (sqlx 0.9): a queue of jobs with leases, used in an outbox's place. Delivered jobs are deleted.
//!
//! Driven as its guide and its own `perf_test` do for throughput: a local queue fetches a batch in one statement, and
//! completions are gathered for some milliseconds and deleted in one statement, which is durable. An event is a job;
//! its batch handlers are for one job with many items and do not apply. `queue_count`, its own way to fetch beside
//! itself, is the number of workers. Concurrency and delay of completions were tried, see [`CONCURRENCY`].
//!
//! A local queue that finds nothing looks again at once, whatever its poll interval: its fetch notifies the very loop that would wait
//! (0.14.1, `local_queue/fetch.rs`). So it has the latency of somebody who never rests, and when idle the cost. A refetch delay would end
//! that, and be its latency.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use async_trait::async_trait;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
    WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::task::JoinHandle;

use super::{Payload, pool};
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample, payload_sql};
use crate::seen::Seen;
use crate::server::Database;

const SCHEMA: &str = "graphile_worker";

/// Jobs in work at once, for each local queue. With 100 or 500, which its `perf_test` has, it took more of the
/// processor and was no faster.
const CONCURRENCY: usize = 8;

/// How long completions are gathered, as its `perf_test` does; 1 and 20 ms were no faster.
const COMPLETION: Duration = Duration::from_millis(5);

pub(super) struct GraphileWorker;

#[async_trait]
impl Contender for GraphileWorker {
    fn name(&self) -> &'static str {
        "graphile_worker"
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        Way::LeaseDeleting
    }

    fn version(&self) -> String {
        locked("graphile_worker")
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool(database, 4).await?;
        WorkerUtils::new(pool.clone(), SCHEMA).migrate().await?;
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
        Ok(Box::new(Orders { utils: WorkerUtils::new(pool.clone(), SCHEMA), pool }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        let task =
            "INSERT INTO graphile_worker._private_tasks (identifier) VALUES ($1) ON CONFLICT DO NOTHING";
        sqlx::query(task).bind(Event::IDENTIFIER).execute(&self.pool).await?;
        let fill = format!(
            "INSERT INTO graphile_worker._private_jobs (task_id, payload)
             SELECT tasks.id, {}::json FROM generate_series($1::bigint, $2::bigint) AS n,
                    graphile_worker._private_tasks AS tasks WHERE tasks.identifier = $3",
            payload_sql()
        );
        sqlx::query(sqlx::AssertSqlSafe(fill))
            .bind(from as i64)
            .bind((from + events) as i64 - 1)
            .bind(Event::IDENTIFIER)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let pool = pool(&self.database, 16).await?;
        let queue = LocalQueueConfig::default().with_size(how.batch).with_queue_count(how.workers);
        let worker = WorkerOptions::default()
            .pg_pool(pool.clone())
            .schema(SCHEMA)
            .concurrency(CONCURRENCY * how.workers)
            .poll_interval(Duration::from_millis(100))
            .local_queue(queue)
            .complete_job_batch_delay(COMPLETION)
            .add_extension(Sink(seen))
            .define_job::<Event>()
            .init()
            .await?;
        let worker = Arc::new(worker);
        let running = tokio::spawn({
            let worker = Arc::clone(&worker);
            async move { worker.run().await.map_err(|error| anyhow!("graphile_worker: {error}")) }
        });
        Ok(Box::new(Working { worker, running, pool }))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

struct Orders {
    pool: PgPool,
    utils: WorkerUtils,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut transaction = self.pool.begin().await?;
        sqlx::query(INSERT_ORDER).bind(customer).execute(&mut *transaction).await?;
        let mut utils = self.utils.clone().with_executor(&mut transaction);
        if let [event] = events {
            utils.add_job(Event(Payload::of(event)), JobSpec::default()).await?;
        } else if !events.is_empty() {
            let spec = JobSpec::default();
            let jobs = events.iter().map(|event| (Event(Payload::of(event)), &spec));
            utils.add_jobs(&jobs.collect::<Vec<_>>()).await?;
        }
        drop(utils);
        transaction.commit().await?;
        Ok(())
    }
}

#[derive(Clone)]
struct Sink(Seen);

/// Its extensions are to be shown.
impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Event(Payload);

impl TaskHandler for Event {
    const IDENTIFIER: &'static str = "event";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let Some(sink) = ctx.get_ext::<Sink>() else { return Err("no sink") };
        sink.0.number(self.0.n);
        Ok(())
    }
}

struct Working {
    worker: Arc<Worker>,
    running: JoinHandle<Result<()>>,
    pool: PgPool,
}

#[async_trait]
impl Running for Working {
    async fn stop(self: Box<Self>) -> Result<()> {
        self.worker.request_shutdown();
        self.running.await??;
        drop(self.worker);
        self.pool.close().await;
        Ok(())
    }
}
