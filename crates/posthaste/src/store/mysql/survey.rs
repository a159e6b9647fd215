//! What a relay asks now and then: how a queue stands, and whether there is anything to purge. A stream is asked piece by
//! piece.

use std::time::Duration;

use sqlx::mysql::MySqlPool;
use sqlx::{MySql, QueryBuilder, Row};
use time::PrimitiveDateTime;

use super::session::lock_name;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, Ending, Purge, Stats, Survey, TableName, WorkerId};

// How many dead ones are looked at, whether who asks has a session, the schema and the name, how many open ones.
const QUEUE: &str = concat!(
    "
SELECT COUNT(*), COUNT(CASE WHEN locked_until > UTC_TIMESTAMP(6) THEN 1 END),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {table} WHERE outcome = 'dead' LIMIT ?) AS dead),
       (SELECT TIMESTAMPDIFF(MICROSECOND, available_at, UTC_TIMESTAMP(6)) FROM {table}
         WHERE outcome IS NULL AND available_at <= UTC_TIMESTAMP(6) ORDER BY available_at, seq LIMIT 1),
       CASE WHEN ? THEN CAST(IS_USED_LOCK(",
    lock_name!("?"),
    ") IS NOT NULL AS SIGNED) END,
       UTC_TIMESTAMP(6)
  FROM (SELECT locked_until FROM {table} WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ?) AS open"
);

/// How a queue stands, without who is absent.
pub(super) async fn queue(
    pool: &MySqlPool,
    table: &TableName,
    cap: u32,
    worker: &WorkerId,
) -> sqlx::Result<Survey> {
    let most = i64::from(cap) + 1;
    let row = sqlx::query(Statement::new(Dialect::MySql, table, QUEUE).sql())
        .bind(most)
        .bind(worker.is_present())
        .bind(table.schema())
        .bind(worker.as_str())
        .bind(most)
        .fetch_one(pool)
        .await?;
    let (open, processing): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let stats = Stats {
        pending: Count::among(open, open - processing, cap),
        processing: Count::among(open, processing, cap),
        dead: Count::of(row.try_get(2)?, cap),
        oldest_age: row
            .try_get::<Option<i64>, _>(3)?
            .map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
    };
    let present = row.try_get::<Option<i64>, _>(4)?.map(|present| present == 1);
    let now: PrimitiveDateTime = row.try_get(5)?;
    Ok(Survey { present, ..Survey::new(now.assume_utc(), stats) })
}

/// Whether a queue has something to purge.
pub(super) async fn queue_has_old(
    pool: &MySqlPool,
    table: &TableName,
    purges: &[Purge],
) -> sqlx::Result<bool> {
    let mut query = QueryBuilder::<MySql>::new("SELECT CAST(FALSE");
    for purge in purges {
        query.push(" OR EXISTS (SELECT 1 FROM ").push(table.quoted('`'));
        query.push(format_args!(" FORCE INDEX (`{}_settled`)", table.name())).push(match purge.ending {
            Ending::Delivered => " WHERE outcome = 'delivered'",
            Ending::Dead => " WHERE outcome = 'dead'",
        });
        query.push(" AND settled_at <= UTC_TIMESTAMP(6) - INTERVAL ").push_bind(micros(purge.older_than));
        query.push(" MICROSECOND)");
    }
    query.push(" AS SIGNED)");
    let has: i64 = query.build_query_scalar().fetch_one(pool).await?;
    Ok(has == 1)
}
