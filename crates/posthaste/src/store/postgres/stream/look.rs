//! Looking at a stream: who is blocked, and how far lanes are behind.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::PostgresStream;
use crate::error::Result;
use crate::store::statement::Statement;
use crate::store::stream::{BlockedAggregate, LaneLag};
use crate::store::{Count, TableName};

// $1 limit, $2 how many that wait are counted, $3 of which events, if not of all.
const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, coalesce(p.last_error, ''), p.settled_at,
       (SELECT count(*) FROM (SELECT FROM {parked_table} AS w
                               WHERE w.key = p.key AND w.position > p.position LIMIT $2 + 1) AS waiting)
  FROM {parked_table} AS p CROSS JOIN LATERAL (SELECT * FROM {table} AS e WHERE e.id = p.id OFFSET 0) AS o
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL AND ($3::uuid[] IS NULL OR p.id = ANY ($3))
 ORDER BY p.settled_at, p.position LIMIT (SELECT $1::bigint)";

// $1 how many rows are looked at. Rows of transactions that ended late are few and not looked for. The bound that says nothing,
// and the limit that the planner does not know, let it think of the index alone.
const LAG: &str = "
WITH looked_at AS (
    SELECT o.lane, o.created_at, o.xid, o.seq FROM {table} AS o
     WHERE o.seq BETWEEN 1 + (SELECT min(CASE WHEN recover IS NULL THEN greatest(base_seq, after_seq) ELSE after_seq END)
                                FROM {placed} AS l)
                     AND 9223372036854775807
     ORDER BY o.seq LIMIT (SELECT $1 + 1)
), unread AS (
    SELECT o.lane, count(*) AS n, min(o.created_at) AS oldest
      FROM looked_at AS o JOIN {placed} AS l ON l.lane = o.lane
     WHERE NOT (o.seq <= l.anchor_seq AND (l.recover IS NULL OR o.seq <= l.after_seq))
       AND NOT (o.seq > l.anchor_seq AND pg_visible_in_snapshot(o.xid, l.base))
       AND NOT (l.target IS NOT NULL AND o.seq <= l.after_seq AND pg_visible_in_snapshot(o.xid, l.target))
       AND (SELECT true FROM {parked_table} AS p WHERE p.seq = o.seq LIMIT 1) IS NULL
     GROUP BY o.lane
), waits AS (
    SELECT p.lane, count(*) AS n, count(*) FILTER (WHERE p.outcome = 'dead' AND p.blocks AND p.key <> p.id::text) AS blocked
      FROM (SELECT lane, outcome, blocks, key, id FROM {parked_table} LIMIT $1 + 1) AS p GROUP BY p.lane
)
SELECT l.lane, l.owner, coalesce(u.n, 0), (SELECT count(*) FROM looked_at) > $1,
       (extract(epoch FROM clock_timestamp() - u.oldest) * 1000000)::bigint, coalesce(w.n, 0), coalesce(w.blocked, 0),
       (SELECT sum(n) FROM waits) > $1
  FROM {placed} AS l LEFT JOIN unread AS u ON u.lane = l.lane LEFT JOIN waits AS w ON w.lane = l.lane
 ORDER BY l.lane";

#[derive(Debug)]
pub(in super::super) struct Statements {
    blocked: Statement,
    lag: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        Self { blocked: super::statement(table, BLOCKED), lag: super::statement(table, LAG) }
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

pub(super) async fn lag(stream: &PostgresStream, cap: u32) -> Result<Vec<LaneLag>> {
    let rows = sqlx::query(stream.statements.stream.look.lag.sql())
        .bind(i64::from(cap))
        .fetch_all(&stream.pool)
        .await
        .map_err(|e| stream.error(e))?;
    let read = |row: &PgRow| {
        let count = |n: usize, capped: Option<bool>| {
            let n = u64::try_from(row.try_get::<i64, _>(n)?).unwrap_or(0);
            Ok::<_, sqlx::Error>(Count { n: n.min(u64::from(cap)), capped: capped.unwrap_or(false) })
        };
        let micros: Option<i64> = row.try_get(4)?;
        Ok(LaneLag {
            lane: row.try_get::<i16, _>(0)? as u16,
            owner: row.try_get(1)?,
            events: count(2, row.try_get(3)?)?,
            age: micros.map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
            parked: count(5, row.try_get(7)?)?,
            blocked: count(6, row.try_get(7)?)?,
        })
    };
    rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(|e| stream.error(e))
}
