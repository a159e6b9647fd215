//! MySQL and MariaDB: row leases with `FOR UPDATE SKIP LOCKED`; neither can return what it updates, so a claim
//! and a settlement are short transactions.
//!
//! A locking read that joins rows with a `JSON_TABLE` names the table that it locks: without `OF`, MySQL tries to lock the
//! `JSON_TABLE` as well and refuses (error 3569). MariaDB has no `OF`, so it stands in a comment that MySQL executes and
//! MariaDB skips: MariaDB executes no comment of the versions 50700 to 50999.

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
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{ConnectOptions, Connection, Executor, MySql, Transaction};
use time::{OffsetDateTime, PrimitiveDateTime};
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
use crate::error::Result;
use crate::event::Event;

use look::Look;

const ROLLBACK: &str = "ROLLBACK";

/// An outbox table in MySQL or MariaDB.
#[derive(Debug, Clone)]
pub struct MySqlStore {
    pool: MySqlPool,
    table: TableName,
    dialect: Dialect,
    /// Which of the two it is, once that is known.
    server: Arc<OnceLock<Dialect>>,
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

impl MySqlStore {
    /// The store of this table, on the caller's pool.
    pub fn new(pool: MySqlPool, table: TableName) -> Self {
        let statements = Arc::new(Statements {
            insert: insert::Statements::new(&table),
            queue: queue::Statements::new(&table),
            stream_admin: stream::admin::Statements::new(&table),
        });
        Self {
            pool,
            table,
            dialect: Dialect::MySql,
            server: Arc::default(),
            statements,
            known_mode: KnownMode::default(),
            within: None,
        }
    }

    /// The store of this table, on a pool of its own.
    pub async fn connect(url: &str, table: TableName) -> Result<Self> {
        let options: MySqlConnectOptions =
            url.parse().map_err(|error| errors::connecting(error, &table, "MySQL"))?;
        let place = place(&options);
        // A pool would try again until its timeout and then say nothing but that.
        let mut first =
            in_time(options.connect()).await.map_err(|error| errors::connecting(error, &table, &place))?;
        let dialect =
            schema::dialect(&mut first).await.map_err(|error| errors::connecting(error, &table, &place))?;
        first.close().await.map_err(|error| errors::connecting(error, &table, &place))?;
        let pool = MySqlPoolOptions::new()
            .max_connections(8)
            .acquire_timeout(Duration::from_secs(10))
            .connect_lazy_with(options);
        Ok(Self { dialect, server: Arc::new(dialect.into()), ..Self::new(pool, table) })
    }

    /// The statements that write events, for the producers.
    pub(crate) fn insert_statements(&self) -> &insert::Statements {
        &self.statements.insert
    }

    /// A transaction for a producer.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, MySql>> {
        self.pool.begin().await.map_err(|e| self.error(e))
    }

    async fn extend_round(&self, round: &[&Lease], length: Duration, extended: &mut Extended) -> Result<()> {
        let mut tries = Tries::default();
        let mut open = round.to_vec();
        for pause in queue::PAUSES {
            tokio::time::sleep(pause).await;
            match queue::extend(&self.pool, &self.statements.queue, &open, length)
                .await
                .map_err(|e| self.error(e))
            {
                Ok(held) => {
                    let wanted = open.iter().map(|lease| lease.id).filter(|id| !held.busy.contains(id));
                    extended.lost.append(&mut lost(wanted, &held.ours));
                    open.retain(|lease| held.busy.contains(&lease.id));
                }
                Err(error) if tries.again(&error) => {}
                Err(error) => return Err(error),
            }
            if open.is_empty() {
                return Ok(());
            }
        }
        extended.busy.extend(open.iter().map(|lease| lease.id));
        Ok(())
    }

    async fn settle_round(&self, round: &[&Settlement], keep: Keep, settled: &mut Settled) -> Result<()> {
        let mut tries = Tries::default();
        let mut open = round.to_vec();
        for pause in queue::PAUSES {
            tokio::time::sleep(pause).await;
            match queue::settle(&self.pool, &self.statements.queue, &open, keep)
                .await
                .map_err(|e| self.error(e))
            {
                Ok(held) => {
                    let done: Vec<&Settlement> =
                        open.iter().copied().filter(|s| !held.busy.contains(&s.lease.id)).collect();
                    settled.add(&done, &held.ours);
                    open.retain(|s| held.busy.contains(&s.lease.id));
                }
                Err(error) if tries.again(&error) => {}
                Err(error) => return Err(error),
            }
            if open.is_empty() {
                return Ok(());
            }
        }
        settled.busy.extend(open.iter().map(|s| s.lease.id));
        Ok(())
    }

    fn stream_of(&self, lanes: Lanes) -> stream::MySqlStream {
        stream::MySqlStream::new(&self.pool, &self.table, lanes)
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
        Look::begin(&self.pool, &self.server, self.within).await.map_err(|e| self.error(e))
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

    fn error(&self, error: sqlx::Error) -> crate::Error {
        errors::classify(error, &self.table)
    }
}

#[async_trait]
impl Store for MySqlStore {
    fn table(&self) -> &TableName {
        &self.table
    }

    /// MariaDB is told from MySQL where posthaste has made the connection.
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    async fn now(&self) -> Result<OffsetDateTime> {
        let now: PrimitiveDateTime = sqlx::query_scalar("SELECT UTC_TIMESTAMP(6)")
            .fetch_one(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        Ok(now.assume_utc())
    }

    async fn insert(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        let mut tx = self.pool.begin().await.map_err(|e| self.error(e))?;
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
        // A broken connection is an error that a relay retries; a ping before every statement is a cost.
        let pool = MySqlPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(10))
            .idle_timeout(Duration::from_secs(60))
            .test_before_acquire(false)
            // In time, or a connection that fell silent would keep its place in the pool for ever.
            .after_release(|connection, _| Box::pin(in_time(roll_back(connection))))
            .connect_lazy_with(self.pool.connect_options().as_ref().clone());
        Arc::new(Self { pool, ..self.clone() })
    }

    fn with_connections(&self, connections: u32) -> Arc<dyn Store> {
        let pool = MySqlPoolOptions::new()
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

    async fn survey(&self, cap: u32, worker: &WorkerId) -> Result<Survey> {
        if let Mode::Stream(lanes) = self.known_mode().await? {
            return piece_by_piece(self, Some(&self.stream_of(lanes)), cap).await;
        }
        let mut survey = self.asked(survey::queue(&self.pool, &self.table, cap, worker).await)?;
        if survey.has_leases() {
            survey.absent = self.absent_workers().await?;
        }
        Ok(survey)
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

/// A transaction that locks the rows it reads and no gaps between them, so that producers never wait for it.
async fn begin(pool: &MySqlPool) -> sqlx::Result<Transaction<'static, MySql>> {
    pool.begin_with("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION").await
}

/// Ends what a claim or settlement that was cut off may have left open: sqlx puts the connection of a begin
/// that was dropped half-way back as it is. It runs after the statement, so that nobody waits for it.
async fn roll_back(connection: &mut MySqlConnection) -> sqlx::Result<bool> {
    connection.execute(ROLLBACK).await?;
    Ok(true)
}

/// Where these options lead, for people.
fn place(options: &MySqlConnectOptions) -> String {
    format!("MySQL at {}:{}", options.get_host(), options.get_port())
}

/// A time as it is stored: in UTC, without a zone.
fn stored_time(at: OffsetDateTime) -> PrimitiveDateTime {
    let at = at.to_offset(time::UtcOffset::UTC);
    PrimitiveDateTime::new(at.date(), at.time())
}
