//! Streams, through the public API only: the events of one aggregate arrive in the order of their commits, whatever
//! becomes of the relays, and whatever one event does.
//!
//! `history.rs` writes and judges histories; `fleet.rs` and `child.rs` are relays in this process and in others.

mod child;
mod cut;
mod fleet;
mod handover;
mod history;
mod housekeeping;
mod r#move;
mod order;
mod poison;
mod producers;
mod relaying;
mod routes;
mod stalls;

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::Mode;

use crate::harness::{Db, Kind, Setup};

const SECOND: Duration = Duration::from_secs(1);

/// A new stream with this many lanes.
async fn stream(kind: Kind, lanes: u16) -> Arc<Db> {
    let setup = Setup { mode: Some(Mode::stream(lanes).unwrap()), ..Setup::default() };
    Arc::new(Db::with(kind, setup).await)
}

/// Removes what the test made; everything else that had a part in it has ended.
async fn done(db: Arc<Db>) {
    Arc::into_inner(db).unwrap().drop_everything().await;
}
