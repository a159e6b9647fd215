//! Row leases. A claim changes only columns that no index mentions, so that it stays a heap-only update;
//! claims, extensions and settlements are single statements on arrays, none of which waits for the disk.
//!
//! A claim finds the rows that it has chosen and locked by where they are, which spares a look into the primary key for each.
//! In a table that is made of several (partitions, inheritance) the same place is in each of them, and a view has none: there it is by
//! their ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{Row, ValueRef as _};
use uuid::Uuid;

use super::columns::{Arrived, BEHIND_DELIVERY, DELIVERY_COLUMNS, Types, available_at, decode_delivery};
use crate::planted::{self, Bug};
use crate::store::claim::{BEFORE_IT, EXHAUSTED};
use crate::store::plans::Plans;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{
    Buried, Claim, Claimed, ClaimedBatch, Dialect, Keep, Lease, Mark, Settlement, TableName, Verdict,
};

// $1 holder, $2 lease, $3 limit, $4 attempt limit, $5 attempt limits by topic, $6 why a spent row is dead that left no error,
// $7 and $8 the mark, then the topics. The planner does not know the limit: see decision 22. A row is spent when it has no attempt left; the first attempt always is.
const CLAIM: &str = "
UPDATE {table} AS o
   SET attempts     = CASE WHEN {spent} THEN o.attempts ELSE o.attempts + 1 END,
       locked_by    = CASE WHEN {spent} THEN NULL ELSE $1 END,
       locked_until = CASE WHEN {spent} THEN NULL ELSE now() + $2 * interval '1 microsecond' END,
       outcome      = CASE WHEN {spent} THEN 'dead' END,
       settled_at   = CASE WHEN {spent} THEN now() END,
       last_error   = CASE WHEN NOT {spent} THEN o.last_error
                           WHEN o.locked_by IS NULL THEN coalesce(o.last_error, $6)
                           ELSE $6 || coalesce('{before_it}' || o.last_error, '') END
 WHERE {key} = ANY (ARRAY (
       SELECT {chosen} FROM {table}
        WHERE outcome IS NULL
          AND available_at <= now()
          AND (locked_until IS NULL OR locked_until <= now())
          {after}
          {topics}
        ORDER BY available_at, seq
        LIMIT (SELECT $3::bigint)
          FOR UPDATE SKIP LOCKED))
   {once_more}
   AND {unsynced}
RETURNING {columns}, attempts, outcome, last_error";

/// How a claim names the rows that it has chosen and locked.
struct Key {
    name: &'static str,
    chosen: &'static str,
    /// What is asked of them once more.
    once_more: &'static str,
}

const BY_PLACE: Key = Key { name: "ctid", chosen: PLACE, once_more: OF_ONE_TABLE };
const BY_ID: Key = Key { name: "id", chosen: "id", once_more: "" };

// A place is one of this table alone. Where a row of another is chosen, the text is no place, and the claim fails.
const PLACE: &str = "
       CASE WHEN tableoid = '{table}'::regclass THEN ctid
            ELSE ('made of several tables, ' || tableoid::regclass || ' among them: its rows are claimed by their ids')::tid END";

// The last branch is evaluated for no row of the table itself. It makes each look so dear to the planner that it does not read all of a
// table of a few dozen for the cheaper way, and keep to that when there are many.
const OF_ONE_TABLE: &str = "AND CASE WHEN o.tableoid = '{table}'::regclass THEN true
            ELSE (SELECT false FROM {table} AS d WHERE d.id = o.id LIMIT 1) END";

/// Where a claim's answer has what is said of the lease.
const ATTEMPTS: usize = BEHIND_DELIVERY;
const OUTCOME: usize = ATTEMPTS + 1;
const LAST_ERROR: usize = OUTCOME + 1;

const SPENT: &str = "(o.attempts > 0 AND o.attempts >= coalesce(($5::jsonb ->> o.topic)::int, $4))";

const AFTER: &str = "AND (available_at, seq) > ($7, $8)";

const ONLY: [&str; 2] = ["AND topic = ANY ($7)", "AND topic = ANY ($9)"];

const EXCEPT: [&str; 2] = ["AND topic <> ALL ($7)", "AND topic <> ALL ($9)"];

// What is lost with a crash of the server is done once more: an event is delivered at least once anyway. The
// setting lasts as long as the statement's own transaction, so that no session is changed (a pooler may share
// it) and whatever else the connection commits waits as before.
const UNSYNCED: &str = "(SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL";

// Rows that are named by their ids are looked up by them. Said as `IS NULL`, it would let the planner read all that is open by the
// index of claims, which it takes for next to nothing where the table was last analysed without any.
const BURY: &str = "
UPDATE {table} AS o
   SET outcome = 'dead', settled_at = now(), last_error = d.reason, locked_by = NULL, locked_until = NULL
  FROM unnest($2::uuid[], $3::text[]) AS d(id, reason)
 WHERE o.id = d.id AND o.locked_by = $1 AND coalesce(o.outcome, '') = '' AND {unsynced}";

const EXTEND: &str = "
UPDATE {table} AS o
   SET locked_until = now() + $1 * interval '1 microsecond'
  FROM unnest($2::uuid[], $3::text[], $4::int[]) AS l(id, holder, attempt)
 WHERE o.id = l.id AND o.locked_by = l.holder AND o.attempts = l.attempt AND coalesce(o.outcome, '') = '' AND {unsynced}
RETURNING o.id";

// What settles answers in one row with the ids of what was written, or with null if that is all: a row for each would cost
// both sides more than the rest of the answer.
const WRITTEN: &str = "CASE WHEN count(*) < cardinality($1) THEN coalesce(array_agg(id), '{}') END";

// What most batches are: delivered, of one claim. $2 holder, $3 attempt.
const DELIVERED: &str = "
WITH settled AS (
    UPDATE {table}
       SET outcome = 'delivered', settled_at = now(), last_error = NULL, locked_by = NULL, locked_until = NULL
     WHERE id = ANY ($1::uuid[]) AND locked_by = $2 AND attempts = $3 AND coalesce(outcome, '') = '' AND {unsynced}
    RETURNING id
)
SELECT {written} FROM settled";

const DELIVERED_DELETING: &str = "
WITH settled AS (
    DELETE FROM {table}
     WHERE id = ANY ($1::uuid[]) AND locked_by = $2 AND attempts = $3 AND coalesce(outcome, '') = '' AND {unsynced}
    RETURNING id
)
SELECT {written} FROM settled";

// Verdicts: 0 delivered, 1 retry, 2 dead, 3 released.
const SETTLE: &str = "
WITH settled AS (
    UPDATE {table} AS o
       SET outcome      = CASE s.verdict WHEN 0 THEN 'delivered' WHEN 2 THEN 'dead' END,
           settled_at   = CASE WHEN s.verdict IN (0, 2) THEN now() END,
           available_at = CASE WHEN s.delay IS NULL THEN o.available_at ELSE now() + s.delay * interval '1 microsecond' END,
           attempts     = CASE s.verdict WHEN 3 THEN o.attempts - 1 ELSE o.attempts END,
           last_error   = CASE s.verdict WHEN 0 THEN NULL WHEN 3 THEN o.last_error ELSE s.error END,
           locked_by    = NULL,
           locked_until = NULL
      FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::bigint[], $6::text[])
        AS s(id, holder, attempt, verdict, delay, error)
     WHERE o.id = s.id AND o.locked_by = s.holder AND o.attempts = s.attempt AND coalesce(o.outcome, '') = '' AND {unsynced}
    RETURNING o.id
)
SELECT {written} FROM settled";

const SETTLE_DELETING: &str = "
WITH s AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::bigint[], $6::text[])
               AS s(id, holder, attempt, verdict, delay, error)
     WHERE {unsynced}
), deleted AS (
    DELETE FROM {table} AS o
     USING s
     WHERE s.verdict = 0 AND o.id = s.id AND o.locked_by = s.holder AND o.attempts = s.attempt AND coalesce(o.outcome, '') = ''
    RETURNING o.id
), updated AS (
    UPDATE {table} AS o
       SET outcome      = CASE s.verdict WHEN 2 THEN 'dead' END,
           settled_at   = CASE s.verdict WHEN 2 THEN now() END,
           available_at = CASE WHEN s.delay IS NULL THEN o.available_at ELSE now() + s.delay * interval '1 microsecond' END,
           attempts     = CASE s.verdict WHEN 3 THEN o.attempts - 1 ELSE o.attempts END,
           last_error   = CASE s.verdict WHEN 3 THEN o.last_error ELSE s.error END,
           locked_by    = NULL,
           locked_until = NULL
      FROM s
     WHERE s.verdict <> 0 AND o.id = s.id AND o.locked_by = s.holder AND o.attempts = s.attempt AND coalesce(o.outcome, '') = ''
    RETURNING o.id
)
SELECT {written} FROM (SELECT id FROM deleted UNION ALL SELECT id FROM updated) AS settled";

/// The claims of all topics, of some, and of all but some.
#[derive(Debug)]
struct Claims {
    all: Statement,
    only: Statement,
    except: Statement,
}

/// The claims that name rows in one way: from the beginning, and from a mark on.
#[derive(Debug)]
struct Naming {
    claim: Claims,
    claim_after: Claims,
}

#[derive(Debug)]
pub(super) struct Statements {
    plans: Plans,
    by_place: Naming,
    by_id: Naming,
    /// Whether it has turned out that rows of this table cannot be named by their places.
    has_no_places: AtomicBool,
    bury: Statement,
    extend: Statement,
    delivered: Statement,
    delivered_deleting: Statement,
    settle: Statement,
    settle_deleting: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Postgres, table, sql).with("{unsynced}", UNSYNCED);
        let settling = |sql| statement(sql).with("{written}", WRITTEN);
        let claim = |key: &Key, after, topics| {
            statement(CLAIM)
                .with("{key}", key.name)
                .with_rendered("{chosen}", &statement(key.chosen))
                .with_rendered("{once_more}", &statement(key.once_more))
                .with("{spent}", SPENT)
                .with("{after}", after)
                .with("{topics}", topics)
                .with("{before_it}", BEFORE_IT)
                .with("{columns}", DELIVERY_COLUMNS)
        };
        let claims = |key, after, topics: usize| Claims {
            all: claim(key, after, ""),
            only: claim(key, after, ONLY[topics]),
            except: claim(key, after, EXCEPT[topics]),
        };
        let naming = |key| Naming { claim: claims(key, "", 0), claim_after: claims(key, AFTER, 1) };
        Self {
            plans: Plans::default(),
            by_place: naming(&BY_PLACE),
            by_id: naming(&BY_ID),
            // Named by their places, rows that others are claiming are passed over even by a claim that locks none.
            has_no_places: AtomicBool::new(planted::is(Bug::ClaimWithoutLock)),
            bury: statement(BURY),
            extend: statement(EXTEND),
            delivered: settling(DELIVERED),
            delivered_deleting: settling(DELIVERED_DELETING),
            settle: settling(SETTLE),
            settle_deleting: settling(SETTLE_DELETING),
        }
    }

    /// How claims name rows in this table.
    fn naming(&self) -> &Naming {
        if self.has_no_places.load(Ordering::Relaxed) { &self.by_id } else { &self.by_place }
    }

    /// It has turned out how claims have to name rows in this table.
    fn are_claimed_by_id(&self, reason: &sqlx::Error) {
        if !self.has_no_places.swap(true, Ordering::Relaxed) {
            tracing::info!(%reason, "claims of this table name rows by their ids, which costs a little more");
        }
    }
}

/// Whether a claim failed because rows of this table cannot be named by their places, or not by this account.
fn names_no_places(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    let says = |code, word| error.code().is_some_and(|c| c == code) && error.message().contains(word);
    // No text for a place; no such column; a place is for who may read all of a row, not for who may read some columns of it.
    says("22P02", "made of several tables")
        || says("42703", "ctid")
        || says("42703", "tableoid")
        || says("42501", "")
}

/// Leases up to a batch of rows and reads them.
pub(super) async fn claim(
    pool: &PgPool,
    statements: &Statements,
    claim: &Claim,
) -> sqlx::Result<ClaimedBatch> {
    let holder = claim.worker.next_holder();
    let naming = statements.naming();
    let (mut batch, undecodable) = match claim_once(pool, statements, naming, claim, &holder).await {
        Err(error) if names_no_places(&error) => {
            let claimed = claim_once(pool, statements, &statements.by_id, claim, &holder).await?;
            statements.are_claimed_by_id(&error);
            claimed
        }
        answered => answered?,
    };
    batch.mark = batch.mark.or(claim.after);
    // If it fails, the rows come up again when their lease ends; the rest of the batch is leased already.
    if let Err(error) = bury(pool, statements, &holder, &undecodable).await {
        tracing::warn!(%error, rows = undecodable.len(), "undecodable rows could not be marked dead yet");
    }
    batch.buried.extend(undecodable);
    Ok(batch)
}

async fn claim_once(
    pool: &PgPool,
    statements: &Statements,
    naming: &Naming,
    claim: &Claim,
    holder: &Arc<str>,
) -> sqlx::Result<(ClaimedBatch, Vec<Buried>)> {
    let Claims { all, only, except } =
        if claim.after.is_some() { &naming.claim_after } else { &naming.claim };
    let mut query = sqlx::query(statements.plans.of(claim.topics.choose([all, only, except])))
        .bind(&**holder)
        .bind(micros(claim.lease))
        .bind(i64::from(claim.limit))
        .bind(claim.attempts.default_limit())
        .bind(claim.attempts.topics_json())
        .bind(EXHAUSTED);
    if let Some(mark) = claim.after {
        query = query.bind(mark.available_at).bind(mark.sequence);
    }
    if let Some(topics) = claim.topics.named() {
        query = query.bind(topics);
    }
    let _watch = statements.plans.watch();
    read_batch(query.fetch(pool), holder).await
}

/// Sorts rows, which come in no order, into what can be delivered or is dead, and what cannot be read. Each is decoded as soon as
/// it arrives, while the server is busy with the next ones.
async fn read_batch(
    mut rows: impl Stream<Item = sqlx::Result<PgRow>> + Unpin,
    holder: &Arc<str>,
) -> sqlx::Result<(ClaimedBatch, Vec<Buried>)> {
    let mut batch = ClaimedBatch::default();
    let mut undecodable = Vec::new();
    let mut types = None;
    while let Some(row) = rows.try_next().await? {
        let types = *types.get_or_insert_with(|| Types::of_delivery::<i32>(&row));
        let Arrived { id, sequence, created_at, event } = decode_delivery(&row, types)?;
        let available_at = available_at(&row, types, created_at)?;
        batch.mark = batch.mark.max(Some(Mark { available_at, sequence }));
        let topic = || row.try_get::<String, _>(1).unwrap_or_default();
        if !row.try_get_raw(OUTCOME)?.is_null() {
            let reason = row.try_get::<Option<String>, _>(LAST_ERROR)?.unwrap_or_default();
            batch.buried.push(Buried { id, sequence, topic: topic(), reason });
            continue;
        }
        match event {
            Ok(event) => {
                let attempt = u32::try_from(types.get::<i32>(&row, ATTEMPTS)?).unwrap_or(0);
                let lease = Lease { id, sequence, holder: Arc::clone(holder), attempt };
                batch.events.push(Claimed { event, lease, created_at });
            }
            Err(reason) => undecodable.push(Buried { id, sequence, topic: topic(), reason }),
        }
    }
    batch.sort();
    Ok((batch, undecodable))
}

async fn bury(pool: &PgPool, statements: &Statements, holder: &str, rows: &[Buried]) -> sqlx::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query(statements.bury.sql())
        .bind(holder)
        .bind(rows.iter().map(|row| row.id).collect::<Vec<_>>())
        .bind(rows.iter().map(|row| row.reason.as_str()).collect::<Vec<_>>())
        .execute(pool)
        .await?;
    Ok(())
}

/// Makes leases last from now.
pub(super) async fn extend(
    pool: &PgPool,
    statements: &Statements,
    leases: &[&Lease],
    length: Duration,
) -> sqlx::Result<Vec<Uuid>> {
    let _watch = statements.plans.watch();
    sqlx::query_scalar(statements.plans.of(&statements.extend))
        .bind(micros(length))
        .bind(leases.iter().map(|l| l.id).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| &*l.holder).collect::<Vec<_>>())
        .bind(leases.iter().map(|l| l.attempt as i32).collect::<Vec<_>>())
        .fetch_all(pool)
        .await
}

/// Writes any mix of verdicts in one statement; answers with the ids of what was written.
pub(super) async fn settle(
    pool: &PgPool,
    statements: &Statements,
    settlements: &[&Settlement],
    keep: Keep,
) -> sqlx::Result<Vec<Uuid>> {
    let Statements { delivered, delivered_deleting, settle, settle_deleting, .. } = statements;
    let (delivered, settle) = match keep {
        Keep::Delivered => (delivered, settle),
        Keep::Nothing => (delivered_deleting, settle_deleting),
    };
    let ids: Vec<Uuid> = settlements.iter().map(|s| s.lease.id).collect();
    let of_one_claim = delivered_of_one_claim(settlements);
    let statement = if of_one_claim.is_some() { delivered } else { settle };
    let query = sqlx::query_scalar(statements.plans.of(statement));
    let query = match of_one_claim {
        Some(lease) => query.bind(&ids).bind(&*lease.holder).bind(lease.attempt as i32),
        None => query
            .bind(&ids)
            .bind(settlements.iter().map(|s| &*s.lease.holder).collect::<Vec<_>>())
            .bind(settlements.iter().map(|s| s.lease.attempt as i32).collect::<Vec<_>>())
            .bind(settlements.iter().map(|s| s.verdict.code()).collect::<Vec<_>>())
            .bind(settlements.iter().map(|s| s.verdict.delay()).collect::<Vec<_>>())
            .bind(settlements.iter().map(|s| s.verdict.error()).collect::<Vec<_>>()),
    };
    let _watch = statements.plans.watch();
    let written: Option<Vec<Uuid>> = query.fetch_one(pool).await?;
    Ok(written.unwrap_or(ids))
}

/// The lease of all these, but for their ids, if all are delivered.
fn delivered_of_one_claim<'a>(settlements: &[&'a Settlement]) -> Option<&'a Lease> {
    let first = &settlements.first()?.lease;
    let alike = |s: &&Settlement| {
        s.verdict == Verdict::Delivered && s.lease.attempt == first.attempt && s.lease.holder == first.holder
    };
    settlements.iter().all(alike).then_some(first)
}
