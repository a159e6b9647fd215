//! Who is at work on a table, and how fast it delivers, as far as its rows say.

use sqlx::mysql::MySqlPool;

use crate::store::lease::workers_of;
use crate::store::record::LATELY;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, Mode, TableName, Throughput};

// How long ago, and how many are looked at.
const DELIVERED: &str = "
SELECT COUNT(*), TIMESTAMPDIFF(MICROSECOND, MIN(settled_at), UTC_TIMESTAMP(6)),
       EXISTS (SELECT 1 FROM {table} WHERE outcome = 'delivered')
  FROM (SELECT settled_at FROM {table} FORCE INDEX (`{name}_settled`)
         WHERE outcome = 'delivered' AND settled_at > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
         ORDER BY settled_at DESC LIMIT ?) AS lately";

const HOLDERS: &str = "
SELECT DISTINCT locked_by
  FROM (SELECT locked_by, locked_until FROM {table} FORCE INDEX (`{name}_claim`)
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT 10000) AS open
 WHERE locked_until > UTC_TIMESTAMP(6)";

const RELAYS: &str = "SELECT relay FROM {relays_table} WHERE `until` > UTC_TIMESTAMP(6) ORDER BY relay";

/// How fast events were delivered of late.
pub(super) async fn delivered(
    pool: &MySqlPool,
    table: &TableName,
    _mode: Mode,
) -> sqlx::Result<Option<Throughput>> {
    let (n, age, kept): (i64, Option<i64>, bool) = sqlx::query_as(statement(table, DELIVERED).sql())
        .bind(micros(LATELY))
        .bind(Throughput::MOST)
        .fetch_one(pool)
        .await?;
    Ok(kept.then(|| Throughput::of(n, age)))
}

/// Of a stream the relays that live, of a queue those that hold leases.
pub(super) async fn workers(pool: &MySqlPool, table: &TableName, mode: Mode) -> sqlx::Result<Vec<String>> {
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
    Statement::new(Dialect::MySql, table, sql)
}
