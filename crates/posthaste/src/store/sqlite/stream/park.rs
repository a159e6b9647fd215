//! What is parked, tried again, and how that ends.

use std::collections::{HashMap, HashSet};

use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::super::columns::{EVENT_COLUMNS, decode};
use super::super::time_of;
use super::own::held;
use super::{SqliteStream, begin, id, row_ids};
use crate::store::statement::Statement;
use crate::store::stream::place::{
    Ended, Ends, RowId, Runs, Waiting, firsts_json, json_text, keys_json, lane, longest_due, mask, places,
    refused,
};
use crate::store::stream::{Hold, Park, Parked, ParkedClaim, ParkedEnd};
use crate::store::{Dialect, Keep, TableName};

const BLOCKED_AMONG: &str = "
SELECT k.value
  FROM json_each(?1) AS k
 WHERE EXISTS (SELECT 1 FROM {parked_table} AS p WHERE p.key = k.value AND p.blocks)";

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
// behind it say; what nobody waits for waits for nobody. A suspect that ends every process keeps no other waiting: it is due
// anew with every owner.
const DUE: &str = "
SELECT p.position, p.seq, p.id, p.lane, p.topic, p.key, p.attempts, p.suspect, p.blocks, p.last_error, p.due
  FROM {parked_table} AS p
 WHERE p.claimed IS NULL AND p.due <= {now} AND p.outcome IS NULL AND p.suspect = ?1
   AND substr(?2, p.lane + 1, 1) = '1'
   AND (NOT p.blocks OR NOT EXISTS (SELECT 1 FROM {parked_table} AS b
                                     WHERE b.key = p.key AND b.blocks AND b.position < p.position))
   {topics}
 ORDER BY p.due, p.position
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
SELECT {columns}, o.seq, o.created_at
  FROM json_each(?1) AS p CROSS JOIN {table} AS o ON o.seq = json_extract(p.value, '$[0]')
 WHERE +o.id = json_extract(p.value, '$[1]')";

const CLAIM: &str = "
UPDATE {parked_table}
   SET claimed = c.fence, attempts = attempts + 1
  FROM (SELECT json_extract(value, '$[0]') AS position, json_extract(value, '$[1]') AS fence FROM json_each(?1)) AS c
 WHERE {parked_table}.position = c.position";

const CLAIMED: &str = "
SELECT lane, claimed, seq FROM {parked_table}
 WHERE claimed IS NOT NULL AND substr(?1, lane + 1, 1) = '1'";

const ENDED: &str = "
SELECT p.position, p.seq, p.id, p.key, p.blocks
  FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS lane,
               json_extract(value, '$[2]') AS fence FROM json_each(?1)) AS e
  JOIN {parked_table} AS p ON p.seq = e.seq AND p.lane = e.lane AND p.claimed IS e.fence AND p.outcome IS NULL";

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

const UNPARK: &str = "DELETE FROM {parked_table} WHERE position IN (SELECT value FROM json_each(?1))";

const FIRSTS: &str = "
SELECT (SELECT b.position FROM {parked_table} AS b WHERE b.key = k.value AND b.blocks ORDER BY b.position LIMIT 1)
  FROM json_each(?1) AS k";

const STUCK: &str = "
SELECT p.position
  FROM (SELECT min(position) AS position FROM {parked_table}
         WHERE blocks AND substr(?1, lane + 1, 1) = '1' GROUP BY key) AS f
  JOIN {parked_table} AS p ON p.position = f.position
 WHERE p.outcome IS NULL AND p.due IS NULL AND p.claimed IS NULL";

const PROMOTE: &str = "
UPDATE {parked_table}
   SET due = {now} + f.due
  FROM (SELECT json_extract(value, '$[0]') AS position, json_extract(value, '$[1]') AS due FROM json_each(?1)) AS f
 WHERE {parked_table}.position = f.position AND outcome IS NULL AND {parked_table}.due IS NULL AND claimed IS NULL";

const HAS_PARKED: &str = "SELECT EXISTS (SELECT 1 FROM {parked_table} WHERE substr(?1, lane + 1, 1) = '1')";

/// The reads of all topics, of some, and of all but some.
#[derive(Debug)]
struct Dues {
    all: Statement,
    only: Statement,
    except: Statement,
}

#[derive(Debug)]
pub(super) struct Statements {
    blocked_among: Statement,
    park: Statement,
    mark_parked: Statement,
    due: Dues,
    behind: Statement,
    events: Statement,
    claim: Statement,
    claimed: Statement,
    ended: Statement,
    settle: Statement,
    pub(super) unpark: Statement,
    firsts: Statement,
    stuck: Statement,
    promote: Statement,
    has_parked: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        let due = |topics| statement(DUE).with("{topics}", topics);
        Self {
            blocked_among: statement(BLOCKED_AMONG),
            park: statement(PARK),
            mark_parked: statement(MARK_PARKED),
            due: Dues { all: due(""), only: due(ONLY), except: due(EXCEPT) },
            behind: statement(BEHIND),
            events: statement(EVENTS).with_columns_of("o", EVENT_COLUMNS),
            claim: statement(CLAIM),
            claimed: statement(CLAIMED),
            ended: statement(ENDED),
            settle: statement(SETTLE),
            unpark: statement(UNPARK),
            firsts: statement(FIRSTS),
            stuck: statement(STUCK),
            promote: statement(PROMOTE),
            has_parked: statement(HAS_PARKED),
        }
    }

    /// What stands first of its aggregate in these lanes and is not due.
    pub(super) async fn stuck(
        &self,
        connection: &mut SqliteConnection,
        lanes: String,
    ) -> sqlx::Result<Vec<i64>> {
        sqlx::query_scalar(self.stuck.sql()).bind(lanes).fetch_all(connection).await
    }
}

pub(super) async fn blocked_among(stream: &SqliteStream, keys: &[String]) -> sqlx::Result<HashSet<String>> {
    let mut connection = stream.pool.acquire().await?;
    blocked_of(&mut connection, &stream.statements, keys.iter().map(String::as_str)).await
}

pub(super) async fn park(stream: &SqliteStream, parks: &[Park]) -> sqlx::Result<Vec<u16>> {
    if parks.is_empty() {
        return Ok(Vec::new());
    }
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    let open = statements.read.open(&mut tx, parks.iter().map(RowId::of)).await?;
    let mut open: HashSet<RowId> = open.into_iter().collect();
    let holds = || parks.iter().map(|park| park.hold);
    let held = held(&mut tx, &statements.own.held, holds()).await?;
    let new: Vec<&Park> =
        parks.iter().filter(|park| held.contains(&park.hold) && open.remove(&RowId::of(park))).collect();
    if !new.is_empty() {
        let blocked = blocked_of(&mut tx, statements, new.iter().map(|park| park.key.as_str())).await?;
        let places = places(new.iter().copied(), blocked);
        let rows = places.iter().map(|place| place.json(&place.park.id.hyphenated().to_string()));
        failpoint!("park.locked");
        sqlx::query(statements.park.park.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        failpoint!("park.inserted");
        let marked: Vec<i64> = new.iter().map(|park| park.sequence).collect();
        sqlx::query(statements.park.mark_parked.sql())
            .bind(json!(marked).to_string())
            .execute(&mut *tx)
            .await?;
    }
    failpoint!("park.written");
    tx.commit().await?;
    Ok(refused(holds(), &held))
}

pub(super) async fn claim_parked(
    stream: &SqliteStream,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Parked>> {
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
    let held = held(&mut tx, &statements.own.held, claim.holds.iter().copied()).await?;
    let held: Vec<Hold> = held.into_iter().collect();
    let firsts = due(&mut tx, statements, claim, &held, claim.limit).await?;
    let waiting = with_runs(&mut tx, statements, firsts, claim).await?;
    let rows = row_ids(waiting.iter().map(Waiting::row));
    let events = sqlx::query(statements.park.events.sql()).bind(rows).fetch_all(&mut *tx).await?;
    let mut events: HashMap<i64, &SqliteRow> =
        events.iter().map(|row| Ok((row.try_get(15)?, row))).collect::<sqlx::Result<_>>()?;
    let (claimed, gone): (Vec<Waiting>, Vec<Waiting>) =
        waiting.into_iter().partition(|waiting| events.contains_key(&waiting.sequence));
    let tried: Vec<&Waiting> = claimed.iter().filter(|waiting| !waiting.is_spent(claim.attempts)).collect();
    if !tried.is_empty() {
        let rows = tried.iter().map(|waiting| json!([waiting.position, waiting.hold.fence]));
        sqlx::query(statements.park.claim.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        failpoint!("parked.claiming");
    }
    if !gone.is_empty() {
        let rows = gone.iter().map(|waiting| json!(waiting.position));
        sqlx::query(statements.park.unpark.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        come_up(&mut tx, statements, gone.iter().map(|waiting| waiting.key.as_str()), &[]).await?;
    }
    let mut parked = Vec::with_capacity(claimed.len());
    for waiting in claimed {
        if let Some(row) = events.remove(&waiting.sequence) {
            parked.push(waiting.into_parked(claim.attempts, time_of(row.try_get(16)?)?, decode(row)));
        }
    }
    tx.commit().await?;
    Ok(parked)
}

pub(super) async fn claimed(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<Vec<(Hold, i64)>> {
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    let query = sqlx::query_as(stream.statements.park.claimed.sql()).bind(lanes);
    let claimed: Vec<(i64, i64, i64)> = query.fetch_all(&stream.pool).await?;
    let claimed =
        claimed.into_iter().map(|(number, fence, sequence)| (Hold { lane: lane(number), fence }, sequence));
    Ok(claimed.filter(|(hold, _)| holds.contains(hold)).collect())
}

pub(super) async fn settle_parked(
    stream: &SqliteStream,
    ends: &[ParkedEnd],
    keep: Keep,
) -> sqlx::Result<Vec<u16>> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    let holds = || ends.iter().map(|end| end.hold);
    let held = held(&mut tx, &statements.own.held, holds()).await?;
    let ended = ended(&mut tx, statements, ends.iter().filter(|end| held.contains(&end.hold))).await?;
    let (delivered, others): (Vec<&Ended<'_>>, Vec<&Ended<'_>>) =
        ended.iter().partition(|ended| ended.is_delivered());
    if !delivered.is_empty() {
        let rows = delivered.iter().map(|ended| json!(ended.position));
        sqlx::query(statements.park.unpark.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        statements.read.finish(&mut tx, delivered.iter().map(|ended| ended.row()), keep).await?;
    }
    if !others.is_empty() {
        let rows = others.iter().map(|ended| ended.json());
        sqlx::query(statements.park.settle.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    failpoint!("parked.ending");
    if !ended.is_empty() {
        come_up(&mut tx, statements, ended.iter().map(|ended| ended.key.as_str()), &ended).await?;
    }
    tx.commit().await?;
    Ok(refused(holds(), &held))
}

pub(super) async fn repair(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<()> {
    let statements = &stream.statements;
    let mut connection = stream.pool.acquire().await?;
    // Mostly there is nothing, and to find that out nobody need be kept from writing.
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    if statements.park.stuck(&mut connection, lanes).await?.is_empty() {
        return Ok(());
    }
    drop(connection);
    let mut tx = begin(&stream.pool).await?;
    let held = held(&mut tx, &statements.own.held, holds.iter().copied()).await?;
    let stuck = statements.park.stuck(&mut tx, mask(held.iter().map(|hold| hold.lane))).await?;
    promote(&mut tx, statements, &stuck, &[]).await?;
    tx.commit().await
}

pub(super) async fn has_parked(stream: &SqliteStream, lanes: &[u16]) -> sqlx::Result<bool> {
    let query = sqlx::query_scalar(stream.statements.park.has_parked.sql());
    query.bind(mask(lanes.iter().copied())).fetch_one(&stream.pool).await
}

// Parts of them.

/// Which of these aggregates have events parked that others wait behind.
async fn blocked_of(
    connection: &mut SqliteConnection,
    statements: &super::Statements,
    keys: impl Iterator<Item = &str>,
) -> sqlx::Result<HashSet<String>> {
    let query = sqlx::query_scalar(statements.park.blocked_among.sql()).bind(keys_json(keys));
    Ok(query.fetch_all(connection).await?.into_iter().collect())
}

/// Parked events that are due, longest first, and at most one suspect among them.
async fn due(
    connection: &mut SqliteConnection,
    statements: &super::Statements,
    claim: &ParkedClaim<'_>,
    holds: &[Hold],
    limit: u32,
) -> sqlx::Result<Vec<Waiting>> {
    let fences: HashMap<u16, i64> = holds.iter().map(|hold| (hold.lane, hold.fence)).collect();
    let mask = mask(holds.iter().map(|hold| hold.lane));
    let mut kinds = Vec::with_capacity(2);
    let Dues { all, only, except } = &statements.park.due;
    let statement = claim.topics.choose([all, only, except]);
    for (suspect, limit) in [(true, u32::from(claim.suspects)), (false, limit)] {
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
    statements: &super::Statements,
    firsts: Vec<Waiting>,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Waiting>> {
    let mut runs = Runs::new(firsts.len(), claim);
    for first in firsts {
        let fences = HashMap::from([(first.hold.lane, first.hold.fence)]);
        let mut behind = Vec::new();
        if let Some(room) = runs.room_behind(&first) {
            let query =
                sqlx::query(statements.park.behind.sql()).bind(first.key.clone()).bind(first.position);
            for row in query.bind(room).fetch_all(&mut *connection).await? {
                behind.push((waiting(&row, &fences)?, row.try_get(11)?));
            }
        }
        runs.add(first, behind);
    }
    Ok(runs.found)
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

/// Those of these whose event is claimed by who says so, or is spent and claimed by nobody, each once.
async fn ended<'e>(
    connection: &mut SqliteConnection,
    statements: &super::Statements,
    ends: impl Iterator<Item = &'e ParkedEnd>,
) -> sqlx::Result<Vec<Ended<'e>>> {
    let ends = Ends::of(ends);
    let query = sqlx::query(statements.park.ended.sql()).bind(ends.json());
    let rows = query.fetch_all(connection).await?;
    let read = |row: &SqliteRow| {
        Ok((row.try_get(0)?, row.try_get(1)?, id(row, 2)?, row.try_get(3)?, row.try_get(4)?))
    };
    Ok(ends.found(rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?.into_iter()))
}

/// Lets the first of each of these aggregates come up.
pub(super) async fn come_up(
    connection: &mut SqliteConnection,
    statements: &super::Statements,
    keys: impl Iterator<Item = &str>,
    ended: &[Ended<'_>],
) -> sqlx::Result<()> {
    let query = sqlx::query_scalar::<_, Option<i64>>(statements.park.firsts.sql()).bind(keys_json(keys));
    let mut firsts: Vec<i64> = query.fetch_all(&mut *connection).await?.into_iter().flatten().collect();
    firsts.sort_unstable();
    promote(connection, statements, &firsts, ended).await
}

/// Makes these first ones due, unless they are already, or claimed, or dead.
pub(super) async fn promote(
    connection: &mut SqliteConnection,
    statements: &super::Statements,
    firsts: &[i64],
    ended: &[Ended<'_>],
) -> sqlx::Result<()> {
    if firsts.is_empty() {
        return Ok(());
    }
    let query = sqlx::query(statements.park.promote.sql()).bind(firsts_json(firsts, ended));
    query.execute(connection).await.map(drop)
}
