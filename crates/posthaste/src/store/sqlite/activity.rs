//! Who is at work on a table, and how fast it delivers, as far as its rows say.

use sqlx::sqlite::SqlitePool;

use crate::store::lease::workers_of;
use crate::store::record::LATELY;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Dialect, Mode, TableName, Throughput};

// ?1 how long ago, ?2 how many are looked at.
const DELIVERED: &str = "
SELECT count(*), {now} - min(settled_at), EXISTS (SELECT 1 FROM {table} WHERE outcome = 'delivered')
  FROM (SELECT settled_at FROM {table} WHERE outcome = 'delivered' AND settled_at > {now} - ?1
         ORDER BY settled_at DESC LIMIT ?2) AS lately";

const HOLDERS: &str = "
SELECT DISTINCT locked_by
  FROM (SELECT locked_by, locked_until FROM {table}
         WHERE outcome IS NULL ORDER BY available_at, seq LIMIT 10000) AS open
 WHERE locked_until > {now}";

const RELAYS: &str = "SELECT relay FROM {relays_table} WHERE until > {now} ORDER BY relay";

/// How fast events were delivered of late.
pub(super) async fn delivered(
    pool: &SqlitePool,
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
pub(super) async fn workers(pool: &SqlitePool, table: &TableName, mode: Mode) -> sqlx::Result<Vec<String>> {
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
    Statement::new(Dialect::Sqlite, table, sql)
}
