//! Loops that deliver until they are stopped, for peers that leave the loop to their user.

use std::future::Future;

use anyhow::Result;
use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::contender::Running;

/// Tells a loop when to end.
#[derive(Clone)]
pub(super) struct Stopped(watch::Receiver<()>);

impl Stopped {
    pub(super) fn is(&self) -> bool {
        // The sender is dropped in order to stop.
        self.0.has_changed().is_err()
    }

    /// Ends when it is.
    pub(super) async fn wait(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// What a loop holds that is to be closed after it.
#[async_trait]
pub(super) trait Close: Send {
    async fn close(self: Box<Self>);
}

#[async_trait]
impl Close for sqlx::PgPool {
    async fn close(self: Box<Self>) {
        sqlx::PgPool::close(&self).await;
    }
}

#[async_trait]
impl Close for sqlx_0_8::PgPool {
    async fn close(self: Box<Self>) {
        sqlx_0_8::PgPool::close(&self).await;
    }
}

pub(super) struct Loops {
    stop: watch::Sender<()>,
    loops: JoinSet<Result<()>>,
    pool: Box<dyn Close>,
}

impl Loops {
    /// Starts as many, over the connections of one pool.
    pub(super) fn start<F>(loops: usize, pool: impl Close + 'static, each: impl Fn(Stopped) -> F) -> Self
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(());
        let loops = (0..loops).map(|_| each(Stopped(stopped.clone()))).collect();
        Self { stop, loops, pool: Box::new(pool) }
    }
}

#[async_trait]
impl Running for Loops {
    async fn stop(mut self: Box<Self>) -> Result<()> {
        drop(self.stop);
        while let Some(ended) = self.loops.join_next().await {
            ended??;
        }
        self.pool.close().await;
        Ok(())
    }
}
