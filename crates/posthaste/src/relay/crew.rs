//! The crew: what hands events on from one to the next runs as one task.
//!
//! Claiming, dispatching and settling each have little to do for an event, and all of them have to do with the same memory. As tasks
//! of their own they were spread over the threads of the runtime, and each processor had to fetch from the other what that had just
//! written: the same work took half as long again. As one task they are wherever that is.
//!
//! Sinks are not of the crew: a publish is a task of its own, so that as many are under way as there is anything to run them.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::task::AtomicWaker;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::dispatch::{caught, panic_text};

/// Something to be carried out.
pub(super) type Errand = BoxFuture<'static, ()>;

/// Has errands carried out.
#[derive(Debug, Clone)]
pub(super) struct Crew {
    table: Arc<str>,
    errands: mpsc::UnboundedSender<Errand>,
}

impl Crew {
    /// The crew of a table's relay, and those who are to [work](Hands::work) for it.
    pub(super) fn new(table: Arc<str>) -> (Self, Hands) {
        let (errands, new) = mpsc::unbounded_channel();
        (
            Self { table: Arc::clone(&table), errands },
            Hands { table, new, under_way: FuturesUnordered::new() },
        )
    }

    /// Has this carried out, by the crew for as long as it works. It panics for itself alone.
    pub(super) fn go(&self, errand: Errand) -> Begun {
        let (begins, begun) = oneshot::channel();
        let (mut errand, mut begins) = (guarded(Arc::clone(&self.table), errand), Some(begins));
        let errand: Errand = Box::pin(std::future::poll_fn(move |cx| {
            let polled = errand.poll_unpin(cx);
            drop(begins.take());
            polled
        }));
        if let Err(mpsc::error::SendError(errand)) = self.errands.send(errand) {
            alone(errand);
        }
        Begun(begun)
    }
}

/// Tells when an errand is begun, so that its question is under way before whoever asked goes on.
pub(super) struct Begun(oneshot::Receiver<Infallible>);

impl Begun {
    /// Waits until it has been begun, or will never be.
    pub(super) async fn wait(self) {
        let _ = self.0.await;
    }
}

fn guarded(table: Arc<str>, errand: Errand) -> Errand {
    Box::pin(async move {
        if let Err(panic) = caught(errand).await {
            tracing::error!(%table, "a part of the relay {}", panic_text(&*panic));
        }
    })
}

/// Those who carry out errands.
pub(super) struct Hands {
    table: Arc<str>,
    new: mpsc::UnboundedReceiver<Errand>,
    under_way: FuturesUnordered<Errand>,
}

/// How often they go round before the runtime gets a turn.
const ROUNDS: usize = 16;

impl Hands {
    /// Works until all of these have ended; says when the first of them has. One that panics has ended, and the others go on.
    pub(super) async fn work(mut self, parts: Vec<Errand>, first_ended: impl FnOnce()) {
        let guarded = |part| guarded(Arc::clone(&self.table), part);
        let mut parts: FuturesUnordered<Errand> = parts.into_iter().map(guarded).collect();
        let mut first_ended = Some(first_ended);
        let bell = Arc::new(Bell::default());
        let rings = Waker::from(Arc::clone(&bell));
        std::future::poll_fn(|cx| {
            bell.begin(cx.waker());
            let mut ended = Poll::Pending;
            for _ in 0..ROUNDS {
                bell.hush();
                let cx = &mut Context::from_waker(&rings);
                self.go_on(cx);
                while let Poll::Ready(part) = parts.poll_next_unpin(cx) {
                    if let Some(first_ended) = first_ended.take() {
                        first_ended();
                    }
                    if part.is_none() {
                        ended = Poll::Ready(());
                        break;
                    }
                }
                if ended.is_ready() || !bell.has_rung() {
                    break;
                }
            }
            bell.end();
            ended
        })
        .await;
    }

    /// Goes on with all that can be gone on with.
    fn go_on(&mut self, cx: &mut Context<'_>) {
        loop {
            while let Poll::Ready(Some(errand)) = self.new.poll_recv(cx) {
                self.under_way.push(errand);
            }
            if !matches!(self.under_way.poll_next_unpin(cx), Poll::Ready(Some(()))) {
                return;
            }
        }
    }
}

/// Tells the crew that there is something to do: while they work, only them. A runtime that hears of a task that is at work puts it behind
/// all others when it rests, for any thread to take.
#[derive(Default)]
struct Bell {
    task: AtomicWaker,
    at_work: AtomicBool,
    rung: AtomicBool,
}

impl Bell {
    fn begin(&self, task: &Waker) {
        self.task.register(task);
        self.at_work.store(true, Ordering::SeqCst);
    }

    fn hush(&self) {
        self.rung.store(false, Ordering::SeqCst);
    }

    fn has_rung(&self) -> bool {
        self.rung.load(Ordering::SeqCst)
    }

    /// Who rings from now on rings for the task; it may have been rung for the last time just before.
    fn end(&self) {
        self.at_work.store(false, Ordering::SeqCst);
        if self.has_rung() {
            self.task.wake();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        if !self.at_work.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// What is left when nobody works any more goes on by itself: a claim that nobody waits for is given back.
impl Drop for Hands {
    fn drop(&mut self) {
        self.new.close();
        while let Ok(errand) = self.new.try_recv() {
            alone(errand);
        }
        std::mem::take(&mut self.under_way).into_iter().for_each(alone);
    }
}

fn alone(errand: Errand) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(errand);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]

    use std::time::Duration;

    use tokio::sync::{Notify, oneshot};

    use super::*;

    /// Its parts wait for what is sent here.
    fn part(until: oneshot::Receiver<()>) -> Errand {
        Box::pin(async move { drop(until.await) })
    }

    fn crew() -> (Crew, Hands) {
        Crew::new("t".into())
    }

    /// Whoever else there is to do something, and whether a part or an errand asks.
    #[tokio::test]
    async fn pr3_what_is_handed_over_is_begun_before_who_waits_for_that_goes_on() {
        let (crew, hands) = crew();
        let (tell, mut told) = mpsc::unbounded_channel();
        let asks = |who: &'static str| -> Errand {
            let (crew, tell) = (crew.clone(), tell.clone());
            Box::pin(async move {
                let begun = tell.clone();
                crew.go(Box::pin(async move { begun.send((who, "is asked")).unwrap() })).wait().await;
                tell.send((who, "goes on")).unwrap();
            })
        };
        let errand = asks("an errand");
        let sends = crew.clone();
        let parts: Vec<Errand> = vec![
            asks("one"),
            asks("another"),
            Box::pin(async move { sends.go(errand).wait().await }),
            asks("a third"),
        ];
        drop((crew.clone(), tell));
        hands.work(parts, || {}).await;
        tokio::task::yield_now().await;
        let mut all = Vec::new();
        while let Ok(said) = told.try_recv() {
            all.push(said);
        }
        for who in ["one", "another", "a third", "an errand"] {
            let of_it: Vec<_> = all.iter().filter(|(one, _)| *one == who).map(|(_, what)| *what).collect();
            assert_eq!(of_it, ["is asked", "goes on"], "{who}");
        }
    }

    #[tokio::test]
    async fn re9_a_panic_ends_what_panics_and_nothing_else() {
        let (crew, hands) = crew();
        let (goes_on, waits) = oneshot::channel();
        let (ends, ended) = oneshot::channel::<()>();
        let parts: Vec<Errand> = vec![Box::pin(async { panic!("on purpose") }), part(waits)];
        let work = tokio::spawn(hands.work(parts, || drop(ends)));
        assert!(ended.await.is_err(), "it counts as ended");
        crew.go(Box::pin(async { panic!("on purpose, too") })).wait().await;
        let (done, is_done) = oneshot::channel();
        crew.go(Box::pin(async move { done.send(()).unwrap() })).wait().await;
        is_done.await.unwrap();
        goes_on.send(()).unwrap();
        work.await.unwrap();
    }

    #[tokio::test]
    async fn re9_the_end_of_one_part_is_told_and_the_others_go_on() {
        let (_crew, hands) = crew();
        let ((first, one), (second, other)) = (oneshot::channel(), oneshot::channel());
        let (ends, ended) = oneshot::channel::<()>();
        let work = tokio::spawn(hands.work(vec![part(one), part(other)], || drop(ends)));
        first.send(()).unwrap();
        assert!(ended.await.is_err(), "the first has ended");
        assert!(!work.is_finished());
        second.send(()).unwrap();
        work.await.unwrap();
    }

    #[tokio::test]
    async fn re3_an_errand_goes_on_when_nobody_works_any_more() {
        let (crew, hands) = crew();
        let (_never, waits) = oneshot::channel();
        let work = tokio::spawn(hands.work(vec![part(waits)], || {}));
        let (goes_on, done, begun) =
            (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let errand = |begun: Arc<Notify>| -> Errand {
            let (goes_on, done) = (Arc::clone(&goes_on), Arc::clone(&done));
            Box::pin(async move {
                begun.notify_one();
                goes_on.notified().await;
                done.notify_one();
            })
        };
        crew.go(errand(Arc::clone(&begun)));
        begun.notified().await;
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        goes_on.notify_one();
        done.notified().await;
        crew.go(errand(Arc::clone(&begun)));
        begun.notified().await;
        goes_on.notify_one();
        done.notified().await;
    }

    /// The bell is rung by another thread at any moment, also between the last look and the end of the work.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn re9_nobody_is_forgotten_who_is_woken_from_elsewhere() {
        let (crew, hands) = crew();
        let (there, mut back) = mpsc::channel::<u32>(1);
        let (answers, mut answered) = mpsc::channel::<u32>(1);
        let elsewhere = tokio::spawn(async move {
            while let Some(n) = back.recv().await {
                answers.send(n).await.unwrap();
            }
        });
        let asks: Errand = Box::pin(async move {
            for n in 0..10_000 {
                let there = there.clone();
                crew.go(Box::pin(async move { there.send(n).await.unwrap() }));
                assert_eq!(answered.recv().await, Some(n));
            }
        });
        tokio::time::timeout(Duration::from_secs(60), hands.work(vec![asks], || {})).await.unwrap();
        elsewhere.await.unwrap();
    }
}
