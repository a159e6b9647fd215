//! What an SQLite file tells: who writes, how large its log is, and who has leased what. It cannot tell who reads, nor
//! whose process is gone.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{ConnectOptions, Connection, Executor, query_as, query_scalar};

use super::SqliteStore;
use super::errors::{is_busy, is_read_only};
use crate::error::Result;
use crate::store::errors::in_time;
use crate::store::health::{
    Access, Cleaning, Client, Fleet, Health, Holder, LOOKED_AT, LaneOwner, NAMED, Pin, TableLock, Work,
    number, over,
};
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, TableName};

/// How long a writer may take before it is said to hold up the others.
const PATIENCE: Duration = Duration::from_secs(2);

const VERSION: &str = "SELECT sqlite_version()";

// Empty for a database in memory.
const FILE: &str = "SELECT coalesce(max(file), '') FROM pragma_database_list WHERE name = 'main'";

const JOURNAL_MODE: &str = "PRAGMA journal_mode";

// Touches nothing; but what may only be read refuses it.
const NOTHING: &str = "DELETE FROM {table} WHERE 0";

const DUE: &str = "
SELECT count(*), coalesce(sum({free}), 0), {now} - min(CASE WHEN {free} THEN available_at END)
  FROM (SELECT available_at, locked_until FROM {table}
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ?1) AS f";

const HOLDERS: &str = "
SELECT worker, leased, ended, ended_for
  FROM (SELECT substr(locked_by, 1, instr(locked_by || '#', '#') - 1) AS worker,
               sum(locked_until > {now}) AS leased, sum(locked_until <= {now}) AS ended,
               {now} - min(locked_until) AS ended_for
          FROM (SELECT locked_by, locked_until FROM {table}
                 WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ?1) AS f
         WHERE locked_by IS NOT NULL AND locked_until IS NOT NULL
         GROUP BY 1) AS w
 ORDER BY leased + ended DESC, worker LIMIT ?2";

const LIVING: &str = "SELECT relay FROM {relays_table} WHERE until > {now} ORDER BY joined_at, relay";

const LANES: &str = "SELECT lane, owner, {now} - leased_until FROM {lanes_table} ORDER BY lane";

fn statement(table: &TableName, sql: &'static str) -> Statement {
    let free = Statement::new(
        Dialect::Sqlite,
        table,
        "(available_at <= {now} AND coalesce(locked_until, 0) <= {now})",
    );
    Statement::new(Dialect::Sqlite, table, sql).with_rendered("{free}", &free)
}

/// What a write would have met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writing {
    Allowed,
    ReadOnly,
    HeldUp,
}

impl SqliteStore {
    /// Begins to write on a connection of its own, and thinks better of it. Only so is it known whether anybody could.
    async fn try_to_write(&self) -> sqlx::Result<Writing> {
        let options = self.pool.connect_options().as_ref().clone().busy_timeout(PATIENCE);
        let mut connection = in_time(options.connect()).await?;
        let writing = match connection.execute("BEGIN IMMEDIATE").await {
            // On a file that may only be read this begins to read.
            Ok(_) => {
                let written = connection.execute(statement(&self.table, NOTHING).sql()).await;
                connection.execute("ROLLBACK").await?;
                match written {
                    Err(error) if is_read_only(&error) => Ok(Writing::ReadOnly),
                    // That there is no such table is for others to say.
                    _ => Ok(Writing::Allowed),
                }
            }
            Err(error) if is_read_only(&error) => Ok(Writing::ReadOnly),
            Err(error) if is_busy(&error) => Ok(Writing::HeldUp),
            Err(error) => Err(error),
        };
        connection.close().await?;
        writing
    }
}

#[async_trait]
impl Health for SqliteStore {
    async fn access(&self) -> Result<Access> {
        let version: String = query_scalar(VERSION).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        let file: String = query_scalar(FILE).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        let writing = match file.is_empty() {
            true => Writing::Allowed,
            false => self.try_to_write().await.map_err(|e| self.error(e))?,
        };
        let writer = || TableLock {
            by: Client {
                name: "another connection".to_owned(),
                state: Some("writing".to_owned()),
                lasting: Some(PATIENCE),
                ..Client::default()
            },
            behind: Vec::new(),
            remedy: None,
        };
        Ok(Access {
            server: format!("SQLite {version}"),
            account: None,
            read_only: (writing == Writing::ReadOnly)
                .then(|| format!("the file {file}, or its directory, may only be read")),
            denied: Vec::new(),
            locked: (writing == Writing::HeldUp).then(writer),
        })
    }

    async fn pins(&self) -> Result<Option<Vec<Pin>>> {
        Ok(None)
    }

    async fn cleaning(&self) -> Result<Vec<Cleaning>> {
        let file: String = query_scalar(FILE).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        if file.is_empty() {
            return Ok(Vec::new());
        }
        let mode: String =
            query_scalar(JOURNAL_MODE).fetch_one(&self.pool).await.map_err(|e| self.error(e))?;
        // No log is an empty one.
        let bytes = std::fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len());
        let remedy =
            if mode == "wal" { "PRAGMA wal_checkpoint(TRUNCATE);" } else { "PRAGMA journal_mode = WAL;" };
        Ok(vec![Cleaning::Journal { mode, bytes, remedy: remedy.to_owned() }])
    }

    async fn work(&self) -> Result<Work> {
        let due = statement(&self.table, DUE);
        let due = query_as(due.sql()).bind(LOOKED_AT + 1).fetch_one(&self.pool).await;
        let (open, due, oldest): (i64, i64, Option<i64>) = due.map_err(|e| self.error(e))?;
        let holders = statement(&self.table, HOLDERS);
        let holders = query_as(holders.sql()).bind(LOOKED_AT).bind(NAMED).fetch_all(&self.pool).await;
        let holders: Vec<(String, i64, i64, Option<i64>)> = holders.map_err(|e| self.error(e))?;
        let holder = |(worker, leased, ended, ended_for)| Holder {
            worker,
            leased: number(leased),
            ended: number(ended),
            ended_for: over(ended_for),
            present: None,
        };
        Ok(Work {
            due: Count::among(open, due, LOOKED_AT),
            oldest_due: over(oldest),
            holders: holders.into_iter().map(holder).collect(),
            relays: None,
        })
    }

    async fn fleet(&self) -> Result<Fleet> {
        let living = statement(&self.table, LIVING);
        let relays = query_scalar(living.sql()).fetch_all(&self.pool).await.map_err(|e| self.error(e))?;
        let lanes = statement(&self.table, LANES);
        let lanes = query_as(lanes.sql()).fetch_all(&self.pool).await;
        let lanes: Vec<(i64, Option<String>, Option<i64>)> = lanes.map_err(|e| self.error(e))?;
        let lane = |(lane, owner, ended_for): (i64, _, _)| LaneOwner {
            lane: lane as u16,
            owner,
            ended_for: over(ended_for),
            present: None,
        };
        Ok(Fleet { relays, lanes: lanes.into_iter().map(lane).collect() })
    }
}
