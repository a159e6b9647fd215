//! SQLite through SeaORM.

use sea_orm::{DatabaseTransaction, DbBackend, QueryResult, Value};
use sqlx::Error as SqlxError;
use uuid::Uuid;

use super::{Checked, beneath, value};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::produce::values::{self, row};
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named, insert};
use crate::store::sqlite::errors::classify;
use crate::store::sqlite::insert::Statements;
use crate::store::{Enqueued, SqliteInbox, SqliteStore, TableName};

pub(super) async fn insert_events(
    transaction: &DatabaseTransaction,
    store: &SqliteStore,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let statements = store.insert_statements();
    let transaction = Checked::new(transaction, DbBackend::Sqlite, &statements.table)?;
    insert(Client { transaction, statements }, events).await
}

pub(super) async fn receive(
    transaction: &DatabaseTransaction,
    inbox: &SqliteInbox,
    consumer: &str,
    id: Uuid,
) -> Result<bool> {
    let transaction = Checked::new(transaction, DbBackend::Sqlite, &inbox.table)?;
    let recorded = transaction.execute(inbox.record.text(), [consumer.into(), stored_id(id)]).await;
    Ok(recorded.map_err(|error| classify(error, &inbox.table))?.rows_affected() == 1)
}

struct Client<'c> {
    transaction: Checked<'c>,
    statements: &'c Statements,
}

impl Insert for Client<'_> {
    /// Well below the 32 766 values that SQLite takes.
    const MOST_ROWS: usize = 500;

    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let rows = self.transaction.query(self.statements.one.text(), values_of(event)).await;
        self.named(rows, None)
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let sql = self.statements.many(events.len());
        let rows = self.transaction.query(sql, events.iter().flat_map(values_of)).await;
        self.named(rows, None)
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let mut found = Vec::with_capacity(events.len());
        for event in events {
            let values =
                [stored_id(event.id), event.namespace.into(), event.topic.into(), event.dedupe_key.into()];
            let rows = self.transaction.query(self.statements.first.text(), values).await;
            found.append(&mut self.named(rows, Some(event.id))?);
        }
        Ok(found)
    }
}

impl Client<'_> {
    fn named(&self, rows: Result<Vec<QueryResult>, SqlxError>, wanted: Option<Uuid>) -> Result<Vec<Named>> {
        let read = |row: &QueryResult| {
            let text: String = row.try_get_by_index(0).map_err(beneath)?;
            let id = Uuid::try_parse(&text).map_err(|error| SqlxError::Decode(error.into()))?;
            let sequence = Some(row.try_get_by_index(1).map_err(beneath)?);
            Ok(Named { wanted: wanted.unwrap_or(id), id, sequence })
        };
        let rows = rows.map_err(|error| self.error(error))?;
        rows.iter().map(read).collect::<Result<_, _>>().map_err(|error| self.error(error))
    }

    fn error(&self, error: SqlxError) -> Error {
        classify(error, &self.statements.table)
    }
}

fn values_of(event: &Columns<'_>) -> [Value; 16] {
    row(event, values::Value::micros).map(|one| value(one, stored_id))
}

/// As the text of its column.
fn stored_id(id: Uuid) -> Value {
    id.hyphenated().to_string().into()
}
