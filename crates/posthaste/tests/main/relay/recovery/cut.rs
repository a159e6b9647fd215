//! Connections that break alone, or fall silent, and rows that others hold.
//!
//! Rows of the contract: RE2, RE3, RE11.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste::sink::Delivery;
use posthaste::store::{Status, connect};
use posthaste::{Failure, Handler, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use crate::harness::{Db, Kind, Recorder, event, until};

const SECOND: Duration = Duration::from_secs(1);

conformance_servers!(re2_a_session_that_breaks_alone_takes_no_events_from_a_live_relay);

databases!(
    re3_a_row_that_a_producer_holds_keeps_no_other_from_being_settled, by_kind: mysql MySql, mariadb MariaDb
);
databases!(re11_connections_that_fall_silent_are_given_up, with_db: postgres Postgres, mysql MySql, mariadb MariaDb);

streams!(; servers:
    re2_a_session_that_breaks_alone_takes_no_events_from_a_live_relay,
    re11_connections_that_fall_silent_are_given_up,
);

/// The relay lives and renews its leases; only its session is ended by the server.
async fn re2_a_session_that_breaks_alone_takes_no_events_from_a_live_relay(db: &Db) {
    let recorder = Recorder::default().taking(12 * SECOND);
    let one = Relay::on(db.second_store().await).handler(recorder.clone()).start().await.unwrap();
    let present = |relay: &Relay| relay.status().worker.unwrap().ends_with('~');
    until("its session is known", async || present(&one)).await;
    db.enqueue_numbers("a", 0..20).await;
    until("all have begun", async || recorder.begun().len() == 20).await;
    let other = Relay::on(db.second_store().await).handler(recorder.clone()).start().await.unwrap();
    let worker = one.status().worker.unwrap();
    let session = db.session_of(&worker).await.unwrap();
    assert!(db.kill(session).await);
    recorder.wait_for(20).await;
    one.stop().await;
    other.stop().await;
    assert_eq!((recorder.overlaps(), recorder.repeats()), (0, 0));
}

/// A producer that met a duplicate of an event in dispatch holds its row; all others are settled.
async fn re3_a_row_that_a_producer_holds_keeps_no_other_from_being_settled(kind: Kind) {
    let db = Db::new(kind).await;
    let first = event("held", 0).build().unwrap();
    let mut tx = db.begin().await;
    tx.enqueue(&db, first.clone()).await.unwrap();
    tx.commit().await;
    // Written before the duplicate: under MySQL's default isolation, a producer that met one keeps others from inserting.
    db.enqueue_numbers("b", 0..1500).await;
    let (entered, mut entering) = mpsc::unbounded_channel();
    let go = Arc::new(Semaphore::new(0));
    let recorder = Recorder::default();
    let handler = {
        let (go, recorder) = (Arc::clone(&go), recorder.clone());
        move |delivery: Delivery| {
            let (go, recorder, entered) = (Arc::clone(&go), recorder.clone(), entered.clone());
            async move {
                entered.send(()).ok();
                go.acquire().await.unwrap().forget();
                recorder.handle(&delivery).await?;
                Ok::<_, Failure>(())
            }
        }
    };
    let relay = db.relay().handler(handler).start().await.unwrap();
    entering.recv().await.unwrap();
    let mut slow = db.begin().await;
    assert!(slow.enqueue(&db, first.clone()).await.unwrap().duplicate);
    go.add_permits(1501);
    recorder.wait_for(1501).await;
    until("the others are settled", async || db.count(Status::Delivered).await == 1500).await;
    slow.commit().await;
    until("so is the one that was held", async || db.count(Status::Delivered).await == 1501).await;
    relay.stop().await;
    assert_eq!(recorder.repeats(), 0);
    db.drop_everything().await;
}

/// Passes on what goes between the relay and the server; connections of an earlier era are swallowed.
async fn proxy(listener: TcpListener, server: String, era: Arc<AtomicUsize>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(&server).await.unwrap();
        let born = era.load(Ordering::SeqCst);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        for (mut from, mut to) in [(from_client, to_server), (from_server, to_client)] {
            let era = Arc::clone(&era);
            tokio::spawn(async move {
                let mut buffer = vec![0; 65_536];
                loop {
                    match from.read(&mut buffer).await {
                        Ok(read) if read > 0 => {
                            if era.load(Ordering::SeqCst) == born
                                && to.write_all(&buffer[..read]).await.is_err()
                            {
                                return;
                            }
                        }
                        // The end of one side is not passed on, either.
                        _ => std::future::pending::<()>().await,
                    }
                }
            });
        }
    }
}

/// The network swallows what is under way on every connection, without a word; new ones work.
async fn re11_connections_that_fall_silent_are_given_up(db: &Db) {
    let url = db.url();
    let (before, rest) = url.split_once('@').unwrap();
    let (server, after) = rest.split_once('/').unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let through = format!("{before}@{}/{after}", listener.local_addr().unwrap());
    let era = Arc::new(AtomicUsize::new(0));
    tokio::spawn(proxy(listener, server.to_owned(), Arc::clone(&era)));
    let store = connect(&through, &db.table()).await.unwrap();
    let recorder = Recorder::default();
    let relay = Relay::on(store.dedicated())
        .handler(recorder.clone())
        .lease(12 * SECOND)
        .timeout(4 * SECOND)
        .start()
        .await
        .unwrap();
    db.enqueue_numbers("a", 0..10).await;
    recorder.wait_for(10).await;
    era.fetch_add(1, Ordering::SeqCst);
    db.enqueue_numbers("a", 10..20).await;
    recorder.wait_for(20).await;
    until("all is well again", async || {
        relay.status().database.is_none() && db.count(Status::Delivered).await == 20
    })
    .await;
    relay.stop().await;
}
