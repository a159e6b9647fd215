//! What a relay asks now and then, each in one statement: how the table stands, and whether there is anything to purge.

use std::time::Duration;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Postgres, QueryBuilder};

use super::session::{self, CLASS_PRESENCE};
use super::stream::look;
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{Count, Dialect, Ending, Purge, Stats, Survey, TableName, WorkerId};

// $1 the class of presence, $2 how many rows of each kind are looked at, $3 who asks. Locks are looked at only where somebody
// holds a lease, and for who asks; after the rows, as the rows are those of the statement's beginning.
const QUEUE: &str = "
WITH open AS MATERIALIZED (
    SELECT locked_by, locked_until FROM {table}
     WHERE outcome IS NULL ORDER BY available_at, seq LIMIT (SELECT $2 + 1)
)
SELECT count(*), count(*) FILTER (WHERE locked_until > now()),
       (SELECT count(*) FROM (SELECT FROM {table} WHERE outcome = 'dead' LIMIT (SELECT $2 + 1)) AS dead),
       (SELECT (extract(epoch FROM now() - available_at) * 1000000)::bigint FROM {table}
         WHERE outcome IS NULL AND available_at <= now() ORDER BY available_at, seq LIMIT 1),
       ARRAY(SELECT DISTINCT split_part(f.locked_by, '#', 1) FROM open AS f
              WHERE f.locked_until > now() AND f.locked_by LIKE '%~#%' AND {absent}),
       CASE WHEN $3 LIKE '%~' THEN hashtext($3)::oid IN ({present}) END,
       clock_timestamp()
  FROM open";

/// How many of a stream's first rows are looked at for an old one: they are as old as they are early, but for some moments.
const FIRST: i64 = 100;

/// How a queue stands.
pub(super) async fn queue(
    pool: &PgPool,
    table: &TableName,
    cap: u32,
    worker: &WorkerId,
) -> sqlx::Result<Survey> {
    let statement = Statement::new(Dialect::Postgres, table, QUEUE)
        .with("{absent}", session::NOT_PRESENT)
        .with("{present}", session::PRESENT_NAMES);
    let row = sqlx::query(statement.sql())
        .bind(CLASS_PRESENCE)
        .bind(i64::from(cap))
        .bind(worker.as_str())
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
    Ok(Survey { absent: row.try_get(4)?, present: row.try_get(5)?, ..Survey::new(row.try_get(6)?, stats) })
}

/// How a stream stands. Whose session is gone, and whether that is the one who asks, is said with every beat.
pub(super) async fn stream(
    connection: &mut PgConnection,
    statements: &look::Statements,
    cap: u32,
) -> sqlx::Result<Survey> {
    let state = look::state(connection, statements, cap).await?;
    Ok(Survey { lags: state.lags(), ..Survey::new(state.now, state.stats()) })
}

/// Whether a queue has something to purge.
pub(super) async fn queue_has_old(pool: &PgPool, table: &TableName, purges: &[Purge]) -> sqlx::Result<bool> {
    let mut query = QueryBuilder::<Postgres>::new("SELECT false");
    for purge in purges {
        query.push(" OR (SELECT true FROM ").push(table.quoted('"')).push(match purge.ending {
            Ending::Delivered => " WHERE outcome = 'delivered'",
            Ending::Dead => " WHERE outcome = 'dead'",
        });
        query.push(" AND settled_at <= now() - ").push_bind(micros(purge.older_than));
        query.push(" * interval '1 microsecond' ORDER BY settled_at LIMIT 1) IS NOT NULL");
    }
    query.build_query_scalar().fetch_one(pool).await
}

/// Whether a stream has, of whose rows nothing is left to purge up to this one.
pub(super) async fn stream_has_old(
    pool: &PgPool,
    table: &TableName,
    purged: i64,
    purges: &[Purge],
) -> sqlx::Result<bool> {
    let parked = Statement::new(Dialect::Postgres, table, "{parked_table}");
    let mut query = QueryBuilder::<Postgres>::new("SELECT false");
    for purge in purges {
        match purge.ending {
            Ending::Delivered => {
                query
                    .push(" OR (SELECT bool_or(f.created_at <= now() - ")
                    .push_bind(micros(purge.older_than));
                query.push(" * interval '1 microsecond') FROM (SELECT created_at FROM ");
                query.push(table.quoted('"')).push(" WHERE seq BETWEEN ").push_bind(purged);
                query.push(" + 1 AND 9223372036854775807 ORDER BY seq LIMIT (SELECT ").push_bind(FIRST);
                query.push(")) AS f) IS TRUE");
            }
            Ending::Dead => {
                query.push(" OR (SELECT true FROM ").push(parked.text());
                query.push(" WHERE outcome = 'dead' AND settled_at <= now() - ");
                query.push_bind(micros(purge.older_than));
                query.push(" * interval '1 microsecond' ORDER BY settled_at, position LIMIT 1) IS NOT NULL");
            }
        }
    }
    query.build_query_scalar().fetch_one(pool).await
}
