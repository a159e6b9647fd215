//! Rows by their sequences, which are the table's own order, and that of the commits: one writes at a time.

use serde_json::json;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::look::Look;
use super::time_of;
use crate::store::statement::Statement;
use crate::store::{Arrival, Arrivals, Dialect, Mode, Running, Sought, TableName};

const NEWEST: &str = "SELECT seq, id, created_at FROM {table} ORDER BY seq DESC LIMIT ?1";

const AFTER: &str = "SELECT seq, id, created_at FROM {table} WHERE seq > ?1 ORDER BY seq LIMIT ?2";

const AMONG: &str = "
SELECT seq, id, created_at FROM {table} WHERE seq IN (SELECT value FROM json_each(?1)) ORDER BY seq";

/// Looks for rows.
pub(super) async fn arrivals(
    look: &mut Look,
    table: &TableName,
    _mode: Mode,
    sought: Sought<'_>,
) -> sqlx::Result<Arrivals> {
    let statement = |sql| Statement::new(Dialect::Sqlite, table, sql).sql();
    let rows = match sought {
        Sought::Newest { limit, .. } => {
            sqlx::query(statement(NEWEST)).bind(limit).fetch_all(&mut **look).await?
        }
        Sought::After { sequence, limit, .. } => {
            sqlx::query(statement(AFTER)).bind(sequence).bind(limit).fetch_all(&mut **look).await?
        }
        Sought::Among(missed) => {
            let sequences: Vec<i64> = missed.iter().map(|missed| missed.sequence).collect();
            sqlx::query(statement(AMONG)).bind(json!(sequences).to_string()).fetch_all(&mut **look).await?
        }
    };
    let rows = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?;
    Ok(Arrivals::of(rows, sought.limit(), Running::InOrder))
}

fn read(row: &SqliteRow) -> sqlx::Result<Arrival> {
    let id = Uuid::try_parse(row.try_get(1)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Arrival { sequence: row.try_get(0)?, id, created_at: time_of(row.try_get(2)?)? })
}
