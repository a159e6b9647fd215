//! Lanes in transactions that begin by writing: the database lets one writer in at a time, so that nothing changes
//! in between.

pub(super) mod admin;

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{Row as _, Sqlite, Transaction};
use uuid::Uuid;

use super::{EVENT_COLUMNS, decode, errors, time_of};
use crate::error::Result;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::floor::{Delivered, FloorReader, Ground};
use crate::store::stream::place::{
    Ended, MOST_RUNS, MOST_WAITING, Takes, Waiting, age, firsts_json, holds_json, json_text, keys_json, lane,
    longest_due, mask, places, refused,
};
use crate::store::stream::{
    Beat, BlockedAggregate, Council, Hold, LaneLag, LaneState, Lanes, Park, Parked, ParkedClaim, ParkedEnd,
    Reader, Row, Stream,
};
use crate::store::tries::insist;
use crate::store::{Count, Dialect, Keep, TableName, WorkerId};

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
 WHERE claimed IS NOT NULL AND substr(?1, lane + 1, 1) = '1'";

const STUCK: &str = "
SELECT p.position
  FROM (SELECT min(position) AS position FROM {parked_table}
         WHERE blocks AND substr(?1, lane + 1, 1) = '1' GROUP BY key) AS f
  JOIN {parked_table} AS p ON p.position = f.position
 WHERE p.outcome IS NULL AND p.due IS NULL AND p.claimed IS NULL";

const CLAIMED: &str = "
SELECT lane, claimed, seq FROM {parked_table}
 WHERE claimed IS NOT NULL AND substr(?1, lane + 1, 1) = '1'";

const RELEASE: &str = "
UPDATE {lanes_table}
   SET owner = NULL, present = 0, leased_until = NULL, noted_seq = NULL
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
 WHERE {lanes_table}.lane = h.lane AND {lanes_table}.fence = h.fence";

const LEAVE: &str = "DELETE FROM {relays_table} WHERE relay = ?1";

const HELD: &str = "
SELECT l.lane, l.fence, l.noted_seq
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
  JOIN {lanes_table} AS l ON l.lane = h.lane AND l.fence = h.fence";

const BLOCKED_AMONG: &str = "
SELECT k.value
  FROM json_each(?1) AS k
 WHERE EXISTS (SELECT 1 FROM {parked_table} AS p WHERE p.key = k.value AND p.blocks)";

const OPEN: &str = "
SELECT o.seq FROM json_each(?1) AS p CROSS JOIN {table} AS o ON o.seq = p.value WHERE o.outcome IS NULL";

const PARK: &str = "
INSERT INTO {parked_table} (seq, id, lane, topic, key, blocks, suspect, attempts, due, claimed, outcome, last_error, settled_at)
SELECT json_extract(p.value, '$[0]'), json_extract(p.value, '$[1]'), json_extract(p.value, '$[2]'),
       json_extract(p.value, '$[3]'), json_extract(p.value, '$[4]'), json_extract(p.value, '$[5]'),
       json_extract(p.value, '$[6]'), json_extract(p.value, '$[7]'),
       CASE WHEN json_extract(p.value, '$[9]') = 1 THEN o.available_at ELSE {now} + json_extract(p.value, '$[8]') END,
       json_extract(p.value, '$[10]'), json_extract(p.value, '$[11]'), json_extract(p.value, '$[12]'),
       CASE WHEN json_extract(p.value, '$[11]') IS NOT NULL THEN {now} END
  FROM json_each(?1) AS p
  CROSS JOIN {table} AS o ON o.seq = json_extract(p.value, '$[0]')
 WHERE NOT EXISTS (SELECT 1 FROM {parked_table} AS before_it WHERE before_it.seq = o.seq)
 ORDER BY p.key";

const MARK_PARKED: &str =
    "UPDATE {table} SET outcome = 'parked' WHERE seq IN (SELECT value FROM json_each(?1))";

// ?1 whether suspects, ?2 the lanes, ?3 the limit, ?4 the topics. Only the first of an aggregate comes up, whatever those
// behind it say; what nobody waits for waits for nobody. Of the suspects those come first that were tried least: one that
// ends every process does not keep the others waiting.
const DUE: &str = "
SELECT p.position, p.seq, p.id, p.lane, p.topic, p.key, p.attempts, p.suspect, p.blocks, p.last_error, p.due
  FROM {parked_table} AS p
 WHERE p.claimed IS NULL AND p.due <= {now} AND p.outcome IS NULL AND p.suspect = ?1
   AND substr(?2, p.lane + 1, 1) = '1'
   AND (NOT p.blocks OR NOT EXISTS (SELECT 1 FROM {parked_table} AS b
                                     WHERE b.key = p.key AND b.blocks AND b.position < p.position))
   {topics}
 ORDER BY {tried} p.due, p.position
 LIMIT ?3";

const ONLY: &str = "AND p.topic IN (SELECT value FROM json_each(?4))";

const EXCEPT: &str = "AND p.topic NOT IN (SELECT value FROM json_each(?4))";

const BEHIND: &str = "
SELECT position, seq, id, lane, topic, key, attempts, suspect, blocks, last_error, 0,
       claimed IS NULL AND outcome IS NULL AND due IS NULL AND NOT suspect
  FROM {parked_table}
 WHERE key = ?1 AND position > ?2 AND blocks
 ORDER BY position
 LIMIT ?3";

const EVENTS: &str = "
SELECT {columns}, seq, created_at FROM {table} WHERE seq IN (SELECT value FROM json_each(?1))";

const CLAIM: &str = "
UPDATE {parked_table}
   SET claimed = c.fence, attempts = attempts + 1
  FROM (SELECT json_extract(value, '$[0]') AS position, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS c
 WHERE {parked_table}.position = c.position";

const UNPARK: &str = "DELETE FROM {parked_table} WHERE position IN (SELECT value FROM json_each(?1))";

const ENDED: &str = "
SELECT p.position, p.seq, p.key, p.blocks
  FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS lane,
               json_extract(value, '$[2]') AS fence FROM json_each(?1)) AS e
  JOIN {parked_table} AS p ON p.seq = e.seq AND p.lane = e.lane AND p.claimed = e.fence";

// Verdicts: 1 retry, 2 dead, 3 released, 4 behind.
const SETTLE: &str = "
UPDATE {parked_table}
   SET claimed    = NULL,
       due        = {now} + e.due,
       blocks     = e.blocks,
       attempts   = CASE WHEN e.verdict IN (3, 4) THEN max(attempts - 1, 0) ELSE attempts END,
       last_error = coalesce(e.error, last_error),
       outcome    = CASE e.verdict WHEN 2 THEN 'dead' END,
       settled_at = CASE e.verdict WHEN 2 THEN {now} END
  FROM (SELECT json_extract(value, '$[0]') AS position, json_extract(value, '$[1]') AS verdict,
               json_extract(value, '$[2]') AS due, json_extract(value, '$[3]') AS error,
               json_extract(value, '$[4]') AS blocks FROM json_each(?1)) AS e
 WHERE {parked_table}.position = e.position";

const FIRSTS: &str = "
SELECT (SELECT b.position FROM {parked_table} AS b WHERE b.key = k.value AND b.blocks ORDER BY b.position LIMIT 1)
  FROM json_each(?1) AS k";

const PROMOTE: &str = "
UPDATE {parked_table}
   SET due = {now} + f.due
  FROM (SELECT json_extract(value, '$[0]') AS position, json_extract(value, '$[1]') AS due FROM json_each(?1)) AS f
 WHERE {parked_table}.position = f.position AND outcome IS NULL AND {parked_table}.due IS NULL AND claimed IS NULL";

const MARK_DELIVERED: &str = "
UPDATE {table} SET outcome = 'delivered', settled_at = {now} WHERE seq IN (SELECT value FROM json_each(?1))";

const DELETE: &str = "DELETE FROM {table} WHERE seq IN (SELECT value FROM json_each(?1))";

const HAS_PARKED: &str = "SELECT EXISTS (SELECT 1 FROM {parked_table} WHERE substr(?1, lane + 1, 1) = '1')";

const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, coalesce(p.last_error, ''),
       coalesce(p.settled_at, p.parked_at), p.key, p.position
  FROM {parked_table} AS p
  JOIN {table} AS o ON o.seq = p.seq
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL
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

const UNSETTLED: &str = "
SELECT seq
  FROM {table}
 WHERE outcome IS NULL AND seq > ?1 AND substr(?2, lane + 1, 1) = '1'
 ORDER BY seq
 LIMIT ?3";

const ROWS: &str = "
SELECT {columns}, seq, created_at, lane, available_at > {now}
  FROM {table}
 WHERE seq IN (SELECT value FROM json_each(?1)) AND outcome IS NULL";

const NOTE: &str = "
UPDATE {lanes_table}
   SET noted_seq = max(coalesce(noted_seq, n.seq), n.seq)
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence,
               json_extract(value, '$[2]') AS seq FROM json_each(?1)) AS n
 WHERE {lanes_table}.lane = n.lane AND {lanes_table}.fence = n.fence
RETURNING lane, fence";

const CLEAR: &str = "
UPDATE {lanes_table}
   SET noted_seq = NULL
  FROM (SELECT json_extract(value, '$[0]') AS lane, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS h
 WHERE {lanes_table}.lane = h.lane AND {lanes_table}.fence = h.fence
RETURNING lane, fence";

/// The reads of all topics, of some, and of all but some.
#[derive(Debug)]
struct Dues {
    all: Statement,
    only: Statement,
    except: Statement,
}

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
    stuck: Statement,
    claimed: Statement,
    release: Statement,
    leave: Statement,
    held: Statement,
    blocked_among: Statement,
    open: Statement,
    park: Statement,
    mark_parked: Statement,
    due: Dues,
    due_suspect: Dues,
    behind: Statement,
    events: Statement,
    claim: Statement,
    pub(super) unpark: Statement,
    ended: Statement,
    settle: Statement,
    firsts: Statement,
    promote: Statement,
    mark_delivered: Statement,
    pub(super) delete: Statement,
    has_parked: Statement,
    blocked: Statement,
    waiting: Statement,
    owners: Statement,
    lag: Statement,
    parked: Statement,
    dead: Statement,
    unsettled: Statement,
    rows: Statement,
    note: Statement,
    clear: Statement,
}

impl Statements {
    fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        let due = |tried, topics| statement(DUE).with("{tried}", tried).with("{topics}", topics);
        let dues = |tried| Dues { all: due(tried, ""), only: due(tried, ONLY), except: due(tried, EXCEPT) };
        Self {
            join: statement(JOIN),
            renew: statement(RENEW),
            forget: statement(FORGET),
            relays: statement(RELAYS),
            lanes: statement(LANES),
            free: statement(FREE),
            take: statement(TAKE),
            suspect: statement(SUSPECT),
            stuck: statement(STUCK),
            claimed: statement(CLAIMED),
            release: statement(RELEASE),
            leave: statement(LEAVE),
            held: statement(HELD),
            blocked_among: statement(BLOCKED_AMONG),
            open: statement(OPEN),
            park: statement(PARK),
            mark_parked: statement(MARK_PARKED),
            due: dues(""),
            due_suspect: dues("p.attempts,"),
            behind: statement(BEHIND),
            events: statement(EVENTS).with("{columns}", EVENT_COLUMNS),
            claim: statement(CLAIM),
            unpark: statement(UNPARK),
            ended: statement(ENDED),
            settle: statement(SETTLE),
            firsts: statement(FIRSTS),
            promote: statement(PROMOTE),
            mark_delivered: statement(MARK_DELIVERED),
            delete: statement(DELETE),
            has_parked: statement(HAS_PARKED),
            blocked: statement(BLOCKED),
            waiting: statement(WAITING),
            owners: statement(OWNERS),
            lag: statement(LAG),
            parked: statement(PARKED),
            dead: statement(DEAD),
            unsettled: statement(UNSETTLED),
            rows: statement(ROWS).with("{columns}", EVENT_COLUMNS),
            note: statement(NOTE),
            clear: statement(CLEAR),
        }
    }
}

/// A stream in an SQLite file.
#[derive(Debug, Clone)]
pub(super) struct SqliteStream {
    pub(super) pool: SqlitePool,
    pub(super) table: TableName,
    lanes: Lanes,
    pub(super) statements: std::sync::Arc<Statements>,
}

impl SqliteStream {
    /// The stream of this table.
    pub(super) fn new(pool: &SqlitePool, table: &TableName, lanes: Lanes) -> Self {
        let statements = Statements::new(table).into();
        Self { pool: pool.clone(), table: table.clone(), lanes, statements }
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
impl Stream for SqliteStream {
    fn lanes(&self) -> Lanes {
        self.lanes
    }

    async fn beat(&self, beat: &Beat<'_>) -> Result<Council> {
        self.insist(|| self::beat(self, beat)).await
    }

    async fn take(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> Result<Vec<Hold>> {
        self.insist(|| take(self, beat, lanes, absent)).await
    }

    async fn release(&self, holds: &[Hold]) -> Result<()> {
        self.insist(|| release(self, holds)).await
    }

    async fn leave(&self, relay: &WorkerId) -> Result<()> {
        self.insist(|| leave(self, relay)).await
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(FloorReader::new(self.clone()))
    }

    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>> {
        self.insist(|| blocked_among(self, keys)).await
    }

    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>> {
        self.insist(|| park(self, parks)).await
    }

    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
        self.insist(|| claim_parked(self, claim)).await
    }

    async fn claimed(&self, holds: &[Hold]) -> Result<Vec<(Hold, i64)>> {
        self.insist(|| claimed(self, holds)).await
    }

    async fn settle_parked(&self, ends: &[ParkedEnd], keep: Keep) -> Result<Vec<u16>> {
        self.insist(|| settle_parked(self, ends, keep)).await
    }

    async fn has_parked(&self, lanes: &[u16]) -> Result<bool> {
        self.insist(|| has_parked(self, lanes)).await
    }

    async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>> {
        self.insist(|| blocked(self, limit)).await
    }

    async fn lag(&self, cap: u32) -> Result<Vec<LaneLag>> {
        self.insist(|| lag(self, cap)).await
    }
}

#[async_trait]
impl Ground for SqliteStream {
    async fn noted(&self, holds: &[Hold]) -> Result<Vec<(u16, Option<i64>)>> {
        self.insist(|| noted(self, holds)).await
    }

    async fn unsettled(&self, lanes: &[u16], above: i64, limit: u32) -> Result<Vec<i64>> {
        self.insist(|| unsettled(self, lanes, above, limit)).await
    }

    async fn rows(&self, sequences: &[i64]) -> Result<Vec<Row>> {
        self.insist(|| rows(self, sequences)).await
    }

    async fn note(&self, notes: &[(Hold, i64)]) -> Result<Vec<Hold>> {
        self.insist(|| note(self, notes)).await
    }

    async fn deliver(&self, rows: &[(Hold, i64)], keep: Keep) -> Result<Delivered> {
        self.insist(|| deliver(self, rows, keep)).await
    }

    async fn clear(&self, holds: &[Hold]) -> Result<Vec<Hold>> {
        self.insist(|| clear(self, holds)).await
    }
}

// Own.

async fn beat(stream: &SqliteStream, beat: &Beat<'_>) -> sqlx::Result<Council> {
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    sqlx::query(statements.join.sql())
        .bind(beat.relay.as_str().to_owned())
        .bind(micros(beat.lease))
        .execute(&mut *tx)
        .await?;
    if !beat.holds.is_empty() {
        sqlx::query(statements.renew.sql())
            .bind(holds_json(beat.holds.iter().copied()))
            .bind(micros(beat.lease))
            .bind(beat.present)
            .bind(beat.relay.as_str().to_owned())
            .execute(&mut *tx)
            .await?;
    }
    sqlx::query(statements.forget.sql()).execute(&mut *tx).await?;
    let relays = sqlx::query_scalar(statements.relays.sql()).fetch_all(&mut *tx).await?;
    let lanes: Vec<(i64, i64, Option<String>, bool)> =
        sqlx::query_as(statements.lanes.sql()).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    // A file cannot tell whose process is gone.
    let state =
        |(number, fence, owner, free)| LaneState { lane: lane(number), fence, owner, free, absent: false };
    Ok(Council { relays, lanes: lanes.into_iter().map(state).collect() })
}

async fn take(
    stream: &SqliteStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    if lanes.is_empty() {
        return Ok(Vec::new());
    }
    let statements = &stream.statements;
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
    let taken = mask(holds.iter().map(|hold| hold.lane));
    let suspect = sqlx::query(statements.suspect.sql()).bind(taken.clone()).bind(continued);
    suspect.execute(&mut *tx).await?;
    let stuck: Vec<i64> = sqlx::query_scalar(statements.stuck.sql()).bind(taken).fetch_all(&mut *tx).await?;
    promote(&mut tx, statements, &stuck, &[]).await?;
    tx.commit().await?;
    Ok(holds)
}

async fn release(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<()> {
    if holds.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(stream.statements.release.sql()).bind(holds_json(holds.iter().copied()));
    query.execute(&stream.pool).await.map(drop)
}

async fn leave(stream: &SqliteStream, relay: &WorkerId) -> sqlx::Result<()> {
    let query = sqlx::query(stream.statements.leave.sql()).bind(relay.as_str().to_owned());
    query.execute(&stream.pool).await.map(drop)
}

// Park.

async fn blocked_among(stream: &SqliteStream, keys: &[String]) -> sqlx::Result<HashSet<String>> {
    let mut connection = stream.pool.acquire().await?;
    blocked_of(&mut connection, &stream.statements, keys.iter().map(String::as_str)).await
}

async fn park(stream: &SqliteStream, parks: &[Park]) -> sqlx::Result<Vec<u16>> {
    if parks.is_empty() {
        return Ok(Vec::new());
    }
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    let sequences: Vec<i64> = parks.iter().map(|park| park.sequence).collect();
    let open: Vec<i64> = sqlx::query_scalar(statements.open.sql())
        .bind(json!(sequences).to_string())
        .fetch_all(&mut *tx)
        .await?;
    let mut open: HashSet<i64> = open.into_iter().collect();
    let holds = || parks.iter().map(|park| park.hold);
    let held = held(&mut tx, &statements.held, holds()).await?;
    let new: Vec<&Park> =
        parks.iter().filter(|park| held.contains(&park.hold) && open.remove(&park.sequence)).collect();
    if !new.is_empty() {
        let blocked = blocked_of(&mut tx, statements, new.iter().map(|park| park.key.as_str())).await?;
        let places = places(new.iter().copied(), blocked);
        let rows = places.iter().map(|place| place.json(&place.park.id.hyphenated().to_string()));
        sqlx::query(statements.park.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        let marked: Vec<i64> = new.iter().map(|park| park.sequence).collect();
        sqlx::query(statements.mark_parked.sql()).bind(json!(marked).to_string()).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(refused(holds(), &held))
}

async fn claim_parked(stream: &SqliteStream, claim: &ParkedClaim<'_>) -> sqlx::Result<Vec<Parked>> {
    if claim.holds.is_empty() || claim.limit == 0 {
        return Ok(Vec::new());
    }
    let statements = &stream.statements;
    {
        // Mostly nothing is due, and to find that out nothing need be locked.
        let mut connection = stream.pool.acquire().await?;
        if due(&mut connection, statements, claim, claim.holds, 1).await?.is_empty() {
            return Ok(Vec::new());
        }
    }
    let mut tx = begin(&stream.pool).await?;
    let held = held(&mut tx, &statements.held, claim.holds.iter().copied()).await?;
    let held: Vec<Hold> = held.into_iter().collect();
    let firsts = due(&mut tx, statements, claim, &held, claim.limit).await?;
    let waiting = with_runs(&mut tx, statements, firsts, claim).await?;
    let sequences: Vec<i64> = waiting.iter().map(|waiting| waiting.sequence).collect();
    let events =
        sqlx::query(statements.events.sql()).bind(json!(sequences).to_string()).fetch_all(&mut *tx).await?;
    let mut events: HashMap<i64, &SqliteRow> =
        events.iter().map(|row| Ok((row.try_get(15)?, row))).collect::<sqlx::Result<_>>()?;
    let (claimed, gone): (Vec<Waiting>, Vec<Waiting>) =
        waiting.into_iter().partition(|waiting| events.contains_key(&waiting.sequence));
    if !claimed.is_empty() {
        let rows = claimed.iter().map(|waiting| json!([waiting.position, waiting.hold.fence]));
        sqlx::query(statements.claim.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    if !gone.is_empty() {
        let rows = gone.iter().map(|waiting| json!(waiting.position));
        sqlx::query(statements.unpark.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        come_up(&mut tx, statements, gone.iter().map(|waiting| waiting.key.as_str()), &[]).await?;
    }
    let mut parked = Vec::with_capacity(claimed.len());
    for waiting in claimed {
        if let Some(row) = events.remove(&waiting.sequence) {
            parked.push(waiting.into_parked(time_of(row.try_get(16)?)?, decode(row)));
        }
    }
    tx.commit().await?;
    Ok(parked)
}

async fn claimed(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<Vec<(Hold, i64)>> {
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    let query = sqlx::query_as(stream.statements.claimed.sql()).bind(lanes);
    let claimed: Vec<(i64, i64, i64)> = query.fetch_all(&stream.pool).await?;
    let claimed =
        claimed.into_iter().map(|(number, fence, sequence)| (Hold { lane: lane(number), fence }, sequence));
    Ok(claimed.filter(|(hold, _)| holds.contains(hold)).collect())
}

async fn settle_parked(stream: &SqliteStream, ends: &[ParkedEnd], keep: Keep) -> sqlx::Result<Vec<u16>> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    let holds = || ends.iter().map(|end| end.hold);
    let held = held(&mut tx, &statements.held, holds()).await?;
    let ended = ended(&mut tx, statements, ends.iter().filter(|end| held.contains(&end.hold))).await?;
    let (delivered, others): (Vec<&Ended<'_>>, Vec<&Ended<'_>>) =
        ended.iter().partition(|ended| ended.is_delivered());
    if !delivered.is_empty() {
        let rows = delivered.iter().map(|ended| json!(ended.position));
        sqlx::query(statements.unpark.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        let sequences: Vec<i64> = delivered.iter().map(|ended| ended.end.sequence).collect();
        finish(&mut tx, statements, &sequences, keep).await?;
    }
    if !others.is_empty() {
        let rows = others.iter().map(|ended| ended.json());
        sqlx::query(statements.settle.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    if !ended.is_empty() {
        come_up(&mut tx, statements, ended.iter().map(|ended| ended.key.as_str()), &ended).await?;
    }
    tx.commit().await?;
    Ok(refused(holds(), &held))
}

async fn has_parked(stream: &SqliteStream, lanes: &[u16]) -> sqlx::Result<bool> {
    let query = sqlx::query_scalar(stream.statements.has_parked.sql());
    query.bind(mask(lanes.iter().copied())).fetch_one(&stream.pool).await
}

// Operate.

async fn blocked(stream: &SqliteStream, limit: u32) -> sqlx::Result<Vec<BlockedAggregate>> {
    let mut connection = stream.pool.acquire().await?;
    let rows = sqlx::query(stream.statements.blocked.sql()).bind(limit).fetch_all(&mut *connection).await?;
    let mut blocked = Vec::with_capacity(rows.len());
    for row in &rows {
        let waiting = sqlx::query_scalar(stream.statements.waiting.sql())
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

async fn lag(stream: &SqliteStream, cap: u32) -> sqlx::Result<Vec<LaneLag>> {
    let statements = &stream.statements;
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
    let looked_at = (
        events.iter().map(|(_, rows, _)| rows).sum(),
        parked.iter().map(|(_, rows)| rows).sum(),
        dead.iter().map(|(_, _, rows)| rows).sum(),
    );
    let of = |(number, owner): (i64, Option<String>)| {
        let events = events.iter().find(|(lane, ..)| *lane == number);
        let parked = parked.iter().find(|(lane, _)| *lane == number);
        let dead = dead.iter().find(|(lane, ..)| *lane == number);
        LaneLag {
            lane: lane(number),
            owner,
            events: Count::among(looked_at.0, events.map_or(0, |(_, rows, _)| *rows), cap),
            age: events.and_then(|(_, _, micros)| *micros).map(age),
            parked: Count::among(looked_at.1, parked.map_or(0, |(_, rows)| *rows), cap),
            blocked: Count::among(looked_at.2, dead.map_or(0, |(_, keys, _)| *keys), cap),
        }
    };
    Ok(owners.into_iter().map(of).collect())
}

// Read.

async fn noted(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<Vec<(u16, Option<i64>)>> {
    let rows: Vec<(i64, i64, Option<i64>)> = sqlx::query_as(stream.statements.held.sql())
        .bind(holds_json(holds.iter().copied()))
        .fetch_all(&stream.pool)
        .await?;
    Ok(rows.into_iter().map(|(number, _, noted)| (lane(number), noted)).collect())
}

async fn unsettled(stream: &SqliteStream, lanes: &[u16], above: i64, limit: u32) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar(stream.statements.unsettled.sql())
        .bind(above)
        .bind(mask(lanes.iter().copied()))
        .bind(limit)
        .fetch_all(&stream.pool)
        .await
}

async fn rows(stream: &SqliteStream, sequences: &[i64]) -> sqlx::Result<Vec<Row>> {
    let rows = sqlx::query(stream.statements.rows.sql())
        .bind(json!(sequences).to_string())
        .fetch_all(&stream.pool)
        .await?;
    let read = |row: &SqliteRow| {
        Ok(Row {
            hold: Hold { lane: lane(row.try_get(17)?), fence: 0 },
            sequence: row.try_get(15)?,
            id: id(row, 0).unwrap_or_default(),
            topic: row.try_get(1).unwrap_or_default(),
            created_at: time_of(row.try_get(16)?)?,
            delayed: row.try_get(18)?,
            suspect: false,
            event: decode(row),
        })
    };
    rows.iter().map(read).collect()
}

async fn note(stream: &SqliteStream, notes: &[(Hold, i64)]) -> sqlx::Result<Vec<Hold>> {
    let rows = notes.iter().map(|(hold, sequence)| json!([hold.lane, hold.fence, sequence]));
    let query = sqlx::query_as(stream.statements.note.sql()).bind(json_text(rows));
    let written = read_holds(query.fetch_all(&stream.pool).await?);
    Ok(notes.iter().map(|(hold, _)| *hold).filter(|hold| !written.contains(hold)).collect())
}

async fn deliver(stream: &SqliteStream, rows: &[(Hold, i64)], keep: Keep) -> sqlx::Result<Delivered> {
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    let held = held(&mut tx, &statements.held, rows.iter().map(|(hold, _)| *hold)).await?;
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().copied().partition(|(hold, _)| held.contains(hold));
    let sequences = json_text(ours.iter().map(|(_, sequence)| json!(sequence)));
    let open: Vec<i64> =
        sqlx::query_scalar(statements.open.sql()).bind(sequences).fetch_all(&mut *tx).await?;
    if !open.is_empty() {
        finish(&mut tx, statements, &open, keep).await?;
    }
    tx.commit().await?;
    Ok(Delivered { refused: others.into_iter().map(|(hold, _)| hold).collect(), busy: Vec::new() })
}

async fn clear(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<Vec<Hold>> {
    let query = sqlx::query_as(stream.statements.clear.sql()).bind(holds_json(holds.iter().copied()));
    let written = read_holds(query.fetch_all(&stream.pool).await?);
    Ok(holds.iter().copied().filter(|hold| !written.contains(hold)).collect())
}

// Parts of them.

/// A transaction that nobody else writes beside.
pub(super) async fn begin(pool: &SqlitePool) -> sqlx::Result<Transaction<'static, Sqlite>> {
    pool.begin_with("BEGIN IMMEDIATE").await
}

/// Which of these are still held; they stay so to the end of the transaction.
async fn held(
    tx: &mut Transaction<'static, Sqlite>,
    statement: &Statement,
    holds: impl Iterator<Item = Hold>,
) -> sqlx::Result<HashSet<Hold>> {
    let query = sqlx::query_as(statement.sql()).bind(holds_json(holds));
    let held: Vec<(i64, i64, Option<i64>)> = query.fetch_all(&mut **tx).await?;
    Ok(held.into_iter().map(|(number, fence, _)| Hold { lane: lane(number), fence }).collect())
}

fn read_holds(rows: Vec<(i64, i64)>) -> Vec<Hold> {
    rows.into_iter().map(|(number, fence)| Hold { lane: lane(number), fence }).collect()
}

/// Which of these aggregates have events parked that others wait behind.
async fn blocked_of(
    connection: &mut SqliteConnection,
    statements: &Statements,
    keys: impl Iterator<Item = &str>,
) -> sqlx::Result<HashSet<String>> {
    let query = sqlx::query_scalar(statements.blocked_among.sql()).bind(keys_json(keys));
    Ok(query.fetch_all(connection).await?.into_iter().collect())
}

/// Parked events that are due, longest first, and at most one suspect among them.
async fn due(
    connection: &mut SqliteConnection,
    statements: &Statements,
    claim: &ParkedClaim<'_>,
    holds: &[Hold],
    limit: u32,
) -> sqlx::Result<Vec<Waiting>> {
    let fences: HashMap<u16, i64> = holds.iter().map(|hold| (hold.lane, hold.fence)).collect();
    let mask = mask(holds.iter().map(|hold| hold.lane));
    let mut kinds = Vec::with_capacity(2);
    let dues = [(&statements.due_suspect, true, u32::from(claim.suspects)), (&statements.due, false, limit)];
    for (Dues { all, only, except }, suspect, limit) in dues {
        let statement = claim.topics.choose([all, only, except]);
        let mut query = sqlx::query(statement.sql()).bind(suspect).bind(mask.clone()).bind(limit);
        if let Some(topics) = claim.topics.json() {
            query = query.bind(topics);
        }
        let rows = if limit == 0 { Vec::new() } else { query.fetch_all(&mut *connection).await? };
        kinds.push(rows.iter().map(|row| waiting(row, &fences)).collect::<sqlx::Result<Vec<_>>>()?);
    }
    Ok(longest_due(kinds.pop().unwrap_or_default(), kinds.pop().unwrap_or_default(), limit))
}

/// These, each followed by those right behind it where it was never tried, as far as the limit goes.
async fn with_runs(
    connection: &mut SqliteConnection,
    statements: &Statements,
    firsts: Vec<Waiting>,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Waiting>> {
    let mut room = (claim.limit as usize).saturating_sub(firsts.len());
    let mut runs = 0;
    let mut found = Vec::with_capacity(claim.limit as usize);
    for first in firsts {
        let fences = HashMap::from([(first.hold.lane, first.hold.fence)]);
        let behind = if first.leads() && room > 0 && runs < MOST_RUNS {
            runs += 1;
            sqlx::query(statements.behind.sql())
                .bind(first.key.clone())
                .bind(first.position)
                .bind(i64::try_from(room).unwrap_or(i64::MAX))
                .fetch_all(&mut *connection)
                .await?
        } else {
            Vec::new()
        };
        found.push(first);
        for row in &behind {
            let next = waiting(row, &fences)?;
            if !row.try_get::<bool, _>(11)? || !claim.topics.has(&next.topic) {
                break;
            }
            found.push(next);
            room -= 1;
        }
    }
    Ok(found)
}

fn waiting(row: &SqliteRow, fences: &HashMap<u16, i64>) -> sqlx::Result<Waiting> {
    let lane = lane(row.try_get(3)?);
    Ok(Waiting {
        hold: Hold { lane, fence: fences.get(&lane).copied().unwrap_or_default() },
        position: row.try_get(0)?,
        sequence: row.try_get(1)?,
        id: id(row, 2)?,
        topic: row.try_get(4)?,
        key: row.try_get(5)?,
        attempts: row.try_get(6)?,
        suspect: row.try_get(7)?,
        blocks: row.try_get(8)?,
        last_error: row.try_get(9)?,
        due: row.try_get(10)?,
    })
}

/// Those of these whose event is claimed by who says so, each once.
async fn ended<'e>(
    connection: &mut SqliteConnection,
    statements: &Statements,
    ends: impl Iterator<Item = &'e ParkedEnd>,
) -> sqlx::Result<Vec<Ended<'e>>> {
    let mut by_sequence: HashMap<i64, &ParkedEnd> = HashMap::new();
    for end in ends {
        by_sequence.entry(end.sequence).or_insert(end);
    }
    let rows = by_sequence.values().map(|end| json!([end.sequence, end.hold.lane, end.hold.fence]));
    let query = sqlx::query_as(statements.ended.sql()).bind(json_text(rows));
    let found: Vec<(i64, i64, String, bool)> = query.fetch_all(connection).await?;
    let mut ended: Vec<Ended<'e>> = found
        .into_iter()
        .filter_map(|(position, sequence, key, blocks)| {
            by_sequence.remove(&sequence).map(|end| Ended { position, key, blocks, end })
        })
        .collect();
    ended.sort_by_key(|ended| ended.position);
    Ok(ended)
}

/// Lets the first of each of these aggregates come up.
pub(super) async fn come_up(
    connection: &mut SqliteConnection,
    statements: &Statements,
    keys: impl Iterator<Item = &str>,
    ended: &[Ended<'_>],
) -> sqlx::Result<()> {
    let query = sqlx::query_scalar::<_, Option<i64>>(statements.firsts.sql()).bind(keys_json(keys));
    let mut firsts: Vec<i64> = query.fetch_all(&mut *connection).await?.into_iter().flatten().collect();
    firsts.sort_unstable();
    promote(connection, statements, &firsts, ended).await
}

/// Makes these first ones due, unless they are already, or claimed, or dead.
async fn promote(
    connection: &mut SqliteConnection,
    statements: &Statements,
    firsts: &[i64],
    ended: &[Ended<'_>],
) -> sqlx::Result<()> {
    if firsts.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(statements.promote.sql()).bind(firsts_json(firsts, ended));
    query.execute(connection).await.map(drop)
}

/// Marks events as delivered or deletes them.
async fn finish(
    connection: &mut SqliteConnection,
    statements: &Statements,
    sequences: &[i64],
    keep: Keep,
) -> sqlx::Result<()> {
    let statement = match keep {
        Keep::Delivered => &statements.mark_delivered,
        Keep::Nothing => &statements.delete,
    };
    sqlx::query(statement.sql()).bind(json!(sequences).to_string()).execute(connection).await.map(drop)
}

fn id(row: &SqliteRow, at: usize) -> sqlx::Result<Uuid> {
    Uuid::try_parse(row.try_get(at)?).map_err(|error| sqlx::Error::Decode(error.into()))
}
