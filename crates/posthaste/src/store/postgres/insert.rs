//! Events into the table: one statement, whichever of the two unique keys a duplicate hits.
//!
//! `ON CONFLICT DO NOTHING` waits for a racing transaction to end and then writes nothing; only then a
//! second statement, whose snapshot is new, reads who was first. Updating the row instead would name it in
//! the first statement, but would also lock it against the relay until the producer commits.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use super::errors;
use crate::error::Result;
use crate::store::columns::{Columns, time_text};
use crate::store::insert::{Insert, Named};
use crate::store::statement::Statement;
use crate::store::{Dialect, TableName};

const ONE: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::json, $11::text::json, $12, $13,
        coalesce($14::text::timestamp AT TIME ZONE 'UTC', clock_timestamp()),
        coalesce($15::text::timestamp AT TIME ZONE 'UTC', clock_timestamp() + $16::bigint * interval '1 microsecond'))
ON CONFLICT DO NOTHING
RETURNING id, seq";

const MANY: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at)
SELECT id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
       content_type, headers::json, payload::json, payload_bytes, version,
       coalesce(occurred_at::timestamp AT TIME ZONE 'UTC', clock_timestamp()),
       coalesce(available_at::timestamp AT TIME ZONE 'UTC', clock_timestamp() + delay * interval '1 microsecond')
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
              $9::text[], $10::text[], $11::text[], $12::bytea[], $13::int[], $14::text[], $15::text[], $16::bigint[])
    AS e(id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
         content_type, headers, payload, payload_bytes, version, occurred_at, available_at, delay)
ON CONFLICT DO NOTHING
RETURNING id, seq";

const FIRST: &str = "
SELECT d.id, f.id, f.seq
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS d(id, namespace, topic, dedupe_key)
 CROSS JOIN LATERAL (
       SELECT o.id, o.seq FROM {table} o WHERE o.id = d.id
       UNION ALL
       SELECT o.id, o.seq FROM {table} o
        WHERE o.namespace = d.namespace AND o.topic = d.topic AND o.dedupe_key = d.dedupe_key
       LIMIT 1) f";

/// What an insert executes; the other client libraries execute the same.
#[derive(Debug, Clone)]
pub(crate) struct Statements {
    pub(crate) table: TableName,
    pub(crate) one: Statement,
    pub(crate) many: Statement,
    pub(crate) first: Statement,
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Postgres, table, sql);
        Self { table: table.clone(), one: statement(ONE), many: statement(MANY), first: statement(FIRST) }
    }
}

/// A connection of sqlx's, inside the caller's transaction.
pub(crate) struct Client<'c> {
    pub(crate) connection: &'c mut PgConnection,
    pub(crate) statements: &'c Statements,
}

impl Insert for Client<'_> {
    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let row = sqlx::query(self.statements.one.sql())
            .bind(event.id)
            .bind(event.topic)
            .bind(event.event_type)
            .bind(event.aggregate_type)
            .bind(event.aggregate_id)
            .bind(event.namespace)
            .bind(event.tenant_id)
            .bind(event.dedupe_key)
            .bind(event.content_type)
            .bind(event.headers.as_deref())
            .bind(event.payload)
            .bind(event.payload_bytes)
            .bind(event.version)
            .bind(event.occurred_at.map(time_text))
            .bind(event.available_at.map(time_text))
            .bind(event.delay)
            .fetch_optional(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        row.iter().map(|row| named(row, &self.statements.table)).collect()
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let rows = sqlx::query(self.statements.many.sql())
            .bind(events.iter().map(|e| e.id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.topic).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.event_type).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.aggregate_type).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.aggregate_id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.namespace).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.tenant_id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.dedupe_key).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.content_type).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.headers.as_deref()).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.payload).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.payload_bytes).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.version).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.occurred_at.map(time_text)).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.available_at.map(time_text)).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.delay).collect::<Vec<_>>())
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        rows.iter().map(|row| named(row, &self.statements.table)).collect()
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let rows = sqlx::query(self.statements.first.sql())
            .bind(events.iter().map(|e| e.id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.namespace).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.topic).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.dedupe_key).collect::<Vec<_>>())
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        let found = |row: &sqlx::postgres::PgRow| {
            Ok(Named { wanted: row.try_get(0)?, id: row.try_get(1)?, sequence: Some(row.try_get(2)?) })
        };
        rows.iter()
            .map(|row| found(row).map_err(|error| errors::classify(error, &self.statements.table)))
            .collect()
    }
}

fn named(row: &sqlx::postgres::PgRow, table: &TableName) -> Result<Named> {
    let read = || Ok(Named { wanted: row.try_get(0)?, id: row.try_get(0)?, sequence: Some(row.try_get(1)?) });
    read().map_err(|error| errors::classify(error, table))
}
