//! Connections that are cut beside a relay: it takes its lanes again and reads anew what it has in its memory still. Old and new
//! copies of an event are under way at once, and the first deliveries of each aggregate are in order all the same.
//!
//! Rows of the contract: SM1, RE11.

use std::sync::Arc;
use std::time::Duration;

use posthaste::store::{Mode, Status};

use super::fleet::Fleet;
use super::history::{History, Witness};
use super::producers::versions;
use crate::harness::{Db, Kind, MINUTE, PrivateServer, Setup, until};

databases!(sm1_order_while_connections_are_cut, by_kind: postgres Postgres, mysql MySql, mariadb MariaDb);

async fn sm1_order_while_connections_are_cut(kind: Kind) {
    const AGGREGATES: [&str; 3] = ["a", "b", "c"];
    let server = PrivateServer::start(kind).await;
    let setup = Setup { mode: Some(Mode::stream(2).unwrap()), ..Setup::default() };
    let db = Arc::new(Db::on_with(&server, setup).await);
    let history = History::default();
    let fleet = Fleet::with(&db, 1, |relay, n| {
        relay.handler(Witness::new(&history, n).taking(Duration::from_millis(2))).batch(8).capacity(64)
    })
    .await;
    for round in 0..40 {
        for aggregate in AGGREGATES {
            versions(&db, &history, aggregate, round * 40 + 1..=round * 40 + 40).await;
        }
        // In the middle of them.
        history.wait_for(round as usize * 120 + 30, MINUTE).await;
        server.kill_connections().await;
    }
    history.wait_for(history.commits(), MINUTE).await;
    until("nothing is delivered again any more", async || db.count(Status::Delivered).await == 4800).await;
    fleet.stop().await;
    println!("{}", history.assert_clean());
    assert_eq!(db.count(Status::Dead).await, 0);
}
