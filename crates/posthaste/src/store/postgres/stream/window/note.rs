//! Notes: how far lanes are, and what of them is under way, as the database has it.

use std::sync::Arc;

use sqlx::postgres::PgConnection;

use super::super::snapshot::Snapshot;
use super::place::{Lane, Part, Place, UnderWay};
use super::{RUN, WindowReader};
use crate::error::Result;
use crate::store::statement::Statement;
use crate::store::{Dialect, TableName};

// One small write per page, whatever is in it. It goes on from the step before it or not at all; the lanes are locked in their
// order, as by whoever takes them. Some steps are kept: who looks on meanwhile may have seen that they were the last. Each
// place is found by all of its key, whatever the planner knows of the table: while an old transaction holds back cleanup, the
// steps of a lane that are gone stay in the index.
const WRITE: &str = "
WITH said AS (
    SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::text[], $7::bigint[],
                         $8::text[], $9::bigint[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[])
               AS s(lane, fence, step, base, base_seq, target, after_seq, noted, noted_seq, recover, recover_seq, anchor_seq, run)
     WHERE (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL AND s.run = {run}
), held AS (
    SELECT l.lane FROM {lanes_table} AS l
     WHERE (l.lane, l.fence) IN (SELECT said.lane, said.fence FROM said)
     ORDER BY l.lane FOR SHARE
), written AS (
    INSERT INTO {places_table} (lane, step, base, base_seq, target, after_seq, noted, noted_seq, recover, recover_seq, anchor_seq)
    SELECT said.lane, said.step + 1, said.base::pg_snapshot, said.base_seq, said.target::pg_snapshot, said.after_seq,
           said.noted::pg_snapshot, said.noted_seq, said.recover::pg_snapshot, said.recover_seq, said.anchor_seq
      FROM said
      JOIN held ON held.lane = said.lane
     WHERE EXISTS (SELECT FROM {places_table} AS before WHERE before.lane = said.lane AND before.step = said.step OFFSET 0)
    ON CONFLICT (lane, step) DO NOTHING
    RETURNING lane, step
), forgotten AS (
    DELETE FROM {places_table} AS p USING written WHERE p.lane = written.lane AND p.step = written.step - 9
)
SELECT lane FROM written";

pub(super) fn statement(table: &TableName) -> Statement {
    Statement::new(Dialect::Postgres, table, WRITE).with("{run}", RUN)
}

impl WindowReader {
    /// Writes how far these lanes are and what is under way; answers with those that are no longer this reader's.
    pub(super) async fn write(
        &mut self,
        connection: &mut PgConnection,
        lanes: &[u16],
        noted: Option<&Place>,
    ) -> Result<Vec<u16>> {
        let lanes: Vec<&Lane> = lanes.iter().filter_map(|lane| self.lanes.get(lane)).collect();
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let said = |of: &dyn Fn(&Place) -> Option<String>| {
            lanes.iter().map(|lane| of(&lane.done)).collect::<Vec<_>>()
        };
        let numbers =
            |of: &dyn Fn(&Place) -> Option<i64>| lanes.iter().map(|lane| of(&lane.done)).collect::<Vec<_>>();
        let noted: Vec<Option<(Snapshot, i64)>> =
            lanes.iter().map(|lane| self.noted_of(lane, noted)).collect();
        let written: Vec<i16> = sqlx::query_scalar(self.statements.window.note.sql())
            .bind(lanes.iter().map(|lane| lane.hold.lane as i16).collect::<Vec<_>>())
            .bind(lanes.iter().map(|lane| lane.hold.fence).collect::<Vec<_>>())
            .bind(lanes.iter().map(|lane| lane.step).collect::<Vec<_>>())
            .bind(said(&|place| Some(place.base.to_string())))
            .bind(numbers(&|place| Some(place.base_seq)))
            .bind(said(&|place| match &place.part {
                Part::Window { target, .. } => Some(target.to_string()),
                _ => None,
            }))
            .bind(numbers(&|place| match &place.part {
                Part::Nothing => Some(place.anchor),
                Part::Window { after, .. } | Part::Recovery { after, .. } => Some(*after),
            }))
            .bind(
                noted
                    .iter()
                    .map(|noted| noted.as_ref().map(|(snapshot, _)| snapshot.to_string()))
                    .collect::<Vec<_>>(),
            )
            .bind(noted.iter().map(|noted| noted.as_ref().map(|(_, seq)| *seq)).collect::<Vec<_>>())
            .bind(said(&|place| match &place.part {
                Part::Recovery { delivered, .. } => Some(delivered.to_string()),
                _ => None,
            }))
            .bind(numbers(&|place| match &place.part {
                Part::Recovery { delivered_seq, .. } => Some(*delivered_seq),
                _ => None,
            }))
            .bind(numbers(&|place| Some(place.anchor)))
            .bind(lanes.iter().map(|lane| lane.run).collect::<Vec<_>>())
            .fetch_all(connection)
            .await
            .map_err(|e| self.error(e))?;
        let asked: Vec<u16> = lanes.iter().map(|lane| lane.hold.lane).collect();
        let mut lost = Vec::new();
        for (lane, noted) in asked.into_iter().zip(noted) {
            match self.lanes.get_mut(&lane) {
                Some(held) if written.contains(&(lane as i16)) => {
                    held.step += 1;
                    held.noted = noted.is_some();
                    held.written = Arc::clone(&held.done);
                }
                _ => lost.push(lane),
            }
        }
        Ok(lost)
    }

    /// What of a lane is under way, counting a page that is about to be.
    fn noted_of(&self, lane: &Lane, next: Option<&Place>) -> Option<(Snapshot, i64)> {
        let is_under_way = |page: &&UnderWay| page.lanes.contains(&lane.hold.lane);
        let last = self.pages.iter().rev().find(is_under_way).map(|page| &*page.place);
        let under_way = next.or(last).map(Place::noted);
        let reach = |a: &(Snapshot, i64), b: &(Snapshot, i64)| a.0.order(&b.0).then(a.1.cmp(&b.1));
        under_way.into_iter().chain(lane.suspects.clone()).max_by(reach)
    }
}
