//! Rows by their sequences, and which transactions may still write some.
//!
//! A queue has no index on them, so that its inserts cost less: its rows are found by the time they were written, which the
//! smallest of indexes knows roughly. They are read in slices of time, made so narrow that each has no more rows than can
//! be held: how much was written since then does not matter.

use sqlx::postgres::PgRow;
use sqlx::{QueryBuilder, Row};
use time::{Duration, OffsetDateTime};

use super::admin::push_limit;
use super::look::Look;
use crate::store::arrivals::SLACK;
use crate::store::{Arrival, Arrivals, Missed, Mode, Running, Sought, TableName};

// Asked before the rows: whoever has ended by then is seen among them.
const RUNNING: &str = "
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint, clock_timestamp() FROM pg_current_snapshot() AS s";

/// Rows of a slice at most.
const MOST: usize = 10_000;
/// How wide the first slice is.
const FIRST: Duration = Duration::seconds(10);
/// And how much wider the next one, where there was little in it.
const WIDER: i32 = 8;
/// How much narrower, where there was too much in it: less, or it would go back and forth.
const NARROWER: i32 = 4;
/// A slice that is not made narrower: its rows say that they were written at the same time.
const NARROWEST: Duration = Duration::microseconds(1);
/// Slices in which what was missed is looked for at once.
const PLACES: usize = 16;

/// Looks for rows.
pub(super) async fn arrivals(
    look: &mut Look,
    table: &TableName,
    mode: Mode,
    sought: Sought<'_>,
) -> sqlx::Result<Arrivals> {
    let (oldest, next, now): (i64, i64, OffsetDateTime) =
        sqlx::query_as(RUNNING).fetch_one(&mut **look).await?;
    let running = Running::From(oldest.unsigned_abs(), next.unsigned_abs());
    let mut queue = Queue { look, table, now };
    let (rows, more) = match (mode, sought) {
        (Mode::Queue, Sought::Newest { limit, since }) => (queue.newest(limit as usize, since).await?, false),
        (Mode::Queue, Sought::After { sequence, written, limit }) => {
            queue.after(sequence, written, limit as usize).await?
        }
        (Mode::Queue, Sought::Among(missed)) => (queue.among(missed).await?, false),
        (Mode::Stream(_), sought) => (of_stream(queue.look, table, sought).await?, false),
    };
    let arrivals = Arrivals::of(rows, sought.limit(), running);
    Ok(Arrivals { more: more || arrivals.more, ..arrivals })
}

/// A stream's sequences have an index.
async fn of_stream(look: &mut Look, table: &TableName, sought: Sought<'_>) -> sqlx::Result<Vec<Arrival>> {
    let mut query = QueryBuilder::new("SELECT seq, id, created_at FROM ");
    query.push(table.quoted('"'));
    match sought {
        Sought::Newest { limit, .. } => query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(limit)),
        Sought::After { sequence, limit, .. } => query
            .push(" WHERE seq > ")
            .push_bind(sequence)
            .push(" ORDER BY seq LIMIT ")
            .push_bind(i64::from(limit)),
        Sought::Among(missed) => query.push(" WHERE seq = ANY (").push_bind(sequences(missed)).push(")"),
    };
    // Planned anew each time: how much lies behind a place is not the same twice.
    query.build().persistent(false).fetch_all(&mut **look).await?.iter().map(read).collect()
}

/// A queue that is looked at by time.
struct Queue<'a> {
    look: &'a mut Look,
    table: &'a TableName,
    now: OffsetDateTime,
}

/// A span of time; what has no end ends with time.
#[derive(Clone, Copy)]
struct Span {
    from: OffsetDateTime,
    until: Option<OffsetDateTime>,
}

/// Which rows of a span.
#[derive(Clone, Copy)]
enum Which<'a> {
    /// Any, as far as there are no more than can be held.
    Any,
    /// Those with the highest sequences.
    Highest(usize),
    /// Those with the lowest sequences above this one.
    LowestAbove(i64, usize),
    /// Those of these sequences.
    Of(&'a [i64]),
}

impl Queue<'_> {
    /// The newest by their time, from the end backwards.
    async fn newest(&mut self, limit: usize, since: OffsetDateTime) -> sqlx::Result<Vec<Arrival>> {
        let (mut rows, mut width, mut until, mut crowded) = (Vec::new(), FIRST, None, since);
        loop {
            let end: OffsetDateTime = until.unwrap_or(self.now);
            let mut from = end.checked_sub(width).unwrap_or(since).max(since);
            if crowded > since && crowded < end {
                // There was too much from there on: half of the way is not tried in vain again.
                from = from.max(crowded + (end - crowded) / 2);
            }
            let span = Span { from, until };
            let mut found = self.read(span, Which::Any).await?;
            if found.len() > MOST {
                if end - from > NARROWEST {
                    crowded = from;
                    width = ((end - from) / NARROWER).max(NARROWEST);
                    continue;
                }
                found = self.read(span, Which::Highest(limit)).await?;
            }
            if found.len() < MOST / WIDER as usize {
                width = width.saturating_mul(WIDER);
            }
            rows.append(&mut found);
            if rows.len() >= limit || from <= since {
                break;
            }
            until = Some(from);
        }
        rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.sequence));
        rows.truncate(limit);
        Ok(rows)
    }

    /// What follows a row, and whether there may be more of it. Where much does, the first of it by time: a sequence that
    /// this passes over is one that was missed.
    async fn after(
        &mut self,
        sequence: i64,
        written: OffsetDateTime,
        limit: usize,
    ) -> sqlx::Result<(Vec<Arrival>, bool)> {
        let above = |rows: Vec<Arrival>| {
            let mut rows: Vec<_> = rows.into_iter().filter(|row| row.sequence > sequence).collect();
            rows.sort_unstable_by_key(|row| row.sequence);
            let more = rows.len() > limit;
            rows.truncate(limit);
            (rows, more)
        };
        let slack = written - SLACK;
        let all = self.read(Span { from: slack, until: None }, Which::Any).await?;
        if all.len() <= MOST {
            return Ok(above(all));
        }
        let mut all = self.read(Span { from: written, until: None }, Which::Any).await?;
        if all.len() <= MOST {
            // What follows by its sequence and not by its time is found as missed when another one has passed it: the last
            // ones are passed by none.
            let earlier = Span { from: slack, until: Some(written) };
            all.append(&mut self.read(earlier, Which::LowestAbove(sequence, limit)).await?);
            return Ok(above(all));
        }
        // Some of them were found, most likely the first: half of those is a slice that should be small enough.
        all.sort_unstable_by_key(|row| row.created_at);
        let half = all.get(MOST / 2).map_or(FIRST, |row| row.created_at - written);
        let (mut from, mut width, mut crowded) = (written, half.max(NARROWEST), None::<OffsetDateTime>);
        while from <= self.now {
            let mut until = from.checked_add(width).unwrap_or(self.now + FIRST);
            if let Some(crowded) = crowded.filter(|crowded| *crowded > from) {
                let half: Duration = (crowded - from) / 2;
                until = until.min(from + half.max(NARROWEST));
            }
            let span = Span { from, until: Some(until) };
            let mut found = self.read(span, Which::Any).await?;
            if found.len() > MOST {
                if until - from > NARROWEST {
                    crowded = Some(until);
                    width = ((until - from) / NARROWER).max(NARROWEST);
                    continue;
                }
                found = self.read(span, Which::LowestAbove(sequence, limit)).await?;
            }
            let (rows, _) = above(found);
            if !rows.is_empty() {
                return Ok((rows, true));
            }
            from = until;
            width = width.saturating_mul(WIDER);
        }
        Ok((Vec::new(), false))
    }

    /// What was missed, near its neighbours.
    async fn among(&mut self, missed: &[Missed]) -> sqlx::Result<Vec<Arrival>> {
        let mut rows = Vec::new();
        for (span, sequences) in places(missed) {
            rows.append(&mut self.read(span, Which::Of(&sequences)).await?);
        }
        Ok(rows)
    }

    /// Rows of a span, in whatever order; where any will do, one more than can be held says that there are more.
    async fn read(&mut self, span: Span, which: Which<'_>) -> sqlx::Result<Vec<Arrival>> {
        let mut query = QueryBuilder::new("SELECT seq, id, created_at FROM ");
        query.push(self.table.quoted('"')).push(" WHERE created_at >= ").push_bind(span.from);
        if let Some(until) = span.until {
            query.push(" AND created_at < ").push_bind(until);
        }
        match which {
            Which::Any => push_limit(&mut query, MOST as i64 + 1),
            Which::Highest(limit) => {
                query.push(" ORDER BY seq DESC");
                push_limit(&mut query, limit as i64);
            }
            Which::LowestAbove(sequence, limit) => {
                query.push(" AND seq > ").push_bind(sequence).push(" ORDER BY seq");
                push_limit(&mut query, limit as i64);
            }
            Which::Of(sequences) => {
                query.push(" AND seq = ANY (").push_bind(sequences.to_vec()).push(")");
            }
        }
        // Planned anew each time: how much lies in a span of time is not the same twice.
        query.build().persistent(false).fetch_all(&mut **self.look).await?.iter().map(read).collect()
    }
}

/// Where to look for what was missed: few places, so that one row which has been missing for long does not mean that everything
/// since then is read.
fn places(missed: &[Missed]) -> Vec<(Span, Vec<i64>)> {
    let mut missed = missed.to_vec();
    missed.sort_unstable_by_key(|missed| missed.since);
    let mut apart = Duration::ZERO;
    loop {
        let mut places: Vec<(OffsetDateTime, OffsetDateTime, Vec<i64>)> = Vec::new();
        for missed in &missed {
            let (from, until) = (missed.since - SLACK, missed.until + SLACK);
            match places.last_mut() {
                Some((_, end, sequences)) if from - *end <= apart => {
                    *end = until.max(*end);
                    sequences.push(missed.sequence);
                }
                _ => places.push((from, until, vec![missed.sequence])),
            }
        }
        if places.len() <= PLACES {
            let span = |from, until| Span { from, until: Some(until) };
            return places.into_iter().map(|(from, until, of)| (span(from, until), of)).collect();
        }
        apart = (apart * WIDER).max(FIRST);
    }
}

fn sequences(missed: &[Missed]) -> Vec<i64> {
    missed.iter().map(|missed| missed.sequence).collect()
}

fn read(row: &PgRow) -> sqlx::Result<Arrival> {
    Ok(Arrival { sequence: row.try_get(0)?, id: row.try_get(1)?, created_at: row.try_get(2)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op1_what_was_missed_is_looked_for_in_few_places() {
        let at = |seconds: i64| OffsetDateTime::UNIX_EPOCH + Duration::seconds(seconds);
        let missed = |sequence, seconds| Missed { sequence, since: at(seconds), until: at(seconds + 1) };
        let found = places(&[missed(9, 5000), missed(1, 100), missed(2, 110)]);
        let spans: Vec<_> = found.iter().map(|(span, of)| (span.from, span.until, of.clone())).collect();
        assert_eq!(spans, [(at(90), Some(at(121)), vec![1, 2]), (at(4990), Some(at(5011)), vec![9])]);

        let many: Vec<Missed> = (0..2000).map(|n| missed(n, n * 60)).collect();
        let found = places(&many);
        assert!(found.len() <= PLACES);
        assert_eq!(found.iter().flat_map(|(_, of)| of).count(), 2000);
    }
}
