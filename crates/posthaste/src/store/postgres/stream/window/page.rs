//! A page of rows: what is visible now and was not at a lane's place. Each row is read while the server is still at those
//! behind it.

use std::sync::Arc;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Row as _, ValueRef as _};

use super::super::super::columns::{Arrived, BEHIND_DELIVERY, DELIVERY_COLUMNS, Types, decode_delivery};
use super::super::lanes;
use super::super::snapshot::Snapshot;
use super::WindowReader;
use super::ahead::Rest;
use super::place::{Part, Place};
use crate::error::Result;
use crate::planted::{self, Bug};
use crate::store::statement::Statement;
use crate::store::stream::{Hold, Row, Unreadable};
use crate::store::{Dialect, TableName};

/// For how many rows there is room before the first has come.
const EXPECTED: u32 = 1000;

/// The columns of a page behind those of a delivery, in the order of [`read_row`]. What is available since it was created is not
/// delayed; of others, a row may have been written after the statement began, and be shown: by the time of the beginning it would
/// be taken for delayed, and lose its place.
const COLUMNS: &str = "lane, CASE WHEN available_at > created_at THEN nullif(available_at > clock_timestamp(), false) END AS delayed";

/// Where a page has them, and what is said of it as a whole.
const LANE: usize = BEHIND_DELIVERY;
const DELAYED: usize = LANE + 1;
const NOW: usize = DELAYED + 1;
const TOP: usize = NOW + 1;

// $1 and $2: from which transaction on none had ended in the base, and which below had not. $3 base_seq, $4 limit, $5 lanes,
// $6 the seq after which to read, $7 the target, or null for now, $8 whether the highest seq is asked for. What lies below
// base_seq is found by its transaction, each by itself in the order of seq: one that wrote much is read in pages, too. The
// bounds that say nothing, and the order by a sum, keep the planner from reading all of it in the order of seq instead.
const LATE: &str = "
SELECT p.*, s.now, s.top
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
SELECT p.*, s.now, s.top
  FROM {said}
  LEFT JOIN LATERAL (
       SELECT {page} FROM {table}
        WHERE seq > greatest($3, $6) AND {fresh} AND lane = ANY ($5) AND {within}
        ORDER BY seq {most}) AS p ON true";

// Read once, not for every row: the offset keeps the planner from putting each where it is used. Where there is a target, nobody
// asks for now.
const SAID: &str = "
       (SELECT CASE WHEN $7::text IS NULL THEN pg_current_snapshot()::text END AS now, $1::text::xid8 AS next, $2::text[]::xid8[] AS running,
               $7::text::pg_snapshot AS target, CASE WHEN $8 THEN (SELECT max(seq) FROM {table}) END AS top OFFSET 0) AS s";

// Without it everything above would be read and sorted, page after page, while the table is not analysed: see decision 22.
const MOST: &str = "LIMIT (SELECT $4::bigint)";

const IS_FRESH: &str = "(xid >= s.next OR xid = ANY (s.running))";

const WITHIN: &str = "(s.target IS NULL OR pg_visible_in_snapshot(xid, s.target))";

// What was restored from another cluster: $1 the snapshot and $2 the seq up to which it was delivered there, $3 the anchor,
// $4 limit, $5 lanes, $6 the seq after which to read.
const RECOVER: &str = "
SELECT p.*
  FROM (SELECT $1::text::pg_snapshot AS delivered OFFSET 0) AS s
 CROSS JOIN LATERAL (
       SELECT {page} FROM {table}
        WHERE seq > $6 AND seq <= $3 AND lane = ANY ($5)
          AND (seq > $2 OR NOT pg_visible_in_snapshot(xid, s.delivered))
        ORDER BY seq {most}) AS p";

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
                .with("{page}", "{delivery}, {more}")
                .with("{delivery}", DELIVERY_COLUMNS)
                .with("{more}", COLUMNS)
                .with("{fresh}", IS_FRESH)
                .with("{within}", WITHIN)
                .with("{most}", MOST)
        };
        Self { late: statement(LATE), fresh: statement(FRESH), recover: statement(RECOVER) }
    }

    /// Asks for a page.
    pub(super) async fn ask(
        &self,
        connection: &mut PgConnection,
        question: &Question,
    ) -> sqlx::Result<Answer> {
        let Question { holds, place, until, limit, .. } = question;
        let lanes = lanes(holds);
        if let Part::Recovery { delivered, delivered_seq, after } = &place.part {
            let query = sqlx::query(self.recover.sql())
                .bind(delivered.to_string())
                .bind(delivered_seq)
                .bind(place.anchor)
                .bind(i64::from(*limit))
                .bind(lanes)
                .bind(after);
            return Answer::receive(query.fetch(connection), question).await;
        }
        let below = question.after() < place.base_seq && !planted::is(Bug::CursorByBareSequence);
        let statement = if below { &self.late } else { &self.fresh };
        let query = sqlx::query(statement.sql())
            .bind(place.base.next())
            .bind(place.base.running())
            .bind(place.base_seq)
            .bind(i64::from(*limit))
            .bind(lanes)
            .bind(question.after())
            .bind(until.as_ref().map(Snapshot::to_string))
            .bind(question.top && until.is_none());
        Answer::receive(query.fetch(connection), question).await
    }
}

/// Which page is asked for. Where `top` says so, what other lanes have written lies behind the place after it: lanes in
/// which little happens would otherwise step over all of it, time and again.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) holds: Vec<Hold>,
    pub(super) place: Arc<Place>,
    pub(super) until: Option<Snapshot>,
    pub(super) limit: u32,
    pub(super) top: bool,
}

impl Question {
    /// The `seq` after which to read.
    fn after(&self) -> i64 {
        match &self.place.part {
            Part::Nothing => self.place.anchor,
            Part::Window { after, .. } | Part::Recovery { after, .. } => *after,
        }
    }

    /// Whether the answer to the other one is an answer to this, though perhaps of another length.
    pub(super) fn is_answered_by(&self, other: &Self) -> bool {
        (&self.holds, &self.place, &self.until) == (&other.holds, &other.place, &other.until)
    }
}

/// A page, and what was said with it.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// The server's snapshot, if nothing else bounds the page.
    pub(super) now: Option<String>,
    /// The highest `seq`, if it was asked for.
    pub(super) top: Option<i64>,
    /// What was read with it, and does not belong to it.
    pub(super) rest: Option<Rest>,
}

impl Answer {
    /// What is said of a whole page is said with each of its rows; a page without any is one row without an event. Of what is
    /// recovered nothing more is said.
    async fn receive(
        mut sent: BoxStream<'_, sqlx::Result<PgRow>>,
        question: &Question,
    ) -> sqlx::Result<Self> {
        let recovers = matches!(question.place.part, Part::Recovery { .. });
        let mut answer =
            Self { rows: Vec::with_capacity(question.limit.min(EXPECTED) as usize), ..Self::default() };
        let mut types = None;
        while let Some(row) = sent.try_next().await? {
            if types.is_none() && !recovers {
                (answer.now, answer.top) = (row.try_get(NOW)?, row.try_get(TOP)?);
                if row.try_get_raw(LANE)?.is_null() {
                    continue;
                }
            }
            let types = *types.get_or_insert_with(|| Types::of_delivery::<i16>(&row));
            answer.rows.push(read_row(&row, types, &question.holds)?);
        }
        Ok(answer)
    }
}

fn read_row(row: &PgRow, types: Types, holds: &[Hold]) -> sqlx::Result<Row> {
    let lane = types.get::<i16>(row, LANE)? as u16;
    let Arrived { id, sequence, created_at, event } = decode_delivery(row, types)?;
    let topic = || row.try_get(1).unwrap_or_default();
    Ok(Row {
        hold: holds.iter().find(|hold| hold.lane == lane).copied().unwrap_or(Hold { lane, fence: 0 }),
        sequence,
        id,
        created_at,
        delayed: !row.try_get_raw(DELAYED)?.is_null(),
        suspect: false,
        event: event.map_err(|reason| Unreadable { topic: topic(), reason }),
    })
}

impl WindowReader {
    /// The place after a page.
    pub(super) fn place_after(&self, question: &Question, answer: &Answer) -> Result<Place> {
        let place = &*question.place;
        let last = answer.rows.last().map_or(question.after(), |row| row.sequence);
        let full = answer.rows.len() >= question.limit as usize;
        let target = || match &question.until {
            Some(until) => Ok(until.clone()),
            None => self.snapshot(answer.now.as_deref().unwrap_or_default()),
        };
        Ok(match &place.part {
            Part::Recovery { delivered, delivered_seq, .. } if full => Place {
                part: Part::Recovery {
                    delivered: delivered.clone(),
                    delivered_seq: *delivered_seq,
                    after: last,
                },
                ..place.clone()
            },
            Part::Recovery { .. } => Place { part: Part::Nothing, ..place.clone() },
            _ if full => Place { part: Part::Window { target: target()?, after: last }, ..place.clone() },
            _ => Place {
                base: target()?,
                base_seq: place.base_seq.max(last).max(answer.top.unwrap_or(0)),
                anchor: place.anchor,
                part: Part::Nothing,
            },
        })
    }
}
