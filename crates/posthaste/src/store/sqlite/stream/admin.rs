//! What operators do with a stream: look, count, replay, discard, purge.
//!
//! What is neither delivered nor dead is found among the unsettled rows and what is parked.

use std::time::Duration;

use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};
use sqlx::{QueryBuilder, Row, Sqlite};
use uuid::Uuid;

use super::super::admin::{self, text_id};
use super::super::columns::{EVENT_COLUMNS, decode};
use super::super::look::Look;
use super::super::{stored_time, time_of};
use super::park::come_up;
use super::{SqliteStream, begin, id};
use crate::store::filter::glob_pattern;
use crate::store::migrate::SQLITE_NOW as NOW;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::place::{RowId, json_text};
use crate::store::{Count, Dialect, Ending, Filter, Keep, Page, Purge, Record, Stats, Status, TableName};

// The status as the view computes it; the order of the columns is that of `read_record`.
const RECORDS: &str = "
SELECT {columns}, o.seq, coalesce(p.attempts, 0) AS attempts, o.created_at, l.owner, l.leased_until,
       coalesce(p.settled_at, o.settled_at) AS settled_at, p.last_error, {status} AS status,
       max(o.available_at, coalesce(p.due, o.available_at)) AS due_at, p.id AS parked_id, p.due";

const STATUS: &str = "
       CASE WHEN p.outcome IS NOT NULL THEN p.outcome
            WHEN p.claimed = l.fence AND l.leased_until > {now} THEN 'processing'
            WHEN p.position IS NOT NULL THEN 'pending'
            WHEN o.outcome = 'delivered' THEN 'delivered'
            WHEN o.outcome IS NULL AND o.seq <= l.noted_seq AND l.leased_until > {now} THEN 'processing'
            ELSE 'pending' END";

const OF_ALL: &str = "
  FROM {table} AS o JOIN {lanes_table} AS l ON l.lane = o.lane LEFT JOIN {parked_table} AS p ON p.seq = o.seq";

const OF_DEAD: &str = "
  FROM {parked_table} AS p CROSS JOIN {table} AS o ON o.seq = p.seq JOIN {lanes_table} AS l ON l.lane = o.lane
 WHERE p.outcome = 'dead'";

// Of these alone.
const OF_CHOSEN: &str = ") AS c
  CROSS JOIN {table} AS o ON o.seq = c.seq JOIN {lanes_table} AS l ON l.lane = o.lane
  LEFT JOIN {parked_table} AS p ON p.seq = o.seq";

const ALL: &str = "SELECT seq FROM {table} ORDER BY seq";

const DELIVERED: &str = "SELECT seq FROM {table} WHERE outcome = 'delivered' ORDER BY settled_at";

const DEAD: &str = "SELECT seq FROM {parked_table} WHERE outcome = 'dead' ORDER BY id";

const WAITING: &str = "SELECT seq FROM {parked_table} WHERE outcome IS NULL ORDER BY position";

const UNSETTLED: &str = "SELECT seq FROM {table} WHERE outcome IS NULL ORDER BY seq";

const ONE: &str = "SELECT seq FROM {table} WHERE id = ";

// ?1 age, ?2 limit.
const OLD: &str = "
SELECT position, seq, id, key FROM {parked_table}
 WHERE outcome = 'dead' AND settled_at <= {now} - ?1 ORDER BY id LIMIT ?2";

const DIED: &str = "
SELECT position, seq, id, key FROM {parked_table}
 WHERE seq IN (SELECT value FROM json_each(?1)) AND outcome = 'dead' ORDER BY position";

const REPLAY: &str = "
UPDATE {parked_table}
   SET outcome = NULL, settled_at = NULL, attempts = 0, due = NULL, blocks = 1
 WHERE position IN (SELECT value FROM json_each(?1))";

#[derive(Debug)]
pub(in super::super) struct Statements {
    records: Statement,
    of_all: Statement,
    of_dead: Statement,
    of_chosen: Statement,
    all: Statement,
    delivered: Statement,
    dead: Statement,
    waiting: Statement,
    unsettled: Statement,
    one: Statement,
    old: Statement,
    died: Statement,
    replay: Statement,
}

impl Statements {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        Self {
            records: statement(RECORDS)
                .with_rendered("{status}", &statement(STATUS))
                .with_columns_of("o", EVENT_COLUMNS),
            of_all: statement(OF_ALL),
            of_dead: statement(OF_DEAD),
            of_chosen: statement(OF_CHOSEN),
            all: statement(ALL),
            delivered: statement(DELIVERED),
            dead: statement(DEAD),
            waiting: statement(WAITING),
            unsettled: statement(UNSETTLED),
            one: statement(ONE),
            old: statement(OLD),
            died: statement(DIED),
            replay: statement(REPLAY),
        }
    }
}

/// One row.
pub(in super::super) async fn get(
    pool: &SqlitePool,
    statements: &Statements,
    id: Uuid,
) -> sqlx::Result<Option<Record>> {
    let mut query = QueryBuilder::new(statements.records.text());
    query.push(statements.of_all.text()).push(" WHERE o.id = ").push_bind(text_id(id));
    query.build().fetch_optional(pool).await?.map(|row| read_record(&row)).transpose()
}

/// A page in the order of the ids.
pub(in super::super) async fn list(
    look: &mut Look,
    statements: &Statements,
    filter: &Filter,
    page: Page,
) -> sqlx::Result<Vec<Record>> {
    let mut query = QueryBuilder::new("SELECT * FROM (");
    query.push(statements.records.text());
    let mut id = "id";
    match filter.status {
        Some(Status::Dead) => {
            query.push(statements.of_dead.text());
            id = "parked_id";
        }
        Some(Status::Pending | Status::Processing) => {
            query.push(" FROM (");
            push_open(&mut query, statements, None);
            query.push(statements.of_chosen.text());
        }
        Some(Status::Delivered) | None => {
            query.push(statements.of_all.text());
        }
    }
    query.push(") AS r WHERE true");
    push_filter(&mut query, filter);
    if let Some(after) = page.after {
        query.push(format_args!(" AND {id} {} ", if page.newest_first { "<" } else { ">" }));
        query.push_bind(text_id(after));
    }
    query.push(format_args!(" ORDER BY {id} {} LIMIT ", if page.newest_first { "DESC" } else { "ASC" }));
    query.push_bind(i64::from(page.limit));
    query.build().fetch_all(&mut **look).await?.iter().map(read_record).collect()
}

/// Those of these events that fit.
pub(in super::super) async fn fitting(
    look: &mut Look,
    statements: &Statements,
    filter: &Filter,
    ids: &[Uuid],
) -> sqlx::Result<Vec<Record>> {
    let mut query = QueryBuilder::new("SELECT * FROM (");
    query.push(statements.records.text()).push(statements.of_all.text()).push(") AS r WHERE true");
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
pub(in super::super) async fn count(
    look: &mut Look,
    statements: &Statements,
    filter: &Filter,
    cap: u32,
) -> sqlx::Result<Count> {
    let most = i64::from(cap) + 1;
    let mut query = QueryBuilder::new("SELECT count(*), count(*) FILTER (WHERE true");
    push_filter(&mut query, filter);
    query.push(") FROM (").push(statements.records.text()).push(" FROM (");
    match (filter.id, filter.status) {
        (Some(id), _) => {
            query.push(statements.one.text()).push_bind(text_id(id));
        }
        (None, Some(Status::Dead)) => push_most(&mut query, &statements.dead, most),
        (None, Some(Status::Pending | Status::Processing)) => push_open(&mut query, statements, Some(most)),
        (None, Some(Status::Delivered)) => push_most(&mut query, &statements.delivered, most),
        (None, None) => push_most(&mut query, &statements.all, most),
    }
    query.push(statements.of_chosen.text()).push(") AS looked_at");
    let row = query.build().fetch_one(&mut **look).await?;
    Ok(Count::among(row.try_get(0)?, row.try_get(1)?, cap))
}

/// Looks at no more than `cap` rows that are open, and at no more dead ones.
pub(in super::super) async fn stats(
    look: &mut Look,
    statements: &Statements,
    cap: u32,
) -> sqlx::Result<Stats> {
    let most = i64::from(cap) + 1;
    let mut query = QueryBuilder::new(
        "SELECT count(*), count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'processing'), (SELECT count(*) FROM (",
    );
    push_most(&mut query, &statements.dead, most);
    query.push(")), ").push(NOW).push(" - min(due_at) FILTER (WHERE due_at <= ").push(NOW);
    query.push(" AND (parked_id IS NULL OR due IS NOT NULL)) FROM (");
    query.push(statements.records.text()).push(" FROM (");
    push_open(&mut query, statements, Some(most));
    query.push(statements.of_chosen.text()).push(") AS open");
    let row = query.build().fetch_one(&mut **look).await?;
    let open: i64 = row.try_get(0)?;
    Ok(Stats {
        pending: Count::among(open, row.try_get(1)?, cap),
        processing: Count::among(open, row.try_get(2)?, cap),
        dead: Count::of(row.try_get(3)?, cap),
        oldest_age: row
            .try_get::<Option<i64>, _>(4)?
            .map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
    })
}

/// Dead events wait again, first of their aggregates or behind others; their error is kept.
pub(in super::super) async fn replay(
    stream: &SqliteStream,
    statements: &Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut tx = begin(&stream.pool).await?;
    let dead = died(&mut tx, statements, filter, limit).await?;
    if !dead.is_empty() {
        let positions = json_text(dead.iter().map(|dead| json!(dead.position)));
        sqlx::query(statements.replay.sql()).bind(positions).execute(&mut *tx).await?;
        come_up(&mut tx, &stream.statements, dead.iter().map(|dead| dead.key.as_str()), &[]).await?;
    }
    tx.commit().await?;
    Ok(dead.len() as u64)
}

/// Dead events are deleted; those that waited behind them go on.
pub(in super::super) async fn discard(
    stream: &SqliteStream,
    statements: &Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut tx = begin(&stream.pool).await?;
    let dead = died(&mut tx, statements, filter, limit).await?;
    delete(&mut tx, stream, &dead).await?;
    tx.commit().await?;
    Ok(dead.len() as u64)
}

/// Rows past their retention are deleted.
pub(in super::super) async fn purge(
    stream: &SqliteStream,
    statements: &Statements,
    purge: Purge,
) -> sqlx::Result<u64> {
    if purge.ending == Ending::Delivered {
        return admin::purge(&stream.pool, &stream.table, purge).await;
    }
    let mut tx = begin(&stream.pool).await?;
    let old = sqlx::query(statements.old.sql()).bind(micros(purge.older_than)).bind(purge.limit);
    let dead = read_dead(&old.fetch_all(&mut *tx).await?)?;
    failpoint!("purge.dead_locked");
    delete(&mut tx, stream, &dead).await?;
    failpoint!("purge.dead_deleted");
    tx.commit().await?;
    Ok(dead.len() as u64)
}

/// An event that died.
struct Dead {
    /// Its place among the parked.
    position: i64,
    row: RowId,
    /// What it is in order with.
    key: String,
}

fn read_dead(rows: &[SqliteRow]) -> sqlx::Result<Vec<Dead>> {
    let read = |row: &SqliteRow| {
        let event = RowId { sequence: row.try_get(1)?, id: id(row, 2)? };
        Ok(Dead { position: row.try_get(0)?, row: event, key: row.try_get(3)? })
    };
    rows.iter().map(read).collect()
}

/// Dead events that fit, oldest first.
async fn died(
    connection: &mut SqliteConnection,
    statements: &Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<Vec<Dead>> {
    let mut query = QueryBuilder::new("SELECT seq FROM (");
    query.push(statements.records.text()).push(statements.of_dead.text()).push(") AS r WHERE true");
    push_filter(&mut query, filter);
    query.push(" ORDER BY parked_id LIMIT ").push_bind(i64::from(limit));
    let sequences: Vec<i64> = query.build_query_scalar().fetch_all(&mut *connection).await?;
    let died = sqlx::query(statements.died.sql()).bind(json!(sequences).to_string());
    read_dead(&died.fetch_all(connection).await?)
}

/// Deletes dead events and lets the next of their aggregates come up.
async fn delete(connection: &mut SqliteConnection, stream: &SqliteStream, dead: &[Dead]) -> sqlx::Result<()> {
    if dead.is_empty() {
        return Ok(());
    }
    let statements = &stream.statements;
    let positions = json_text(dead.iter().map(|dead| json!(dead.position)));
    sqlx::query(statements.park.unpark.sql()).bind(positions).execute(&mut *connection).await?;
    statements.read.finish(connection, dead.iter().map(|dead| dead.row), Keep::Nothing).await?;
    come_up(connection, statements, dead.iter().map(|dead| dead.key.as_str()), &[]).await
}

/// The sequences of what is neither delivered nor dead.
fn push_open(query: &mut QueryBuilder<Sqlite>, statements: &Statements, most: Option<i64>) {
    // SQLite takes a negative limit for none.
    let most = most.unwrap_or(-1);
    query.push("SELECT seq FROM (SELECT seq FROM (");
    push_most(query, &statements.waiting, most);
    query.push(") UNION ALL SELECT seq FROM (");
    push_most(query, &statements.unsettled, most);
    query.push(")) LIMIT ").push_bind(most);
}

fn push_most(query: &mut QueryBuilder<Sqlite>, statement: &Statement, most: i64) {
    query.push(statement.text()).push(" LIMIT ").push_bind(most);
}

fn push_filter(query: &mut QueryBuilder<Sqlite>, filter: &Filter) {
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(text_id(id));
    }
    if let Some(status) = filter.status {
        query.push(" AND status = ").push_bind(status.as_str());
    }
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
    let status = Status::named(row.try_get(22)?);
    let processing = status == Status::Processing;
    Ok(Record {
        id: Uuid::try_parse(row.try_get(0)?).map_err(|error| sqlx::Error::Decode(error.into()))?,
        sequence: row.try_get(15)?,
        status,
        attempts: row.try_get(16)?,
        locked_by: row.try_get::<Option<String>, _>(18)?.filter(|_| processing),
        locked_until: time(19)?.filter(|_| processing),
        created_at: time_of(row.try_get(17)?)?,
        available_at: time_of(row.try_get(23)?)?,
        settled_at: time(20)?,
        last_error: row.try_get(21)?,
        event: decode(row),
    })
}
