//! Purging: delivered events past their retention are deleted in bounded batches, by one relay at a time.
//!
//! | setting | default | why |
//! |---|---|---|
//! | `retention` | 7 days | time enough to look; 0 deletes on delivery |
//! | `dead_retention` | for ever | a dead letter is somebody's work to do |
//! | `purge_interval` | 60 s | little at a time |

use std::sync::Arc;

use super::engine::Engine;
use super::outage::Doing;
use crate::error::Result;
use crate::store::{Ending, Lock, Purge, Session, WorkerId};

/// Rows of one statement: a short lock, a small transaction.
const BATCH: u32 = 1000;

/// Purges now and then until the relay stops.
pub(super) async fn run(engine: Arc<Engine>) {
    while engine.control.sleep(engine.settings.purge_every).await {
        match purge(&engine).await {
            Ok(rows) => {
                engine.outage.over(Doing::Purging);
                if rows > 0 {
                    tracing::info!(table = %engine.table, rows, "purged what was past its retention");
                }
            }
            Err(error) => engine.outage.say(Doing::Purging, &error),
        }
    }
}

/// Deletes until nothing is left to delete, if nobody else does; how many.
async fn purge(engine: &Engine) -> Result<u64> {
    let mut session = engine.store.session(&WorkerId::unique()).await?;
    let purged = purge_alone(engine, &mut *session).await;
    session.close().await;
    purged
}

async fn purge_alone(engine: &Engine, session: &mut dyn Session) -> Result<u64> {
    let ends = [
        (Ending::Delivered, Some(engine.settings.retention)),
        (Ending::Dead, engine.settings.dead_retention),
    ];
    let mut rows = 0;
    for (ending, retention) in ends {
        let Some(older_than) = retention else { continue };
        // Asked for before every batch: a lock that is a lease must not end in between.
        while session.try_lock(Lock::Purge).await? && !engine.control.now().stopping {
            let deleted =
                engine.in_time(engine.store.purge(Purge { ending, older_than, limit: BATCH })).await?;
            rows += deleted;
            if deleted < u64::from(BATCH) {
                break;
            }
        }
    }
    session.unlock(Lock::Purge).await?;
    Ok(rows)
}
