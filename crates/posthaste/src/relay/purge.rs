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
    // Who has nothing to purge opens no session for it.
    let purges = purges(engine);
    if !engine.in_time(engine.store.has_old(&purges)).await? {
        return Ok(0);
    }
    failpoint!("purge.found");
    let mut session = engine.store.session(&WorkerId::unique()).await?;
    let purged = purge_alone(engine, &purges, &mut *session).await;
    session.close().await;
    purged
}

/// A batch of each kind that does not last for ever.
fn purges(engine: &Engine) -> Vec<Purge> {
    let ends = [
        (Ending::Delivered, Some(engine.settings.retention)),
        (Ending::Dead, engine.settings.dead_retention),
    ];
    let purge = |(ending, retention): (Ending, Option<_>)| {
        retention.map(|older_than| Purge { ending, older_than, limit: BATCH })
    };
    ends.into_iter().filter_map(purge).collect()
}

async fn purge_alone(engine: &Engine, purges: &[Purge], session: &mut dyn Session) -> Result<u64> {
    let mut rows = 0;
    for purge in purges {
        // Asked for before every batch: a lock that is a lease must not end in between.
        while session.try_lock(Lock::Purge).await? && !engine.control.now().stopping {
            failpoint!("purge.locked");
            let deleted = engine.in_time(engine.store.purge(*purge)).await?;
            failpoint!("purge.answered");
            rows += deleted;
            if deleted < u64::from(BATCH) {
                break;
            }
        }
    }
    session.unlock(Lock::Purge).await?;
    failpoint!("purge.unlocked");
    Ok(rows)
}
