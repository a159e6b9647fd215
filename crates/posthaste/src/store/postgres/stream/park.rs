//! Parked events: what cannot be delivered now, what waits behind it, and how it comes up.

use std::collections::HashSet;

use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::super::columns::{EVENT_COLUMNS, Types, decode};
use super::{PostgresStream, begin, fences, lanes, numbers};
use crate::error::Result;
use crate::store::TableName;
use crate::store::plans::Plans;
use crate::store::settlement::{micros, stored_error};
use crate::store::statement::Statement;
use crate::store::stream::{Hold, Park, Parked, ParkedClaim, ParkedEnd, ParkedVerdict, Wait};
use crate::store::tries::Tries;

const BLOCKED_AMONG: &str = "
SELECT k.key FROM unnest($1::text[]) AS k(key)
 WHERE (SELECT true FROM {parked_table} AS p WHERE p.key = k.key AND p.blocks LIMIT 1) IS NOT NULL";

// Waits: 0 behind, 1 after a time, 2 delay, 3 suspect, 4 running, 5 dead and blocking, 6 dead and not. Only the first of a key
// that others wait behind is due.
const PARK: &str = "
WITH said AS (
    SELECT *, count(*) FILTER (WHERE wait NOT IN (2, 6))
                  OVER (PARTITION BY key ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::int[], $8::text[],
                  $9::int[], $10::bigint[]) WITH ORDINALITY
        AS s(lane, fence, seq, id, topic, key, attempts, error, wait, delay, n)
     WHERE {unsynced}
), {held}, parked AS (
    INSERT INTO {parked_table} (seq, id, lane, topic, key, blocks, suspect, attempts, due, claimed, outcome, last_error, settled_at)
    SELECT s.seq, s.id, s.lane, s.topic, s.key, s.wait NOT IN (2, 6), s.wait = 3, s.attempts,
           CASE WHEN s.wait = 2 THEN (SELECT o.available_at FROM {table} AS o WHERE o.id = s.id)
                WHEN s.wait = 4 THEN now()
                WHEN s.wait IN (5, 6) OR s.before > 0
                     OR EXISTS (SELECT FROM {parked_table} AS p WHERE p.key = s.key AND p.blocks) THEN NULL
                ELSE now() + coalesce(s.delay, 0) * interval '1 microsecond' END,
           CASE WHEN s.wait = 4 THEN s.fence END,
           CASE WHEN s.wait IN (5, 6) THEN 'dead' END,
           s.error,
           CASE WHEN s.wait IN (5, 6) THEN now() END
      FROM said AS s WHERE s.lane IN (SELECT lane FROM held)
     ORDER BY s.n
    ON CONFLICT (seq) DO NOTHING
    RETURNING key, due IS NULL AND outcome IS NULL AS behind
)
SELECT key, NULL::smallint FROM parked WHERE behind
UNION SELECT NULL, lane FROM said WHERE lane NOT IN (SELECT lane FROM held)";

// $1 and $2 lanes and fences, $3 limit, $4 whether a suspect may be among them, $5 attempt limit, $6 attempt limits by topic,
// $7 topics. What is spent is answered as it is, and not claimed: no attempt is counted that is not made.
const CLAIM: &str = "
WITH said AS (
    SELECT * FROM unnest($1::smallint[], $2::bigint[]) AS s(lane, fence) WHERE {unsynced}
), {held}, heads AS (
    (SELECT h.* FROM held CROSS JOIN LATERAL (
            SELECT p.position, p.key, p.due, p.blocks AND p.attempts = 0 AS leads
              FROM {parked_table} AS p
             WHERE p.lane = held.lane AND p.due <= now() AND p.claimed IS NULL AND NOT p.suspect
               AND p.outcome IS NULL {topics} AND {first}
             ORDER BY p.due, p.position LIMIT (SELECT $3::bigint)) AS h
      ORDER BY h.due, h.position LIMIT $3)
    UNION ALL
    (SELECT h.position, h.key, h.due, false FROM held CROSS JOIN LATERAL (
            SELECT p.position, p.key, p.attempts, p.due
              FROM {parked_table} AS p
             WHERE p.lane = held.lane AND p.due <= now() AND p.claimed IS NULL AND p.suspect AND $4
               AND p.outcome IS NULL {topics} AND {first}
             ORDER BY p.attempts, p.due, p.position LIMIT 1) AS h
      ORDER BY h.attempts, h.due, h.position LIMIT 1)
), runs AS (
    SELECT r.position, h.due, h.position AS head
      FROM heads AS h
     CROSS JOIN LATERAL (
           SELECT t.position, bool_or(t.breaks) OVER (ORDER BY t.position) AS broken
             FROM (SELECT p.position,
                          p.outcome IS NOT NULL OR p.suspect OR p.claimed IS NOT NULL OR p.due IS NOT NULL
                          OR NOT (true {topics}) AS breaks
                     FROM {parked_table} AS p
                    WHERE p.key = h.key AND p.position > h.position AND p.blocks
                    ORDER BY p.position
                    LIMIT (SELECT greatest($3 / greatest(count(*), 1), 10) FROM heads)) AS t) AS r
     WHERE h.leads AND NOT r.broken
), chosen AS (
    SELECT c.position, row_number() OVER (ORDER BY c.due, c.head, c.position) AS n
      FROM (SELECT position, due, position AS head FROM heads UNION ALL SELECT position, due, head FROM runs) AS c
     ORDER BY c.due, c.head, c.position LIMIT $3
), named AS (
    SELECT c.n, p.position, p.id, said.fence, {spent} AS spent
      FROM chosen AS c JOIN {parked_table} AS p ON p.position = c.position JOIN said ON said.lane = p.lane
)
UPDATE {parked_table} AS p
   SET claimed  = CASE WHEN named.spent THEN NULL ELSE named.fence END,
       attempts = CASE WHEN named.spent THEN p.attempts ELSE p.attempts + 1 END
  FROM named LEFT JOIN LATERAL (
       SELECT {columns}, created_at FROM {table} AS e WHERE e.id = named.id) AS o ON true
 WHERE p.position = named.position AND p.claimed IS NULL
RETURNING o.*, p.seq, p.id, p.topic, p.lane, named.fence, p.position, p.attempts, p.suspect, p.last_error, named.n, p.blocks,
          named.spent";

// The first attempt always is.
const SPENT: &str = "(p.attempts > 0 AND p.attempts >= coalesce(($6::jsonb ->> p.topic)::int, $5))";

// Only the first of an aggregate comes up, whatever those behind it say; what nobody waits for waits for nobody.
const FIRST: &str = "
(NOT p.blocks OR NOT EXISTS (SELECT FROM {parked_table} AS b WHERE b.key = p.key AND b.blocks AND b.position < p.position))";

const CLAIMED: &str = "
SELECT p.lane, p.claimed, p.seq
  FROM {parked_table} AS p
  JOIN unnest($1::smallint[], $2::bigint[]) AS h(lane, fence) ON h.lane = p.lane AND h.fence = p.claimed";

const FORGET: &str = "DELETE FROM {parked_table} WHERE position = ANY ($1) RETURNING key";

const TOPICS: [&str; 3] = ["", "AND p.topic = ANY ($7)", "AND p.topic <> ALL ($7)"];

// Verdicts: 0 delivered, 1 retry, 2 dead, 3 released, 4 behind, 5 spent, which is dead and was not claimed. What was released may
// itself wait for others: if it does not, it is let come up.
const SETTLE: &str = "
WITH said AS (
    SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::int[], $5::bigint[], $6::text[], $7::boolean[])
               AS s(lane, fence, seq, verdict, delay, error, blocks)
     WHERE {unsynced}
), {held}, gone AS (
    DELETE FROM {parked_table} AS p
     USING said AS s
     WHERE s.verdict = 0 AND p.seq = s.seq AND p.claimed = s.fence AND s.lane IN (SELECT lane FROM held)
    RETURNING p.key
), kept AS (
    UPDATE {parked_table} AS p
       SET claimed    = NULL,
           attempts   = CASE WHEN s.verdict IN (3, 4) THEN greatest(p.attempts - 1, 0) ELSE p.attempts END,
           due        = CASE WHEN s.verdict = 1 OR s.verdict IN (3, 4) AND NOT p.blocks
                             THEN now() + coalesce(s.delay, 0) * interval '1 microsecond' END,
           outcome    = CASE WHEN s.verdict IN (2, 5) THEN 'dead' END,
           settled_at = CASE WHEN s.verdict IN (2, 5) THEN now() END,
           blocks     = CASE WHEN s.verdict = 1 THEN true WHEN s.verdict IN (2, 5) THEN s.blocks ELSE p.blocks END,
           last_error = coalesce(s.error, p.last_error)
      FROM said AS s
     WHERE s.verdict <> 0 AND p.seq = s.seq AND s.lane IN (SELECT lane FROM held)
       AND CASE WHEN s.verdict = 5 THEN p.claimed IS NULL AND p.outcome IS NULL ELSE p.claimed = s.fence END
    RETURNING p.key
)
SELECT key, NULL::smallint FROM gone UNION SELECT key, NULL FROM kept
UNION SELECT NULL, lane FROM said WHERE lane NOT IN (SELECT lane FROM held)";

// The first of each of these keys ($1) that waits for nobody is due, one that was released ($2) after its time ($3).
const PROMOTE: &str = "
WITH firsts AS MATERIALIZED (
    SELECT f.position
      FROM unnest($1::text[]) AS k(key)
     CROSS JOIN LATERAL (
           SELECT p.position FROM {parked_table} AS p
            WHERE p.key = k.key AND p.blocks ORDER BY p.position LIMIT 1) AS f
)
UPDATE {parked_table} AS p
   SET due = now() + coalesce((SELECT max(s.delay) FROM unnest($2::bigint[], $3::bigint[]) AS s(seq, delay)
                                WHERE s.seq = p.seq), 0) * interval '1 microsecond'
 WHERE p.position = ANY (ARRAY(SELECT position FROM firsts)) AND p.due IS NULL AND p.claimed IS NULL AND p.outcome IS NULL";

const HAS_PARKED: &str = "SELECT EXISTS (SELECT FROM {parked_table} WHERE lane = ANY ($1))";

// What stands first of its key and waits for nobody. The firsts are found once, not for every row, whatever the planner knows of
// the table.
const REPAIR: &str = "
WITH firsts AS MATERIALIZED (
    SELECT min(position) AS position FROM {parked_table}
     WHERE blocks AND lane IN (
           SELECT l.lane FROM {lanes_table} AS l
             JOIN unnest($1::smallint[], $2::bigint[]) AS h(lane, fence) ON h.lane = l.lane AND h.fence = l.fence)
     GROUP BY key
)
UPDATE {parked_table} AS p
   SET due = now()
 WHERE p.position = ANY (ARRAY(SELECT position FROM firsts)) AND p.due IS NULL AND p.claimed IS NULL AND p.outcome IS NULL";

#[derive(Debug)]
pub(in super::super) struct Statements {
    // Nothing is parked as a rule, and much all at once: what was planned for a table that is empty goes through all of it for each row.
    plans: Plans,
    blocked_among: Statement,
    park: Statement,
    claim: [Statement; 3],
    claimed: Statement,
    forget: Statement,
    settle: Statement,
    promote: Statement,
    repair: Statement,
    has_parked: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| super::statement(table, sql);
        let claim = |topics| {
            let first = statement(FIRST);
            let claim = statement(CLAIM).with_rendered("{first}", &first).with("{topics}", topics);
            claim.with("{spent}", SPENT).with("{columns}", EVENT_COLUMNS)
        };
        Self {
            plans: Plans::default(),
            blocked_among: statement(BLOCKED_AMONG),
            park: statement(PARK),
            claim: TOPICS.map(claim),
            claimed: statement(CLAIMED),
            forget: statement(FORGET),
            settle: statement(SETTLE),
            promote: statement(PROMOTE),
            repair: statement(REPAIR),
            has_parked: statement(HAS_PARKED),
        }
    }
}

pub(super) async fn blocked_among(stream: &PostgresStream, keys: &[String]) -> Result<HashSet<String>> {
    let Statements { plans, blocked_among, .. } = &stream.statements.stream.park;
    let _watch = plans.watch();
    let blocked = sqlx::query_scalar(plans.of(blocked_among)).bind(keys).fetch_all(&stream.pool).await;
    blocked.map(HashSet::from_iter).map_err(|e| stream.error(e))
}

pub(super) async fn park(stream: &PostgresStream, parks: &[Park]) -> Result<Vec<u16>> {
    let mut tries = Tries::default();
    loop {
        match park_once(stream, parks).await.map_err(|e| stream.error(e)) {
            Err(error) if tries.again(&error) => {}
            refused => return refused,
        }
    }
}

// Who waited for a lane still sees what an operator discarded meanwhile, and puts an event behind that: whether it is the
// first of its aggregate is asked again, with the lane in hand.
async fn park_once(stream: &PostgresStream, parks: &[Park]) -> sqlx::Result<Vec<u16>> {
    let Statements { plans, park, .. } = &stream.statements.stream.park;
    let mut tx = begin(&stream.pool).await?;
    let watch = plans.watch();
    let parked: Vec<(Option<String>, Option<i16>)> = sqlx::query_as(plans.of(park))
        .bind(parks.iter().map(|park| park.hold.lane as i16).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| park.hold.fence).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| park.sequence).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| park.id).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| park.topic.as_str()).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| park.key.as_str()).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| i32::try_from(park.attempts).unwrap_or(i32::MAX)).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| park.error.as_deref().map(stored_error)).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| wait_code(park.wait)).collect::<Vec<_>>())
        .bind(parks.iter().map(|park| wait_delay(park.wait)).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await?;
    drop(watch);
    failpoint!("park.inserted");
    let behind: Vec<String> = parked.iter().filter_map(|(key, _)| key.clone()).collect();
    if !behind.is_empty() {
        promote(&mut tx, &stream.statements.stream.park, &behind).await?;
    }
    failpoint!("park.written");
    tx.commit().await?;
    Ok(parked.iter().filter_map(|(_, lane)| lane.map(|lane| lane as u16)).collect())
}

/// Lets the first of each of these aggregates come up.
pub(super) async fn promote(
    tx: &mut Transaction<'static, Postgres>,
    statements: &Statements,
    keys: &[String],
) -> sqlx::Result<()> {
    let none: [i64; 0] = [];
    let Statements { plans, promote, .. } = statements;
    let _watch = plans.watch();
    let promote = sqlx::query(plans.of(promote)).bind(keys).bind(none.as_slice()).bind(none.as_slice());
    promote.execute(&mut **tx).await.map(drop)
}

pub(super) async fn claim_parked(stream: &PostgresStream, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
    if claim.holds.is_empty() || claim.limit == 0 {
        return Ok(Vec::new());
    }
    let mut tries = Tries::default();
    loop {
        match claim_once(stream, claim).await.map_err(|e| stream.error(e)) {
            Err(error) if tries.again(&error) => {}
            parked => return parked,
        }
    }
}

async fn claim_once(stream: &PostgresStream, claim: &ParkedClaim<'_>) -> sqlx::Result<Vec<Parked>> {
    let Statements { plans, claim: [all, only, except], .. } = &stream.statements.stream.park;
    let mut query = sqlx::query(plans.of(claim.topics.choose([all, only, except])))
        .bind(lanes(claim.holds))
        .bind(fences(claim.holds))
        .bind(i64::from(claim.limit))
        .bind(claim.suspects)
        .bind(claim.attempts.default_limit())
        .bind(claim.attempts.topics_json());
    if let Some(topics) = claim.topics.named() {
        query = query.bind(topics);
    }
    let watch = plans.watch();
    let rows = query.fetch_all(&stream.pool).await?;
    drop(watch);
    let mut parked = Vec::with_capacity(rows.len());
    let mut without_event = Vec::new();
    for row in &rows {
        match row.try_get::<Option<Uuid>, _>(0)? {
            Some(_) => parked.push((row.try_get::<i64, _>(25)?, read_parked(row)?)),
            None => without_event.push(row.try_get::<i64, _>(21)?),
        }
    }
    if !without_event.is_empty() {
        let mut tx = begin(&stream.pool).await?;
        let keys: Vec<String> = sqlx::query_scalar(stream.statements.stream.park.forget.sql())
            .bind(&without_event)
            .fetch_all(&mut *tx)
            .await?;
        promote(&mut tx, &stream.statements.stream.park, &keys).await?;
        tx.commit().await?;
    }
    parked.sort_by_key(|(n, _)| *n);
    Ok(parked.into_iter().map(|(_, parked)| parked).collect())
}

/// A row that begins with the event's columns.
fn read_parked(row: &PgRow) -> sqlx::Result<Parked> {
    Ok(Parked {
        hold: Hold { lane: row.try_get::<i16, _>(19)? as u16, fence: row.try_get(20)? },
        position: row.try_get(21)?,
        sequence: row.try_get(16)?,
        id: row.try_get(17)?,
        topic: row.try_get(18)?,
        attempt: u32::try_from(row.try_get::<i32, _>(22)?).unwrap_or(0),
        suspect: row.try_get(23)?,
        last_error: row.try_get(24)?,
        blocks: row.try_get(26)?,
        spent: row.try_get(27)?,
        created_at: row.try_get(15)?,
        event: decode(row, Types::of(row)),
    })
}

pub(super) async fn claimed(stream: &PostgresStream, holds: &[Hold]) -> Result<Vec<(Hold, i64)>> {
    let claimed: Vec<(i16, i64, i64)> = sqlx::query_as(stream.statements.stream.park.claimed.sql())
        .bind(lanes(holds))
        .bind(fences(holds))
        .fetch_all(&stream.pool)
        .await
        .map_err(|e| stream.error(e))?;
    let held = |(lane, fence, sequence)| (Hold { lane: lane as u16, fence }, sequence);
    Ok(claimed.into_iter().map(held).collect())
}

pub(super) async fn settle_parked(stream: &PostgresStream, ends: &[ParkedEnd]) -> Result<Vec<u16>> {
    let mut tries = Tries::default();
    loop {
        match settle_once(stream, ends).await.map_err(|e| stream.error(e)) {
            Err(error) if tries.again(&error) => {}
            refused => return refused,
        }
    }
}

async fn settle_once(stream: &PostgresStream, ends: &[ParkedEnd]) -> sqlx::Result<Vec<u16>> {
    let Statements { plans, settle, promote, .. } = &stream.statements.stream.park;
    let mut tx = begin(&stream.pool).await?;
    let watch = plans.watch();
    let settled: Vec<(Option<String>, Option<i16>)> = sqlx::query_as(plans.of(settle))
        .bind(ends.iter().map(|end| end.hold.lane as i16).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| end.hold.fence).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| end.sequence).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| code(&end.verdict)).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| delay(&end.verdict)).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| error_of(&end.verdict)).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| blocks(&end.verdict)).collect::<Vec<_>>())
        .fetch_all(&mut *tx)
        .await?;
    drop(watch);
    failpoint!("parked.ending");
    let keys: Vec<&str> = settled.iter().filter_map(|(key, _)| key.as_deref()).collect();
    sqlx::query(plans.of(promote))
        .bind(&keys)
        .bind(ends.iter().map(|end| end.sequence).collect::<Vec<_>>())
        .bind(ends.iter().map(|end| delay(&end.verdict)).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(settled.iter().filter_map(|(_, lane)| lane.map(|lane| lane as u16)).collect())
}

pub(super) async fn repair(stream: &PostgresStream, holds: &[Hold]) -> Result<()> {
    let Statements { plans, repair, .. } = &stream.statements.stream.park;
    let _watch = plans.watch();
    let repaired =
        sqlx::query(plans.of(repair)).bind(lanes(holds)).bind(fences(holds)).execute(&stream.pool).await;
    repaired.map(drop).map_err(|e| stream.error(e))
}

pub(super) async fn has_parked(stream: &PostgresStream, lanes: &[u16]) -> Result<bool> {
    sqlx::query_scalar(stream.statements.stream.park.has_parked.sql())
        .bind(numbers(lanes))
        .fetch_one(&stream.pool)
        .await
        .map_err(|e| stream.error(e))
}

fn wait_code(wait: Wait) -> i32 {
    match wait {
        Wait::Behind => 0,
        Wait::After(_) => 1,
        Wait::Delay => 2,
        Wait::Suspect => 3,
        Wait::Running => 4,
        Wait::Dead { blocks: true } => 5,
        Wait::Dead { blocks: false } => 6,
    }
}

fn wait_delay(wait: Wait) -> Option<i64> {
    match wait {
        Wait::After(delay) => Some(micros(delay)),
        _ => None,
    }
}

fn code(verdict: &ParkedVerdict) -> i32 {
    match verdict {
        ParkedVerdict::Delivered => 0,
        ParkedVerdict::Retry { .. } => 1,
        ParkedVerdict::Dead { .. } => 2,
        ParkedVerdict::Released { .. } => 3,
        ParkedVerdict::Behind => 4,
        ParkedVerdict::Spent { .. } => 5,
    }
}

fn delay(verdict: &ParkedVerdict) -> Option<i64> {
    match verdict {
        ParkedVerdict::Retry { after, .. } | ParkedVerdict::Released { after } => Some(micros(*after)),
        _ => None,
    }
}

fn error_of(verdict: &ParkedVerdict) -> Option<String> {
    match verdict {
        ParkedVerdict::Retry { error, .. }
        | ParkedVerdict::Dead { error, .. }
        | ParkedVerdict::Spent { error, .. } => Some(stored_error(error)),
        _ => None,
    }
}

fn blocks(verdict: &ParkedVerdict) -> Option<bool> {
    match verdict {
        ParkedVerdict::Dead { blocks, .. } | ParkedVerdict::Spent { blocks, .. } => Some(*blocks),
        _ => None,
    }
}
