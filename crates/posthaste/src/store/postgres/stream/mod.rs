//! Streams: the tables of lanes, places and parked events.
//!
//! | file | what is in it |
//! |---|---|
//! | `own.rs` | who lives, which lanes are whose |
//! | `window.rs` | how lanes are read |
//! | `snapshot.rs` | which transactions had ended at a moment |
//! | `park.rs` | what cannot be delivered now |
//! | `look.rs` | who is blocked, how the lanes stand |
//! | `admin.rs` | what operators do |

pub(super) mod admin;
pub(super) mod look;
mod own;
mod park;
mod snapshot;
pub(super) mod window;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::PgPool;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::PLACED;
use super::errors::classify;
use crate::error::{Error, Result};
use crate::store::statement::Statement;
use crate::store::stream::{
    Beat, BlockedAggregate, Council, Hold, LaneLag, Park, Parked, ParkedClaim, ParkedEnd, Reader,
};
use crate::store::{Dialect, Keep, Lanes, Stream, TableName, WorkerId};
use window::WindowReader;

const UNSYNCED: &str = "(SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL";

// Whose lanes are still held; they stay so until the statement is done.
const HELD: &str = "
held AS (
    SELECT l.lane FROM {lanes_table} AS l
     WHERE (l.lane, l.fence) IN (SELECT said.lane, said.fence FROM said)
     ORDER BY l.lane FOR SHARE
)";

#[derive(Debug)]
pub(super) struct Statements {
    own: own::Statements,
    park: park::Statements,
    pub(super) look: look::Statements,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        Self {
            own: own::Statements::new(table),
            park: park::Statements::new(table),
            look: look::Statements::new(table),
        }
    }
}

/// A statement with the parts that several have.
fn statement(table: &TableName, sql: &'static str) -> Statement {
    Statement::new(Dialect::Postgres, table, sql)
        .with("{unsynced}", UNSYNCED)
        .with_rendered("{placed}", &Statement::new(Dialect::Postgres, table, PLACED))
        .with_rendered("{held}", &Statement::new(Dialect::Postgres, table, HELD))
}

// Who waited for a lane is to see what was committed meanwhile, whatever the database's default. And who vanishes without a word,
// with a lane in hand, is not waited for until the network has noticed.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '5s'";

/// A transaction that locks lanes.
async fn begin(pool: &PgPool) -> sqlx::Result<Transaction<'static, Postgres>> {
    pool.begin_with(BEGIN).await
}

/// A stream in PostgreSQL.
pub(super) struct PostgresStream {
    pool: PgPool,
    table: TableName,
    statements: Arc<super::Statements>,
    lanes: Lanes,
}

impl PostgresStream {
    pub(super) fn new(
        pool: PgPool,
        table: TableName,
        statements: Arc<super::Statements>,
        lanes: Lanes,
    ) -> Self {
        Self { pool, table, statements, lanes }
    }

    fn error(&self, error: sqlx::Error) -> Error {
        classify(error, &self.table)
    }
}

#[async_trait]
impl Stream for PostgresStream {
    fn lanes(&self) -> Lanes {
        self.lanes
    }

    async fn beat(&self, beat: &Beat<'_>) -> Result<Council> {
        own::beat(self, beat).await
    }

    async fn take(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> Result<Vec<Hold>> {
        own::take(self, beat, lanes, absent).await
    }

    async fn release(&self, holds: &[Hold]) -> Result<()> {
        own::release(self, holds).await
    }

    async fn leave(&self, relay: &WorkerId) -> Result<()> {
        own::leave(self, relay).await
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(WindowReader::new(self.pool.clone(), self.table.clone(), Arc::clone(&self.statements)))
    }

    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>> {
        park::blocked_among(self, keys).await
    }

    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>> {
        park::park(self, parks).await
    }

    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
        park::claim_parked(self, claim).await
    }

    async fn claimed(&self, holds: &[Hold]) -> Result<Vec<(Hold, i64)>> {
        park::claimed(self, holds).await
    }

    // The event's row stays as it is, whatever is to be kept: rows go by their age.
    async fn settle_parked(&self, ends: &[ParkedEnd], _keep: Keep) -> Result<Vec<u16>> {
        park::settle_parked(self, ends).await
    }

    async fn repair(&self, holds: &[Hold]) -> Result<()> {
        park::repair(self, holds).await
    }

    async fn has_parked(&self, lanes: &[u16]) -> Result<bool> {
        park::has_parked(self, lanes).await
    }

    async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>> {
        look::blocked(self, limit, None).await
    }

    async fn blocked_by(&self, events: &[Uuid]) -> Result<Vec<BlockedAggregate>> {
        look::blocked(self, u32::MAX, Some(events)).await
    }

    async fn lag(&self, cap: u32) -> Result<Vec<LaneLag>> {
        look::lag(self, cap).await
    }
}

fn numbers(lanes: &[u16]) -> Vec<i16> {
    lanes.iter().map(|lane| *lane as i16).collect()
}

fn lanes(holds: &[Hold]) -> Vec<i16> {
    holds.iter().map(|hold| hold.lane as i16).collect()
}

fn fences(holds: &[Hold]) -> Vec<i64> {
    holds.iter().map(|hold| hold.fence).collect()
}
