//! MySQL and MariaDB through SeaORM.

use sea_orm::{DatabaseTransaction, DbBackend, ExecResult, QueryResult, Value};
use sqlx::Error as SqlxError;
use uuid::Uuid;

use super::{Checked, beneath, value};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::produce::values::{self, row};
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named, insert};
use crate::store::mysql::errors::{classify, is_duplicate};
use crate::store::mysql::insert::{Reading, Statements};
use crate::store::{Enqueued, MySqlInbox, MySqlStore, TableName};

pub(super) async fn insert_events(
    transaction: &DatabaseTransaction,
    store: &MySqlStore,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let statements = store.insert_statements();
    let transaction = Checked::new(transaction, DbBackend::MySql, &statements.table)?;
    insert(Client { transaction, statements }, events).await
}

pub(super) async fn receive(
    transaction: &DatabaseTransaction,
    inbox: &MySqlInbox,
    consumer: &str,
    id: Uuid,
) -> Result<bool> {
    let transaction = Checked::new(transaction, DbBackend::MySql, &inbox.table)?;
    match transaction.execute(inbox.record.text(), [consumer.into(), stored_id(id)]).await {
        Ok(_) => Ok(true),
        Err(error) if is_duplicate(&error) => Ok(false),
        Err(error) => Err(classify(error, &inbox.table)),
    }
}

struct Client<'c> {
    transaction: Checked<'c>,
    statements: &'c Statements,
}

impl Insert for Client<'_> {
    /// Well below the 65 535 values that MySQL takes.
    const MOST_ROWS: usize = 1000;

    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let written = self.transaction.execute(self.statements.one.text(), values_of(event)).await;
        Ok(self
            .unless_duplicate(written)?
            .map(|done| Named { sequence: sequence(&done), ..named(event) })
            .into_iter()
            .collect())
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let sql = self.statements.many(events.len());
        let written = self.transaction.execute(sql, events.iter().flat_map(values_of)).await;
        if self.unless_duplicate(written)?.is_some() {
            return Ok(events.iter().map(named).collect());
        }
        // One of them is a duplicate and none was written. Those whose first one is committed are not inserted again: under
        // REPEATABLE READ, MySQL locks the end of the table for each insert that fails, and two producers that insert behind
        // such locks are a deadlock.
        let committed = self.find(Reading::Committed, &events.iter().collect::<Vec<_>>()).await?;
        // What was read without locks may have been deleted since: such an event is inserted, and in its place of the batch.
        let seen = events.iter().filter(|event| committed.iter().any(|row| row.wanted == event.id));
        let committed = self.find(Reading::Locked, &seen.collect::<Vec<_>>()).await?;
        let mut named = Vec::with_capacity(events.len());
        for event in events.iter().filter(|event| committed.iter().all(|row| row.wanted != event.id)) {
            named.append(&mut self.insert_one(event).await?);
        }
        Ok(named)
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        self.find(Reading::Locked, events).await
    }
}

impl Client<'_> {
    /// Finds the row that has an event's id, else the one that has its dedupe key.
    async fn find(&mut self, reading: Reading, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let mut found = Vec::with_capacity(events.len());
        for event in events {
            let values =
                [stored_id(event.id), event.dedupe_key.into(), event.namespace.into(), event.topic.into()];
            let rows = self.transaction.query(self.statements.of(reading).text(), values).await;
            for row in rows.map_err(|error| self.error(error))? {
                found.push(self.found(event, &row)?);
            }
        }
        Ok(found)
    }

    fn unless_duplicate(&self, written: Result<ExecResult, SqlxError>) -> Result<Option<ExecResult>> {
        match written {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_duplicate(&error) => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    fn found(&self, event: &Columns<'_>, row: &QueryResult) -> Result<Named> {
        let read = || {
            let sequence = Some(row.try_get_by_index(1)?);
            Ok(Named { wanted: event.id, id: row.try_get_by_index(0)?, sequence })
        };
        read().map_err(|error| self.error(beneath(error)))
    }

    fn error(&self, error: SqlxError) -> Error {
        classify(error, &self.statements.table)
    }
}

fn values_of(event: &Columns<'_>) -> [Value; 16] {
    row(event, values::Value::time).map(|one| value(one, stored_id))
}

/// As the bytes of its column.
fn stored_id(id: Uuid) -> Value {
    id.into_bytes().to_vec().into()
}

fn named(event: &Columns<'_>) -> Named {
    Named { wanted: event.id, id: event.id, sequence: None }
}

fn sequence(done: &ExecResult) -> Option<i64> {
    i64::try_from(done.last_insert_id()).ok().filter(|sequence| *sequence > 0)
}
