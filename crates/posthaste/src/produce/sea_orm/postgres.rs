//! PostgreSQL through SeaORM.

use sea_orm::{DatabaseTransaction, DbBackend, QueryResult, Value};
use sqlx::Error as SqlxError;
use uuid::Uuid;

use super::{Checked, beneath, value};
use crate::error::Result;
use crate::event::Event;
use crate::produce::values::{self, Array, arrays, keys, row};
use crate::store::columns::Columns;
use crate::store::insert::{Insert, Named, insert};
use crate::store::postgres::errors::classify;
use crate::store::postgres::insert::Statements;
use crate::store::{Enqueued, PostgresInbox, PostgresStore, TableName};

pub(super) async fn insert_events(
    transaction: &DatabaseTransaction,
    store: &PostgresStore,
    events: &[Event],
) -> Result<Vec<Enqueued>> {
    let statements = store.insert_statements();
    let transaction = Checked::new(transaction, DbBackend::Postgres, &statements.table)?;
    insert(Client { transaction, statements }, events).await
}

pub(super) async fn receive(
    transaction: &DatabaseTransaction,
    inbox: &PostgresInbox,
    consumer: &str,
    id: Uuid,
) -> Result<bool> {
    let transaction = Checked::new(transaction, DbBackend::Postgres, &inbox.table)?;
    let recorded = transaction.execute(inbox.record.text(), [consumer.into(), id.into()]).await;
    Ok(recorded.map_err(|error| classify(error, &inbox.table))?.rows_affected() == 1)
}

struct Client<'c> {
    transaction: Checked<'c>,
    statements: &'c Statements,
}

impl Insert for Client<'_> {
    fn table(&self) -> &TableName {
        &self.statements.table
    }

    async fn insert_one(&mut self, event: &Columns<'_>) -> Result<Vec<Named>> {
        let values = row(event, values::Value::time).map(|one| value(one, Value::from));
        self.query(self.statements.one.text(), values, 0).await
    }

    async fn insert_many(&mut self, events: &[Columns<'_>]) -> Result<Vec<Named>> {
        let values = arrays(events).map(literal);
        self.query(self.statements.many.text(), values, 0).await
    }

    async fn find_first(&mut self, events: &[&Columns<'_>]) -> Result<Vec<Named>> {
        let values = keys(events).map(literal);
        self.query(self.statements.first.text(), values, 1).await
    }
}

impl Client<'_> {
    /// Rows of an id and its sequence; the wanted id is the first column, the found one may be the next.
    async fn query<const N: usize>(&self, sql: &str, values: [Value; N], found: usize) -> Result<Vec<Named>> {
        let read = |row: &QueryResult| {
            Ok(Named {
                wanted: row.try_get_by_index(0)?,
                id: row.try_get_by_index(found)?,
                sequence: Some(row.try_get_by_index(found + 1)?),
            })
        };
        let named = match self.transaction.query(sql, values).await {
            Ok(rows) => rows.iter().map(read).collect::<Result<_, _>>().map_err(beneath),
            Err(error) => Err(error),
        };
        named.map_err(|error: SqlxError| classify(error, &self.statements.table))
    }
}

/// An array as PostgreSQL writes it. SeaORM's own arrays cannot hold a NULL; as text, which the statements
/// cast to the array they want, every element can be one.
fn literal(array: Array<'_>) -> Value {
    let mut text = String::from("{");
    match array {
        Array::Id(ids) => join(&mut text, &ids, |text, id| text.push_str(&id.to_string())),
        Array::Text(texts) => join(&mut text, &texts, |text, element| match element {
            Some(element) => quote(text, element),
            None => text.push_str("NULL"),
        }),
        Array::Bytes(bytes) => join(&mut text, &bytes, |text, element| match element {
            Some(element) => hex(text, element),
            None => text.push_str("NULL"),
        }),
        Array::Int(ints) => join(&mut text, &ints, |text, int| text.push_str(&int.to_string())),
        Array::Long(longs) => join(&mut text, &longs, |text, long| text.push_str(&long.to_string())),
    }
    text.push('}');
    text.into()
}

fn join<T>(text: &mut String, elements: &[T], write: impl Fn(&mut String, &T)) {
    for (at, element) in elements.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        write(text, element);
    }
}

fn quote(text: &mut String, element: &str) {
    text.reserve(element.len() + 2);
    text.push('"');
    for character in element.chars() {
        if matches!(character, '"' | '\\') {
            text.push('\\');
        }
        text.push(character);
    }
    text.push('"');
}

fn hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    text.reserve(bytes.len() * 2 + 5);
    text.push_str(r#""\\x"#);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_written_with_every_element_quoted() {
        let texts = vec![Some(r#"{"a":"\n"}"#.into()), None, Some("NULL".into()), Some("".into())];
        assert_eq!(literal(Array::Text(texts)), r#"{"{\"a\":\"\\n\"}",NULL,"NULL",""}"#.into());
        assert_eq!(literal(Array::Bytes(vec![Some(&[0, 0xab]), None])), r#"{"\\x00ab",NULL}"#.into());
        assert_eq!(literal(Array::Int(vec![1, -2])), "{1,-2}".into());
    }
}
