//! Rows by their sequences, which are the table's own order.

use serde_json::json;
use sqlx::Row;
use sqlx::mysql::{MySqlPool, MySqlRow};
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::store::statement::Statement;
use crate::store::{Arrival, Arrivals, Dialect, Mode, Running, Sought, TableName};

const NEWEST: &str = "SELECT seq, id, created_at FROM {table} ORDER BY seq DESC LIMIT ?";

const AFTER: &str = "SELECT seq, id, created_at FROM {table} WHERE seq > ? ORDER BY seq LIMIT ?";

const AMONG: &str = "
SELECT o.seq, o.id, o.created_at
  FROM JSON_TABLE(?, '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq";

/// Looks for rows. Only who may look at all of the server is told which transactions are running.
pub(super) async fn arrivals(
    pool: &MySqlPool,
    table: &TableName,
    _mode: Mode,
    sought: Sought<'_>,
    _since: OffsetDateTime,
) -> sqlx::Result<Arrivals> {
    let statement = |sql| Statement::new(Dialect::MySql, table, sql).sql();
    let rows = match sought {
        Sought::Newest(limit) => sqlx::query(statement(NEWEST)).bind(limit).fetch_all(pool).await?,
        Sought::After(after, limit) => {
            sqlx::query(statement(AFTER)).bind(after).bind(limit).fetch_all(pool).await?
        }
        Sought::Among(sequences) => {
            sqlx::query(statement(AMONG)).bind(json!(sequences).to_string()).fetch_all(pool).await?
        }
    };
    let mut rows = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?;
    rows.sort_unstable_by_key(|row| row.sequence);
    Ok(Arrivals { rows, running: Running::Unknown })
}

fn read(row: &MySqlRow) -> sqlx::Result<Arrival> {
    let created_at = row.try_get::<PrimitiveDateTime, _>(2)?.assume_utc();
    Ok(Arrival { sequence: row.try_get(0)?, id: row.try_get(1)?, created_at })
}
