//! The settler: gathers how events ended and writes it in one statement.
//!
//! It waits a moment for more to write, so that slow trickles do not cost a statement each; while one statement is under way the
//! next fills up, and what makes room for a claim does not wait. A settlement that finds its lease lost changes nothing: that is
//! counted and logged, and is no failure. If the database is gone it tries again until it is back; the events' slots stay
//! taken meanwhile, so that nothing piles up, and nothing is claimed before it has caught up. A row that the database
//! refuses to change, or that another transaction holds, keeps nobody else's from being settled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::dispatch::Ended;
use super::engine::Engine;
use super::feed::{Heard, Said};
use super::job::{Job, Note, Source};
use super::order::Order;
use super::outage::{Doing, Pauses};
use super::slots::Slot;
use super::verdict::{Ending, Told};
use crate::error::{Error, ErrorKind};
use crate::store::Verdict;
use crate::telemetry;

/// How long the first of a batch waits for others.
const LINGER: Duration = Duration::from_millis(2);
/// And if it came straight from its commit: those come one by one, nobody waits for their rows, and the statement for each few of
/// them would cost the database what the claim has saved it.
const HOT_LINGER: Duration = Duration::from_millis(20);
/// Most settlements of one statement.
const MOST: usize = 1000;
/// How often a row is tried again that the database refuses to settle.
const REFUSALS: u32 = 3;
/// The pause before rows are settled again that a producer had locked.
const BUSY: Duration = Duration::from_millis(20);

pub(super) struct Settler {
    engine: Arc<Engine>,
    ended: mpsc::Receiver<Vec<Ended>>,
    pauses: Pauses,
}

impl Settler {
    pub(super) fn new(engine: Arc<Engine>, ended: mpsc::Receiver<Vec<Ended>>) -> Self {
        let pauses = Pauses::new(Arc::clone(&engine.settings.random));
        Self { engine, ended, pauses }
    }

    /// Settles until the dispatcher has ended and everything is written.
    pub(super) async fn run(mut self) {
        let mut left = Vec::new();
        while let Some(batch) = self.gather(left).await {
            left = self.write(batch).await;
        }
    }

    /// What was left over, and what has ended since; `None` when nothing is left and nothing more comes.
    async fn gather(&mut self, mut batch: Vec<Ended>) -> Option<Vec<Ended>> {
        let is_left_over = !batch.is_empty();
        let (mut until, enough) = match is_left_over {
            true => (Instant::now() + BUSY, MOST),
            false => {
                batch = self.ended.recv().await?;
                (Instant::now() + linger(&batch), self.enough(&batch))
            }
        };
        while batch.len() < MOST {
            let more = match batch.len() < enough {
                true => tokio::time::timeout_at(until, self.ended.recv()).await.ok(),
                false => self.ended.try_recv().ok().map(Some),
            };
            match more {
                Some(Some(more)) => {
                    until = until.min(Instant::now() + linger(&more));
                    batch.extend(more);
                }
                Some(None) => {
                    if is_left_over {
                        tokio::time::sleep_until(until).await;
                    }
                    break;
                }
                None => break,
            }
        }
        Some(batch)
    }

    /// What is written without waiting for more: half of what is claimed at once makes room for a claim, and half of what may
    /// wait straight from commits makes room for more of that.
    fn enough(&self, first: &[Ended]) -> usize {
        let room = if is_hot(first) { self.engine.settings.hot } else { self.engine.claim_limit() };
        MOST.min(room.div_ceil(2))
    }

    /// Writes a batch, however long the database takes; answers with those whose rows others have locked.
    async fn write(&mut self, mut batch: Vec<Ended>) -> Vec<Ended> {
        let keep = self.engine.settings.keep();
        let mut refusals = 0;
        loop {
            failpoint!("settle.gathered");
            let settled = async {
                let said: Vec<Said<'_>> = batch.iter().map(said).collect();
                self.engine.feed().await?.settle(&said, keep).await
            };
            match self.engine.in_time(settled).await {
                Ok(heard) => {
                    failpoint!("settle.answered");
                    self.engine.behind.send_replace(false);
                    self.engine.outage.over(Doing::Settling);
                    self.pauses.reset();
                    return self.account(batch, &heard);
                }
                Err(error) if may_be_about_one_row(&error) && batch.len() > 1 => {
                    let rest = batch.split_off(batch.len() / 2);
                    let mut busy = Box::pin(self.write(batch)).await;
                    busy.append(&mut Box::pin(self.write(rest)).await);
                    return busy;
                }
                Err(error) if may_be_about_one_row(&error) && refusals == REFUSALS => {
                    self.give_up(batch, &error).await;
                    return Vec::new();
                }
                Err(error) => {
                    let of_a_row = may_be_about_one_row(&error);
                    refusals += u32::from(of_a_row);
                    self.engine.behind.send_replace(!of_a_row);
                    self.engine.outage.say(Doing::Settling, &error);
                    tokio::time::sleep(self.pauses.next()).await;
                }
            }
        }
    }

    /// The database refuses to write this, and nothing else is to wait for it.
    async fn give_up(&self, batch: Vec<Ended>, error: &Error) {
        self.engine.behind.send_replace(false);
        self.engine.depths.settling.fetch_sub(batch.len(), Ordering::Relaxed);
        self.engine.tally.refused.fetch_add(batch.len(), Ordering::Relaxed);
        for Ended { job, .. } in &batch {
            if let Some(pass) = &job.pass {
                pass.note(Note::HandedBack);
            }
            let event = &job.delivery.event;
            tracing::error!(
                table = %self.engine.table, topic = event.topic(), event_id = %event.id(), tenant = self.engine.tenant(event.tenant_id()),
                sequence = job.delivery.sequence, attempt = job.delivery.attempt, %error,
                "the database refuses to settle an event; it comes up again when its lease ends"
            );
        }
        if let Ok(feed) = self.engine.feed().await
            && let Some(stream) = feed.stream()
        {
            stream.abandon(&batch.iter().map(|ended| &ended.job.held.lease).collect::<Vec<_>>()).await;
        }
        drop(batch);
        self.engine.slots.tell();
    }

    /// Counts and logs what was written, frees the slots, and answers with what is still to be written.
    fn account(&self, batch: Vec<Ended>, heard: &Heard) -> Vec<Ended> {
        let engine = &self.engine;
        let mut told: FxHashMap<&str, TopicMetrics> = FxHashMap::default();
        let (busy, done): (Vec<Ended>, Vec<Ended>) = match heard.busy.is_empty() {
            true => (Vec::new(), batch),
            false => batch.into_iter().partition(|ended| heard.busy.contains(&ended.job.held.lease)),
        };
        engine.depths.settling.fetch_sub(done.len(), Ordering::Relaxed);
        for ended in &done {
            let Ended { job, ending } = ended;
            if heard.lost.contains(&job.held.lease) {
                engine.lose(job, "its lease was lost before it was settled: another worker delivers it");
                continue;
            }
            let topic = job.delivery.event.topic();
            told.entry(topic).or_insert_with(|| TopicMetrics::of(engine, topic)).note(job, ending);
            engine.conclude(job, ending);
        }
        for (topic, told) in told {
            told.tell(engine, topic);
        }
        free(done);
        engine.slots.tell();
        busy
    }
}

/// How long these wait for others.
fn linger(ended: &[Ended]) -> Duration {
    if is_hot(ended) { HOT_LINGER } else { LINGER }
}

/// Whether all came straight from their commits.
fn is_hot(ended: &[Ended]) -> bool {
    ended.iter().all(|ended| ended.job.source == Source::Hot)
}

/// Gives the slots of these back, and ends their turns.
fn free(mut done: Vec<Ended>) {
    Order::end(done.iter_mut().filter_map(|ended| ended.job.turn.take()));
    Slot::give_back(done.into_iter().map(|ended| ended.job.into_slot()));
}

/// What the metrics are told of one topic's events.
struct TopicMetrics {
    results: Vec<(&'static str, u64)>,
    dead: u64,
    latencies: telemetry::Latencies,
}

impl TopicMetrics {
    fn of(engine: &Engine, topic: &str) -> Self {
        Self { results: Vec::new(), dead: 0, latencies: telemetry::latencies(&engine.table, topic) }
    }

    fn note(&mut self, job: &Job, ending: &Ending) {
        if let Some(Told { result, ran }) = &ending.told {
            match self.results.iter_mut().find(|(known, _)| known == result) {
                Some((_, n)) => *n += 1,
                None => self.results.push((*result, 1)),
            }
            self.latencies.dispatch.record(ran.took.as_secs_f64());
            if ending.verdict == Verdict::Delivered {
                let since = ran.until.saturating_duration_since(job.got);
                self.latencies.delivery.record((job.age + since).as_secs_f64());
            }
        }
        self.dead += u64::from(matches!(ending.verdict, Verdict::Dead { .. }));
    }

    fn tell(self, engine: &Engine, topic: &str) {
        for (result, n) in self.results {
            telemetry::dispatched(&engine.table, topic, result, n);
        }
        if self.dead > 0 {
            telemetry::dead(&engine.table, topic, self.dead);
        }
    }
}

/// Whether an error may be due to a single row, as one that a trigger or constraint of somebody else's raises.
fn may_be_about_one_row(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Constraint | ErrorKind::Database)
}

fn said(ended: &Ended) -> Said<'_> {
    Said { lease: &ended.job.held.lease, verdict: &ended.ending.verdict, behind: ended.ending.behind }
}

impl Engine {
    /// Somebody else has the event, or nobody knows: nothing was written, and that is no failure.
    pub(super) fn lose(&self, job: &Job, how: &str) {
        let event = &job.delivery.event;
        self.tally.lost.fetch_add(1, Ordering::Relaxed);
        telemetry::lease_lost(&self.table, 1);
        tracing::warn!(
            table = %self.table, topic = event.topic(), event_id = %event.id(), tenant = self.tenant(event.tenant_id()),
            sequence = job.delivery.sequence, attempt = job.delivery.attempt, "{how}"
        );
        if let Some(pass) = &job.pass {
            pass.note(Note::HandedBack);
        }
    }

    /// Logs and counts what was written of one event.
    fn conclude(&self, job: &Job, ending: &Ending) {
        let event = &job.delivery.event;
        let (counter, note) = match &ending.verdict {
            Verdict::Delivered => {
                tracing::trace!(
                    table = %self.table, topic = event.topic(), event_id = %event.id(), tenant = self.tenant(event.tenant_id()),
                    sequence = job.delivery.sequence, attempt = job.delivery.attempt, "delivered"
                );
                (&self.tally.delivered, Note::Delivered)
            }
            Verdict::Retry { after, error } => {
                tracing::warn!(
                    table = %self.table, topic = event.topic(), event_id = %event.id(), tenant = self.tenant(event.tenant_id()),
                    sequence = job.delivery.sequence, attempt = job.delivery.attempt, ?after, %error, "a dispatch failed; it is tried again"
                );
                (&self.tally.retried, Note::Retried)
            }
            Verdict::Dead { error } => {
                tracing::error!(
                    table = %self.table, topic = event.topic(), event_id = %event.id(), tenant = self.tenant(event.tenant_id()),
                    sequence = job.delivery.sequence, attempt = job.delivery.attempt, %error, "an event is dead"
                );
                (&self.tally.dead, Note::Dead)
            }
            Verdict::Released { .. } => (&self.tally.handed_back, Note::HandedBack),
        };
        let counter = if ending.interrupted { &self.tally.interrupted } else { counter };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(pass) = &job.pass {
            pass.note(note);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::event::Event;
    use crate::relay::Relay;
    use crate::sink::{Delivery, Outcome, Sink};
    use crate::store::{MemoryStore, Store};

    struct Null;

    #[async_trait::async_trait]
    impl Sink for Null {
        async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
            vec![Outcome::Delivered; batch.len()]
        }
    }

    /// The clock stands still but for what somebody waits for.
    #[tokio::test(start_paused = true)]
    async fn re4_small_batches_do_not_wait_for_more_than_makes_room_for_a_claim() {
        const EVENTS: usize = 2000;
        let store = Arc::new(MemoryStore::new());
        let event = || Event::json("t", &0).unwrap().build().unwrap();
        store.insert(&std::iter::repeat_with(event).take(EVENTS).collect::<Vec<_>>()).await.unwrap();
        let relay = Relay::on(store as Arc<dyn Store>).batch(10).sink(Null).build().unwrap();
        let began = Instant::now();
        assert_eq!(relay.run_once().await.unwrap().delivered, EVENTS);
        assert!(began.elapsed() < LINGER * 20, "{:?} for {EVENTS} in batches of 10", began.elapsed());
    }
}
