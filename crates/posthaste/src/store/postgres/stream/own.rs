//! Owning lanes: who lives, which lanes are whose, and taking and giving them up.

use super::super::session::CLASS_PRESENCE;
use super::window::RUN;
use super::{PostgresStream, begin, fences, lanes, numbers, park};
use crate::error::Result;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::{Beat, Council, Hold, LaneState};
use crate::store::tries::Tries;
use crate::store::{TableName, WorkerId};

// $1 relay, $2 lease, $3 whether its session is known, $4 and $5 what it holds, $6 the class of presence, $7 to $9 how far it
// has read, $10 whether something of it may be parked. Nothing is written before a quarter of the lease is over. What is answered is what was there before that, but for
// lanes that are renewed; the lanes are read before the locks. One that was due and could not be locked is somebody else's by now.
//
// News are looked for by the index on transactions, whatever the planner thinks of them; and are taken for granted in another run of
// the server than the one that was read, or where more transactions were seen than there are: their numbers are given out anew.
const BEAT: &str = "
WITH me AS (
    INSERT INTO {relays_table} AS r (relay, until) SELECT $1, now() + $2 * interval '1 microsecond' WHERE {unsynced}
    ON CONFLICT (relay) DO UPDATE SET seen_at = now(), until = excluded.until
     WHERE r.until < now() + ($2 * 3 / 4) * interval '1 microsecond'
), gone AS (
    DELETE FROM {relays_table} WHERE until < now() - interval '1 minute' AND relay <> $1
), due AS MATERIALIZED (
    SELECT l.lane, l.fence FROM {lanes_table} AS l
      JOIN unnest($4::smallint[], $5::bigint[]) AS h(lane, fence) ON h.lane = l.lane AND h.fence = l.fence
     WHERE coalesce(l.leased_until, '-infinity') < now() + ($2 * 3 / 4) * interval '1 microsecond' OR l.present <> $3
), locked AS (
    SELECT l.lane FROM {lanes_table} AS l JOIN due ON due.lane = l.lane AND due.fence = l.fence
     ORDER BY l.lane FOR UPDATE OF l
), renewed AS (
    UPDATE {lanes_table} AS l
       SET leased_until = now() + $2 * interval '1 microsecond', present = $3
      FROM locked WHERE l.lane = locked.lane
), lanes AS (
    SELECT l.lane, l.fence, l.owner,
           l.owner IS NULL
               OR (l.leased_until IS NULL OR l.leased_until <= now() OR l.lane IN (SELECT lane FROM due))
                  AND l.lane NOT IN (SELECT lane FROM locked) AS free,
           coalesce(l.present AND hashtext(l.owner || '~')::oid NOT IN (
               SELECT objid FROM pg_locks
                WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = $6::oid
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())), false) AS absent
      FROM {lanes_table} AS l
)
SELECT array_agg(lane ORDER BY lane), array_agg(fence ORDER BY lane), array_agg(owner ORDER BY lane),
       array_agg(free ORDER BY lane), array_agg(absent ORDER BY lane),
       ARRAY(SELECT relay FROM {relays_table} WHERE until > now() OR relay = $1 ORDER BY joined_at, relay),
       CASE WHEN $7 IS NOT NULL THEN
            $9 <> {run} OR $7::text::xid8 > pg_snapshot_xmax(pg_current_snapshot())
            OR coalesce((SELECT xid FROM {table} ORDER BY xid DESC LIMIT 1) >= $7::text::xid8, false)
            OR EXISTS (SELECT FROM unnest($8::text[]::xid8[]) AS x(running) CROSS JOIN LATERAL (
                       SELECT FROM {table} WHERE xid BETWEEN x.running AND x.running ORDER BY xid LIMIT 1) AS late)
            OR $10 AND EXISTS (SELECT FROM unnest($4::smallint[]) AS h(lane) CROSS JOIN LATERAL (
                               (SELECT FROM {parked_table} AS p
                                 WHERE p.lane = h.lane AND p.due <= now() AND p.claimed IS NULL AND NOT p.suspect
                                 ORDER BY p.due LIMIT 1)
                               UNION ALL
                               (SELECT FROM {parked_table} AS p
                                 WHERE p.lane = h.lane AND p.due <= now() AND p.claimed IS NULL AND p.suspect
                                 ORDER BY p.attempts LIMIT 1)) AS due) END
  FROM lanes";

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
 WHERE lane = ANY ($1) AND claimed IS NOT NULL
RETURNING key";

// $1 lanes that go on: another step at the same place, without a note of what was under way.
const UNNOTE: &str = "
WITH noted AS (
    SELECT * FROM {placed} AS l WHERE l.lane = ANY ($1) AND l.noted IS NOT NULL
), forgotten AS (
    DELETE FROM {places_table} AS p USING noted WHERE p.lane = noted.lane AND p.step <= noted.step - 8
)
INSERT INTO {places_table} (lane, step, base, base_seq, target, after_seq, anchor_seq, recover, recover_seq)
SELECT lane, step + 1, base, base_seq, target, after_seq, anchor_seq, recover, recover_seq FROM noted";

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

#[derive(Debug)]
pub(in super::super) struct Statements {
    beat: Statement,
    take: Statement,
    suspect: Statement,
    unnote: Statement,
    release: Statement,
    leave: Statement,
    gone: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| super::statement(table, sql);
        Self {
            beat: statement(BEAT).with("{run}", RUN),
            take: statement(TAKE),
            suspect: statement(SUSPECT),
            unnote: statement(UNNOTE),
            release: statement(RELEASE),
            leave: statement(LEAVE),
            gone: statement(GONE),
        }
    }
}

/// Of each lane its number and fence, its owner, whether it is free, and whether its owner's session is gone; the relays, and
/// whether there are news.
type Answer = (Vec<i16>, Vec<i64>, Vec<Option<String>>, Vec<bool>, Vec<bool>, Vec<String>, Option<bool>);

pub(super) async fn beat(stream: &PostgresStream, beat: &Beat<'_>) -> Result<Council> {
    let answer: Answer = sqlx::query_as(stream.statements.stream.own.beat.sql())
        .bind(beat.relay.as_str())
        .bind(micros(beat.lease))
        .bind(beat.present)
        .bind(lanes(beat.holds))
        .bind(fences(beat.holds))
        .bind(CLASS_PRESENCE)
        .bind(beat.seen.map(|seen| seen.next.as_str()))
        .bind(beat.seen.map(|seen| seen.running.as_slice()))
        .bind(beat.seen.map(|seen| seen.run))
        .bind(beat.seen.is_some_and(|seen| seen.parked))
        .fetch_one(&stream.pool)
        .await
        .map_err(|e| stream.error(e))?;
    let (lanes, fences, owners, free, absent, mut relays, news) = answer;
    // Who was not there before came last.
    if !relays.iter().any(|relay| relay == beat.relay.as_str()) {
        relays.push(beat.relay.to_string());
    }
    let lanes = lanes.into_iter().zip(fences).zip(owners).zip(free.into_iter().zip(absent));
    let lanes = lanes.map(|(((lane, fence), owner), (free, absent))| LaneState {
        lane: lane as u16,
        fence,
        owner,
        free,
        absent,
    });
    Ok(Council { relays, lanes: lanes.collect(), news })
}

pub(super) async fn take(
    stream: &PostgresStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> Result<Vec<Hold>> {
    let mut tries = Tries::default();
    loop {
        match take_once(stream, beat, lanes, absent).await.map_err(|e| stream.error(e)) {
            Err(error) if tries.again(&error) => {}
            taken => return taken,
        }
    }
}

async fn take_once(
    stream: &PostgresStream,
    beat: &Beat<'_>,
    lanes: &[u16],
    absent: &[String],
) -> sqlx::Result<Vec<Hold>> {
    let mut tx = begin(&stream.pool).await?;
    let taken: Vec<(i16, i64, i64)> = sqlx::query_as(stream.statements.stream.own.take.sql())
        .bind(numbers(lanes))
        .bind(absent)
        .bind(beat.relay.as_str())
        .bind(micros(beat.lease))
        .bind(beat.present)
        .fetch_all(&mut *tx)
        .await?;
    failpoint!("lanes.fenced");
    if !absent.is_empty() {
        sqlx::query(stream.statements.stream.own.gone.sql()).bind(absent).execute(&mut *tx).await?;
    }
    let numbers: Vec<i16> = taken.iter().map(|(lane, ..)| *lane).collect();
    let goes_on = |lane: i16, before: i64| beat.holds.contains(&Hold { lane: lane as u16, fence: before });
    let going_on: Vec<i16> =
        taken.iter().filter(|(lane, _, before)| goes_on(*lane, *before)).map(|(lane, ..)| *lane).collect();
    let keys: Vec<String> = sqlx::query_scalar(stream.statements.stream.own.suspect.sql())
        .bind(&numbers)
        .bind(&going_on)
        .fetch_all(&mut *tx)
        .await?;
    if !going_on.is_empty() {
        sqlx::query(stream.statements.stream.own.unnote.sql()).bind(&going_on).execute(&mut *tx).await?;
    }
    if !keys.is_empty() {
        park::promote(&mut tx, &stream.statements.stream.park, &keys).await?;
    }
    tx.commit().await?;
    Ok(taken.into_iter().map(|(lane, fence, _)| Hold { lane: lane as u16, fence }).collect())
}

pub(super) async fn release(stream: &PostgresStream, holds: &[Hold]) -> Result<()> {
    sqlx::query(stream.statements.stream.own.release.sql())
        .bind(lanes(holds))
        .bind(fences(holds))
        .execute(&stream.pool)
        .await
        .map(drop)
        .map_err(|e| stream.error(e))
}

pub(super) async fn leave(stream: &PostgresStream, relay: &WorkerId) -> Result<()> {
    let left = sqlx::query(stream.statements.stream.own.leave.sql())
        .bind(relay.as_str())
        .execute(&stream.pool)
        .await;
    left.map(drop).map_err(|e| stream.error(e))
}
