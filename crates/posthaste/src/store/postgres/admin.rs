//! What operators do: look, count, replay, discard, purge.

use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Postgres, QueryBuilder, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::columns::{EVENT_COLUMNS, Types, decode};
use super::look::Look;
use crate::store::filter::{FILTER_COLUMNS, like_pattern};
use crate::store::settlement::micros;
use crate::store::{Count, Ending, Filter, Page, Purge, Record, Stats, Status, TableName};

/// Behind [`EVENT_COLUMNS`], in the order of [`read_record`].
const RECORD_COLUMNS: &str =
    "seq, attempts, created_at, locked_by, locked_until, settled_at, last_error, outcome, now()";

/// One row.
pub(super) async fn get(pool: &PgPool, table: &TableName, id: Uuid) -> sqlx::Result<Option<Record>> {
    let mut query = select(table);
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
    let mut query = select(table);
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
    let mut query = select(table);
    query.push(" WHERE true");
    push_filter(&mut query, filter);
    query.push(" AND id = ANY (").push_bind(ids.to_vec()).push(")");
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
        query.push(" AND id = ").push_bind(id);
    }
    query.push(match filter.status {
        Some(Status::Pending | Status::Processing) => " AND outcome IS NULL ORDER BY available_at, seq",
        Some(Status::Dead) => " AND outcome = 'dead' ORDER BY id",
        // Looked at in the order of the primary key, whatever they are: where few rows are delivered, finding
        // those would mean going through all others.
        Some(Status::Delivered) | None => " ORDER BY id",
    });
    push_limit(&mut query, i64::from(cap) + 1);
    query.push(") AS looked_at");
    let row = query.build().fetch_one(&mut **look).await?;
    Ok(Count::among(row.try_get(0)?, row.try_get(1)?, cap))
}

/// Looks at no more than `cap` rows of each kind, through the partial indexes.
pub(super) async fn stats(look: &mut Look, table: &TableName, cap: u32) -> sqlx::Result<Stats> {
    let table = table.quoted('"');
    let mut query = QueryBuilder::new(
        "SELECT count(*), count(*) FILTER (WHERE locked_until > now()), (SELECT count(*) FROM (SELECT 1 FROM ",
    );
    query
        .push(&table)
        .push(" WHERE outcome = 'dead' LIMIT ")
        .push_bind(i64::from(cap) + 1)
        .push(") AS dead)");
    query.push(", (SELECT (extract(epoch FROM now() - available_at) * 1000000)::bigint FROM ").push(&table);
    query.push(" WHERE outcome IS NULL AND available_at <= now() ORDER BY available_at, seq LIMIT 1)");
    query.push(" FROM (SELECT locked_until FROM ").push(&table);
    query.push(" WHERE outcome IS NULL ORDER BY available_at, seq");
    push_limit(&mut query, i64::from(cap) + 1);
    query.push(") AS open");
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

/// A limit that the planner does not know: see decision 22.
pub(super) fn push_limit(query: &mut QueryBuilder<Postgres>, most: i64) {
    query.push(" LIMIT (SELECT ").push_bind(most).push(")");
}

/// Dead rows become pending, their error kept.
pub(super) async fn replay(
    pool: &PgPool,
    table: &TableName,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut query = QueryBuilder::new("UPDATE ");
    query.push(table.quoted('"'));
    query.push(" SET outcome = NULL, settled_at = NULL, attempts = 0, available_at = now(), locked_by = NULL, locked_until = NULL");
    push_dead(&mut query, table, filter, limit);
    Ok(query.build().execute(pool).await?.rows_affected())
}

/// Dead rows are deleted.
pub(super) async fn discard(
    pool: &PgPool,
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
pub(super) async fn purge(pool: &PgPool, table: &TableName, purge: Purge) -> sqlx::Result<u64> {
    let mut query = QueryBuilder::new("DELETE FROM ");
    query.push(table.quoted('"')).push(" WHERE id = ANY (ARRAY (SELECT id FROM ").push(table.quoted('"'));
    query.push(match purge.ending {
        Ending::Delivered => " WHERE outcome = 'delivered'",
        Ending::Dead => " WHERE outcome = 'dead'",
    });
    query.push(" AND settled_at <= now() - ").push_bind(micros(purge.older_than));
    query.push(" * interval '1 microsecond' ORDER BY settled_at");
    push_limit(&mut query, i64::from(purge.limit));
    query.push(" FOR UPDATE SKIP LOCKED))");
    Ok(query.build().execute(pool).await?.rows_affected())
}

fn select(table: &TableName) -> QueryBuilder<Postgres> {
    let mut query = QueryBuilder::new("SELECT ");
    query.push(EVENT_COLUMNS).push(", ").push(RECORD_COLUMNS).push(" FROM ").push(table.quoted('"'));
    query
}

fn push_dead(query: &mut QueryBuilder<Postgres>, table: &TableName, filter: &Filter, limit: u32) {
    query
        .push(" WHERE id = ANY (ARRAY (SELECT id FROM ")
        .push(table.quoted('"'))
        .push(" WHERE outcome = 'dead'");
    push_filter(query, filter);
    query.push(" ORDER BY id LIMIT ").push_bind(i64::from(limit)).push(" FOR UPDATE SKIP LOCKED))");
}

fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(id);
    }
    match filter.status {
        Some(Status::Pending) => {
            query.push(" AND outcome IS NULL AND (locked_until IS NULL OR locked_until <= now())")
        }
        Some(Status::Processing) => query.push(" AND outcome IS NULL AND locked_until > now()"),
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
        query.push(format_args!(" AND {comparison} ")).push_bind(at);
    }
}

fn read_record(row: &PgRow) -> sqlx::Result<Record> {
    let locked_until: Option<OffsetDateTime> = row.try_get(19)?;
    let outcome: Option<&str> = row.try_get(22)?;
    Ok(Record {
        id: row.try_get(0)?,
        sequence: row.try_get(15)?,
        status: Status::read(outcome, locked_until, row.try_get(23)?),
        attempts: u32::try_from(row.try_get::<i32, _>(16)?).unwrap_or(0),
        locked_by: row.try_get(18)?,
        locked_until,
        created_at: row.try_get(17)?,
        available_at: row.try_get(14)?,
        settled_at: row.try_get(20)?,
        last_error: row.try_get(21)?,
        event: decode(row, Types::of(row)),
    })
}
