//! The listener and its connections: HTTP/1.1, so many at once, each for so long.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::{Served, limits, metrics, routes};
use crate::daemon::Daemon;
use crate::exit::Exit;
use crate::failure::Failure;

/// How long to wait where the system has no more connections to give.
const PAUSE: Duration = Duration::from_millis(100);

/// A running server. Dropping it stops it in the middle of whatever it does.
pub(crate) struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Server {
    /// Serves a daemon whose relays have not been started, so that its metrics count from their beginning; `None` if its
    /// settings say that nothing is to be served.
    pub(crate) async fn start(daemon: &Daemon) -> Result<Option<Self>, Failure> {
        Self::bind(daemon, false).await
    }

    /// The same; where somebody else has the port already, on any that is free.
    pub(crate) async fn start_anywhere(daemon: &Daemon) -> Result<Option<Self>, Failure> {
        Self::bind(daemon, true).await
    }

    async fn bind(daemon: &Daemon, anywhere: bool) -> Result<Option<Self>, Failure> {
        let settings = &daemon.settings().http;
        if !settings.enabled {
            return Ok(None);
        }
        let cannot = |error: std::io::Error| {
            let message = format!(
                "cannot serve HTTP on {} ({error}); choose another address with http.listen or OUTBOX_HTTP_LISTEN (port 0 \
                 takes any that is free), or serve nothing with --set http.enabled=false",
                settings.listen
            );
            Failure::new(Exit::Failed, message)
        };
        let listener = match TcpListener::bind(settings.listen).await {
            Err(error) if anywhere && error.kind() == ErrorKind::AddrInUse => {
                TcpListener::bind((settings.listen.ip(), 0)).await
            }
            listener => listener,
        };
        let listener = listener.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let handle = metrics::record()?;
        let served = Served::new(daemon, settings, handle.clone())?;
        let router = routes::all(&settings.metrics_path).router(served);
        let stop = watch::Sender::new(false);
        let stopped = stop.subscribe();
        let serving = tokio::spawn(async move {
            let upkeep = async {
                loop {
                    tokio::time::sleep(metrics::UPKEEP).await;
                    handle.run_upkeep();
                }
            };
            tokio::select! {
                () = serve(listener, router, stopped) => {}
                () = upkeep => {}
            }
        });
        Ok(Some(Self { address, stop, serving }))
    }

    /// Where it is served, with the port that was taken.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, and gives what is under way a few seconds.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        let _ = (&mut self.serving).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let mut connections = JoinSet::new();
    let mut stopped = stop.clone();
    let mut stopped = pin!(stopped.wait_for(|stop| *stop));
    loop {
        let accept = async {
            // Who is not accepted waits in the system's queue.
            let slot = Arc::clone(&slots).acquire_owned().await.ok();
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = accept => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let connection = connection(stream, router.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    stop.mark_unchanged();
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(limits::GRACE, all).await;
}

async fn connection(stream: TcpStream, router: Router, mut stop: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD)
        .max_headers(limits::HEADERS)
        .max_buf_size(limits::HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        _ = stop.wait_for(|stop| *stop) => None,
        () = tokio::time::sleep(limits::CONNECTION) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(limits::GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}
