//! Lanes in transactions that begin by writing: the database lets one writer in at a time, so that nothing changes
//! in between.
//!
//! | file | what is in it |
//! |---|---|
//! | `own.rs` | who lives and owns which lanes |
//! | `read.rs` | what the reader reads, notes and says to be delivered |
//! | `park.rs` | what is parked, tried again, and how that ends |
//! | `look.rs` | what is blocked, and how far each lane is behind |
//! | `admin.rs` | what operators do |

pub(super) mod admin;
mod look;
mod own;
mod park;
mod read;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{Row as _, Sqlite, Transaction};
use uuid::Uuid;

use super::errors;
use crate::error::Result;
use crate::store::stream::floor::{Delivered, FloorReader, Ground, Look};
use crate::store::stream::place::{RowId, json_text};
use crate::store::stream::{
    Beat, BlockedAggregate, Council, Hold, LaneLag, Lanes, Park, Parked, ParkedClaim, ParkedEnd, Reader, Row,
    Stream,
};
use crate::store::tries::insist;
use crate::store::{Keep, TableName, WorkerId};

#[derive(Debug)]
struct Statements {
    own: own::Statements,
    read: read::Statements,
    park: park::Statements,
    look: look::Statements,
}

/// A stream in an SQLite file.
#[derive(Debug, Clone)]
pub(super) struct SqliteStream {
    pool: SqlitePool,
    table: TableName,
    lanes: Lanes,
    statements: Arc<Statements>,
}

impl SqliteStream {
    /// The stream of this table.
    pub(super) fn new(pool: &SqlitePool, table: &TableName, lanes: Lanes) -> Self {
        let statements = Statements {
            own: own::Statements::new(table),
            read: read::Statements::new(table),
            park: park::Statements::new(table),
            look: look::Statements::new(table),
        };
        Self { pool: pool.clone(), table: table.clone(), lanes, statements: statements.into() }
    }

    /// Calls until it succeeds or another call would not help.
    async fn insist<A, F>(&self, mut call: impl FnMut() -> F) -> Result<A>
    where
        F: Future<Output = sqlx::Result<A>>,
    {
        insist(|| {
            let called = call();
            async { called.await.map_err(|error| errors::classify(error, &self.table)) }
        })
        .await
    }
}

#[async_trait]
impl Stream for SqliteStream {
    fn lanes(&self) -> Lanes {
        self.lanes
    }

    async fn beat(&self, beat: &Beat<'_>) -> Result<Council> {
        self.insist(|| own::beat(self, beat)).await
    }

    async fn take(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> Result<Vec<Hold>> {
        self.insist(|| own::take(self, beat, lanes, absent)).await
    }

    async fn release(&self, holds: &[Hold]) -> Result<()> {
        self.insist(|| own::release(self, holds)).await
    }

    async fn leave(&self, relay: &WorkerId) -> Result<()> {
        self.insist(|| own::leave(self, relay)).await
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(FloorReader::new(self.clone()))
    }

    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>> {
        self.insist(|| park::blocked_among(self, keys)).await
    }

    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>> {
        self.insist(|| park::park(self, parks)).await
    }

    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
        self.insist(|| park::claim_parked(self, claim)).await
    }

    async fn claimed(&self, holds: &[Hold]) -> Result<Vec<(Hold, i64)>> {
        self.insist(|| park::claimed(self, holds)).await
    }

    async fn settle_parked(&self, ends: &[ParkedEnd], keep: Keep) -> Result<Vec<u16>> {
        self.insist(|| park::settle_parked(self, ends, keep)).await
    }

    async fn repair(&self, holds: &[Hold]) -> Result<()> {
        self.insist(|| park::repair(self, holds)).await
    }

    async fn has_parked(&self, lanes: &[u16]) -> Result<bool> {
        self.insist(|| park::has_parked(self, lanes)).await
    }

    async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>> {
        self.insist(|| look::blocked(self, limit, None)).await
    }

    async fn blocked_by(&self, events: &[Uuid]) -> Result<Vec<BlockedAggregate>> {
        self.insist(|| look::blocked(self, u32::MAX, Some(events))).await
    }

    async fn lag(&self, cap: u32) -> Result<Vec<LaneLag>> {
        self.insist(|| look::lag(self, cap)).await
    }
}

#[async_trait]
impl Ground for SqliteStream {
    type Footing = ();

    async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>> {
        self.insist(|| read::noted(self, holds)).await
    }

    async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>> {
        self.insist(|| read::unsettled(self, lanes, above, limit)).await
    }

    async fn highest(&self, (): &mut Self::Footing) -> Result<Option<i64>> {
        self.insist(|| read::highest(self)).await.map(Some)
    }

    async fn look(&self, (): &mut Self::Footing, above: i64, until: i64, _rows: u32) -> Result<Option<Look>> {
        self.insist(|| read::look(self, above, until)).await.map(Some)
    }

    async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>> {
        self.insist(|| read::rows(self, sequences)).await
    }

    async fn note(&self, notes: &[(Hold, i64)]) -> Result<Vec<Hold>> {
        self.insist(|| read::note(self, notes)).await
    }

    async fn deliver(&self, rows: &[(Hold, RowId)], keep: Keep) -> Result<Delivered> {
        self.insist(|| read::deliver(self, rows, keep)).await
    }

    async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>> {
        self.insist(|| read::clear(self, holds)).await
    }
}

/// A transaction that nobody else writes beside.
async fn begin(pool: &SqlitePool) -> sqlx::Result<Transaction<'static, Sqlite>> {
    pool.begin_with("BEGIN IMMEDIATE").await
}

/// Rows as the statements read them.
fn row_ids(rows: impl Iterator<Item = RowId>) -> String {
    json_text(rows.map(|row| json!([row.sequence, row.id.hyphenated().to_string()])))
}

fn id(row: &SqliteRow, at: usize) -> sqlx::Result<Uuid> {
    Uuid::try_parse(row.try_get(at)?).map_err(|error| sqlx::Error::Decode(error.into()))
}
