//! Rows by their sequences, and which transactions may still write some.
//!
//! A queue has no index on them, so that its inserts cost less: its rows are found by the time they were written.

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{QueryBuilder, Row};
use time::OffsetDateTime;

use crate::store::{Arrival, Arrivals, Mode, Running, Sought, TableName};

// Asked before the rows: whoever has ended by then is seen among them.
const RUNNING: &str = "
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s";

/// Looks for rows.
pub(super) async fn arrivals(
    pool: &PgPool,
    table: &TableName,
    mode: Mode,
    sought: Sought<'_>,
    since: OffsetDateTime,
) -> sqlx::Result<Arrivals> {
    let (oldest, next): (i64, i64) = sqlx::query_as(RUNNING).fetch_one(pool).await?;
    let mut query = QueryBuilder::new("SELECT seq, id, created_at FROM ");
    query.push(table.quoted('"')).push(" WHERE true");
    if mode == Mode::Queue {
        query.push(" AND created_at >= ").push_bind(since);
    }
    match sought {
        Sought::Newest(limit) => query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(limit)),
        Sought::After(after, limit) => query
            .push(" AND seq > ")
            .push_bind(after)
            .push(" ORDER BY seq LIMIT ")
            .push_bind(i64::from(limit)),
        Sought::Among(sequences) => {
            query.push(" AND seq = ANY (").push_bind(sequences.to_vec()).push(") ORDER BY seq")
        }
    };
    // Planned anew each time: how much lies behind a time is not the same twice.
    let rows = query.build().persistent(false).fetch_all(pool).await?;
    let mut rows = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?;
    rows.sort_unstable_by_key(|row| row.sequence);
    let running = Running::From(oldest.unsigned_abs(), next.unsigned_abs());
    Ok(Arrivals { rows, running })
}

fn read(row: &PgRow) -> sqlx::Result<Arrival> {
    Ok(Arrival { sequence: row.try_get(0)?, id: row.try_get(1)?, created_at: row.try_get(2)? })
}
