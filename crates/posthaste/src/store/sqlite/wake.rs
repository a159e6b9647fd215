//! Notifications between processes: SQLite has none, its relays poll.

use sqlx::sqlite::SqlitePool;

use crate::error::Result;
use crate::store::{Notifications, TableName};

/// Nobody can be told.
pub(super) async fn notify(_pool: &SqlitePool, _table: &TableName) -> Result<()> {
    Ok(())
}

/// There is nothing to listen to.
pub(super) async fn listen(_pool: &SqlitePool, _table: &TableName) -> Result<Option<Box<dyn Notifications>>> {
    Ok(None)
}
