//! What operators do with a stream: look, count, replay, discard, purge.
//!
//! A row says nothing of its state: its lane's place says whether it was delivered, and what is parked the rest. What is
//! not delivered is found among what is parked, above the place of the lane that is furthest behind, and below it by
//! the transactions that ended late.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Postgres, QueryBuilder, Row, Transaction};
use uuid::Uuid;

use super::super::PLACED;
use super::super::admin::push_limit;
use super::super::columns::{EVENT_COLUMNS, Types, decode};
use super::super::look::Look;
use super::{begin, park};
use crate::store::filter::like_pattern;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, Ending, Filter, Page, Purge, Record, Status, TableName};

/// Rows that a purge looks at at once.
const SLICE: u32 = 4000;

/// After how long a purge begins at the first row again: what was passed over may go by then.
const ANEW: Duration = Duration::from_secs(60 * 60);

// The status as the view computes it. A row has no time of its delivery: where it was delivered, the time it was written stands for
// it in filters. The order of the columns is that of `read_record`.
const RECORDS: &str = "
SELECT {columns}, o.seq, coalesce(p.attempts, 0) AS attempts, o.created_at, l.owner, l.leased_until,
       p.settled_at AS died_at, p.last_error, {status} AS status, greatest(o.available_at, p.due) AS due_at,
       CASE WHEN p.position IS NULL AND {status} = 'delivered' THEN o.created_at ELSE p.settled_at END AS settled_at, p.id AS parked_id, p.due";

const STATUS: &str = "
       CASE WHEN p.outcome IS NOT NULL THEN p.outcome
            WHEN p.claimed = l.fence AND l.leased_until > now() THEN 'processing'
            WHEN p.position IS NOT NULL THEN 'pending'
            ELSE {status_unparked} END";

// Of what is not parked.
pub(super) const STATUS_UNPARKED: &str = "
       CASE WHEN o.seq <= l.anchor_seq AND (l.recover IS NULL OR o.seq <= l.after_seq
                 OR o.seq <= l.recover_seq AND pg_visible_in_snapshot(o.xid, l.recover)) THEN 'delivered'
            WHEN o.seq <= l.anchor_seq THEN 'pending'
            WHEN pg_visible_in_snapshot(o.xid, l.base) THEN 'delivered'
            WHEN l.target IS NOT NULL AND o.seq <= l.after_seq AND pg_visible_in_snapshot(o.xid, l.target) THEN 'delivered'
            WHEN l.noted IS NOT NULL AND o.seq <= l.noted_seq AND pg_visible_in_snapshot(o.xid, l.noted)
                 AND l.leased_until > now() THEN 'processing'
            ELSE 'pending' END";

// Of these rows. What belongs to a row is looked up by an index, row by row, however little the planner knows of the tables: the
// offset keeps it from joining all of one instead.
const OF: &str = "
 CROSS JOIN {its_place}
  LEFT JOIN LATERAL (SELECT * FROM {parked_table} AS q WHERE q.seq = o.seq OFFSET 0) AS p ON true";

const ALL: &str = "
  FROM {table} AS o";

const DEAD: &str = "
  FROM {parked_table} AS p CROSS JOIN {its_row} CROSS JOIN {its_place}
 WHERE p.outcome = 'dead'";

const ITS_PLACE: &str = "LATERAL (SELECT * FROM {placed} AS w WHERE w.lane = o.lane OFFSET 0) AS l";

const ITS_ROW: &str = "LATERAL (SELECT * FROM {table} AS e WHERE e.id = p.id OFFSET 0) AS o";

const ALL_BY_ID: &str = "SELECT * FROM {table} ORDER BY id";

const DEAD_BY_ID: &str = "SELECT id FROM {parked_table} WHERE outcome = 'dead' ORDER BY id";

const WAITING: &str = "SELECT id FROM {parked_table} WHERE outcome IS NULL ORDER BY position";

// A bound that says nothing makes the planner think of few rows, and of the index.
const UNREAD: &str = "SELECT o.* FROM {table} AS o
 WHERE (SELECT true FROM {parked_table} AS p WHERE p.seq = o.seq LIMIT 1) IS NULL AND o.seq BETWEEN ";

const ONE: &str = "SELECT * FROM {table} WHERE id = ";

// Everything at a seq up to the first answer is delivered or parked, but for rows of transactions that the others name: those
// from the second on, and the third.
const PLACE: &str = "
WITH places AS (
    SELECT CASE WHEN recover IS NOT NULL THEN after_seq
                WHEN target IS NOT NULL THEN greatest(base_seq, after_seq)
                ELSE greatest(base_seq, anchor_seq) END AS floor,
           CASE WHEN target IS NOT NULL AND after_seq >= base_seq THEN target ELSE base END AS seen
      FROM {placed} AS l
)
SELECT coalesce(min(floor), 0), coalesce(min(pg_snapshot_xmax(seen)::text::bigint), 0)::text,
       ARRAY(SELECT DISTINCT running::text FROM places, LATERAL pg_snapshot_xip(seen) AS running)
  FROM places";

// Operators change what is dead alone. Their lanes are locked so that nobody parks an event behind one that is about to go.
const LOCK_DEAD: &str = "
SELECT position, lane, key FROM {parked_table} WHERE seq = ANY ($1) AND outcome = 'dead' ORDER BY id FOR UPDATE SKIP LOCKED";

// $1 age, $2 limit.
const LOCK_OLD: &str = "
SELECT position, lane, key FROM {parked_table}
 WHERE outcome = 'dead' AND settled_at <= now() - $1 * interval '1 microsecond'
 ORDER BY settled_at, position LIMIT (SELECT $2::bigint) FOR UPDATE SKIP LOCKED";

const LOCK_LANES: &str = "SELECT FROM {lanes_table} WHERE lane = ANY ($1) ORDER BY lane FOR NO KEY UPDATE";

const REPLAY: &str = "
UPDATE {parked_table}
   SET outcome = NULL, settled_at = NULL, attempts = 0, due = NULL, blocks = true
 WHERE position = ANY ($1)";

const DISCARD: &str = "
WITH gone AS (DELETE FROM {parked_table} WHERE position = ANY ($1) RETURNING id)
DELETE FROM {table} WHERE id = ANY (ARRAY(SELECT id FROM gone))";

// $1 the seq after which to look, $2 at how many rows, $3 age, $4 limit. Answers with how many were looked at, up to which, how many of
// them are old enough, how many went and up to which, and the first that neither went nor is parked.
const PURGE: &str = "
WITH slice AS MATERIALIZED (
    SELECT o.seq, o.id, o.created_at <= now() - $3 * interval '1 microsecond' AS old
      FROM {table} AS o WHERE o.seq BETWEEN $1 + 1 AND 9223372036854775807 ORDER BY o.seq LIMIT (SELECT $2::bigint)
), chosen AS MATERIALIZED (
    SELECT o.id, o.seq
      FROM {table} AS o JOIN {placed} AS l ON l.lane = o.lane
     WHERE o.id = ANY (ARRAY(SELECT id FROM slice WHERE old))
       AND (SELECT true FROM {parked_table} AS p WHERE p.seq = o.seq LIMIT 1) IS NULL AND {status_unparked} = 'delivered'
     ORDER BY o.seq + 0 LIMIT $4 FOR UPDATE OF o SKIP LOCKED
), gone AS (
    DELETE FROM {table} WHERE id = ANY (ARRAY(SELECT id FROM chosen)) RETURNING seq
)
SELECT count(*), max(s.seq), count(*) FILTER (WHERE s.old), (SELECT count(*) FROM gone), (SELECT max(seq) FROM gone),
       min(s.seq) FILTER (WHERE s.seq NOT IN (SELECT seq FROM gone)
                            AND (SELECT true FROM {parked_table} AS p WHERE p.seq = s.seq LIMIT 1) IS NULL)
  FROM slice AS s";

#[derive(Debug)]
pub(in super::super) struct Statements {
    records: Statement,
    of: Statement,
    all: Statement,
    dead: Statement,
    its_row: Statement,
    all_by_id: Statement,
    dead_by_id: Statement,
    waiting: Statement,
    unread: Statement,
    one: Statement,
    place: Statement,
    lock_dead: Statement,
    lock_old: Statement,
    lock_lanes: Statement,
    replay: Statement,
    discard: Statement,
    purge: Statement,
}

impl Statements {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let statement = |sql| {
            Statement::new(Dialect::Postgres, table, sql)
                .with("{status}", STATUS)
                .with("{status_unparked}", STATUS_UNPARKED)
                .with("{its_place}", ITS_PLACE)
                .with_rendered("{its_row}", &Statement::new(Dialect::Postgres, table, ITS_ROW))
                .with_rendered("{placed}", &Statement::new(Dialect::Postgres, table, PLACED))
        };
        Self {
            records: statement(RECORDS).with_columns_of("o", EVENT_COLUMNS),
            of: statement(OF),
            all: statement(ALL),
            dead: statement(DEAD),
            its_row: statement(ITS_ROW),
            all_by_id: statement(ALL_BY_ID),
            dead_by_id: statement(DEAD_BY_ID),
            waiting: statement(WAITING),
            unread: statement(UNREAD),
            one: statement(ONE),
            place: statement(PLACE),
            lock_dead: statement(LOCK_DEAD),
            lock_old: statement(LOCK_OLD),
            lock_lanes: statement(LOCK_LANES),
            replay: statement(REPLAY),
            discard: statement(DISCARD),
            purge: statement(PURGE),
        }
    }
}

/// How far a purge is: dead entries of an index, which stay as long as somebody looks at an old snapshot, are stepped
/// over once and not with every batch.
#[derive(Debug, Default)]
pub(in super::super) struct Floor(Mutex<Option<Reached>>);

#[derive(Debug, Clone, Copy)]
struct Reached {
    /// Everything up to here has gone, or is parked.
    clean: i64,
    /// The batches of one purge are up to here.
    batch: i64,
    since: Instant,
}

impl Floor {
    /// Up to where nothing is left to purge.
    pub(in super::super) fn reached(&self) -> i64 {
        self.get().batch
    }

    fn get(&self) -> Reached {
        let mut reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = reached.filter(|reached| reached.since.elapsed() < ANEW);
        *reached.insert(begun.unwrap_or(Reached { clean: 0, batch: 0, since: Instant::now() }))
    }

    fn set(&self, now: Reached) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }
}

/// One row.
pub(in super::super) async fn get(
    pool: &PgPool,
    statements: &Statements,
    id: Uuid,
) -> sqlx::Result<Option<Record>> {
    let mut query = QueryBuilder::new(statements.records.text());
    query.push(statements.all.text()).push(statements.of.text()).push(" WHERE o.id = ").push_bind(id);
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
            push_dead(&mut query, statements, filter);
            id = "parked_id";
        }
        Some(Status::Pending | Status::Processing) => {
            query.push(" FROM (");
            push_open(&mut query, statements, &place(look, statements).await?, None);
            query.push(") AS o").push(statements.of.text());
        }
        Some(Status::Delivered) | None => {
            query.push(statements.all.text()).push(statements.of.text());
        }
    }
    query.push(") AS r WHERE true");
    match filter.status {
        // Known, and not to be asked of every row: the planner would think that few are.
        Some(Status::Dead) => push_rest(&mut query, filter),
        Some(_) | None => push_filter(&mut query, filter),
    }
    if let Some(after) = page.after {
        query.push(format_args!(" AND {id} {} ", if page.newest_first { "<" } else { ">" })).push_bind(after);
    }
    query.push(format_args!(" ORDER BY {id} {}", if page.newest_first { "DESC" } else { "ASC" }));
    push_limit(&mut query, i64::from(page.limit));
    // Planned anew each time: how much lies above a place is not the same twice.
    query.build().persistent(false).fetch_all(&mut **look).await?.iter().map(read_record).collect()
}

/// Those of these events that fit.
pub(in super::super) async fn fitting(
    look: &mut Look,
    statements: &Statements,
    filter: &Filter,
    ids: &[Uuid],
) -> sqlx::Result<Vec<Record>> {
    let mut query = QueryBuilder::new("SELECT * FROM (");
    query.push(statements.records.text()).push(statements.all.text()).push(statements.of.text());
    query.push(") AS r WHERE true");
    push_filter(&mut query, filter);
    query.push(" AND id = ANY (").push_bind(ids.to_vec()).push(")");
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
            query.push(statements.one.text()).push_bind(id);
        }
        (None, Some(Status::Dead)) => {
            push_rows_of(&mut query, statements, &statements.dead_by_id, Some(most));
        }
        (None, Some(Status::Pending | Status::Processing)) => {
            push_open(&mut query, statements, &place(look, statements).await?, Some(most));
        }
        (None, Some(Status::Delivered) | None) => {
            query.push(statements.all_by_id.text()).push(" LIMIT ").push_bind(most);
        }
    }
    query.push(") AS o").push(statements.of.text()).push(") AS looked_at");
    let row = query.build().persistent(false).fetch_one(&mut **look).await?;
    Ok(Count::among(row.try_get(0)?, row.try_get(1)?, cap))
}

/// Dead events wait again, first of their aggregates or behind others; their error is kept.
pub(in super::super) async fn replay(
    pool: &PgPool,
    statements: &super::super::Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let sequences = dead(pool, &statements.stream_admin, filter, limit).await?;
    if sequences.is_empty() {
        return Ok(0);
    }
    let mut tx = begin(pool).await?;
    let found = sqlx::query_as(statements.stream_admin.lock_dead.sql()).bind(sequences);
    let found = found.fetch_all(&mut *tx).await?;
    let dead = lock_lanes(&mut tx, statements, found).await?;
    sqlx::query(statements.stream_admin.replay.sql()).bind(&dead.positions).execute(&mut *tx).await?;
    park::promote(&mut tx, &statements.stream.park, &dead.keys).await?;
    tx.commit().await?;
    Ok(dead.positions.len() as u64)
}

/// Dead events are deleted; those that waited behind them go on.
pub(in super::super) async fn discard(
    pool: &PgPool,
    statements: &super::super::Statements,
    filter: &Filter,
    limit: u32,
) -> sqlx::Result<u64> {
    let sequences = dead(pool, &statements.stream_admin, filter, limit).await?;
    if sequences.is_empty() {
        return Ok(0);
    }
    let mut tx = begin(pool).await?;
    let found = sqlx::query_as(statements.stream_admin.lock_dead.sql()).bind(sequences);
    let found = found.fetch_all(&mut *tx).await?;
    delete_dead(tx, statements, found).await
}

/// Rows past their retention are deleted: delivered ones by the time they were written.
pub(in super::super) async fn purge(
    pool: &PgPool,
    statements: &super::super::Statements,
    floor: &Floor,
    purge: Purge,
) -> sqlx::Result<u64> {
    match purge.ending {
        Ending::Delivered => purge_delivered(pool, &statements.stream_admin, floor, purge).await,
        Ending::Dead => {
            let mut tx = begin(pool).await?;
            let found = sqlx::query_as(statements.stream_admin.lock_old.sql())
                .bind(micros(purge.older_than))
                .bind(i64::from(purge.limit));
            let found = found.fetch_all(&mut *tx).await?;
            delete_dead(tx, statements, found).await
        }
    }
}

async fn purge_delivered(
    pool: &PgPool,
    statements: &Statements,
    floor: &Floor,
    purge: Purge,
) -> sqlx::Result<u64> {
    let limit = i64::from(purge.limit);
    let mut reached = floor.get();
    let mut deleted = 0;
    loop {
        let row = sqlx::query(statements.purge.sql())
            .bind(reached.batch)
            .bind(i64::from(SLICE))
            .bind(micros(purge.older_than))
            .bind(limit - deleted)
            .fetch_one(pool)
            .await?;
        let (looked_at, last, old): (i64, Option<i64>, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (gone, last_gone, kept): (i64, Option<i64>, Option<i64>) =
            (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
        deleted += gone;
        let full = deleted >= limit;
        let until = if full { last_gone } else { last }.unwrap_or(reached.batch);
        if reached.clean == reached.batch {
            reached.clean = kept.map_or(until, |kept| until.min(kept - 1));
        }
        reached.batch = until;
        // Whoever does not wait for the end goes on from here.
        floor.set(reached);
        if full || looked_at < i64::from(SLICE) || old == 0 {
            // What is not delivered yet is looked at again by the next purge.
            if !full {
                reached.batch = reached.clean;
            }
            floor.set(reached);
            return Ok(u64::try_from(deleted).unwrap_or(0));
        }
    }
}

/// Below what everything is delivered or parked, and whose rows may not be.
struct Place {
    floor: i64,
    next: String,
    running: Vec<String>,
}

async fn place(look: &mut Look, statements: &Statements) -> sqlx::Result<Place> {
    let row = sqlx::query(statements.place.sql()).fetch_one(&mut **look).await?;
    Ok(Place { floor: row.try_get(0)?, next: row.try_get(1)?, running: row.try_get(2)? })
}

/// The rows of what is neither delivered nor dead, and some that were delivered since.
fn push_open(query: &mut QueryBuilder<Postgres>, statements: &Statements, place: &Place, most: Option<i64>) {
    query.push("SELECT * FROM ((");
    push_rows_of(query, statements, &statements.waiting, most);
    query
        .push(") UNION ALL (")
        .push(statements.unread.text())
        .push("-9223372036854775807 AND ")
        .push_bind(place.floor);
    query.push(" AND o.xid = ANY (").push_bind(place.running.clone()).push("::text[]::xid8[])");
    push_most(query, most);
    query
        .push(") UNION ALL (")
        .push(statements.unread.text())
        .push("-9223372036854775807 AND ")
        .push_bind(place.floor);
    query.push(" AND o.xid BETWEEN ").push_bind(place.next.clone());
    query.push("::text::xid8 AND '9223372036854775807'::xid8");
    push_most(query, most);
    query.push(") UNION ALL (").push(statements.unread.text()).push_bind(place.floor);
    query.push(" + 1 AND 9223372036854775807");
    if most.is_some() {
        query.push(" ORDER BY o.seq");
    }
    push_most(query, most);
    query.push(")) AS open");
    push_most(query, most);
}

/// The rows of what is parked.
fn push_rows_of(
    query: &mut QueryBuilder<Postgres>,
    statements: &Statements,
    parked: &Statement,
    most: Option<i64>,
) {
    query.push("SELECT o.* FROM (").push(parked.text());
    push_most(query, most);
    query.push(") AS p CROSS JOIN ").push(statements.its_row.text());
}

fn push_most(query: &mut QueryBuilder<Postgres>, most: Option<i64>) {
    if let Some(most) = most {
        push_limit(query, most);
    }
}

/// What is dead, by its id where that is asked for: behind the row that belongs to it, the id would be found by nobody.
fn push_dead(query: &mut QueryBuilder<Postgres>, statements: &Statements, filter: &Filter) {
    query.push(statements.dead.text());
    if let Some(id) = filter.id {
        query.push(" AND p.id = ").push_bind(id);
    }
}

/// The sequences of dead events that fit, oldest first.
async fn dead(pool: &PgPool, statements: &Statements, filter: &Filter, limit: u32) -> sqlx::Result<Vec<i64>> {
    let mut query = QueryBuilder::new("SELECT seq FROM (");
    query.push(statements.records.text());
    push_dead(&mut query, statements, filter);
    query.push(") AS r WHERE true");
    match filter.status {
        Some(Status::Dead) => push_rest(&mut query, filter),
        Some(_) | None => push_filter(&mut query, filter),
    }
    query.push(" ORDER BY parked_id");
    push_limit(&mut query, i64::from(limit));
    query.build_query_scalar().persistent(false).fetch_all(pool).await
}

/// Dead events that are locked, and their lanes with them.
struct Locked {
    positions: Vec<i64>,
    keys: Vec<String>,
}

async fn lock_lanes(
    tx: &mut Transaction<'static, Postgres>,
    statements: &super::super::Statements,
    found: Vec<(i64, i16, String)>,
) -> sqlx::Result<Locked> {
    let lanes: Vec<i16> = found.iter().map(|(_, lane, _)| *lane).collect();
    sqlx::query(statements.stream_admin.lock_lanes.sql()).bind(lanes).execute(&mut **tx).await?;
    let (positions, keys) = found.into_iter().map(|(position, _, key)| (position, key)).unzip();
    Ok(Locked { positions, keys })
}

async fn delete_dead(
    mut tx: Transaction<'static, Postgres>,
    statements: &super::super::Statements,
    found: Vec<(i64, i16, String)>,
) -> sqlx::Result<u64> {
    if found.is_empty() {
        return Ok(0);
    }
    let dead = lock_lanes(&mut tx, statements, found).await?;
    failpoint!("purge.dead_locked");
    sqlx::query(statements.stream_admin.discard.sql()).bind(&dead.positions).execute(&mut *tx).await?;
    park::promote(&mut tx, &statements.stream.park, &dead.keys).await?;
    failpoint!("purge.dead_deleted");
    tx.commit().await?;
    Ok(dead.positions.len() as u64)
}

fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    if let Some(status) = filter.status {
        query.push(" AND status = ").push_bind(status.as_str());
    }
    push_rest(query, filter);
}

/// The filter without the status.
fn push_rest(query: &mut QueryBuilder<Postgres>, filter: &Filter) {
    if let Some(id) = filter.id {
        query.push(" AND id = ").push_bind(id);
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
        query.push(format_args!(" AND {comparison} ")).push_bind(at);
    }
}

fn read_record(row: &PgRow) -> sqlx::Result<Record> {
    let status = Status::named(row.try_get(22)?);
    let processing = status == Status::Processing;
    Ok(Record {
        id: row.try_get(0)?,
        sequence: row.try_get(15)?,
        status,
        attempts: u32::try_from(row.try_get::<i32, _>(16)?).unwrap_or(0),
        locked_by: row.try_get::<Option<String>, _>(18)?.filter(|_| processing),
        locked_until: row.try_get::<Option<_>, _>(19)?.filter(|_| processing),
        created_at: row.try_get(17)?,
        available_at: row.try_get(23)?,
        settled_at: row.try_get(20)?,
        last_error: row.try_get(21)?,
        event: decode(row, Types::of(row)),
    })
}
