//! Sessions where something stands between them and what they hold.
//!
//! Rows of the contract: RE7.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use posthaste::ErrorKind;
use posthaste::store::{Lock, PostgresStore, Store};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Db, Kind, until, worker};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re7_the_lock_of_a_table_made_anew_is_another() {
    let db = Db::new(Kind::Postgres).await;
    let mut session = db.store().session(&worker()).await.unwrap();
    assert!(session.try_lock(Lock::Leader).await.unwrap());
    db.store().migrate_down(0).await.unwrap();
    db.store().migrate_up().await.unwrap();
    let mut other = db.store().session(&worker()).await.unwrap();
    assert!(other.try_lock(Lock::Leader).await.unwrap());
    let error = session.try_lock(Lock::Leader).await.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
    assert!(error.message().contains("made anew"), "{error}");
    other.check().await.unwrap();
    db.drop_everything().await;
}

/// Stands between two clients and the server, and gives each the other's connection when it is told to, as a pooler in
/// transaction mode may at any time.
struct Pooler {
    port: u16,
    swapped: Arc<AtomicUsize>,
}

impl Pooler {
    async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let swapped = Arc::new(AtomicUsize::new(0));
        let swap = Arc::clone(&swapped);
        tokio::spawn(async move {
            let (mut from, mut to) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                let client = listener.accept().await.unwrap().0;
                let connection = TcpStream::connect(&server).await.unwrap();
                let ((client_from, client_to), (server_from, server_to)) =
                    (client.into_split(), connection.into_split());
                from.push([client_from, server_from]);
                to.push([Arc::new(client_to), Arc::new(server_to)]);
            }
            for (at, [client, server]) in from.into_iter().enumerate() {
                let clients = [Arc::clone(&to[0][0]), Arc::clone(&to[1][0])];
                let servers = [Arc::clone(&to[0][1]), Arc::clone(&to[1][1])];
                tokio::spawn(pump(client, servers, at, Arc::clone(&swap)));
                tokio::spawn(pump(server, clients, at, Arc::clone(&swap)));
            }
        });
        Self { port, swapped }
    }
}

/// Passes on what is read to the one of two whose turn it is.
async fn pump(from: OwnedReadHalf, to: [Arc<OwnedWriteHalf>; 2], at: usize, swapped: Arc<AtomicUsize>) {
    let mut buffer = [0; 8192];
    loop {
        from.readable().await.unwrap();
        let mut rest = match from.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        let to = &to[at ^ swapped.load(Ordering::SeqCst)];
        while !rest.is_empty() {
            if to.writable().await.is_err() {
                return;
            }
            match to.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn re7_a_session_whose_connection_a_pooler_changes_finds_out() {
    let db = Db::new(Kind::Postgres).await;
    let direct: PgConnectOptions = db.url().parse().unwrap();
    let pooler = Pooler::before(format!("{}:{}", direct.get_host(), direct.get_port())).await;
    let options = direct.host("127.0.0.1").port(pooler.port);
    let pool = PgPoolOptions::new().connect_lazy_with(options);
    let store = PostgresStore::new(pool, "outbox".parse().unwrap());
    let (one, other) = (worker(), worker());
    let (one, other) = tokio::join!(store.session(&one), store.session(&other));
    let (mut one, mut other) = (one.unwrap(), other.unwrap());
    assert!(one.try_lock(Lock::Leader).await.unwrap());
    assert!(!other.try_lock(Lock::Leader).await.unwrap());
    one.check().await.unwrap();
    other.check().await.unwrap();

    pooler.swapped.store(1, Ordering::SeqCst);
    for session in [&mut one, &mut other] {
        let error = session.check().await.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unreachable, "{error}");
        assert!(error.message().contains("a pooler in between"), "{error}");
        assert!(session.try_lock(Lock::Leader).await.is_err());
    }
    drop((one, other));
    let mut third = db.store().session(&worker()).await.unwrap();
    until("its locks are free", async || third.try_lock(Lock::Leader).await.unwrap()).await;
    db.drop_everything().await;
}
