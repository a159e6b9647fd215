//! A relay of the library that cannot deliver what was placed, never comes to an end with what is slow, and delivers
//! everything else.

use std::time::{Duration, Instant};

use posthaste::relay::Relay;
use posthaste::sink::Delivery;
use posthaste::{Backend, Failure, Outbox};
use tokio::runtime::Runtime;

use crate::support::{Db, Kind};

/// The relay, and what it runs on.
pub(crate) struct Refusing {
    runtime: Runtime,
    relay: Relay,
}

impl Refusing {
    pub(crate) fn start(db: &Db) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let relay = runtime.block_on(relay(db));
        Self { runtime, relay }
    }

    pub(crate) fn stop(self) {
        self.runtime.block_on(self.relay.stop());
    }

    /// Leaves it as it is, with what it is at.
    pub(crate) fn abandon(self) {
        drop(self.relay);
        self.runtime.shutdown_background();
    }

    /// Lets it run until as many events as this are dead and nothing is left to be tried.
    pub(crate) fn until_dead(db: &Db, many: usize) {
        let relay = Self::start(db);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let dead = db.run(["dead", "list", "--json"]).exits(0).json().as_array().unwrap().len();
            let status = db.run(["status", "--json"]).exits(0).json();
            if dead == many && status["oldest_seconds"].is_null() && status["processing"] == 0 {
                break relay.stop();
            }
            assert!(Instant::now() < deadline, "{:?}: {dead} dead, {status}", db.kind);
        }
    }
}

async fn relay(db: &Db) -> Relay {
    let url = db.server();
    match db.kind {
        Kind::Postgres => refusing(Outbox::postgres(sqlx::PgPool::connect(&url).await.unwrap()), db).await,
        Kind::MySql | Kind::MariaDb => {
            refusing(Outbox::mysql(sqlx::MySqlPool::connect(&url).await.unwrap()), db).await
        }
        Kind::Sqlite => refusing(Outbox::sqlite(sqlx::SqlitePool::connect(&url).await.unwrap()), db).await,
    }
}

async fn refusing<B: Backend>(outbox: posthaste::produce::OutboxBuilder<B>, db: &Db) -> Relay {
    let outbox = outbox.table(db.table()).build().unwrap();
    let handler = |delivery: Delivery| async move {
        match delivery.event.topic() {
            "order.placed.v1" => Err(Failure::reject("no such \x1bcustomer")),
            "order.slow.v1" => std::future::pending().await,
            _ => Ok(()),
        }
    };
    outbox.relay().handler(handler).start().await.unwrap()
}
