//! The limit of cursors: on posthaste's own stream, the window between two snapshots, page after page in the order of `seq`,
//! and one row that says how far it is. The next page is asked for before this one is delivered.
//!
//! As a stream it loses no event that commits late. It has no fence, no retry, and nobody takes over from it.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use tokio_postgres::{Client, Row, Statement};

use super::limit_lease::{ByHand, Json, Workers};
use super::{Class, Contender, Delivering, Installed, Producer, Running, Way, posthaste};
use crate::scenario::Scenario;
use crate::seen::Seen;
use crate::server::Database;
use sqlx::postgres::PgPool;

const LANES: u16 = 8;

const CURSORS: &str = "
CREATE TABLE IF NOT EXISTS limit_cursors (
    worker bigint PRIMARY KEY, base text NOT NULL, target text, after_seq bigint NOT NULL
) WITH (fillfactor = 50)";

const BEGIN: &str = "
INSERT INTO limit_cursors (worker, base, after_seq) VALUES ($1, '1:1:', 0)
ON CONFLICT (worker) DO UPDATE SET worker = excluded.worker RETURNING base, target, after_seq";

// Where a window begins: below what was read lies only what commits late.
const WINDOW: &str = "
SELECT pg_current_snapshot()::text,
       (SELECT min(seq) - 1 FROM outbox
         WHERE xid >= pg_snapshot_xmin($1::text::pg_snapshot) AND NOT pg_visible_in_snapshot(xid, $1::text::pg_snapshot))";

const PAGE: &str = "
SELECT seq, id, topic, aggregate_type, aggregate_id, payload FROM outbox
 WHERE seq > $1 AND NOT pg_visible_in_snapshot(xid, (SELECT $2::text::pg_snapshot))
   AND pg_visible_in_snapshot(xid, (SELECT $3::text::pg_snapshot)) {lanes}
 ORDER BY seq LIMIT (SELECT $4::bigint)";

const CHECKPOINT: &str = "UPDATE limit_cursors SET base = $2, target = $3, after_seq = $4 WHERE worker = $1";

const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy)]
struct Window {
    name: &'static str,
    /// Whether the cursor waits for the disk. posthaste's does not: what a crash of the server takes back is delivered
    /// again.
    durable: bool,
}

const ALL: [Window; 2] = [
    Window { name: "limit window", durable: false },
    Window { name: "limit window, durable", durable: true },
];

pub(super) fn all() -> Vec<Box<dyn Contender>> {
    ALL.into_iter().map(|one| Box::new(one) as Box<dyn Contender>).collect()
}

#[async_trait]
impl Contender for Window {
    fn name(&self) -> &'static str {
        self.name
    }

    fn class(&self) -> Class {
        Class::Limit
    }

    fn way(&self) -> Way {
        Way::Cursor
    }

    fn version(&self) -> String {
        "tokio-postgres by hand".to_owned()
    }

    fn takes_part(&self, scenario: Scenario) -> bool {
        match scenario {
            Scenario::Drain => true,
            Scenario::Enqueue | Scenario::Steady => !self.durable,
            _ => false,
        }
    }

    fn most_workers(&self) -> usize {
        usize::from(LANES)
    }

    async fn set_up(&self, database: &Database) -> Result<Box<dyn Installed>> {
        posthaste::migrate(database, LANES).await?;
        database.client().await?.batch_execute(CURSORS).await?;
        let pool = posthaste::pool(database)?;
        Ok(Box::new(InDatabase { window: *self, database: database.clone(), pool }))
    }
}

struct InDatabase {
    window: Window,
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
            let client = self.database.client().await?;
            if !self.window.durable {
                client.batch_execute("SET synchronous_commit = off").await?;
            }
            let of_its_own = match how.workers {
                1 => String::new(),
                workers => {
                    let lanes = (0..usize::from(LANES)).filter(|lane| lane % workers == worker);
                    let lanes: Vec<String> = lanes.map(|lane| lane.to_string()).collect();
                    format!("AND lane IN ({})", lanes.join(", "))
                }
            };
            let reader = Reader {
                begin: client.prepare(WINDOW).await?,
                page: client.prepare(&PAGE.replace("{lanes}", &of_its_own)).await?,
                checkpoint: client.prepare(CHECKPOINT).await?,
                worker: worker as i64,
                limit: how.batch as i64,
                client,
                seen: seen.clone(),
            };
            workers.cut_off.spawn(reader.run());
        }
        Ok(Box::new(workers))
    }

    async fn close(self: Box<Self>) {
        self.pool.close().await;
    }
}

/// How far it is: everything visible in `base` was read, and of what is visible in `target`, what is not beyond `after`.
#[derive(Debug, Clone)]
struct Place {
    base: String,
    target: Option<String>,
    after: i64,
}

struct Reader {
    client: Client,
    begin: Statement,
    page: Statement,
    checkpoint: Statement,
    worker: i64,
    limit: i64,
    seen: Seen,
}

impl Reader {
    async fn run(self) -> Result<()> {
        let row = self.client.query_one(BEGIN, &[&self.worker]).await?;
        let mut place = Place { base: row.try_get(0)?, target: row.try_get(1)?, after: row.try_get(2)? };
        loop {
            let Some(target) = place.target.clone() else {
                if !self.look(&mut place).await? {
                    tokio::time::sleep(POLL).await;
                }
                continue;
            };
            let mut rows = self.read(&place).await?;
            while rows.len() as i64 == self.limit {
                place.after = rows[rows.len() - 1].try_get(0)?;
                // Sent in this order: the server reads on while this page is delivered, and then notes it.
                let (next, noted) = tokio::join!(biased; self.read(&place), async {
                    self.deliver(&rows)?;
                    self.note(&place).await
                });
                noted?;
                rows = next?;
            }
            self.deliver(&rows)?;
            place = Place { base: target, target: None, after: place.after };
            self.note(&place).await?;
        }
    }

    /// Begins the next window, if there is anything in it.
    async fn look(&self, place: &mut Place) -> Result<bool> {
        let row = self.client.query_one(&self.begin, &[&place.base]).await?;
        let Some(after) = row.try_get(1)? else { return Ok(false) };
        place.after = after;
        place.target = Some(row.try_get(0)?);
        Ok(true)
    }

    async fn read(&self, place: &Place) -> Result<Vec<Row>> {
        let Place { base, target, after } = place;
        Ok(self.client.query(&self.page, &[after, base, target, &self.limit]).await?)
    }

    fn deliver(&self, rows: &[Row]) -> Result<()> {
        for row in rows {
            let Json(payload) = row.try_get(5)?;
            self.seen.payload(payload);
        }
        Ok(())
    }

    async fn note(&self, place: &Place) -> Result<()> {
        let Place { base, target, after } = place;
        self.client.execute(&self.checkpoint, &[&self.worker, base, target, after]).await?;
        Ok(())
    }
}
