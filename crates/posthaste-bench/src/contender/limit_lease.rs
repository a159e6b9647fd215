//! The limit of leases: on posthaste's own table, the least statements that could do the job, with nothing around them.
//!
//! Each worker claims on one connection and settles on another, so that neither waits for the other. Rows are named by where
//! they are, which spares the look into an index, and a claim begins where the one before it ended.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut};
use tokio_postgres::{Client, Statement};

use super::{Class, Contender, Delivering, Installed, Producer, Running, Way, posthaste};
use crate::sample::{AGGREGATE_TYPE, INSERT_ORDER, Sample, TOPIC};
use crate::scenario::Scenario;
use crate::seen::Seen;
use crate::server::Database;
use sqlx::postgres::PgPool;
use uuid::Uuid;

const CLAIM: &str = "
UPDATE outbox SET attempts = attempts + 1, locked_by = $1, locked_until = now() + interval '1 minute'
 WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM outbox
        WHERE outcome IS NULL AND available_at <= now() AND (locked_until IS NULL OR locked_until <= now())
          AND (available_at, seq) > ($3::text::timestamptz, $4)
        ORDER BY available_at, seq
        LIMIT $2
          FOR UPDATE SKIP LOCKED))
RETURNING ctid, id, topic, aggregate_type, aggregate_id, payload, seq, available_at::text";

const SETTLE: &str = "
UPDATE outbox SET outcome = 'delivered', settled_at = now(), locked_by = NULL, locked_until = NULL
 WHERE ctid = ANY ($2) AND locked_by = $1";

const DELETE: &str = "DELETE FROM outbox WHERE ctid = ANY ($2) AND locked_by = $1";

/// Settlements that may wait for the one before them.
const AHEAD: usize = 2;

const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy)]
struct Lease {
    name: &'static str,
    deletes: bool,
    /// Whether claims and settlements wait for the disk. posthaste's do not: what a crash of the server takes back is
    /// delivered again.
    durable: bool,
}

const ALL: [Lease; 3] = [
    Lease { name: "limit lease", deletes: false, durable: false },
    Lease { name: "limit lease, deleting", deletes: true, durable: false },
    Lease { name: "limit lease, durable", deletes: false, durable: true },
];

pub(super) fn all() -> Vec<Box<dyn Contender>> {
    ALL.into_iter().map(|one| Box::new(one) as Box<dyn Contender>).collect()
}

#[async_trait]
impl Contender for Lease {
    fn name(&self) -> &'static str {
        self.name
    }

    fn class(&self) -> Class {
        Class::Limit
    }

    fn way(&self) -> Way {
        if self.deletes { Way::LeaseDeleting } else { Way::Lease }
    }

    fn version(&self) -> String {
        "tokio-postgres by hand".to_owned()
    }

    fn takes_part(&self, scenario: Scenario) -> bool {
        match scenario {
            Scenario::Drain => true,
            Scenario::Enqueue => !self.deletes && !self.durable,
            Scenario::Steady => !self.durable,
            _ => false,
        }
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        posthaste::migrate(database, 0).await?;
        let pool = posthaste::pool(database)?;
        Ok(Box::new(InDatabase { lease: *self, database: database.clone(), pool }))
    }
}

struct InDatabase {
    lease: Lease,
    database: Database,
    pool: PgPool,
}

#[async_trait]
impl Installed for InDatabase {
    async fn producer(&self) -> Result<Box<dyn Producer>> {
        Ok(Box::new(ByHand(self.pool.clone())))
    }

    async fn fill(&self, from: u64, events: u64) -> Result<()> {
        posthaste::fill(&self.database, from, events).await
    }

    async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
        let mut workers = Workers::default();
        for worker in 0..how.workers {
            let connect = async || -> Result<Client> {
                let client = self.database.client().await?;
                if !self.lease.durable {
                    client.batch_execute("SET synchronous_commit = off").await?;
                }
                Ok(client)
            };
            let (claims, settles) = (connect().await?, connect().await?);
            let holder = format!("limit-{worker}");
            let (sender, receiver) = mpsc::channel(AHEAD);
            let statement = settles.prepare(if self.lease.deletes { DELETE } else { SETTLE }).await?;
            workers.end.spawn(settle(settles, statement, holder.clone(), receiver));
            let statement = claims.prepare(CLAIM).await?;
            workers.cut_off.spawn(claim(claims, statement, holder, how.batch as i64, sender, seen.clone()));
        }
        Ok(Box::new(workers))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

async fn claim(
    client: Client,
    claim: Statement,
    holder: String,
    batch: i64,
    settler: mpsc::Sender<Vec<Tid>>,
    seen: Seen,
) -> Result<()> {
    let beginning = || ("1970-01-01".to_owned(), 0_i64);
    let mut floor = beginning();
    loop {
        let rows = client.query(&claim, &[&holder, &batch, &floor.0, &floor.1]).await?;
        let mut tids = Vec::with_capacity(rows.len());
        let mut last: Option<(i64, &str)> = None;
        for row in &rows {
            let Json(payload) = row.try_get(5)?;
            seen.payload(payload);
            tids.push(row.try_get::<_, Tid>(0)?);
            let seq: i64 = row.try_get(6)?;
            if last.is_none_or(|(highest, _)| seq > highest) {
                last = Some((seq, row.try_get(7)?));
            }
        }
        match last {
            // What was committed late is found when it begins again.
            None if floor == beginning() => tokio::time::sleep(POLL).await,
            None => floor = beginning(),
            Some((seq, available_at)) => {
                floor = (available_at.to_owned(), seq);
                if settler.send(tids).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

async fn settle(
    client: Client,
    settle: Statement,
    holder: String,
    mut claimed: mpsc::Receiver<Vec<Tid>>,
) -> Result<()> {
    while let Some(tids) = claimed.recv().await {
        client.execute(&settle, &[&holder, &tids]).await?;
    }
    Ok(())
}

/// Tasks that are stopped: some are cut off, and the others end by themselves after that.
#[derive(Default)]
pub(super) struct Workers {
    pub(super) cut_off: JoinSet<Result<()>>,
    pub(super) end: JoinSet<Result<()>>,
}

#[async_trait]
impl Running for Workers {
    async fn stop(mut self: Box<Self>) -> Result<()> {
        self.cut_off.abort_all();
        while let Some(ended) = self.cut_off.join_next().await {
            match ended {
                Ok(ended) => ended?,
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(error.into()),
            }
        }
        while let Some(ended) = self.end.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// A service that writes its events itself, into a queue or a stream.
pub(super) struct ByHand(pub(super) PgPool);

const ONE: &str = "
INSERT INTO outbox (id, topic, aggregate_type, aggregate_id, payload) VALUES ($1, $2, $3, $4, $5::text::json)";

const MANY: &str = "
INSERT INTO outbox (id, topic, aggregate_type, aggregate_id, payload)
SELECT id, topic, aggregate_type, aggregate_id, payload::json
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[]) AS e(id, topic, aggregate_type, aggregate_id, payload)";

#[async_trait]
impl Producer for ByHand {
    async fn order(&mut self, events: &[Sample]) -> Result<()> {
        let customer = events.first().map_or(0, |event| event.number as i64);
        let mut tx = self.0.begin().await?;
        sqlx::query(INSERT_ORDER).bind(customer).execute(&mut *tx).await?;
        match events {
            [] => {}
            [event] => {
                sqlx::query(ONE)
                    .bind(Uuid::now_v7())
                    .bind(TOPIC)
                    .bind(AGGREGATE_TYPE)
                    .bind(event.aggregate_id())
                    .bind(event.payload())
                    .execute(&mut *tx)
                    .await?;
            }
            events => {
                sqlx::query(MANY)
                    .bind(events.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>())
                    .bind(vec![TOPIC; events.len()])
                    .bind(vec![AGGREGATE_TYPE; events.len()])
                    .bind(events.iter().map(Sample::aggregate_id).collect::<Vec<_>>())
                    .bind(events.iter().map(Sample::payload).collect::<Vec<_>>())
                    .execute(&mut *tx)
                    .await?;
            }
        }
        Ok(tx.commit().await?)
    }
}

/// The text of a `json`, which its binary form is.
pub(super) struct Json<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Json<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }
}

/// Where a row is.
#[derive(Debug, Clone, Copy)]
struct Tid([u8; 6]);

impl FromSql<'_> for Tid {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }
}

impl ToSql for Tid {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TID
    }

    tokio_postgres::types::to_sql_checked!();
}
