//! Looking at a stream: who is blocked, and how the lanes stand: how far they are behind, and what that comes to.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};
use time::OffsetDateTime;
use uuid::Uuid;

use super::PostgresStream;
use super::admin::STATUS_UNPARKED;
use crate::error::Result;
use crate::store::statement::Statement;
use crate::store::stream::{BlockedAggregate, LaneLag};
use crate::store::{Count, Stats, TableName};

// $1 limit, $2 how many that wait are counted, $3 of which events, if not of all.
const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, coalesce(p.last_error, ''), p.settled_at,
       (SELECT count(*) FROM (SELECT FROM {parked_table} AS w
                               WHERE w.key = p.key AND w.position > p.position LIMIT $2 + 1) AS waiting)
  FROM {parked_table} AS p CROSS JOIN LATERAL (SELECT * FROM {table} AS e WHERE e.id = p.id OFFSET 0) AS o
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL AND ($3::uuid[] IS NULL OR p.id = ANY ($3))
 ORDER BY p.settled_at, p.position LIMIT (SELECT $1::bigint)";

// The order of the columns is that of `LaneLook`. $1 how many rows are looked at of each kind: unread ones, those that wait,
// dead ones. There is a row for each lane; in all of them together, a kind of which there is more than was to be looked at has one
// more.
//
// The places are read once: they are few, and the rows are many. What no lane's snapshots show is pending without being compared
// with each of them, and what lies above everything parked is not looked up there. Rows that ended late, below the floor, come
// last where they are found by a range of transactions, which is as long as the backlog: where that alone is more than is looked
// at, nobody goes there. What came from another cluster and was read there or since, whatever its transactions, lies before where
// the lanes have begun. Lane and state are one number, so that rows are grouped by one. The bounds that say nothing, and the
// limits that the planner does not know, let it think of the indexes alone.
const STATE: &str = "
WITH l AS MATERIALIZED (
    SELECT * FROM {placed} AS w
), seen AS MATERIALIZED (
    SELECT CASE WHEN recover IS NOT NULL THEN after_seq
                WHEN target IS NOT NULL THEN greatest(base_seq, after_seq)
                ELSE greatest(base_seq, anchor_seq) END AS floor,
           CASE WHEN recover IS NULL THEN anchor_seq ELSE after_seq END AS begun,
           CASE WHEN target IS NOT NULL AND after_seq >= base_seq THEN target ELSE base END AS snapshot, anchor_seq,
           greatest(pg_snapshot_xmax(base)::text::bigint, pg_snapshot_xmax(target)::text::bigint,
                    pg_snapshot_xmax(noted)::text::bigint) AS latest
      FROM l
), place AS MATERIALIZED (
    SELECT coalesce(min(floor), 0) AS floor, coalesce(min(begun), 0) AS begun, coalesce(min(pg_snapshot_xmax(snapshot)::text::bigint), 0)::text::xid8 AS next,
           coalesce(max(latest), 0)::text::xid8 AS latest, coalesce(max(anchor_seq), 0) AS anchor
      FROM seen
), last AS MATERIALIZED (
    SELECT coalesce(max(seq), 0) AS parked FROM {parked_table}
), unread AS (
    (SELECT r.*
       FROM (SELECT DISTINCT running FROM seen, LATERAL pg_snapshot_xip(snapshot) AS running) AS x
      CROSS JOIN LATERAL (
            SELECT o.lane, o.seq, o.xid, o.created_at, o.available_at FROM {table} AS o
             WHERE o.xid = x.running AND o.seq BETWEEN 1 + (SELECT begun FROM place) AND (SELECT floor FROM place) AND {unparked}
             ORDER BY o.seq LIMIT (SELECT $1 + 1)) AS r)
    UNION ALL
    (SELECT o.lane, o.seq, o.xid, o.created_at, o.available_at FROM {table} AS o
      WHERE o.seq BETWEEN 1 + (SELECT floor FROM place) AND 9223372036854775807 AND {unparked}
      ORDER BY o.seq LIMIT (SELECT $1 + 1))
    UNION ALL
    (SELECT o.lane, o.seq, o.xid, o.created_at, o.available_at FROM {table} AS o
      WHERE o.xid BETWEEN (SELECT next FROM place) AND '9223372036854775807'::xid8
        AND o.seq BETWEEN 1 + (SELECT begun FROM place) AND (SELECT floor FROM place) AND {unparked}
      ORDER BY o.seq + 0 LIMIT (SELECT $1 + 1))
), told AS (
    SELECT s.told, count(*) AS n, min(s.created_at) AS oldest, min(s.available_at) AS due
      FROM (SELECT o.created_at, o.available_at,
                   o.lane * 4 + CASE WHEN o.xid >= (SELECT latest FROM place) AND o.seq > (SELECT anchor FROM place) THEN 1
                                     ELSE CASE {status_unparked} WHEN 'pending' THEN 1 WHEN 'processing' THEN 2 ELSE 0 END
                                END AS told
              FROM (SELECT * FROM unread LIMIT (SELECT $1 + 1)) AS o JOIN l ON l.lane = o.lane OFFSET 0) AS s
     GROUP BY s.told
), counted AS (
    SELECT told / 4 AS lane, sum(n)::bigint AS n, coalesce(sum(n) FILTER (WHERE told % 4 = 1), 0)::bigint AS pending,
           coalesce(sum(n) FILTER (WHERE told % 4 = 2), 0)::bigint AS processing, min(oldest) FILTER (WHERE told % 4 > 0) AS oldest,
           min(due) FILTER (WHERE told % 4 > 0 AND due <= now()) AS due
      FROM told GROUP BY told / 4
), waits AS (
    SELECT p.lane, count(*) AS n, count(*) FILTER (WHERE p.claimed = l.fence AND l.leased_until > now()) AS processing,
           min(p.due) FILTER (WHERE p.due <= now()) AS due
      FROM (SELECT lane, claimed, due FROM {parked_table} WHERE outcome IS NULL ORDER BY position LIMIT (SELECT $1 + 1)) AS p
      JOIN l ON l.lane = p.lane
     GROUP BY p.lane
), dead AS (
    SELECT p.lane, count(*) AS n, count(*) FILTER (WHERE p.blocks AND p.key <> p.id::text) AS blocked
      FROM (SELECT lane, blocks, key, id FROM {parked_table} WHERE outcome = 'dead' ORDER BY id LIMIT (SELECT $1 + 1)) AS p
     GROUP BY p.lane
)
SELECT l.lane, l.owner, coalesce(c.n, 0), coalesce(c.pending, 0), coalesce(c.processing, 0),
       (extract(epoch FROM now() - c.oldest) * 1000000)::bigint,
       (extract(epoch FROM now() - least(c.due, w.due)) * 1000000)::bigint,
       coalesce(w.n, 0), coalesce(w.processing, 0), coalesce(d.n, 0), coalesce(d.blocked, 0),
       clock_timestamp()
  FROM l
  LEFT JOIN counted AS c ON c.lane = l.lane
  LEFT JOIN waits AS w ON w.lane = l.lane
  LEFT JOIN dead AS d ON d.lane = l.lane
 ORDER BY l.lane";

const UNPARKED: &str = "(o.seq > (SELECT parked FROM last)
                  OR (SELECT true FROM {parked_table} AS p WHERE p.seq = o.seq LIMIT 1) IS NULL)";

#[derive(Debug)]
pub(in super::super) struct Statements {
    blocked: Statement,
    state: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| super::statement(table, sql);
        Self {
            blocked: statement(BLOCKED),
            state: statement(STATE)
                .with("{status_unparked}", STATUS_UNPARKED)
                .with_rendered("{unparked}", &statement(UNPARKED)),
        }
    }
}

pub(super) async fn blocked(
    stream: &PostgresStream,
    limit: u32,
    of: Option<&[Uuid]>,
) -> Result<Vec<BlockedAggregate>> {
    /// More that wait behind one event are not counted.
    const MOST_WAITING: u32 = 10_000;
    let rows = sqlx::query(stream.statements.stream.look.blocked.sql())
        .bind(i64::from(limit))
        .bind(i64::from(MOST_WAITING))
        .bind(of)
        .fetch_all(&stream.pool)
        .await
        .map_err(|e| stream.error(e))?;
    let read = |row: &PgRow| {
        Ok(BlockedAggregate {
            namespace: row.try_get(0)?,
            aggregate_type: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            lane: row.try_get::<i16, _>(3)? as u16,
            event_id: row.try_get(4)?,
            topic: row.try_get(5)?,
            reason: row.try_get(6)?,
            since: row.try_get(7)?,
            waiting: Count::of(row.try_get(8)?, MOST_WAITING),
        })
    };
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(|e| stream.error(e))
}

/// How a lane stands, as far as was looked; times are microseconds ago.
struct LaneLook {
    lane: i16,
    owner: Option<String>,
    /// Unread rows that were looked at; some of them have been delivered since.
    looked_at: i64,
    pending: i64,
    processing: i64,
    /// When the oldest of those was written.
    age: Option<i64>,
    /// When the first of what is neither delivered nor dead was due.
    due: Option<i64>,
    /// Parked ones that are not dead.
    waiting: i64,
    waiting_processing: i64,
    dead: i64,
    blocked: i64,
}

/// How a stream stands.
pub(in super::super) struct State {
    pub(in super::super) now: OffsetDateTime,
    lanes: Vec<LaneLook>,
    cap: u32,
}

/// Looks at no more than `cap` rows that are unread, at no more that wait, and at no more dead ones.
pub(in super::super) async fn state(
    connection: &mut PgConnection,
    statements: &Statements,
    cap: u32,
) -> sqlx::Result<State> {
    let rows = sqlx::query(statements.state.sql()).bind(i64::from(cap)).fetch_all(connection).await?;
    let read = |row: &PgRow| {
        Ok(LaneLook {
            lane: row.try_get(0)?,
            owner: row.try_get(1)?,
            looked_at: row.try_get(2)?,
            pending: row.try_get(3)?,
            processing: row.try_get(4)?,
            age: row.try_get(5)?,
            due: row.try_get(6)?,
            waiting: row.try_get(7)?,
            waiting_processing: row.try_get(8)?,
            dead: row.try_get(9)?,
            blocked: row.try_get(10)?,
        })
    };
    let Some(row) = rows.first() else { return Err(sqlx::Error::RowNotFound) };
    Ok(State { now: row.try_get(11)?, lanes: rows.iter().map(read).collect::<sqlx::Result<_>>()?, cap })
}

impl State {
    pub(in super::super) fn stats(&self) -> Stats {
        let open = self.sum(|lane| lane.looked_at + lane.waiting);
        let processing = self.sum(|lane| lane.processing + lane.waiting_processing);
        let pending = self.sum(|lane| lane.pending + lane.waiting - lane.waiting_processing);
        Stats {
            pending: Count::among(open, pending, self.cap),
            processing: Count::among(open, processing, self.cap),
            dead: Count::of(self.sum(|lane| lane.dead), self.cap),
            oldest_age: self.lanes.iter().filter_map(|lane| lane.due).max().map(ago),
        }
    }

    pub(in super::super) fn lags(&self) -> Vec<LaneLag> {
        let most = i64::from(self.cap);
        let behind = self.sum(|lane| lane.looked_at) > most;
        let parked = self.sum(|lane| lane.waiting) > most || self.sum(|lane| lane.dead) > most;
        let count = |n: i64, capped| Count { n: u64::try_from(n.min(most)).unwrap_or(0), capped };
        let lag = |lane: &LaneLook| LaneLag {
            lane: lane.lane as u16,
            owner: lane.owner.clone(),
            events: count(lane.pending + lane.processing, behind),
            age: lane.age.map(ago),
            parked: count(lane.waiting + lane.dead, parked),
            blocked: count(lane.blocked, parked),
        };
        self.lanes.iter().map(lag).collect()
    }

    fn sum(&self, of: impl Fn(&LaneLook) -> i64) -> i64 {
        self.lanes.iter().map(of).sum()
    }
}

fn ago(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0).unsigned_abs())
}

pub(super) async fn lag(stream: &PostgresStream, cap: u32) -> Result<Vec<LaneLag>> {
    let mut connection = stream.pool.acquire().await.map_err(|e| stream.error(e))?;
    let state = state(&mut connection, &stream.statements.stream.look, cap).await;
    Ok(state.map_err(|e| stream.error(e))?.lags())
}
