//! Events into the table: one statement, whichever of the two unique keys a duplicate hits.
//!
//! `ON CONFLICT DO NOTHING` waits for a racing transaction to end and then writes nothing; only then a
//! second statement, whose snapshot is new, reads who was first. Updating the row instead would name it in
//! the first statement, but would also lock it against the relay until the producer commits. An event whose id was made in this
//! very call and that has no dedupe key has no duplicate, and is written without looking for one if it is plain: that is 4 of the 5 µs which a
//! statement written by hand would spare.

use sqlx::Row;
use sqlx::postgres::{PgArguments, PgConnection, Postgres};
use uuid::Uuid;

use super::errors;
use crate::error::Result;
use crate::store::columns::{Columns, time_text};
use crate::store::insert::{Insert, Named};
use crate::store::settlement::micros;
use crate::store::statement::Statement;
use crate::store::{BirthLease, Dialect, Lease, TableName};

const ONE: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at{lease_columns})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::json, $11::text::json, $12, $13,
        coalesce($14::text::timestamp AT TIME ZONE 'UTC', clock_timestamp()),
        coalesce($15::text::timestamp AT TIME ZONE 'UTC', clock_timestamp() + $16::bigint * interval '1 microsecond'){lease_values})
ON CONFLICT DO NOTHING
RETURNING id, seq";

const MANY: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
                     content_type, headers, payload, payload_bytes, version, occurred_at, available_at{lease_columns})
SELECT id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
       content_type, headers::json, payload::json, payload_bytes, version,
       coalesce(occurred_at::timestamp AT TIME ZONE 'UTC', clock_timestamp()),
       coalesce(available_at::timestamp AT TIME ZONE 'UTC', clock_timestamp() + delay * interval '1 microsecond'){lease_selected}
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
              $9::text[], $10::text[], $11::text[], $12::bytea[], $13::int[], $14::text[], $15::text[], $16::bigint[]{lease_arrays})
    AS e(id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key,
         content_type, headers, payload, payload_bytes, version, occurred_at, available_at, delay{lease_names})
ON CONFLICT DO NOTHING
RETURNING id, seq";

/// What is put into the statements of plain events where one of them may be there already, and left out where none can be.
const CONFLICT: &str = "ON CONFLICT DO NOTHING";

// What most events are: see `Columns::is_plain`. Half as many values save both sides a tenth of the statement.
const PLAIN_ONE: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers, payload,
                     namespace, version, occurred_at, available_at)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, 'default', 1, clock_timestamp(), clock_timestamp())
{conflict}
RETURNING id, seq";

const PLAIN_MANY: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers, payload,
                     namespace, version, occurred_at, available_at)
SELECT id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers::json, payload::json,
       'default', 1, clock_timestamp(), clock_timestamp()
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[])
    AS e(id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers, payload)
{conflict}
RETURNING id, seq";

// The same, leased from the beginning: what goes straight to a relay is dated by its producer. $9 when, $10 by whom, $11 for how long.
const PLAIN_ONE_LEASED: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers, payload,
                     namespace, version, occurred_at, available_at, attempts, locked_by, locked_until)
VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, 'default', 1,
        $9::timestamptz, clock_timestamp(), 1, $10, clock_timestamp() + $11::bigint * interval '1 microsecond')
{conflict}
RETURNING id, seq";

const PLAIN_MANY_LEASED: &str = "
INSERT INTO {table} (id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers, payload,
                     namespace, version, occurred_at, available_at, attempts, locked_by, locked_until)
SELECT id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers::json, payload::json,
       'default', 1, occurred_at, clock_timestamp(), 1, $10, clock_timestamp() + $11::bigint * interval '1 microsecond'
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[])
    AS e(id, topic, event_type, aggregate_type, aggregate_id, tenant_id, headers, payload, occurred_at)
{conflict}
RETURNING id, seq";

/// What is put into `ONE` and `MANY` where some rows are leased from the beginning, and left out where none is. For a
/// row that is not, the values are 0 and null.
const LEASE: [(&str, &str); 5] = [
    ("{lease_columns}", ", attempts, locked_by, locked_until"),
    ("{lease_values}", ", $17, $18, clock_timestamp() + $19::bigint * interval '1 microsecond'"),
    ("{lease_selected}", ", attempts, locked_by, clock_timestamp() + lease * interval '1 microsecond'"),
    ("{lease_arrays}", ", $17::int[], $18::text[], $19::bigint[]"),
    ("{lease_names}", ", attempts, locked_by, lease"),
];

const FIRST: &str = "
SELECT d.id, f.id, f.seq
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS d(id, namespace, topic, dedupe_key)
 CROSS JOIN LATERAL (
       SELECT o.id, o.seq FROM {table} o WHERE o.id = d.id
       UNION ALL
       SELECT o.id, o.seq FROM {table} o
        WHERE o.namespace = d.namespace AND o.topic = d.topic AND o.dedupe_key = d.dedupe_key
       LIMIT 1) f";

const LEASED: &str = "
SELECT o.id, o.seq
  FROM unnest($1::uuid[], $2::text[]) AS l(id, holder)
  JOIN {table} AS o ON o.id = l.id AND o.locked_by = l.holder";

const UNLEASE: &str = "
UPDATE {table} AS o
   SET attempts = 0, locked_by = NULL, locked_until = NULL
  FROM unnest($1::uuid[], $2::text[]) AS l(id, holder)
 WHERE o.id = l.id AND o.locked_by = l.holder";

const PROBE: &str = "SELECT 1";

/// What an insert executes; the other client libraries execute the same, but for the shorter statements.
#[derive(Debug, Clone)]
pub(crate) struct Statements {
    pub(crate) table: TableName,
    pub(crate) one: Statement,
    pub(crate) many: Statement,
    plain_one: Plain,
    plain_one_leased: Plain,
    plain_many: Plain,
    plain_many_leased: Plain,
    one_leased: Statement,
    many_leased: Statement,
    pub(crate) first: Statement,
    leased: Statement,
    unlease: Statement,
}

/// A statement for plain events.
#[derive(Debug, Clone)]
struct Plain {
    /// Looks whether one is there already.
    looking: Statement,
    /// Where none can be there, it does not look.
    trusting: Statement,
}

impl Plain {
    fn of(&self, is_new: bool) -> &Statement {
        if is_new { &self.trusting } else { &self.looking }
    }
}

impl Statements {
    pub(crate) fn new(table: &TableName) -> Self {
        let statement = |sql| Statement::new(Dialect::Postgres, table, sql);
        let unleased = |sql| LEASE.iter().fold(statement(sql), |sql, (place, _)| sql.with(place, ""));
        let plain = |sql| Plain {
            looking: statement(sql).with("{conflict}", CONFLICT),
            trusting: statement(sql).with("{conflict}", ""),
        };
        let leased = |sql| LEASE.iter().fold(statement(sql), |sql, (place, lease)| sql.with(place, lease));
        Self {
            table: table.clone(),
            one: unleased(ONE),
            many: unleased(MANY),
            plain_one: plain(PLAIN_ONE),
            plain_one_leased: plain(PLAIN_ONE_LEASED),
            plain_many: plain(PLAIN_MANY),
            plain_many_leased: plain(PLAIN_MANY_LEASED),
            one_leased: leased(ONE),
            many_leased: leased(MANY),
            first: statement(FIRST),
            leased: statement(LEASED),
            unlease: statement(UNLEASE),
        }
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
        let row = one(self.statements, event)
            .fetch_optional(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))?;
        row.iter().map(|row| named(row, &self.statements.table)).collect()
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let rows = many(self.statements, events)
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

impl Client<'_> {
    /// Which of the leases this transaction still has rows for, and their sequences.
    pub(crate) async fn find_leased(&mut self, leases: &[&Lease]) -> Result<Vec<(Uuid, i64)>> {
        sqlx::query_as(self.statements.leased.sql())
            .bind(leases.iter().map(|l| l.id).collect::<Vec<_>>())
            .bind(leases.iter().map(|l| &*l.holder).collect::<Vec<_>>())
            .fetch_all(&mut *self.connection)
            .await
            .map_err(|error| errors::classify(error, &self.statements.table))
    }

    /// Makes leased rows of this transaction ordinary pending ones.
    pub(crate) async fn unlease(&mut self, leases: &[&Lease]) -> Result<()> {
        sqlx::query(self.statements.unlease.sql())
            .bind(leases.iter().map(|l| l.id).collect::<Vec<_>>())
            .bind(leases.iter().map(|l| &*l.holder).collect::<Vec<_>>())
            .execute(&mut *self.connection)
            .await
            .map(drop)
            .map_err(|error| errors::classify(error, &self.statements.table))
    }

    /// Fails if the transaction can only roll back any more, which a commit would do without a word: after a
    /// statement has failed, every other one does.
    pub(crate) async fn probe(&mut self) -> Result<()> {
        let probed = sqlx::query(PROBE).execute(&mut *self.connection).await;
        probed.map(drop).map_err(|error| errors::classify(error, &self.statements.table))
    }
}

type Query<'q> = sqlx::query::Query<'q, Postgres, PgArguments>;

fn one<'q>(statements: &Statements, event: &'q Columns<'_>) -> Query<'q> {
    let Statements { one, one_leased, plain_one, plain_one_leased, .. } = statements;
    let plain = |statement: &Plain| {
        sqlx::query(statement.of(event.is_new).sql())
            .bind(event.id)
            .bind(event.topic)
            .bind(event.event_type)
            .bind(event.aggregate_type)
            .bind(event.aggregate_id)
            .bind(event.tenant_id)
            .bind(event.headers.as_deref())
            .bind(event.payload)
    };
    match (event.is_plain(), event.lease, event.occurred_at) {
        (true, None, None) => return plain(plain_one),
        (true, Some(_), Some(at)) => {
            return plain(plain_one_leased).bind(at).bind(event.locked_by()).bind(event.lease_length());
        }
        _ => {}
    }
    let query = sqlx::query(if event.lease.is_some() { one_leased } else { one }.sql())
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
        .bind(event.delay);
    match event.lease {
        Some(_) => query.bind(event.attempts()).bind(event.locked_by()).bind(event.lease_length()),
        None => query,
    }
}

fn many<'q>(statements: &Statements, events: &'q [Columns<'_>]) -> Query<'q> {
    let Statements { many, many_leased, plain_many, plain_many_leased, .. } = statements;
    let plain = |statement: &Plain| {
        sqlx::query(statement.of(events.iter().all(|e| e.is_new)).sql())
            .bind(events.iter().map(|e| e.id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.topic).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.event_type).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.aggregate_type).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.aggregate_id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.tenant_id).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.headers.as_deref()).collect::<Vec<_>>())
            .bind(events.iter().map(|e| e.payload).collect::<Vec<_>>())
    };
    if events.iter().all(Columns::is_plain) {
        let dates: Option<Vec<_>> = events.iter().map(|e| e.occurred_at).collect();
        match (lease_of_all(events), dates) {
            (Some(Some(lease)), Some(dates)) => {
                return plain(plain_many_leased).bind(dates).bind(lease.holder).bind(micros(lease.length));
            }
            (Some(None), _) if events.iter().all(|e| e.occurred_at.is_none()) => return plain(plain_many),
            _ => {}
        }
    }
    let leased = events.iter().any(|e| e.lease.is_some());
    let query = sqlx::query(if leased { many_leased } else { many }.sql())
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
        .bind(events.iter().map(|e| e.delay).collect::<Vec<_>>());
    match leased {
        true => query
            .bind(events.iter().map(Columns::attempts).collect::<Vec<_>>())
            .bind(events.iter().map(Columns::locked_by).collect::<Vec<_>>())
            .bind(events.iter().map(Columns::lease_length).collect::<Vec<_>>()),
        false => query,
    }
}

/// The lease that all of these are written with, or that none has any; `None` if it is not the same for all.
fn lease_of_all<'e>(events: &[Columns<'e>]) -> Option<Option<BirthLease<'e>>> {
    let first = events.first()?.lease;
    events.iter().all(|event| event.lease == first).then_some(first)
}

fn named(row: &sqlx::postgres::PgRow, table: &TableName) -> Result<Named> {
    let read = || Ok(Named { wanted: row.try_get(0)?, id: row.try_get(0)?, sequence: Some(row.try_get(1)?) });
    read().map_err(|error| errors::classify(error, table))
}
