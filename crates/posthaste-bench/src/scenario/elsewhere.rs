//! Enqueue and drain on SQLite and MariaDB: posthaste beside the same written by hand.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use posthaste::Outbox;
use posthaste::relay::Relay;
use posthaste::store::Mode;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use uuid::Uuid;

use super::producers::Producers;
use super::{Bench, PATIENCE, Scenario, progress};
use crate::contender::posthaste::{Null, as_event, as_events};
use crate::contender::{Class, Delivering, Installed, Producer, Running, Way};
use crate::meter;
use crate::report::{Better, Measured};
use crate::sample::{AGGREGATE_TYPE, Sample, TOPIC};
use crate::seen::Seen;
use crate::server::MariaDb;

const HOW: Delivering = Delivering { workers: 1, batch: 1000 };

/// Rows of one transaction of a backlog.
const FILL: u64 = 500;

const ORDER: &str = "INSERT INTO orders (customer, total) VALUES (?, 990)";

const BY_HAND: &str =
    "INSERT INTO outbox (id, topic, aggregate_type, aggregate_id, payload) VALUES (?, ?, ?, ?, ?)";

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    ByHand,
    Posthaste,
}

const WAYS: [(&str, Class, Way, Writer, u16); 4] = [
    ("by hand", Class::Limit, Way::Lease, Writer::ByHand, 0),
    ("posthaste queue", Class::Posthaste, Way::Lease, Writer::Posthaste, 0),
    ("by hand, stream", Class::Limit, Way::Cursor, Writer::ByHand, 1),
    ("posthaste stream", Class::Posthaste, Way::Cursor, Writer::Posthaste, 1),
];

/// A database other than PostgreSQL.
enum Place {
    Sqlite(PathBuf),
    MariaDb(MariaDb),
}

pub(super) async fn sqlite(bench: &mut Bench) -> Result<()> {
    // Beside the servers' data: on a disk, as theirs.
    let home = std::env::var("POSTHASTE_BENCH_SQLITE_HOME").context("run this by `cargo xtask bench`")?;
    let directory = PathBuf::from(home).join(format!("run-{}", Uuid::now_v7().simple()));
    std::fs::create_dir_all(&directory)?;
    let measured = run(bench, Scenario::Sqlite, &Place::Sqlite(directory.clone()), 1).await;
    std::fs::remove_dir_all(&directory)?;
    measured
}

pub(super) async fn mariadb(bench: &mut Bench) -> Result<()> {
    let server = MariaDb::start()?;
    bench.report.versions.push(server.version().await?);
    run(bench, Scenario::MariaDb, &Place::MariaDb(server), 8).await
}

async fn run(bench: &mut Bench, scenario: Scenario, place: &Place, connections: usize) -> Result<()> {
    let slice = bench.pick(Duration::from_millis(300), Duration::from_secs(3));
    let backlog = bench.pick(5_000, 50_000);
    for run in 0..bench.runs {
        let mut ways = WAYS.into_iter().enumerate().collect::<Vec<_>>();
        ways.rotate_left(run % WAYS.len());
        for (at, (name, class, way, writer, lanes)) in ways {
            let shop = place.shop(&format!("run_{run}_{at}"), writer, lanes).await?;
            let mut all = Vec::new();
            for events in [0, 1, 10] {
                let next = Arc::new(AtomicU64::new(0));
                let producers = Producers { installed: shop.as_ref(), connections, events, next };
                let case = producers.case();
                let value = producers.run(slice).await?;
                all.push(Measured {
                    case,
                    unit: "transactions/s",
                    better: Better::More,
                    value,
                    more: Vec::new(),
                });
            }
            shop.close().await;
            if writer == Writer::Posthaste {
                let shop = place.shop(&format!("drain_{run}_{at}"), writer, lanes).await?;
                all.push(drain(shop.as_ref(), backlog).await?);
                shop.close().await;
            }
            for measured in all {
                let (title, case, value) = (scenario.title(), &measured.case, measured.value);
                progress(&format!("{title}, {case}: {name}: {value:.1} {}", measured.unit));
                bench.report.add_as(scenario, (name, class, way), measured);
            }
        }
    }
    Ok(())
}

async fn drain(shop: &dyn Installed, events: u64) -> Result<Measured> {
    shop.fill(0, events).await?;
    let seen = Seen::new(events);
    let before = meter::own_time()?;
    let running = shop.deliver(HOW, seen.clone()).await?;
    let drained = seen.reaches(events, PATIENCE).await;
    running.stop().await?;
    let client = meter::own_time()?.saturating_sub(before);
    ensure!(seen.unknown() == 0, "it delivered {} events that nobody wrote", seen.unknown());
    let (first, last, count) = seen.span().context("it delivered nothing")?;
    ensure!(drained, "it delivered {count} of {events} events in {PATIENCE:?}");
    Ok(Measured {
        case: format!("drain, batches of {}, 1 worker", HOW.batch),
        unit: "events/s",
        better: Better::More,
        value: count as f64 / last.saturating_sub(first).as_secs_f64(),
        more: vec![("client µs/event", client.as_secs_f64() * 1e6 / count as f64)],
    })
}

impl Place {
    /// A new database of this name with its tables.
    async fn shop(&self, name: &str, writer: Writer, lanes: u16) -> Result<Box<dyn Installed>> {
        let mode = if lanes == 0 { Mode::Queue } else { Mode::stream(lanes)? };
        match self {
            Self::Sqlite(directory) => {
                let options = SqliteConnectOptions::new()
                    .filename(directory.join(format!("{name}.db")))
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(Duration::from_secs(30));
                let pool = SqlitePoolOptions::new().max_connections(4).test_before_acquire(false);
                let pool = pool.connect_with(options).await?;
                let orders = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total INTEGER)";
                sqlx::query(orders).execute(&pool).await?;
                let outbox = Outbox::sqlite(pool.clone()).build()?;
                outbox.migrate_as(mode).await?;
                Ok(Box::new(OnSqlite { pool, outbox, writer }))
            }
            Self::MariaDb(server) => {
                let url = server.create(name).await?;
                let pool = MySqlPoolOptions::new().max_connections(40).test_before_acquire(false);
                let pool = pool.connect(&url).await?;
                let orders = "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, customer BIGINT, total BIGINT)";
                sqlx::query(orders).execute(&pool).await?;
                let outbox = Outbox::mysql(pool.clone()).build()?;
                outbox.migrate_as(mode).await?;
                Ok(Box::new(OnMariaDb { pool, outbox, writer }))
            }
        }
    }
}

struct Relays(Relay);

#[async_trait]
impl Running for Relays {
    async fn stop(self: Box<Self>) -> Result<()> {
        self.0.stop().await;
        Ok(())
    }
}

/// The same for both databases, but for the types of the client library and how ids are written.
macro_rules! shop {
    ($shop:ident, $database:ty, $pool:ty, $begin:expr, $id:expr) => {
        #[derive(Clone)]
        struct $shop {
            pool: $pool,
            outbox: Outbox<$database>,
            writer: Writer,
        }

        #[async_trait]
        impl Installed for $shop {
            async fn producer(&self) -> Result<Box<dyn Producer>> {
                Ok(Box::new(self.clone()))
            }

            async fn fill(&self, from: u64, events: u64) -> Result<()> {
                let mut next = from;
                while next < from + events {
                    let end = (next + FILL).min(from + events);
                    let samples: Vec<Sample> = (next..end).map(Sample::new).collect();
                    let mut tx = self.pool.begin_with($begin).await?;
                    self.outbox.enqueue_all(&mut tx, as_events(&samples)?).await?;
                    tx.commit().await?;
                    next = end;
                }
                Ok(())
            }

            async fn deliver(&self, how: Delivering, seen: Seen) -> Result<Box<dyn Running>> {
                let relay = self.outbox.relay().sink(Null(seen)).batch(how.batch).start().await?;
                Ok(Box::new(Relays(relay)))
            }

            async fn close(self: Box<Self>) {
                self.pool.close().await;
            }
        }

        #[async_trait]
        impl Producer for $shop {
            async fn order(&mut self, events: &[Sample]) -> Result<()> {
                let customer = events.first().map_or(0, |event| event.number as i64);
                let mut tx = self.pool.begin_with($begin).await?;
                sqlx::query(ORDER).bind(customer).execute(&mut *tx).await?;
                match (self.writer, events) {
                    (_, []) => {}
                    (Writer::Posthaste, [event]) => {
                        self.outbox.enqueue(&mut tx, as_event(event)?).await?;
                    }
                    (Writer::Posthaste, events) => {
                        self.outbox.enqueue_all(&mut tx, as_events(events)?).await?;
                    }
                    (Writer::ByHand, events) => {
                        for event in events {
                            sqlx::query(BY_HAND)
                                .bind($id)
                                .bind(TOPIC)
                                .bind(AGGREGATE_TYPE)
                                .bind(event.aggregate_id())
                                .bind(event.payload())
                                .execute(&mut *tx)
                                .await?;
                        }
                    }
                }
                Ok(tx.commit().await?)
            }
        }
    };
}

shop!(OnSqlite, sqlx::Sqlite, SqlitePool, "BEGIN IMMEDIATE", Uuid::now_v7().to_string());
shop!(OnMariaDb, sqlx::MySql, MySqlPool, "BEGIN", Uuid::now_v7());
