//! Owning lanes: who lives, which lanes are whose, and taking and giving them up.

use super::super::session::CLASS_PRESENCE;
use super::{PostgresStream, begin, fences, lanes, numbers, park};
use crate::error::Result;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::{Beat, Council, Hold, LaneState};
use crate::store::tries::Tries;
use crate::store::{TableName, WorkerId};

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
    relays: Statement,
    lanes: Statement,
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
            beat: statement(BEAT),
            relays: statement(RELAYS),
            lanes: statement(LANES),
            take: statement(TAKE),
            suspect: statement(SUSPECT),
            unnote: statement(UNNOTE),
            release: statement(RELEASE),
            leave: statement(LEAVE),
            gone: statement(GONE),
        }
    }
}

/// A lane, its fence and owner, whether it is free, and whether its owner's session is gone.
type LaneRow = (i16, i64, Option<String>, bool, Option<bool>);

pub(super) async fn beat(stream: &PostgresStream, beat: &Beat<'_>) -> Result<Council> {
    sqlx::query(stream.statements.stream.own.beat.sql())
        .bind(beat.relay.as_str())
        .bind(micros(beat.lease))
        .bind(beat.present)
        .bind(lanes(beat.holds))
        .bind(fences(beat.holds))
        .execute(&stream.pool)
        .await
        .map_err(|e| stream.error(e))?;
    let relays = sqlx::query_scalar(stream.statements.stream.own.relays.sql()).fetch_all(&stream.pool).await;
    let lanes = sqlx::query_as(stream.statements.stream.own.lanes.sql())
        .bind(CLASS_PRESENCE)
        .fetch_all(&stream.pool)
        .await;
    let lanes: Vec<LaneRow> = lanes.map_err(|e| stream.error(e))?;
    let lanes = lanes.into_iter().map(|(lane, fence, owner, free, absent)| LaneState {
        lane: lane as u16,
        fence,
        owner,
        free,
        absent: absent.unwrap_or(false),
    });
    Ok(Council { relays: relays.map_err(|e| stream.error(e))?, lanes: lanes.collect() })
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
