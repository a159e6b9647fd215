//! Purging of a table that is not relayed here; a relay does it for its own.
//!
//! One purges at a time, whoever it is: a lock of the database decides, the same that relays take.

use std::sync::Arc;

use posthaste::store::{Ending, Lock, Purge, Session, Store, WorkerId};
use tokio::sync::watch;

use super::{Daemon, Table};
use crate::config::settings::TableSettings;
use crate::failure::Failure;

/// Rows of one statement: a short lock, a small transaction.
const BATCH: u32 = 1000;

/// Purges now and then until the daemon stops.
pub(super) fn start(daemon: &Daemon, table: &Table) -> Result<(), Failure> {
    let Some(opened) = table.opened() else { return Ok(()) };
    let cleaner = Cleaner {
        store: Arc::clone(&opened.store),
        settings: table.settings().clone(),
        stopping: daemon.stopping(),
    };
    tokio::spawn(cleaner.run());
    Ok(())
}

struct Cleaner {
    store: Arc<dyn Store>,
    settings: TableSettings,
    stopping: watch::Receiver<bool>,
}

impl Cleaner {
    async fn run(mut self) {
        let table = self.settings.name.to_string();
        let mut failing = false;
        loop {
            match self.purge().await {
                Ok(rows) => {
                    failing = false;
                    if rows > 0 {
                        tracing::info!(table, rows, "purged what was past its retention");
                    }
                }
                // Said once, until it works again.
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(table, %error, "cannot purge; it is tried again");
                }
                Err(_) => {}
            }
            let interval = self.settings.purge_interval;
            if tokio::time::timeout(interval, self.stopping.wait_for(|stopping| *stopping)).await.is_ok() {
                return;
            }
        }
    }

    /// Deletes until nothing is left to delete, if nobody else does; how many.
    async fn purge(&self) -> posthaste::Result<u64> {
        let mut session = self.store.session(&WorkerId::unique()).await?;
        let purged = self.purge_alone(&mut *session).await;
        session.close().await;
        purged
    }

    async fn purge_alone(&self, session: &mut dyn Session) -> posthaste::Result<u64> {
        let ends = [
            (Ending::Delivered, Some(self.settings.retention)),
            (Ending::Dead, self.settings.dead_retention),
        ];
        let mut rows = 0;
        for (ending, retention) in ends {
            let Some(older_than) = retention else { continue };
            // Asked for before every batch: a lock that is a lease must not end in between.
            while !*self.stopping.borrow() && session.try_lock(Lock::Purge).await? {
                let deleted = self.store.purge(Purge { ending, older_than, limit: BATCH }).await?;
                rows += deleted;
                if deleted < u64::from(BATCH) {
                    break;
                }
            }
        }
        session.unlock(Lock::Purge).await?;
        Ok(rows)
    }
}
