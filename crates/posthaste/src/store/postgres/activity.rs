//! Who is at work on a table, and how fast it delivers, as far as its rows say.

use sqlx::postgres::PgPool;

use crate::store::lease::workers_of;
use crate::store::record::LATELY;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, Mode, TableName, Throughput};

// $1 how long ago, $2 how many are looked at. The planner does not know the limits: see decision 22.
const DELIVERED: &str = "
SELECT count(*), (extract(epoch FROM clock_timestamp() - min(settled_at)) * 1000000)::bigint,
       EXISTS (SELECT FROM {table} WHERE outcome = 'delivered')
  FROM (SELECT settled_at FROM {table}
         WHERE outcome = 'delivered' AND settled_at > now() - $1 * interval '1 microsecond'
         ORDER BY settled_at DESC LIMIT (SELECT $2::bigint)) AS lately";

const HOLDERS: &str = "
SELECT DISTINCT locked_by
  FROM (SELECT locked_by, locked_until FROM {table}
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT (SELECT 10000)) AS open
 WHERE locked_until > now()";

const RELAYS: &str = "SELECT relay FROM {relays_table} WHERE until > now() ORDER BY relay";

/// How fast events were delivered of late; a stream's rows do not say.
pub(super) async fn delivered(
    pool: &PgPool,
    table: &TableName,
    mode: Mode,
) -> sqlx::Result<Option<Throughput>> {
    if let Mode::Stream(_) = mode {
        return Ok(None);
    }
    let (n, age, kept): (i64, Option<i64>, bool) = sqlx::query_as(statement(table, DELIVERED).sql())
        .bind(micros(LATELY))
        .bind(Throughput::MOST)
        .fetch_one(pool)
        .await?;
    Ok(kept.then(|| Throughput::of(n, age)))
}

/// Of a stream the relays that live, of a queue those that hold leases.
pub(super) async fn workers(pool: &PgPool, table: &TableName, mode: Mode) -> sqlx::Result<Vec<String>> {
    match mode {
        Mode::Queue => {
            let holders: Vec<String> =
                sqlx::query_scalar(statement(table, HOLDERS).sql()).fetch_all(pool).await?;
            Ok(workers_of(&holders))
        }
        Mode::Stream(_) => sqlx::query_scalar(statement(table, RELAYS).sql()).fetch_all(pool).await,
    }
}

fn statement(table: &TableName, sql: &'static str) -> Statement {
    Statement::new(Dialect::Postgres, table, sql)
}
