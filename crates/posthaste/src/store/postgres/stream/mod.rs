//! Streams: lanes with owners and fences, and what is parked. Reading is in `window.rs`.

pub(super) mod admin;
mod snapshot;
pub(super) mod window;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row as _;
use sqlx::postgres::{PgPool, PgRow};
use uuid::Uuid;

use super::errors::classify;
use super::session::CLASS_PRESENCE;
use super::{EVENT_COLUMNS, PLACED, decode};
use crate::error::{Error, Result};
use crate::store::settlement::{micros, stored_error};
use crate::store::statement::Statement;
use crate::store::stream::{
    Beat, BlockedAggregate, Council, Hold, LaneLag, LaneState, Park, Parked, ParkedClaim, ParkedEnd,
    ParkedVerdict, Reader, Wait,
};
use crate::store::tries::Tries;
use crate::store::{Count, Dialect, Keep, Lanes, Stream, TableName, WorkerId};
use window::WindowReader;

// $1 relay, $2 lease, $3 whether its session is known, $4 and $5 what it holds. Nothing is written before a quarter of the lease
// is over.
const BEAT: &str = "
WITH me AS (
    INSERT INTO {relays_table} AS r (relay, until) SELECT $1, now() + $2 * interval '1 microsecond' WHERE {unsynced}
    ON CONFLICT (relay) DO UPDATE SET seen_at = now(), until = excluded.until
     WHERE r.until < now() + ($2 * 3 / 4) * interval '1 microsecond'
), gone AS (
    DELETE FROM {relays_table} WHERE until < now() - interval '1 minute' AND relay <> $1
), locked AS (
    SELECT l.lane FROM {lanes_table} AS l
      JOIN unnest($4::smallint[], $5::bigint[]) AS h(lane, fence) ON h.lane = l.lane AND h.fence = l.fence
     WHERE coalesce(l.leased_until, '-infinity') < now() + ($2 * 3 / 4) * interval '1 microsecond' OR l.present <> $3
     ORDER BY l.lane FOR UPDATE OF l
)
UPDATE {lanes_table} AS l
   SET leased_until = now() + $2 * interval '1 microsecond', present = $3
  FROM locked WHERE l.lane = locked.lane";

const RELAYS: &str = "SELECT relay FROM {relays_table} WHERE until > now() ORDER BY joined_at, relay";

// $1 the class of presence. The lanes are read before the locks.
const LANES: &str = "
SELECT l.lane, l.fence, l.owner, l.owner IS NULL OR l.leased_until IS NULL OR l.leased_until <= now(),
       l.present AND hashtext(l.owner || '~')::oid NOT IN (
           SELECT objid FROM pg_locks
            WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = $1::oid
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
  FROM {lanes_table} AS l ORDER BY l.lane";

// $1 lanes, $2 absent owners, $3 relay, $4 lease, $5 whether its session is known. A fence is a time where the one before allows:
// a standby that is promoted without having heard of the last owners does not give out their fences again.
const TAKE: &str = "
WITH free AS (
    SELECT lane, fence FROM {lanes_table}
     WHERE lane = ANY ($1)
       AND (owner IS NULL OR leased_until IS NULL OR leased_until <= now() OR owner = $3 OR owner = ANY ($2))
     ORDER BY lane FOR UPDATE
)
UPDATE {lanes_table} AS l
   SET owner = $3, leased_until = now() + $4 * interval '1 microsecond', present = $5,
       fence = greatest(l.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
  FROM free WHERE l.lane = free.lane
RETURNING l.lane, l.fence, free.fence";

// $1 lanes that were taken, $2 those of them that go on.
const SUSPECT: &str = "
UPDATE {parked_table}
   SET claimed = NULL, suspect = suspect OR lane <> ALL ($2), due = CASE WHEN blocks THEN NULL ELSE now() END
 WHERE lane = ANY ($1) AND claimed IS NOT NULL";

// $1 lanes that go on: another step at the same place, without a note of what was under way.
const UNNOTE: &str = "
WITH noted AS (
    SELECT * FROM {placed} AS l WHERE l.lane = ANY ($1) AND l.noted IS NOT NULL
), forgotten AS (
    DELETE FROM {places_table} AS p USING noted WHERE p.lane = noted.lane AND p.step <= noted.step - 8
)
INSERT INTO {places_table} (lane, step, base, base_seq, target, after_seq, anchor_seq, recover, recover_seq)
SELECT lane, step + 1, base, base_seq, target, after_seq, anchor_seq, recover, recover_seq FROM noted";

// What stands first of its key and waits for nobody. The firsts are found once, not for every row, whatever the planner knows of
// the table.
const REPAIR: &str = "
WITH firsts AS MATERIALIZED (
    SELECT min(position) AS position FROM {parked_table} WHERE lane = ANY ($1) AND blocks GROUP BY key
)
UPDATE {parked_table} AS p
   SET due = now()
  FROM firsts AS f
 WHERE p.position = f.position AND p.due IS NULL AND p.claimed IS NULL AND p.outcome IS NULL";

const RELEASE: &str = "
WITH locked AS (
    SELECT l.lane FROM {lanes_table} AS l
      JOIN unnest($1::smallint[], $2::bigint[]) AS h(lane, fence) ON h.lane = l.lane AND h.fence = l.fence
     ORDER BY l.lane FOR UPDATE OF l
)
UPDATE {lanes_table} AS l
   SET owner = NULL, leased_until = NULL, present = false
  FROM locked WHERE l.lane = locked.lane";

const LEAVE: &str = "DELETE FROM {relays_table} WHERE relay = $1";

// Whose session is gone has no share: one that lives says so again with its next beat.
const GONE: &str = "DELETE FROM {relays_table} WHERE relay = ANY ($1)";

const BLOCKED_AMONG: &str = "SELECT DISTINCT key FROM {parked_table} WHERE blocks AND key = ANY ($1)";

// Whose lanes are still held; they stay so until the statement is done.
const HELD: &str = "
held AS (
    SELECT l.lane FROM {lanes_table} AS l
     WHERE (l.lane, l.fence) IN (SELECT said.lane, said.fence FROM said)
     ORDER BY l.lane FOR SHARE
)";

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
)
SELECT DISTINCT lane FROM said WHERE lane NOT IN (SELECT lane FROM held)";

const UNSYNCED: &str = "(SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL";

// $1 and $2 lanes and fences, $3 limit, $4 whether a suspect may be among them, $5 topics.
const CLAIM: &str = "
WITH said AS (
    SELECT * FROM unnest($1::smallint[], $2::bigint[]) AS s(lane, fence) WHERE {unsynced}
), {held}, heads AS (
    (SELECT p.position, p.key, p.due, p.blocks AND p.attempts = 0 AS leads
       FROM {parked_table} AS p
      WHERE p.due <= now() AND p.claimed IS NULL AND p.outcome IS NULL AND NOT p.suspect
        AND p.lane IN (SELECT lane FROM held) {topics}
      ORDER BY p.due, p.position LIMIT $3)
    UNION ALL
    (SELECT p.position, p.key, p.due, false
       FROM {parked_table} AS p
      WHERE p.due <= now() AND p.claimed IS NULL AND p.outcome IS NULL AND p.suspect AND $4
        AND p.lane IN (SELECT lane FROM held) {topics}
      ORDER BY p.attempts, p.due, p.position LIMIT 1)
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
    SELECT c.n, p.position, p.id, said.fence
      FROM chosen AS c JOIN {parked_table} AS p ON p.position = c.position JOIN said ON said.lane = p.lane
)
UPDATE {parked_table} AS p
   SET claimed = named.fence, attempts = p.attempts + 1
  FROM named LEFT JOIN LATERAL (
       SELECT {columns}, created_at FROM {table} AS e WHERE e.id = named.id) AS o ON true
 WHERE p.position = named.position AND p.claimed IS NULL
RETURNING o.*, p.seq, p.id, p.topic, p.lane, p.claimed, p.position, p.attempts, p.suspect, p.last_error, named.n";

const CLAIMED: &str = "
SELECT p.lane, p.claimed, p.seq
  FROM {parked_table} AS p
  JOIN unnest($1::smallint[], $2::bigint[]) AS h(lane, fence) ON h.lane = p.lane AND h.fence = p.claimed";

const FORGET: &str = "DELETE FROM {parked_table} WHERE position = ANY ($1) RETURNING key";

const TOPICS: [&str; 3] = ["", "AND p.topic = ANY ($5)", "AND p.topic <> ALL ($5)"];

// Verdicts: 0 delivered, 1 retry, 2 dead, 3 released, 4 behind. What was released may itself wait for others: if it does not, it is
// let come up.
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
           outcome    = CASE WHEN s.verdict = 2 THEN 'dead' END,
           settled_at = CASE WHEN s.verdict = 2 THEN now() END,
           blocks     = CASE s.verdict WHEN 1 THEN true WHEN 2 THEN s.blocks ELSE p.blocks END,
           last_error = coalesce(s.error, p.last_error)
      FROM said AS s
     WHERE s.verdict <> 0 AND p.seq = s.seq AND p.claimed = s.fence AND s.lane IN (SELECT lane FROM held)
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
  FROM firsts AS f
 WHERE p.position = f.position AND p.due IS NULL AND p.claimed IS NULL AND p.outcome IS NULL";

const HAS_PARKED: &str = "SELECT EXISTS (SELECT FROM {parked_table} WHERE lane = ANY ($1))";

// $1 limit, $2 how many that wait are counted.
const BLOCKED: &str = "
SELECT o.namespace, o.aggregate_type, o.aggregate_id, p.lane, p.id, p.topic, coalesce(p.last_error, ''), p.settled_at,
       (SELECT count(*) FROM (SELECT FROM {parked_table} AS w
                               WHERE w.key = p.key AND w.position > p.position LIMIT $2 + 1) AS waiting)
  FROM {parked_table} AS p JOIN {table} AS o ON o.id = p.id
 WHERE p.outcome = 'dead' AND p.blocks AND o.aggregate_id IS NOT NULL
 ORDER BY p.settled_at, p.position LIMIT $1";

// $1 how many rows are looked at. Rows of transactions that ended late are few and not looked for.
const LAG: &str = "
WITH looked_at AS (
    SELECT o.lane, o.created_at, o.xid, o.seq FROM {table} AS o
     WHERE o.seq > (SELECT min(CASE WHEN recover IS NULL THEN greatest(base_seq, after_seq) ELSE after_seq END) FROM {placed} AS l)
     ORDER BY o.seq LIMIT $1 + 1
), unread AS (
    SELECT o.lane, count(*) AS n, min(o.created_at) AS oldest
      FROM looked_at AS o JOIN {placed} AS l ON l.lane = o.lane
     WHERE NOT (o.seq <= l.anchor_seq AND (l.recover IS NULL OR o.seq <= l.after_seq))
       AND NOT (o.seq > l.anchor_seq AND pg_visible_in_snapshot(o.xid, l.base))
       AND NOT (l.target IS NOT NULL AND o.seq <= l.after_seq AND pg_visible_in_snapshot(o.xid, l.target))
       AND NOT EXISTS (SELECT FROM {parked_table} AS p WHERE p.seq = o.seq)
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
pub(super) struct Statements {
    beat: Statement,
    relays: Statement,
    lanes: Statement,
    take: Statement,
    suspect: Statement,
    unnote: Statement,
    repair: Statement,
    release: Statement,
    leave: Statement,
    gone: Statement,
    blocked_among: Statement,
    park: Statement,
    claim: [Statement; 3],
    claimed: Statement,
    forget: Statement,
    settle: Statement,
    pub(super) promote: Statement,
    has_parked: Statement,
    blocked: Statement,
    lag: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        // What it is put into has placeholders of its own.
        let statement = |sql: &'static str, topics: &'static str| {
            Statement::new(Dialect::Postgres, table, sql)
                .with("{unsynced}", UNSYNCED)
                .with("{topics}", topics)
                .with("{columns}", EVENT_COLUMNS)
                .with_rendered("{placed}", &Statement::new(Dialect::Postgres, table, PLACED))
                .with_rendered("{held}", &Statement::new(Dialect::Postgres, table, HELD))
        };
        let plain = |sql| statement(sql, "");
        Self {
            beat: plain(BEAT),
            relays: plain(RELAYS),
            lanes: plain(LANES),
            take: plain(TAKE),
            suspect: plain(SUSPECT),
            unnote: plain(UNNOTE),
            repair: plain(REPAIR),
            release: plain(RELEASE),
            leave: plain(LEAVE),
            gone: plain(GONE),
            blocked_among: plain(BLOCKED_AMONG),
            park: plain(PARK),
            claim: TOPICS.map(|topics| statement(CLAIM, topics)),
            claimed: plain(CLAIMED),
            forget: plain(FORGET),
            settle: plain(SETTLE),
            promote: plain(PROMOTE),
            has_parked: plain(HAS_PARKED),
            blocked: plain(BLOCKED),
            lag: plain(LAG),
        }
    }
}

/// A stream in PostgreSQL.
pub(super) struct PostgresStream {
    pool: PgPool,
    table: TableName,
    statements: Arc<super::Statements>,
    lanes: Lanes,
}

impl PostgresStream {
    pub(super) fn new(
        pool: PgPool,
        table: TableName,
        statements: Arc<super::Statements>,
        lanes: Lanes,
    ) -> Self {
        Self { pool, table, statements, lanes }
    }

    fn error(&self, error: sqlx::Error) -> Error {
        classify(error, &self.table)
    }

    fn statements(&self) -> &Statements {
        &self.statements.stream
    }

    async fn take_once(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> sqlx::Result<Vec<Hold>> {
        let mut tx = self.pool.begin().await?;
        let taken: Vec<(i16, i64, i64)> = sqlx::query_as(self.statements().take.sql())
            .bind(numbers(lanes))
            .bind(absent)
            .bind(beat.relay.as_str())
            .bind(micros(beat.lease))
            .bind(beat.present)
            .fetch_all(&mut *tx)
            .await?;
        if !absent.is_empty() {
            sqlx::query(self.statements().gone.sql()).bind(absent).execute(&mut *tx).await?;
        }
        let numbers: Vec<i16> = taken.iter().map(|(lane, ..)| *lane).collect();
        let goes_on =
            |lane: i16, before: i64| beat.holds.contains(&Hold { lane: lane as u16, fence: before });
        let going_on: Vec<i16> = taken
            .iter()
            .filter(|(lane, _, before)| goes_on(*lane, *before))
            .map(|(lane, ..)| *lane)
            .collect();
        sqlx::query(self.statements().suspect.sql()).bind(&numbers).bind(&going_on).execute(&mut *tx).await?;
        if !going_on.is_empty() {
            sqlx::query(self.statements().unnote.sql()).bind(&going_on).execute(&mut *tx).await?;
        }
        sqlx::query(self.statements().repair.sql()).bind(&numbers).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(taken.into_iter().map(|(lane, fence, _)| Hold { lane: lane as u16, fence }).collect())
    }

    async fn settle_once(&self, ends: &[ParkedEnd]) -> sqlx::Result<Vec<u16>> {
        let mut tx = self.pool.begin().await?;
        let settled: Vec<(Option<String>, Option<i16>)> = sqlx::query_as(self.statements().settle.sql())
            .bind(ends.iter().map(|end| end.hold.lane as i16).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| end.hold.fence).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| end.sequence).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| code(&end.verdict)).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| delay(&end.verdict)).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| error_of(&end.verdict)).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| blocks(&end.verdict)).collect::<Vec<_>>())
            .fetch_all(&mut *tx)
            .await?;
        let keys: Vec<&str> = settled.iter().filter_map(|(key, _)| key.as_deref()).collect();
        sqlx::query(self.statements().promote.sql())
            .bind(&keys)
            .bind(ends.iter().map(|end| end.sequence).collect::<Vec<_>>())
            .bind(ends.iter().map(|end| delay(&end.verdict)).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(settled.iter().filter_map(|(_, lane)| lane.map(|lane| lane as u16)).collect())
    }

    async fn park_once(&self, parks: &[Park]) -> sqlx::Result<Vec<u16>> {
        let refused: Vec<i16> = sqlx::query_scalar(self.statements().park.sql())
            .bind(parks.iter().map(|park| park.hold.lane as i16).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| park.hold.fence).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| park.sequence).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| park.id).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| park.topic.as_str()).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| park.key.as_str()).collect::<Vec<_>>())
            .bind(
                parks.iter().map(|park| i32::try_from(park.attempts).unwrap_or(i32::MAX)).collect::<Vec<_>>(),
            )
            .bind(parks.iter().map(|park| park.error.as_deref().map(stored_error)).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| wait_code(park.wait)).collect::<Vec<_>>())
            .bind(parks.iter().map(|park| wait_delay(park.wait)).collect::<Vec<_>>())
            .fetch_all(&self.pool)
            .await?;
        Ok(refused.into_iter().map(|lane| lane as u16).collect())
    }

    async fn claim_once(&self, claim: &ParkedClaim<'_>) -> sqlx::Result<Vec<Parked>> {
        let [all, only, except] = &self.statements().claim;
        let mut query = sqlx::query(claim.topics.choose([all, only, except]).sql())
            .bind(claim.holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(claim.holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .bind(i64::from(claim.limit))
            .bind(claim.suspects);
        if let Some(topics) = claim.topics.named() {
            query = query.bind(topics);
        }
        let rows = query.fetch_all(&self.pool).await?;
        let mut parked = Vec::with_capacity(rows.len());
        let mut without_event = Vec::new();
        for row in &rows {
            match row.try_get::<Option<Uuid>, _>(0)? {
                Some(_) => parked.push((row.try_get::<i64, _>(25)?, read_parked(row)?)),
                None => without_event.push(row.try_get::<i64, _>(21)?),
            }
        }
        if !without_event.is_empty() {
            let mut tx = self.pool.begin().await?;
            let keys: Vec<String> = sqlx::query_scalar(self.statements().forget.sql())
                .bind(&without_event)
                .fetch_all(&mut *tx)
                .await?;
            sqlx::query(self.statements().promote.sql())
                .bind(&keys)
                .bind(Vec::<i64>::new())
                .bind(Vec::<i64>::new())
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
        }
        parked.sort_by_key(|(n, _)| *n);
        Ok(parked.into_iter().map(|(_, parked)| parked).collect())
    }
}

#[async_trait]
impl Stream for PostgresStream {
    fn lanes(&self) -> Lanes {
        self.lanes
    }

    async fn beat(&self, beat: &Beat<'_>) -> Result<Council> {
        sqlx::query(self.statements().beat.sql())
            .bind(beat.relay.as_str())
            .bind(micros(beat.lease))
            .bind(beat.present)
            .bind(beat.holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(beat.holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .execute(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        let relays = sqlx::query_scalar(self.statements().relays.sql()).fetch_all(&self.pool).await;
        let lanes =
            sqlx::query_as(self.statements().lanes.sql()).bind(CLASS_PRESENCE).fetch_all(&self.pool).await;
        let lanes: Vec<(i16, i64, Option<String>, bool, Option<bool>)> = lanes.map_err(|e| self.error(e))?;
        let lanes = lanes.into_iter().map(|(lane, fence, owner, free, absent)| LaneState {
            lane: lane as u16,
            fence,
            owner,
            free,
            absent: absent.unwrap_or(false),
        });
        Ok(Council { relays: relays.map_err(|e| self.error(e))?, lanes: lanes.collect() })
    }

    async fn take(&self, beat: &Beat<'_>, lanes: &[u16], absent: &[String]) -> Result<Vec<Hold>> {
        let mut tries = Tries::default();
        loop {
            match self.take_once(beat, lanes, absent).await.map_err(|e| self.error(e)) {
                Err(error) if tries.again(&error) => {}
                taken => return taken,
            }
        }
    }

    async fn release(&self, holds: &[Hold]) -> Result<()> {
        sqlx::query(self.statements().release.sql())
            .bind(holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|e| self.error(e))
    }

    async fn leave(&self, relay: &WorkerId) -> Result<()> {
        let left = sqlx::query(self.statements().leave.sql()).bind(relay.as_str()).execute(&self.pool).await;
        left.map(drop).map_err(|e| self.error(e))
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(WindowReader::new(self.pool.clone(), self.table.clone(), Arc::clone(&self.statements)))
    }

    async fn blocked_among(&self, keys: &[String]) -> Result<HashSet<String>> {
        let blocked =
            sqlx::query_scalar(self.statements().blocked_among.sql()).bind(keys).fetch_all(&self.pool).await;
        blocked.map(HashSet::from_iter).map_err(|e| self.error(e))
    }

    async fn park(&self, parks: &[Park]) -> Result<Vec<u16>> {
        let mut tries = Tries::default();
        loop {
            match self.park_once(parks).await.map_err(|e| self.error(e)) {
                Err(error) if tries.again(&error) => {}
                refused => return refused,
            }
        }
    }

    async fn claim_parked(&self, claim: &ParkedClaim<'_>) -> Result<Vec<Parked>> {
        let mut tries = Tries::default();
        loop {
            match self.claim_once(claim).await.map_err(|e| self.error(e)) {
                Err(error) if tries.again(&error) => {}
                parked => return parked,
            }
        }
    }

    async fn claimed(&self, holds: &[Hold]) -> Result<Vec<(Hold, i64)>> {
        let claimed: Vec<(i16, i64, i64)> = sqlx::query_as(self.statements().claimed.sql())
            .bind(holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .bind(holds.iter().map(|hold| hold.fence).collect::<Vec<_>>())
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
        let held = |(lane, fence, sequence)| (Hold { lane: lane as u16, fence }, sequence);
        Ok(claimed.into_iter().map(held).collect())
    }

    // The event's row stays as it is, whatever is to be kept: rows go by their age.
    async fn settle_parked(&self, ends: &[ParkedEnd], _keep: Keep) -> Result<Vec<u16>> {
        let mut tries = Tries::default();
        loop {
            match self.settle_once(ends).await.map_err(|e| self.error(e)) {
                Err(error) if tries.again(&error) => {}
                refused => return refused,
            }
        }
    }

    async fn repair(&self, holds: &[Hold]) -> Result<()> {
        let repaired = sqlx::query(self.statements().repair.sql())
            .bind(holds.iter().map(|hold| hold.lane as i16).collect::<Vec<_>>())
            .execute(&self.pool)
            .await;
        repaired.map(drop).map_err(|e| self.error(e))
    }

    async fn has_parked(&self, lanes: &[u16]) -> Result<bool> {
        sqlx::query_scalar(self.statements().has_parked.sql())
            .bind(numbers(lanes))
            .fetch_one(&self.pool)
            .await
            .map_err(|e| self.error(e))
    }

    async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>> {
        /// More that wait behind one event are not counted.
        const MOST_WAITING: u32 = 10_000;
        let rows = sqlx::query(self.statements().blocked.sql())
            .bind(i64::from(limit))
            .bind(i64::from(MOST_WAITING))
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
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
        rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(|e| self.error(e))
    }

    async fn lag(&self, cap: u32) -> Result<Vec<LaneLag>> {
        let rows = sqlx::query(self.statements().lag.sql())
            .bind(i64::from(cap))
            .fetch_all(&self.pool)
            .await
            .map_err(|e| self.error(e))?;
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
        rows.iter().map(read).collect::<sqlx::Result<_>>().map_err(|e| self.error(e))
    }
}

fn numbers(lanes: &[u16]) -> Vec<i16> {
    lanes.iter().map(|lane| *lane as i16).collect()
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
        created_at: row.try_get(15)?,
        event: decode(row),
    })
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
        ParkedVerdict::Retry { error, .. } | ParkedVerdict::Dead { error, .. } => Some(stored_error(error)),
        _ => None,
    }
}

fn blocks(verdict: &ParkedVerdict) -> Option<bool> {
    match verdict {
        ParkedVerdict::Dead { blocks, .. } => Some(*blocks),
        _ => None,
    }
}
