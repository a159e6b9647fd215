//! What is blocked, and how far each lane is behind.

use serde_json::json;
use sqlx::Row as _;
use uuid::Uuid;

use super::super::time_of;
use super::{SqliteStream, id};
use crate::store::statement::Statement;
use crate::store::stream::behind::{Counted, MOST_WAITING};
use crate::store::stream::place::lane;
use crate::store::stream::{BlockedAggregate, LaneLag};
use crate::store::{Count, Dialect, TableName};

// ?1 limit, ?2 of which events, if not of all.
const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, coalesce(p.last_error, ''),
       coalesce(p.settled_at, p.parked_at), p.key, p.position
  FROM {parked_table} AS p
  JOIN {table} AS o ON o.seq = p.seq
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL
   AND (?2 IS NULL OR p.id IN (SELECT value FROM json_each(?2)))
   AND NOT EXISTS (SELECT 1 FROM {parked_table} AS b
                    WHERE b.key = p.key AND b.blocks AND b.outcome = 'dead' AND b.position < p.position)
 ORDER BY p.settled_at, p.position
 LIMIT ?1";

const WAITING: &str = "
SELECT count(*)
  FROM (SELECT 1 FROM {parked_table} WHERE key = ?1 AND position > ?2 AND blocks AND outcome IS NULL LIMIT ?3)";

const OWNERS: &str = "SELECT lane, owner FROM {lanes_table} ORDER BY lane";

const LAG: &str = "
SELECT lane, count(*), {now} - min(created_at)
  FROM (SELECT lane, created_at FROM {table} WHERE outcome IS NULL ORDER BY seq LIMIT ?1)
 GROUP BY lane";

const PARKED: &str = "
SELECT lane, count(*) FROM (SELECT lane FROM {parked_table} ORDER BY position LIMIT ?1) GROUP BY lane";

const DEAD: &str = "
SELECT lane, count(DISTINCT key), count(*)
  FROM (SELECT lane, key FROM {parked_table} WHERE outcome = 'dead' AND blocks LIMIT ?1)
 GROUP BY lane";

#[derive(Debug)]
pub(super) struct Statements {
    blocked: Statement,
    waiting: Statement,
    owners: Statement,
    lag: Statement,
    parked: Statement,
    dead: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        Self {
            blocked: statement(BLOCKED),
            waiting: statement(WAITING),
            owners: statement(OWNERS),
            lag: statement(LAG),
            parked: statement(PARKED),
            dead: statement(DEAD),
        }
    }
}

pub(super) async fn blocked(
    stream: &SqliteStream,
    limit: u32,
    of: Option<&[Uuid]>,
) -> sqlx::Result<Vec<BlockedAggregate>> {
    let named = of.map(|ids| json!(ids.iter().map(Uuid::to_string).collect::<Vec<_>>()).to_string());
    let mut connection = stream.pool.acquire().await?;
    let rows = sqlx::query(stream.statements.look.blocked.sql())
        .bind(limit)
        .bind(named)
        .fetch_all(&mut *connection)
        .await?;
    let mut blocked = Vec::with_capacity(rows.len());
    for row in &rows {
        let waiting = sqlx::query_scalar(stream.statements.look.waiting.sql())
            .bind(row.try_get::<String, _>(8)?)
            .bind(row.try_get::<i64, _>(9)?)
            .bind(i64::from(MOST_WAITING) + 1)
            .fetch_one(&mut *connection)
            .await?;
        blocked.push(BlockedAggregate {
            namespace: row.try_get(0)?,
            aggregate_type: row.try_get(1)?,
            aggregate_id: row.try_get(2)?,
            lane: lane(row.try_get(3)?),
            event_id: id(row, 4)?,
            topic: row.try_get(5)?,
            reason: row.try_get(6)?,
            since: time_of(row.try_get(7)?)?,
            waiting: Count::of(waiting, MOST_WAITING),
        });
    }
    Ok(blocked)
}

pub(super) async fn lag(stream: &SqliteStream, cap: u32) -> sqlx::Result<Vec<LaneLag>> {
    let statements = &stream.statements.look;
    let most = i64::from(cap) + 1;
    let mut connection = stream.pool.acquire().await?;
    let owners: Vec<(i64, Option<String>)> =
        sqlx::query_as(statements.owners.sql()).fetch_all(&mut *connection).await?;
    let events: Vec<(i64, i64, Option<i64>)> =
        sqlx::query_as(statements.lag.sql()).bind(most).fetch_all(&mut *connection).await?;
    let parked: Vec<(i64, i64)> =
        sqlx::query_as(statements.parked.sql()).bind(most).fetch_all(&mut *connection).await?;
    let dead: Vec<(i64, i64, i64)> =
        sqlx::query_as(statements.dead.sql()).bind(most).fetch_all(&mut *connection).await?;
    let counted = Counted {
        events: events.into_iter().map(|(number, rows, age)| (lane(number), (rows, age))).collect(),
        parked: parked.into_iter().map(|(number, rows)| (lane(number), rows)).collect(),
        dead: dead.into_iter().map(|(number, keys, rows)| (lane(number), (keys, rows))).collect(),
    };
    Ok(counted.lag(owners.into_iter().map(|(number, owner)| (lane(number), owner)), cap))
}
