//! Rows of the table that are marked or deleted. A row is found by its place and compared by its id: after a failover its
//! place may be another event's. From then on it is locked, and its place is enough.
//!
//! Nobody is waited for: a producer that met a duplicate of an event holds its row, or an entry of it in an index, until it
//! commits.

use std::collections::HashSet;

use serde_json::json;
use sqlx::mysql::MySqlConnection;
use uuid::Uuid;

use super::park::NOT_PARKED;
use crate::store::statement::Statement;
use crate::store::stream::place::{RowId, json_text};
use crate::store::{Dialect, Keep, TableName};

// Neither settled nor parked.
const OPEN: &str = "
SELECT o.seq, o.id
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.id = UNHEX(p.id) AND o.outcome IS NULL AND {not_parked}
   {lock}";

const THERE: &str = "
SELECT o.seq, o.id
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', id CHAR(32) PATH '$[1]')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
 WHERE o.id = UNHEX(p.id)
   {lock}";

const IF_FREE: &str = "FOR UPDATE /*!50700 OF o */ SKIP LOCKED";

const MARK_PARKED: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS p
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = p.s
   SET o.outcome = 'parked'";

const MARK_DELIVERED: &str = "
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.s
   SET o.outcome = 'delivered', o.settled_at = UTC_TIMESTAMP(6)";

const NAMES: &str = "
SELECT o.seq, LOWER(HEX(o.id)), o.dedupe_key, o.namespace, o.topic
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.s";

const FREE_BY_ID: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id CHAR(32) PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_id`) ON o.id = UNHEX(d.id)
   FOR UPDATE /*!50700 OF o */ SKIP LOCKED";

const FREE_BY_DEDUPE_KEY: &str = "
SELECT o.seq
  FROM JSON_TABLE(?, '$[*]' COLUMNS (dedupe_key VARCHAR(255) PATH '$[0]', namespace VARCHAR(64) PATH '$[1]',
                                     topic VARCHAR(128) PATH '$[2]')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (`{name}_dedupe`)
     ON o.dedupe_key = d.dedupe_key AND o.namespace = d.namespace AND o.topic = d.topic
   FOR UPDATE /*!50700 OF o */ SKIP LOCKED";

const DELETE: &str = "
DELETE o
  FROM JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$')) AS d
  STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.seq = d.s";

#[derive(Debug)]
pub(super) struct Statements {
    open: Statement,
    open_free: Statement,
    there: Statement,
    there_free: Statement,
    mark_parked: Statement,
    mark_delivered: Statement,
    names: Statement,
    free_by_id: Statement,
    free_by_dedupe_key: Statement,
    delete: Statement,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::MySql, table, sql);
        let open =
            |lock| statement(OPEN).with("{lock}", lock).with_rendered("{not_parked}", &statement(NOT_PARKED));
        let there = |lock| statement(THERE).with("{lock}", lock);
        Self {
            open: open(""),
            open_free: open(IF_FREE),
            there: there(""),
            there_free: there(IF_FREE),
            mark_parked: statement(MARK_PARKED),
            mark_delivered: statement(MARK_DELIVERED),
            names: statement(NAMES),
            free_by_id: statement(FREE_BY_ID),
            free_by_dedupe_key: statement(FREE_BY_DEDUPE_KEY),
            delete: statement(DELETE),
        }
    }

    /// Those of these that are neither settled nor parked.
    pub(super) async fn open(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
    ) -> sqlx::Result<Vec<RowId>> {
        found(connection, &self.open, rows).await
    }

    /// Locks those of them that nobody else has locked, and says which.
    pub(super) async fn open_and_free(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
    ) -> sqlx::Result<HashSet<i64>> {
        Ok(found(connection, &self.open_free, rows).await?.iter().map(|row| row.sequence).collect())
    }

    /// Those of these that are there.
    pub(super) async fn there(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
    ) -> sqlx::Result<Vec<RowId>> {
        found(connection, &self.there, rows).await
    }

    /// Locks those of them that nobody else has locked, and says which.
    pub(super) async fn free(
        &self,
        connection: &mut MySqlConnection,
        rows: &[RowId],
    ) -> sqlx::Result<HashSet<i64>> {
        Ok(found(connection, &self.there_free, rows).await?.iter().map(|row| row.sequence).collect())
    }

    /// Those of these rows, which are locked, whose entries in the indexes nobody else holds: to delete another would be to
    /// wait.
    pub(super) async fn deletable(
        &self,
        connection: &mut MySqlConnection,
        sequences: &HashSet<i64>,
    ) -> sqlx::Result<HashSet<i64>> {
        if sequences.is_empty() {
            return Ok(HashSet::new());
        }
        let names: Vec<(i64, String, Option<String>, String, String)> =
            sqlx::query_as(self.names.sql()).bind(in_order(sequences)).fetch_all(&mut *connection).await?;
        let ids = json_text(names.iter().map(|(_, id, ..)| json!(id)));
        let free: Vec<i64> =
            sqlx::query_scalar(self.free_by_id.sql()).bind(ids).fetch_all(&mut *connection).await?;
        let mut deletable: HashSet<i64> = free.into_iter().collect();
        let named: Vec<_> = names.iter().filter(|(_, _, dedupe_key, ..)| dedupe_key.is_some()).collect();
        if !named.is_empty() {
            let keys =
                json_text(named.iter().map(|(_, _, key, namespace, topic)| json!([key, namespace, topic])));
            let free: Vec<i64> = sqlx::query_scalar(self.free_by_dedupe_key.sql())
                .bind(keys)
                .fetch_all(&mut *connection)
                .await?;
            let free: HashSet<i64> = free.into_iter().collect();
            named.iter().filter(|(sequence, ..)| !free.contains(sequence)).for_each(|(sequence, ..)| {
                deletable.remove(sequence);
            });
        }
        Ok(deletable)
    }

    /// Deletes rows that are locked and deletable.
    pub(super) async fn delete(
        &self,
        connection: &mut MySqlConnection,
        sequences: &HashSet<i64>,
    ) -> sqlx::Result<()> {
        write(connection, &self.delete, sequences).await
    }

    /// Marks rows that are locked as parked.
    pub(super) async fn mark_parked(
        &self,
        connection: &mut MySqlConnection,
        sequences: &HashSet<i64>,
    ) -> sqlx::Result<()> {
        write(connection, &self.mark_parked, sequences).await
    }
}

/// Marks rows that are locked as delivered or deletes them. One whose entry in an index somebody holds is kept in either case,
/// until it is purged.
pub(super) async fn finish(
    connection: &mut MySqlConnection,
    statements: &super::Statements,
    sequences: &HashSet<i64>,
    keep: Keep,
) -> sqlx::Result<()> {
    let statements = &statements.mark;
    let deleted = match keep {
        Keep::Nothing => statements.deletable(connection, sequences).await?,
        Keep::Delivered => HashSet::new(),
    };
    statements.delete(connection, &deleted).await?;
    let marked = sequences.difference(&deleted).copied().collect();
    write(connection, &statements.mark_delivered, &marked).await
}

/// Rows as the statements read them, in the order in which all who lock rows do so.
pub(super) fn row_ids(rows: &[RowId]) -> String {
    let mut rows = rows.to_vec();
    rows.sort_unstable_by_key(|row| row.sequence);
    json_text(rows.iter().map(|row| json!([row.sequence, row.id.simple().to_string()])))
}

fn in_order(sequences: &HashSet<i64>) -> String {
    let mut sequences: Vec<i64> = sequences.iter().copied().collect();
    sequences.sort_unstable();
    json!(sequences).to_string()
}

async fn found(
    connection: &mut MySqlConnection,
    statement: &Statement,
    rows: &[RowId],
) -> sqlx::Result<Vec<RowId>> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query_as(statement.sql()).bind(row_ids(rows));
    let found: Vec<(i64, Uuid)> = query.fetch_all(connection).await?;
    Ok(found.into_iter().map(|(sequence, id)| RowId { sequence, id }).collect())
}

async fn write(
    connection: &mut MySqlConnection,
    statement: &Statement,
    sequences: &HashSet<i64>,
) -> sqlx::Result<()> {
    if sequences.is_empty() {
        return Ok(());
    }
    sqlx::query(statement.sql()).bind(in_order(sequences)).execute(connection).await.map(drop)
}
