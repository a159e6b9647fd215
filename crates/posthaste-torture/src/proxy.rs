//! A way to the database that can be cut, slowed and blocked: a listener on loopback for each client.
//!
//! | state | connections that there are | new ones |
//! |---|---|---|
//! | open | pass everything on | pass everything on |
//! | cut | end at once | end at once |
//! | slow | each piece waits | the same |
//! | hole | pass nothing on, and later all of it | are accepted, and pass nothing on |
//!
//! What went into a hole arrives when that ends, even if its sender has given up meanwhile: so do settlements and commits on a
//! real network, too late for their lease. A sender that is gone is told to the other side behind what it had sent.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How the way is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    #[default]
    Open,
    Cut,
    /// Each piece of what is sent, in either direction, waits for so long.
    Slow(Duration),
    Hole,
}

/// A listener in front of a server. It ends when it is dropped, with all connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Begins to listen for connections to this port of the loopback interface.
    pub async fn start(to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let state = watch::Sender::new(State::Open);
        let accepting = tokio::spawn(accept(listener, to, state.subscribe()));
        Ok(Self { port, state, accepting })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, state: State) {
        self.state.send_replace(state);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, to: u16, state: watch::Receiver<State>) {
    // Ends with what it holds when this task is aborted.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((client, _)) => {
                connections.spawn(connect(client, to, state.clone()));
            }
            // No file descriptor is left: others end soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn connect(client: TcpStream, to: u16, state: watch::Receiver<State>) {
    let mut watched = state.clone();
    let passing = async {
        past_the_hole(&mut state.clone()).await;
        // A server that is down refuses; so does this, by its end.
        let server = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, to))).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let there = pump(from_client, to_server, state.clone());
        let back = pump(from_server, to_client, state.clone());
        tokio::join!(there, back);
        io::Result::Ok(())
    };
    tokio::select! {
        _ = watched.wait_for(|state| *state == State::Cut) => {}
        _ = passing => {}
    }
}

/// Passes on what comes, until an end or an error, which is passed on as an end.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<State>) {
    let mut piece = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut piece).await.unwrap_or(0);
        past_the_hole(&mut state).await;
        if read == 0 {
            break;
        }
        let wait = match *state.borrow_and_update() {
            State::Slow(wait) => wait,
            State::Open | State::Cut | State::Hole => Duration::ZERO,
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if to.write_all(&piece[..read]).await.is_err() {
            break;
        }
    }
    to.shutdown().await.ok();
}

async fn past_the_hole(state: &mut watch::Receiver<State>) {
    // An error is the end of the proxy, which ends this task, too.
    state.wait_for(|state| *state != State::Hole).await.ok();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// A server that sends everything back.
    async fn echo() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.into_split();
                    tokio::io::copy(&mut read, &mut write).await.ok();
                });
            }
        });
        port
    }

    async fn client(proxy: &Proxy) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap()
    }

    async fn said_back(stream: &mut TcpStream, text: &str) -> io::Result<String> {
        stream.write_all(text.as_bytes()).await?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).await?;
        Ok(String::from_utf8(back).unwrap())
    }

    #[tokio::test]
    async fn it_passes_on_what_is_said() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        assert_eq!(said_back(&mut client(&proxy).await, "hello").await.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_cut_ends_what_there_is_and_what_comes() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut before = client(&proxy).await;
        said_back(&mut before, "hello").await.unwrap();
        proxy.set(State::Cut);
        assert!(said_back(&mut before, "there").await.is_err());
        assert!(said_back(&mut client(&proxy).await, "there").await.is_err());
        proxy.set(State::Open);
        assert_eq!(said_back(&mut client(&proxy).await, "again").await.unwrap(), "again");
    }

    #[tokio::test]
    async fn what_went_into_a_hole_arrives_after_it() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = client(&proxy).await;
        said_back(&mut stream, "hello").await.unwrap();
        proxy.set(State::Hole);
        stream.write_all(b"late").await.unwrap();
        let mut back = [0; 4];
        let silence = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut back)).await;
        assert!(silence.is_err(), "{silence:?}");
        proxy.set(State::Open);
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"late");
    }

    #[tokio::test]
    async fn the_server_gets_what_a_client_sent_into_a_hole_before_it_went() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().port()).await.unwrap();
        let mut stream = client(&proxy).await;
        let (mut server, _) = listener.accept().await.unwrap();
        proxy.set(State::Hole);
        stream.write_all(b"commit").await.unwrap();
        drop(stream);
        proxy.set(State::Open);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"commit");
    }
}
