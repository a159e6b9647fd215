//! Several relays in this process, each with connections of its own as in a process of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste::relay::RelayBuilder;
use posthaste::store::Store;
use posthaste::{Backoff, Relay};

use super::history::{History, Witness};
use crate::harness::Db;

/// Relays of one stream; their numbers are their places here.
pub struct Fleet {
    relays: Vec<(Relay, Arc<dyn Store>)>,
}

/// A relay that looks often for something to do, and does not wait long before it tries again.
pub fn brisk(relay: RelayBuilder) -> RelayBuilder {
    let millis = Duration::from_millis;
    relay.poll_interval(millis(5)).retry(Backoff::exponential(millis(10), millis(50)).max_attempts(3))
}

impl Fleet {
    /// This many relays, running.
    pub async fn start(db: &Db, history: &History, relays: usize) -> Self {
        Self::with(db, relays, |relay, n| {
            relay.handler(Witness::new(history, n).taking(Duration::from_micros(500))).batch(200)
        })
        .await
    }

    /// The same, made by this function from a brisk one.
    pub async fn with(db: &Db, relays: usize, make: impl Fn(RelayBuilder, usize) -> RelayBuilder) -> Self {
        let mut fleet = Self { relays: Vec::new() };
        for n in 0..relays {
            let store = db.second_store().await;
            let relay = make(brisk(Relay::on(Arc::clone(&store))), n).start().await.unwrap();
            fleet.relays.push((relay, store));
        }
        fleet
    }

    pub fn relay(&self, n: usize) -> &Relay {
        &self.relays[n].0
    }

    pub fn relays(&self) -> impl Iterator<Item = &Relay> {
        self.relays.iter().map(|(relay, _)| relay)
    }

    /// Stops and starts relays at random until this ends; in the end all run.
    pub async fn restless(&self, seed: u64, until: impl Future<Output = ()>) {
        let mut rng = fastrand::Rng::with_seed(seed);
        // Nothing is cancelled in the middle of a stop.
        let over = AtomicBool::new(false);
        let unrest = async {
            while !over.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(rng.u64(100..600))).await;
                let (relay, _) = &self.relays[rng.usize(..self.relays.len())];
                match relay.is_running() {
                    true => drop(relay.stop().await),
                    false => relay.start().await.unwrap(),
                }
            }
        };
        let until = async {
            until.await;
            over.store(true, Ordering::SeqCst);
        };
        tokio::join!(unrest, until);
        for (relay, _) in &self.relays {
            relay.start().await.unwrap();
        }
    }

    /// Stops all of them.
    pub async fn stop(self) {
        for (relay, store) in self.relays {
            let drained = relay.stop().await;
            assert!(drained.is_clean(), "{drained:?}");
            store.close().await;
        }
    }
}
