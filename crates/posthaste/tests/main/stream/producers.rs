//! Producers: transactions that conflict on a business row, pause between insert and commit, and roll back now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste::Event;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::history::{Fact, History};
use crate::harness::{Db, Kind};

/// For who writes until it is enough: more than anybody waits for.
pub const ENDLESS: usize = i64::MAX as usize;

/// How many aggregates producers write to.
pub const AGGREGATES: u32 = 8;

/// Who writes how much.
#[derive(Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub writers: u64,
    /// About how many events are committed in all.
    pub events: usize,
    /// How long a writer rests between two transactions, at most.
    pub rest: Duration,
    /// Of a hundred transactions, how many stay open for seconds.
    pub long: u8,
}

impl Plan {
    /// As many writers as the database has use for, without rest.
    pub fn busy(kind: Kind, seed: u64, events: usize) -> Self {
        let writers = if kind == Kind::Sqlite { 4 } else { 12 };
        Self { seed, writers, events, rest: Duration::ZERO, long: 0 }
    }
}

/// Waits about this long: shorter than the timer can, for the others' sake without the timer.
pub async fn pause(micros: u64) {
    if micros >= 1000 {
        tokio::time::sleep(Duration::from_micros(micros)).await;
    } else {
        for _ in 0..micros / 50 {
            tokio::task::yield_now().await;
        }
    }
}

/// The rows that transactions on one aggregate conflict on.
pub async fn prepare(db: &Db) {
    db.execute("CREATE TABLE business (k integer NOT NULL PRIMARY KEY, n bigint NOT NULL)").await.unwrap();
    let rows: Vec<String> = (0..AGGREGATES).map(|k| format!("({k}, 0)")).collect();
    db.execute(format!("INSERT INTO business (k, n) VALUES {}", rows.join(", "))).await.unwrap();
}

/// An event of an aggregate.
pub fn event(topic: &str, fact: &Fact) -> Event {
    Event::json(topic, fact).unwrap().aggregate("order", &fact.aggregate).build().unwrap()
}

/// Commits events in one transaction; answers with their ids.
pub async fn commit(db: &Db, history: &History, events: Vec<Event>) -> Vec<Uuid> {
    let facts: Vec<(Uuid, Fact)> = events
        .iter()
        .map(|event| (event.id(), serde_json::from_slice(event.payload().bytes()).unwrap()))
        .collect();
    let mut tx = db.begin().await;
    tx.enqueue_all(db, events).await.unwrap();
    tx.commit().await;
    let ids = facts.iter().map(|(id, _)| *id).collect();
    history.committed(facts);
    ids
}

/// Commits these versions of one aggregate, in transactions of a hundred.
pub async fn versions(db: &Db, history: &History, aggregate: &str, range: std::ops::RangeInclusive<u64>) {
    let facts: Vec<Fact> = range.map(|version| Fact::new(aggregate, version)).collect();
    for part in facts.chunks(100) {
        commit(db, history, part.iter().map(|fact| event("order.changed", fact)).collect()).await;
    }
}

/// Commits events of other aggregates at a steady rate for so long; when that began.
pub async fn steady(db: &Db, history: &History, names: &str, rate: u32, long: Duration) -> Instant {
    const NAMES: u64 = 8;
    let began = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
    let versions = (0..NAMES).map(|n| history.commits_of(&format!("{names}{n}"))).max().unwrap_or(0) as u64;
    for n in 0.. {
        tick.tick().await;
        if began.elapsed() >= long && n % NAMES == 0 {
            break;
        }
        let fact = Fact::new(format!("{names}{}", n % NAMES), versions + n / NAMES + 1);
        commit(db, history, vec![event("order.changed", &fact)]).await;
    }
    began
}

/// Writers at work, with a task for each.
pub struct Writing {
    left: Arc<AtomicI64>,
    writers: Vec<JoinHandle<()>>,
}

impl Writing {
    pub fn start(db: &Arc<Db>, history: &History, plan: Plan) -> Self {
        let left = Arc::new(AtomicI64::new(plan.events as i64));
        let again = Arc::new(AtomicUsize::new(0));
        let writers = (0..plan.writers).map(|writer| {
            let mut rng = fastrand::Rng::with_seed(plan.seed.wrapping_mul(1009).wrapping_add(writer));
            let (db, history) = (Arc::clone(db), history.clone());
            let (left, again) = (Arc::clone(&left), Arc::clone(&again));
            tokio::spawn(async move {
                while left.load(Ordering::Relaxed) > 0 {
                    match transaction(&db, &history, &mut rng, plan.long).await {
                        Ok(written) => drop(left.fetch_sub(written, Ordering::Relaxed)),
                        Err(why) => {
                            let times = again.fetch_add(1, Ordering::Relaxed) + 1;
                            println!("a transaction is tried again: {why}");
                            assert!(times < 50, "transactions fail all the time, at last with: {why}");
                        }
                    }
                    pause(rng.u64(..=plan.rest.as_micros() as u64)).await;
                }
            })
        });
        let writers = writers.collect();
        Self { left, writers }
    }

    pub fn is_fulfilled(&self) -> bool {
        self.writers.iter().all(JoinHandle::is_finished)
    }

    /// Until the plan is fulfilled.
    pub async fn fulfilled(self) {
        for writer in self.writers {
            writer.await.unwrap();
        }
    }

    /// Until the transactions that are open now have ended.
    pub async fn enough(self) {
        self.left.store(0, Ordering::Relaxed);
        self.fulfilled().await;
    }
}

/// Writes until the plan is fulfilled.
pub async fn run(db: &Arc<Db>, history: &History, plan: Plan) {
    Writing::start(db, history, plan).fulfilled().await;
}

/// One transaction; how many events it has committed.
async fn transaction(db: &Db, history: &History, rng: &mut fastrand::Rng, long: u8) -> Result<i64, String> {
    let mut aggregates = vec![rng.u32(..AGGREGATES)];
    if rng.u8(..8) == 0 {
        aggregates.push(rng.u32(..AGGREGATES));
        aggregates.sort_unstable();
        aggregates.dedup();
    }
    let mut tx = db.begin().await;
    let mut facts = Vec::new();
    for k in aggregates {
        let count = rng.i64(1..=5);
        let set = format!("UPDATE business SET n = n + {count} WHERE k = {k}");
        tx.execute(set).await.map_err(|error| error.to_string())?;
        let now = tx.number(format!("SELECT n FROM business WHERE k = {k}")).await;
        let now = now.map_err(|error| error.to_string())?;
        facts.extend((now - count + 1..=now).map(|version| Fact::new(k.to_string(), version as u64)));
    }
    // Events of two aggregates alternate.
    facts.sort_by_key(|fact| fact.version);
    let events: Vec<Event> = facts.iter().map(|fact| event("order.changed", fact)).collect();
    let committed: Vec<(Uuid, Fact)> = events.iter().map(Event::id).zip(facts).collect();
    if rng.bool() {
        tx.enqueue_all(db, events).await.map_err(|error| error.to_string())?;
    } else {
        for event in events {
            tx.enqueue(db, event).await.map_err(|error| error.to_string())?;
            pause(rng.u64(..200)).await;
        }
    }
    let longest = if db.kind() == Kind::Sqlite { 2000 } else { 6000 };
    match rng.u8(..20) {
        _ if rng.u8(..100) < long => pause(rng.u64(1_000_000..3_000_000)).await,
        0 => pause(rng.u64(1000..longest)).await,
        1..4 => pause(1000).await,
        _ => pause(rng.u64(..400)).await,
    }
    if rng.u8(..10) == 0 {
        tx.rollback().await;
        return Ok(0);
    }
    tx.commit().await;
    let written = committed.len() as i64;
    history.committed(committed);
    Ok(written)
}
