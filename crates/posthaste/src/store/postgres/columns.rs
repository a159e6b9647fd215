//! The columns that an event is read from.
//!
//! All rows of one answer have the same types. They are compared once with those that the migrations make; where they are
//! these, the values are read without comparing each of them again, which took as long as reading them.

use sqlx::postgres::{PgRow, PgTypeInfo};
use sqlx::{Column as _, Decode, Postgres, Row as _, Type, ValueRef as _};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::event::{DEFAULT_NAMESPACE, Event};
use crate::store::columns::{StoredColumns, undecodable};

/// The columns, in the order of [`decode`].
pub(super) const EVENT_COLUMNS: &str = "id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key, \
     content_type, headers, payload, payload_bytes, version, occurred_at, available_at";

/// What is known of the types of an answer's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Types {
    /// They are those of the migrations.
    AsMade,
    /// Somebody has changed one, and each value may be of another type than expected.
    Changed,
}

impl Types {
    /// Those of the answer that this row, which begins with [`EVENT_COLUMNS`], is of.
    pub(super) fn of(row: &PgRow) -> Self {
        let is = |at: usize, fits: fn(&PgTypeInfo) -> bool| {
            row.columns().get(at).is_some_and(|column| fits(column.type_info()))
        };
        let as_made = is(0, <Uuid as Type<Postgres>>::compatible)
            && (1..=8).all(|at| is(at, <str as Type<Postgres>>::compatible))
            && is(11, <[u8] as Type<Postgres>>::compatible)
            && is(12, <i32 as Type<Postgres>>::compatible)
            && (13..=14).all(|at| is(at, <OffsetDateTime as Type<Postgres>>::compatible));
        if as_made { Self::AsMade } else { Self::Changed }
    }
}

/// The event of a row that begins with [`EVENT_COLUMNS`], or why it cannot be read. What is mostly the same may be left out:
/// the default namespace, and the first version.
pub(super) fn decode(row: &PgRow, types: Types) -> Result<Event, String> {
    StoredColumns {
        id: column(row, types, 0, "id")?,
        topic: column(row, types, 1, "topic")?,
        event_type: column(row, types, 2, "event_type")?,
        aggregate_type: column(row, types, 3, "aggregate_type")?,
        aggregate_id: column(row, types, 4, "aggregate_id")?,
        namespace: column::<Option<_>>(row, types, 5, "namespace")?.unwrap_or(DEFAULT_NAMESPACE),
        tenant_id: column(row, types, 6, "tenant_id")?,
        dedupe_key: column(row, types, 7, "dedupe_key")?,
        content_type: column(row, types, 8, "content_type")?,
        headers: json(row, 9, "headers")?
            .map(|bytes| String::from_utf8(bytes).map_err(|error| undecodable("headers", error)))
            .transpose()?,
        payload: json(row, 10, "payload")?,
        payload_bytes: column(row, types, 11, "payload_bytes")?,
        version: column::<Option<_>>(row, types, 12, "version")?.unwrap_or(1),
        occurred_at: column(row, types, 13, "occurred_at")?,
        available_at: column(row, types, 14, "available_at")?,
    }
    .into_event()
}

fn column<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    types: Types,
    at: usize,
    name: &str,
) -> Result<T, String> {
    let value = match types {
        Types::AsMade => row.try_get_unchecked(at),
        Types::Changed => row.try_get(at),
    };
    value.map_err(|error| undecodable(name, error))
}

// `json` arrives as the text that was written; asking sqlx for text would be refused, parsing it wasted.
fn json(row: &PgRow, at: usize, name: &str) -> Result<Option<Vec<u8>>, String> {
    let value = row.try_get_raw(at).map_err(|error| undecodable(name, error))?;
    if value.is_null() {
        return Ok(None);
    }
    value.as_bytes().map(|bytes| Some(bytes.to_vec())).map_err(|error| undecodable(name, error))
}
