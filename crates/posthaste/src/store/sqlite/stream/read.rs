//! What the reader reads of lanes, notes as under way, and says to be delivered.

use std::sync::Arc;

use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use super::super::columns::{EVENT_COLUMNS, decode};
use super::super::time_of;
use super::own::held;
use super::{SqliteStream, begin, id, row_ids};
use crate::store::statement::Statement;
use crate::store::stream::floor::{Delivered, Look};
use crate::store::stream::place::{RowId, holds_json, json_text, lane, mask};
use crate::store::stream::{Hold, Row, Unreadable};
use crate::store::{Dialect, Keep, TableName};

const UNSETTLED: &str = "
SELECT seq
  FROM {table}
 WHERE outcome IS NULL AND seq > ?1 AND substr(?2, lane + 1, 1) = '1'
 ORDER BY seq
 LIMIT ?3";

const HIGHEST: &str = "SELECT coalesce(max(seq), 0) FROM {table}";

// Nobody writes beside the one who writes: nothing below is still to be committed. The index has the unsettled ones alone.
const LOWEST: &str = "
SELECT seq FROM {table} WHERE outcome IS NULL AND seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT 1";

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

// Neither settled nor parked. A row is found by its place and compared by its id: in a file that was put back from a copy its
// place may be another event's.
const OPEN: &str = "
SELECT o.seq, o.id
  FROM json_each(?1) AS p CROSS JOIN {table} AS o ON o.seq = json_extract(p.value, '$[0]')
 WHERE +o.id = json_extract(p.value, '$[1]') AND o.outcome IS NULL";

const THESE: &str = "
SELECT o.seq
  FROM json_each(?1) AS p CROSS JOIN {table} AS o ON o.seq = json_extract(p.value, '$[0]')
 WHERE +o.id = json_extract(p.value, '$[1]')";

const MARK_DELIVERED: &str = "
UPDATE {table} SET outcome = 'delivered', settled_at = {now} WHERE seq IN ({these})";

const DELETE: &str = "DELETE FROM {table} WHERE seq IN ({these})";

#[derive(Debug)]
pub(super) struct Statements {
    unsettled: Statement,
    highest: Statement,
    lowest: Statement,
    rows: Statement,
    note: Statement,
    clear: Statement,
    open: Statement,
    mark_delivered: Statement,
    delete: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        let of_these = |sql| statement(sql).with_rendered("{these}", &statement(THESE));
        Self {
            unsettled: statement(UNSETTLED),
            highest: statement(HIGHEST),
            lowest: statement(LOWEST),
            rows: statement(ROWS).with("{columns}", EVENT_COLUMNS),
            note: statement(NOTE),
            clear: statement(CLEAR),
            open: statement(OPEN),
            mark_delivered: of_these(MARK_DELIVERED),
            delete: of_these(DELETE),
        }
    }

    /// Those of these that are neither settled nor parked.
    pub(super) async fn open(
        &self,
        connection: &mut SqliteConnection,
        rows: impl Iterator<Item = RowId>,
    ) -> sqlx::Result<Vec<RowId>> {
        let query = sqlx::query_as(self.open.sql()).bind(row_ids(rows));
        let open: Vec<(i64, String)> = query.fetch_all(connection).await?;
        // None of another shape was asked for.
        let read = |(sequence, id): (i64, String)| Some(RowId { sequence, id: Uuid::try_parse(&id).ok()? });
        Ok(open.into_iter().filter_map(read).collect())
    }

    /// Marks events as delivered or deletes them.
    pub(super) async fn finish(
        &self,
        connection: &mut SqliteConnection,
        rows: impl Iterator<Item = RowId>,
        keep: Keep,
    ) -> sqlx::Result<()> {
        let statement = match keep {
            Keep::Delivered => &self.mark_delivered,
            Keep::Nothing => &self.delete,
        };
        sqlx::query(statement.sql()).bind(row_ids(rows)).execute(connection).await.map(drop)
    }
}

pub(super) async fn noted(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<Vec<(u16, Option<i64>)>> {
    let rows: Vec<(i64, i64, Option<i64>)> = sqlx::query_as(stream.statements.own.held.sql())
        .bind(holds_json(holds.iter().copied()))
        .fetch_all(&stream.pool)
        .await?;
    Ok(rows.into_iter().map(|(number, _, noted)| (lane(number), noted)).collect())
}

pub(super) async fn unsettled(
    stream: &SqliteStream,
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

pub(super) async fn highest(stream: &SqliteStream) -> sqlx::Result<i64> {
    sqlx::query_scalar(stream.statements.read.highest.sql()).fetch_one(&stream.pool).await
}

pub(super) async fn look(stream: &SqliteStream, above: i64, until: i64) -> sqlx::Result<Look> {
    let query = sqlx::query_scalar(stream.statements.read.lowest.sql()).bind(above).bind(until);
    let lowest: Option<i64> = query.fetch_optional(&stream.pool).await?;
    Ok(Look { settled: lowest.map_or(until, |lowest| lowest - 1), unsettled: lowest.is_some() })
}

pub(super) async fn rows(stream: &SqliteStream, sequences: &[i64]) -> sqlx::Result<Vec<Row>> {
    let rows = sqlx::query(stream.statements.read.rows.sql())
        .bind(json!(sequences).to_string())
        .fetch_all(&stream.pool)
        .await?;
    let read = |row: &SqliteRow| {
        Ok(Row {
            hold: Hold { lane: lane(row.try_get(17)?), fence: 0 },
            sequence: row.try_get(15)?,
            id: id(row, 0).unwrap_or_default(),
            created_at: time_of(row.try_get(16)?)?,
            delayed: row.try_get(18)?,
            suspect: false,
            event: decode(row)
                .map(Arc::new)
                .map_err(|reason| Unreadable { topic: row.try_get(1).unwrap_or_default(), reason }),
        })
    };
    rows.iter().map(read).collect()
}

pub(super) async fn note(stream: &SqliteStream, notes: &[(Hold, i64)]) -> sqlx::Result<Vec<Hold>> {
    let rows = notes.iter().map(|(hold, sequence)| json!([hold.lane, hold.fence, sequence]));
    let query = sqlx::query_as(stream.statements.read.note.sql()).bind(json_text(rows));
    let written = read_holds(query.fetch_all(&stream.pool).await?);
    Ok(notes.iter().map(|(hold, _)| *hold).filter(|hold| !written.contains(hold)).collect())
}

pub(super) async fn deliver(
    stream: &SqliteStream,
    rows: &[(Hold, RowId)],
    keep: Keep,
) -> sqlx::Result<Delivered> {
    let statements = &stream.statements;
    let mut tx = begin(&stream.pool).await?;
    let held = held(&mut tx, &statements.own.held, rows.iter().map(|(hold, _)| *hold)).await?;
    let (ours, others): (Vec<_>, Vec<_>) = rows.iter().copied().partition(|(hold, _)| held.contains(hold));
    let open = statements.read.open(&mut tx, ours.into_iter().map(|(_, row)| row)).await?;
    if !open.is_empty() {
        statements.read.finish(&mut tx, open.into_iter(), keep).await?;
    }
    failpoint!("place.marked");
    tx.commit().await?;
    Ok(Delivered { refused: others.into_iter().map(|(hold, _)| hold).collect(), shelved: false })
}

pub(super) async fn clear(stream: &SqliteStream, holds: &[Hold]) -> sqlx::Result<Vec<Hold>> {
    let query = sqlx::query_as(stream.statements.read.clear.sql()).bind(holds_json(holds.iter().copied()));
    let written = read_holds(query.fetch_all(&stream.pool).await?);
    Ok(holds.iter().copied().filter(|hold| !written.contains(hold)).collect())
}

fn read_holds(rows: Vec<(i64, i64)>) -> Vec<Hold> {
    rows.into_iter().map(|(number, fence)| Hold { lane: lane(number), fence }).collect()
}
