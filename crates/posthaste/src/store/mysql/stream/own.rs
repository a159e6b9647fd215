//! Who lives, who owns which lanes, and under which fence.

use std::collections::HashSet;

use serde_json::json;
use sqlx::mysql::MySqlConnection;

use super::super::session::lock_name;
use super::park::{come_up, unshelve};
use super::read::unsettled;
use super::{Hurried, MySqlStream};
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::place::{Takes, holds_json, lane, mask};
use crate::store::stream::{Beat, Council, Hold, LaneState, Seen};
use crate::store::{Dialect, Keep, TableName, WorkerId};

const JOIN: &str = "
INSERT INTO {relays_table} (relay, `until`) VALUES (?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)
    ON DUPLICATE KEY UPDATE seen_at = UTC_TIMESTAMP(6), `until` = VALUES(`until`)";

const RENEW: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   SET l.leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, l.present = ?
 WHERE l.owner = ?";

// One that is not heard of for a minute is not coming back.
const RELAYS: &str = "
SELECT relay, CAST(`until` > UTC_TIMESTAMP(6) AS SIGNED), CAST(`until` < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE AS SIGNED)
  FROM {relays_table}
 ORDER BY joined_at, relay";

const FORGET: &str = "
DELETE FROM {relays_table} WHERE relay = ? AND `until` < UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE";

const LANES: &str = concat!(
    "
SELECT lane, fence, owner,
       CAST(owner IS NULL OR leased_until IS NULL OR leased_until <= UTC_TIMESTAMP(6) AS SIGNED),
       CAST(owner IS NOT NULL AND present AND IS_USED_LOCK(",
    lock_name!("CONCAT(owner, '~')"),
    ") IS NULL AS SIGNED)
  FROM {lanes_table}
 ORDER BY lane"
);

// A lane that somebody is just writing to is passed over, not waited for. One's own is free: who takes it does not know of it.
// A server that takes over after another may not know of the last owners: what it counts on from was theirs already, and
// the time was not.
const FREE: &str = "
SELECT lane, fence, GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
  FROM {lanes_table}
 WHERE SUBSTR(?, lane + 1, 1) = '1'
   AND (owner IS NULL OR leased_until IS NULL OR leased_until <= UTC_TIMESTAMP(6) OR owner = ?
        OR JSON_CONTAINS(?, JSON_QUOTE(owner)))
 ORDER BY lane
   FOR UPDATE SKIP LOCKED";

const TAKE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane
   SET l.fence = h.fence, l.owner = ?, l.present = ?, l.leased_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND,
       l.noted_seq = CASE WHEN SUBSTR(?, l.lane + 1, 1) = '1' THEN NULL ELSE l.noted_seq END";

const ORPHANS: &str = "
SELECT position, `key` FROM {parked_table} WHERE claimed IS NOT NULL AND SUBSTR(?, lane + 1, 1) = '1' ORDER BY position";

const SUSPECT: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS o
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = o.position
   SET p.claimed = NULL, p.suspect = p.suspect OR SUBSTR(?, p.lane + 1, 1) = '0',
       p.due = CASE WHEN p.blocks THEN NULL ELSE UTC_TIMESTAMP(6) END";

const RELEASE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   SET l.owner = NULL, l.present = FALSE, l.leased_until = NULL, l.noted_seq = NULL";

const LEAVE: &str = "DELETE FROM {relays_table} WHERE relay = ?";

// Parked events that are due, of these lanes.
const DUE: &str = "
SELECT CAST(EXISTS (SELECT 1 FROM {parked_table}
                     WHERE claimed IS NULL AND suspect IN (FALSE, TRUE) AND due <= UTC_TIMESTAMP(6)
                       AND SUBSTR(?, lane + 1, 1) = '1') AS SIGNED)";

const HELD: &str = "
SELECT l.lane, l.fence, l.noted_seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   {lock}";

#[derive(Debug)]
pub(super) struct Statements {
    join: Statement,
    renew: Statement,
    relays: Statement,
    forget: Statement,
    lanes: Statement,
    free: Statement,
    take: Statement,
    orphans: Statement,
    suspect: Statement,
    release: Statement,
    leave: Statement,
    due: Statement,
    pub(super) held: Statement,
    pub(super) held_shared: Statement,
    pub(super) held_alone: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let held = |lock| statement(HELD).with("{lock}", lock);
        Self {
            join: statement(JOIN),
            renew: statement(RENEW),
            relays: statement(RELAYS),
            forget: statement(FORGET),
            lanes: statement(LANES),
            free: statement(FREE),
            take: statement(TAKE),
            orphans: statement(ORPHANS),
            suspect: statement(SUSPECT),
            release: statement(RELEASE),
            leave: statement(LEAVE),
            due: statement(DUE),
            held: held(""),
            held_shared: held("/*!50700 FOR SHARE OF l */ /*M! LOCK IN SHARE MODE */"),
            held_alone: held("FOR UPDATE /*!50700 OF l */"),
        }
    }
}

pub(super) async fn beat(stream: &MySqlStream, beat: &Beat<'_>) -> sqlx::Result<Council> {
    let statements = &stream.statements.own;
    let mut connection = stream.pool.acquire().await?;
    sqlx::query(statements.join.sql())
        .bind(beat.relay.as_str())
        .bind(micros(beat.lease))
        .execute(&mut *connection)
        .await?;
    failpoint!("lanes.joined");
    if !beat.holds.is_empty() {
        sqlx::query(statements.renew.sql())
            .bind(holds_json(beat.holds.iter().copied()))
            .bind(micros(beat.lease))
            .bind(beat.present)
            .bind(beat.relay.as_str())
            .execute(&mut *connection)
            .await?;
        failpoint!("lanes.renewed");
    }
    let relays: Vec<(String, i64, i64)> =
        sqlx::query_as(statements.relays.sql()).fetch_all(&mut *connection).await?;
    for (relay, _, long_gone) in &relays {
        if *long_gone == 1 {
            sqlx::query(statements.forget.sql()).bind(relay).execute(&mut *connection).await?;
        }
    }
    let lanes: Vec<(i16, i64, Option<String>, i64, i64)> = sqlx::query_as(statements.lanes.sql())
        .bind(stream.table.schema())
        .fetch_all(&mut *connection)
        .await?;
    drop(connection);
    let news = match beat.seen {
        Some(seen) => Some(has_news(stream, beat, seen).await?),
        None => None,
    };
    let state = |(number, fence, owner, free, absent): (i16, i64, Option<String>, i64, i64)| LaneState {
        lane: lane(number.into()),
        fence,
        owner,
        free: free == 1,
        absent: absent == 1,
    };
    Ok(Council {
        relays: relays.into_iter().filter(|(_, lives, _)| *lives == 1).map(|(relay, ..)| relay).collect(),
        lanes: lanes.into_iter().map(state).collect(),
        news,
    })
}

/// Whether there are rows to be read, or parked ones that are due.
async fn has_news(stream: &MySqlStream, beat: &Beat<'_>, seen: &Seen) -> sqlx::Result<bool> {
    let lanes: Vec<u16> = beat.holds.iter().map(|hold| hold.lane).collect();
    if !unsettled(stream, &lanes, 0, 1).await?.is_empty() {
        return Ok(true);
    }
    if !seen.parked {
        return Ok(false);
    }
    let due = sqlx::query_scalar(stream.statements.own.due.sql()).bind(mask(lanes.into_iter()));
    let due: i64 = due.fetch_one(&stream.pool).await?;
    Ok(due == 1)
}

pub(super) async fn take(
    stream: &MySqlStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = stream.connection().await?;
    let taken = take_on(&mut connection, stream, beat, lanes, absent).await;
    connection.afterwards(taken).await
}

async fn take_on(
    connection: &mut Hurried,
    stream: &MySqlStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    let statements = &stream.statements.own;
    let mut tx = connection.begin().await?;
    let free: Vec<(i16, i64, i64)> = sqlx::query_as(statements.free.sql())
        .bind(mask(lanes.iter().copied()))
        .bind(beat.relay.as_str())
        .bind(json!(absent).to_string())
        .fetch_all(&mut *tx)
        .await?;
    let free = free.into_iter().map(|(number, fence, next)| (lane(number.into()), fence, next));
    let Takes { holds, continued } = Takes::of(free, beat.holds);
    if holds.is_empty() {
        return Ok(holds);
    }
    sqlx::query(statements.take.sql())
        .bind(holds_json(holds.iter().copied()))
        .bind(beat.relay.as_str())
        .bind(beat.present)
        .bind(micros(beat.lease))
        .bind(&continued)
        .execute(&mut *tx)
        .await?;
    failpoint!("lanes.fenced");
    // Whose session is gone has no share: one that lives says so again with its next beat.
    for relay in absent {
        sqlx::query(statements.leave.sql()).bind(relay).execute(&mut *tx).await?;
    }
    let taken = mask(holds.iter().map(|hold| hold.lane));
    let orphans: Vec<(i64, String)> =
        sqlx::query_as(statements.orphans.sql()).bind(&taken).fetch_all(&mut *tx).await?;
    if !orphans.is_empty() {
        let positions: Vec<i64> = orphans.iter().map(|(position, _)| *position).collect();
        sqlx::query(statements.suspect.sql())
            .bind(json!(positions).to_string())
            .bind(&continued)
            .execute(&mut *tx)
            .await?;
        come_up(&mut tx, &stream.statements, orphans.iter().map(|(_, key)| key.as_str()), &[]).await?;
    }
    let parked = &stream.statements.park;
    let shelved = parked.shelved(&mut tx, &taken).await?;
    unshelve(&mut tx, &stream.statements, &shelved, Keep::Delivered).await?;
    tx.commit().await?;
    Ok(holds)
}

pub(super) async fn release(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(stream.statements.own.release.sql()).bind(holds_json(holds.iter().copied()));
    query.execute(&stream.pool).await.map(drop)
}

pub(super) async fn leave(stream: &MySqlStream, relay: &WorkerId) -> sqlx::Result<()> {
    let query = sqlx::query(stream.statements.own.leave.sql()).bind(relay.as_str());
    query.execute(&stream.pool).await.map(drop)
}

/// Which of these are still held; with a lock they stay so to the end of the transaction.
pub(super) async fn held(
    connection: &mut MySqlConnection,
    statement: &Statement,
    holds: impl Iterator<Item = Hold>,
) -> sqlx::Result<HashSet<Hold>> {
    let query = sqlx::query_as(statement.sql()).bind(holds_json(holds));
    let held: Vec<(i16, i64, Option<i64>)> = query.fetch_all(connection).await?;
    Ok(held.into_iter().map(|(number, fence, _)| Hold { lane: lane(number.into()), fence }).collect())
}
