//! Sessions: a connection of its own, whose named locks end with it.
//!
//! A worker is present while a session holds the lock of its name. The server's locks know no databases, and
//! their names have at most 64 characters: they are hashes of the database and what is locked in it.

use std::collections::HashSet;

use async_trait::async_trait;
use serde_json::{Value, json};
use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::{ConnectOptions, Connection};

use super::errors::{classify, connecting};
use super::{begin, place};
use crate::error::{Error, ErrorKind, Result};
use crate::store::errors::in_time;
use crate::store::session::gone;
use crate::store::statement::Statement;
use crate::store::tries::Tries;
use crate::store::{Dialect, Lock, Session, TableName, WorkerId};

/// What is locked as the server knows it, of the same bytes whatever the connection's character set. The first
/// value is the database that the table's name says.
macro_rules! lock_name {
    ($what:literal) => {
        concat!(
            "CONCAT('posthaste.', LEFT(SHA2(CONVERT(CONCAT_WS('/', COALESCE(?, DATABASE()), ",
            $what,
            ") USING utf8mb4), 256), 48))"
        )
    };
}
pub(super) use lock_name;

const NAMES: &str = concat!(
    "SELECT CAST(CONNECTION_ID() AS UNSIGNED), ",
    lock_name!("?"),
    ", ",
    lock_name!("?, ?"),
    ", ",
    lock_name!("?, ?")
);

const LOCK: &str = "SELECT GET_LOCK(?, 0)";

const UNLOCK: &str = "SELECT RELEASE_LOCK(?)";

const CHECK: &str = "
SELECT CAST(CONNECTION_ID() AS UNSIGNED), CAST(IS_USED_LOCK(?) AS UNSIGNED), CAST(IS_USED_LOCK(?) AS UNSIGNED),
       CAST(IS_USED_LOCK(?) AS UNSIGNED)";

const UNLOCK_ALL: &str = "SELECT RELEASE_ALL_LOCKS()";

// Only so many rows are looked at that it costs the same whatever waits. The rows are read before the locks, so that a worker seen
// holding one was present before.
const ABSENT: &str = concat!(
    "
SELECT worker
  FROM (SELECT DISTINCT SUBSTRING_INDEX(locked_by, '#', 1) AS worker
          FROM (SELECT locked_by, locked_until FROM {table} FORCE INDEX (`{name}_claim`)
                 WHERE outcome IS NULL ORDER BY available_at, seq LIMIT 10000) AS f
         WHERE locked_until > UTC_TIMESTAMP(6) AND locked_by LIKE '%~#%') AS w
 WHERE IS_USED_LOCK(",
    lock_name!("worker"),
    ") IS NULL"
);

const ORPHANED: &str = concat!(
    "
SELECT seq, locked_by
  FROM (SELECT seq, locked_by, locked_until FROM {table} FORCE INDEX (`{name}_claim`)
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT 10000) AS f
 WHERE locked_until > UTC_TIMESTAMP(6) AND locked_by LIKE '%~#%'
   AND JSON_CONTAINS(?, JSON_QUOTE(SUBSTRING_INDEX(locked_by, '#', 1)))
   AND IS_USED_LOCK(",
    lock_name!("SUBSTRING_INDEX(locked_by, '#', 1)"),
    ") IS NULL"
);

// Rows that somebody is just writing are passed over, not waited for. The index is forced, or a small table would be read
// and locked as a whole.
const STILL_ORPHANED: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', holder VARCHAR(128) PATH '$[1]')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = l.seq
 WHERE o.locked_by = l.holder AND o.locked_until > UTC_TIMESTAMP(6) AND o.outcome IS NULL
   FOR UPDATE /*!50700 OF o */ SKIP LOCKED";

const END_ORPHANED: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = l.seq
   SET o.locked_until = UTC_TIMESTAMP(6)";

/// A session, and the connection that it is until that breaks.
struct MySqlSession {
    connection: Option<MySqlConnection>,
    table: TableName,
    worker: WorkerId,
    id: u64,
    present: bool,
    names: Names,
    // Named locks count: one taken twice would have to be let go twice.
    held: HashSet<Lock>,
}

/// What the locks are called on the server.
struct Names {
    present: String,
    leader: String,
    purge: String,
}

/// Opens a session for a worker.
pub(super) async fn open(pool: &MySqlPool, table: &TableName, worker: &WorkerId) -> Result<Box<dyn Session>> {
    let options = pool.connect_options();
    let refused = |error| connecting(error, table, &place(&options));
    let mut connection = in_time(options.connect()).await.map_err(refused)?;
    let named = worker.present();
    let mut query = sqlx::query_as(NAMES).bind(table.schema()).bind(named.as_str());
    for lock in [Lock::Leader, Lock::Purge] {
        query = query.bind(table.schema()).bind(table.name()).bind(lock.as_str());
    }
    let (id, present, leader, purge) = in_time(query.fetch_one(&mut connection)).await.map_err(refused)?;
    let names = Names { present, leader, purge };
    let query = sqlx::query_scalar(LOCK).bind(&names.present);
    let got: Option<i64> = in_time(query.fetch_one(&mut connection)).await.map_err(refused)?;
    let present = got == Some(1);
    Ok(Box::new(MySqlSession {
        connection: Some(connection),
        table: table.clone(),
        // The server has not noticed yet that the worker's last session is gone: leases then end by time alone.
        worker: if present { named } else { worker.clone() },
        id,
        present,
        names,
        held: HashSet::new(),
    }))
}

impl MySqlSession {
    fn connection(&mut self) -> Result<&mut MySqlConnection> {
        let MySqlSession { connection, worker, table, .. } = self;
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
impl Session for MySqlSession {
    fn worker(&self) -> &WorkerId {
        &self.worker
    }

    async fn try_lock(&mut self, lock: Lock) -> Result<bool> {
        if self.held.contains(&lock) {
            self.check().await?;
            return Ok(true);
        }
        let query = sqlx::query_scalar(LOCK).bind(self.names.of(lock).to_owned());
        let answer = in_time(query.fetch_one(self.connection()?)).await;
        let locked = self.answer::<Option<i64>>(answer)? == Some(1);
        if locked {
            self.held.insert(lock);
        }
        Ok(locked)
    }

    async fn unlock(&mut self, lock: Lock) -> Result<()> {
        if !self.held.remove(&lock) {
            return Ok(());
        }
        let query = sqlx::query(UNLOCK).bind(self.names.of(lock).to_owned());
        let answer = in_time(query.execute(self.connection()?)).await;
        self.answer(answer).map(drop)
    }

    async fn check(&mut self) -> Result<()> {
        let Names { present, leader, purge } = &self.names;
        let query = sqlx::query_as(CHECK).bind(present.clone()).bind(leader.clone()).bind(purge.clone());
        let answer = in_time(query.fetch_one(self.connection()?)).await;
        let (id, present, leader, purge): (u64, Option<u64>, Option<u64>, Option<u64>) =
            answer.map_err(|error| self.give_up(&error.to_string()).because(error))?;
        let mut held = vec![(self.present, present)];
        held.extend(
            [(Lock::Leader, leader), (Lock::Purge, purge)].map(|(l, by)| (self.held.contains(&l), by)),
        );
        let why = if id != self.id {
            "a proxy in between has given it another connection: sessions need one of their own"
        } else if held.into_iter().any(|(ours, by)| ours && by != Some(id)) {
            "the server no longer knows its locks: a proxy in between"
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
        let unlocked = in_time(sqlx::query(UNLOCK_ALL).execute(&mut connection)).await;
        let closed = match unlocked {
            Ok(_) => in_time(connection.close()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = closed {
            tracing::debug!(%error, table = %self.table, "the session was gone before it was closed");
        }
    }
}

impl Names {
    fn of(&self, lock: Lock) -> &str {
        match lock {
            Lock::Leader => &self.leader,
            Lock::Purge => &self.purge,
        }
    }
}

fn statement(table: &TableName, sql: &'static str) -> Statement {
    Statement::new(Dialect::MySql, table, sql)
}

/// The present workers that hold leases and whose session is gone.
pub(super) async fn absent_workers(pool: &MySqlPool, table: &TableName) -> Result<Vec<String>> {
    let statement = statement(table, ABSENT);
    let absent = sqlx::query_scalar(statement.sql()).bind(table.schema()).fetch_all(pool).await;
    absent.map_err(|e| classify(e, table))
}

/// Ends the leases of those of these workers whose session is gone.
pub(super) async fn end_leases_of(pool: &MySqlPool, table: &TableName, workers: &[String]) -> Result<u64> {
    if workers.is_empty() {
        return Ok(0);
    }
    let mut tries = Tries::default();
    loop {
        match end_once(pool, table, workers).await.map_err(|e| classify(e, table)) {
            Err(error) if tries.again(&error) => {}
            ended => return ended,
        }
    }
}

async fn end_once(pool: &MySqlPool, table: &TableName, workers: &[String]) -> sqlx::Result<u64> {
    let orphaned = statement(table, ORPHANED);
    let mut tx = begin(pool).await?;
    let orphaned: Vec<(i64, String)> = sqlx::query_as(orphaned.sql())
        .bind(json!(workers).to_string())
        .bind(table.schema())
        .fetch_all(&mut *tx)
        .await?;
    let ended = if orphaned.is_empty() {
        0
    } else {
        let rows = Value::Array(orphaned.iter().map(|(seq, holder)| json!([seq, holder])).collect());
        let still = statement(table, STILL_ORPHANED);
        let still: Vec<i64> =
            sqlx::query_scalar(still.sql()).bind(rows.to_string()).fetch_all(&mut *tx).await?;
        let end = statement(table, END_ORPHANED);
        sqlx::query(end.sql()).bind(json!(still).to_string()).execute(&mut *tx).await?;
        still.len() as u64
    };
    tx.commit().await?;
    Ok(ended)
}
