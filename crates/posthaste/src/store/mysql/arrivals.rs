//! Rows by their sequences, which are the table's own order.

use serde_json::json;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use time::PrimitiveDateTime;

use super::look::Look;
use crate::store::{Arrival, Arrivals, Mode, Running, Sought, TableName};

/// Looks for rows. Only who may look at all of the server is told which transactions are running.
pub(super) async fn arrivals(
    look: &mut Look,
    table: &TableName,
    _mode: Mode,
    sought: Sought<'_>,
) -> sqlx::Result<Arrivals> {
    let mut query = look.select();
    query.push("o.seq, o.id, o.created_at FROM ");
    match sought {
        Sought::Newest { limit, .. } => {
            query.push(table.quoted('`')).push(" AS o ORDER BY o.seq DESC LIMIT ").push_bind(limit);
        }
        Sought::After { sequence, limit, .. } => {
            query.push(table.quoted('`')).push(" AS o WHERE o.seq > ").push_bind(sequence);
            query.push(" ORDER BY o.seq LIMIT ").push_bind(limit);
        }
        Sought::Among(missed) => {
            let sequences: Vec<i64> = missed.iter().map(|missed| missed.sequence).collect();
            query.push("JSON_TABLE(").push_bind(json!(sequences).to_string());
            query.push(", '$[*]' COLUMNS (seq BIGINT PATH '$')) AS s STRAIGHT_JOIN ").push(table.quoted('`'));
            query.push(" AS o FORCE INDEX (PRIMARY) ON o.seq = s.seq");
        }
    }
    let rows = query.build().fetch_all(&mut **look).await?;
    let rows = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>()?;
    Ok(Arrivals::of(rows, sought.limit(), Running::Unknown))
}

fn read(row: &MySqlRow) -> sqlx::Result<Arrival> {
    let created_at = row.try_get::<PrimitiveDateTime, _>(2)?.assume_utc();
    Ok(Arrival { sequence: row.try_get(0)?, id: row.try_get(1)?, created_at })
}
