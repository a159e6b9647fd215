//! Wake-ups from other processes. They make the relay fast, never right: one that is lost costs a poll
//! interval. A relay of a stream that comes or goes sends one, too: others look at the lanes then.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::engine::Engine;
use super::outage::Pauses;

/// Listens for notifications until the relay stops; ends at once where the database has none.
pub(super) async fn run(engine: Arc<Engine>) {
    tokio::select! {
        () = engine.control.stopping() => {}
        () = listen(&engine) => {}
    }
}

async fn listen(engine: &Engine) {
    let mut pauses = Pauses::new(Arc::clone(&engine.settings.random));
    loop {
        match engine.store.listen().await {
            Ok(None) => return,
            Ok(Some(mut notifications)) => {
                pauses.reset();
                // Something may have come while nobody listened.
                engine.wake.notify_one();
                engine.hears.store(true, Ordering::Relaxed);
                loop {
                    match notifications.next().await {
                        Ok(()) => {
                            engine.wake.notify_one();
                            engine.heard.notify_one();
                        }
                        Err(error) => {
                            engine.hears.store(false, Ordering::Relaxed);
                            tracing::debug!(table = %engine.table, %error, "notifications were interrupted; polling goes on");
                            break;
                        }
                    }
                }
            }
            Err(error) => {
                tracing::debug!(table = %engine.table, %error, "no notifications for now; polling goes on");
            }
        }
        tokio::time::sleep(pauses.next()).await;
    }
}
