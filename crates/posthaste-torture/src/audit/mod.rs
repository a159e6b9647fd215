//! The database's own record of who held what: triggers on the outbox tables, of which posthaste knows nothing.
//!
//! Every change of a lease, an outcome or a count of attempts is written to the table `torture_audit`, in the transaction
//! of the change: what is rolled back, or lost by a server that crashes, was never said. Which changes those are is in
//! `trigger.rs`, the same for all databases; how a trigger is written down is in a file for each.
//!
//! | column | PostgreSQL | MariaDB and MySQL | SQLite |
//! |---|---|---|---|
//! | `number` | an identity | `UUID_SHORT()`: numbers that grow, without the lock of an auto-increment | a rowid |
//! | `at` | the clock at the end of the statement | the clock at its beginning | the same, in milliseconds |
//! | `session` | `application_name` | the account | empty |
//!
//! So a relay needs an application name or an account of its own, and the same for all its connections. Triggers of
//! PostgreSQL find the tables by the relay's `search_path`, which has to be that of whoever installed them.
//!
//! At the end of a run [`collect`] reads that table, the rows of the outbox tables as their views show them, and the
//! business rows of `torture_business`, in pages, and writes them to the history.

mod connection;
mod mysql;
mod postgres;
mod sqlite;
mod trigger;

use anyhow::{Context as _, Result, ensure};
use sqlx::{ColumnIndex, Decode, FromRow, Row as SqlRow, Type};
use uuid::Uuid;

use crate::history::{Change, Leased, Record, Row, State, Writer};
use connection::Connection;
use trigger::{Trigger, triggers};

/// So many rows are read at once.
const PAGE: u32 = 10_000;

/// An outbox table of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Its name, without a schema.
    pub name: String,
    /// Whether it is a stream, with lanes.
    pub stream: bool,
}

/// What differs between the databases.
struct Dialect {
    /// The table of the record.
    create: &'static str,
    /// What makes a trigger.
    trigger: fn(&Trigger) -> Vec<String>,
    /// What only this database has of a stream: tables, and whether its lanes have a note.
    places: bool,
    /// A column with a time, as microseconds since 1970.
    micros: fn(&str) -> String,
    /// The event's id as text.
    event: &'static str,
    /// The status of a table's rows: the key of a page, the id, the attempts and the status, after `{after}`.
    rows: &'static str,
    /// The key before all others.
    first_row: &'static str,
}

const BUSINESS: &str = "
SELECT id, outbox, aggregate, number FROM torture_business WHERE id > '{after}' ORDER BY id LIMIT {page}";

/// Puts the triggers on these tables of the database at this URL. They are there already.
pub async fn install(url: &str, tables: &[Table]) -> Result<()> {
    let mut connection = Connection::open(url).await?;
    let dialect = connection.dialect();
    connection.execute(dialect.create.to_owned()).await.context("the table of the record")?;
    for table in tables {
        check_name(&table.name)?;
        for trigger in triggers(table, dialect.places) {
            for statement in (dialect.trigger)(&trigger) {
                connection
                    .execute(statement)
                    .await
                    .with_context(|| format!("the trigger {}", trigger.name))?;
            }
        }
    }
    connection.close().await
}

/// Writes to the history what the triggers recorded, and what these tables and the business rows are like now.
pub async fn collect(url: &str, tables: &[Table], writer: &Writer) -> Result<()> {
    let mut connection = Connection::open(url).await?;
    changes(&mut connection, writer).await.context("the record")?;
    for table in tables {
        check_name(&table.name)?;
        rows(&mut connection, &table.name, writer)
            .await
            .with_context(|| format!("the rows of {}", table.name))?;
    }
    business(&mut connection, writer).await.context("the business rows")?;
    connection.close().await
}

/// Names are put into SQL as they are.
fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    ensure!(!name.is_empty() && name.chars().all(fits), "{name:?} is no name for a table of a run");
    Ok(())
}

async fn changes(connection: &mut Connection, writer: &Writer) -> Result<()> {
    let Dialect { micros, event, .. } = connection.dialect();
    let [at, before, after] = ["at", "until_before", "until_after"].map(micros);
    let mut last = 0;
    loop {
        let page: Vec<Audited> = connection
            .rows(format!(
                "SELECT number, {at}, outbox, {event}, lane, session,
                        holder_before, {before}, attempts_before, outcome_before, fence_before, position_before, gone_before,
                        holder_after, {after}, attempts_after, outcome_after, fence_after, position_after, gone_after
                   FROM torture_audit WHERE number > {last} ORDER BY number LIMIT {PAGE}"
            ))
            .await?;
        let Some(audited) = page.last() else { return Ok(()) };
        last = audited.number;
        for audited in page {
            writer.write(&Record::Change(audited.into_change()?))?;
        }
    }
}

async fn rows(connection: &mut Connection, table: &str, writer: &Writer) -> Result<()> {
    let Dialect { rows, first_row, .. } = connection.dialect();
    let sql = rows.replace("{table}", table).replace("{page}", &PAGE.to_string());
    let mut last = (*first_row).to_owned();
    loop {
        let page: Vec<(String, String, i64, String)> = connection.rows(sql.replace("{after}", &last)).await?;
        let Some((key, ..)) = page.last() else { return Ok(()) };
        last.clone_from(key);
        for (_, id, attempts, status) in page {
            let outcome = matches!(status.as_str(), "delivered" | "dead").then_some(status);
            let row = Row { table: table.to_owned(), event: Uuid::try_parse(&id)?, attempts, outcome };
            writer.write(&Record::Row(row))?;
        }
    }
}

async fn business(connection: &mut Connection, writer: &Writer) -> Result<()> {
    let sql = BUSINESS.replace("{page}", &PAGE.to_string());
    let mut last = String::new();
    loop {
        let page: Vec<(String, String, String, i64)> = connection.rows(sql.replace("{after}", &last)).await?;
        let Some((id, ..)) = page.last() else { return Ok(()) };
        // As text it can hold anything.
        last = Uuid::try_parse(id)?.to_string();
        for (id, table, aggregate, number) in page {
            writer.write(&Record::Business { event: Uuid::try_parse(&id)?, table, aggregate, number })?;
        }
    }
}

/// A row of the record.
struct Audited {
    number: i64,
    at: i64,
    outbox: String,
    event: Option<String>,
    lane: Option<i64>,
    session: String,
    before: State,
    after: State,
}

impl Audited {
    fn into_change(self) -> Result<Change> {
        let Self { number, at, outbox: table, event, lane, session, before, after } = self;
        let of = match (event, lane) {
            (Some(event), _) => Leased::Event(Uuid::try_parse(&event)?),
            (None, Some(lane)) => Leased::Lane(lane),
            (None, None) => anyhow::bail!("change {number} is neither of an event nor of a lane"),
        };
        Ok(Change { at, number, table, of, session, before, after })
    }
}

impl<'r, R> FromRow<'r, R> for Audited
where
    R: SqlRow,
    usize: ColumnIndex<R>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    fn from_row(row: &'r R) -> sqlx::Result<Self> {
        let state = |first: usize| -> sqlx::Result<State> {
            Ok(State {
                holder: row.try_get(first)?,
                until: row.try_get(first + 1)?,
                attempts: row.try_get(first + 2)?,
                outcome: row.try_get(first + 3)?,
                fence: row.try_get(first + 4)?,
                position: row.try_get(first + 5)?,
                gone: row.try_get::<i64, _>(first + 6)? == 1,
            })
        };
        Ok(Self {
            number: row.try_get(0)?,
            at: row.try_get(1)?,
            outbox: row.try_get(2)?,
            event: row.try_get(3)?,
            lane: row.try_get(4)?,
            session: row.try_get(5)?,
            before: state(6)?,
            after: state(13)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pr2_a_name_that_could_be_more_than_a_name_is_refused() {
        assert!(check_name("queue_http2").is_ok());
        for name in ["", "a; DROP TABLE b", "a'b", "a.b", "Ä"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
