//! Notifications between processes: MySQL and MariaDB have none, their relays poll.

use sqlx::mysql::MySqlPool;

use crate::error::Result;
use crate::store::{Notifications, TableName};

/// Nobody can be told.
pub(super) async fn notify(_pool: &MySqlPool, _table: &TableName) -> Result<()> {
    Ok(())
}

/// There is nothing to listen to.
pub(super) async fn listen(_pool: &MySqlPool, _table: &TableName) -> Result<Option<Box<dyn Notifications>>> {
    Ok(None)
}
