//! A store that writes down what is asked of it, and fails when told to.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use posthaste::store::*;
use posthaste::{Error, ErrorKind, Event, Result};
use time::OffsetDateTime;
use uuid::Uuid;

pub struct Spy {
    inner: Arc<dyn Store>,
    /// How many events each claim asked for.
    pub claims: Mutex<Vec<u32>>,
    /// How many settlements each statement had.
    pub settles: Mutex<Vec<usize>>,
    /// How many leases were extended.
    pub extended: AtomicUsize,
    /// How many sessions were opened.
    sessions: AtomicUsize,
    /// How often events were claimed, extended, settled or counted in vain.
    pub failures: AtomicUsize,
    /// Whether the database is gone.
    pub gone: AtomicBool,
    /// Whether it says it has extended leases and hardly does.
    forgetful: bool,
    /// How long it takes to say what time it is.
    slow: Duration,
    /// When pages of a stream were read.
    pub reads: Arc<Mutex<Vec<Instant>>>,
    /// How many answers to claims of parked events are lost, of a stream.
    pub lost_answers: Arc<AtomicUsize>,
    /// How long a claim takes to answer once it is carried out.
    pub claim_answers_after: Mutex<Duration>,
}

impl Spy {
    pub fn on(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self::new(inner))
    }

    /// A store with a planted bug.
    pub fn forgetful(inner: Arc<dyn Store>) -> Self {
        Self { forgetful: true, ..Self::new(inner) }
    }

    /// A store that takes its time to say what time it is.
    pub fn slow(inner: Arc<dyn Store>, slow: Duration) -> Arc<Self> {
        Arc::new(Self { slow, ..Self::new(inner) })
    }

    fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            claims: Mutex::default(),
            settles: Mutex::default(),
            extended: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
            forgetful: false,
            slow: Duration::ZERO,
            reads: Arc::default(),
            lost_answers: Arc::default(),
            claim_answers_after: Mutex::default(),
        }
    }

    pub fn sessions(&self) -> usize {
        self.sessions.load(Ordering::SeqCst)
    }

    fn reach(&self) -> Result<()> {
        if self.gone.load(Ordering::SeqCst) {
            self.failures.fetch_add(1, Ordering::SeqCst);
            return Err(Error::new(ErrorKind::Unreachable, "the database is gone"));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Spy {
    fn table(&self) -> &TableName {
        self.inner.table()
    }
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }
    async fn now(&self) -> Result<OffsetDateTime> {
        self.reach()?;
        tokio::time::sleep(self.slow).await;
        self.inner.now().await
    }
    async fn insert(&self, events: &[Event]) -> Result<Vec<Enqueued>> {
        self.inner.insert(events).await
    }
    async fn claim(&self, claim: &Claim) -> Result<ClaimedBatch> {
        self.reach()?;
        self.claims.lock().unwrap().push(claim.limit);
        let batch = self.inner.claim(claim).await;
        let wait = *self.claim_answers_after.lock().unwrap();
        tokio::time::sleep(wait).await;
        batch
    }
    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Extended> {
        self.reach()?;
        self.extended.fetch_add(leases.len(), Ordering::SeqCst);
        let length = if self.forgetful { Duration::from_secs(1) } else { length };
        self.inner.extend(leases, length).await
    }
    async fn settle(&self, settlements: &[Settlement], keep: Keep) -> Result<Settled> {
        self.reach()?;
        self.settles.lock().unwrap().push(settlements.len());
        self.inner.settle(settlements, keep).await
    }
    fn dedicated(&self) -> Arc<dyn Store> {
        self.inner.dedicated()
    }

    fn with_connections(&self, connections: u32) -> Arc<dyn Store> {
        self.inner.with_connections(connections)
    }

    fn within(&self, limit: Duration) -> Arc<dyn Store> {
        self.inner.within(limit)
    }
    async fn session(&self, worker: &WorkerId) -> Result<Box<dyn Session>> {
        self.reach()?;
        self.sessions.fetch_add(1, Ordering::SeqCst);
        self.inner.session(worker).await
    }
    async fn absent_workers(&self) -> Result<Vec<String>> {
        self.inner.absent_workers().await
    }
    async fn end_leases_of(&self, workers: &[String]) -> Result<u64> {
        self.inner.end_leases_of(workers).await
    }
    async fn notify(&self) -> Result<()> {
        self.inner.notify().await
    }
    async fn listen(&self) -> Result<Option<Box<dyn Notifications>>> {
        self.inner.listen().await
    }
    async fn get(&self, id: Uuid) -> Result<Option<Record>> {
        self.inner.get(id).await
    }
    async fn list(&self, filter: &Filter, page: Page) -> Result<Vec<Record>> {
        self.inner.list(filter, page).await
    }
    async fn notify_on_insert(&self, on: bool) -> Result<()> {
        self.inner.notify_on_insert(on).await
    }
    async fn arrivals(&self, sought: Sought<'_>) -> Result<Arrivals> {
        self.inner.arrivals(sought).await
    }
    async fn fitting(&self, filter: &Filter, ids: &[Uuid]) -> Result<Vec<Record>> {
        self.inner.fitting(filter, ids).await
    }
    async fn delivered_lately(&self) -> Result<Option<Throughput>> {
        self.inner.delivered_lately().await
    }
    async fn workers(&self) -> Result<Vec<String>> {
        self.inner.workers().await
    }
    async fn count(&self, filter: &Filter, cap: u32) -> Result<Count> {
        self.inner.count(filter, cap).await
    }
    async fn stats(&self, cap: u32) -> Result<Stats> {
        self.reach()?;
        self.inner.stats(cap).await
    }
    async fn replay(&self, filter: &Filter, limit: u32) -> Result<u64> {
        self.inner.replay(filter, limit).await
    }
    async fn discard(&self, filter: &Filter, limit: u32) -> Result<u64> {
        self.inner.discard(filter, limit).await
    }
    async fn purge(&self, purge: Purge) -> Result<u64> {
        self.inner.purge(purge).await
    }
    async fn migrate_up(&self) -> Result<Vec<u32>> {
        self.inner.migrate_up().await
    }
    async fn migrate_down(&self, target: u32) -> Result<Vec<u32>> {
        self.inner.migrate_down(target).await
    }
    async fn migrations(&self) -> Result<Vec<MigrationState>> {
        self.inner.migrations().await
    }
    async fn validate(&self) -> Result<Vec<Difference>> {
        self.inner.validate().await
    }
    async fn stream(&self) -> Result<Option<Arc<dyn Stream>>> {
        let stream = self.inner.stream().await?;
        let spied = |inner| -> Arc<dyn Stream> {
            let (reads, lost_answers) = (Arc::clone(&self.reads), Arc::clone(&self.lost_answers));
            Arc::new(SpiedStream { inner, reads, lost_answers })
        };
        Ok(stream.map(spied))
    }
    async fn close(&self) {
        self.inner.close().await
    }
}

struct SpiedStream {
    inner: Arc<dyn Stream>,
    reads: Arc<Mutex<Vec<Instant>>>,
    lost_answers: Arc<AtomicUsize>,
}

#[async_trait]
impl Stream for SpiedStream {
    fn lanes(&self) -> Lanes {
        self.inner.lanes()
    }
    async fn beat(&self, beat: &stream::Beat<'_>) -> Result<stream::Council> {
        self.inner.beat(beat).await
    }
    async fn take(
        &self,
        beat: &stream::Beat<'_>,
        lanes: &[u16],
        absent: &[String],
    ) -> Result<Vec<stream::Hold>> {
        self.inner.take(beat, lanes, absent).await
    }
    async fn release(&self, holds: &[stream::Hold]) -> Result<()> {
        self.inner.release(holds).await
    }
    async fn leave(&self, relay: &WorkerId) -> Result<()> {
        self.inner.leave(relay).await
    }
    fn reader(&self) -> Box<dyn stream::Reader> {
        Box::new(SpiedReader { inner: self.inner.reader(), reads: Arc::clone(&self.reads) })
    }
    async fn blocked_among(&self, keys: &[String]) -> Result<std::collections::HashSet<String>> {
        self.inner.blocked_among(keys).await
    }
    async fn park(&self, parks: &[stream::Park]) -> Result<Vec<u16>> {
        self.inner.park(parks).await
    }
    async fn claim_parked(&self, claim: &stream::ParkedClaim<'_>) -> Result<Vec<stream::Parked>> {
        let parked = self.inner.claim_parked(claim).await?;
        let less = |left: usize| left.checked_sub(1);
        match parked.is_empty()
            || self.lost_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err()
        {
            true => Ok(parked),
            false => Err(Error::new(ErrorKind::Unreachable, "the answer was lost")),
        }
    }
    async fn claimed(&self, holds: &[stream::Hold]) -> Result<Vec<(stream::Hold, i64)>> {
        self.inner.claimed(holds).await
    }
    async fn settle_parked(&self, ends: &[stream::ParkedEnd], keep: Keep) -> Result<Vec<u16>> {
        self.inner.settle_parked(ends, keep).await
    }
    async fn has_parked(&self, lanes: &[u16]) -> Result<bool> {
        self.inner.has_parked(lanes).await
    }
    async fn blocked(&self, limit: u32) -> Result<Vec<stream::BlockedAggregate>> {
        self.inner.blocked(limit).await
    }
    async fn blocked_by(&self, events: &[Uuid]) -> Result<Vec<stream::BlockedAggregate>> {
        self.inner.blocked_by(events).await
    }
    async fn lag(&self, cap: u32) -> Result<Vec<stream::LaneLag>> {
        self.inner.lag(cap).await
    }
}

struct SpiedReader {
    inner: Box<dyn stream::Reader>,
    reads: Arc<Mutex<Vec<Instant>>>,
}

#[async_trait]
impl stream::Reader for SpiedReader {
    async fn open(&mut self, holds: &[stream::Hold]) -> Result<()> {
        self.inner.open(holds).await
    }
    fn has_suspects(&self, lane: u16) -> bool {
        self.inner.has_suspects(lane)
    }
    async fn seen(&mut self) -> Option<stream::Seen> {
        self.inner.seen().await
    }
    fn errand(&mut self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.inner.errand()
    }
    fn coming(&self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        self.inner.coming()
    }
    async fn catch_up(&mut self) -> Result<Vec<u16>> {
        self.inner.catch_up().await
    }
    fn leave(&mut self, lanes: &[u16]) {
        self.inner.leave(lanes);
    }
    fn finished(&mut self, lanes: &[u16]) {
        self.inner.finished(lanes);
    }
    fn close(&mut self, lanes: &[u16]) {
        self.inner.close(lanes);
    }
    async fn read(&mut self, limit: u32) -> Result<stream::Page> {
        self.reads.lock().unwrap().push(Instant::now());
        self.inner.read(limit).await
    }
    async fn settle(
        &mut self,
        delivered: &[(stream::Hold, i64)],
        pages: &[u64],
        keep: Keep,
    ) -> Result<Vec<u16>> {
        self.inner.settle(delivered, pages, keep).await
    }
    async fn flush(&mut self) -> Result<Vec<u16>> {
        self.inner.flush().await
    }
}
