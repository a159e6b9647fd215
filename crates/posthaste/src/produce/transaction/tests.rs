//! What becomes of a transaction's events at its end, with the relay's end of the gate in the test's own hands.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sqlx::Sqlite;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::timeout;

use super::*;
use crate::produce::gate::{HotEvent, HotQueue};
use crate::produce::{Hook, HookError};
use crate::store::{Claim, Filter, Record, Status, WorkerId};

const LEASE: Duration = Duration::from_secs(60);

/// An outbox, and the relay's end of its gate.
struct Relayed {
    outbox: Outbox<Sqlite>,
    queue: Arc<HotQueue>,
    committed: UnboundedReceiver<HotEvent>,
    woken: Arc<Notify>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Hook for Seen {
    fn after_commit(&self, events: &[Event]) -> Result<(), HookError> {
        self.0.lock().map_err(|_| "poisoned")?.push(format!("committed {}", events.len()));
        Ok(())
    }
    fn after_rollback(&self, events: &[Event]) -> Result<(), HookError> {
        self.0.lock().map_err(|_| "poisoned")?.push(format!("rolled back {}", events.len()));
        Ok(())
    }
}

impl Relayed {
    async fn with_slots(slots: usize) -> Result<Self> {
        let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
        Self::on(pool, "outbox", slots, LEASE).await
    }

    async fn on(pool: sqlx::SqlitePool, table: &str, slots: usize, lease: Duration) -> Result<Self> {
        let seen = Arc::new(Seen::default());
        let outbox = Outbox::sqlite(pool).table(table).hook(Arc::clone(&seen)).build()?;
        outbox.migrate().await?;
        let woken = Arc::new(Notify::new());
        let (queue, committed) = HotQueue::new(WorkerId::new("relay")?, lease, slots, Arc::clone(&woken));
        outbox.gate().attach(&queue);
        Ok(Self { outbox, queue, committed, woken, seen })
    }

    /// What has been handed over.
    fn handed_over(&mut self) -> Vec<HotEvent> {
        std::iter::from_fn(|| self.committed.try_recv().ok()).collect()
    }

    fn free_slots(&self) -> usize {
        self.outbox.gate().reserve(100).map_or(0, |slots| slots.len())
    }

    async fn was_woken(&self) -> bool {
        timeout(Duration::from_millis(1), self.woken.notified()).await.is_ok()
    }

    async fn record(&self, id: Uuid) -> Result<Record> {
        self.outbox.store().get(id).await?.context("the row is there")
    }

    fn seen(&self) -> Vec<String> {
        self.seen.0.lock().map(|seen| seen.clone()).unwrap_or_default()
    }
}

fn event(n: u64) -> Result<Event> {
    Ok(Event::json("order.placed.v1", &n)?.aggregate("order", n).build()?)
}

fn ids(events: &[HotEvent]) -> Vec<Uuid> {
    events.iter().map(|hot| hot.event.id()).collect()
}

#[tokio::test]
async fn re5_a_committed_event_is_handed_over_once_and_can_be_settled() -> Result<()> {
    let mut relayed = Relayed::with_slots(1).await?;
    let mut tx = relayed.outbox.begin().await?;
    let answer = relayed.outbox.enqueue(&mut tx, event(1)?).await?;
    ensure!(relayed.handed_over().is_empty(), "not before the commit");
    tx.commit().await?;
    ensure!(relayed.seen() == ["committed 1"]);

    let record = relayed.record(answer.id).await?;
    ensure!((record.status, record.attempts) == (Status::Processing, 1));
    ensure!(record.locked_until.context("a lease")? - record.created_at == LEASE);
    let claim = Claim::by(WorkerId::unique());
    ensure!(relayed.outbox.store().claim(&claim).await?.events.is_empty(), "nobody else claims it");

    let handed_over = relayed.handed_over();
    let [hot] = &handed_over[..] else { anyhow::bail!("{} were handed over", handed_over.len()) };
    ensure!((hot.lease.id, Some(hot.lease.sequence)) == (answer.id, answer.sequence));
    ensure!((hot.lease.attempt, Some(&*hot.lease.holder)) == (1, record.locked_by.as_deref()));
    let stored = record.event.map_err(anyhow::Error::msg)?;
    ensure!(Event { available: Available::Now, ..stored } == *hot.event, "delivered is what is stored");
    ensure!(hot.event.occurred_at().is_some_and(|at| at.nanosecond() % 1000 == 0));
    ensure!(!relayed.was_woken().await, "for nothing is left to claim");
    ensure!(relayed.free_slots() == 0, "until it is delivered");

    let settled =
        relayed.outbox.store().settle(&[Settlement::delivered(hot.lease.clone())], Keep::Delivered).await?;
    ensure!(settled.written == 1);
    drop(handed_over);
    ensure!(relayed.free_slots() == 1 && relayed.handed_over().is_empty());
    Ok(())
}

#[tokio::test]
async fn re5_a_given_time_is_handed_over_as_it_is_stored() -> Result<()> {
    let mut relayed = Relayed::with_slots(1).await?;
    let at = time::macros::datetime!(2020-02-29 23:59:59.123456789 +02:00);
    let mut tx = relayed.outbox.begin().await?;
    let id = relayed.outbox.enqueue(&mut tx, event(1)?.to_builder().occurred_at(at)).await?.id;
    tx.commit().await?;
    let stored = relayed.record(id).await?.event.map_err(anyhow::Error::msg)?;
    ensure!(relayed.handed_over()[0].event.occurred_at() == stored.occurred_at());
    Ok(())
}

#[tokio::test]
async fn re5_nothing_is_handed_over_without_a_commit_and_the_slots_are_free() -> Result<()> {
    let mut relayed = Relayed::with_slots(2).await?;
    let mut tx = relayed.outbox.begin().await?;
    relayed.outbox.enqueue_all(&mut tx, [event(1)?, event(2)?]).await?;
    ensure!(relayed.free_slots() == 0);
    tx.rollback().await?;
    ensure!(relayed.free_slots() == 2);
    let mut tx = relayed.outbox.begin().await?;
    relayed.outbox.enqueue(&mut tx, event(3)?).await?;
    drop(tx);
    ensure!(relayed.free_slots() == 2 && relayed.handed_over().is_empty());
    ensure!(!relayed.was_woken().await);
    ensure!(relayed.seen() == ["rolled back 2", "rolled back 1"]);
    ensure!(relayed.outbox.store().count(&Filter::all(), 10).await?.n == 0);
    Ok(())
}

#[tokio::test]
async fn re5_only_as_many_as_there_are_slots_are_leased_and_the_first() -> Result<()> {
    let mut relayed = Relayed::with_slots(2).await?;
    let mut tx = relayed.outbox.begin().await?;
    let answers = relayed.outbox.enqueue_all(&mut tx, [event(1)?, event(2)?, event(3)?]).await?;
    let late = relayed.outbox.enqueue(&mut tx, event(4)?).await?;
    tx.commit().await?;
    let handed_over = relayed.handed_over();
    ensure!(ids(&handed_over) == [answers[0].id, answers[1].id]);
    ensure!(
        handed_over.iter().zip(&answers).all(|(hot, answer)| Some(hot.lease.sequence) == answer.sequence)
    );
    ensure!(relayed.was_woken().await, "for what is left to claim");
    let claimed = relayed.outbox.store().claim(&Claim::by(WorkerId::unique())).await?.events;
    ensure!(claimed.iter().map(|c| c.event.id()).collect::<Vec<_>>() == [answers[2].id, late.id]);
    ensure!(claimed.iter().all(|claimed| claimed.lease.attempt() == 1));
    Ok(())
}

#[tokio::test]
async fn re5_what_is_for_later_is_never_leased() -> Result<()> {
    let mut relayed = Relayed::with_slots(3).await?;
    let hour = Duration::from_secs(3600);
    let now = OffsetDateTime::now_utc();
    let mut tx = relayed.outbox.begin().await?;
    let answers = relayed
        .outbox
        .enqueue_all(
            &mut tx,
            [
                event(1)?.to_builder().delay(hour),
                event(2)?.to_builder().available_at(now + hour),
                event(3)?.to_builder().available_at(now - hour),
            ],
        )
        .await?;
    ensure!(relayed.free_slots() == 2, "one has a slot");
    tx.commit().await?;
    ensure!(ids(&relayed.handed_over()) == [answers[2].id]);
    for answer in &answers[..2] {
        let record = relayed.record(answer.id).await?;
        ensure!((record.status, record.attempts, record.locked_by) == (Status::Pending, 0, None));
    }
    // By the database's clock, as far as the relay knows it.
    relayed.queue.set_skew(time::Duration::hours(2));
    let mut tx = relayed.outbox.begin().await?;
    relayed.outbox.enqueue(&mut tx, event(4)?.to_builder().available_at(now + hour)).await?;
    tx.commit().await?;
    ensure!(relayed.handed_over().len() == 1);
    Ok(())
}

#[tokio::test]
async fn re5_duplicates_give_their_slots_back() -> Result<()> {
    let mut relayed = Relayed::with_slots(3).await?;
    let (first, keyed) = (event(1)?, event(2)?.to_builder().dedupe_key("k").build()?);
    let mut tx = relayed.outbox.begin().await?;
    relayed.outbox.enqueue_all(&mut tx, [first.clone(), keyed.clone(), first.clone()]).await?;
    ensure!(relayed.free_slots() == 1);
    let again = relayed.outbox.enqueue(&mut tx, event(3)?.to_builder().dedupe_key("k")).await?;
    ensure!(again.duplicate && relayed.free_slots() == 1);
    tx.commit().await?;
    ensure!(ids(&relayed.handed_over()) == [first.id(), keyed.id()]);
    ensure!(!relayed.was_woken().await, "a duplicate is nothing to claim");
    Ok(())
}

#[tokio::test]
async fn re5_what_a_savepoint_undid_is_not_handed_over() -> Result<()> {
    let mut relayed = Relayed::with_slots(3).await?;
    let mut tx = relayed.outbox.begin().await?;
    let before = relayed.outbox.enqueue(&mut tx, event(1)?).await?.id;
    sqlx::query("SAVEPOINT mine").execute(&mut *tx).await?;
    relayed.outbox.enqueue(&mut tx, event(2)?).await?;
    sqlx::query("ROLLBACK TO SAVEPOINT mine").execute(&mut *tx).await?;
    let after = relayed.outbox.enqueue(&mut tx, event(3)?).await?.id;
    tx.commit().await?;
    let handed_over = relayed.handed_over();
    ensure!(ids(&handed_over) == [before, after]);
    ensure!(relayed.free_slots() == 1);
    let settlements: Vec<_> = handed_over.into_iter().map(|hot| Settlement::delivered(hot.lease)).collect();
    ensure!(relayed.outbox.store().settle(&settlements, Keep::Nothing).await?.written == 2);
    Ok(())
}

#[tokio::test]
async fn re5_what_another_has_written_under_the_same_id_is_not_handed_over() -> Result<()> {
    let mut relayed = Relayed::with_slots(1).await?;
    let event = event(1)?;
    let mut tx = relayed.outbox.begin().await?;
    relayed.outbox.enqueue(&mut tx, event.clone()).await?;
    // As if a deadlock had ended the transaction, and another producer had been quicker.
    sqlx::query("UPDATE outbox SET locked_by = NULL, locked_until = NULL, attempts = 0")
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    ensure!(relayed.handed_over().is_empty() && relayed.free_slots() == 1);
    Ok(())
}

#[tokio::test]
async fn re5_a_transaction_that_outlives_its_leases_leaves_pending_rows() -> Result<()> {
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    let lease = Duration::from_millis(5);
    let mut short = Relayed::on(pool.clone(), "short", 3, lease).await?;
    let mut long = Relayed::on(pool, "long", 1, LEASE).await?;
    let mut tx = short.outbox.begin().await?;
    let one = short.outbox.enqueue(&mut tx, event(1)?).await?.id;
    let two = short.outbox.enqueue_all(&mut tx, [event(2)?, event(3)?]).await?;
    let kept = long.outbox.enqueue(&mut tx, event(4)?).await?.id;
    tokio::time::sleep(lease).await;
    tx.commit().await?;
    ensure!(short.handed_over().is_empty() && short.free_slots() == 3);
    for id in [one, two[0].id, two[1].id] {
        let record = short.record(id).await?;
        ensure!((record.status, record.attempts) == (Status::Pending, 0));
        ensure!((record.locked_by, record.locked_until) == (None, None));
    }
    ensure!(short.was_woken().await, "for what is left to claim");
    ensure!(ids(&long.handed_over()) == [kept] && !long.was_woken().await);
    Ok(())
}

#[tokio::test]
async fn re5_a_nested_transaction_writes_pending_rows() -> Result<()> {
    let mut relayed = Relayed::with_slots(3).await?;
    let mut tx = relayed.outbox.begin().await?;
    let outer = relayed.outbox.enqueue(&mut tx, event(1)?).await?.id;
    let mut nested = Connection::begin(&mut *tx).await?;
    relayed.outbox.enqueue(&mut nested, event(2)?).await?;
    drop(nested);
    let mut nested = Connection::begin(&mut *tx).await?;
    let kept = relayed.outbox.enqueue(&mut nested, event(3)?).await?.id;
    nested.commit().await?;
    tx.commit().await?;
    ensure!(ids(&relayed.handed_over()) == [outer]);
    let claimed = relayed.outbox.store().claim(&Claim::by(WorkerId::unique())).await?.events;
    ensure!(claimed.iter().map(|c| c.event.id()).collect::<Vec<_>>() == [kept]);
    Ok(())
}

#[tokio::test]
async fn re5_a_relay_that_has_stopped_gets_nothing_and_the_lease_is_released() -> Result<()> {
    let mut relayed = Relayed::with_slots(2).await?;
    let mut tx = relayed.outbox.begin().await?;
    let paused = relayed.outbox.enqueue(&mut tx, event(1)?).await?.id;
    relayed.queue.set_open(false);
    let refused = relayed.outbox.enqueue(&mut tx, event(2)?).await?.id;
    tx.commit().await?;
    ensure!(relayed.handed_over().is_empty());

    relayed.queue.set_open(true);
    let mut tx = relayed.outbox.begin().await?;
    let gone = relayed.outbox.enqueue(&mut tx, event(3)?).await?.id;
    relayed.committed.close();
    tx.commit().await?;

    for id in [paused, refused, gone] {
        let record = relayed.record(id).await?;
        ensure!((record.status, record.attempts, record.locked_by) == (Status::Pending, 0, None));
    }
    ensure!(relayed.free_slots() == 2 && relayed.was_woken().await);
    Ok(())
}

#[tokio::test]
async fn re5_each_outbox_of_a_transaction_has_its_own_gate() -> Result<()> {
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
    let mut orders = Relayed::on(pool.clone(), "orders", 1, LEASE).await?;
    let mut stock = Relayed::on(pool, "stock", 1, LEASE).await?;
    let mut tx = orders.outbox.begin().await?;
    let placed = orders.outbox.enqueue_all(&mut tx, [event(1)?, event(2)?]).await?;
    let moved = stock.outbox.enqueue(&mut tx, event(3)?).await?;
    tx.commit().await?;
    ensure!(ids(&orders.handed_over()) == [placed[0].id] && ids(&stock.handed_over()) == [moved.id]);
    ensure!(orders.was_woken().await && !stock.was_woken().await);
    Ok(())
}

#[tokio::test]
async fn re6_whoever_commits_elsewhere_can_wake_the_relay() -> Result<()> {
    let relayed = Relayed::with_slots(1).await?;
    ensure!(!relayed.was_woken().await);
    relayed.outbox.wake();
    ensure!(relayed.was_woken().await);
    Ok(())
}

#[tokio::test]
async fn re6_a_commit_in_memory_wakes_the_relay() -> Result<()> {
    let outbox = Outbox::memory().build()?;
    let woken = Arc::new(Notify::new());
    let (queue, _committed) = HotQueue::new(WorkerId::unique(), LEASE, 1, Arc::clone(&woken));
    outbox.gate().attach(&queue);
    let mut tx = outbox.begin();
    outbox.enqueue(&mut tx, event(1)?).await?;
    tx.rollback();
    ensure!(timeout(Duration::from_millis(1), woken.notified()).await.is_err());
    let mut tx = outbox.begin();
    outbox.enqueue(&mut tx, event(2)?).await?;
    tx.commit();
    timeout(Duration::from_millis(1), woken.notified()).await?;
    Ok(())
}
