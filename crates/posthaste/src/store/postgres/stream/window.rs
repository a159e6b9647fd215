//! Reading a stream: the window between two snapshots.
//!
//! A lane was read up to a snapshot, its *base*. What is new is what the server shows now and the base did not: rows
//! of transactions that had not ended then. They are read in the order of `seq`, which for an aggregate whose writers
//! conflict on a row is the order of their commits, in pages; a window that does not fit one page has its end fixed as
//! its *target*, so that its pages are parts of one whole. Nothing is waited for: a transaction that is open for long
//! shows up in the window in which it ends.
//!
//! Nothing is written to a row. Before a page is given out, its lanes get a note of it in one statement, which also
//! says how far everything before it is done; it counts the steps of each lane, so that an owner whose memory and
//! database differ (another owner, a crash that lost the last writes, another server) finds out before it delivers
//! anything. The page and its note go through one connection: they are of the same server.
//!
//! `base_seq` only makes reading cheap: rows above it are found by `seq`, the few below it by `xid`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgRow};
use sqlx::{Postgres, Row as _};
use tokio::time::Instant;

use super::super::errors::classify;
use super::super::{EVENT_COLUMNS, PLACED, decode};
use super::snapshot::Snapshot;
use crate::error::{Error, ErrorKind, Result};
use crate::store::statement::Statement;
use crate::store::stream::{Hold, Page, Reader, Row};
use crate::store::{Dialect, Keep, TableName};

/// How often lanes in which nothing happens are written down.
const REFRESH: Duration = Duration::from_secs(10);

/// The columns of a page, in the order of [`read_row`]. A row may have been written after the statement began, and be
/// shown: by the time of the beginning it would be taken for delayed, and lose its place.
const COLUMNS: &str = "{columns}, seq, created_at, lane, available_at > clock_timestamp() AS delayed";

// $1 and $2: from which transaction on none had ended in the base, and which below had not. $3 base_seq, $4 limit, $5 lanes,
// $6 the seq after which to read, $7 the target, or null for now. What lies below base_seq is found by its transaction. The
// bounds that say nothing, and the order by a sum, keep the planner from reading all of it in the order of seq instead.
const LATE: &str = "
SELECT p.*, s.now::text
  FROM {said}
  LEFT JOIN LATERAL (
       SELECT * FROM (
           (SELECT {page} FROM {table}
             WHERE xid = ANY (s.running)
               AND seq BETWEEN $6 + 1 AND $3 AND lane = ANY ($5) AND {within}
             ORDER BY seq + 0 LIMIT $4)
           UNION ALL
           (SELECT {page} FROM {table}
             WHERE xid BETWEEN s.next AND '9223372036854775807'::xid8
               AND seq BETWEEN $6 + 1 AND $3 AND lane = ANY ($5) AND {within}
             ORDER BY seq + 0 LIMIT $4)
           UNION ALL
           (SELECT {page} FROM {table}
             WHERE seq > greatest($3, $6) AND {fresh} AND lane = ANY ($5) AND {within}
             ORDER BY seq LIMIT $4)) AS u
        ORDER BY seq LIMIT $4) AS p ON true";

// The same where nothing below base_seq is left.
const FRESH: &str = "
SELECT p.*, s.now::text
  FROM {said}
  LEFT JOIN LATERAL (
       SELECT {page} FROM {table}
        WHERE seq > greatest($3, $6) AND {fresh} AND lane = ANY ($5) AND {within}
        ORDER BY seq LIMIT $4) AS p ON true";

// Read once, not for every row: the offset keeps the planner from putting each where it is used.
const SAID: &str = "
       (SELECT pg_current_snapshot() AS now, $1::text::xid8 AS next, $2::text[]::xid8[] AS running,
               $7::text::pg_snapshot AS target OFFSET 0) AS s";

const IS_FRESH: &str = "(xid >= s.next OR xid = ANY (s.running))";

const WITHIN: &str = "(s.target IS NULL OR pg_visible_in_snapshot(xid, s.target))";

// What was restored from another cluster: $1 the snapshot and $2 the seq up to which it was delivered there, $3 the anchor,
// $4 limit, $5 lanes, $6 the seq after which to read.
const RECOVER: &str = "
SELECT p.*, s.now::text
  FROM (SELECT pg_current_snapshot() AS now, $1::text::pg_snapshot AS delivered OFFSET 0) AS s
  LEFT JOIN LATERAL (
       SELECT {page} FROM {table}
        WHERE seq > $6 AND seq <= $3 AND lane = ANY ($5)
          AND (seq > $2 OR NOT pg_visible_in_snapshot(xid, s.delivered))
        ORDER BY seq LIMIT $4) AS p ON true";

const LOAD: &str = "
SELECT l.lane, l.step, l.base::text, l.base_seq, l.target::text, l.after_seq, l.noted::text, l.noted_seq,
       l.anchor_seq, l.recover::text, l.recover_seq, l.system_id, {system_id}, pg_current_snapshot()::text
  FROM {placed} AS l
  JOIN unnest($1::smallint[], $2::bigint[]) AS h(held, held_fence) ON h.held = l.lane AND h.held_fence = l.fence
 ORDER BY l.lane";

const SYSTEM_ID: &str = "(SELECT system_identifier FROM pg_control_system())";

// One small write per page, whatever is in it. It goes on from the step before it or not at all; the lanes are locked in their
// order, as by whoever takes them. Some steps are kept: who looks on meanwhile may have seen that they were the last.
const WRITE: &str = "
WITH said AS (
    SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[],
                         $8::text[], $9::bigint[], $10::text[], $11::bigint[], $12::bigint[])
               AS s(lane, fence, step, base, base_seq, target, after_seq, noted, noted_seq, recover, recover_seq, anchor_seq)
     WHERE (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL
), held AS (
    SELECT l.lane FROM {lanes_table} AS l
     WHERE (l.lane, l.fence) IN (SELECT said.lane, said.fence FROM said)
     ORDER BY l.lane FOR SHARE
), forgotten AS (
    DELETE FROM {places_table} AS p USING said
     WHERE p.lane = said.lane AND p.step = said.step - 8 AND p.lane IN (SELECT lane FROM held)
       AND EXISTS (SELECT FROM {places_table} AS before WHERE before.lane = said.lane AND before.step = said.step)
)
INSERT INTO {places_table} (lane, step, base, base_seq, target, after_seq, noted, noted_seq, recover, recover_seq, anchor_seq)
SELECT said.lane, said.step + 1, said.base::pg_snapshot, said.base_seq, said.target::pg_snapshot, said.after_seq,
       said.noted::pg_snapshot, said.noted_seq, said.recover::pg_snapshot, said.recover_seq, said.anchor_seq
  FROM said
  JOIN held ON held.lane = said.lane
  JOIN {places_table} AS before ON before.lane = said.lane AND before.step = said.step
ON CONFLICT (lane, step) DO NOTHING
RETURNING lane";

// Waits for who writes to the table now, but not long: everybody else would wait behind.
const QUIET: &str = "
SET LOCAL lock_timeout = '2s';
LOCK TABLE {table} IN SHARE MODE";

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
pub(in super::super) struct Statements {
    late: Statement,
    fresh: Statement,
    recover: Statement,
    load: Statement,
    write: Statement,
    quiet: Statement,
    anchor: Statement,
    adopt: Statement,
}

impl Statements {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let statement = |sql| {
            Statement::new(Dialect::Postgres, table, sql)
                .with_rendered("{placed}", &Statement::new(Dialect::Postgres, table, PLACED))
                .with("{said}", SAID)
                .with("{page}", COLUMNS)
                .with("{columns}", EVENT_COLUMNS)
                .with("{fresh}", IS_FRESH)
                .with("{within}", WITHIN)
                .with("{system_id}", SYSTEM_ID)
        };
        Self {
            late: statement(LATE),
            fresh: statement(FRESH),
            recover: statement(RECOVER),
            load: statement(LOAD),
            write: statement(WRITE),
            quiet: statement(QUIET),
            anchor: statement(ANCHOR),
            adopt: statement(ADOPT),
        }
    }
}

/// How far a lane is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Everything it shows was read.
    base: Snapshot,
    base_seq: i64,
    /// Rows up to it are read by what `Part::Recovery` says, or were.
    anchor: i64,
    part: Part,
}

/// Of what comes after the base, what was read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Nothing,
    /// What the target shows, up to this `seq`.
    Window {
        target: Snapshot,
        after: i64,
    },
    /// Of what came from another cluster, up to this `seq`; the base is not begun before all of it is read.
    Recovery {
        delivered: Snapshot,
        delivered_seq: i64,
        after: i64,
    },
}

impl Place {
    /// Whether what comes after it is the same.
    fn is_at(&self, other: &Self) -> bool {
        (&self.base, self.anchor, &self.part) == (&other.base, other.anchor, &other.part)
    }

    /// Whether nothing is half read.
    fn is_whole(&self) -> bool {
        self.part == Part::Nothing
    }

    /// Up to where its rows are under way, while it is not done.
    fn noted(&self) -> (Snapshot, i64) {
        match &self.part {
            Part::Nothing => (self.base.clone(), i64::MAX),
            Part::Window { target, after } => (target.clone(), *after),
            Part::Recovery { after, .. } => (self.base.clone(), *after),
        }
    }
}

/// One lane of this reader.
struct Lane {
    hold: Hold,
    step: i64,
    read: Arc<Place>,
    done: Arc<Place>,
    /// What was under way when the owner before ended uncleanly.
    suspects: Option<(Snapshot, i64)>,
    /// What the database has.
    written: Arc<Place>,
    /// Whether it has a note of something under way.
    noted: bool,
    /// Whether nothing more is to be read.
    left: bool,
}

/// A page that is under way.
struct UnderWay {
    number: u64,
    lanes: Vec<u16>,
    before: Arc<Place>,
    place: Arc<Place>,
    finished: bool,
}

pub(super) struct WindowReader {
    pool: PgPool,
    table: TableName,
    statements: Arc<super::super::Statements>,
    lanes: BTreeMap<u16, Lane>,
    pages: VecDeque<UnderWay>,
    next_page: u64,
    refreshed: Instant,
}

impl WindowReader {
    pub(super) fn new(pool: PgPool, table: TableName, statements: Arc<super::super::Statements>) -> Self {
        Self {
            pool,
            table,
            statements,
            lanes: BTreeMap::new(),
            pages: VecDeque::new(),
            next_page: 1,
            refreshed: Instant::now(),
        }
    }

    async fn connection(&self) -> Result<PoolConnection<Postgres>> {
        self.pool.acquire().await.map_err(|e| self.error(e))
    }

    fn error(&self, error: sqlx::Error) -> Error {
        classify(error, &self.table)
    }

    /// The lanes that are furthest behind and at the same place, and up to where to read them: where others are
    /// further, only as far as those are, after which all are read together.
    fn behind(&self) -> Option<(Vec<u16>, Arc<Place>, Option<Snapshot>)> {
        let order = |a: &&Lane, b: &&Lane| {
            a.read.base.order(&b.read.base).then(b.read.is_whole().cmp(&a.read.is_whole()))
        };
        let first = self.lanes.values().filter(|lane| !lane.left).min_by(order)?;
        let suspects = first.suspects.clone();
        let together: Vec<&Lane> = self
            .lanes
            .values()
            .filter(|lane| !lane.left && lane.read.is_at(&first.read) && lane.suspects == suspects)
            .collect();
        let lanes = together.iter().map(|lane| lane.hold.lane).collect();
        let lowest = together.iter().min_by_key(|lane| lane.read.base_seq)?;
        let place = Arc::clone(&lowest.read);
        let until = match &place.part {
            Part::Window { target, .. } => Some(target.clone()),
            Part::Recovery { .. } => None,
            Part::Nothing => match suspects {
                Some((noted, _)) if noted.order(&place.base).is_gt() => Some(noted),
                _ => {
                    let others = self
                        .lanes
                        .values()
                        .filter(|lane| !lane.left && lane.read.base.order(&place.base).is_gt());
                    others.map(|lane| &lane.read.base).min_by(|a, b| a.order(b)).cloned()
                }
            },
        };
        Some((lanes, place, until))
    }

    /// Reads some rows from a place; answers with the place after them, too.
    async fn rows_from(
        &self,
        connection: &mut PgConnection,
        lanes: &[u16],
        place: &Place,
        until: Option<&Snapshot>,
        limit: u32,
    ) -> Result<(Vec<PgRow>, Place)> {
        let (next, running) = (place.base.next(), place.base.running());
        let numbers: Vec<i16> = lanes.iter().map(|lane| *lane as i16).collect();
        let after = match &place.part {
            Part::Nothing => place.anchor,
            Part::Window { after, .. } | Part::Recovery { after, .. } => *after,
        };
        let until_text = until.map(Snapshot::to_string);
        let statements = &self.statements.window;
        let rows = match &place.part {
            Part::Recovery { delivered, delivered_seq, .. } => {
                sqlx::query(statements.recover.sql())
                    .bind(delivered.to_string())
                    .bind(delivered_seq)
                    .bind(place.anchor)
                    .bind(i64::from(limit))
                    .bind(&numbers)
                    .bind(after)
                    .fetch_all(connection)
                    .await
            }
            _ if after >= place.base_seq => {
                sqlx::query(statements.fresh.sql())
                    .bind(&next)
                    .bind(&running)
                    .bind(place.base_seq)
                    .bind(i64::from(limit))
                    .bind(&numbers)
                    .bind(after)
                    .bind(&until_text)
                    .fetch_all(connection)
                    .await
            }
            _ => {
                sqlx::query(statements.late.sql())
                    .bind(&next)
                    .bind(&running)
                    .bind(place.base_seq)
                    .bind(i64::from(limit))
                    .bind(&numbers)
                    .bind(after)
                    .bind(&until_text)
                    .fetch_all(connection)
                    .await
            }
        };
        let mut rows = rows.map_err(|e| self.error(e))?;
        let now =
            self.snapshot(rows.first().map_or(Ok(""), |row| row.try_get(19)).map_err(|e| self.error(e))?)?;
        if rows.first().is_some_and(|row| matches!(row.try_get::<Option<i64>, _>(15), Ok(None))) {
            rows.clear();
        }
        let last = match rows.last() {
            Some(row) => row.try_get(15).map_err(|e| self.error(e))?,
            None => after,
        };
        let full = rows.len() >= limit as usize;
        let target = until.cloned().unwrap_or(now);
        let place = match &place.part {
            Part::Recovery { delivered, delivered_seq, .. } if full => Place {
                part: Part::Recovery {
                    delivered: delivered.clone(),
                    delivered_seq: *delivered_seq,
                    after: last,
                },
                ..place.clone()
            },
            Part::Recovery { .. } => Place { part: Part::Nothing, ..place.clone() },
            _ if full => Place { part: Part::Window { target, after: last }, ..place.clone() },
            _ => Place {
                base: target,
                base_seq: place.base_seq.max(last),
                anchor: place.anchor,
                part: Part::Nothing,
            },
        };
        Ok((rows, place))
    }

    /// Writes how far these lanes are and what is under way; answers with those that are no longer this reader's.
    async fn write(
        &mut self,
        connection: &mut PgConnection,
        lanes: &[u16],
        noted: Option<&Place>,
    ) -> Result<Vec<u16>> {
        let lanes: Vec<&Lane> = lanes.iter().filter_map(|lane| self.lanes.get(lane)).collect();
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let said = |of: &dyn Fn(&Place) -> Option<String>| {
            lanes.iter().map(|lane| of(&lane.done)).collect::<Vec<_>>()
        };
        let numbers =
            |of: &dyn Fn(&Place) -> Option<i64>| lanes.iter().map(|lane| of(&lane.done)).collect::<Vec<_>>();
        let noted: Vec<Option<(Snapshot, i64)>> =
            lanes.iter().map(|lane| self.noted_of(lane, noted)).collect();
        let written: Vec<i16> = sqlx::query_scalar(self.statements.window.write.sql())
            .bind(lanes.iter().map(|lane| lane.hold.lane as i16).collect::<Vec<_>>())
            .bind(lanes.iter().map(|lane| lane.hold.fence).collect::<Vec<_>>())
            .bind(lanes.iter().map(|lane| lane.step).collect::<Vec<_>>())
            .bind(said(&|place| Some(place.base.to_string())))
            .bind(numbers(&|place| Some(place.base_seq)))
            .bind(said(&|place| match &place.part {
                Part::Window { target, .. } => Some(target.to_string()),
                _ => None,
            }))
            .bind(numbers(&|place| match &place.part {
                Part::Nothing => Some(place.anchor),
                Part::Window { after, .. } | Part::Recovery { after, .. } => Some(*after),
            }))
            .bind(
                noted
                    .iter()
                    .map(|noted| noted.as_ref().map(|(snapshot, _)| snapshot.to_string()))
                    .collect::<Vec<_>>(),
            )
            .bind(noted.iter().map(|noted| noted.as_ref().map(|(_, seq)| *seq)).collect::<Vec<_>>())
            .bind(said(&|place| match &place.part {
                Part::Recovery { delivered, .. } => Some(delivered.to_string()),
                _ => None,
            }))
            .bind(numbers(&|place| match &place.part {
                Part::Recovery { delivered_seq, .. } => Some(*delivered_seq),
                _ => None,
            }))
            .bind(numbers(&|place| Some(place.anchor)))
            .fetch_all(connection)
            .await
            .map_err(|e| self.error(e))?;
        let asked: Vec<u16> = lanes.iter().map(|lane| lane.hold.lane).collect();
        let mut lost = Vec::new();
        for (lane, noted) in asked.into_iter().zip(noted) {
            match self.lanes.get_mut(&lane) {
                Some(held) if written.contains(&(lane as i16)) => {
                    held.step += 1;
                    held.noted = noted.is_some();
                    held.written = Arc::clone(&held.done);
                }
                _ => lost.push(lane),
            }
        }
        Ok(lost)
    }

    /// What of a lane is under way, counting a page that is about to be.
    fn noted_of(&self, lane: &Lane, next: Option<&Place>) -> Option<(Snapshot, i64)> {
        let is_under_way = |page: &&UnderWay| page.lanes.contains(&lane.hold.lane);
        let last = self.pages.iter().rev().find(is_under_way).map(|page| &*page.place);
        let under_way = next.or(last).map(Place::noted);
        let reach = |a: &(Snapshot, i64), b: &(Snapshot, i64)| a.0.order(&b.0).then(a.1.cmp(&b.1));
        under_way.into_iter().chain(lane.suspects.clone()).max_by(reach)
    }

    /// These lanes have no part in what is under way.
    fn forget(&mut self, lanes: &[u16]) {
        for page in &mut self.pages {
            page.lanes.retain(|lane| !lanes.contains(lane));
            page.finished |= page.lanes.is_empty();
        }
        self.advance();
    }

    /// Moves `done` over the pages that are finished, up to the first that is not.
    fn advance(&mut self) {
        while self.pages.front().is_some_and(|page| page.finished) {
            let Some(page) = self.pages.pop_front() else { return };
            for lane in &page.lanes {
                if let Some(lane) = self.lanes.get_mut(lane)
                    && lane.done.is_at(&page.before)
                {
                    lane.done = Arc::clone(&page.place);
                }
            }
        }
    }

    fn snapshot(&self, text: &str) -> Result<Snapshot> {
        text.parse().map_err(|error| {
            Error::new(
                ErrorKind::Database,
                format!("table {}: a lane's place cannot be read: {error}", self.table),
            )
        })
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
            read: Arc::clone(&place),
            done: Arc::clone(&place),
            written: place,
            suspects: snapshot(6)?.zip(number(7)?),
            noted: text(6)?.is_some(),
            left: false,
        };
        Ok(Some(Loaded { lane, moved, adopt: number(11)?.is_none() }))
    }

    async fn load(&self, holds: &[Hold]) -> Result<Vec<Loaded>> {
        let rows = sqlx::query(self.statements.window.load.sql())
            .bind(holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        rows.iter().filter_map(|row| self.read_lane(row, holds).transpose()).collect()
    }

    /// Lanes whose transaction numbers are another cluster's begin anew at what is here now; what was not delivered
    /// there is read once more, by its `seq` and by what that cluster's snapshot said of it.
    async fn anchor(&self, holds: &[Hold]) -> Result<()> {
        let mut tx = self.pool.begin().await.map_err(|e| self.error(e))?;
        sqlx::raw_sql(self.statements.window.quiet.sql())
            .execute(&mut *tx)
            .await
            .map_err(|e| self.error(e))?;
        sqlx::query(self.statements.window.anchor.sql())
            .bind(holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await
            .map_err(|e| self.error(e))?;
        tx.commit().await.map_err(|e| self.error(e))?;
        tracing::warn!(
            table = %self.table, lanes = holds.len(),
            "the table was moved to another cluster: the stream is anchored anew by sequence; some events may be delivered again, none is lost"
        );
        Ok(())
    }

    async fn adopt(&self, holds: &[Hold]) -> Result<()> {
        sqlx::query(self.statements.window.adopt.sql())
            .bind(holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|e| self.error(e))
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

#[async_trait]
impl Reader for WindowReader {
    async fn open(&mut self, holds: &[Hold]) -> Result<()> {
        let mut loaded = self.load(holds).await?;
        let of = |loaded: &[Loaded], which: fn(&Loaded) -> bool| -> Vec<Hold> {
            loaded.iter().filter(|loaded| which(loaded)).map(|loaded| loaded.lane.hold).collect()
        };
        let adopted = of(&loaded, |loaded| loaded.adopt);
        if !adopted.is_empty() {
            self.adopt(&adopted).await?;
        }
        let moved = of(&loaded, |loaded| loaded.moved);
        if !moved.is_empty() {
            self.anchor(&moved).await?;
            loaded = self.load(holds).await?;
        }
        self.lanes.extend(loaded.into_iter().map(|loaded| (loaded.lane.hold.lane, loaded.lane)));
        Ok(())
    }

    fn leave(&mut self, lanes: &[u16]) {
        self.lanes
            .values_mut()
            .filter(|lane| lanes.contains(&lane.hold.lane))
            .for_each(|lane| lane.left = true);
    }

    fn finished(&mut self, lanes: &[u16]) {
        self.forget(lanes);
        for lane in self.lanes.values_mut().filter(|lane| lanes.contains(&lane.hold.lane)) {
            lane.done = Arc::clone(&lane.read);
        }
    }

    fn close(&mut self, lanes: &[u16]) {
        self.lanes.retain(|lane, _| !lanes.contains(lane));
        self.forget(lanes);
    }

    async fn read(&mut self, limit: u32) -> Result<Page> {
        let stale = self.refresh().await?;
        let Some((lanes, before, until)) = self.behind() else {
            return Ok(Page { lost: stale, ..Page::default() });
        };
        let mut connection = self.connection().await?;
        let (rows, place) = self.rows_from(&mut connection, &lanes, &before, until.as_ref(), limit).await?;
        // Caught up only with other lanes, or with the end of what is half read: there may be more.
        let more = !place.is_whole() || until.is_some() || before.part != Part::Nothing;
        let place = Arc::new(place);
        let suspects =
            lanes.first().and_then(|lane| self.lanes.get(lane)).and_then(|lane| lane.suspects.clone());
        let reaches = place.noted();
        let window = place.noted().0;
        let mut rows = self.decode(&rows, |sequence| {
            suspects.as_ref().is_some_and(|(noted, last)| window.order(noted).is_lt() || sequence <= *last)
        })?;
        let touched: Vec<u16> = {
            let mut touched: Vec<u16> = rows.iter().map(|row| row.hold.lane).collect();
            touched.sort_unstable();
            touched.dedup();
            touched
        };
        let mut lost = self.write(&mut connection, &touched, Some(&place)).await?;
        drop(connection);
        self.close(&lost);
        rows.retain(|row| !lost.contains(&row.hold.lane));
        lost.extend(stale);
        let lanes: Vec<u16> = lanes.into_iter().filter(|lane| !lost.contains(lane)).collect();
        for lane in &lanes {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.read = Arc::clone(&place);
                if lane
                    .suspects
                    .as_ref()
                    .is_some_and(|(noted, last)| reaches.0.order(noted).then(reaches.1.cmp(last)).is_ge())
                {
                    lane.suspects = None;
                }
            }
        }
        let number = self.next_page;
        self.next_page += 1;
        let empty = rows.is_empty();
        self.pages.push_back(UnderWay { number, lanes, before, place, finished: empty });
        self.advance();
        Ok(Page { number, rows, lost, more })
    }

    async fn settle(&mut self, _delivered: &[(Hold, i64)], pages: &[u64], _keep: Keep) -> Result<Vec<u16>> {
        for page in self.pages.iter_mut().filter(|page| pages.contains(&page.number)) {
            page.finished = true;
        }
        self.advance();
        if self.pages.is_empty() { self.flush().await } else { Ok(Vec::new()) }
    }

    async fn flush(&mut self) -> Result<Vec<u16>> {
        let lanes: Vec<u16> =
            self.lanes.values().filter(|lane| lane.noted).map(|lane| lane.hold.lane).collect();
        self.write_all(&lanes).await
    }
}

impl WindowReader {
    /// Writes how far these lanes are.
    async fn write_all(&mut self, lanes: &[u16]) -> Result<Vec<u16>> {
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.connection().await?;
        let lost = self.write(&mut connection, lanes, None).await?;
        self.close(&lost);
        Ok(lost)
    }

    /// Lanes in which nothing happens are written down now and then: whoever looks at the table sees how far they are.
    async fn refresh(&mut self) -> Result<Vec<u16>> {
        if self.refreshed.elapsed() < REFRESH {
            return Ok(Vec::new());
        }
        self.refreshed = Instant::now();
        let behind = self.lanes.values().filter(|lane| !lane.written.is_at(&lane.done));
        let behind: Vec<u16> = behind.map(|lane| lane.hold.lane).collect();
        self.write_all(&behind).await
    }

    fn decode(&self, rows: &[PgRow], suspect: impl Fn(i64) -> bool) -> Result<Vec<Row>> {
        rows.iter().map(|row| self.read_row(row, &suspect).map_err(|e| self.error(e))).collect()
    }

    fn read_row(&self, row: &PgRow, suspect: &impl Fn(i64) -> bool) -> sqlx::Result<Row> {
        let (sequence, lane): (i64, i16) = (row.try_get(15)?, row.try_get(17)?);
        let lane = lane as u16;
        Ok(Row {
            hold: self.lanes.get(&lane).map_or(Hold { lane, fence: 0 }, |lane| lane.hold),
            sequence,
            id: row.try_get(0)?,
            topic: row.try_get(1)?,
            created_at: row.try_get(16)?,
            delayed: row.try_get(18)?,
            suspect: suspect(sequence),
            event: decode(row),
        })
    }
}
