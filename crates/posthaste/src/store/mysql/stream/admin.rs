//! What operators do with a stream: look, count, replay, discard, purge.
//!
//! What is neither delivered nor dead is found among the unsettled rows and what is parked.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use serde_json::json;
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use sqlx::{MySql, QueryBuilder, Row};
use time::PrimitiveDateTime;
use uuid::Uuid;

use super::super::columns::{EVENT_COLUMNS, decode};
use super::super::look::Look;
use super::super::{begin, stored_time};
use super::MySqlStream;
use super::park::{NOT_PARKED, come_up};
use crate::store::filter::like_pattern;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::stream::place::{RowId, json_text};
use crate::store::{Count, Dialect, Ending, Filter, Page, Purge, Record, Stats, Status, TableName};

// The status as the view computes it; the order of the columns is that of `read_record`.
const RECORDS: &str = "
SELECT {columns}, o.seq, CAST(COALESCE(p.attempts, 0) AS SIGNED) AS attempts, o.created_at, l.owner, l.leased_until,
       COALESCE(p.settled_at, o.settled_at) AS settled_at, p.last_error, {status} AS status,
       GREATEST(o.available_at, COALESCE(p.due, o.available_at)) AS due_at, p.id AS parked_id, p.due";

const STATUS: &str = "
       CASE WHEN p.outcome = 'dead' THEN 'dead'
            WHEN p.outcome = 'delivered' THEN 'delivered'
            WHEN p.claimed = l.fence AND l.leased_until > UTC_TIMESTAMP(6) THEN 'processing'
            WHEN p.position IS NOT NULL THEN 'pending'
            WHEN o.outcome = 'delivered' THEN 'delivered'
            WHEN o.outcome IS NULL AND o.seq <= l.noted_seq AND l.leased_until > UTC_TIMESTAMP(6) THEN 'processing'
            ELSE 'pending' END";

const OF_ALL: &str = "
  FROM {table} AS o JOIN {lanes_table} AS l ON l.lane = o.lane LEFT JOIN {parked_table} AS p ON p.seq = o.seq";

const OF_DEAD: &str = "
  FROM {parked_table} AS p FORCE INDEX (`{name}_parked_dead`)
  STRAIGHT_JOIN {table} AS o ON o.seq = p.seq STRAIGHT_JOIN {lanes_table} AS l ON l.lane = o.lane
 WHERE p.outcome = 'dead'";

// Of these alone.
const OF_CHOSEN: &str = ") AS c
  STRAIGHT_JOIN {table} AS o ON o.seq = c.seq STRAIGHT_JOIN {lanes_table} AS l ON l.lane = o.lane
  LEFT JOIN {parked_table} AS p ON p.seq = o.seq";

const ALL: &str = "SELECT seq FROM {table} ORDER BY seq";

const DELIVERED: &str = "
SELECT seq FROM {table} FORCE INDEX (`{name}_settled`) WHERE outcome = 'delivered' ORDER BY settled_at";

const DEAD: &str = "
SELECT seq FROM {parked_table} FORCE INDEX (`{name}_parked_dead`) WHERE outcome = 'dead' ORDER BY id";

const WAITING: &str = "
SELECT seq FROM {parked_table} FORCE INDEX (`{name}_parked_dead`) WHERE outcome IS NULL ORDER BY id";

const UNSETTLED: &str = "
SELECT o.seq FROM {table} AS o FORCE INDEX (`{name}_unsettled`) WHERE o.outcome IS NULL AND {not_parked} ORDER BY o.seq";

const ONE: &str = "SELECT seq FROM {table} WHERE id = ";

const OLD: &str = "
SELECT seq, lane FROM {parked_table} FORCE INDEX (`{name}_parked_dead`)
 WHERE outcome = 'dead' AND settled_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND ORDER BY id LIMIT ?";

// By its own index, or all that is kept would be read and locked. Rows that somebody has locked wait for another time.
const PAST: &str = "
SELECT seq FROM {table} FORCE INDEX (`{name}_settled`)
 WHERE outcome = 'delivered' AND settled_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
 ORDER BY settled_at LIMIT ? FOR UPDATE SKIP LOCKED";

// Whoever changes what is parked in a lane locks the lane first.
const LOCK_LANES: &str = "
SELECT l.lane
  FROM JSON_TABLE(?, '$[*]' COLUMNS (lane INT PATH '$')) AS d
  STRAIGHT_JOIN {lanes_table} AS l FORCE INDEX (PRIMARY) ON l.lane = d.lane
   FOR UPDATE /*!50700 OF l */";

const DIED: &str = "
SELECT p.position, p.seq, p.id, p.`key`
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (`{name}_parked_seq`) ON p.seq = d.s
 WHERE p.outcome = 'dead'
 ORDER BY p.position";

const REPLAY: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (position BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {parked_table} AS p FORCE INDEX (PRIMARY) ON p.position = d.position
   SET p.outcome = NULL, p.settled_at = NULL, p.attempts = 0, p.due = NULL, p.blocks = TRUE";

/// How many delivered rows are looked at beyond those that are to be deleted: some may be somebody's, and who purges takes a
/// batch that is not full for the last.
const SPARE: u32 = 100;

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
    past: Statement,
    lock_lanes: Statement,
    died: Statement,
    replay: Statement,
}

impl Statements {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
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
            unsettled: statement(UNSETTLED).with_rendered("{not_parked}", &statement(NOT_PARKED)),
            one: statement(ONE),
            old: statement(OLD),
            past: statement(PAST),
            lock_lanes: statement(LOCK_LANES),
            died: statement(DIED),
            replay: statement(REPLAY),
        }
    }
}

/// One row.
pub(in super::super) async fn get(
    pool: &MySqlPool,
    statements: &Statements,
    id: Uuid,
) -> sqlx::Result<Option<Record>> {
    let mut query = QueryBuilder::new(statements.records.text());
    query.push(statements.of_all.text()).push(" WHERE o.id = ").push_bind(id);
    query.build().fetch_optional(pool).await?.map(|row| read_record(&row)).transpose()
}

/// A page in the order of the ids.
pub(in super::super) async fn list(
    look: &mut Look,
    statements: &Statements,
    filter: &Filter,
    page: Page,
) -> sqlx::Result<Vec<Record>> {
    let mut query = look.select();
    query.push("* FROM (");
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
        query.push_bind(after);
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
    let mut query = look.select();
    query.push("* FROM (");
    query.push(statements.records.text()).push(statements.of_all.text()).push(") AS r WHERE true");
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
pub(in super::super) async fn count(
    look: &mut Look,
    statements: &Statements,
    filter: &Filter,
    cap: u32,
) -> sqlx::Result<Count> {
    let most = i64::from(cap) + 1;
    let mut query = look.select();
    query.push("COUNT(*), COUNT(CASE WHEN true");
    push_filter(&mut query, filter);
    query.push(" THEN 1 END) FROM (").push(statements.records.text()).push(" FROM (");
    match (filter.id, filter.status) {
        (Some(id), _) => {
            query.push(statements.one.text()).push_bind(id);
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
    let mut query = look.select();
    query.push(
"COUNT(*), COUNT(CASE WHEN status = 'pending' THEN 1 END), COUNT(CASE WHEN status = 'processing' THEN 1 END), \
         (SELECT COUNT(*) FROM (",
    );
    push_most(&mut query, &statements.dead, most);
    query.push(
        ") AS dead), TIMESTAMPDIFF(MICROSECOND, MIN(CASE WHEN due_at <= UTC_TIMESTAMP(6) \
         AND (parked_id IS NULL OR due IS NOT NULL) THEN due_at END), UTC_TIMESTAMP(6)) FROM (",
    );
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
    stream: &MySqlStream,
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

/// Dead events are deleted; those that waited behind them go on. One that somebody has locked stays for another time.
pub(in super::super) async fn discard(
    stream: &MySqlStream,
    statements: &Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let mut tx = begin(&stream.pool).await?;
    let dead = died(&mut tx, statements, filter, limit).await?;
    let deleted = delete(&mut tx, stream, dead).await?;
    tx.commit().await?;
    Ok(deleted)
}

/// Rows past their retention are deleted. One that somebody has locked stays for another time.
pub(in super::super) async fn purge(
    stream: &MySqlStream,
    statements: &Statements,
    purge: Purge,
) -> sqlx::Result<u64> {
    let mut tx = begin(&stream.pool).await?;
    if purge.ending == Ending::Delivered {
        let most = purge.limit.saturating_add(SPARE);
        let past = sqlx::query_scalar(statements.past.sql()).bind(micros(purge.older_than)).bind(most);
        let past: Vec<i64> = past.fetch_all(&mut *tx).await?;
        failpoint!("purge.selected");
        let mark = &stream.statements.mark;
        let deletable = mark.deletable(&mut tx, &past.into_iter().collect()).await?;
        let deleted: HashSet<i64> = deletable.into_iter().take(purge.limit as usize).collect();
        mark.delete(&mut tx, &deleted).await?;
        failpoint!("purge.written");
        tx.commit().await?;
        return Ok(deleted.len() as u64);
    }
    let old = sqlx::query_as(statements.old.sql()).bind(micros(purge.older_than)).bind(purge.limit);
    let old = old.fetch_all(&mut *tx).await?;
    let dead = lock(&mut tx, statements, old).await?;
    failpoint!("purge.dead_locked");
    let deleted = delete(&mut tx, stream, dead).await?;
    failpoint!("purge.dead_deleted");
    tx.commit().await?;
    Ok(deleted)
}

/// An event that died.
struct Dead {
    /// Its place among the parked.
    position: i64,
    row: RowId,
    /// What it is in order with.
    key: String,
}

/// Dead events that fit, oldest first.
async fn died(
    connection: &mut MySqlConnection,
    statements: &Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<Vec<Dead>> {
    let mut query = QueryBuilder::new("SELECT seq, lane FROM (");
    query
        .push(statements.records.text())
        .push(", p.lane")
        .push(statements.of_dead.text())
        .push(") AS r WHERE true");
    push_filter(&mut query, filter);
    query.push(" ORDER BY parked_id LIMIT ").push_bind(i64::from(limit));
    let found = query.build_query_as().fetch_all(&mut *connection).await?;
    lock(connection, statements, found).await
}

/// Locks the lanes of these, and answers with those that are still dead.
async fn lock(
    connection: &mut MySqlConnection,
    statements: &Statements,
    found: Vec<(i64, i16)>,
) -> sqlx::Result<Vec<Dead>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let lanes: BTreeSet<i16> = found.iter().map(|(_, lane)| *lane).collect();
    let lanes = json_text(lanes.into_iter().map(|lane| json!(lane)));
    sqlx::query(statements.lock_lanes.sql()).bind(lanes).fetch_all(&mut *connection).await?;
    let sequences = json_text(found.iter().map(|(sequence, _)| json!(sequence)));
    let query = sqlx::query_as(statements.died.sql()).bind(sequences);
    let died: Vec<(i64, i64, Uuid, String)> = query.fetch_all(connection).await?;
    let dead = |(position, sequence, id, key)| Dead { position, row: RowId { sequence, id }, key };
    Ok(died.into_iter().map(dead).collect())
}

/// Deletes those dead events that nobody has locked, and lets the next of their aggregates come up; how many. With lanes
/// locked nobody is waited for.
async fn delete(
    connection: &mut MySqlConnection,
    stream: &MySqlStream,
    mut dead: Vec<Dead>,
) -> sqlx::Result<u64> {
    let statements = &stream.statements;
    let rows: Vec<RowId> = dead.iter().map(|dead| dead.row).collect();
    let free = statements.mark.free(connection, &rows).await?;
    let deletable = statements.mark.deletable(connection, &free).await?;
    if deletable.len() < rows.len() {
        let there: HashSet<RowId> = statements.mark.there(connection, &rows).await?.into_iter().collect();
        dead.retain(|dead| deletable.contains(&dead.row.sequence) || !there.contains(&dead.row));
    }
    if dead.is_empty() {
        return Ok(0);
    }
    let positions = json_text(dead.iter().map(|dead| json!(dead.position)));
    sqlx::query(statements.park.unpark.sql()).bind(positions).execute(&mut *connection).await?;
    statements.mark.delete(connection, &deletable).await?;
    come_up(connection, statements, dead.iter().map(|dead| dead.key.as_str()), &[]).await?;
    Ok(dead.len() as u64)
}

/// The sequences of what is neither delivered nor dead.
fn push_open(query: &mut QueryBuilder<MySql>, statements: &Statements, most: Option<i64>) {
    // MySQL takes the largest number for no limit.
    let most = most.unwrap_or(i64::MAX);
    query.push("SELECT seq FROM ((");
    push_most(query, &statements.waiting, most);
    query.push(") UNION ALL (");
    push_most(query, &statements.unsettled, most);
    query.push(")) AS open LIMIT ").push_bind(most);
}

fn push_most(query: &mut QueryBuilder<MySql>, statement: &Statement, most: i64) {
    query.push(statement.text()).push(" LIMIT ").push_bind(most);
}

fn push_filter(query: &mut QueryBuilder<MySql>, filter: &Filter) {
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(id);
    }
    if let Some(status) = filter.status {
        query.push(" AND status = ").push_bind(status.as_str());
    }
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
    let status = Status::named(row.try_get(22)?);
    let processing = status == Status::Processing;
    Ok(Record {
        id: row.try_get(0)?,
        sequence: row.try_get(15)?,
        status,
        attempts: u32::try_from(row.try_get::<i64, _>(16)?).unwrap_or(0),
        locked_by: row.try_get::<Option<String>, _>(18)?.filter(|_| processing),
        locked_until: time(19)?.filter(|_| processing),
        created_at: row.try_get::<PrimitiveDateTime, _>(17)?.assume_utc(),
        available_at: row.try_get::<PrimitiveDateTime, _>(23)?.assume_utc(),
        settled_at: time(20)?,
        last_error: row.try_get(21)?,
        event: decode(row),
    })
}
