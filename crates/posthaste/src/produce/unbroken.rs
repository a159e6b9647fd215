//! A future that goes on to its end, also if whoever waits for it is gone half-way.
//!
//! It is carried out where it is waited for, and handed to the runtime only if it is dropped before its end: a task of its own from the
//! beginning would have another thread woken for each of them.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

pub(super) struct Unbroken<T: Send + 'static> {
    /// `None` once it has ended.
    rest: Option<BoxFuture<'static, T>>,
    /// Where it goes on: whoever drops it may do so outside of any runtime.
    runtime: Handle,
}

impl<T: Send + 'static> Unbroken<T> {
    /// Of this future, which goes on in the runtime that this is called in.
    pub(super) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { rest: Some(Box::pin(future)), runtime: Handle::current() }
    }
}

impl<T: Send + 'static> Future for Unbroken<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // One that panics is not to go on.
        let Some(mut rest) = self.rest.take() else { return Poll::Pending };
        let polled = rest.as_mut().poll(cx);
        if polled.is_pending() {
            self.rest = Some(rest);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Unbroken<T> {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.runtime.spawn(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn en6_what_nobody_waits_for_any_more_goes_on_to_its_end() {
        let (go_on, waits) = oneshot::channel::<()>();
        let (ends, ended) = oneshot::channel();
        let mut unbroken = Unbroken::new(async move {
            waits.await.unwrap();
            ends.send(()).unwrap();
        });
        assert!((&mut unbroken).now_or_never().is_none());
        // Where there is no runtime, as in a destructor that other code runs.
        std::thread::spawn(|| drop(unbroken)).join().unwrap();
        go_on.send(()).unwrap();
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn en6_what_has_ended_or_panicked_does_not_go_on() {
        let mut ends = Unbroken::new(async { 1 });
        assert_eq!((&mut ends).await, 1);
        assert!(ends.rest.is_none());
        let mut panics = Unbroken::new(async { panic!("on purpose") });
        assert!(AssertUnwindSafe(&mut panics).catch_unwind().await.is_err());
        assert!(panics.rest.is_none());
    }
}
