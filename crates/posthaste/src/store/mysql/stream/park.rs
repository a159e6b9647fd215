//! What is parked, tried again, and how that ends.

use std::collections::{HashMap, HashSet};

use serde_json::json;
use sqlx::Row as _;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use uuid::Uuid;

use super::super::columns::{EVENT_COLUMNS, decode};
use super::mark::{finish, row_ids};
use super::own::held;
use super::{Hurried, MySqlStream, time};
use crate::store::statement::Statement;
use crate::store::stream::place::{
    Ended, Ends, RowId, Runs, Waiting, firsts_json, json_text, keys_json, lane, longest_due, mask, places,
    refused,
};
use crate::store::stream::{Hold, Park, Parked, ParkedClaim, ParkedEnd};
use crate::store::{Dialect, Keep, TableName};

// The limit keeps the database from making a join of it that reads everything that is parked.
const BLOCKED_AMONG: &str = "
SELECT k.k
  FROM JSON_TABLE(?, '$[*]' COLUMNS (k VARCHAR(512) PATH '$')) AS k
 WHERE (SELECT 1 FROM {parked_table} AS p FORCE INDEX (`{name}_parked_key`) WHERE p.`key` = k.k AND p.blocks LIMIT 1) IS NOT NULL";

pub(super) const NOT_PARKED: &str = "(SELECT 1 FROM {parked_table} AS w WHERE w.seq = o.seq LIMIT 1) IS NULL";

const PARK: &str = "
INSERT INTO {parked_table} (seq, id, lane, topic, `key`, blocks, suspect, attempts, due, claimed, outcome, last_error, settled_at)
SELECT p.s, UNHEX(p.id), p.lane, p.topic, p.k, p.blocks, p.suspect, p.attempts,
       CASE WHEN p.at_its_time = 1 THEN o.available_at
            WHEN p.due IS NOT NULL THEN UTC_TIMESTAMP(6) + INTERVAL p.due MICROSECOND END,
       p.claimed, p.outcome, p.error, CASE WHEN p.outcome IS NOT NULL THEN UTC_TIMESTAMP(6) END
  FROM JSON_TABLE(?, '$[*]' COLUMNS (n FOR ORDINALITY, s BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]', lane INT PATH '$[2]',
                                     topic VARCHAR(128) PATH '$[3]', k VARCHAR(512) PATH '$[4]', blocks INT PATH '$[5]',
                                     suspect INT PATH '$[6]', attempts INT PATH '$[7]', due BIGINT PATH '$[8]',
                                     at_its_time INT PATH '$[9]', claimed BIGINT PATH '$[10]',
                                     outcome VARCHAR(8) PATH '$[11]', error TEXT PATH '$[12]')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 ORDER BY p.n";

// Only the first of an aggregate comes up, whatever those behind it say; what nobody waits for waits for nobody. A
// suspect that ends every process keeps no other waiting: it is due anew with every owner.
const DUE: &str = "
SELECT p.position, p.seq, p.id, p.lane, p.topic, p.`key`, p.attempts, p.suspect, p.blocks, p.last_error,
       TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), p.due)
  FROM {parked_table} AS p FORCE INDEX (`{name}_parked_due`)
 WHERE p.claimed IS NULL AND p.due <= UTC_TIMESTAMP(6) AND p.outcome IS NULL AND p.suspect = ?
   AND SUBSTR(?, p.lane + 1, 1) = '1'
   AND (NOT p.blocks OR (SELECT b.position FROM {parked_table} AS b FORCE INDEX (`{name}_parked_key`)
                          WHERE b.`key` = p.`key` AND b.blocks AND b.position < p.position LIMIT 1) IS NULL)
   {topics}
 ORDER BY p.due, p.position
 LIMIT ?";

const ONLY: &str = "AND JSON_CONTAINS(?, JSON_QUOTE(p.topic))";

const EXCEPT: &str = "AND NOT JSON_CONTAINS(?, JSON_QUOTE(p.topic))";

const BEHIND: &str = "
SELECT position, seq, id, lane, topic, `key`, attempts, suspect, blocks, last_error, 0,
       CAST(claimed IS NULL AND outcome IS NULL AND due IS NULL AND NOT suspect AS SIGNED)
  FROM {parked_table} FORCE INDEX (`{name}_parked_key`)
 WHERE `key` = ? AND position > ? AND blocks
 ORDER BY position
 LIMIT ?";

const EVENTS: &str = "
SELECT {columns}, o.seq, o.created_at
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.id = UNHEX(p.id)";

const CLAIM: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$[0]', fence BIGINT PATH '$[1]')) AS c
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = c.position
   SET p.claimed = c.fence, p.attempts = p.attempts + 1";

const CLAIMED: &str = "
SELECT lane, claimed, seq FROM {parked_table}
 WHERE claimed IS NOT NULL AND SUBSTR(?, lane + 1, 1) = '1'";

const ENDED: &str = "
SELECT p.position, p.seq, p.id, p.`key`, p.blocks
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', lane INT PATH '$[1]', fence BIGINT PATH '$[2]')) AS e
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (`{name}_parked_seq`) ON p.seq = e.s
 WHERE p.lane = e.lane AND p.claimed <=> e.fence AND p.outcome IS NULL";

// Verdicts: 1 retry, 2 dead, 3 released, 4 behind.
const SETTLE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$[0]', verdict INT PATH '$[1]', due BIGINT PATH '$[2]',
                                     error TEXT PATH '$[3]', blocks INT PATH '$[4]')) AS e
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = e.position
   SET p.claimed    = NULL,
       p.due        = CASE WHEN e.due IS NOT NULL THEN UTC_TIMESTAMP(6) + INTERVAL e.due MICROSECOND END,
       p.blocks     = e.blocks,
       p.attempts   = CASE WHEN e.verdict IN (3, 4) THEN GREATEST(p.attempts - 1, 0) ELSE p.attempts END,
       p.last_error = COALESCE(e.error, p.last_error),
       p.outcome    = CASE e.verdict WHEN 2 THEN 'dead' END,
       p.settled_at = CASE e.verdict WHEN 2 THEN UTC_TIMESTAMP(6) END";

const UNPARK: &str = "
DELETE p
  FROM JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = d.position";

// Delivered, but its event is somebody's just now.
const SHELVE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = d.position
   SET p.claimed = NULL, p.due = NULL, p.blocks = FALSE, p.outcome = 'delivered', p.settled_at = UTC_TIMESTAMP(6)";

const SHELVED: &str = "
SELECT position, seq, id
  FROM {parked_table} FORCE INDEX (`{name}_parked_dead`)
 WHERE outcome = 'delivered' AND SUBSTR(?, lane + 1, 1) = '1'
 ORDER BY position";

const FIRSTS: &str = "
SELECT (SELECT b.position FROM {parked_table} AS b FORCE INDEX (`{name}_parked_key`)
         WHERE b.`key` = k.k AND b.blocks ORDER BY b.position LIMIT 1)
  FROM JSON_TABLE(?, '$[*]' COLUMNS (k VARCHAR(512) PATH '$')) AS k";

const STUCK: &str = "
SELECT p.position
  FROM (SELECT MIN(position) AS position FROM {parked_table}
         WHERE blocks AND SUBSTR(?, lane + 1, 1) = '1' GROUP BY `key`) AS f
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = f.position
 WHERE p.outcome IS NULL AND p.due IS NULL AND p.claimed IS NULL
 ORDER BY p.position";

const PROMOTE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$[0]', due BIGINT PATH '$[1]')) AS f
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = f.position
   SET p.due = UTC_TIMESTAMP(6) + INTERVAL f.due MICROSECOND
 WHERE p.outcome IS NULL AND p.due IS NULL AND p.claimed IS NULL";

const HAS_PARKED: &str =
    "SELECT EXISTS (SELECT 1 FROM {parked_table} WHERE SUBSTR(?, lane + 1, 1) = '1' LIMIT 1)";

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
    due: Dues,
    behind: Statement,
    events: Statement,
    claim: Statement,
    claimed: Statement,
    ended: Statement,
    settle: Statement,
    pub(super) unpark: Statement,
    shelve: Statement,
    shelved: Statement,
    firsts: Statement,
    stuck: Statement,
    promote: Statement,
    has_parked: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let due = |topics| statement(DUE).with("{topics}", topics);
        Self {
            blocked_among: statement(BLOCKED_AMONG),
            park: statement(PARK),
            due: Dues { all: due(""), only: due(ONLY), except: due(EXCEPT) },
            behind: statement(BEHIND),
            events: statement(EVENTS).with_columns_of("o", EVENT_COLUMNS),
            claim: statement(CLAIM),
            claimed: statement(CLAIMED),
            ended: statement(ENDED),
            settle: statement(SETTLE),
            unpark: statement(UNPARK),
            shelve: statement(SHELVE),
            shelved: statement(SHELVED),
            firsts: statement(FIRSTS),
            stuck: statement(STUCK),
            promote: statement(PROMOTE),
            has_parked: statement(HAS_PARKED),
        }
    }

    /// What was delivered in these lanes while somebody had it locked: its places among the parked and in the table.
    pub(super) async fn shelved(
        &self,
        connection: &mut MySqlConnection,
        lanes: &str,
    ) -> sqlx::Result<Vec<(i64, RowId)>> {
        let query = sqlx::query_as(self.shelved.sql()).bind(lanes);
        let shelved: Vec<(i64, i64, Uuid)> = query.fetch_all(connection).await?;
        Ok(shelved.into_iter().map(|(position, sequence, id)| (position, RowId { sequence, id })).collect())
    }

    /// What stands first of its aggregate in these lanes and is not due.
    pub(super) async fn stuck(
        &self,
        connection: &mut MySqlConnection,
        lanes: &str,
    ) -> sqlx::Result<Vec<i64>> {
        sqlx::query_scalar(self.stuck.sql()).bind(lanes).fetch_all(connection).await
    }
}

pub(super) async fn blocked_among(stream: &MySqlStream, keys: &[String]) -> sqlx::Result<HashSet<String>> {
    let mut connection = stream.pool.acquire().await?;
    blocked_of(&mut connection, &stream.statements, keys.iter().map(String::as_str)).await
}

pub(super) async fn park(stream: &MySqlStream, parks: &[Park]) -> sqlx::Result<Vec<u16>> {
    if parks.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = stream.connection().await?;
    let refused = park_on(&mut connection, &stream.statements, parks).await;
    connection.afterwards(refused).await
}

async fn park_on(
    connection: &mut Hurried,
    statements: &super::Statements,
    parks: &[Park],
) -> sqlx::Result<Vec<u16>> {
    let mut tx = connection.begin().await?;
    let holds = || parks.iter().map(|park| park.hold);
    let held = held(&mut tx, &statements.own.held_alone, holds()).await?;
    let rows: Vec<RowId> = parks.iter().map(RowId::of).collect();
    let open = statements.mark.open(&mut tx, &rows).await?;
    let mut open: HashSet<RowId> = open.into_iter().collect();
    let new: Vec<&Park> =
        parks.iter().filter(|park| held.contains(&park.hold) && open.remove(&RowId::of(park))).collect();
    if !new.is_empty() {
        let blocked = blocked_of(&mut tx, statements, new.iter().map(|park| park.key.as_str())).await?;
        let places = places(new.iter().copied(), blocked);
        let rows = places.iter().map(|place| place.json(&place.park.id.simple().to_string()));
        failpoint!("park.locked");
        sqlx::query(statements.park.park.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
        failpoint!("park.inserted");
        let rows: Vec<RowId> = new.iter().map(|park| RowId::of(park)).collect();
        let free = statements.mark.free(&mut tx, &rows).await?;
        statements.mark.mark_parked(&mut tx, &free).await?;
    }
    failpoint!("park.written");
    tx.commit().await?;
    Ok(refused(holds(), &held))
}

pub(super) async fn claim_parked(stream: &MySqlStream, claim: &ParkedClaim<'_>) -> sqlx::Result<Vec<Parked>> {
    if claim.holds.is_empty() || claim.limit == 0 {
        return Ok(Vec::new());
    }
    let mut connection = stream.connection().await?;
    // Mostly nothing is due, and to find that out nothing need be locked.
    if due(&mut connection.connection, &stream.statements, claim, claim.holds, 1).await?.is_empty() {
        return Ok(Vec::new());
    }
    let claimed = claim_parked_on(&mut connection, &stream.statements, claim).await;
    connection.afterwards(claimed).await
}

async fn claim_parked_on(
    connection: &mut Hurried,
    statements: &super::Statements,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Parked>> {
    let mut tx = connection.begin().await?;
    let held = held(&mut tx, &statements.own.held_alone, claim.holds.iter().copied()).await?;
    let held: Vec<Hold> = held.into_iter().collect();
    let firsts = due(&mut tx, statements, claim, &held, claim.limit).await?;
    let waiting = with_runs(&mut tx, statements, firsts, claim).await?;
    let rows: Vec<RowId> = waiting.iter().map(Waiting::row).collect();
    let events = sqlx::query(statements.park.events.sql()).bind(row_ids(&rows)).fetch_all(&mut *tx).await?;
    let mut events: HashMap<i64, &MySqlRow> =
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
            parked.push(waiting.into_parked(claim.attempts, time(row, 16)?, decode(row)));
        }
    }
    tx.commit().await?;
    Ok(parked)
}

pub(super) async fn claimed(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<Vec<(Hold, i64)>> {
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    let query = sqlx::query_as(stream.statements.park.claimed.sql()).bind(lanes);
    let claimed: Vec<(i16, i64, i64)> = query.fetch_all(&stream.pool).await?;
    let claimed = claimed
        .into_iter()
        .map(|(number, fence, sequence)| (Hold { lane: lane(number.into()), fence }, sequence));
    Ok(claimed.filter(|(hold, _)| holds.contains(hold)).collect())
}

pub(super) async fn settle_parked(
    stream: &MySqlStream,
    ends: &[ParkedEnd],
    keep: Keep,
) -> sqlx::Result<Vec<u16>> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let mut connection = stream.connection().await?;
    let refused = settle_parked_on(&mut connection, &stream.statements, ends, keep).await;
    connection.afterwards(refused).await
}

async fn settle_parked_on(
    connection: &mut Hurried,
    statements: &super::Statements,
    ends: &[ParkedEnd],
    keep: Keep,
) -> sqlx::Result<Vec<u16>> {
    let mut tx = connection.begin().await?;
    let holds = || ends.iter().map(|end| end.hold);
    let held = held(&mut tx, &statements.own.held_alone, holds()).await?;
    let ended = ended(&mut tx, statements, ends.iter().filter(|end| held.contains(&end.hold))).await?;
    let (delivered, others): (Vec<&Ended<'_>>, Vec<&Ended<'_>>) =
        ended.iter().partition(|ended| ended.is_delivered());
    let rows: Vec<(i64, RowId)> = delivered.iter().map(|ended| (ended.position, ended.row())).collect();
    let busy = unshelve(&mut tx, statements, &rows, keep).await?;
    if !busy.is_empty() {
        let shelve = sqlx::query(statements.park.shelve.sql()).bind(json!(busy).to_string());
        shelve.execute(&mut *tx).await?;
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

/// Marks what was delivered while somebody had it locked. Whether any of it is somebody's still.
pub(super) async fn tidy(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<bool> {
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    let mut connection = stream.connection().await?;
    if stream.statements.park.shelved(&mut connection.connection, &lanes).await?.is_empty() {
        return Ok(false);
    }
    let left = tidy_on(&mut connection, &stream.statements, holds).await;
    connection.afterwards(left).await
}

async fn tidy_on(
    connection: &mut Hurried,
    statements: &super::Statements,
    holds: &[Hold],
) -> sqlx::Result<bool> {
    let mut tx = connection.begin().await?;
    let held = held(&mut tx, &statements.own.held_alone, holds.iter().copied()).await?;
    let lanes = mask(held.iter().map(|hold| hold.lane));
    let shelved = statements.park.shelved(&mut tx, &lanes).await?;
    let busy = unshelve(&mut tx, statements, &shelved, Keep::Delivered).await?;
    tx.commit().await?;
    Ok(!busy.is_empty())
}

pub(super) async fn repair(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<()> {
    tidy(stream, holds).await?;
    let lanes = mask(holds.iter().map(|hold| hold.lane));
    let mut connection = stream.connection().await?;
    // Mostly there is nothing, and to find that out nothing need be locked.
    if stream.statements.park.stuck(&mut connection.connection, &lanes).await?.is_empty() {
        return Ok(());
    }
    let repaired = repair_on(&mut connection, &stream.statements, holds).await;
    connection.afterwards(repaired).await
}

async fn repair_on(
    connection: &mut Hurried,
    statements: &super::Statements,
    holds: &[Hold],
) -> sqlx::Result<()> {
    let mut tx = connection.begin().await?;
    let held = held(&mut tx, &statements.own.held_alone, holds.iter().copied()).await?;
    let stuck = statements.park.stuck(&mut tx, &mask(held.iter().map(|hold| hold.lane))).await?;
    promote(&mut tx, statements, &stuck, &[]).await?;
    tx.commit().await
}

pub(super) async fn has_parked(stream: &MySqlStream, lanes: &[u16]) -> sqlx::Result<bool> {
    let query = sqlx::query_scalar::<_, i64>(stream.statements.park.has_parked.sql());
    Ok(query.bind(mask(lanes.iter().copied())).fetch_one(&stream.pool).await? == 1)
}

// Parts of them.

/// Which of these aggregates have events parked that others wait behind.
async fn blocked_of(
    connection: &mut MySqlConnection,
    statements: &super::Statements,
    keys: impl Iterator<Item = &str>,
) -> sqlx::Result<HashSet<String>> {
    let query = sqlx::query_scalar(statements.park.blocked_among.sql()).bind(keys_json(keys));
    Ok(query.fetch_all(connection).await?.into_iter().collect())
}

/// Parked events that are due, longest first, and at most one suspect among them.
async fn due(
    connection: &mut MySqlConnection,
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
        let mut query = sqlx::query(statement.sql()).bind(suspect).bind(&mask);
        if let Some(topics) = claim.topics.json() {
            query = query.bind(topics);
        }
        let rows =
            if limit == 0 { Vec::new() } else { query.bind(limit).fetch_all(&mut *connection).await? };
        kinds.push(rows.iter().map(|row| waiting(row, &fences)).collect::<sqlx::Result<Vec<_>>>()?);
    }
    Ok(longest_due(kinds.pop().unwrap_or_default(), kinds.pop().unwrap_or_default(), limit))
}

/// These, each followed by those right behind it where it was never tried, as far as the limit goes.
async fn with_runs(
    connection: &mut MySqlConnection,
    statements: &super::Statements,
    firsts: Vec<Waiting>,
    claim: &ParkedClaim<'_>,
) -> sqlx::Result<Vec<Waiting>> {
    let mut runs = Runs::new(firsts.len(), claim);
    for first in firsts {
        let fences = HashMap::from([(first.hold.lane, first.hold.fence)]);
        let mut behind = Vec::new();
        if let Some(room) = runs.room_behind(&first) {
            let query = sqlx::query(statements.park.behind.sql()).bind(&first.key).bind(first.position);
            for row in query.bind(room).fetch_all(&mut *connection).await? {
                behind.push((waiting(&row, &fences)?, row.try_get::<i64, _>(11)? == 1));
            }
        }
        runs.add(first, behind);
    }
    Ok(runs.found)
}

fn waiting(row: &MySqlRow, fences: &HashMap<u16, i64>) -> sqlx::Result<Waiting> {
    let lane = lane(row.try_get::<i16, _>(3)?.into());
    Ok(Waiting {
        hold: Hold { lane, fence: fences.get(&lane).copied().unwrap_or_default() },
        position: row.try_get(0)?,
        sequence: row.try_get(1)?,
        id: row.try_get(2)?,
        topic: row.try_get(4)?,
        key: row.try_get(5)?,
        attempts: u32::try_from(row.try_get::<i32, _>(6)?).unwrap_or(0),
        suspect: row.try_get(7)?,
        blocks: row.try_get(8)?,
        last_error: row.try_get(9)?,
        due: row.try_get(10)?,
    })
}

/// Those of these whose event is claimed by who says so, or is spent and claimed by nobody, each once.
async fn ended<'e>(
    connection: &mut MySqlConnection,
    statements: &super::Statements,
    ends: impl Iterator<Item = &'e ParkedEnd>,
) -> sqlx::Result<Vec<Ended<'e>>> {
    let ends = Ends::of(ends);
    let query = sqlx::query_as(statements.park.ended.sql()).bind(ends.json());
    Ok(ends.found(query.fetch_all(connection).await?.into_iter()))
}

/// Lets the first of each of these aggregates come up.
pub(super) async fn come_up(
    connection: &mut MySqlConnection,
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
    connection: &mut MySqlConnection,
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

/// Ends what is parked of these places and their events, which were delivered. Answers with the places of those whose
/// events are somebody's just now.
pub(super) async fn unshelve(
    connection: &mut MySqlConnection,
    statements: &super::Statements,
    rows: &[(i64, RowId)],
    keep: Keep,
) -> sqlx::Result<HashSet<i64>> {
    if rows.is_empty() {
        return Ok(HashSet::new());
    }
    let events: Vec<RowId> = rows.iter().map(|(_, row)| *row).collect();
    let free = statements.mark.free(connection, &events).await?;
    let mut busy = HashSet::new();
    if free.len() < events.len() {
        let there = statements.mark.there(connection, &events).await?;
        busy.extend(there.into_iter().filter(|row| !free.contains(&row.sequence)));
    }
    let (kept, ended): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, row)| busy.contains(row));
    if !ended.is_empty() {
        let places = json_text(ended.iter().map(|(position, _)| json!(position)));
        sqlx::query(statements.park.unpark.sql()).bind(places).execute(&mut *connection).await?;
    }
    finish(connection, statements, &free, keep).await?;
    Ok(kept.into_iter().map(|(position, _)| position).collect())
}
