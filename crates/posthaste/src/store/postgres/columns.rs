//! The columns that an event is read from.
//!
//! All rows of one answer have the same types. They are compared once with those that the migrations make; where they are
//! these, the values are read without comparing each of them again, which took as long as reading them.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{Column as _, Decode, Postgres, Row as _, Type, ValueRef as _};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::event::{DEFAULT_NAMESPACE, Event};
use crate::store::columns::{StoredColumns, undecodable};

/// The columns, in the order of [`decode`].
pub(super) const EVENT_COLUMNS: &str = "id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key, \
     content_type, headers, payload, payload_bytes, version, occurred_at, available_at";

/// The columns of an event that is to be delivered, in the order of [`decode_delivery`]. What is as it mostly is, is left out: to
/// send a value and to read it takes longer than to compare it. A column of another type than these can be compared with is an
/// error of every claim, which says so, and no death of every event.
pub(super) const DELIVERY_COLUMNS: &str = "id, topic, event_type, aggregate_type, aggregate_id, \
     nullif(namespace::text COLLATE \"C\", 'default') AS namespace, tenant_id, dedupe_key, content_type, headers, payload, payload_bytes, \
     nullif(version, 1) AS version, nullif(occurred_at, created_at) AS occurred_at, nullif(available_at, created_at) AS available_at, \
     created_at, seq";

/// How many columns those are.
pub(super) const BEHIND_DELIVERY: usize = 17;

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
        let as_made = is::<Uuid>(row, 0)
            && (1..=8).all(|at| is::<str>(row, at))
            && is::<[u8]>(row, 11)
            && is::<i32>(row, 12)
            && (13..=14).all(|at| is::<OffsetDateTime>(row, at));
        if as_made { Self::AsMade } else { Self::Changed }
    }

    /// Those of the answer that this row, which begins with [`DELIVERY_COLUMNS`] and one of this type, is of.
    pub(super) fn of_delivery<Next: Type<Postgres>>(row: &PgRow) -> Self {
        let as_made = is::<OffsetDateTime>(row, 15) && is::<i64>(row, 16) && is::<Next>(row, BEHIND_DELIVERY);
        if as_made { Self::of(row) } else { Self::Changed }
    }

    /// A value, compared with what is expected only where that is not known.
    pub(super) fn get<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
        self,
        row: &'r PgRow,
        at: usize,
    ) -> sqlx::Result<T> {
        match self {
            Self::AsMade => row.try_get_unchecked(at),
            Self::Changed => row.try_get(at),
        }
    }
}

/// Whether this column of an answer is of that type.
fn is<T: Type<Postgres> + ?Sized>(row: &PgRow, at: usize) -> bool {
    row.columns().get(at).is_some_and(|column| T::compatible(column.type_info()))
}

/// The event of a row that begins with [`EVENT_COLUMNS`], or why it cannot be read.
pub(super) fn decode(row: &PgRow, types: Types) -> Result<Event, String> {
    read(row, types, None)
}

/// What a row that begins with [`DELIVERY_COLUMNS`] is of.
pub(super) struct Arrived {
    pub(super) id: Uuid,
    pub(super) sequence: i64,
    pub(super) created_at: OffsetDateTime,
    /// Or why it cannot be read.
    pub(super) event: Result<Arc<Event>, String>,
}

/// The event of a row that begins with [`DELIVERY_COLUMNS`].
pub(super) fn decode_delivery(row: &PgRow, types: Types) -> sqlx::Result<Arrived> {
    let created_at = types.get(row, 15)?;
    let event = read(row, types, Some(created_at)).map(Arc::new);
    let id = match &event {
        Ok(event) => event.id(),
        Err(_) => types.get(row, 0)?,
    };
    Ok(Arrived { id, sequence: types.get(row, 16)?, created_at, event })
}

/// From when on the event of a row that begins with [`DELIVERY_COLUMNS`] was to be delivered.
pub(super) fn available_at(
    row: &PgRow,
    types: Types,
    created_at: OffsetDateTime,
) -> sqlx::Result<OffsetDateTime> {
    Ok(types.get::<Option<_>>(row, 14)?.unwrap_or(created_at))
}

/// Where a row tells when it was created, times that are the same may be left out; so may the default namespace, and the first
/// version.
fn read(row: &PgRow, types: Types, created_at: Option<OffsetDateTime>) -> Result<Event, String> {
    let time = |at: usize, name: &str| {
        let said: Option<OffsetDateTime> = column(row, types, at, name)?;
        said.or(created_at).ok_or_else(|| undecodable(name, "it is null"))
    };
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
        occurred_at: time(13, "occurred_at")?,
        available_at: time(14, "available_at")?,
    }
    .into_event()
}

fn column<'r, T: Decode<'r, Postgres> + Type<Postgres>>(
    row: &'r PgRow,
    types: Types,
    at: usize,
    name: &str,
) -> Result<T, String> {
    types.get(row, at).map_err(|error| undecodable(name, error))
}

// `json` arrives as the text that was written; asking sqlx for text would be refused, parsing it wasted.
fn json(row: &PgRow, at: usize, name: &str) -> Result<Option<Vec<u8>>, String> {
    let value = row.try_get_raw(at).map_err(|error| undecodable(name, error))?;
    if value.is_null() {
        return Ok(None);
    }
    value.as_bytes().map(|bytes| Some(bytes.to_vec())).map_err(|error| undecodable(name, error))
}
