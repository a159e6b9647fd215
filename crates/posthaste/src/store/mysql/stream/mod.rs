//! Lanes in short transactions: who changes what is parked in a lane locks the lane first, so that nothing of it
//! changes in between.
//!
//! Nobody is waited for with a lane locked. A producer that met a duplicate of an event holds its row until it commits: such a
//! row is passed over and written to later. That an event is parked is said by its row among the parked alone until then;
//! and of one that was delivered there is such a row, *shelved*, until its own can be written to.
//!
//! Indexes are forced: a small table would be read from end to end, and every row of it locked.
//!
//! | file | what is in it |
//! |---|---|
//! | `own.rs` | who lives and owns which lanes |
//! | `read.rs` | what the reader reads, notes and says to be delivered |
//! | `park.rs` | what is parked, tried again, and how that ends |
//! | `mark.rs` | rows of the table that are marked or deleted, and those that somebody has locked |
//! | `look.rs` | what is blocked, and how far each lane is behind |
//! | `admin.rs` | what operators do |

pub(super) mod admin;
mod look;
mod mark;
mod own;
mod park;
mod read;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use sqlx::pool::PoolConnection;
use sqlx::{Connection, Executor, MySql, Row as _, Transaction};
use time::{OffsetDateTime, PrimitiveDateTime};
use uuid::Uuid;

use super::errors;
use crate::error::Result;
use crate::store::stream::floor::{Delivered, FloorReader, Ground, Look};
use crate::store::stream::place::RowId;
use crate::store::stream::{
    Beat, BlockedAggregate, Council, Hold, LaneLag, Lanes, Park, Parked, ParkedClaim, ParkedEnd, Reader, Row,
    Stream,
};
use crate::store::tries::insist;
use crate::store::{Keep, TableName, WorkerId};

// An owner that is stopped in the middle would keep its lanes locked for as long as it stands still: of a connection that says
// nothing for five seconds the server ends the transaction. Afterwards it may be silent for as long as before.
const BEGIN: &str = "
SET @posthaste_wait_timeout = COALESCE(@posthaste_wait_timeout, @@SESSION.wait_timeout);
SET SESSION wait_timeout = 5;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
START TRANSACTION";

const AFTERWARDS: &str = "
SET SESSION wait_timeout = @posthaste_wait_timeout;
SET @posthaste_wait_timeout = NULL";

#[derive(Debug)]
struct Statements {
    own: own::Statements,
    read: read::Statements,
    park: park::Statements,
    mark: mark::Statements,
    look: look::Statements,
}

/// A stream in MySQL or MariaDB.
#[derive(Debug, Clone)]
pub(super) struct MySqlStream {
    pool: MySqlPool,
    table: TableName,
    lanes: Lanes,
    statements: Arc<Statements>,
}

impl MySqlStream {
    /// The stream of this table.
    pub(super) fn new(pool: &MySqlPool, table: &TableName, lanes: Lanes) -> Self {
        let statements = Statements {
            own: own::Statements::new(table),
            read: read::Statements::new(table),
            park: park::Statements::new(table),
            mark: mark::Statements::new(table),
            look: look::Statements::new(table),
        };
        Self { pool: pool.clone(), table: table.clone(), lanes, statements: statements.into() }
    }

    /// A connection for a transaction that locks lanes.
    async fn connection(&self) -> sqlx::Result<Hurried> {
        Ok(Hurried { connection: self.pool.acquire().await?, calm: true })
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
impl Stream for MySqlStream {
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
impl Ground for MySqlStream {
    type Footing = Option<MySqlConnection>;

    async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>> {
        self.insist(|| read::noted(self, holds)).await
    }

    async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>> {
        self.insist(|| read::unsettled(self, lanes, above, limit)).await
    }

    async fn highest(&self, footing: &mut Self::Footing) -> Result<Option<i64>> {
        read::highest(self, footing).await.map_err(|error| errors::classify(error, &self.table))
    }

    async fn look(
        &self,
        footing: &mut Self::Footing,
        above: i64,
        until: i64,
        rows: u32,
    ) -> Result<Option<Look>> {
        let looked = read::look(self, footing, above, until, rows).await;
        looked.map_err(|error| errors::classify(error, &self.table))
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

    async fn tidy(&self, holds: &[Hold]) -> Result<bool> {
        self.insist(|| park::tidy(self, holds)).await
    }

    async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>> {
        self.insist(|| read::clear(self, holds)).await
    }
}

/// A connection that the server gives little time while it has lanes locked.
struct Hurried {
    connection: PoolConnection<MySql>,
    /// Whether it has as much time as it had before.
    calm: bool,
}

impl Hurried {
    /// A transaction that locks the rows it reads and no gaps between them, and ends if its owner stands still.
    async fn begin(&mut self) -> sqlx::Result<Transaction<'_, MySql>> {
        self.calm = false;
        self.connection.begin_with(BEGIN).await
    }

    /// What came of a transaction, with its connection as it was before.
    async fn afterwards<A>(mut self, done: sqlx::Result<A>) -> sqlx::Result<A> {
        match self.connection.execute(AFTERWARDS).await {
            Ok(_) => self.calm = true,
            Err(error) => tracing::debug!(%error, "a connection broke after its transaction"),
        }
        done
    }
}

impl Drop for Hurried {
    // Whoever was not waited for to its end would leave the others of its pool a connection that the server soon closes.
    fn drop(&mut self) {
        if !self.calm {
            self.connection.close_on_drop();
        }
    }
}

fn time(row: &MySqlRow, at: usize) -> sqlx::Result<OffsetDateTime> {
    Ok(row.try_get::<PrimitiveDateTime, _>(at)?.assume_utc())
}
