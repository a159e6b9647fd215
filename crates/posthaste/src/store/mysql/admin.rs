//! What operators do: look, count, replay, discard, purge.

use std::time::Duration;

use serde_json::json;
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use sqlx::{MySql, QueryBuilder, Row};
use time::PrimitiveDateTime;
use uuid::Uuid;

use super::columns::{EVENT_COLUMNS, decode};
use super::look::Look;
use super::{begin, stored_time};
use crate::store::filter::{FILTER_COLUMNS, like_pattern};
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, Ending, Filter, Page, Purge, Record, Stats, Status, TableName};

/// Behind [`EVENT_COLUMNS`], in the order of [`read_record`].
const RECORD_COLUMNS: &str =
    "seq, attempts, created_at, locked_by, locked_until, settled_at, last_error, outcome, UTC_TIMESTAMP(6)";

/// One row.
pub(super) async fn get(pool: &MySqlPool, table: &TableName, id: Uuid) -> sqlx::Result<Option<Record>> {
    let mut query = select(QueryBuilder::new("SELECT "), table);
    query.push(" WHERE id = ").push_bind(id);
    query.build().fetch_optional(pool).await?.map(|row| read_record(&row)).transpose()
}

/// A page in the order of the ids.
pub(super) async fn list(
    look: &mut Look,
    table: &TableName,
    filter: &Filter,
    page: Page,
) -> sqlx::Result<Vec<Record>> {
    let mut query = select(look.select(), table);
    query.push(" WHERE true");
    push_filter(&mut query, filter);
    if let Some(id) = page.after {
        query.push(if page.newest_first { " AND id < " } else { " AND id > " }).push_bind(id);
    }
    query.push(if page.newest_first { " ORDER BY id DESC LIMIT " } else { " ORDER BY id LIMIT " });
    query.push_bind(i64::from(page.limit));
    query.build().fetch_all(&mut **look).await?.iter().map(read_record).collect()
}

/// Those of these events that fit.
pub(super) async fn fitting(
    look: &mut Look,
    table: &TableName,
    filter: &Filter,
    ids: &[Uuid],
) -> sqlx::Result<Vec<Record>> {
    let mut query = select(look.select(), table);
    query.push(" WHERE true");
    push_filter(&mut query, filter);
    query.push(" AND id IN (");
    let mut named = query.separated(", ");
    for id in ids {
        named.push_bind(*id);
    }
    query.push(")");
    query.build().fetch_all(&mut **look).await?.iter().map(read_record).collect()
}

/// Counts what fits among at most `cap` rows of the state in question.
pub(super) async fn count(
    look: &mut Look,
    table: &TableName,
    filter: &Filter,
    cap: u32,
) -> sqlx::Result<Count> {
    let mut query = look.select();
    query.push("COUNT(*), COUNT(CASE WHEN true");
    push_filter(&mut query, filter);
    query.push(" THEN 1 END) FROM (SELECT ").push(FILTER_COLUMNS).push(" FROM ").push(table.quoted('`'));
    query.push(" WHERE true");
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(id);
    }
    query.push(match filter.status {
        Some(Status::Pending | Status::Processing) => {
            " AND outcome IS NULL ORDER BY available_at, seq LIMIT "
        }
        Some(Status::Delivered) => " AND outcome = 'delivered' ORDER BY available_at, seq LIMIT ",
        Some(Status::Dead) => " AND outcome = 'dead' ORDER BY available_at, seq LIMIT ",
        None => " ORDER BY seq LIMIT ",
    });
    query.push_bind(i64::from(cap) + 1).push(") AS looked_at");
    let row = query.build().fetch_one(&mut **look).await?;
    Ok(Count::among(row.try_get(0)?, row.try_get(1)?, cap))
}

/// Looks at no more than `cap` rows of each kind, through the index on their outcome.
pub(super) async fn stats(look: &mut Look, table: &TableName, cap: u32) -> sqlx::Result<Stats> {
    let table = table.quoted('`');
    let mut query = look.select();
    query.push(
"COUNT(*), COUNT(CASE WHEN locked_until > UTC_TIMESTAMP(6) THEN 1 END), (SELECT COUNT(*) FROM (SELECT 1 FROM ",
    );
    query
        .push(&table)
        .push(" WHERE outcome = 'dead' LIMIT ")
        .push_bind(i64::from(cap) + 1)
        .push(") AS dead)");
    query.push(", (SELECT TIMESTAMPDIFF(MICROSECOND, available_at, UTC_TIMESTAMP(6)) FROM ").push(&table);
    query.push(
        " WHERE outcome IS NULL AND available_at <= UTC_TIMESTAMP(6) ORDER BY available_at, seq LIMIT 1)",
    );
    query.push(" FROM (SELECT locked_until FROM ").push(&table);
    query
        .push(" WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ")
        .push_bind(i64::from(cap) + 1)
        .push(") AS open");
    let row = query.build().fetch_one(&mut **look).await?;
    let (open, processing): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Stats {
        pending: Count::among(open, open - processing, cap),
        processing: Count::among(open, processing, cap),
        dead: Count::of(row.try_get(2)?, cap),
        oldest_age: row
            .try_get::<Option<i64>, _>(3)?
            .map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
    })
}

// What is written is named by its key, and found by it: in a small table, or one of which most is to go, everything would
// be read and locked otherwise.
const REPLAY: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.seq
   SET o.outcome = NULL, o.settled_at = NULL, o.attempts = 0, o.available_at = UTC_TIMESTAMP(6),
       o.locked_by = NULL, o.locked_until = NULL";

const DELETE: &str = "
DELETE o
  FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.seq";

/// Dead rows become pending, their error kept.
pub(super) async fn replay(
    pool: &MySqlPool,
    table: &TableName,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut tx = begin(pool).await?;
    let dead = dead(&mut tx, table, filter, limit).await?;
    write(&mut tx, table, REPLAY, &dead).await?;
    tx.commit().await?;
    Ok(dead.len() as u64)
}

/// Dead rows are deleted.
pub(super) async fn discard(
    pool: &MySqlPool,
    table: &TableName,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut tx = begin(pool).await?;
    let dead = dead(&mut tx, table, filter, limit).await?;
    write(&mut tx, table, DELETE, &dead).await?;
    tx.commit().await?;
    Ok(dead.len() as u64)
}

/// Settled rows past their retention are deleted. Those that somebody has locked wait for another time.
pub(super) async fn purge(pool: &MySqlPool, table: &TableName, purge: Purge) -> sqlx::Result<u64> {
    let mut tx = begin(pool).await?;
    let mut past = QueryBuilder::new("SELECT seq FROM ");
    past.push(table.quoted('`')).push(format_args!(" FORCE INDEX (`{}_settled`)", table.name()));
    past.push(match purge.ending {
        Ending::Delivered => " WHERE outcome = 'delivered'",
        Ending::Dead => " WHERE outcome = 'dead'",
    });
    past.push(" AND settled_at <= UTC_TIMESTAMP(6) - INTERVAL ").push_bind(micros(purge.older_than));
    past.push(" MICROSECOND ORDER BY settled_at LIMIT ")
        .push_bind(purge.limit)
        .push(" FOR UPDATE SKIP LOCKED");
    let past: Vec<i64> = past.build_query_scalar().fetch_all(&mut *tx).await?;
    failpoint!("purge.selected");
    write(&mut tx, table, DELETE, &past).await?;
    failpoint!("purge.written");
    tx.commit().await?;
    Ok(past.len() as u64)
}

/// Locks dead rows that fit, through the claim index and no more than are wanted: an update with an order of its own
/// would lock every dead row to sort them.
async fn dead(
    connection: &mut MySqlConnection,
    table: &TableName,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<Vec<i64>> {
    let mut dead = QueryBuilder::new("SELECT seq FROM ");
    dead.push(table.quoted('`')).push(format_args!(" FORCE INDEX (`{}_claim`)", table.name()));
    dead.push(" WHERE outcome = 'dead'");
    push_filter(&mut dead, filter);
    dead.push(" ORDER BY available_at, seq LIMIT ").push_bind(limit).push(" FOR UPDATE SKIP LOCKED");
    dead.build_query_scalar().fetch_all(connection).await
}

/// Executes a statement on rows that are locked.
async fn write(
    connection: &mut MySqlConnection,
    table: &TableName,
    statement: &'static str,
    sequences: &[i64],
) -> sqlx::Result<()> {
    if !sequences.is_empty() {
        let statement = Statement::new(Dialect::MySql, table, statement);
        let rows = json!(sequences).to_string();
        sqlx::query(statement.sql()).bind(rows).execute(connection).await?;
    }
    Ok(())
}

fn select(mut query: QueryBuilder<MySql>, table: &TableName) -> QueryBuilder<MySql> {
    query.push(EVENT_COLUMNS).push(", ").push(RECORD_COLUMNS).push(" FROM ").push(table.quoted('`'));
    query
}

fn push_filter(query: &mut QueryBuilder<MySql>, filter: &Filter) {
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(id);
    }
    match filter.status {
        Some(Status::Pending) => {
            query.push(" AND outcome IS NULL AND (locked_until IS NULL OR locked_until <= UTC_TIMESTAMP(6))")
        }
        Some(Status::Processing) => query.push(" AND outcome IS NULL AND locked_until > UTC_TIMESTAMP(6)"),
        Some(Status::Delivered) => query.push(" AND outcome = 'delivered'"),
        Some(Status::Dead) => query.push(" AND outcome = 'dead'"),
        None => query,
    };
    if let Some(topic) = &filter.topic {
        match like_pattern(topic) {
            Some(pattern) => query.push(" AND topic LIKE ").push_bind(pattern).push(" ESCAPE '!'"),
            None => query.push(" AND topic = ").push_bind(topic.clone()),
        };
    }
    for (column, value) in filter.texts() {
        query.push(format_args!(" AND {column} = ")).push_bind(value.to_owned());
    }
    for (comparison, at) in filter.times() {
        query.push(format_args!(" AND {comparison} ")).push_bind(stored_time(at));
    }
}

fn read_record(row: &MySqlRow) -> sqlx::Result<Record> {
    let time = |at: usize| {
        Ok::<_, sqlx::Error>(
            row.try_get::<Option<PrimitiveDateTime>, _>(at)?.map(PrimitiveDateTime::assume_utc),
        )
    };
    let locked_until = time(19)?;
    let outcome: Option<&str> = row.try_get(22)?;
    Ok(Record {
        id: row.try_get(0)?,
        sequence: row.try_get(15)?,
        status: Status::read(outcome, locked_until, row.try_get::<PrimitiveDateTime, _>(23)?.assume_utc()),
        attempts: u32::try_from(row.try_get::<i32, _>(16)?).unwrap_or(0),
        locked_by: row.try_get(18)?,
        locked_until,
        created_at: row.try_get::<PrimitiveDateTime, _>(17)?.assume_utc(),
        available_at: row.try_get::<PrimitiveDateTime, _>(14)?.assume_utc(),
        settled_at: time(20)?,
        last_error: row.try_get(21)?,
        event: decode(row),
    })
}
