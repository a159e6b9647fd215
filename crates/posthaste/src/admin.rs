//! Operating an outbox: what the command line, the HTTP API and a dashboard share.
//!
//! Looking costs a bounded amount whatever the table's size, but for a listing by something that no index knows, which
//! [`Admin::within`] bounds by time. What changes or deletes rows can be asked first
//! what it would touch, and works in small batches. [`doctor`] says why nothing moves.

pub mod doctor;

mod tail;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use tail::{Committed, Tail};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::{ErrorKind, Result};
use crate::event::Event;
use crate::produce::gate::Gate;
use crate::produce::{Backend, Outbox};
use crate::store::stream::{BlockedAggregate, LaneLag};
use crate::store::{
    Count, Dialect, Ending, Enqueued, Filter, MigrationState, Mode, Page, Purge, Record, Stats, Status,
    Store, TableName, Throughput,
};
use crate::telemetry;

/// Rows counted at most, so that a look at a table of any size is cheap.
const CAP: u32 = 10_000;
/// Rows of one statement that changes or deletes.
const BATCH: u32 = 1000;
/// How often, and how long, rows are waited for that somebody else has locked.
const WAITS: u32 = 10;
const WAIT: Duration = Duration::from_millis(50);
/// Rows shown of what would be changed.
const SAMPLE: u32 = 10;

impl<B: Backend> Outbox<B> {
    /// The operator's view of this outbox.
    ///
    /// ```
    /// use posthaste::store::Filter;
    /// # use posthaste::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// let admin = outbox.admin();
    /// println!("{} waiting", admin.status().await?.stats.pending);
    ///
    /// let replay = admin.replay(Filter::dead().topic("order.*"));
    /// if replay.dry_run().await?.count.n < 100 {
    ///     replay.run().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn admin(&self) -> Admin {
        Admin { store: Arc::new(self.store().clone()), gate: Arc::clone(self.gate()) }
    }
}

/// Looks at one table, and mends it; clones share it.
#[derive(Clone)]
pub struct Admin {
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("table", self.store.table()).finish_non_exhaustive()
    }
}

/// The state of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStatus {
    /// The table.
    pub table: TableName,
    /// The kind of database it is in.
    pub dialect: Dialect,
    /// Whether it is a queue or a stream; `None` if it was not made by posthaste's migrations.
    pub mode: Option<Mode>,
    /// The newest migration it has, and the newest that this version of posthaste knows.
    pub schema: (u32, u32),
    /// How many events are where.
    pub stats: Stats,
    /// How fast it delivered of late, where its rows say so.
    pub delivered: Option<Throughput>,
    /// Who is at work: of a stream, the relays that live; of a queue, those that hold an event now.
    pub workers: Vec<String>,
    /// Aggregates of a stream that wait for an operator.
    pub blocked: Count,
    /// The database's clock.
    pub now: OffsetDateTime,
    /// The database's clock less this process's.
    pub clock_skew: time::Duration,
}

impl Admin {
    /// The operator's view of this store's table.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, gate: Arc::default() }
    }

    /// The same view, where looking takes no longer than this: the database itself ends a statement that does, with an
    /// error of kind [`TooSlow`](crate::ErrorKind::TooSlow). Without, a filter that fits nothing reads the whole table,
    /// and goes on doing so when nobody waits for it any more. What changes or deletes takes the time it needs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use posthaste::store::{Filter, Page};
    /// # use posthaste::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// let admin = outbox.admin().within(Duration::from_secs(5));
    /// for record in admin.list(&Filter::all().topic("order.*"), Page::newest(10)).await? {
    ///     println!("{} is {}", record.id, record.status);
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        Self { store: self.store.within(limit), gate: Arc::clone(&self.gate) }
    }

    /// The database's clock.
    pub async fn now(&self) -> Result<OffsetDateTime> {
        self.store.now().await
    }

    /// Whether the table is a queue or a stream; `None` if posthaste's migrations have not made it.
    pub async fn mode(&self) -> Result<Option<Mode>> {
        self.store.mode().await
    }

    /// How many events are where, how old the oldest is, and what the clocks say.
    pub async fn status(&self) -> Result<TableStatus> {
        let before = OffsetDateTime::now_utc();
        let now = self.store.now().await?;
        let ours = before + (OffsetDateTime::now_utc() - before) / 2;
        let stats = self.store.stats(CAP).await?;
        let states = self.store.migrations().await?;
        let newest = |of: &dyn Fn(&MigrationState) -> bool| {
            states.iter().filter(|state| of(state)).map(|state| state.version).max().unwrap_or(0)
        };
        Ok(TableStatus {
            table: self.store.table().clone(),
            dialect: self.store.dialect(),
            mode: self.store.mode().await?,
            schema: (newest(&|state| state.applied_at.is_some()), newest(&|state| state.known)),
            stats,
            delivered: self.store.delivered_lately().await?,
            workers: self.store.workers().await?,
            blocked: self.blocked_count().await?,
            now,
            clock_skew: now - ours,
        })
    }

    /// A page of the events that fit.
    pub async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<Record>> {
        self.store.list(filter, page).await
    }

    /// How many fit, counted no further than a limit.
    pub async fn count(&self, filter: &Filter) -> Result<Count> {
        self.store.count(filter, CAP).await
    }

    /// One event.
    pub async fn show(&self, id: Uuid) -> Result<Option<Record>> {
        self.store.get(id).await
    }

    /// A page of the dead letters that fit.
    pub async fn dead_letters(&self, filter: &Filter, page: Page) -> Result<Vec<Record>> {
        self.store.list(&dead(filter.clone()), page).await
    }

    /// Aggregates of a stream that stay blocked until their dead event is replayed or discarded, longest first, at
    /// most so many; a queue has none.
    ///
    /// ```
    /// use posthaste::store::Filter;
    /// # use posthaste::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// let admin = outbox.admin();
    /// for blocked in admin.blocked(100).await? {
    ///     println!("{}: {} wait, {}", blocked.aggregate_id, blocked.waiting, blocked.reason);
    ///     // Tried once more, and what waits behind it in order; `discard` would go on without it.
    ///     admin.replay(Filter::dead().id(blocked.event_id)).run().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn blocked(&self, limit: u32) -> Result<Vec<BlockedAggregate>> {
        match self.store.stream().await? {
            Some(stream) => stream.blocked(limit).await,
            None => Ok(Vec::new()),
        }
    }

    /// Those of the blocked aggregates that one of these events blocks.
    pub async fn blocked_by(&self, events: &[Uuid]) -> Result<Vec<BlockedAggregate>> {
        match self.store.stream().await? {
            Some(stream) if !events.is_empty() => stream.blocked_by(events).await,
            _ => Ok(Vec::new()),
        }
    }

    /// How many aggregates of a stream are blocked, counted no further than a limit; of a queue none is.
    pub async fn blocked_count(&self) -> Result<Count> {
        let lanes = self.lanes().await?;
        Ok(lanes.iter().fold(Count::default(), |all, lane| Count {
            n: all.n + lane.blocked.n,
            capped: all.capped || lane.blocked.capped,
        }))
    }

    /// The lanes of a stream: who owns each, and how far it is behind; a queue has none.
    ///
    /// ```
    /// # use posthaste::testing;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// for lane in outbox.admin().lanes().await? {
    ///     let owner = lane.owner.as_deref().unwrap_or("nobody");
    ///     println!("lane {} of {owner}: {} waiting, {} parked", lane.lane, lane.events, lane.parked);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn lanes(&self) -> Result<Vec<LaneLag>> {
        match self.store.stream().await? {
            Some(stream) => stream.lag(CAP).await,
            None => Ok(Vec::new()),
        }
    }

    /// Writes events that belong to no transaction, as an operator does: they are counted, and relays are woken. One
    /// answer for each, in order. A service enqueues through its [`Outbox`], with its data.
    ///
    /// ```
    /// # use posthaste::{Event, testing};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste::Result<()> {
    /// # let outbox = testing::outbox();
    /// let event = Event::json("order.placed.v1", &42)?.build()?;
    /// assert!(!outbox.admin().enqueue(&[event]).await?[0].duplicate);
    /// # Ok(()) }
    /// ```
    pub async fn enqueue(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        let enqueued = self.store.insert(events).await?;
        let written = events.iter().zip(&enqueued).filter(|(_, enqueued)| !enqueued.duplicate);
        let mut count = 0;
        for (event, _) in written {
            telemetry::enqueued(self.store.table(), event.topic(), 1);
            count += 1;
        }
        self.wake(count).await;
        Ok(enqueued)
    }

    /// Makes dead letters that fit pending again: their attempts begin anew, their last error stays until they
    /// are delivered. Relays are woken for them. What waited behind one in a stream follows it in order.
    pub fn replay(&self, filter: Filter) -> Change {
        Change::new(self, Deed::Replay(dead(filter)))
    }

    /// Deletes dead letters that fit. What waited behind one in a stream goes on without it.
    pub fn discard(&self, filter: Filter) -> Change {
        Change::new(self, Deed::Discard(dead(filter)))
    }

    /// Deletes events that ended longer ago than this; pending ones are never touched.
    pub fn purge(&self, ending: Ending, older_than: Duration) -> Change {
        Change::new(self, Deed::Purge(ending, older_than))
    }

    /// Tells relays, in this process and others, that events are pending again.
    async fn wake(&self, events: u64) {
        if events == 0 {
            return;
        }
        self.gate.wake();
        if let Err(error) = self.store.notify().await {
            tracing::debug!(table = %self.store.table(), %error, "relays could not be told of events; they poll");
        }
    }
}

fn dead(filter: Filter) -> Filter {
    Filter { status: Some(Status::Dead), ..filter }
}

/// Something that changes or deletes rows, not done yet.
#[must_use = "nothing is done before `run`"]
pub struct Change {
    admin: Admin,
    deed: Deed,
    /// When it was made.
    since: Instant,
    batch: u32,
    most: u64,
    progress: Option<Box<dyn Fn(u64) + Send + Sync>>,
}

#[derive(Debug, Clone)]
enum Deed {
    Replay(Filter),
    Discard(Filter),
    Purge(Ending, Duration),
}

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Change").field("deed", &self.deed).finish_non_exhaustive()
    }
}

/// What a change would touch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// How many rows, counted no further than a limit.
    pub count: Count,
    /// The first of them; none, where they are not found within the time of [`Admin::within`].
    pub sample: Vec<Record>,
}

impl Change {
    fn new(admin: &Admin, deed: Deed) -> Self {
        let since = Instant::now();
        Self { admin: admin.clone(), deed, since, batch: BATCH, most: u64::MAX, progress: None }
    }

    /// Rows of one statement.
    pub fn batch(mut self, rows: u32) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// At most this many rows, oldest first.
    pub fn limit(mut self, rows: u64) -> Self {
        self.most = rows;
        self
    }

    /// Told after each batch how many rows have been done.
    pub fn on_progress(mut self, progress: impl Fn(u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// What it would touch, without touching it.
    pub async fn dry_run(&self) -> Result<Preview> {
        let filter = self.filter(self.admin.store.now().await?);
        let mut count = self.admin.store.count(&filter, CAP).await?;
        if count.n > self.most {
            count = Count { n: self.most, capped: false };
        }
        let shown = u32::try_from(self.most.min(u64::from(SAMPLE))).unwrap_or(SAMPLE);
        let sample = match self.admin.store.list(&filter, Page::first(shown)).await {
            // How many there are was counted; where the first are not found in time, none is shown.
            Err(error) if *error.kind() == ErrorKind::TooSlow => Vec::new(),
            sample => sample?,
        };
        Ok(Preview { count, sample })
    }

    /// Does it, batch by batch; how many rows were touched. What dies after it began is not touched, so that
    /// an event which dies again at once is replayed once.
    pub async fn run(&self) -> Result<u64> {
        let filter = self.filter(self.admin.store.now().await?);
        let (mut done, mut waits) = (0, 0);
        while done < self.most {
            let limit = u32::try_from(self.most - done).unwrap_or(u32::MAX).min(self.batch);
            let touched = match &self.deed {
                Deed::Replay(_) => {
                    let replayed = self.admin.store.replay(&filter, limit).await?;
                    self.admin.wake(replayed).await;
                    replayed
                }
                Deed::Discard(_) => self.admin.store.discard(&filter, limit).await?,
                Deed::Purge(ending, older_than) => {
                    let purge =
                        Purge { ending: *ending, older_than: self.as_of_its_making(*older_than), limit };
                    self.admin.store.purge(purge).await?
                }
            };
            done += touched;
            if let Some(progress) = &self.progress {
                progress(done);
            }
            if touched == u64::from(limit) {
                continue;
            }
            // Rows that somebody else had locked for a moment were passed over.
            if waits == WAITS {
                break;
            }
            match self.admin.store.count(&filter, CAP).await {
                Ok(left) if left.n > 0 => {}
                Ok(_) => break,
                // Whether any are left takes too long to find out: another try tells.
                Err(error) if *error.kind() == ErrorKind::TooSlow => waits = WAITS - 1,
                Err(error) => return Err(error),
            }
            waits += 1;
            tokio::time::sleep(WAIT).await;
        }
        Ok(done)
    }

    /// What has come of age since somebody was shown what would go stays.
    fn as_of_its_making(&self, older_than: Duration) -> Duration {
        // The statement begins later than it is told here: rather somewhat too early than too late.
        const ON_ITS_WAY: Duration = Duration::from_millis(100);
        let since = self.since.elapsed();
        older_than.saturating_add(since).saturating_add(since.min(ON_ITS_WAY))
    }

    /// What it is about, as of this time.
    fn filter(&self, now: OffsetDateTime) -> Filter {
        match &self.deed {
            Deed::Replay(filter) | Deed::Discard(filter) => {
                let by_now = now + time::Duration::MICROSECOND;
                let before = filter.settled_before.map_or(by_now, |before| before.min(by_now));
                filter.clone().settled_before(before)
            }
            Deed::Purge(ending, older_than) => {
                let status = match ending {
                    Ending::Delivered => Status::Delivered,
                    Ending::Dead => Status::Dead,
                };
                let older_than = self.as_of_its_making(*older_than);
                let before = now.checked_sub(older_than.try_into().unwrap_or(time::Duration::MAX));
                Filter::status(status).settled_before(before.unwrap_or(OffsetDateTime::UNIX_EPOCH))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::sink::Delivery;
    use crate::{Failure, testing};

    #[tokio::test(start_paused = true)]
    async fn rt6_a_replay_wakes_the_relay_of_its_outbox() -> anyhow::Result<()> {
        let outbox = testing::outbox();
        let (seen, mut deliveries) = mpsc::unbounded_channel();
        let handler = move |_: Delivery| {
            let told = seen.send(Instant::now());
            async move { Err::<(), _>(Failure::reject(told.map_or("too late", |()| "not now"))) }
        };
        let relay = outbox.relay().handler(handler).poll_interval(Duration::from_secs(20)).start().await?;
        let mut tx = outbox.begin();
        outbox.enqueue(&mut tx, Event::json("order.placed.v1", &1)?).await?;
        tx.commit();
        deliveries.recv().await;
        // Nothing has happened for so long that the relay looks rarely.
        sleep(Duration::from_secs(61)).await;

        let replayed_at = Instant::now();
        anyhow::ensure!(outbox.admin().replay(Filter::dead()).run().await? == 1);
        let took = deliveries.recv().await.context("the relay lives")? - replayed_at;
        anyhow::ensure!(took < Duration::from_secs(1), "it took {took:?}");
        relay.stop().await;
        Ok(())
    }
}
