//! Sessions: a connection of its own, whose advisory locks end with it.
//!
//! A worker is present while a session of its name holds a lock on that name. The lock is a shared one: a
//! worker whose connection broke opens its next session before the server may have noticed, and two names
//! with the same hash do not keep each other out.

use std::collections::HashSet;

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{ConnectOptions, Connection};

use super::errors::{classify, connecting};
use super::place;
use crate::error::{Error, ErrorKind, Result};
use crate::store::errors::in_time;
use crate::store::session::gone;
use crate::store::statement::Statement;
use crate::store::tries::Tries;
use crate::store::{Dialect, Lock, Session, TableName, WorkerId};

// The first half of the locks' keys: any numbers, but these for ever.
pub(super) const CLASS_PRESENCE: i32 = 0x7068_0001;
const CLASS_LEADER: i32 = 0x7068_0002;
const CLASS_PURGE: i32 = 0x7068_0003;

const PRESENT: &str = "SELECT pg_backend_pid(), pg_try_advisory_lock_shared($1, hashtext($2))";

const LOCK: &str = "SELECT pg_try_advisory_lock($1, $2::regclass::oid::int)";

const UNLOCK: &str = "SELECT pg_advisory_unlock($1, $2::regclass::oid::int)";

// $1 the class of presence, $2 the worker, $3 the classes of the locks held, $4 the table. Behind a pooler another client may
// have let go what this session holds, and a table made anew has locks of its own.
const CHECK: &str = "
SELECT pg_backend_pid(),
       (SELECT count(*) FROM pg_locks
         WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND pid = pg_backend_pid()
           AND (classid = $1::oid AND objid = hashtext($2)::oid
                OR classid = ANY ($3::int[]::oid[]) AND objid = to_regclass($4)::oid))";

// Through a pooler, others' locks are not to be let go.
const UNLOCK_ALL: &str = "SELECT pg_advisory_unlock_all() WHERE pg_backend_pid() = $1";

// $1 the class of presence. Only so many rows are looked at that it costs the same whatever waits. The rows are read before the
// locks, so that a worker seen holding one was present before.
const ABSENT: &str = "
SELECT DISTINCT split_part(f.locked_by, '#', 1)
  FROM (SELECT locked_by, locked_until FROM {table}
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT (SELECT 10000)) AS f
 WHERE f.locked_until > now() AND f.locked_by LIKE '%~#%'
   AND {absent}";

// $1 the class of presence, $2 the workers. Rows that somebody is just writing are passed over.
const END_LEASES: &str = "
UPDATE {table}
   SET locked_until = now()
 WHERE id = ANY (ARRAY (
       SELECT o.id
         FROM (SELECT id, locked_by, locked_until FROM {table}
                WHERE outcome IS NULL ORDER BY available_at, seq LIMIT (SELECT 10000)) AS f
         JOIN {table} AS o ON o.id = f.id AND o.locked_by = f.locked_by
        WHERE f.locked_until > now() AND f.locked_by LIKE '%~#%'
          AND split_part(f.locked_by, '#', 1) = ANY ($2::text[])
          AND {absent}
          AND o.locked_until > now() AND o.outcome IS NULL
          FOR UPDATE OF o SKIP LOCKED))";

/// The names of whom there is a session, as numbers. $1 the class of presence.
pub(super) const PRESENT_NAMES: &str = "SELECT objid FROM pg_locks
               WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = $1::oid
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

pub(super) const NOT_PRESENT: &str = "hashtext(split_part(f.locked_by, '#', 1))::oid NOT IN ({present})";

/// A session, and the connection that it is until that breaks.
struct PostgresSession {
    connection: Option<PgConnection>,
    table: TableName,
    worker: WorkerId,
    backend: i32,
    present: bool,
    // Advisory locks count: one taken twice would have to be let go twice.
    held: HashSet<Lock>,
}

/// Opens a session for a worker.
pub(super) async fn open(pool: &PgPool, table: &TableName, worker: &WorkerId) -> Result<Box<dyn Session>> {
    let options = pool.connect_options();
    let refused = |error| connecting(error, table, &place(&options));
    let mut connection = in_time(options.connect()).await.map_err(refused)?;
    let named = worker.present();
    let present = sqlx::query_as(PRESENT).bind(CLASS_PRESENCE).bind(named.as_str());
    let (backend, present) = in_time(present.fetch_one(&mut connection)).await.map_err(refused)?;
    Ok(Box::new(PostgresSession {
        connection: Some(connection),
        table: table.clone(),
        // Its leases then end by time alone.
        worker: if present { named } else { worker.clone() },
        backend,
        present,
        held: HashSet::new(),
    }))
}

impl PostgresSession {
    fn connection(&mut self) -> Result<&mut PgConnection> {
        let PostgresSession { connection, worker, table, .. } = self;
        connection.as_mut().ok_or_else(|| gone(worker, table, "its connection broke"))
    }

    /// The answer; a connection that broke is given up, and with it what it held.
    fn answer<A>(&mut self, answer: sqlx::Result<A>) -> Result<A> {
        answer.map_err(|error| {
            let error = classify(error, &self.table);
            if *error.kind() == ErrorKind::Unreachable {
                self.give_up("its connection broke");
            }
            error
        })
    }

    /// Ends the connection, so that what it may still hold is free, and says why.
    fn give_up(&mut self, why: &str) -> Error {
        self.connection = None;
        self.held.clear();
        gone(&self.worker, &self.table, why)
    }
}

#[async_trait]
impl Session for PostgresSession {
    fn worker(&self) -> &WorkerId {
        &self.worker
    }

    async fn try_lock(&mut self, lock: Lock) -> Result<bool> {
        if self.held.contains(&lock) {
            self.check().await?;
            return Ok(true);
        }
        let query = sqlx::query_scalar(LOCK).bind(class(lock)).bind(self.table.quoted('"'));
        let answer = in_time(query.fetch_one(self.connection()?)).await;
        let locked = self.answer(answer)?;
        if locked {
            self.held.insert(lock);
        }
        Ok(locked)
    }

    async fn unlock(&mut self, lock: Lock) -> Result<()> {
        if !self.held.remove(&lock) {
            return Ok(());
        }
        let query = sqlx::query(UNLOCK).bind(class(lock)).bind(self.table.quoted('"'));
        let answer = in_time(query.execute(self.connection()?)).await;
        self.answer(answer).map(drop)
    }

    async fn check(&mut self) -> Result<()> {
        let expected = i64::from(self.present) + i64::try_from(self.held.len()).unwrap_or(i64::MAX);
        let query = sqlx::query_as(CHECK)
            .bind(CLASS_PRESENCE)
            .bind(self.worker.as_str().to_owned())
            .bind(self.held.iter().map(|lock| class(*lock)).collect::<Vec<_>>())
            .bind(self.table.quoted('"'));
        let answer = in_time(query.fetch_one(self.connection()?)).await;
        let (backend, held): (i32, i64) =
            answer.map_err(|error| self.give_up(&error.to_string()).because(error))?;
        let why = if backend != self.backend {
            "a pooler in between has given it another connection: sessions need one of their own"
        } else if held < expected {
            "the server no longer knows its locks: a pooler in between, or the table was made anew"
        } else {
            return Ok(());
        };
        Err(self.give_up(why))
    }

    async fn ping(&mut self) -> Result<()> {
        let answer = in_time(self.connection()?.ping()).await;
        answer.map_err(|error| self.give_up(&error.to_string()).because(error))
    }

    async fn close(mut self: Box<Self>) {
        let Some(mut connection) = self.connection.take() else { return };
        // Else the locks would last until the server has seen that the connection is closed.
        let unlocked = in_time(sqlx::query(UNLOCK_ALL).bind(self.backend).execute(&mut connection)).await;
        let closed = match unlocked {
            Ok(_) => in_time(connection.close()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = closed {
            tracing::debug!(%error, table = %self.table, "the session was gone before it was closed");
        }
    }
}

fn class(lock: Lock) -> i32 {
    match lock {
        Lock::Leader => CLASS_LEADER,
        Lock::Purge => CLASS_PURGE,
    }
}

fn statement(table: &TableName, sql: &'static str) -> Statement {
    Statement::new(Dialect::Postgres, table, sql)
        .with("{absent}", NOT_PRESENT)
        .with("{present}", PRESENT_NAMES)
}

/// The present workers that hold leases and of whom no session is left.
pub(super) async fn absent_workers(pool: &PgPool, table: &TableName) -> Result<Vec<String>> {
    let statement = statement(table, ABSENT);
    let absent = sqlx::query_scalar(statement.sql()).bind(CLASS_PRESENCE).fetch_all(pool).await;
    absent.map_err(|e| classify(e, table))
}

/// Ends the leases of those of these workers of whom no session is left.
pub(super) async fn end_leases_of(pool: &PgPool, table: &TableName, workers: &[String]) -> Result<u64> {
    if workers.is_empty() {
        return Ok(0);
    }
    let statement = statement(table, END_LEASES);
    let mut tries = Tries::default();
    loop {
        let ended = sqlx::query(statement.sql()).bind(CLASS_PRESENCE).bind(workers).execute(pool).await;
        match ended.map_err(|e| classify(e, table)) {
            Ok(ended) => return Ok(ended.rows_affected()),
            Err(error) if tries.again(&error) => {}
            Err(error) => return Err(error),
        }
    }
}
