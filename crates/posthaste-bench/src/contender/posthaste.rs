//! posthaste itself, through its public interface, with the settings that its documentation names.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use posthaste::relay::Relay;
use posthaste::sink::{Delivery, Outcome, Sink};
use posthaste::store::Mode;
use posthaste::{Event, EventBuilder, Outbox};
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::{Class, Contender, Delivering, Installed, Producer, Running, Way, locked};
use crate::sample::{AGGREGATE_TYPE, INSERT_ORDER, Sample, TOPIC, aggregate_sql, payload_sql};
use crate::scenario::Scenario;
use crate::seen::Seen;
use crate::server::Database;

/// Rows of one transaction of a backlog.
const FILL: u64 = 10_000;

/// How a relay that is told nothing looks for events.
const POLL: Duration = Duration::from_millis(100);

/// What tells the relay of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    /// They share an outbox: `begin` and `commit`.
    InProcess,
    /// A producer elsewhere, which calls `wake` after its commit: a notification through the database.
    Notified,
    /// Nothing: the relay looks every tenth of a second.
    Polled,
}

#[derive(Debug, Clone, Copy)]
struct Posthaste {
    name: &'static str,
    /// Lanes of a stream; 0 is a queue.
    lanes: u16,
    deletes: bool,
    link: Link,
}

const QUEUE: Posthaste =
    Posthaste { name: "posthaste queue", lanes: 0, deletes: false, link: Link::Notified };
const STREAM: Posthaste =
    Posthaste { name: "posthaste stream", lanes: 1, deletes: false, link: Link::Notified };

const ALL: [Posthaste; 9] = [
    QUEUE,
    Posthaste { name: "posthaste queue, deleting", deletes: true, ..QUEUE },
    Posthaste { name: "posthaste queue, polled", link: Link::Polled, ..QUEUE },
    Posthaste { name: "posthaste hot path", link: Link::InProcess, ..QUEUE },
    Posthaste { name: "posthaste hot path, deleting", link: Link::InProcess, deletes: true, ..QUEUE },
    STREAM,
    Posthaste { name: "posthaste stream, 8 lanes", lanes: 8, ..STREAM },
    Posthaste { name: "posthaste stream, in process", link: Link::InProcess, ..STREAM },
    Posthaste { name: "posthaste stream, polled", link: Link::Polled, ..STREAM },
];

/// All ways of using it.
pub(super) fn all() -> Vec<Box<dyn Contender>> {
    ALL.into_iter().map(|one| Box::new(one) as Box<dyn Contender>).collect()
}

#[async_trait]
impl Contender for Posthaste {
    fn name(&self) -> &'static str {
        self.name
    }

    fn class(&self) -> Class {
        Class::Posthaste
    }

    fn way(&self) -> Way {
        match (self.lanes, self.deletes) {
            (0, false) => Way::Lease,
            (0, true) => Way::LeaseDeleting,
            _ => Way::Cursor,
        }
    }

    fn version(&self) -> String {
        locked("posthaste")
    }

    fn takes_part(&self, scenario: Scenario) -> bool {
        match scenario {
            // What is polled writes with `enqueue` and nothing else, and tells no relay.
            Scenario::Enqueue => !self.deletes,
            Scenario::Steady => self.link != Link::Polled,
            Scenario::Latency => !self.deletes,
            // Who has told the relay makes no difference to a backlog.
            _ => self.link == Link::Notified,
        }
    }

    fn most_workers(&self) -> usize {
        if self.lanes == 0 { usize::MAX } else { usize::from(self.lanes) }
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        migrate(database, self.lanes).await?;
        Ok(Box::new(InDatabase { contender: *self, database: database.clone(), shop: Shop::new(database)? }))
    }
}

/// posthaste's own table in this database; the limits use it, too.
pub(super) async fn migrate(database: &Database, lanes: u16) -> Result<()> {
    let pool = PgPoolOptions::new().max_connections(1).connect(database.url()).await?;
    let outbox = Outbox::postgres(pool.clone()).build()?;
    let mode = if lanes == 0 { Mode::Queue } else { Mode::stream(lanes)? };
    outbox.migrate_as(mode).await?;
    pool.close().await;
    Ok(())
}

/// A backlog in that table.
pub(super) async fn fill(database: &Database, from: u64, events: u64) -> Result<()> {
    let client = database.client().await?;
    let mut next = from;
    while next < from + events {
        let end = (next + FILL).min(from + events);
        let sql = format!(
            "INSERT INTO outbox (topic, aggregate_type, aggregate_id, payload)
             SELECT '{TOPIC}', '{AGGREGATE_TYPE}', {}, {}::json FROM generate_series({next}, {}) AS n",
            aggregate_sql(),
            payload_sql(),
            end - 1,
        );
        client.batch_execute(&sql).await?;
        next = end;
    }
    Ok(())
}

/// Connections of a service; the same for posthaste and for what is written by hand.
pub(super) fn pool(database: &Database) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(40).test_before_acquire(false).connect_lazy(database.url())?)
}

/// An outbox with the pool it was made of.
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    outbox: Outbox<sqlx::Postgres>,
}

impl Shop {
    fn new(database: &Database) -> Result<Self> {
        let pool = pool(database)?;
        Ok(Self { outbox: Outbox::postgres(pool.clone()).build()?, pool })
    }
}

struct InDatabase {
    contender: Posthaste,
    database: Database,
    /// The service's.
    shop: Shop,
}

#[async_trait]
impl Installed for InDatabase {
    async fn producer(&self) -> Result<Box<dyn Producer>> {
        Ok(Box::new(Service { shop: self.shop.clone(), link: self.contender.link }))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        fill(&self.database, from, events).await
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let mut relays = Vec::new();
        for _ in 0..how.workers {
            let shop = match self.contender.link {
                Link::InProcess => self.shop.clone(),
                _ => Shop::new(&self.database)?,
            };
            let mut relay = shop.outbox.relay().sink(Null(seen.clone())).batch(how.batch);
            if self.contender.deletes {
                relay = relay.retention(Duration::ZERO);
            }
            if self.contender.link == Link::Polled {
                relay = relay.poll_interval(POLL);
            }
            relays.push((relay.start().await?, shop));
        }
        Ok(Box::new(Relays { relays, shared: self.contender.link == Link::InProcess }))
    }

    async fn close(self: Box<Self>) {
        self.shop.pool.close().await;
    }
}

struct Service {
    shop: Shop,
    link: Link,
}

#[async_trait]
impl Producer for Service {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let Shop { pool, outbox } = &self.shop;
        let customer = events.first().map_or(0, |event| event.number as i64);
        if self.link == Link::InProcess {
            let mut tx = outbox.begin().await?;
            sqlx::query(INSERT_ORDER).bind(customer).execute(&mut *tx).await?;
            match events {
                [] => {}
                [event] => {
                    outbox.enqueue(&mut tx, as_event(event)?).await?;
                }
                events => {
                    outbox.enqueue_all(&mut tx, as_events(events)?).await?;
                }
            }
            return Ok(tx.commit().await?);
        }
        let mut tx = pool.begin().await?;
        sqlx::query(INSERT_ORDER).bind(customer).execute(&mut *tx).await?;
        match events {
            [] => {}
            [event] => {
                outbox.enqueue(&mut tx, as_event(event)?).await?;
            }
            events => {
                outbox.enqueue_all(&mut tx, as_events(events)?).await?;
            }
        }
        tx.commit().await?;
        if self.link == Link::Notified && !events.is_empty() {
            outbox.wake();
        }
        Ok(())
    }
}

/// A sample as an event in the making, which `enqueue` takes as it is.
pub(crate) fn as_event(sample: &Sample) -> posthaste::Result<EventBuilder> {
    Event::builder(TOPIC).aggregate(AGGREGATE_TYPE, sample.aggregate_id()).json_text(sample.payload())
}

/// Samples as events.
pub(crate) fn as_events(samples: &[Sample]) -> posthaste::Result<Vec<EventBuilder>> {
    samples.iter().map(as_event).collect()
}

/// Says that everything is delivered.
pub(crate) struct Null(pub(crate) Seen);

#[async_trait]
impl Sink for Null {
    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        batch.iter().for_each(|delivery| self.0.payload(delivery.event.payload().bytes()));
        vec![Outcome::Delivered; batch.len()]
    }

    fn keeps_order(&self) -> bool {
        true
    }
}

struct Relays {
    relays: Vec<(Relay, Shop)>,
    /// Whether their outbox is the service's, too.
    shared: bool,
}

#[async_trait]
impl Running for Relays {
    async fn stop(self: Box<Self>) -> Result<()> {
        for (relay, shop) in self.relays {
            relay.stop().await;
            if !self.shared {
                shop.pool.close().await;
            }
        }
        Ok(())
    }
}
