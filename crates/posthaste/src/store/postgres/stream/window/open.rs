//! Opening lanes: where they were left, and on which cluster that was.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection as _, Row as _};
use tokio::time::Instant;

use super::super::super::PLACED;
use super::super::snapshot::Snapshot;
use super::super::{fences, lanes};
use super::place::{Lane, Part, Place};
use super::{RUN, WindowReader};
use crate::error::{Error, ErrorKind, Result};
use crate::store::statement::Statement;
use crate::store::stream::Hold;
use crate::store::{Dialect, TableName};

/// What the server says who has waited for a lock for as long as it may.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// After how long to try again to have the table to oneself, at first.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// And at most: it doubles each time.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long to wait for that at first.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// And which part of the pause later: there may always be a writer that takes longer.
const WAITS: u32 = 20;

const LOAD: &str = "
SELECT l.lane, l.step, l.base::text, l.base_seq, l.target::text, l.after_seq, l.noted::text, l.noted_seq,
       l.anchor_seq, l.recover::text, l.recover_seq, l.system_id, {system_id}, pg_current_snapshot()::text, {run}
  FROM {placed} AS l
  JOIN unnest($1::smallint[], $2::bigint[]) AS h(held, held_fence) ON h.held = l.lane AND h.held_fence = l.fence
 ORDER BY l.lane";

const SYSTEM_ID: &str = "(SELECT system_identifier FROM pg_control_system())";

// Waits for who writes to the table now, but not long: everybody else waits behind.
const PATIENCE: &str = "SELECT set_config('lock_timeout', $1, true)";

const QUIET: &str = "LOCK TABLE {table} IN SHARE MODE";

// $1 lanes, $2 fences. Every lane that comes from elsewhere: what was under way there is read again with the rest.
const ANCHOR: &str = "
WITH moved AS (
    UPDATE {lanes_table} AS l
       SET system_id = {system_id}
      FROM unnest($1::smallint[], $2::bigint[]) AS h(lane, fence)
     WHERE l.lane = h.lane AND l.fence = h.fence
    RETURNING l.lane
)
INSERT INTO {places_table} (lane, step, base, base_seq, after_seq, anchor_seq, recover, recover_seq)
SELECT l.lane, l.step + 1, pg_current_snapshot(), coalesce(last.seq, 0),
       CASE WHEN l.recover IS NOT NULL THEN l.after_seq ELSE l.anchor_seq END,
       coalesce(last.seq, 0),
       CASE WHEN l.recover IS NOT NULL THEN l.recover
            WHEN l.target IS NOT NULL AND l.after_seq >= l.base_seq THEN l.target ELSE l.base END,
       CASE WHEN l.recover IS NOT NULL THEN l.recover_seq
            WHEN l.target IS NOT NULL AND l.after_seq >= l.base_seq THEN l.after_seq ELSE l.base_seq END
  FROM {placed} AS l, (SELECT max(seq) AS seq FROM {table}) AS last
 WHERE l.lane IN (SELECT lane FROM moved)";

const ADOPT: &str = "
UPDATE {lanes_table} AS l
   SET system_id = {system_id}
  FROM unnest($1::smallint[], $2::bigint[]) AS h(lane, fence)
 WHERE l.lane = h.lane AND l.fence = h.fence AND l.system_id IS NULL";

#[derive(Debug)]
pub(super) struct Statements {
    load: Statement,
    quiet: Statement,
    anchor: Statement,
    adopt: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| {
            Statement::new(Dialect::Postgres, table, sql)
                .with_rendered("{placed}", &Statement::new(Dialect::Postgres, table, PLACED))
                .with("{system_id}", SYSTEM_ID)
                .with("{run}", RUN)
        };
        Self {
            load: statement(LOAD),
            quiet: statement(QUIET),
            anchor: statement(ANCHOR),
            adopt: statement(ADOPT),
        }
    }
}

/// A lane as the database has it.
struct Loaded {
    lane: Lane,
    /// Whether its transaction numbers are another cluster's.
    moved: bool,
    /// Whether it was never read.
    adopt: bool,
}

/// When to try again to have a table to oneself that others write to.
#[derive(Debug, Default)]
pub(super) struct Patience {
    pause: Duration,
    until: Option<Instant>,
}

impl Patience {
    fn is_to_wait(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// How long others may be held up for.
    fn wait(&self) -> Duration {
        (self.pause / WAITS).max(FIRST_WAIT)
    }

    /// Others wrote to it.
    fn longer(&mut self) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(Instant::now() + self.pause);
    }
}

impl WindowReader {
    /// Loads these lanes. Those that were moved from another cluster and cannot be anchored now are lost again at once.
    pub(super) async fn load_all(
        &mut self,
        connection: &mut PgConnection,
        holds: &[Hold],
    ) -> Result<Vec<Lane>> {
        let mut loaded = self.load(connection, holds).await?;
        let of = |loaded: &[Loaded], which: fn(&Loaded) -> bool| -> Vec<Hold> {
            loaded.iter().filter(|loaded| which(loaded)).map(|loaded| loaded.lane.hold).collect()
        };
        let adopted = of(&loaded, |loaded| loaded.adopt);
        if !adopted.is_empty() {
            self.adopt(connection, &adopted).await?;
        }
        let moved = of(&loaded, |loaded| loaded.moved);
        if !moved.is_empty() {
            if self.anchor(connection, &moved).await? {
                loaded = self.load(connection, holds).await?;
            } else if moved.len() == loaded.len() {
                return Err(Error::new(
                    ErrorKind::Conflict,
                    format!(
                        "table {} was moved to another cluster: its stream goes on once nobody has written to it for a moment",
                        self.table
                    ),
                ));
            } else {
                loaded.retain(|loaded| !loaded.moved);
                self.lost.extend(moved.iter().map(|hold| hold.lane));
            }
        }
        Ok(loaded.into_iter().map(|loaded| loaded.lane).collect())
    }

    async fn load(&mut self, connection: &mut PgConnection, holds: &[Hold]) -> Result<Vec<Loaded>> {
        let rows = sqlx::query(self.statements.window.open.load.sql())
            .bind(lanes(holds))
            .bind(fences(holds))
            .fetch_all(connection)
            .await
            .map_err(|e| self.error(e))?;
        rows.iter().filter_map(|row| self.read_lane(row, holds).transpose()).collect()
    }

    fn read_lane(&self, row: &PgRow, holds: &[Hold]) -> Result<Option<Loaded>> {
        let lane: i16 = row.try_get(0).map_err(|e| self.error(e))?;
        let Some(hold) = holds.iter().find(|hold| hold.lane as i16 == lane) else { return Ok(None) };
        let text = |at: usize| row.try_get::<Option<String>, _>(at).map_err(|e| self.error(e));
        let number = |at: usize| row.try_get::<Option<i64>, _>(at).map_err(|e| self.error(e));
        let snapshot = |at: usize| text(at)?.map(|text| self.snapshot(&text)).transpose();
        let missing = || {
            Error::new(ErrorKind::SchemaMismatch, format!("table {}: lane {lane} has no place", self.table))
        };
        let after = number(5)?.unwrap_or(0);
        let part = match (snapshot(4)?, snapshot(9)?) {
            (_, Some(delivered)) => {
                Part::Recovery { delivered, delivered_seq: number(10)?.unwrap_or(0), after }
            }
            (Some(target), None) => Part::Window { target, after },
            (None, None) => Part::Nothing,
        };
        let place = Arc::new(Place {
            base: snapshot(2)?.ok_or_else(missing)?,
            base_seq: number(3)?.unwrap_or(0),
            anchor: number(8)?.unwrap_or(0),
            part,
        });
        let server = snapshot(13)?.ok_or_else(missing)?;
        let moved = match (number(11)?, number(12)?) {
            (Some(stored), now) => Some(stored) != now || place.base.is_ahead_of(&server),
            (None, _) => false,
        };
        let lane = Lane {
            hold: *hold,
            step: number(1)?.unwrap_or(0),
            run: number(14)?.unwrap_or(0),
            read: Arc::clone(&place),
            done: Arc::clone(&place),
            written: place,
            suspects: snapshot(6)?.zip(number(7)?),
            noted: text(6)?.is_some(),
            left: false,
        };
        Ok(Some(Loaded { lane, moved, adopt: number(11)?.is_none() }))
    }

    pub(super) fn snapshot(&self, text: &str) -> Result<Snapshot> {
        text.parse().map_err(|error| {
            Error::new(
                ErrorKind::Database,
                format!("table {}: a lane's place cannot be read: {error}", self.table),
            )
        })
    }

    async fn adopt(&mut self, connection: &mut PgConnection, holds: &[Hold]) -> Result<()> {
        sqlx::query(self.statements.window.open.adopt.sql())
            .bind(lanes(holds))
            .bind(fences(holds))
            .execute(connection)
            .await
            .map(drop)
            .map_err(|e| self.error(e))
    }

    /// Lanes whose transaction numbers are another cluster's begin anew at what is here now; what was not delivered
    /// there is read once more, by its `seq` and by what that cluster's snapshot said of it. Whether it could be done: for a
    /// moment nobody may write to the table, and who wants to waits for that long, so that it is tried ever more seldom.
    async fn anchor(&mut self, connection: &mut PgConnection, holds: &[Hold]) -> Result<bool> {
        if self.patience.is_to_wait() {
            return Ok(false);
        }
        match self.anchor_once(connection, holds).await {
            Ok(()) => self.patience = Patience::default(),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => {
                self.patience.longer();
                return Ok(false);
            }
            Err(error) => return Err(self.error(error)),
        }
        tracing::warn!(
            table = %self.table, lanes = holds.len(),
            "the table was moved to another cluster: the stream is anchored anew by sequence; some events may be delivered again, none is lost"
        );
        Ok(true)
    }

    // Who no longer waits for this drops the connection, and the transaction with it.
    async fn anchor_once(&mut self, connection: &mut PgConnection, holds: &[Hold]) -> sqlx::Result<()> {
        let mut tx = connection.begin().await?;
        let statements = &self.statements.window.open;
        let wait = format!("{}ms", self.patience.wait().as_millis());
        sqlx::query(PATIENCE).bind(wait).execute(&mut *tx).await?;
        if let Err(error) = sqlx::query(statements.quiet.sql()).execute(&mut *tx).await {
            tx.rollback().await?;
            return Err(error);
        }
        sqlx::query(statements.anchor.sql()).bind(lanes(holds)).bind(fences(holds)).execute(&mut *tx).await?;
        tx.commit().await
    }
}
