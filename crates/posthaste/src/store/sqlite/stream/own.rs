//! Who lives, who owns which lanes, and under which fence.

use std::collections::HashSet;

use serde_json::json;
use sqlx::sqlite::SqliteConnection;

use super::park::come_up;
use super::read::unsettled;
use super::{SqliteStream, begin};
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::place::{Takes, holds_json, lane, mask};
use crate::store::stream::{Beat, Council, Hold, LaneState, Seen};
use crate::store::{Dialect, TableName, WorkerId};

const JOIN: &str = "
INSERT INTO {relays_table} (relay, until) VALUES (?1, {now} + ?2)
    ON CONFLICT (relay) DO UPDATE SET seen_at = {now}, until = excluded.until";

const RENEW: &str = "
UPDATE {lanes_table}
   SET leased_until = {now} + ?2, present = ?3
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
 WHERE {lanes_table}.lane = h.lane AND {lanes_table}.fence = h.fence AND owner = ?4";

// One that is not heard of for a minute is not coming back.
const FORGET: &str = "DELETE FROM {relays_table} WHERE until < {now} - 60000000";

const RELAYS: &str = "SELECT relay FROM {relays_table} WHERE until > {now} ORDER BY joined_at, relay";

const LANES: &str = "
SELECT lane, fence, owner, owner IS NULL OR leased_until IS NULL OR leased_until <= {now}
  FROM {lanes_table}
 ORDER BY lane";

// One's own lane is free: who takes it does not know of it. A file that was put back from a copy may not know of the last
// owners: what it counts on from was theirs already, and the time was not.
const FREE: &str = "
SELECT lane, fence, max(fence + 1, {now})
  FROM {lanes_table}
 WHERE substr(?1, lane + 1, 1) = '1'
   AND (owner IS NULL OR leased_until IS NULL OR leased_until <= {now} OR owner = ?2
        OR owner IN (SELECT value FROM json_each(?3)))
 ORDER BY lane";

// ?5 the lanes that are continued.
const TAKE: &str = "
UPDATE {lanes_table}
   SET fence = h.fence, owner = ?2, present = ?3, leased_until = {now} + ?4,
       noted_seq = CASE WHEN substr(?5, {lanes_table}.lane + 1, 1) = '1' THEN NULL ELSE noted_seq END
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
 WHERE {lanes_table}.lane = h.lane";

// ?1 the lanes that were taken, ?2 those of them that are continued.
const SUSPECT: &str = "
UPDATE {parked_table}
   SET claimed = NULL, suspect = suspect OR substr(?2, lane + 1, 1) = '0',
       due = CASE WHEN blocks THEN NULL ELSE {now} END
 WHERE claimed IS NOT NULL AND substr(?1, lane + 1, 1) = '1'
RETURNING key";

const RELEASE: &str = "
UPDATE {lanes_table}
   SET owner = NULL, present = 0, leased_until = NULL, noted_seq = NULL
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
 WHERE {lanes_table}.lane = h.lane AND {lanes_table}.fence = h.fence";

const LEAVE: &str = "DELETE FROM {relays_table} WHERE relay = ?1";

// ?1 the lanes. Parked events that are due.
const DUE: &str = "
SELECT EXISTS (SELECT 1 FROM {parked_table}
                WHERE suspect IN (0, 1) AND due <= {now} AND claimed IS NULL AND substr(?1, lane + 1, 1) = '1')";

const HELD: &str = "
SELECT l.lane, l.fence, l.noted_seq
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
  JOIN {lanes_table} AS l ON l.lane = h.lane AND l.fence = h.fence";

#[derive(Debug)]
pub(super) struct Statements {
    join: Statement,
    renew: Statement,
    forget: Statement,
    relays: Statement,
    lanes: Statement,
    free: Statement,
    take: Statement,
    suspect: Statement,
    release: Statement,
    leave: Statement,
    due: Statement,
    pub(super) held: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        Self {
            join: statement(JOIN),
            renew: statement(RENEW),
            forget: statement(FORGET),
            relays: statement(RELAYS),
            lanes: statement(LANES),
            free: statement(FREE),
            take: statement(TAKE),
            suspect: statement(SUSPECT),
            release: statement(RELEASE),
            leave: statement(LEAVE),
            due: statement(DUE),
            held: statement(HELD),
        }
    }
}

pub(super) async fn beat(stream: &SqliteStream, beat: &Beat<'_>) -> sqlx::Result<Council> {
    let statements = &stream.statements.own;
    let mut tx = begin(&stream.pool).await?;
    sqlx::query(statements.join.sql())
        .bind(beat.relay.as_str().to_owned())
        .bind(micros(beat.lease))
        .execute(&mut *tx)
        .await?;
    failpoint!("lanes.joined");
    if !beat.holds.is_empty() {
        sqlx::query(statements.renew.sql())
            .bind(holds_json(beat.holds.iter().copied()))
            .bind(micros(beat.lease))
            .bind(beat.present)
            .bind(beat.relay.as_str().to_owned())
            .execute(&mut *tx)
            .await?;
        failpoint!("lanes.renewed");
    }
    sqlx::query(statements.forget.sql()).execute(&mut *tx).await?;
    let relays = sqlx::query_scalar(statements.relays.sql()).fetch_all(&mut *tx).await?;
    let lanes: Vec<(i64, i64, Option<String>, bool)> =
        sqlx::query_as(statements.lanes.sql()).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    let news = match beat.seen {
        Some(seen) => Some(has_news(stream, beat, seen).await?),
        None => None,
    };
    // A file cannot tell whose process is gone.
    let state =
        |(number, fence, owner, free)| LaneState { lane: lane(number), fence, owner, free, absent: false };
    Ok(Council { relays, lanes: lanes.into_iter().map(state).collect(), news })
}

/// Whether there are rows to be read, or parked ones that are due.
async fn has_news(stream: &SqliteStream, beat: &Beat<'_>, seen: &Seen) -> sqlx::Result<bool> {
    let lanes: Vec<u16> = beat.holds.iter().map(|hold| hold.lane).collect();
    if !unsettled(stream, &lanes, 0, 1).await?.is_empty() {
        return Ok(true);
    }
    if !seen.parked {
        return Ok(false);
    }
    let due = sqlx::query_scalar(stream.statements.own.due.sql()).bind(mask(lanes.into_iter()));
    due.fetch_one(&stream.pool).await
}

pub(super) async fn take(
    stream: &SqliteStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let statements = &stream.statements.own;
    let mut tx = begin(&stream.pool).await?;
    let free: Vec<(i64, i64, i64)> = sqlx::query_as(statements.free.sql())
        .bind(mask(lanes.iter().copied()))
        .bind(beat.relay.as_str().to_owned())
        .bind(json!(absent).to_string())
        .fetch_all(&mut *tx)
        .await?;
    let free = free.into_iter().map(|(number, fence, next)| (lane(number), fence, next));
    let Takes { holds, continued } = Takes::of(free, beat.holds);
    if holds.is_empty() {
        return Ok(holds);
    }
    sqlx::query(statements.take.sql())
        .bind(holds_json(holds.iter().copied()))
        .bind(beat.relay.as_str().to_owned())
        .bind(beat.present)
        .bind(micros(beat.lease))
        .bind(continued.clone())
        .execute(&mut *tx)
        .await?;
    failpoint!("lanes.fenced");
    let taken = mask(holds.iter().map(|hold| hold.lane));
    let suspect = sqlx::query_scalar(statements.suspect.sql()).bind(taken).bind(continued);
    let keys: Vec<String> = suspect.fetch_all(&mut *tx).await?;
    if !keys.is_empty() {
        come_up(&mut tx, &stream.statements, keys.iter().map(String::as_str), &[]).await?;
    }
    tx.commit().await?;
    Ok(holds)
}

pub(super) async fn release(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(stream.statements.own.release.sql()).bind(holds_json(holds.iter().copied()));
    query.execute(&stream.pool).await.map(drop)
}

pub(super) async fn leave(stream: &SqliteStream, relay: &WorkerId) -> sqlx::Result<()> {
    let query = sqlx::query(stream.statements.own.leave.sql()).bind(relay.as_str().to_owned());
    query.execute(&stream.pool).await.map(drop)
}

/// Which of these are still held; in a transaction they stay so to its end.
pub(super) async fn held(
    connection: &mut SqliteConnection,
    statement: &Statement,
    holds: impl Iterator<Item = Hold>,
) -> sqlx::Result<HashSet<Hold>> {
    let query = sqlx::query_as(statement.sql()).bind(holds_json(holds));
    let held: Vec<(i64, i64, Option<i64>)> = query.fetch_all(connection).await?;
    Ok(held.into_iter().map(|(number, fence, _)| Hold { lane: lane(number), fence }).collect())
}
