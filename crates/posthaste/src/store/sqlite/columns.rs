//! The columns that an event is read from.

use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::time_of;
use crate::event::Event;
use crate::store::columns::{StoredColumns, undecodable};

/// The columns, in the order of [`decode`].
pub(super) const EVENT_COLUMNS: &str = "id, topic, event_type, aggregate_type, aggregate_id, namespace, tenant_id, dedupe_key, \
     content_type, headers, payload, payload_bytes, version, occurred_at, available_at";

/// The event of a row that begins with [`EVENT_COLUMNS`], or why it cannot be read.
pub(super) fn decode(row: &SqliteRow) -> Result<Event, String> {
    fn column<'r, T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>>(
        row: &'r SqliteRow,
        at: usize,
        name: &str,
    ) -> Result<T, String> {
        row.try_get(at).map_err(|error| undecodable(name, error))
    }
    let id: &str = column(row, 0, "id")?;
    let time = |at, name| time_of(column(row, at, name)?).map_err(|error| undecodable(name, error));
    StoredColumns {
        id: Uuid::try_parse(id).map_err(|error| undecodable("id", error))?,
        topic: column(row, 1, "topic")?,
        event_type: column(row, 2, "event_type")?,
        aggregate_type: column(row, 3, "aggregate_type")?,
        aggregate_id: column(row, 4, "aggregate_id")?,
        namespace: column(row, 5, "namespace")?,
        tenant_id: column(row, 6, "tenant_id")?,
        dedupe_key: column(row, 7, "dedupe_key")?,
        content_type: column(row, 8, "content_type")?,
        headers: column(row, 9, "headers")?,
        payload: column::<Option<String>>(row, 10, "payload")?.map(String::into_bytes),
        payload_bytes: column(row, 11, "payload_bytes")?,
        version: column(row, 12, "version")?,
        occurred_at: time(13, "occurred_at")?,
        available_at: time(14, "available_at")?,
    }
    .into_event()
}
