//! Row leases: claims, extensions and settlements are single statements on a JSON array.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::columns::{EVENT_COLUMNS, decode};
use super::{stored_time, time_of};
use crate::store::claim::{BEFORE_IT, EXHAUSTED};
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{
    Buried, Claim, Claimed, ClaimedBatch, Dialect, Keep, Lease, Mark, Settlement, TableName, Verdict,
};

// ?1 holder, ?2 lease, ?3 limit, ?4 attempt limit, ?5 attempt limits by topic, ?6 why a spent row is dead that left no error,
// ?7 and ?8 the mark, ?9 the topics. A row is spent when it has no attempt left; the first attempt always is.
const CLAIM: &str = "
UPDATE {table}
   SET attempts     = CASE WHEN {spent} THEN attempts ELSE attempts + 1 END,
       locked_by    = CASE WHEN {spent} THEN NULL ELSE ?1 END,
       locked_until = CASE WHEN {spent} THEN NULL ELSE {now} + ?2 END,
       outcome      = CASE WHEN {spent} THEN 'dead' END,
       settled_at   = CASE WHEN {spent} THEN {now} END,
       last_error   = CASE WHEN NOT {spent} THEN last_error
                           WHEN locked_by IS NULL THEN coalesce(last_error, ?6)
                           ELSE ?6 || coalesce('{before_it}' || last_error, '') END
 WHERE seq IN (
       SELECT seq FROM {table}
        WHERE outcome IS NULL
          AND available_at <= {now}
          AND (locked_until IS NULL OR locked_until <= {now})
          {after}
          {topics}
        ORDER BY available_at, seq
        LIMIT ?3)
RETURNING {columns}, seq, attempts, created_at, outcome, last_error";

const SPENT: &str =
    "(attempts > 0 AND attempts >= coalesce((SELECT value FROM json_each(?5) WHERE key = topic), ?4))";

const AFTER: &str = "AND (available_at, seq) > (?7, ?8)";

const ONLY: &str = "AND topic IN (SELECT value FROM json_each(?9))";

const EXCEPT: &str = "AND topic NOT IN (SELECT value FROM json_each(?9))";

const BURY: &str = "
UPDATE {table}
   SET outcome = 'dead', settled_at = {now}, last_error = d.reason, locked_by = NULL, locked_until = NULL
  FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS reason FROM json_each(?2)) AS d
 WHERE {table}.seq = d.seq AND locked_by = ?1 AND outcome IS NULL";

const EXTEND: &str = "
UPDATE {table}
   SET locked_until = {now} + ?1
  FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS holder,
               json_extract(value, '$[2]') AS attempt FROM json_each(?2)) AS l
 WHERE {table}.seq = l.seq AND locked_by = l.holder AND attempts = l.attempt AND outcome IS NULL
RETURNING id";

// Verdicts: 0 delivered, 1 retry, 2 dead, 3 released.
const SETTLE: &str = "
UPDATE {table}
   SET outcome      = CASE s.verdict WHEN 0 THEN 'delivered' WHEN 2 THEN 'dead' END,
       settled_at   = CASE WHEN s.verdict IN (0, 2) THEN {now} END,
       available_at = CASE WHEN s.delay IS NULL THEN available_at ELSE {now} + s.delay END,
       attempts     = CASE s.verdict WHEN 3 THEN attempts - 1 ELSE attempts END,
       last_error   = CASE s.verdict WHEN 0 THEN NULL WHEN 3 THEN last_error ELSE s.error END,
       locked_by    = NULL,
       locked_until = NULL
  FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS holder,
               json_extract(value, '$[2]') AS attempt, json_extract(value, '$[3]') AS verdict,
               json_extract(value, '$[4]') AS delay, json_extract(value, '$[5]') AS error FROM json_each(?1)) AS s
 WHERE {table}.seq = s.seq AND locked_by = s.holder AND attempts = s.attempt AND outcome IS NULL
RETURNING id";

const DELETE: &str = "
DELETE FROM {table}
 WHERE seq IN (
       SELECT o.seq
         FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS holder,
                      json_extract(value, '$[2]') AS attempt FROM json_each(?1)) AS s
         JOIN {table} AS o ON o.seq = s.seq AND o.locked_by = s.holder AND o.attempts = s.attempt AND o.outcome IS NULL)
RETURNING id";

/// The claims of all topics, of some, and of all but some.
#[derive(Debug)]
struct Claims {
    all: Statement,
    only: Statement,
    except: Statement,
}

#[derive(Debug)]
pub(super) struct Statements {
    claim: Claims,
    claim_after: Claims,
    bury: Statement,
    extend: Statement,
    settle: Statement,
    delete: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Sqlite, table, sql);
        let claim = |after, topics| {
            statement(CLAIM)
                .with("{spent}", SPENT)
                .with("{after}", after)
                .with("{topics}", topics)
                .with("{before_it}", BEFORE_IT)
                .with("{columns}", EVENT_COLUMNS)
        };
        let claims =
            |after| Claims { all: claim(after, ""), only: claim(after, ONLY), except: claim(after, EXCEPT) };
        Self {
            claim: claims(""),
            claim_after: claims(AFTER),
            bury: statement(BURY),
            extend: statement(EXTEND),
            settle: statement(SETTLE),
            delete: statement(DELETE),
        }
    }
}

/// The statement that asks for the database's clock.
pub(super) fn now() -> AssertSqlSafe<String> {
    AssertSqlSafe(crate::store::migrate::render(Dialect::Sqlite, &TableName::default(), "SELECT {now}"))
}

/// Leases up to a batch of rows and reads them.
pub(super) async fn claim(
    pool: &SqlitePool,
    statements: &Statements,
    claim: &Claim,
) -> sqlx::Result<ClaimedBatch> {
    let holder = claim.worker.next_holder();
    let Claims { all, only, except } =
        if claim.after.is_some() { &statements.claim_after } else { &statements.claim };
    let mut query = sqlx::query(claim.topics.choose([all, only, except]).sql())
        .bind(holder.to_string())
        .bind(micros(claim.lease))
        .bind(claim.limit)
        .bind(claim.attempts.default_limit())
        .bind(claim.attempts.topics_json())
        .bind(EXHAUSTED);
    match (claim.after, claim.topics.json()) {
        (None, None) => {}
        (Some(mark), None) => query = query.bind(stored_time(mark.available_at)).bind(mark.sequence),
        (mark, Some(topics)) => {
            query = query
                .bind(mark.map(|mark| stored_time(mark.available_at)))
                .bind(mark.map(|mark| mark.sequence))
                .bind(topics);
        }
    }
    let rows = query.fetch_all(pool).await?;
    let (mut batch, undecodable) = read_batch(&rows, &holder)?;
    batch.mark = batch.mark.or(claim.after);
    // If it fails, the rows come up again when their lease ends; the rest of the batch is leased already.
    if let Err(error) = bury(pool, statements, &holder, &undecodable).await {
        tracing::warn!(%error, rows = undecodable.len(), "undecodable rows could not be marked dead yet");
    }
    batch.buried.extend(undecodable);
    Ok(batch)
}

/// Sorts rows, which come in no order, into what can be delivered or is dead, and what cannot be read.
fn read_batch(rows: &[SqliteRow], holder: &Arc<str>) -> sqlx::Result<(ClaimedBatch, Vec<Buried>)> {
    let mut batch = ClaimedBatch::default();
    let mut undecodable = Vec::new();
    let mut marks = Vec::with_capacity(rows.len());
    for row in rows {
        let sequence: i64 = row.try_get(15)?;
        marks.push(Mark { available_at: time_of(row.try_get(14)?)?, sequence });
        let id = row.try_get::<&str, _>(0).ok().and_then(|id| Uuid::try_parse(id).ok()).unwrap_or_default();
        let topic = row.try_get::<String, _>(1).unwrap_or_default();
        if row.try_get::<Option<&str>, _>(18)?.is_some() {
            let reason = row.try_get::<Option<String>, _>(19)?.unwrap_or_default();
            batch.buried.push(Buried { id, sequence, topic, reason });
            continue;
        }
        match decode(row) {
            Ok(event) => {
                let attempt = row.try_get::<u32, _>(16)?;
                let lease = Lease { id: event.id, sequence, holder: Arc::clone(holder), attempt };
                batch.events.push(Claimed {
                    event: Arc::new(event),
                    lease,
                    created_at: time_of(row.try_get(17)?)?,
                });
            }
            Err(reason) => undecodable.push(Buried { id, sequence, topic, reason }),
        }
    }
    batch.mark = marks.into_iter().max();
    batch.sort();
    Ok((batch, undecodable))
}

async fn bury(pool: &SqlitePool, statements: &Statements, holder: &str, rows: &[Buried]) -> sqlx::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows = rows.iter().map(|row| json!([row.sequence, row.reason])).collect();
    let rows = serde_json::Value::Array(rows).to_string();
    sqlx::query(statements.bury.sql()).bind(holder.to_owned()).bind(rows).execute(pool).await?;
    Ok(())
}

/// Makes leases last from now.
pub(super) async fn extend(
    pool: &SqlitePool,
    statements: &Statements,
    leases: &[&Lease],
    length: Duration,
) -> sqlx::Result<Vec<Uuid>> {
    let leases = leases.iter().map(|l| json!([l.sequence, &*l.holder, l.attempt])).collect();
    let query = sqlx::query_scalar(statements.extend.sql());
    let extended =
        query.bind(micros(length)).bind(serde_json::Value::Array(leases).to_string()).fetch_all(pool).await?;
    read_ids(extended)
}

/// Writes any mix of verdicts; where nothing is kept, delivered rows are deleted by a statement of their own,
/// in one transaction with the other.
pub(super) async fn settle(
    pool: &SqlitePool,
    statements: &Statements,
    settlements: &[&Settlement],
    keep: Keep,
) -> sqlx::Result<Vec<Uuid>> {
    let deletes = |settlement: &Settlement| keep == Keep::Nothing && settlement.verdict == Verdict::Delivered;
    let (deleted, updated): (Vec<&Settlement>, Vec<&Settlement>) =
        settlements.iter().copied().partition(|s| deletes(s));
    if deleted.is_empty() {
        return read_ids(
            sqlx::query_scalar(statements.settle.sql()).bind(rows_of(&updated)).fetch_all(pool).await?,
        );
    }
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let mut written =
        sqlx::query_scalar(statements.delete.sql()).bind(rows_of(&deleted)).fetch_all(&mut *tx).await?;
    if !updated.is_empty() {
        let rest = sqlx::query_scalar(statements.settle.sql()).bind(rows_of(&updated)).fetch_all(&mut *tx);
        written.extend(rest.await?);
    }
    failpoint!("settle.written");
    tx.commit().await?;
    read_ids(written)
}

/// Settlements as a JSON array of arrays.
fn rows_of(settlements: &[&Settlement]) -> String {
    let rows = settlements.iter().map(|s| {
        let (lease, verdict) = (&s.lease, &s.verdict);
        json!([
            lease.sequence,
            &*lease.holder,
            lease.attempt,
            verdict.code(),
            verdict.delay(),
            verdict.error()
        ])
    });
    serde_json::Value::Array(rows.collect()).to_string()
}

fn read_ids(ids: Vec<String>) -> sqlx::Result<Vec<Uuid>> {
    ids.iter().map(|id| Uuid::try_parse(id).map_err(|error| sqlx::Error::Decode(error.into()))).collect()
}
