//! What the reader reads of lanes, notes as under way, and says to be delivered.

use std::sync::Arc;

use std::collections::HashSet;

use serde_json::json;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{Executor, Row as _};

use super::super::columns::{EVENT_COLUMNS, decode};
use super::mark::{finish, row_ids};
use super::own::held;
use super::park::NOT_PARKED;
use super::{Hurried, MySqlStream, time};
use crate::store::statement::Statement;
use crate::store::stream::floor::{Delivered, Look};
use crate::store::stream::place::{RowId, holds_json, json_text, lane, mask};
use crate::store::stream::{Hold, Row, Unreadable};
use crate::store::{Dialect, Keep, TableName};

const UNSETTLED: &str = "
SELECT o.seq
  FROM {table} AS o FORCE INDEX (`{name}_unsettled`)
 WHERE o.outcome IS NULL AND o.seq > ? AND SUBSTR(?, o.lane + 1, 1) = '1' AND {not_parked}
 ORDER BY o.seq
 LIMIT ?";

// For the connection by which the floor is asked for: it sees what is not committed yet.
const FOOTING: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";

const HIGHEST: &str = "SELECT MAX(seq) FROM {table}";

// By its place among the rows, which an event has before it is in any index, also while its insert waits there for somebody.
const LOOK: &str = "
SELECT CAST(COUNT(*) AS SIGNED), MAX(seq), MIN(CASE WHEN outcome IS NULL THEN seq END)
  FROM (SELECT seq, outcome FROM {table} FORCE INDEX (PRIMARY)
         WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?) AS l";

const ROWS: &str = "
SELECT {columns}, o.seq, o.created_at, CAST(o.lane AS SIGNED), CAST(o.available_at > UTC_TIMESTAMP(6) AS SIGNED)
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.outcome IS NULL AND {not_parked}";

const NOTE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]', s BIGINT PATH '$[2]')) AS n
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = n.lane AND l.fence = n.fence
   SET l.noted_seq = GREATEST(COALESCE(l.noted_seq, n.s), n.s)";

// Delivered, but the event is somebody's just now: nobody waits behind it, and it is due at no time.
const SHELVE: &str = "
INSERT INTO {parked_table} (seq, id, lane, topic, `key`, blocks, attempts, outcome, settled_at)
SELECT o.seq, o.id, o.lane, o.topic, LOWER(HEX(o.id)), FALSE, 1, 'delivered', UTC_TIMESTAMP(6)
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.id = UNHEX(p.id)";

const CLEAR: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$[0]', fence BIGINT PATH '$[1]')) AS h
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = h.lane AND l.fence = h.fence
   SET l.noted_seq = NULL";

#[derive(Debug)]
pub(super) struct Statements {
    unsettled: Statement,
    highest: Statement,
    look: Statement,
    rows: Statement,
    note: Statement,
    shelve: Statement,
    clear: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let unparked = |sql| statement(sql).with_rendered("{not_parked}", &statement(NOT_PARKED));
        Self {
            unsettled: unparked(UNSETTLED),
            highest: statement(HIGHEST),
            look: statement(LOOK),
            rows: unparked(ROWS).with("{columns}", EVENT_COLUMNS),
            note: statement(NOTE),
            shelve: statement(SHELVE),
            clear: statement(CLEAR),
        }
    }
}

pub(super) async fn noted(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<Vec<(u16, Option<i64>)>> {
    let rows: Vec<(i16, i64, Option<i64>)> = sqlx::query_as(stream.statements.own.held.sql())
        .bind(holds_json(holds.iter().copied()))
        .fetch_all(&stream.pool)
        .await?;
    Ok(rows.into_iter().map(|(number, _, noted)| (lane(number.into()), noted)).collect())
}

pub(super) async fn unsettled(
    stream: &MySqlStream,
    lanes: &[u16],
    above: i64,
    limit: u32,
) -> sqlx::Result<Vec<i64>> {
    sqlx::query_scalar(stream.statements.read.unsettled.sql())
        .bind(above)
        .bind(mask(lanes.iter().copied()))
        .bind(limit)
        .fetch_all(&stream.pool)
        .await
}

/// Asked by one connection: when that is gone the server may have crashed or be another, and give numbers anew that are
/// below the floor.
pub(super) async fn highest(
    stream: &MySqlStream,
    footing: &mut Option<MySqlConnection>,
) -> sqlx::Result<Option<i64>> {
    let Some(mut connection) = footing.take() else {
        // Not the pool's any more: who closes that need not wait for it.
        let mut connection = stream.pool.acquire().await?.detach();
        connection.execute(FOOTING).await?;
        *footing = Some(connection);
        return Ok(None);
    };
    let highest: Option<i64> =
        sqlx::query_scalar(stream.statements.read.highest.sql()).fetch_one(&mut connection).await?;
    *footing = Some(connection);
    Ok(Some(highest.unwrap_or(0)))
}

/// Asked by the same connection.
pub(super) async fn look(
    stream: &MySqlStream,
    footing: &mut Option<MySqlConnection>,
    above: i64,
    until: i64,
    rows: u32,
) -> sqlx::Result<Option<Look>> {
    let Some(mut connection) = footing.take() else { return Ok(None) };
    let query = sqlx::query_as(stream.statements.read.look.sql()).bind(above).bind(until).bind(rows);
    let (seen, last, lowest): (i64, Option<i64>, Option<i64>) = query.fetch_one(&mut connection).await?;
    *footing = Some(connection);
    let last = last.filter(|_| seen >= i64::from(rows)).unwrap_or(until);
    let settled = lowest.map_or(last, |lowest| lowest - 1);
    Ok(Some(Look { settled, unsettled: lowest.is_some() }))
}

pub(super) async fn rows(stream: &MySqlStream, sequences: &[i64]) -> sqlx::Result<Vec<Row>> {
    let rows = sqlx::query(stream.statements.read.rows.sql())
        .bind(json!(sequences).to_string())
        .fetch_all(&stream.pool)
        .await?;
    let read = |row: &MySqlRow| {
        Ok(Row {
            hold: Hold { lane: lane(row.try_get(17)?), fence: 0 },
            sequence: row.try_get(15)?,
            id: row.try_get(0).unwrap_or_default(),
            created_at: time(row, 16)?,
            delayed: row.try_get::<i64, _>(18)? == 1,
            suspect: false,
            event: decode(row)
                .map(Arc::new)
                .map_err(|reason| Unreadable { topic: row.try_get(1).unwrap_or_default(), reason }),
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn note(stream: &MySqlStream, notes: &[(Hold, i64)]) -> sqlx::Result<Vec<Hold>> {
    let rows = notes.iter().map(|(hold, sequence)| json!([hold.lane, hold.fence, sequence]));
    let query = sqlx::query(stream.statements.read.note.sql()).bind(json_text(rows));
    let written = query.execute(&stream.pool).await?.rows_affected();
    let holds: Vec<Hold> = notes.iter().map(|(hold, _)| *hold).collect();
    unless_all(stream, written, holds).await
}

pub(super) async fn deliver(
    stream: &MySqlStream,
    rows: &[(Hold, RowId)],
    keep: Keep,
) -> sqlx::Result<Delivered> {
    let mut connection = stream.connection().await?;
    let delivered = deliver_on(&mut connection, stream, rows, keep).await;
    connection.afterwards(delivered).await
}

async fn deliver_on(
    connection: &mut Hurried,
    stream: &MySqlStream,
    rows: &[(Hold, RowId)],
    keep: Keep,
) -> sqlx::Result<Delivered> {
    let statements = &stream.statements;
    let mut tx = connection.begin().await?;
    let held = held(&mut tx, &statements.own.held_shared, rows.iter().map(|(hold, _)| *hold)).await?;
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().copied().partition(|(hold, _)| held.contains(hold));
    let ours: Vec<RowId> = ours.into_iter().map(|(_, row)| row).collect();
    let refused = others.into_iter().map(|(hold, _)| hold).collect();
    let free = statements.mark.open_and_free(&mut tx, &ours).await?;
    let mut busy = Vec::new();
    if free.len() < ours.len() {
        busy = statements.mark.open(&mut tx, &ours).await?;
        busy.retain(|row| !free.contains(&row.sequence));
    }
    if !busy.is_empty() {
        sqlx::query(statements.read.shelve.sql()).bind(row_ids(&busy)).execute(&mut *tx).await?;
    }
    finish(&mut tx, statements, &free, keep).await?;
    failpoint!("place.marked");
    tx.commit().await?;
    Ok(Delivered { refused, shelved: !busy.is_empty() })
}

pub(super) async fn clear(stream: &MySqlStream, holds: &[Hold]) -> sqlx::Result<Vec<Hold>> {
    let query = sqlx::query(stream.statements.read.clear.sql()).bind(holds_json(holds.iter().copied()));
    let written = query.execute(&stream.pool).await?.rows_affected();
    unless_all(stream, written, holds.to_vec()).await
}

/// What was refused, where not all of it was written.
async fn unless_all(stream: &MySqlStream, written: u64, holds: Vec<Hold>) -> sqlx::Result<Vec<Hold>> {
    if written == holds.len() as u64 {
        return Ok(Vec::new());
    }
    let known = noted(stream, &holds).await?;
    let known: HashSet<u16> = known.into_iter().map(|(lane, _)| lane).collect();
    Ok(holds.into_iter().filter(|hold| !known.contains(&hold.lane)).collect())
}
