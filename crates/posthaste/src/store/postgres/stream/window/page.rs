//! A page of rows: what is visible now and was not at a lane's place.

use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgRow};

use super::super::super::{EVENT_COLUMNS, decode};
use super::super::snapshot::Snapshot;
use super::WindowReader;
use super::place::{Part, Place};
use crate::error::Result;
use crate::store::statement::Statement;
use crate::store::stream::{Hold, Row};
use crate::store::{Dialect, TableName};

/// For how many rows there is room before the first has come.
const EXPECTED: u32 = 1000;

/// The columns of a page, in the order of [`read_row`]. A row may have been written after the statement began, and be
/// shown: by the time of the beginning it would be taken for delayed, and lose its place.
const COLUMNS: &str = "{columns}, seq, created_at, lane, available_at > clock_timestamp() AS delayed";

// $1 and $2: from which transaction on none had ended in the base, and which below had not. $3 base_seq, $4 limit, $5 lanes,
// $6 the seq after which to read, $7 the target, or null for now, $8 whether the highest seq is asked for. What lies below
// base_seq is found by its transaction, each by itself in the order of seq: one that wrote much is read in pages, too. The
// bounds that say nothing, and the order by a sum, keep the planner from reading all of it in the order of seq instead.
const LATE: &str = "
SELECT p.*, s.now::text, s.top
  FROM {said}
  LEFT JOIN LATERAL (
       SELECT * FROM (
           (SELECT r.*
              FROM unnest(s.running) AS x(running)
             CROSS JOIN LATERAL (
                   SELECT {page} FROM {table}
                    WHERE xid = x.running AND seq BETWEEN $6 + 1 AND $3 AND lane = ANY ($5) AND {within}
                    ORDER BY seq {most}) AS r)
           UNION ALL
           (SELECT {page} FROM {table}
             WHERE xid BETWEEN s.next AND '9223372036854775807'::xid8
               AND seq BETWEEN $6 + 1 AND $3 AND lane = ANY ($5) AND {within}
             ORDER BY seq + 0 LIMIT $4)
           UNION ALL
           (SELECT {page} FROM {table}
             WHERE seq > greatest($3, $6) AND {fresh} AND lane = ANY ($5) AND {within}
             ORDER BY seq {most})) AS u
        ORDER BY seq LIMIT $4) AS p ON true";

// The same where nothing below base_seq is left.
const FRESH: &str = "
SELECT p.*, s.now::text, s.top
  FROM {said}
  LEFT JOIN LATERAL (
       SELECT {page} FROM {table}
        WHERE seq > greatest($3, $6) AND {fresh} AND lane = ANY ($5) AND {within}
        ORDER BY seq {most}) AS p ON true";

// Read once, not for every row: the offset keeps the planner from putting each where it is used.
const SAID: &str = "
       (SELECT pg_current_snapshot() AS now, $1::text::xid8 AS next, $2::text[]::xid8[] AS running,
               $7::text::pg_snapshot AS target, CASE WHEN $8 THEN (SELECT max(seq) FROM {table}) END AS top OFFSET 0) AS s";

// Without it everything above would be read and sorted, page after page, while the table is not analysed: see decision 22.
const MOST: &str = "LIMIT (SELECT $4::bigint)";

const IS_FRESH: &str = "(xid >= s.next OR xid = ANY (s.running))";

const WITHIN: &str = "(s.target IS NULL OR pg_visible_in_snapshot(xid, s.target))";

// What was restored from another cluster: $1 the snapshot and $2 the seq up to which it was delivered there, $3 the anchor,
// $4 limit, $5 lanes, $6 the seq after which to read.
const RECOVER: &str = "
SELECT p.*, s.now::text
  FROM (SELECT pg_current_snapshot() AS now, $1::text::pg_snapshot AS delivered OFFSET 0) AS s
  LEFT JOIN LATERAL (
       SELECT {page} FROM {table}
        WHERE seq > $6 AND seq <= $3 AND lane = ANY ($5)
          AND (seq > $2 OR NOT pg_visible_in_snapshot(xid, s.delivered))
        ORDER BY seq {most}) AS p ON true";

#[derive(Debug)]
pub(super) struct Statements {
    late: Statement,
    fresh: Statement,
    recover: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| {
            Statement::new(Dialect::Postgres, table, sql)
                .with_rendered("{said}", &Statement::new(Dialect::Postgres, table, SAID))
                .with("{page}", COLUMNS)
                .with("{columns}", EVENT_COLUMNS)
                .with("{fresh}", IS_FRESH)
                .with("{within}", WITHIN)
                .with("{most}", MOST)
        };
        Self { late: statement(LATE), fresh: statement(FRESH), recover: statement(RECOVER) }
    }
}

impl WindowReader {
    /// Reads some rows from a place; answers with the place after them, too. Where `top` says so, what other lanes have written
    /// lies behind that: lanes in which little happens would otherwise step over all of it, time and again.
    pub(super) async fn rows_from(
        &self,
        connection: &mut PgConnection,
        lanes: &[u16],
        place: &Place,
        until: Option<&Snapshot>,
        limit: u32,
        top: bool,
    ) -> Result<(Vec<Row>, Place)> {
        let (next, running) = (place.base.next(), place.base.running());
        let numbers: Vec<i16> = lanes.iter().map(|lane| *lane as i16).collect();
        let after = match &place.part {
            Part::Nothing => place.anchor,
            Part::Window { after, .. } | Part::Recovery { after, .. } => *after,
        };
        let until_text = until.map(Snapshot::to_string);
        let statements = &self.statements.window.page;
        let query = match &place.part {
            Part::Recovery { delivered, delivered_seq, .. } => sqlx::query(statements.recover.sql())
                .bind(delivered.to_string())
                .bind(delivered_seq)
                .bind(place.anchor)
                .bind(i64::from(limit))
                .bind(&numbers)
                .bind(after),
            _ => {
                let below = after < place.base_seq;
                let statement = if below { &statements.late } else { &statements.fresh };
                sqlx::query(statement.sql())
                    .bind(&next)
                    .bind(&running)
                    .bind(place.base_seq)
                    .bind(i64::from(limit))
                    .bind(&numbers)
                    .bind(after)
                    .bind(&until_text)
                    .bind(top && until.is_none())
            }
        };
        let recovers = matches!(place.part, Part::Recovery { .. });
        let (rows, now, top) = self.receive(query.fetch(connection), limit, recovers).await?;
        let now = self.snapshot(&now)?;
        let last = rows.last().map_or(after, |row| row.sequence);
        let full = rows.len() >= limit as usize;
        let target = until.cloned().unwrap_or(now);
        let place = match &place.part {
            Part::Recovery { delivered, delivered_seq, .. } if full => Place {
                part: Part::Recovery {
                    delivered: delivered.clone(),
                    delivered_seq: *delivered_seq,
                    after: last,
                },
                ..place.clone()
            },
            Part::Recovery { .. } => Place { part: Part::Nothing, ..place.clone() },
            _ if full => Place { part: Part::Window { target, after: last }, ..place.clone() },
            _ => Place {
                base: target,
                base_seq: place.base_seq.max(last).max(top.unwrap_or(0)),
                anchor: place.anchor,
                part: Part::Nothing,
            },
        };
        Ok((rows, place))
    }

    /// The rows of a page, each read while the server is still at those behind it; and what was said with the first of them:
    /// the server's snapshot, and the highest seq if it was asked for. A page without rows is one row without an event.
    async fn receive(
        &self,
        mut sent: BoxStream<'_, sqlx::Result<PgRow>>,
        limit: u32,
        recovers: bool,
    ) -> Result<(Vec<Row>, String, Option<i64>)> {
        let mut rows = Vec::with_capacity(limit.min(EXPECTED) as usize);
        let (mut now, mut top) = (String::new(), None);
        let mut is_first = true;
        let received = async {
            while let Some(row) = sent.try_next().await? {
                if std::mem::take(&mut is_first) {
                    now = row.try_get(19)?;
                    top = if recovers { None } else { row.try_get(20)? };
                    if row.try_get::<Option<i64>, _>(15)?.is_none() {
                        continue;
                    }
                }
                rows.push(self.read_row(&row)?);
            }
            Ok(())
        };
        received.await.map_err(|e| self.error(e))?;
        Ok((rows, now, top))
    }

    fn read_row(&self, row: &PgRow) -> sqlx::Result<Row> {
        let (sequence, lane): (i64, i16) = (row.try_get(15)?, row.try_get(17)?);
        let lane = lane as u16;
        Ok(Row {
            hold: self.lanes.get(&lane).map_or(Hold { lane, fence: 0 }, |lane| lane.hold),
            sequence,
            id: row.try_get(0)?,
            topic: row.try_get(1)?,
            created_at: row.try_get(16)?,
            delayed: row.try_get(18)?,
            suspect: false,
            event: decode(row).map(Arc::new),
        })
    }
}
