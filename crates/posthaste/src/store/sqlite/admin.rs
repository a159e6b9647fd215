//! What operators do: look, count, replay, discard, purge.

use std::time::Duration;

use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{QueryBuilder, Row, Sqlite};
use uuid::Uuid;

use super::columns::{EVENT_COLUMNS, decode};
use super::look::Look;
use super::{stored_time, time_of};
use crate::store::filter::{FILTER_COLUMNS, glob_pattern};
use crate::store::migrate::SQLITE_NOW as NOW;
use crate::store::settlement::micros;
use crate::store::{Count, Ending, Filter, Page, Purge, Record, Stats, Status, TableName};

/// Behind [`EVENT_COLUMNS`], in the order of [`read_record`].
const RECORD_COLUMNS: &str =
    "seq, attempts, created_at, locked_by, locked_until, settled_at, last_error, outcome";

/// One row.
pub(super) async fn get(pool: &SqlitePool, table: &TableName, id: Uuid) -> sqlx::Result<Option<Record>> {
    let mut query = select(table);
    query.push(" WHERE id = ").push_bind(text_id(id));
    query.build().fetch_optional(pool).await?.map(|row| read_record(&row)).transpose()
}

/// A page in the order of the ids.
pub(super) async fn list(
    look: &mut Look,
    table: &TableName,
    filter: &Filter,
    page: Page,
) -> sqlx::Result<Vec<Record>> {
    let mut query = select(table);
    query.push(" WHERE true");
    push_filter(&mut query, filter);
    if let Some(id) = page.after {
        query.push(if page.newest_first { " AND id < " } else { " AND id > " }).push_bind(text_id(id));
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
    let mut query = select(table);
    query.push(" WHERE true");
    push_filter(&mut query, filter);
    query.push(" AND id IN (");
    let mut named = query.separated(", ");
    for id in ids {
        named.push_bind(text_id(*id));
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
    let mut query = QueryBuilder::new("SELECT count(*), count(*) FILTER (WHERE true");
    push_filter(&mut query, filter);
    query.push(") FROM (SELECT ").push(FILTER_COLUMNS).push(" FROM ").push(table.quoted('"'));
    query.push(" WHERE true");
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(text_id(id));
    }
    query.push(match filter.status {
        Some(Status::Pending | Status::Processing) => {
            " AND outcome IS NULL ORDER BY available_at, seq LIMIT "
        }
        Some(Status::Delivered) => " AND outcome = 'delivered' ORDER BY settled_at LIMIT ",
        Some(Status::Dead) => " AND outcome = 'dead' ORDER BY id LIMIT ",
        None => " ORDER BY seq LIMIT ",
    });
    query.push_bind(i64::from(cap) + 1).push(") AS looked_at");
    let row = query.build().fetch_one(&mut **look).await?;
    Ok(Count::among(row.try_get(0)?, row.try_get(1)?, cap))
}

/// Looks at no more than `cap` rows of each kind, through the partial indexes.
pub(super) async fn stats(look: &mut Look, table: &TableName, cap: u32) -> sqlx::Result<Stats> {
    let table = table.quoted('"');
    let mut query = QueryBuilder::new("SELECT count(*), count(*) FILTER (WHERE locked_until > ");
    query.push(NOW).push("), (SELECT count(*) FROM (SELECT 1 FROM ");
    query
        .push(&table)
        .push(" WHERE outcome = 'dead' LIMIT ")
        .push_bind(i64::from(cap) + 1)
        .push(") AS dead)");
    query.push(", (SELECT ").push(NOW).push(" - available_at FROM ").push(&table);
    query
        .push(" WHERE outcome IS NULL AND available_at <= ")
        .push(NOW)
        .push(" ORDER BY available_at, seq LIMIT 1)");
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

/// Dead rows become pending, their error kept.
pub(super) async fn replay(
    pool: &SqlitePool,
    table: &TableName,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut query = QueryBuilder::new("UPDATE ");
    query.push(table.quoted('"'));
    query.push(" SET outcome = NULL, settled_at = NULL, attempts = 0, locked_by = NULL, locked_until = NULL, available_at = ").push(NOW);
    push_dead(&mut query, table, filter, limit);
    Ok(query.build().execute(pool).await?.rows_affected())
}

/// Dead rows are deleted.
pub(super) async fn discard(
    pool: &SqlitePool,
    table: &TableName,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut query = QueryBuilder::new("DELETE FROM ");
    query.push(table.quoted('"'));
    push_dead(&mut query, table, filter, limit);
    Ok(query.build().execute(pool).await?.rows_affected())
}

/// Settled rows past their retention are deleted.
pub(super) async fn purge(pool: &SqlitePool, table: &TableName, purge: Purge) -> sqlx::Result<u64> {
    let mut query = QueryBuilder::new("DELETE FROM ");
    query.push(table.quoted('"')).push(" WHERE seq IN (SELECT seq FROM ").push(table.quoted('"'));
    query.push(match purge.ending {
        Ending::Delivered => " WHERE outcome = 'delivered'",
        Ending::Dead => " WHERE outcome = 'dead'",
    });
    query.push(" AND settled_at <= ").push(NOW).push(" - ").push_bind(micros(purge.older_than));
    query.push(" LIMIT ").push_bind(i64::from(purge.limit)).push(")");
    Ok(query.build().execute(pool).await?.rows_affected())
}

fn select(table: &TableName) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT ");
    query
        .push(EVENT_COLUMNS)
        .push(", ")
        .push(RECORD_COLUMNS)
        .push(", ")
        .push(NOW)
        .push(" FROM ")
        .push(table.quoted('"'));
    query
}

fn push_dead(query: &mut QueryBuilder<Sqlite>, table: &TableName, filter: &Filter, limit: u32) {
    query.push(" WHERE seq IN (SELECT seq FROM ").push(table.quoted('"')).push(" WHERE outcome = 'dead'");
    push_filter(query, filter);
    query.push(" ORDER BY id LIMIT ").push_bind(i64::from(limit)).push(")");
}

fn push_filter(query: &mut QueryBuilder<Sqlite>, filter: &Filter) {
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(text_id(id));
    }
    match filter.status {
        Some(Status::Pending) => {
            query.push(" AND outcome IS NULL AND coalesce(locked_until, 0) <= ").push(NOW)
        }
        Some(Status::Processing) => query.push(" AND outcome IS NULL AND locked_until > ").push(NOW),
        Some(Status::Delivered) => query.push(" AND outcome = 'delivered'"),
        Some(Status::Dead) => query.push(" AND outcome = 'dead'"),
        None => query,
    };
    if let Some(topic) = &filter.topic {
        match glob_pattern(topic) {
            Some(pattern) => query.push(" AND topic GLOB ").push_bind(pattern),
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

fn read_record(row: &SqliteRow) -> sqlx::Result<Record> {
    let time = |at: usize| row.try_get::<Option<i64>, _>(at)?.map(time_of).transpose();
    let locked_until = time(19)?;
    let outcome: Option<&str> = row.try_get(22)?;
    Ok(Record {
        id: Uuid::try_parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?,
        sequence: row.try_get(15)?,
        status: Status::read(outcome, locked_until, time_of(row.try_get(23)?)?),
        attempts: row.try_get(16)?,
        locked_by: row.try_get(18)?,
        locked_until,
        created_at: time_of(row.try_get(17)?)?,
        available_at: time_of(row.try_get(14)?)?,
        settled_at: time(20)?,
        last_error: row.try_get(21)?,
        event: decode(row),
    })
}

pub(super) fn text_id(id: Uuid) -> String {
    id.hyphenated().to_string()
}
