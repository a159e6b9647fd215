//! pgmq 0.33 (sqlx 0.8, its SQL 1.11 without the extension): a queue with visibility timeouts, used in an outbox's
//! place.
//!
//! Driven as its README shows, in batches: `read_batch`, then `delete_batch` of all of them or, as the contender
//! `pgmq-archive` that keeps what was delivered, `archive_batch`; both are durable. (`pop` would take messages before
//! they are delivered, and lose them with the worker.) A worker is a loop with a connection of its own. With an empty
//! queue it waits in the server by `read_batch_with_poll`, which would be the slower one with a full queue.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use pgmq::{Message, PGMQueueExt};
use sqlx_0_8::PgPool;

use super::loops::{Loops, Stopped};
use super::{Payload, pool_0_8};
use crate::contender::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{INSERT_ORDER, Sample, payload_sql};
use crate::seen::Seen;
use crate::server::Database;

const QUEUE: &str = "events";

/// Longer than any batch takes.
const VISIBILITY: i32 = 60;

/// How long one statement waits for messages.
const WAIT: Duration = Duration::from_secs(1);

/// How often that looks: as often as posthaste where it is polled, and not each 250 ms as by default.
const LOOKS: Duration = Duration::from_millis(100);

/// What becomes of a message that was delivered.
#[derive(Clone, Copy)]
pub(super) enum Pgmq {
    Delete,
    Archive,
}

#[async_trait]
impl Contender for Pgmq {
    fn name(&self) -> &'static str {
        match self {
            Self::Delete => "pgmq",
            Self::Archive => "pgmq-archive",
        }
    }

    fn class(&self) -> Class {
        Class::Peer
    }

    fn way(&self) -> Way {
        match self {
            Self::Delete => Way::LeaseDeleting,
            Self::Archive => Way::Lease,
        }
    }

    fn version(&self) -> String {
        locked("pgmq")
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        let pool = pool_0_8(database, 4).await?;
        let queue = PGMQueueExt::new_with_pool(pool.clone()).await;
        queue.install_sql_from_embedded().await?;
        queue.create(QUEUE).await?;
        Ok(Box::new(Here { database: database.clone(), after: *self, pool }))
    }
}

struct Here {
    database: Database,
    after: Pgmq,
    pool: PgPool,
}

#[async_trait]
impl Installed for Here {
    async fn producer(&self) -> Result<Box<dyn Producer>> {
        let pool = pool_0_8(&self.database, 1).await?;
        Ok(Box::new(Orders { queue: PGMQueueExt::new_with_pool(pool.clone()).await, pool }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        // What `pgmq.send_batch` inserts.
        let fill = format!(
            "INSERT INTO pgmq.q_{QUEUE} (vt, message)
             SELECT clock_timestamp(), {}::jsonb FROM generate_series($1::bigint, $2::bigint) AS n",
            payload_sql()
        );
        sqlx_0_8::query(&fill).bind(from as i64).bind((from + events) as i64 - 1).execute(&self.pool).await?;
        Ok(())
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let pool = pool_0_8(&self.database, how.workers as u32).await?;
        let queue = PGMQueueExt::new_with_pool(pool.clone()).await;
        Ok(Box::new(Loops::start(how.workers, pool, |stopped| {
            work(queue.clone(), self.after, how.batch as i32, seen.clone(), stopped)
        })))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

async fn work(queue: PGMQueueExt, after: Pgmq, batch: i32, seen: Seen, stopped: Stopped) -> Result<()> {
    while !stopped.is() {
        let mut messages: Vec<Message<Payload>> = queue.read_batch(QUEUE, VISIBILITY, batch).await?;
        if messages.is_empty() {
            messages = queue
                .read_batch_with_poll(QUEUE, VISIBILITY, batch, Some(WAIT), Some(LOOKS))
                .await?
                .unwrap_or_default();
        }
        if messages.is_empty() {
            continue;
        }
        let ids: Vec<i64> = messages.iter().map(|message| message.msg_id).collect();
        for message in messages {
            seen.number(message.message.n);
        }
        match after {
            Pgmq::Delete => queue.delete_batch(QUEUE, &ids).await?,
            Pgmq::Archive => queue.archive_batch(QUEUE, &ids).await?,
        };
    }
    Ok(())
}

struct Orders {
    pool: PgPool,
    queue: PGMQueueExt,
}

#[async_trait]
impl Producer for Orders {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number) as i64;
        let mut transaction = self.pool.begin().await?;
        sqlx_0_8::query(INSERT_ORDER).bind(customer).execute(&mut *transaction).await?;
        if let [event] = events {
            self.queue.send_with_cxn(QUEUE, &Payload::of(event), &mut *transaction).await?;
        } else if !events.is_empty() {
            let messages = events.iter().map(Payload::of).collect::<Vec<_>>();
            self.queue.send_batch_with_cxn(QUEUE, &messages, &mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }
}
