//! A connection to look with, for no longer than is allowed.
//!
//! SQLite has nobody to end a statement but itself: it asks, every so many steps, whether it may go on.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::Sqlite;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Steps between two questions: a small part of a millisecond.
const STEPS: i32 = 1000;

/// A look at the table. Dropping it ends what it still does.
pub(super) struct Look {
    connection: OwnedMutexGuard<PoolConnection<Sqlite>>,
    /// Whether nobody looks any more, where there is a limit.
    over: Option<Arc<AtomicBool>>,
    pub(super) began: Instant,
}

impl Look {
    /// All of it may take this long.
    pub(super) async fn begin(pool: &SqlitePool, within: Option<Duration>) -> sqlx::Result<Self> {
        let connection = Arc::new(Mutex::new(pool.acquire().await?)).lock_owned().await;
        let mut look = Self { connection, over: None, began: Instant::now() };
        if let Some(limit) = within {
            let over = Arc::new(AtomicBool::new(false));
            // Whatever happens from here on, it is taken off again.
            look.over = Some(Arc::clone(&over));
            let began = look.began;
            let may_go_on = move || !over.load(Ordering::Relaxed) && began.elapsed() < limit;
            look.connection.lock_handle().await?.set_progress_handler(STEPS, may_go_on);
        }
        Ok(look)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let (Some(over), Ok(runtime)) = (self.over.take(), Handle::try_current()) else { return };
        over.store(true, Ordering::Relaxed);
        // The connection goes back to its pool without the limit, and not before: this task is the last to have it.
        let connection = Arc::clone(OwnedMutexGuard::mutex(&self.connection));
        runtime.spawn(async move {
            let mut connection = connection.lock().await;
            // One that cannot be locked is broken, which its pool finds out.
            if let Ok(mut handle) = connection.lock_handle().await {
                handle.remove_progress_handler();
            }
        });
    }
}

impl Deref for Look {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Look {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}
