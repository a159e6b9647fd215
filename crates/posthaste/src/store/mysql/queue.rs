//! Row leases in short transactions: read and lock, then write.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row;
use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlRow};
use time::PrimitiveDateTime;
use uuid::Uuid;

use super::columns::{EVENT_COLUMNS, decode};
use super::{begin, stored_time};
use crate::store::claim::exhausted;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{
    Buried, Claim, Claimed, ClaimedBatch, Dialect, Keep, Lease, Mark, Settlement, TableName, Verdict,
};

// The index is forced: through any other one, more rows than are wanted would be locked to sort them.
const SELECT: &str = "
SELECT {columns}, seq, attempts, created_at, locked_by, last_error
  FROM {table} FORCE INDEX (`{name}_claim`)
 WHERE outcome IS NULL
   AND available_at <= UTC_TIMESTAMP(6)
   AND (locked_until IS NULL OR locked_until <= UTC_TIMESTAMP(6))
   {after}
   {topics}
 ORDER BY available_at, seq
 LIMIT ?
   FOR UPDATE SKIP LOCKED";

const AFTER: &str = "AND available_at >= ? AND (available_at > ? OR seq > ?)";

const ONLY: &str = "AND JSON_CONTAINS(?, JSON_QUOTE(topic))";

const EXCEPT: &str = "AND NOT JSON_CONTAINS(?, JSON_QUOTE(topic))";

// Here and below the index is forced, too: MariaDB reads all of a small table, and waits for whatever is locked in it.
const LEASE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = l.seq
   SET o.attempts = o.attempts + 1, o.locked_by = ?, o.locked_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND";

const BURY: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$[0]', attempts INT PATH '$[1]', reason TEXT PATH '$[2]')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.seq
   SET o.outcome = 'dead', o.settled_at = UTC_TIMESTAMP(6), o.last_error = d.reason, o.attempts = d.attempts,
       o.locked_by = NULL, o.locked_until = NULL";

// A producer that met a duplicate of a row holds that row until it commits: such rows are passed over, not
// waited for, or one slow producer would hold up the whole batch.
const HELD: &str = "
SELECT o.id
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', holder VARCHAR(128) PATH '$[1]', attempt INT PATH '$[2]')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(l.id)
 WHERE o.locked_by = l.holder AND o.attempts = l.attempt AND o.outcome IS NULL
   {lock}";

const EXTEND: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS l
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(l.id)
   SET o.locked_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND";

// Verdicts: 0 delivered, 1 retry, 2 dead, 3 released. Assignments are made in order: what reads a column
// comes before what writes it.
const SETTLE: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$[0]', verdict INT PATH '$[1]', delay BIGINT PATH '$[2]',
                                     error TEXT PATH '$[3]')) AS s
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(s.id)
   SET o.outcome      = CASE s.verdict WHEN 0 THEN 'delivered' WHEN 2 THEN 'dead' END,
       o.settled_at   = CASE WHEN s.verdict IN (0, 2) THEN UTC_TIMESTAMP(6) END,
       o.available_at = CASE WHEN s.delay IS NULL THEN o.available_at ELSE UTC_TIMESTAMP(6) + INTERVAL s.delay MICROSECOND END,
       o.attempts     = CASE s.verdict WHEN 3 THEN o.attempts - 1 ELSE o.attempts END,
       o.last_error   = CASE s.verdict WHEN 0 THEN NULL WHEN 3 THEN o.last_error ELSE s.error END,
       o.locked_by    = NULL,
       o.locked_until = NULL";

const DELETE: &str = "
DELETE o
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$[0]')) AS s
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(s.id)";

/// The reads of all topics, of some, and of all but some.
#[derive(Debug)]
struct Selects {
    all: Statement,
    only: Statement,
    except: Statement,
}

#[derive(Debug)]
pub(super) struct Statements {
    select: Selects,
    select_after: Selects,
    lease: Statement,
    bury: Statement,
    held: Statement,
    still_held: Statement,
    extend: Statement,
    settle: Statement,
    delete: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let select = |after, topics| {
            statement(SELECT).with("{after}", after).with("{topics}", topics).with("{columns}", EVENT_COLUMNS)
        };
        let selects = |after| Selects {
            all: select(after, ""),
            only: select(after, ONLY),
            except: select(after, EXCEPT),
        };
        Self {
            select: selects(""),
            select_after: selects(AFTER),
            lease: statement(LEASE),
            bury: statement(BURY),
            held: statement(HELD).with("{lock}", "FOR UPDATE /*!50700 OF o */ SKIP LOCKED"),
            still_held: statement(HELD).with("{lock}", ""),
            extend: statement(EXTEND),
            settle: statement(SETTLE),
            delete: statement(DELETE),
        }
    }
}

/// Leases up to a batch of rows and reads them.
pub(super) async fn claim(
    pool: &MySqlPool,
    statements: &Statements,
    claim: &Claim,
) -> sqlx::Result<ClaimedBatch> {
    let holder = claim.worker.next_holder();
    let mut tx = begin(pool).await?;
    let Selects { all, only, except } =
        if claim.after.is_some() { &statements.select_after } else { &statements.select };
    let mut query = sqlx::query(claim.topics.choose([all, only, except]).sql());
    if let Some(mark) = claim.after {
        let at = stored_time(mark.available_at);
        query = query.bind(at).bind(at).bind(mark.sequence);
    }
    if let Some(topics) = claim.topics.json() {
        query = query.bind(topics);
    }
    let rows = query.bind(claim.limit).fetch_all(&mut *tx).await?;
    let (mut batch, dead) = read_batch(&rows, &holder, claim)?;
    batch.mark = batch.mark.or(claim.after);
    if !batch.events.is_empty() {
        failpoint!("claim.locked");
        let sequences = batch.events.iter().map(|claimed| json!(claimed.lease.sequence));
        sqlx::query(statements.lease.sql())
            .bind(json_text(sequences))
            .bind(&*holder)
            .bind(micros(claim.lease))
            .execute(&mut *tx)
            .await?;
        failpoint!("claim.leased");
    }
    if !dead.is_empty() {
        sqlx::query(statements.bury.sql()).bind(json_text(dead.into_iter())).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(batch)
}

/// Sorts rows into what can be delivered and what is dead, the latter also as `[seq, attempts, reason]`.
fn read_batch(
    rows: &[MySqlRow],
    holder: &Arc<str>,
    claim: &Claim,
) -> sqlx::Result<(ClaimedBatch, Vec<Value>)> {
    let mut batch = ClaimedBatch::default();
    let mut dead = Vec::new();
    for row in rows {
        let (sequence, attempts): (i64, i32) = (row.try_get(15)?, row.try_get(16)?);
        let attempts = u32::try_from(attempts).unwrap_or(0);
        batch.mark =
            Some(Mark { available_at: row.try_get::<PrimitiveDateTime, _>(14)?.assume_utc(), sequence });
        let topic = row.try_get::<String, _>(1).unwrap_or_default();
        let spent = attempts > 0 && attempts >= claim.attempts.of(&topic);
        let event = if spent { Err(spent_reason(row)?) } else { decode(row) };
        match event {
            Ok(event) => {
                let lease =
                    Lease { id: event.id, sequence, holder: Arc::clone(holder), attempt: attempts + 1 };
                let created_at = row.try_get::<PrimitiveDateTime, _>(17)?.assume_utc();
                batch.events.push(Claimed { event: Arc::new(event), lease, created_at });
            }
            Err(reason) => {
                let counted = if spent { attempts } else { attempts + 1 };
                dead.push(json!([sequence, counted, reason]));
                let id = row.try_get(0).unwrap_or_default();
                batch.buried.push(Buried { id, sequence, topic, reason });
            }
        }
    }
    Ok((batch, dead))
}

fn spent_reason(row: &MySqlRow) -> sqlx::Result<String> {
    let leased = row.try_get::<Option<&str>, _>(18)?.is_some();
    Ok(exhausted(leased, row.try_get(19)?))
}

/// How long to wait before each try at rows that others have locked. A claim that only looks at them is done
/// within a moment; a producer may take as long as it likes, and is not waited for.
pub(super) const PAUSES: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
];

/// Leases that are held: those whose rows are locked for writing now, and those that others have locked.
pub(super) struct Held {
    pub(super) ours: Vec<Uuid>,
    pub(super) busy: Vec<Uuid>,
}

/// Makes leases last from now.
pub(super) async fn extend(
    pool: &MySqlPool,
    statements: &Statements,
    leases: &[&Lease],
    length: Duration,
) -> sqlx::Result<Held> {
    let mut tx = begin(pool).await?;
    let held = held(&mut tx, statements, leases).await?;
    failpoint!("renew.locked");
    if !held.ours.is_empty() {
        let ids = held.ours.iter().map(|id| json!(id.simple().to_string()));
        sqlx::query(statements.extend.sql())
            .bind(json_text(ids))
            .bind(micros(length))
            .execute(&mut *tx)
            .await?;
    }
    failpoint!("renew.written");
    tx.commit().await?;
    Ok(held)
}

/// Writes any mix of verdicts; where nothing is kept, delivered rows are deleted by a statement of their own.
pub(super) async fn settle(
    pool: &MySqlPool,
    statements: &Statements,
    settlements: &[&Settlement],
    keep: Keep,
) -> sqlx::Result<Held> {
    let leases: Vec<&Lease> = settlements.iter().map(|settlement| &settlement.lease).collect();
    let mut tx = begin(pool).await?;
    let held = held(&mut tx, statements, &leases).await?;
    failpoint!("settle.locked");
    let ours: HashSet<&Uuid> = held.ours.iter().collect();
    let deletes = |settlement: &Settlement| keep == Keep::Nothing && settlement.verdict == Verdict::Delivered;
    let (deleted, updated): (Vec<&Settlement>, Vec<&Settlement>) =
        settlements.iter().copied().filter(|s| ours.contains(&s.lease.id)).partition(|s| deletes(s));
    for (part, statement) in [(deleted, &statements.delete), (updated, &statements.settle)] {
        if part.is_empty() {
            continue;
        }
        let rows = part.iter().map(|s| {
            json!([s.lease.id.simple().to_string(), s.verdict.code(), s.verdict.delay(), s.verdict.error()])
        });
        sqlx::query(statement.sql()).bind(json_text(rows)).execute(&mut *tx).await?;
    }
    failpoint!("settle.written");
    tx.commit().await?;
    Ok(held)
}

/// Locks the rows whose lease is still held, and says which; those it could not lock are busy.
async fn held(
    connection: &mut MySqlConnection,
    statements: &Statements,
    leases: &[&Lease],
) -> sqlx::Result<Held> {
    let rows = json_text(
        leases.iter().map(|lease| json!([lease.id.simple().to_string(), &*lease.holder, lease.attempt])),
    );
    let ours: Vec<Uuid> =
        sqlx::query_scalar(statements.held.sql()).bind(rows.clone()).fetch_all(&mut *connection).await?;
    if ours.len() == leases.len() {
        return Ok(Held { ours, busy: Vec::new() });
    }
    let mut busy: Vec<Uuid> =
        sqlx::query_scalar(statements.still_held.sql()).bind(rows).fetch_all(connection).await?;
    busy.retain(|id| !ours.contains(id));
    Ok(Held { ours, busy })
}

fn json_text(rows: impl Iterator<Item = Value>) -> String {
    Value::Array(rows.collect()).to_string()
}
