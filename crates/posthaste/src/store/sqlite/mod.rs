//! SQLite: every claim and settlement one statement; the database lets one writer in at a time.

mod activity;
mod admin;
mod arrivals;
mod columns;
pub(crate) mod errors;
mod health;
pub(crate) mod inbox;
pub(crate) mod insert;
mod look;
mod queue;
pub(crate) mod schema;
mod session;
mod stream;
mod survey;
mod wake;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection, Sqlite, Transaction};
use time::OffsetDateTime;
use uuid::Uuid;

use super::errors::{in_time, of_queue, too_slow};
use super::insert::insert;
use super::migrate::Role;
use super::settlement::{lost, rounds};
use super::stream::known::KnownMode;
use super::survey::piece_by_piece;
use super::tries::Tries;
use super::{
    Arrivals, Claim, ClaimedBatch, Count, Dialect, Difference, Enqueued, Extended, Filter, Health, Keep,
    Lanes, Lease, MigrationState, Mode, Notifications, Page, Purge, Record, Session, Settled, Settlement,
    Sought, Stats, Store, Stream, Survey, TableName, Throughput, WorkerId,
};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;

use look::Look;

/// An outbox table in an SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    pool: SqlitePool,
    table: TableName,
    statements: Arc<Statements>,
    known_mode: KnownMode,
    /// How long a look may take.
    within: Option<Duration>,
}

/// Every statement on the table that is always the same.
#[derive(Debug)]
struct Statements {
    insert: insert::Statements,
    queue: queue::Statements,
    stream_admin: stream::admin::Statements,
}

impl SqliteStore {
    /// The store of this table, on the caller's pool. SQLite has no schemas: the name must have none.
    pub fn new(pool: SqlitePool, table: TableName) -> Result<Self> {
        refuse_schema(&table)?;
        let statements = Arc::new(Statements {
            insert: insert::Statements::new(&table),
            queue: queue::Statements::new(&table),
            stream_admin: stream::admin::Statements::new(&table),
        });
        Ok(Self { pool, table, statements, known_mode: KnownMode::default(), within: None })
    }

    /// The store of this table, on a pool of its own. The file is created if it does not exist, and put
    /// into write-ahead mode, in which readers and the writer do not wait for each other.
    pub async fn connect(url: &str, table: TableName) -> Result<Self> {
        refuse_schema(&table)?;
        let options: SqliteConnectOptions =
            url.parse().map_err(|error| errors::connecting(error, &table, "SQLite"))?;
        let place = format!("SQLite file {}", options.get_filename().display());
        let options = options.create_if_missing(true).busy_timeout(Duration::from_secs(10));
        // A pool would try again until its timeout and then say nothing but that.
        let mut first =
            in_time(options.connect()).await.map_err(|error| errors::connecting(error, &table, &place))?;
        match sqlx::query("PRAGMA journal_mode = WAL").execute(&mut first).await {
            Err(error) if !errors::is_read_only(&error) => {
                return Err(errors::connecting(error, &table, &place));
            }
            // A file that may only be read stays in the mode it has.
            _ => {}
        }
        // One writes at a time; each has a page cache of its own.
        let pool = SqlitePoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(options);
        first.close().await.map_err(|error| errors::connecting(error, &table, &place))?;
        Self::new(pool, table)
    }

    /// The statements that write events, for the producers.
    pub(crate) fn insert_statements(&self) -> &insert::Statements {
        &self.statements.insert
    }

    /// A transaction for a producer, which is going to write.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Sqlite>> {
        self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| self.error(e))
    }

    async fn extend_round(&self, round: &[&Lease], length: Duration, extended: &mut Extended) -> Result<()> {
        let mut tries = Tries::default();
        loop {
            match queue::extend(&self.pool, &self.statements.queue, round, length)
                .await
                .map_err(|e| self.error(e))
            {
                Ok(held) => {
                    extended.lost.append(&mut lost(round.iter().map(|lease| lease.id), &held));
                    return Ok(());
                }
                Err(error) if tries.again(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn settle_round(&self, round: &[&Settlement], keep: Keep, settled: &mut Settled) -> Result<()> {
        let mut tries = Tries::default();
        loop {
            match queue::settle(&self.pool, &self.statements.queue, round, keep)
                .await
                .map_err(|e| self.error(e))
            {
                Ok(written) => {
                    settled.add(round, &written);
                    return Ok(());
                }
                Err(error) if tries.again(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn stream_of(&self, lanes: Lanes) -> stream::SqliteStream {
        stream::SqliteStream::new(&self.pool, &self.table, lanes)
    }

    /// The table's mode, asked for once; a table that nobody has made as either is a queue if anything.
    async fn known_mode(&self) -> Result<Mode> {
        match self.known_mode.get() {
            Some(mode) => Ok(mode),
            None => Ok(self.mode().await?.unwrap_or_default()),
        }
    }

    /// What came of asking a table whose mode was known: it may be another table by now.
    fn asked<A>(&self, answer: sqlx::Result<A>) -> Result<A> {
        answer.map_err(|error| {
            self.known_mode.forget();
            self.error(error)
        })
    }

    /// A connection to look with.
    async fn look(&self) -> Result<Look> {
        Look::begin(&self.pool, self.within).await.map_err(|e| self.error(e))
    }

    /// What came of looking for this.
    fn looked<A>(&self, look: &Look, sought: impl fmt::Display, answer: sqlx::Result<A>) -> Result<A> {
        match answer {
            Err(error) if errors::was_ended(&error) => {
                Err(too_slow(&self.table, &sought, look.began.elapsed(), error))
            }
            answer => self.asked(answer),
        }
    }

    fn error(&self, error: sqlx::Error) -> Error {
        errors::classify(error, &self.table)
    }
}

/// SQLite has no schemas.
pub(crate) fn refuse_schema(table: &TableName) -> Result<()> {
    match table.schema() {
        None => Ok(()),
        Some(schema) => Err(Error::new(
            ErrorKind::InvalidTableName,
            format!("table {table}: SQLite has no schemas, leave {schema:?} and the dot away"),
        )),
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn table(&self) -> &TableName {
        &self.table
    }

    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn now(&self) -> Result<OffsetDateTime> {
        let micros =
            sqlx::query_scalar(queue::now()).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        time_of(micros).map_err(|e| self.error(e))
    }

    async fn insert(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.map_err(|e| self.error(e))?;
        let enqueued =
            insert(insert::Client { connection: &mut tx, statements: &self.statements.insert }, events)
                .await?;
        tx.commit().await.map_err(|e| self.error(e))?;
        Ok(enqueued)
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimedBatch> {
        let mut tries = Tries::default();
        loop {
            match queue::claim(&self.pool, &self.statements.queue, claim).await.map_err(|e| self.error(e)) {
                Err(error) if tries.again(&error) => {}
                claimed => return of_queue(self, claimed).await,
            }
        }
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Extended> {
        let mut extended = Extended::default();
        for round in rounds(leases, Lease::id) {
            of_queue(self, self.extend_round(&round, length, &mut extended).await).await?;
        }
        Ok(extended)
    }

    async fn settle(&self, settlements: &[Settlement], keep: Keep) -> Result<Settled> {
        let mut settled = Settled::default();
        for round in rounds(settlements, |s| s.lease.id) {
            of_queue(self, self.settle_round(&round, keep, &mut settled).await).await?;
        }
        Ok(settled)
    }

    fn dedicated(&self) -> Arc<dyn Store> {
        // More connections would not let in more writers, and a database in memory is its pool's alone.
        Arc::new(self.clone())
    }

    fn with_connections(&self, connections: u32) -> Arc<dyn Store> {
        let pool = SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(self.pool.connect_options().as_ref().clone());
        Arc::new(Self { pool, ..self.clone() })
    }

    fn within(&self, limit: Duration) -> Arc<dyn Store> {
        Arc::new(Self { within: Some(limit), ..self.clone() })
    }

    async fn session(&self, worker: &WorkerId) -> Result<Box<dyn Session>> {
        session::open(&self.pool, &self.table, worker).await
    }

    async fn absent_workers(&self) -> Result<Vec<String>> {
        of_queue(self, session::absent_workers(&self.pool, &self.table).await).await
    }

    async fn end_leases_of(&self, workers: &[String]) -> Result<u64> {
        of_queue(self, session::end_leases_of(&self.pool, &self.table, workers).await).await
    }

    async fn notify(&self) -> Result<()> {
        wake::notify(&self.pool, &self.table).await
    }

    async fn listen(&self) -> Result<Option<Box<dyn Notifications>>> {
        wake::listen(&self.pool, &self.table).await
    }

    async fn get(&self, id: Uuid) -> Result<Option<Record>> {
        let answer = match self.known_mode().await? {
            Mode::Queue => admin::get(&self.pool, &self.table, id).await,
            Mode::Stream(_) => stream::admin::get(&self.pool, &self.statements.stream_admin, id).await,
        };
        self.asked(answer)
    }

    async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<Record>> {
        let mode = self.known_mode().await?;
        let mut look = self.look().await?;
        let answer = match mode {
            Mode::Queue => admin::list(&mut look, &self.table, filter, page).await,
            Mode::Stream(_) => {
                stream::admin::list(&mut look, &self.statements.stream_admin, filter, page).await
            }
        };
        self.looked(&look, filter, answer)
    }

    async fn count(&self, filter: &Filter, cap: u32) -> Result<Count> {
        let mode = self.known_mode().await?;
        let mut look = self.look().await?;
        let answer = match mode {
            Mode::Queue => admin::count(&mut look, &self.table, filter, cap).await,
            Mode::Stream(_) => {
                stream::admin::count(&mut look, &self.statements.stream_admin, filter, cap).await
            }
        };
        self.looked(&look, filter, answer)
    }

    async fn stats(&self, cap: u32) -> Result<Stats> {
        let mode = self.known_mode().await?;
        let mut look = self.look().await?;
        let answer = match mode {
            Mode::Queue => admin::stats(&mut look, &self.table, cap).await,
            Mode::Stream(_) => stream::admin::stats(&mut look, &self.statements.stream_admin, cap).await,
        };
        self.looked(&look, "events that are not delivered", answer)
    }

    async fn survey(&self, cap: u32, _worker: &WorkerId) -> Result<Survey> {
        match self.known_mode().await? {
            Mode::Queue => self.asked(survey::queue(&self.pool, &self.table, cap).await),
            Mode::Stream(lanes) => piece_by_piece(self, Some(&self.stream_of(lanes)), cap).await,
        }
    }

    async fn arrivals(&self, sought: Sought<'_>) -> Result<Arrivals> {
        let mode = self.known_mode().await?;
        let mut look = self.look().await?;
        let answer = arrivals::arrivals(&mut look, &self.table, mode, sought).await;
        self.looked(&look, "new events", answer)
    }

    async fn fitting(&self, filter: &Filter, ids: &[Uuid]) -> Result<Vec<Record>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mode = self.known_mode().await?;
        let mut look = self.look().await?;
        let answer = match mode {
            Mode::Queue => admin::fitting(&mut look, &self.table, filter, ids).await,
            Mode::Stream(_) => {
                stream::admin::fitting(&mut look, &self.statements.stream_admin, filter, ids).await
            }
        };
        self.looked(&look, filter, answer)
    }

    async fn delivered_lately(&self) -> Result<Option<Throughput>> {
        let mode = self.known_mode().await?;
        self.asked(activity::delivered(&self.pool, &self.table, mode).await)
    }

    async fn workers(&self) -> Result<Vec<String>> {
        let mode = self.known_mode().await?;
        self.asked(activity::workers(&self.pool, &self.table, mode).await)
    }

    async fn replay(&self, filter: &Filter, limit: u32) -> Result<u64> {
        let answer = match self.known_mode().await? {
            Mode::Queue => admin::replay(&self.pool, &self.table, filter, limit).await,
            Mode::Stream(lanes) => {
                stream::admin::replay(&self.stream_of(lanes), &self.statements.stream_admin, filter, limit)
                    .await
            }
        };
        self.asked(answer)
    }

    async fn discard(&self, filter: &Filter, limit: u32) -> Result<u64> {
        let answer = match self.known_mode().await? {
            Mode::Queue => admin::discard(&self.pool, &self.table, filter, limit).await,
            Mode::Stream(lanes) => {
                stream::admin::discard(&self.stream_of(lanes), &self.statements.stream_admin, filter, limit)
                    .await
            }
        };
        self.asked(answer)
    }

    async fn has_old(&self, purges: &[Purge]) -> Result<bool> {
        match self.known_mode().await? {
            Mode::Queue => self.asked(survey::queue_has_old(&self.pool, &self.table, purges).await),
            Mode::Stream(_) => Ok(true),
        }
    }

    async fn purge(&self, purge: Purge) -> Result<u64> {
        let answer = match self.known_mode().await? {
            Mode::Queue => admin::purge(&self.pool, &self.table, purge).await,
            Mode::Stream(lanes) => {
                stream::admin::purge(&self.stream_of(lanes), &self.statements.stream_admin, purge).await
            }
        };
        self.asked(answer)
    }

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }

    async fn mode(&self) -> Result<Option<Mode>> {
        let mode = schema::mode(&self.pool, &self.table).await?;
        match mode {
            Some(mode) => self.known_mode.set(mode),
            None => self.known_mode.forget(),
        }
        Ok(mode)
    }

    async fn stream(&self) -> Result<Option<Arc<dyn Stream>>> {
        Ok(match self.mode().await? {
            Some(Mode::Stream(lanes)) => Some(Arc::new(self.stream_of(lanes))),
            Some(Mode::Queue) | None => None,
        })
    }

    async fn migrate_up_as(&self, mode: Mode) -> Result<Vec<u32>> {
        let migrated = schema::up(&self.pool, &self.table, Role::Mode(mode)).await;
        self.known_mode.forget();
        migrated
    }

    async fn migrate_up(&self) -> Result<Vec<u32>> {
        let migrated = schema::up(&self.pool, &self.table, Role::Outbox).await;
        self.known_mode.forget();
        migrated
    }

    async fn migrate_down(&self, target: u32) -> Result<Vec<u32>> {
        let migrated = schema::down(&self.pool, &self.table, Role::Outbox, target).await;
        self.known_mode.forget();
        migrated
    }

    async fn migrations(&self) -> Result<Vec<MigrationState>> {
        Ok(schema::states(&self.pool, &self.table).await?.1)
    }

    async fn tables(&self) -> Result<Vec<TableName>> {
        schema::tables(&self.pool, &self.table).await
    }

    async fn validate(&self) -> Result<Vec<Difference>> {
        schema::validate(&self.pool, &self.table).await
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

/// A stored time: microseconds since 1970.
fn time_of(micros: i64) -> sqlx::Result<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
        .map_err(|error| sqlx::Error::Decode(error.into()))
}

/// A time as it is stored.
pub(crate) fn stored_time(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}
