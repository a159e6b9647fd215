//! What is blocked, and how far each lane is behind.

use serde_json::json;
use sqlx::Row as _;
use uuid::Uuid;

use super::park::NOT_PARKED;
use super::{MySqlStream, time};
use crate::store::statement::Statement;
use crate::store::stream::behind::{Counted, MOST_WAITING};
use crate::store::stream::place::lane;
use crate::store::stream::{BlockedAggregate, LaneLag};
use crate::store::{Count, Dialect, TableName};

// Whether of all, of which events if not, limit.
const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, COALESCE(p.last_error, ''),
       COALESCE(p.settled_at, p.parked_at), p.`key`, p.position
  FROM {parked_table} AS p
  JOIN {table} AS o ON o.seq = p.seq
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL AND (? OR JSON_CONTAINS(?, JSON_QUOTE(HEX(p.id))))
   AND (SELECT b.position FROM {parked_table} AS b
         WHERE b.`key` = p.`key` AND b.blocks AND b.outcome = 'dead' AND b.position < p.position LIMIT 1) IS NULL
 ORDER BY p.settled_at, p.position
 LIMIT ?";

const WAITING: &str = "
SELECT COUNT(*)
  FROM (SELECT 1 FROM {parked_table}
         WHERE `key` = ? AND position > ? AND blocks AND outcome IS NULL LIMIT ?) AS w";

const OWNERS: &str = "SELECT lane, owner FROM {lanes_table} ORDER BY lane";

const LAG: &str = "
SELECT lane, COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(created_at), UTC_TIMESTAMP(6))
  FROM (SELECT o.lane, o.created_at FROM {table} AS o FORCE INDEX (`{name}_unsettled`)
         WHERE o.outcome IS NULL AND {not_parked} ORDER BY o.seq LIMIT ?) AS l
 GROUP BY lane";

const PARKED: &str = "
SELECT lane, COUNT(*)
  FROM (SELECT lane FROM {parked_table} WHERE NOT (outcome <=> 'delivered') ORDER BY position LIMIT ?) AS l
 GROUP BY lane";

const DEAD: &str = "
SELECT lane, COUNT(DISTINCT `key`), COUNT(*)
  FROM (SELECT lane, `key` FROM {parked_table} WHERE outcome = 'dead' AND blocks LIMIT ?) AS l
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
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        Self {
            blocked: statement(BLOCKED),
            waiting: statement(WAITING),
            owners: statement(OWNERS),
            lag: statement(LAG).with_rendered("{not_parked}", &statement(NOT_PARKED)),
            parked: statement(PARKED),
            dead: statement(DEAD),
        }
    }
}

pub(super) async fn blocked(
    stream: &MySqlStream,
    limit: u32,
    of: Option<&[Uuid]>,
) -> sqlx::Result<Vec<BlockedAggregate>> {
    let named: Vec<String> =
        of.unwrap_or_default().iter().map(|id| id.simple().to_string().to_uppercase()).collect();
    let mut connection = stream.pool.acquire().await?;
    let rows = sqlx::query(stream.statements.look.blocked.sql())
        .bind(of.is_none())
        .bind(json!(named).to_string())
        .bind(limit)
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
            lane: lane(row.try_get::<i16, _>(3)?.into()),
            event_id: row.try_get(4)?,
            topic: row.try_get(5)?,
            reason: row.try_get(6)?,
            since: time(row, 7)?,
            waiting: Count::of(waiting, MOST_WAITING),
        });
    }
    Ok(blocked)
}

pub(super) async fn lag(stream: &MySqlStream, cap: u32) -> sqlx::Result<Vec<LaneLag>> {
    let statements = &stream.statements.look;
    let most = i64::from(cap) + 1;
    let mut connection = stream.pool.acquire().await?;
    let owners: Vec<(i16, Option<String>)> =
        sqlx::query_as(statements.owners.sql()).fetch_all(&mut *connection).await?;
    let events: Vec<(i16, i64, Option<i64>)> =
        sqlx::query_as(statements.lag.sql()).bind(most).fetch_all(&mut *connection).await?;
    let parked: Vec<(i16, i64)> =
        sqlx::query_as(statements.parked.sql()).bind(most).fetch_all(&mut *connection).await?;
    let dead: Vec<(i16, i64, i64)> =
        sqlx::query_as(statements.dead.sql()).bind(most).fetch_all(&mut *connection).await?;
    let lane = |number: i16| lane(number.into());
    let counted = Counted {
        events: events.into_iter().map(|(number, rows, age)| (lane(number), (rows, age))).collect(),
        parked: parked.into_iter().map(|(number, rows)| (lane(number), rows)).collect(),
        dead: dead.into_iter().map(|(number, keys, rows)| (lane(number), (keys, rows))).collect(),
    };
    Ok(counted.lag(owners.into_iter().map(|(number, owner)| (lane(number), owner)), cap))
}
