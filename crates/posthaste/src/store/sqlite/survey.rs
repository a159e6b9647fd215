//! What a relay asks now and then: how a queue stands, and whether there is anything to purge. A stream is asked piece by
//! piece.

use std::time::Duration;

use sqlx::sqlite::SqlitePool;
use sqlx::{QueryBuilder, Row, Sqlite};

use super::time_of;
use crate::store::migrate::SQLITE_NOW as NOW;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, Ending, Purge, Stats, Survey, TableName};

// ?1 how many rows of each kind are looked at, and one more.
const QUEUE: &str = "
SELECT count(*), count(*) FILTER (WHERE locked_until > {now}),
       (SELECT count(*) FROM (SELECT 1 FROM {table} WHERE outcome = 'dead' LIMIT ?1) AS dead),
       (SELECT {now} - available_at FROM {table}
         WHERE outcome IS NULL AND available_at <= {now} ORDER BY available_at, seq LIMIT 1),
       {now}
  FROM (SELECT locked_until FROM {table} WHERE outcome IS NULL ORDER BY available_at, seq LIMIT ?1) AS open";

/// How a queue stands. A file cannot tell whose process is gone.
pub(super) async fn queue(pool: &SqlitePool, table: &TableName, cap: u32) -> sqlx::Result<Survey> {
    let statement = Statement::new(Dialect::Sqlite, table, QUEUE);
    let row = sqlx::query(statement.sql()).bind(i64::from(cap) + 1).fetch_one(pool).await?;
    let (open, processing): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let stats = Stats {
        pending: Count::among(open, open - processing, cap),
        processing: Count::among(open, processing, cap),
        dead: Count::of(row.try_get(2)?, cap),
        oldest_age: row
            .try_get::<Option<i64>, _>(3)?
            .map(|micros| Duration::from_micros(micros.max(0).unsigned_abs())),
    };
    Ok(Survey::new(time_of(row.try_get(4)?)?, stats))
}

/// Whether a queue has something to purge.
pub(super) async fn queue_has_old(
    pool: &SqlitePool,
    table: &TableName,
    purges: &[Purge],
) -> sqlx::Result<bool> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT 0");
    for purge in purges {
        query.push(" OR EXISTS (SELECT 1 FROM ").push(table.quoted('"')).push(match purge.ending {
            Ending::Delivered => " WHERE outcome = 'delivered'",
            Ending::Dead => " WHERE outcome = 'dead'",
        });
        query.push(" AND settled_at <= ").push(NOW).push(" - ").push_bind(micros(purge.older_than)).push(")");
    }
    query.build_query_scalar().fetch_one(pool).await
}
